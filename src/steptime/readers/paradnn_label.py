"""ParaDnn's labels, the names of its runs, as networks."""

from __future__ import annotations

import re

from steptime.build import Choice, read_model
from steptime.core.errors import InputError, shorten

LABELS = {  # a label: model text, and the words that the file's name says of it
    "layer_{layer}-node_{node}-input_{input}-output_{output}-bs_{batch}": (
        "fc:layers={layer},nodes={node},inputs={input},outputs={output}",
        "",
        (),
    ),
    "block_{block}-filtersz_{filters}-input_{image}-output_{output}-batchsize_{batch}": (
        "cnn:blocks={block},filters={filters},image={image},classes={output}",
        "block",
        ("residual", "bottleneck"),
    ),
    "layer_{layer}-maxlength_{length}-vocabsize_{words}-embeddingsize_{width}-batchsize_{batch}": (
        "rnn:layers={layer},length={length},vocabulary={words},embedding={width}",
        "cell",
        ("lstm", "gru", "rnn"),
    ),
}
_FIELD = re.compile(r"\{(\w+)\}")
PATTERNS = {form: re.compile(_FIELD.sub(r"(?P<\1>\\d{1,15})", form)) for form in LABELS}


def split_label(text: str) -> tuple[str, str]:
    """Return the label, and the name of an operation behind it: `...-bs_512-all-reduce`.

    Names hold hyphens and blanks, so the label ends where its last number does.
    """
    for pattern in PATTERNS.values():
        found = pattern.match(text)
        if found and text[found.end() : found.end() + 1] in {"", "-"}:
            return found[0], text[found.end() + 1 :]
    raise InputError(f"is no label of ParaDnn's: {shorten(text)}")


def network(label: str, file: str = "") -> tuple[Choice, int]:
    """Return the network of a label and its batch; the `file` names the kind of block or cell.

    Raises `InputError` for what is no label.
    """
    for form, (model, detail, words) in LABELS.items():
        found = PATTERNS[form].fullmatch(label)
        if not found:
            continue
        fields = found.groupdict()
        text = model.format(**fields)
        if detail:
            named = [word for word in words if word in re.split(r"[_/.-]", file.lower())]
            if not named:
                raise InputError(f"{label}: the file's name does not say the {detail}")
            text += f",{detail}={named[0]}"
        return read_model(text), int(fields["batch"])
    raise InputError(f"is no label of ParaDnn's: {shorten(label)}")

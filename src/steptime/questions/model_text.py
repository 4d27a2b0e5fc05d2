"""Options of a network as words of its model text: `net.py:Net:batch_axis=1,strict=yes`."""

from __future__ import annotations

import re

from steptime.build import SETTINGS_OF_FILE
from steptime.core.errors import InputError, shorten
from steptime.formats.code import BATCH_AXIS, STRICT, parse_code

_STRICT_FILE = re.compile(r".+\.(?:onnx|pt2)(?::.+)?", re.IGNORECASE)


def set_model_words(text: str, strict: bool, batch_axis: int | None) -> str:
    """Return a model text with the words that `--strict` and `--batch-axis` stand for.

    `net.py:Net` becomes `net.py:Net:batch_axis=1,strict=yes`. Named networks and families hold no
    op of unknown work: their text stays.

    Raises:
        InputError: if a batch axis is given for a network that is no code.
    """
    code = parse_code(text)
    can_be_strict = code is not None or bool(_STRICT_FILE.fullmatch(text.strip()))
    if batch_axis is not None and code is None:
        hint = "it goes with code (model.py:NAME), whose batch may be another axis than the first"
        raise InputError(f"--batch-axis: {shorten(text)} is no code; {hint}")
    words = []
    if batch_axis is not None:
        words.append(f"{BATCH_AXIS}={batch_axis}")
    if strict and can_be_strict:
        words.append(f"{STRICT}=yes")
    if not words:
        return text
    if code is None:
        has_settings = bool(SETTINGS_OF_FILE.fullmatch(text.strip()))
    else:
        has_settings = text.count(":") > 1  # net.py:Net:batch_axis=1
    separator = "," if has_settings else ":"
    return f"{text.strip()}{separator}{','.join(words)}"

"""How names of devices are spelled: by people, drivers, schedulers and logs."""

import re

_BRANDS = re.compile(r"nvidia|tesla|geforce|quadro|amd|instinct|radeon|google|aws|intel")
_SPELLINGS = (  # as people write, and as the names of devices do
    (re.compile(r"(\d) ?gi?b?\b"), r"\1gb"),
    (re.compile(r"\b(rtx|gtx|rx)(?=\d)"), r"\1 "),
    (re.compile(r"\b(\d{3,4})(?=(ti|super|xtx?|gre|d)\b)"), r"\1 "),
    (re.compile(r"\blaptop gpu\b|\bmobile\b"), "laptop"),
    (re.compile(r"\bwith max[- ]q design\b"), "max-q"),
    (re.compile(r"\b(ada|blackwell) generation\b"), r"\1"),
    (re.compile(r"(?<=\d)\+"), " plus"),
)
VARIANT = re.compile(  # a word may leave these out
    r"sxm|pcie|rtx|gtx|rx|\d+gb|xeon|platinum|gold|epyc|ryzen|9|core|i\d|threadripper|jetson|"
    r"blackwell"
)


def tokens(text: str) -> list[str]:
    """Return what tells devices apart in a word: `Tesla V100-SXM2-16GB` is v100, sxm, 16gb."""
    return [re.sub(r"^sxm\d$", "sxm", word) for word in _words(text)]


def _words(text: str) -> list[str]:
    spelled = text.lower().replace("_", " ")
    for written, own in _SPELLINGS:
        spelled = written.sub(own, spelled)
    return [part for part in re.findall(r"[a-z0-9.]+", spelled) if not _BRANDS.fullmatch(part)]


def key_of(text: str) -> str:
    """Return the words of a name in one, without makers, spaces and punctuation."""
    return "".join(_words(text))


def model_tokens(text: str) -> set[str]:
    """Return the parts of a word that say more than a variant."""
    return {token for token in tokens(text) if not VARIANT.fullmatch(token)}

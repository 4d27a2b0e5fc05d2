"""How names are spelled: by people, drivers, schedulers and logs, and what one was meant to be."""

import difflib
import re
from collections.abc import Iterable
from functools import partial
from itertools import takewhile

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


_PARTS = re.compile(r"\d+|[^\W\d_]+")
_LONGEST = 200  # characters of what somebody typed
_ALIKE, _SPLIT = 0.6, 0.9  # of the letters of two words, of all words
_SIZE = re.compile(r"x+l")  # those of models that are spelled alike
_SHORT = 2  # letters: no word, such as the unit in 80gb


def meant_by(typed: str, known: Iterable[str]) -> list[str]:
    """Return the known names that somebody may have meant, whatever their case; [] for none.

    The name itself in another case stands alone. Names that hold the typed one as whole parts come
    next: `k40` is in `tesla-k40`, `nvlink` in all of `nvlink-1` to `nvlink-6`. Else it is the
    nearest name whose words are alike and whose numbers are the same, but for a digit lost, added,
    swapped, or wrong behind the first: l41 is l40, resnet10 is resnet18, but resnet101 is no
    resnet50, nor convnext_base a convnext_tiny.
    """
    by_lower = {name.lower(): name for name in known}
    wanted = typed.lower()[:_LONGEST]
    words = _PARTS.findall(wanted)
    holding = [wanted] if wanted in by_lower else [one for one in by_lower if _holds(one, words)]
    if holding and len(wanted) > 1:
        return [by_lower[name] for name in holding]
    near = difflib.get_close_matches(wanted, by_lower, n=len(by_lower) or 1)
    alike = [name for name in near if _alike(words, _PARTS.findall(name))]
    return [by_lower[name] for name in sorted(alike, key=partial(_distance, wanted))[:1]]


def by_likeness(typed: str, known: Iterable[str]) -> list[str]:
    """Return the known names, those most like the typed one first."""
    like = partial(difflib.SequenceMatcher, None, typed.lower()[:_LONGEST])
    return sorted(known, key=lambda name: -like(name.lower()).ratio())


def _holds(name: str, words: list[str]) -> bool:
    parts, many = _PARTS.findall(name), len(words)
    return many > 0 and any(parts[i : i + many] == words for i in range(len(parts) - many + 1))


def _alike(one: list[str], other: list[str]) -> bool:
    """Whether names in parts have the same numbers, and in the same places words that are alike."""
    numbers = [[part for part in parts if part.isdigit()] for parts in (one, other)]
    if len(numbers[0]) != len(numbers[1]) or not all(map(_same_digits, *numbers)):
        return False
    words = [[part for part in parts if not part.isdigit()] for parts in (one, other)]
    if len(words[0]) != len(words[1]):  # one that was split or joined
        whole, parts = ("".join(some) for some in words)
        like = difflib.SequenceMatcher(None, whole, parts)
        return like.ratio() >= _SPLIT or _edits(whole, parts) == 1
    return all(map(_same_word, *words))


def _same_word(one: str, other: str) -> bool:
    """Whether words are alike: short, or most letters; not of other sizes (`xl`, `s`)."""
    if max(len(one), len(other)) <= _SHORT:
        return one == other or len(one + other) > _SHORT
    is_size = one != other and all(map(_SIZE.fullmatch, (one, other)))
    return not is_size and difflib.SequenceMatcher(None, one, other).ratio() >= _ALIKE


def _same_digits(one: str, other: str) -> bool:
    """Whether a digit was lost, added, wrong behind the first, or swapped with another, at most.

    A wrong one of four is another product: an RTX 4080 Ti is no RTX 4070 Ti.
    """
    wrong = len(one) == len(other) and sorted(one) != sorted(other)
    return _edits(one, other) <= 1 and not (wrong and (one[0] != other[0] or len(one) > 3))


def _distance(typed: str, name: str) -> tuple[int, int, bool, int]:
    """Return how far names are apart; of equal edits, more digits or another begin are farther.

    Resnet10 is as near to resnet101 as to resnet18, which has as many digits.
    """
    digits, others = (sum(map(str.isdigit, text)) for text in (typed, name))
    begin = len([*takewhile(lambda both: both[0] == both[1], zip(typed, name, strict=False))])
    return _edits(typed, name), abs(digits - others), sorted(typed) != sorted(name), -begin


def _edits(one: str, other: str) -> int:
    """Return the least letters to add, drop, change or, two in all, swap to make a text another."""
    row: list[int] = [*range(len(other) + 1)]
    for i, letter in enumerate(one, 1):
        above, row = row, [i]
        for j, old in enumerate(other):
            row.append(min(row[-1] + 1, above[j + 1] + 1, above[j] + (letter != old)))
    return row[-1] - (one != other and sorted(one) == sorted(other))

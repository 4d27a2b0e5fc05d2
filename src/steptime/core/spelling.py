"""Compares names as people, drivers, schedulers and logs spell them."""

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
    """Return the parts that identify a device: `Tesla V100-SXM2-16GB` is v100, sxm, 16gb."""
    return [re.sub(r"^sxm\d$", "sxm", word) for word in _words(text)]


def _words(text: str) -> list[str]:
    spelled = text.lower().replace("_", " ")
    for pattern, spelling in _SPELLINGS:
        spelled = pattern.sub(spelling, spelled)
    return [part for part in re.findall(r"[a-z0-9.]+", spelled) if not _BRANDS.fullmatch(part)]


def key_of(text: str) -> str:
    """Return the words of a name joined, without makers, spaces and punctuation."""
    return "".join(_words(text))


def plain_name(text: str) -> str:
    """Return a name without case, spaces and dashes: `NVLink3 x12` is `nvlink3x12`."""
    return re.sub(r"[ _-]", "", text.lower())


def to_snake_case(word: str) -> str:
    """Return a word as keys of tables are spelled: `Q4-K-M` is `q4_k_m`."""
    return word.strip().lower().replace("-", "_").replace(" ", "_")


def model_tokens(text: str) -> set[str]:
    """Return the parts of a name without those that only name a variant (`VARIANT`)."""
    return {token for token in tokens(text) if not VARIANT.fullmatch(token)}


_PARTS = re.compile(r"\d+|[^\W\d_]+")
_LONGEST = 200  # characters of what somebody typed
_SIMILAR_WORDS, _SIMILAR_NAMES = 0.6, 0.9  # similarity of two words, of all words in one
_SIZE = re.compile(r"x+l")  # those of models that are spelled alike
_SHORT = 2  # letters: no word, such as the unit in 80gb


def find_similar_names(typed: str, valid_names: Iterable[str]) -> list[str]:
    """Return the valid names that a user may have meant, without regard to case; [] for none.

    The first of these rules that finds a name decides. The same name in another case; all names
    that contain the typed one as whole parts (`k40` is in `tesla-k40`, `nvlink` in `nvlink-1` to
    `nvlink-6`); the nearest name with similar words and the same numbers, except for one digit
    lost, added, swapped, or wrong behind the first: l41 is l40 and resnet10 is resnet18, but
    resnet101 is not resnet50, and convnext_base is not convnext_tiny.
    """
    # All names that contain what was typed, or else the nearest of those that are spelled alike.
    name_by_lower = {name.lower(): name for name in valid_names}
    typed_lower = typed.lower()[:_LONGEST]
    typed_parts = _PARTS.findall(typed_lower)
    if typed_lower in name_by_lower:
        containing_names = [typed_lower]
    else:
        containing_names = [lower for lower in name_by_lower if _has_parts(lower, typed_parts)]
    is_single_character = len(typed_lower) <= 1  # a part of too many names
    if containing_names and not is_single_character:
        return [name_by_lower[lower] for lower in containing_names]
    similar_names = []
    for lower in name_by_lower:
        has_similar_text = _similarity(typed_lower, lower) >= _SIMILAR_WORDS
        if has_similar_text and _is_similar(typed_parts, _PARTS.findall(lower)):
            similar_names.append(lower)
    nearest = sorted(similar_names, key=partial(_distance, typed_lower))[:1]
    return [name_by_lower[lower] for lower in nearest]


def by_likeness(typed: str, valid_names: Iterable[str]) -> list[str]:
    """Return the known names, the most similar to the typed one first."""
    lower = typed.lower()[:_LONGEST]
    return sorted(valid_names, key=lambda name: -_similarity(lower, name.lower()))


def digit_slips(typed: str, names: Iterable[str]) -> list[str]:
    """Return the names that differ from a text by one digit too many or too few: A1000, A100."""
    typed_key = key_of(typed)
    typed_letters = re.sub(r"\d", "", typed_key)

    def has_digit_slip(name: str) -> bool:
        key = key_of(name)
        differs_in_length = abs(len(key) - len(typed_key)) == 1
        has_equal_letters = re.sub(r"\d", "", key) == typed_letters
        return differs_in_length and has_equal_letters and _edits(key, typed_key) == 1

    return [name for name in names if has_digit_slip(name)]


def _has_parts(name: str, typed_parts: list[str]) -> bool:
    parts = _PARTS.findall(name)
    count = len(typed_parts)
    starts = range(len(parts) - count + 1)
    return count > 0 and any(parts[start : start + count] == typed_parts for start in starts)


def _is_similar(typed: list[str], name: list[str]) -> bool:
    """Whether names in parts have the same numbers, and in the same places words that are alike."""
    typed_numbers = [part for part in typed if part.isdigit()]
    numbers = [part for part in name if part.isdigit()]
    if len(typed_numbers) != len(numbers):
        return False
    if not all(map(_is_similar_number, typed_numbers, numbers)):
        return False
    typed_words = [part for part in typed if not part.isdigit()]
    words = [part for part in name if not part.isdigit()]
    if len(typed_words) == len(words):
        return all(map(_is_similar_word, typed_words, words))
    # A word was split, or two were joined: compare their letters without the gaps.
    typed_text = "".join(typed_words)
    text = "".join(words)
    return _similarity(typed_text, text) >= _SIMILAR_NAMES or _edits(typed_text, text) == 1


def _is_similar_word(typed: str, word: str) -> bool:
    """Whether two words share most letters, or are short; words for sizes (`xl`) must be equal."""
    if max(len(typed), len(word)) <= _SHORT:
        return typed == word or len(typed + word) > _SHORT
    is_size = typed != word and all(map(_SIZE.fullmatch, (typed, word)))
    return not is_size and _similarity(typed, word) >= _SIMILAR_WORDS


def _is_similar_number(typed: str, digits: str) -> bool:
    """Whether numbers differ in at most one digit: lost, added, swapped, or wrong but the first.

    A wrong digit among four is a different product: an RTX 4080 Ti is not an RTX 4070 Ti.
    """
    has_equal_digits = sorted(typed) == sorted(digits)  # two of them may be swapped
    has_wrong_digit = len(typed) == len(digits) and not has_equal_digits
    has_wrong_begin = typed[0] != digits[0]
    # 1080 and 1070 are two products, while 81 may be a slip for 80.
    is_product_number = len(typed) > 3
    is_different_product = has_wrong_digit and (has_wrong_begin or is_product_number)
    return _edits(typed, digits) <= 1 and not is_different_product


def _distance(typed: str, name: str) -> tuple[int, int, bool, int]:
    """Return the sort key of similarity: edits first, then the number of digits and the prefix.

    Resnet10 is as near to resnet101 as to resnet18, which has as many digits.
    """
    typed_digits = sum(map(str.isdigit, typed))
    name_digits = sum(map(str.isdigit, name))
    character_pairs = zip(typed, name, strict=False)
    common_prefix = [*takewhile(lambda pair: pair[0] == pair[1], character_pairs)]
    has_other_characters = sorted(typed) != sorted(name)
    digit_difference = abs(typed_digits - name_digits)
    # Of two names the smaller tuple is nearer: a longer common prefix counts as less.
    return _edits(typed, name), digit_difference, has_other_characters, -len(common_prefix)


def _edits(typed: str, name: str) -> int:
    """Return the edit distance of two texts, in which a swap of neighbours counts once (OSA)."""
    from rapidfuzz.distance import OSA

    return OSA.distance(typed, name)


def _similarity(typed: str, name: str) -> float:
    """Return the share of letters that two texts have in common, in the same order: 0 to 1."""
    from rapidfuzz import fuzz

    return fuzz.ratio(typed, name) / 100

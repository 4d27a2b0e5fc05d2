"""Parsers of the values that people type, one for each kind, and the types that Python takes.

Commands, Python functions and experiment files use the same parsers, so a value means the same
everywhere. Each parser takes a text, or a number or list where that is natural, and `place`: the
option or key that an error message names. Each raises `InputError` with one line for a value of
another kind.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from math import nan
from numbers import Integral
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, shorten

Count = int | float | str
"""A whole number: `8`, `1e3`, `1.2M`."""
Seconds = float | str
"""A time: `0.5`, `500ms`, `2s`."""
Bytes = float | str
"""A size of memory: `24GB`, `24GiB`, or a number of bytes."""
Share = float | str
"""A share: `5%`, `0.05`."""
Price = float | str
"""An amount of money: `2.5`, `$2.50`."""
Batches = int | str | Sequence[int]
"""Whole numbers: `64`, `16,32`, `8..64 x2`."""

MAX_COUNT = 2**53  # up to here a float holds every whole number
MAX_VALUES = 10_000_000  # of one range
MAX_VISITS = 10_000  # rounds of a sweep, or runs of a cell
MAX_STEPS = 10_000_000  # of a training
MAX_PROCESSES = 100_000  # of one cell
MAX_BYTES = 2.0**63
MAX_DROPOUT = 0.99  # share of values that are dropped; 1 leaves none
MAX_SHARE = 1000.0  # of a share in %: more is a slip
LONGEST_NUMBER = 40  # characters; more are no number that people mean
COUNT_SCALES = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
SECONDS_OF_UNIT = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
BYTES_OF_UNIT = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}
_NUMBER = r"\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?"
_COUNT = re.compile(rf"([+-]?(?:{_NUMBER}|\.\d+))\s*([kKMBT]?)", re.ASCII)
_QUANTITY = re.compile(rf"([+-]?(?:{_NUMBER}|\.\d+))\s*([a-zA-Z]*)", re.ASCII)
_RANGE = re.compile(
    rf"\s*({_NUMBER}[kKMBT]?)\s*\.\.\s*({_NUMBER}[kKMBT]?)\s*(?:([+x*])\s*(\d{{1,17}}))?\s*",
    re.ASCII,
)


def parse_text(value: object, place: str) -> str:
    """Return a value of the command line or of a file as text, without spaces around it."""
    if isinstance(value, int) and abs(value) > MAX_COUNT:
        raise InputError(f"{place}: {shorten(value)} is larger than 2^53")
    if not isinstance(value, str | float | Integral):
        raise InputError(f"{place}: {shorten(value)} is not a value")
    return str(value).strip()


def parse_pairs(texts: Iterable[str] | None, noun: str) -> dict[str, str]:
    """Return `NAME=VALUE` texts as a dict; raises `InputError` for other forms and for repeats."""
    value_by_name: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = (part.strip() for part in text.partition("="))
        is_pair = name and equals and value
        if not is_pair:
            raise InputError(f"{noun} {shorten(text)} is not of the form NAME=VALUE")
        if name in value_by_name:
            raise InputError(f"{noun} '{name}' is given twice")
        value_by_name[name] = value
    return value_by_name


def parse_count(value: object, place: str, at_least: int = 1, at_most: int = MAX_COUNT) -> int:
    """Return a whole number within bounds: `8`, `1e3` is 1,000, `1.2M` is 1,200,000.

    Args:
        value: a text or a number. `k`, `M`, `B` and `T` stand for 10^3, 10^6, 10^9 and 10^12.
        place: the option or key that an error message names.
        at_least: the smallest number that is allowed.
        at_most: the largest number that is allowed.

    Raises:
        InputError: for a fraction, another text, and a number out of bounds.
    """
    text = parse_text(value, place)
    is_flag = isinstance(value, bool)
    number = None if is_flag else _parse_scaled_number(text)
    has_too_many_digits = number is None and re.fullmatch(r"-?\d+", text, re.ASCII)
    if has_too_many_digits:
        raise InputError(f"{place}: {shorten(text)} is larger than 2^53")
    is_integer = number is not None and number == number.to_integral_value()
    if number is None or not is_integer:
        forms = "write it as 8, 1e3 or 1.2M"
        raise InputError(f"{place}: must be a whole number, not {shorten(value)}; {forms}")
    if number > MAX_COUNT:
        raise InputError(f"{place}: {shorten(text)} is larger than 2^53")
    if number < at_least:
        number_text = int(number) if abs(number) <= MAX_COUNT else shorten(text)
        raise InputError(f"{place}: must be at least {at_least}, not {number_text}")
    if number > at_most:
        raise InputError(f"{place}: {int(number)} is more than {at_most}")
    return int(number)


def _parse_scaled_number(text: str) -> Decimal | None:
    """Return the number of a text with its suffix, `1.2M`; None for another text."""
    match = _COUNT.fullmatch(text) if len(text) <= LONGEST_NUMBER else None
    return match and Decimal(match[1]) * COUNT_SCALES.get(match[2], 1)


def number_of(text: object) -> float:
    """Return the number of a text in ASCII, without `_`; NaN for none: it is within no bounds."""
    try:
        digits = str(text)
        return nan if "_" in digits else float(digits.encode("ascii"))
    except ValueError:
        return nan


def parse_number(
    value: object, place: str, at_least: float | None = None, at_most: float = MAX_COUNT
) -> float:
    """Return a number above 0, or within bounds, which may be a fraction: `0.5`, `1e3`, `1.5T`.

    Raises:
        InputError: for another text, a value that is not finite, and a number out of bounds.
    """
    scaled = _parse_scaled_number(str(value).strip())
    number = number_of(value) if scaled is None else float(scaled)
    return _check_bounds(number, value, place, at_least, at_most)


def _check_bounds(
    number: float,
    value: object,
    place: str,
    at_least: float | None,
    at_most: float,
    forms: str = "",
) -> float:
    """Return a number that is above 0, or within bounds; raises `InputError` for another one."""
    # NaN, of a text that is no number, fails both comparisons.
    is_large_enough = number > 0 if at_least is None else number >= at_least
    is_small_enough = number <= at_most
    if is_large_enough and is_small_enough:
        return number
    bounds = "above 0" if at_least is None else f"from {at_least:g} on"
    names_upper_bound = number > at_most or at_most < MAX_COUNT
    if names_upper_bound:
        upper_bound = "2^53" if at_most == MAX_COUNT else f"{at_most:,.15g}"
        bounds += f", at most {upper_bound}"
    hint = f"; write it as {forms}" if forms else ""
    raise InputError(f"{place}: must be a number {bounds}, not {shorten(value)}{hint}")


def parse_seconds(
    value: object, place: str, at_least: float | None = None, at_most: float = MAX_COUNT
) -> float:
    """Return a time in seconds, `500ms`, `2s`, `1.5h`, or a bare number of seconds, `0.5`.

    Raises:
        InputError: for another unit, and for a number that is not above 0 or within bounds.
    """
    return parse_duration(value, place, "s", at_least, at_most)


def parse_duration(
    value: object,
    place: str,
    unit: str,
    at_least: float | None = None,
    at_most: float = MAX_COUNT,
) -> float:
    """Return a time as a number of a unit, `us` to `d`, which a bare number has, too."""
    number, suffix = _split_quantity(value, place, SECONDS_OF_UNIT)
    if suffix:
        number = number * SECONDS_OF_UNIT[suffix] / SECONDS_OF_UNIT[unit]
    forms = "0.5, 2s or 500ms" if unit == "s" else f"0.5, 2{unit} or 500ms"
    return _check_bounds(number, value, place, at_least, at_most, forms)


def parse_latency_s(value: object, place: str, bare_max_s: float) -> float:
    """Return the seconds of a latency target: `500ms`, `2s`, or a bare number of seconds, `0.5`.

    A bare number above `bare_max_s` is refused, since it is meant in milliseconds.

    Raises:
        InputError: for another text, and for a number that is not above 0.
    """
    bare_number = number_of(value)  # of seconds; NaN for a text with a unit
    if bare_number > bare_max_s:  # 200 was probably meant as milliseconds
        number = str(value).strip()
        hint = f"{number} seconds is no latency target; for milliseconds write {place} {number}ms"
        raise InputError(f"{place} {number}: {hint}")
    return parse_seconds(value, place)


def parse_bytes(value: object, place: str) -> float:
    """Return a size of memory in bytes: `24GB`, `24GiB`, or a bare number of bytes.

    Raises:
        InputError: for another unit, and for a number that is not above 0.
    """
    number, unit = _split_quantity(value, place, BYTES_OF_UNIT)
    size_bytes = number * BYTES_OF_UNIT.get(unit, 1)
    return _check_bounds(size_bytes, value, place, None, MAX_BYTES, "24GB or 24GiB")


def _split_quantity(value: object, place: str, units: Mapping[str, float]) -> tuple[float, str]:
    """Return the number of a value and its unit, "" for a bare number; NaN for another text."""
    text = str(value).strip()
    match = _QUANTITY.fullmatch(text) if len(text) <= LONGEST_NUMBER else None
    if match is None:  # no number at all: the caller says which form it wants
        return nan, ""
    number, unit = match.groups()
    if unit and unit not in units:
        raise InputError(f"{place}: unknown unit in {shorten(value)}; known: {', '.join(units)}")
    return float(number), unit


def parse_share(value: object, place: str) -> float:
    """Return a share, `5%` or `0.05`; raises `InputError`, for 5 too: 500 % is written `500%`."""
    number_text, percent_sign, tail = str(value).strip().partition("%")
    number = nan if tail.strip() else number_of(number_text)
    share = number / 100 if percent_sign else number
    max_share = MAX_SHARE if percent_sign else 1.0
    if not 0 <= share <= max_share:  # nor is a NaN
        raise InputError(f"{place}: is a share such as 5% or 0.05, not {shorten(value)}")
    return share


def parse_price(value: object, place: str) -> float:
    """Return a price in the currency of the prices: `2.5` or `$2.50`.

    Raises:
        InputError: for another text, and for a number that is not above 0.
    """
    number = number_of(str(value).strip().removeprefix("$"))
    return _check_bounds(number, value, place, None, MAX_COUNT)


def parse_truth(value: Any, place: str) -> bool:
    """Return the truth value of a text, such as a cell of a table: `True`, `no`, `off`.

    Empty is false. Raises `InputError` for another text: in Python every text but "" is true.
    """
    word = value.strip().lower() if isinstance(value, str) else value
    if word in ("yes", "true", "on", True):
        return True
    if word in ("no", "false", "off", "", False, None):
        return False
    raise InputError(f"{place} must be yes or no, not {shorten(value)}")


def is_range(value: object) -> bool:
    """Whether `value` is written as a range."""
    return isinstance(value, str) and ".." in value


def parse_range(text: str, place: str) -> list[int]:
    """Return the numbers of a range: `4..16 x2` is 4, 8, 16; `2..8 +3` is 2, 5, 8; `1..3` all.

    Raises `InputError`, naming `place`, for another text, and for a range that runs backwards or
    stands still.
    """
    match = _RANGE.fullmatch(text)
    if not match:
        form = "is not a range of whole numbers such as 4..128 x2"
        raise InputError(f"{place}: {shorten(text)} {form}")
    first_text, last_text, operator, step_text = match.groups()
    first = parse_count(first_text, place, at_least=0)
    last = parse_count(last_text, place, at_least=0)
    adds_step = operator in (None, "+")  # else each value is the one before times the step
    step = int(step_text or 1)
    grows = step >= 1 if adds_step else step >= 2 and first >= 1
    fault = ""
    if last < first:
        fault = "runs backwards"
    elif not grows:
        fault = "stands still"
    elif adds_step and last - first >= MAX_VALUES * step:
        fault = f"has more than {MAX_VALUES} values"
    if fault:
        raise InputError(f"{place}: range {shorten(text)} {fault}")
    if adds_step:
        return list(range(first, last + 1, step))
    max_powers = last.bit_length()  # even by powers of 2, the next value is above `last`
    values = [first * step**power for power in range(max_powers)]
    return [value for value in values if value <= last]


def parse_counts(value: Batches, place: str) -> list[int]:
    """Return whole numbers from 1 on: `64`, `1,2,4`, `1..8`, `1..128 x2`, or a list of numbers.

    `1,2,4,...,128` goes on as it began, by adding or by multiplying. Raises `InputError`, naming
    `place`, for another value and for a number that is given twice.
    """
    text = ",".join(map(str, value)) if isinstance(value, list | tuple | range) else str(value)
    numbers: list[int] = []
    pieces = [piece.strip() for piece in text.split(",")]
    for piece, next_piece in zip(pieces, [*pieces[1:], ""], strict=True):
        if piece == "...":
            last = parse_count(next_piece, place)
            # Only the numbers in between: `last` is the next piece.
            numbers.extend(_continue_series(numbers, last, place))
        elif is_range(piece):
            numbers.extend(parse_range(piece, place))
        else:
            numbers.append(parse_count(piece, place))
        if len(numbers) > MAX_VALUES:
            raise InputError(f"{place}: more than {MAX_VALUES} values")
    if min(numbers) < 1:
        raise InputError(f"{place}: must be at least 1, not {min(numbers)}")
    if len(set(numbers)) < len(numbers):
        repeated = next(number for i, number in enumerate(numbers) if number in numbers[:i])
        raise InputError(f"{place}: {repeated} is given twice")
    return numbers


def _continue_series(numbers: list[int], last: int, place: str) -> list[int]:
    """Return the numbers between those of a list and `last`: 1, 2, 4 goes on as 8, 16, ..."""
    has_growing_pair = len(numbers) >= 2 and numbers[-1] > numbers[-2]
    if not has_growing_pair:
        raise InputError(f"{place}: '...' needs two growing numbers before it and one after")
    previous, latest = numbers[-2:]
    factor = latest // previous
    # Two numbers such as `3, 6` are read as a product: 3, 6, 12. Three have to agree on the factor.
    is_multiple = latest == previous * factor
    is_product = is_multiple and (len(numbers) == 2 or numbers[-3] * factor == previous)
    step = f"x{factor}" if is_product else f"+{latest - previous}"
    # `max` keeps the range valid: the check below refuses a smaller `last`.
    series = parse_range(f"{latest}..{max(last, latest)} {step}", place)
    leads_to_last = series[-1] == last and last != latest
    if not leads_to_last:
        raise InputError(f"{place}: '...' does not lead to {last}")
    return series[1:-1]  # `latest` is in the list already, and `last` is its next piece


def parse_names(value: Any, place: str) -> list[Any]:
    """Return the names of a list with commas, in their order; a value that is no text in a list.

    Raises:
        InputError: for an empty name, and for a name that is given twice.
    """
    if not isinstance(value, str | Path):
        return [*value] if isinstance(value, list | tuple) else [value]
    return check_names([piece.strip() for piece in str(value).split(",")], place)


def parse_devices(value: Any, place: str = "--device") -> list[Any]:
    """Return the names of devices, `A100,H100`; devices of Python stay as they are."""
    return parse_names(value, place)


def parse_links(value: Any, place: str = "--link") -> list[Any]:
    """Return the names of links, `nvlink-4,pcie-4-x16`; links of Python stay as they are."""
    return parse_names(value, place)


def parse_models(value: Any, place: str = "MODEL") -> list[Any]:
    """Return the models of a list: `fc:layers=4,nodes=64,resnet50` is two.

    A value that is no text is one network, or a list of them.
    """
    if not isinstance(value, str):
        return [*value] if isinstance(value, list | tuple) else [value]
    models: list[str] = []
    for piece in value.split(","):
        looks_like_setting = "=" in piece and ":" not in piece
        follows_settings = bool(models) and ":" in models[-1]
        if looks_like_setting and follows_settings:
            models[-1] += f",{piece}"
        else:
            models.append(piece)
    return check_names([piece.strip() for piece in models], place)


def check_names(names: list[str], place: str) -> list[str]:
    """Return names as they are; raises `InputError` for an empty one and for a repeated one."""
    if not all(names):
        raise InputError(f"{place}: {shorten(','.join(names))} has an empty name")
    repeated = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if repeated is not None:
        raise InputError(f"{place}: {shorten(repeated)} is given twice")
    return names

"""Amounts in texts of tables: numbers with their units, `12.5 ms`, `250.31 W`, `1h 23m 45s`."""

import re
from typing import Any, NamedTuple, Self

from steptime.core.errors import shorten

MAX_CHARACTERS = 1000  # of a text in which numbers are looked for
MAX_LIST_CHARACTERS = 1_000_000  # of a cell that lists samples


class CellAmount(NamedTuple):
    """A number in SI: `value` in units of `dimension` ("s", "W", "/s"), "" for a pure number."""

    value: int | float
    dimension: str


class SIValue(float):
    """A number that `read_number` read with a unit, in SI; formulas keep its dimension."""

    dimension: str

    def __new__(cls, value: float, dimension: str) -> Self:
        """Return the value with its dimension."""
        number = super().__new__(cls, value)
        number.dimension = dimension
        return number


def with_dimension(result: Any, operator: str, left: object, right: object) -> Any:
    """Return the result of an operation with its dimension, where that follows from the operands.

    Kept are sums of one dimension and products with pure numbers; one over a time is a rate, one
    over a rate a time.
    """
    left_dimension = getattr(left, "dimension", "")
    right_dimension = getattr(right, "dimension", "")
    dimension = left_dimension
    if left_dimension and right_dimension:
        # Sums of one dimension keep it; a ratio of seconds is a number, as is whatever is unclear.
        is_sum_of_like = operator in "+-" and left_dimension == right_dimension
        dimension = left_dimension if is_sum_of_like else ""
    elif right_dimension and operator == "*":
        dimension = right_dimension
    elif right_dimension and operator == "/":
        # A number over seconds is a rate, and over a rate it is seconds.
        dimension = {"s": "/s", "/s": "s"}.get(right_dimension, "")
    # A number without a unit cannot be added to seconds: the sum has no known unit.
    elif operator not in "*/":
        dimension = ""
    return SIValue(result, dimension) if dimension else result


_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY_PREFIXES = {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGT", 1)}
_UNIT_WORDS = {  # a numeric table, by dimension: a factor and the words for it
    "s": {
        1e-9: "ns nsec nanosecond nanoseconds",
        1e-6: "us \u00b5s \u03bcs usec microsecond microseconds",
        1e-3: "ms msec msecs millisecond milliseconds",
        1.0: "s sec secs second seconds",
        60.0: "min mins minute minutes",
        3600.0: "h hr hrs hour hours",
        86400.0: "d day days",
    },
    "W": {1e-3: "mW", 1.0: "W watt watts Watt Watts", 1e3: "kW", 1e6: "MW"},
    "J": {
        1e-3: "mJ",
        1.0: "J joule joules Joule Joules",
        1e3: "kJ",
        1e6: "MJ",
        3600.0: "Wh",
        3.6e6: "kWh",
        3.6e9: "MWh",
    },
    "/s": {1.0: "ips fps qps IPS FPS QPS"},
    "degC": {1.0: "C \u00b0C"},
    "V": {1.0: "V", 1e-3: "mV"},
    "1": {0.01: "%"},
    "": {
        1.0: "x it its iter iters iteration iterations img imgs image images sample samples seq "
        "seqs sequence sequences token tokens tok toks step steps batch batches example examples "
        "epoch epochs call calls op ops item items frame frames query queries req request "
        "requests row rows GPU GPUs gpu gpus px"
    },
}
UNITS = {
    word: (factor, dimension)
    for dimension, words_of_factor in _UNIT_WORDS.items()
    for factor, words in words_of_factor.items()
    for word in words.split()
}
for _prefix, _factor in _PREFIXES.items():
    UNITS |= {f"{_prefix}{word}": (_factor, "byte") for word in ("B", "byte", "bytes")}
    UNITS |= {f"{_prefix}{word}": (_factor, "FLOP") for word in ("FLOP", "Flop")}
    UNITS |= {f"{_prefix}{word}": (_factor, "FLOP/s") for word in ("FLOPS", "FLOPs", "Flops")}
    UNITS[f"{_prefix}Hz"] = (_factor, "Hz")
    if _prefix:
        UNITS[_prefix] = (_factor, "")
UNITS |= {f"{prefix}B": (factor, "byte") for prefix, factor in _BINARY_PREFIXES.items()}

_NUMBER = r"(?:(?<![\w.])[-+\u2212])?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+(?![\w.]))?"
_WORD = r"(?:\u00b0C|%|[A-Za-z\u00b5\u03bc]+)"
_UNIT = rf"(?:{_WORD}(?:\s*/\s*[A-Za-z]+|\s+per\s+[A-Za-z]+)?|/\s*[A-Za-z]+)(?![\w/])"
_AMOUNT = re.compile(rf"({_NUMBER})(?:\s*({_UNIT}))?")
_WITH_DEVIATION = re.compile(  # 12.5 ± 0.3 ms, 12.5 ms +/- 2 %
    rf"({_NUMBER}\s*(?:{_UNIT})?)\s*(?:\u00b1|\+/?-)\s*\d[\d.]*(?:[eE][-+]?\d+)?\s*({_UNIT})?"
)
_THOUSANDS_MARKS = {" ": " \u00a0\u2009\u202f", "'": "'\u2019"}
_CLOCK = re.compile(r"(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)")
_DURATION = re.compile(
    r"(?:(\d+)\s*h(?:ours?|rs?)?)?\s*(?:(\d+)\s*m(?:in(?:utes?|s)?)?)?\s*"
    r"(?:(\d+(?:\.\d+)?)\s*s(?:ec(?:onds?|s)?)?)?"
)


def drop_deviation(value: object) -> Any:
    """Return "12.5 ms" for "12.5 \u00b1 0.3 ms", and any other value as it is."""
    if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
        return value
    match = _WITH_DEVIATION.fullmatch(value.strip())
    if match is None:
        return value
    amount = match[1].strip()
    # The unit is with the amount, `12.5 ms +/- 0.3`, or behind the deviation, `12.5 +/- 0.3 ms`.
    unit_behind = match[2]
    has_unit = re.fullmatch(_NUMBER, amount) is None
    return amount if has_unit or unit_behind is None else f"{amount} {unit_behind}"


def parse_amount(text: str) -> CellAmount | None:
    """Return the amount that a whole text is: 0.0125 s for "12.5 ms"; None for another text.

    Clock times (`00:01:12.5`) and durations (`1h 23m 45s`) are seconds. Of a number with its
    deviation, `12.5 \u00b1 0.3 ms`, the number counts.
    """
    text = drop_deviation(text.strip())
    if not text or len(text) > MAX_CHARACTERS:
        return None
    duration_s = _parse_duration_s(text)
    if duration_s is not None:
        return CellAmount(duration_s, "s")
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return None
    return _convert_to_si(match[1], match[2] or "")


def read_number(value: object, number_index: int | None = None) -> int | float:
    """Return a number of a text in SI: 0.0125 for "12.5 ms"; a number stands for itself.

    Args:
        value: a text that holds numbers, or a number.
        number_index: which of the numbers of the text, counted from 0; None for the only or the
            first one.

    Raises:
        ValueError: for a text without that number; where no index is given, for an unknown unit
            and for a comma, which could be a decimal comma. An index is of a sentence, where a word
            behind a number need not be its unit: 64 for "64 nodes of 8 GPUs".
    """
    is_flag = isinstance(value, bool)  # which Python counts among the numbers
    wants_first_number = number_index in (None, 0)  # None: the text is one number, and no more
    if isinstance(value, int | float) and not is_flag and wants_first_number:
        return value
    text = str(value)[:MAX_CHARACTERS]
    amount = parse_amount(text) if number_index is None else None
    if amount is not None:
        return _with_dimension_of(amount)
    if number_index is None and re.search(r"\d,\d", text):
        keys = "decimal or thousands of the mapping says"
        raise ValueError(f"{shorten(text)} has a comma in its number; {keys} what it is")
    matches = list(_AMOUNT.finditer(text))
    index = number_index or 0
    if not 0 <= index < len(matches):
        raise ValueError(f"{shorten(text)} has {len(matches)} numbers, counted from 0")
    digits, unit = matches[index][1], matches[index][2]
    amount = _convert_to_si(digits, unit or "")
    is_in_sentence = number_index is not None  # a word behind the number: "64 nodes of 8 GPUs"
    if amount is None and is_in_sentence:
        amount = _convert_to_si(digits, "")
    if amount is None:
        raise ValueError(f"{shorten(text)}: unknown unit {shorten(unit)}")
    return _with_dimension_of(amount)


def _with_dimension_of(amount: CellAmount) -> int | float:
    return SIValue(amount.value, amount.dimension) if amount.dimension else amount.value


def _convert_to_si(number: str, unit: str) -> CellAmount | None:
    """Return a number of a unit in SI; None for an unknown unit."""
    scale = _unit_scale(unit)
    if scale is None or len(number) > MAX_CHARACTERS:
        return None
    factor, dimension = scale
    # The mathematical minus sign is typeset in tables of papers.
    ascii_number = number.replace("\u2212", "-")
    # Counts stay whole; beyond 300 digits not even a float holds them.
    if factor == 1 and re.fullmatch(r"[-+]?\d{1,300}", ascii_number):
        return CellAmount(int(ascii_number), dimension)
    return CellAmount(float(ascii_number) * factor, dimension)


def _unit_scale(unit: str) -> tuple[float, str] | None:
    """Return factor and dimension of a unit such as `ms`, `it/s` or `s/step`, None if unknown."""
    if not unit:
        return 1.0, ""
    numerator, *denominator = re.split(r"\s*/\s*|\s+per\s+", unit)
    scale = UNITS.get(numerator) if numerator else (1.0, "")  # of "/s" the numerator is ""
    if not denominator or scale is None:
        return scale
    factor, dimension = scale
    divisor, divisor_dimension = UNITS.get(denominator[0], (0.0, ""))  # 0: no known unit
    is_rate = divisor_dimension == "s"
    if is_rate:
        return factor / divisor, f"{dimension}/s"
    is_per_item = divisor == 1 and not divisor_dimension  # "per GPU", "per step"
    return (factor, dimension) if is_per_item else None


def _parse_duration_s(text: str) -> float | None:
    """Return the seconds of a clock time or of a duration of several units, None of another."""
    clock_match = _CLOCK.fullmatch(text)
    if clock_match:
        hours_text, minutes_text, seconds_text = clock_match.groups()
        return int(hours_text[:9]) * 3600 + int(minutes_text) * 60 + float(seconds_text)
    duration_match = _DURATION.fullmatch(text)
    if not duration_match:
        return None
    # The slices below cut numbers that are too long to be times.
    numbers = [number or "0" for number in duration_match.groups()]
    unit_count = sum(number != "0" for number in numbers)
    if unit_count < 2:  # a single unit is an amount, not a duration
        return None
    hours, minutes, seconds = (float(number[:30]) for number in numbers)
    return hours * 3600 + minutes * 60 + seconds


def localise(text: str, decimal: str, thousands: str) -> str:
    """Return a number that is written with other marks as Python writes it: 1234.5 for 1.234,5.

    A text that is not as a whole a number, perhaps with a unit, stays as it is.
    """
    deviation_match = re.fullmatch(r"\s*(\d.*?)\s*(?:\u00b1|\+/-)\s*(\d.*)", text)
    if deviation_match:  # 12,5 ± 0,3
        parts = (localise(part, decimal, thousands) for part in deviation_match.groups())
        return " \u00b1 ".join(parts)
    # "1.234,5 ms" with the decimal mark "," and the thousands mark "." is "1234.5 ms".
    marks = "".join(map(re.escape, _THOUSANDS_MARKS.get(thousands, thousands)))
    grouped_digits = rf"\d{{1,3}}(?:[{marks}]\d{{3}})+|" if marks else ""
    sign_and_integer = rf"([-+\u2212]?(?:{grouped_digits}\d*))"
    number = rf"{sign_and_integer}(?:{re.escape(decimal)}(\d*))?([eE][-+]?\d+)?"
    match = re.fullmatch(rf"{number}(\s*{_WORD}(?:\s*/\s*[A-Za-z]+)?)?", text.strip())
    if not match:
        return text
    integer, decimals, exponent, unit = (group or "" for group in match.groups())
    has_digits = re.search(r"\d", integer + decimals) is not None
    if not has_digits:
        return text
    plain_integer = re.sub(f"[{marks}]", "", integer) if marks else integer
    fraction = f".{decimals}" if decimals else ""
    return f"{plain_integer}{fraction}{exponent}{unit}"


def amounts_of(value: object) -> list[str]:
    """Return the numbers in a text of several, with their units: ["0.41 s", "0.40 s"]."""
    text = str(value)[:MAX_LIST_CHARACTERS]
    return [match[0].strip() for match in _AMOUNT.finditer(text)]

"""Units of time that headings of tables name: `step time (ms)`, `latency_us`, `Mean [ms]`."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from steptime.core.expressions.amounts import UNITS
from steptime.core.expressions.formula import column_name

SECONDS = "s"
AMBIGUOUS_WORDS = {"min", "mins", "d"}  # `time (min)` may be the minimum
_LETTER = r"[A-Za-z\u00b5\u03bc]"
_IN_BRACKETS = re.compile(rf"[\[(]\s*({_LETTER}+)\s*[\])]\W*\Z")
_LONG_UNIT = re.compile(r"(?<=[_\s.,:-])((?:min|h(?:ou)?r?|sec|day)[a-z]+)\s*\Z")
_SMALL = re.compile(
    rf"(?<!{_LETTER})([num\u00b5\u03bc]s|[num]secs?|milli\w*|micro\w*|nano\w*)(?!{_LETTER})"
)
_CAMEL_CASE = re.compile(r"(?<=[a-z])(Ms|Us|Ns)\Z")  # elapsedMs
_NUMBER_CALL = re.compile(r"number\((.*)\)")
_COLUMN_CALL = re.compile(r"column\(\s*(['\"])(.*?)\1\s*\)")
_SUM = re.compile(r"(?:[^\W\d]\w*|[\s+(),-])+")  # names without numbers, products or quotients
_BEFORE_RATE = re.compile(r"(?:\bper|_per|/)[\s_]*\Z")  # steps_per_ms


class HeadingUnit(NamedTuple):
    """A unit of time in a heading: the word that stands there, and its seconds."""

    word: str
    seconds: float


def find_heading_unit(heading: str) -> HeadingUnit | None:
    """Return the unit of time that a heading names, None without one.

    It stands in brackets, as a word (`latency_ms_p50`, `ms/step`), or at the end (`elapsedMs`,
    `time_hours`). `(min)` is none, as it may be the minimum; `steps_per_ms` is a rate.
    """
    patterns = (_IN_BRACKETS, _SMALL, _LONG_UNIT, _CAMEL_CASE)
    matches = (pattern.search(heading) for pattern in patterns)
    match = next((match for match in matches if match is not None), None)
    if match is None:
        return None
    is_rate = _BEFORE_RATE.search(heading[: match.start()]) is not None  # `steps_per_ms`
    if is_rate:
        return None
    word = match[1].lower() if match.re is _CAMEL_CASE else match[1]
    factor, dimension = UNITS.get(word, (0.0, ""))
    if dimension != SECONDS or word in AMBIGUOUS_WORDS:
        return None
    return HeadingUnit(word, factor)


def find_lone_column(formula_text: str, headings: Iterable[str]) -> str | None:
    """Return the heading of a formula that is a column alone, None of another formula.

    `number(time)` and `column("Mean [ms]")` are columns alone, too.
    """
    # `number(column("Mean [ms]"))`: first without the one call, then without the other.
    formula_body = formula_text.strip()
    number_match = _NUMBER_CALL.fullmatch(formula_body)
    argument = number_match[1].strip() if number_match else formula_body
    column_match = _COLUMN_CALL.fullmatch(argument)
    column = column_match[2] if column_match else argument
    # A heading as it stands, or by its name in formulas (`Mean__ms_`).
    name = column_name(column)
    for heading in headings:
        if column_name(heading) == name and column in (name, heading):
            return heading
    return None


def find_column_unit(formula_text: str, headings: Iterable[str]) -> HeadingUnit | None:
    """Return the unit that the headings of a formula name, None without one.

    The formula is a column alone, or a sum, difference, minimum or maximum of columns of one unit.
    One with numbers, products or quotients converts units itself.
    """
    all_headings = list(headings)
    column = find_lone_column(formula_text, all_headings)
    if column is not None:
        return find_heading_unit(column)
    if _SUM.fullmatch(formula_text) is None:
        return None
    names = set(re.findall(r"\w+", formula_text)) - {"min", "max"}  # without the two functions
    columns = [heading for heading in all_headings if column_name(heading) in names]
    units = {find_heading_unit(heading) for heading in columns}
    are_all_columns = len(columns) == len(names)
    return units.pop() if are_all_columns and len(units) == 1 else None


def may_be_minutes(heading: str) -> bool:
    """Return whether a heading says `(min)`, which is minutes or the minimum."""
    in_brackets = _IN_BRACKETS.search(heading)
    return in_brackets is not None and in_brackets[1] in ("min", "mins")


def seconds_per_unit(formula_text: str, cells: Mapping[str, object]) -> float:
    """Return the seconds of the unit that the headings of a formula name, 1 without one."""
    unit = find_column_unit(formula_text, cells)
    return 1.0 if unit is None else unit.seconds

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
    match = next(filter(None, (pattern.search(heading) for pattern in patterns)), None)
    if match is None or _BEFORE_RATE.search(heading[: match.start()]):
        return None
    word = match[1].lower() if match.re is _CAMEL_CASE else match[1]
    factor, dimension = UNITS.get(word, (0.0, ""))
    if dimension != SECONDS or word in AMBIGUOUS_WORDS:
        return None
    return HeadingUnit(word, factor)


def find_column_unit(formula_text: str, headings: Iterable[str]) -> tuple[str, HeadingUnit] | None:
    """Return the heading of a formula that is a column alone, with its unit; None without one."""
    name = column_name(formula_text)
    for heading in headings:
        if column_name(heading) == name and formula_text.strip() in (name, heading):
            unit = find_heading_unit(heading)
            return (heading, unit) if unit else None
    return None


def seconds_per_unit(formula_text: str, cells: Mapping[str, object]) -> float:
    """Return the seconds of the unit that the heading of a lone column names, 1 without one."""
    column_unit = find_column_unit(formula_text, cells)
    return 1.0 if column_unit is None else column_unit[1].seconds

"""Ranges as users write them: `a..b`, `a..b +k` (steps), `a..b xk` (factors)."""

from __future__ import annotations

import re

from steptime.core.errors import InputError, shorten

LARGEST = 2**53
MOST_VALUES = 10_000_000
MOST_VISITS = 10_000  # rounds of a sweep, or runs of a cell
MOST_STEPS = 10_000_000  # of a training
MOST_PROCESSES = 100_000  # of one cell
_RANGE = re.compile(r"\s*(\d{1,17})\s*\.\.\s*(\d{1,17})\s*(?:([+x*])\s*(\d{1,17}))?\s*")


def is_range(value: object) -> bool:
    """Whether `value` is written as a range."""
    return isinstance(value, str) and ".." in value


def expand_range(text: str, where: str = "") -> list[int]:
    """Give the numbers of a range: `4..16 x2` is 4, 8, 16; `2..8 +3` is 2, 5, 8; `1..3` is 1, 2, 3.

    Raises `InputError`, naming `where`, for what is no range, runs backwards or stands still.
    """
    place = f"{where}: " if where else ""
    found = _RANGE.fullmatch(text)
    if not found:
        raise InputError(f"{place}{shorten(text)} is not a range such as 4..128 x2 or 1..8 +1")
    first, last = int(found[1]), int(found[2])
    how, step = found[3] or "+", int(found[4] or 1)
    if last < first:
        raise InputError(f"{place}range {shorten(text)} runs backwards")
    if last > LARGEST:
        raise InputError(f"{place}range {shorten(text)} goes beyond 2^53")
    if (how == "+" and step < 1) or (how != "+" and (step < 2 or first < 1)):
        raise InputError(f"{place}range {shorten(text)} stands still")
    if how == "+":
        if (last - first) // step >= MOST_VALUES:
            raise InputError(f"{place}range {shorten(text)} has more than {MOST_VALUES} values")
        return list(range(first, last + 1, step))
    values = []
    while first <= last:
        values.append(first)
        first *= step
    return values

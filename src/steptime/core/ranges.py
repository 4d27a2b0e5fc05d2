"""Whole numbers, ranges and lists of them as users write them."""

import re
from collections.abc import Iterable
from math import nan
from numbers import Integral
from typing import Any

from steptime.core.errors import InputError, shorten

LARGEST = 2**53
MOST_VALUES = 10_000_000
MOST_VISITS = 10_000  # rounds of a sweep, or runs of a cell
MOST_STEPS = 10_000_000  # of a training
MOST_PROCESSES = 100_000  # of one cell
_RANGE = re.compile(r"\s*(\d{1,17})\s*\.\.\s*(\d{1,17})\s*(?:([+x*])\s*(\d{1,17}))?\s*")


def value_text(value: object, where: str) -> str:
    """Return a value of the command line or of a file as text."""
    if isinstance(value, int) and abs(value) > LARGEST:
        raise InputError(f"{where}: {shorten(value)} is larger than 2^53")
    if not isinstance(value, str | float | Integral):
        raise InputError(f"{where}: {shorten(value)} is not a value")
    return str(value).strip()


def pairs(texts: Iterable[str] | None, what: str) -> dict[str, str]:
    """Return `NAME=VALUE` texts as a dict; raises `InputError` for other forms and for repeats."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise InputError(f"{what} {shorten(text)} is not of the form name=value")
        if name in found:
            raise InputError(f"{what} '{name}' is given twice")
        found[name] = value
    return found


def whole_number(value: object, where: str, least: int = 1, most: int = LARGEST) -> int:
    """Return `value` as an int from `least` to `most`; raises `InputError` otherwise."""
    text = value_text(value, where)
    digits = text.removeprefix("-")
    if isinstance(value, bool) or not (digits.isascii() and digits.isdigit()):
        raise InputError(f"{where}: must be a whole number, not {shorten(value)}")
    if len(digits) > 20 or int(digits) > LARGEST:
        raise InputError(f"{where}: {shorten(text)} is larger than 2^53")
    if int(text) < least:
        raise InputError(f"{where}: must be at least {least}, not {int(text)}")
    if int(text) > most:
        raise InputError(f"{where}: {int(text)} is more than {most}")
    return int(text)


def number_of(text: object) -> float:
    """Return the number of a text in ASCII, without `_`; NaN for none: it is within no bounds."""
    try:
        said = str(text)
        return nan if "_" in said else float(said.encode("ascii"))
    except ValueError:
        return nan


def amount(text: object, where: str, least: float | None = None, most: float = LARGEST) -> float:
    """Return a number above 0, or within bounds; raises `InputError` otherwise."""
    value = number_of(text)
    if not (value > 0 if least is None else value >= least) or value > most:
        wanted = "above 0" if least is None else f"from {least:g} on"
        if value > most or most < LARGEST:
            wanted += f", at most {'2^53' if most == LARGEST else f'{most:,.15g}'}"
        raise InputError(f"{where}: must be a number {wanted}, not {shorten(text)}")
    return value


def latency_s(text: object, where: str, bare_max_s: float) -> float:
    """Return the seconds of a latency target: `500ms`, `2s`, or a bare number of seconds, `0.5`.

    A bare number above `bare_max_s` is refused, since it is meant in milliseconds.

    Raises:
        InputError: for another text, and for a number that is not above 0.
    """
    written = str(text).strip()
    unit = next((unit for unit in ("ms", "s") if written.endswith(unit)), "")
    number = written.removesuffix(unit).strip()
    if not number_of(number) > 0:
        form = "a number above 0 of seconds, such as 0.5, 2s or 500ms"
        raise InputError(f"{where}: must be {form}, not {shorten(text)}")
    latency = amount(number, where)
    if unit == "ms":
        return latency / 1000
    if not unit and latency > bare_max_s:
        says = f"{number} seconds is no latency target; for milliseconds write {where} {number}ms"
        raise InputError(f"{where} {number}: {says}")
    return latency


def share(text: str, where: str) -> float:
    """Return a share, `5%` or `0.05`; raises `InputError`, for 5 too: who means 500 % says so."""
    number, percent, _ = text.strip().partition("%")
    found = number_of(number) / (100 if percent else 1)
    if not 0 <= found <= (1000 if percent else 1):
        raise InputError(f"{where}: is a share such as 5% or 0.05, not {shorten(text)}")
    return found


def is_range(value: object) -> bool:
    """Whether `value` is written as a range."""
    return isinstance(value, str) and ".." in value


def expand_range(text: str, where: str) -> list[int]:
    """Return the numbers of a range: `4..16 x2` is 4, 8, 16; `2..8 +3` is 2, 5, 8; `1..3` all.

    Raises `InputError`, naming `where`, for what is not a range, runs backwards or stands still.
    """
    found = _RANGE.fullmatch(text)
    if not found:
        form = "is not a range of whole numbers such as 4..128 x2"
        raise InputError(f"{where}: {shorten(text)} {form}")
    first, last = int(found[1]), int(found[2])
    adds, step = found[3] in (None, "+"), int(found[4] or 1)
    for is_wrong, why in (
        (last < first, "runs backwards"),
        (last > LARGEST, "goes beyond 2^53"),
        (step < 1 if adds else step < 2 or first < 1, "stands still"),
        (adds and last - first >= MOST_VALUES * step, f"has more than {MOST_VALUES} values"),
    ):
        if is_wrong:
            raise InputError(f"{where}: range {shorten(text)} {why}")
    if adds:
        return list(range(first, last + 1, step))
    return [first * step**k for k in range(last.bit_length()) if first * step**k <= last]


def numbers(text: str, where: str) -> list[int]:
    """Return whole numbers from 1 on, as lists and ranges say them: `1,2,4`, `1..8`, `1..128 x2`.

    `1,2,4,...,128` goes on as it began, by adding or by multiplying. Raises `InputError`, naming
    `where`, for what is none and for a number that is given twice.
    """
    found: list[int] = []
    pieces = [piece.strip() for piece in text.split(",")]
    for i, piece in enumerate(pieces):
        if piece == "...":
            last = whole_number(pieces[i + 1] if i + 1 < len(pieces) else "", where)
            found.extend(_going_on(found, last, where))
        elif is_range(piece):
            found.extend(expand_range(piece, where))
        else:
            found.append(whole_number(piece, where))
        if len(found) > MOST_VALUES:
            raise InputError(f"{where}: more than {MOST_VALUES} values")
    if min(found) < 1:
        raise InputError(f"{where}: must be at least 1, not {min(found)}")
    if len(set(found)) < len(found):
        twice = next(n for i, n in enumerate(found) if n in found[:i])
        raise InputError(f"{where}: {twice} is given twice")
    return found


def _going_on(begun: list[int], last: int, where: str) -> list[int]:
    """Return the numbers between `begun` and `last`: `1, 2, 4` goes on as 8, 16, ..."""
    if len(begun) < 2 or begun[-1] <= begun[-2]:
        raise InputError(f"{where}: '...' needs two growing numbers before it and one after")
    before, latest = begun[-2:]
    factor = latest // before if len(begun) > 2 or latest != 2 * before else 2
    multiplies = latest == before * factor and (len(begun) == 2 or begun[-3] * factor == before)
    how = f"x{factor}" if multiplies else f"+{latest - before}"
    found = expand_range(f"{latest}..{max(last, latest)} {how}", where)
    if found[-1] != last or last == latest:
        raise InputError(f"{where}: '...' does not lead to {last}")
    return found[1:-1]


def truth(value: Any, what: str) -> bool:
    """Return what a text, such as a cell of a table, says: `True`, `no`, `off`; false if empty.

    Raises `InputError` for another one: every text but "" is true in Python, "False" as well.
    """
    said = value.strip().lower() if isinstance(value, str) else value
    if said in ("yes", "true", "on", True):
        return True
    if said in ("no", "false", "off", "", False, None):
        return False
    raise InputError(f"{what} must be yes or no, not {shorten(value)}")

"""How a table of a data file is checked: every key known, every value of its type."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from steptime.core.errors import InputError, one_of, shorten

Check = tuple[Callable[[Any], bool], str]  # whether a value is good, and what it must be


def _is_whole(value: object) -> bool:
    return type(value) is int and value >= 0


def list_of(good: Callable[[object], bool], what: str) -> Check:
    """Return the check of a list of good values, called `what`."""
    return (lambda value: isinstance(value, list) and all(map(good, value)), f"a list of {what}")


def table_of(good: Callable[[object], bool], what: str) -> Check:
    """Return the check of a table of good values, called `what`."""
    return (lambda of: isinstance(of, dict) and all(map(good, of.values())), f"a table of {what}")


def row_of(*checks: Check) -> Callable[[object], bool]:
    """Return what says whether a value is a list of as many values, each as its check wants it."""

    def good(row: object) -> bool:
        if not isinstance(row, list) or len(row) != len(checks):
            return False
        return all(one(value) for (one, _), value in zip(checks, row, strict=True))

    return good


TEXT: Check = (lambda value: isinstance(value, str) and bool(value.strip()), "a text")
TEXTS = list_of(lambda value: isinstance(value, str), "texts")
WHOLE: Check = (_is_whole, "a whole number")
WHOLES = list_of(_is_whole, "whole numbers")
FLAG: Check = (lambda value: isinstance(value, bool), "true or false")
NUMBER: Check = (lambda value: type(value) in {int, float}, "a number")
TABLE: Check = (lambda value: isinstance(value, dict), "a table")
ABOVE_0: Check = (lambda value: NUMBER[0](value) and 0 < value < inf, "a number above 0")
_OF_TYPES: dict[object, Check] = {
    str: TEXT,
    bool: FLAG,
    int: WHOLE,
    int | None: WHOLE,
    float: ABOVE_0,
    tuple[str, ...]: TEXTS,
    tuple[int, ...]: WHOLES,
}


def checks_of(row: type) -> dict[str, Check]:
    """Return how a table is checked whose keys are the fields of a class: mappings are tables."""
    return {name: _OF_TYPES.get(of, TABLE) for name, of in row.__annotations__.items()}


def checked(
    table: Mapping[str, Any],
    checks: Mapping[str, Check],
    required: Sequence[str],
    where: str,
    prefix: str = "",
) -> dict[str, Any]:
    """Return the values of a table, lists as tuples; `where` and `prefix` are named in errors.

    Raises `InputError` for an unknown key, a missing one, and a value of another type.
    """
    for key in table:
        one_of("key", key, checks, where)
    for key in required:
        if key not in table:
            raise InputError(f"{where}: '{key}' is missing")
    for key, value in table.items():
        good, what = checks[key]
        if not good(value):
            raise InputError(f"{where}: '{prefix}{key}' must be {what}, not {shorten(value)}")
    return {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}


PLAUSIBLE = 1e-6, 1e8  # in a datasheet's units: what lies beyond is in another one


def positive(value: float, factor: float, key: str, where: str) -> float:
    """Return `value * factor`, a datasheet's number in SI; raises `InputError` for no such one."""
    number = float(value) if abs(value) < PLAUSIBLE[1] ** 9 else inf
    if not 0 < number < inf:
        raise InputError(f"{where}: '{key}' must be positive and finite, not {shorten(value)}")
    if not PLAUSIBLE[0] <= number <= PLAUSIBLE[1]:
        said = "must be between {:g} and {:g}".format(*PLAUSIBLE)
        raise InputError(f"{where}: '{key}' {said}, not {shorten(value)}: another unit?")
    return number * factor

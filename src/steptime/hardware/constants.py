"""The named constants of a model of time: a value, how far it varies, and what told it, or why.

A constant has one owner: a kind of device (`data/priors`), a software stack (`data/stacks`), a host
or a link. What those of a stack are, and what changes nothing where nobody says them, is declared
in `data/constants.toml`.
"""

from collections.abc import Mapping
from functools import cache
from math import inf
from typing import Annotated, Any, NamedTuple, get_type_hints

from msgspec import Meta

from steptime.core.errors import InputError, shorten
from steptime.core.toml_files import packaged
from steptime.core.typed import Text, Texts, struct, typed_values


class Constant(NamedTuple):
    """A prior: most devices have a constant within `value` * or / exp(`spread`).

    A spread of 0 says that the constant is the same everywhere. Units are in the name; what is yes
    or no has a `value` of True or False. `rows` are the sets of rows that told it (`python -m
    validation --sets`), which `fitted_on` describes. What no rows told says `why`: a source, a
    definition, a measurement of one's own, or, where it begins with "judged", a judgement.
    """

    value: float
    spread: float
    fitted_on: Text = ""
    rows: Texts = ()
    why: Text = ""


NEUTRAL: Mapping[str, float] = {  # by what a constant is: the value that changes nothing
    **dict.fromkeys(("seconds", "bytes", "share", "number"), 0.0),
    "factor": 1.0,
    "flag": False,
}
_HALF = 0.5  # files before 0.15 said yes by 1 and no by 1e-9
_VALUE = Annotated[int | float | bool, Meta(description="a number, true or false")]
_KINDS = get_type_hints(Constant, include_extras=True) | {"value": _VALUE}
_CONSTANT = struct("Constant", _KINDS, "value")


@cache
def known(use: str) -> Mapping[str, str]:
    """Return the constants that a stack may have for a use, by full name: what each of them is."""
    rows = packaged("constants.toml")[use].items()
    return {f"{use}.{name}": what for what, names in rows for name in names}


def uses() -> tuple[str, ...]:
    """Return the uses that a stack may have constants for."""
    return tuple(use for use in packaged("constants.toml") if use != "neutral")


def is_retired(name: str) -> bool:
    """Whether nothing reads a constant any more, by its full name, that older files may say."""
    return name in packaged("retired.toml")["constants"]


def typed(use: str, said: Mapping[str, float]) -> tuple[dict[str, float], dict[str, bool]]:
    """Return the numbers of a use and what is yes or no, by the names that they have inside it.

    What is not `said` changes nothing.
    """
    numbers: dict[str, float] = {}
    flags: dict[str, bool] = {}
    for name, what in known(use).items():
        value, own = said.get(name, NEUTRAL[what]), name.removeprefix(f"{use}.")
        if what == "flag":
            flags[own] = value > _HALF
        else:
            numbers[own] = value
    return numbers, flags


def value_of(name: str, said: Mapping[str, float]) -> float:
    """Return a number that a stack may say, by its full name: what changes nothing if it is not."""
    return said.get(name, NEUTRAL[known(name.partition(".")[0])[name]])


def constants_from_table(table: Mapping[str, Any], where: str) -> dict[str, Constant]:
    """Return the constants of a TOML table of forms by `form.name`; `where` is named in errors.

    Those that a stack may have are what `data/constants.toml` says: numbers of 0 or more, factors
    above 0, yes or no. All others are above 0. Raises `InputError` for what is not so, and for one
    that says neither `rows` nor `why`. Files of before 0.15 say all reasons in `fitted_on`.
    """
    found: dict[str, Constant] = {}
    for form, rows in table.items():
        declared = known(form) if form in uses() else {}
        for name, row in (rows if isinstance(rows, Mapping) else {"": rows}).items():
            key = f"{form}.{name}"
            if not isinstance(row, Mapping):
                raise InputError(f"{where}: {key} must be a table, not {shorten(row)}")
            said = {"spread": 0.0, **typed_values(row, _CONSTANT, where, f"{key}.")}
            found[key] = _constant(Constant(**said), declared.get(key), where, key)
    return found


def _constant(one: Constant, what: str | None, where: str, key: str) -> Constant:
    """Return a constant whose value is what it must be, a flag as True or False."""
    if not one.rows:
        one = one._replace(fitted_on="", why=one.why or one.fitted_on)
    if not one.rows and not one.why:
        raise InputError(f"{where}: {key} needs 'rows', the sets that told it, or 'why'")
    if what == "flag":
        one = one._replace(value=one.value > _HALF)
    elif isinstance(one.value, bool):
        raise InputError(f"{where}: '{key}.value' must be a number, not {shorten(one.value)}")
    least, said = (0, "0 or more") if NEUTRAL.get(what or "") == 0 else (5e-324, "above 0")
    if not least <= one.value < inf or one.spread < 0:
        raise InputError(f"{where}: {key}: a value {said} and a spread of 0 or more")
    return one

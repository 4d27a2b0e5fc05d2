"""The named constants of the models of time: a value, its spread, and its rows or its reason.

A constant has one owner: a kind of device (`data/priors`), a software stack (`data/stacks`), a host
or a link. The constants that a stack may have, and the kind of each, stand in
`data/constants.toml`.
"""

from collections.abc import Mapping
from functools import cache
from math import inf
from typing import Annotated, Any, NamedTuple, get_type_hints

from msgspec import Meta

from steptime.core.errors import InputError, shorten
from steptime.core.signatures.typed import Text, Texts, struct, typed_values
from steptime.core.toml_files import read_packaged_toml


class Constant(NamedTuple):
    """A prior: most devices have a constant within `value` * or / exp(`spread`).

    Units are in the name.

    Attributes:
        value: the value; True or False of a flag.
        spread: its spread in ln; 0 where the constant is the same everywhere.
        fitted_on: the rows that it was fitted on, in words.
        rows: the sets of these rows (`python -m validation --sets`).
        why: the reason of a constant without rows: a source, a definition, a measurement, or, where
            it begins with "judged", a judgement.
    """

    value: float
    spread: float
    fitted_on: Text = ""
    rows: Texts = ()
    why: Text = ""


NEUTRAL: Mapping[str, float] = {  # by kind of constant: the value that changes nothing
    **dict.fromkeys(("seconds", "bytes", "share", "number"), 0.0),
    "factor": 1.0,
    "flag": False,
}
_VALUE_TYPE = Annotated[int | float | bool, Meta(description="a number, true or false")]
_FIELD_TYPES = get_type_hints(Constant, include_extras=True) | {"value": _VALUE_TYPE}
_CONSTANT_TABLE = struct("Constant", _FIELD_TYPES, ["value"])


@cache
def kinds_of_use(use: str) -> Mapping[str, str]:
    """Return the kind of each constant that a stack may have for a use, by full name."""
    names_by_kind = read_packaged_toml("constants.toml")[use]
    return {f"{use}.{name}": kind for kind, names in names_by_kind.items() for name in names}


def stack_uses() -> tuple[str, ...]:
    """Return the uses that a stack may have constants for."""
    return tuple(use for use in read_packaged_toml("constants.toml") if use != "neutral")


def split_flags(
    use: str, constants: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, bool]]:
    """Return the numbers and the flags of a use, by their names without that of the use.

    Constants that are left out have the value that changes nothing.
    """
    numbers: dict[str, float] = {}
    flags: dict[str, bool] = {}
    # A use (`training`, `serving`) is the first part of its constants' names. A constant that is
    # not stated has the value that changes nothing, such as a factor of 1.
    for full_name, kind in kinds_of_use(use).items():
        value = constants.get(full_name, NEUTRAL[kind])
        name = full_name.removeprefix(f"{use}.")
        if kind == "flag":
            flags[name] = bool(value)
        else:
            numbers[name] = value
    return numbers, flags


def value_of(name: str, constants: Mapping[str, float]) -> float:
    """Return a number by its full name, the value that changes nothing where it is left out."""
    use = name.partition(".")[0]
    kind = kinds_of_use(use)[name]
    return constants.get(name, NEUTRAL[kind])


def constants_from_table(table: Mapping[str, Any], source: str) -> dict[str, Constant]:
    """Return the constants of a TOML table of forms, by `form.name`.

    Those that a stack may have are of the kind that `data/constants.toml` says: numbers of 0 or
    more, factors above 0, flags. All others are above 0.

    Args:
        table: the table.
        source: the name of its file in errors.

    Raises:
        InputError: for a value of another kind, and for a constant with neither `rows` nor `why`.
    """
    constants: dict[str, Constant] = {}
    for use, rows in table.items():  # `[training.copies]`: use `training`, name `copies`
        kinds = kinds_of_use(use) if use in stack_uses() else {}
        # A value in place of a use's table is refused below, like one in place of a constant's
        # table.
        row_by_name = rows if isinstance(rows, Mapping) else {"": rows}
        for name, row in row_by_name.items():
            key = f"{use}.{name}"
            if not isinstance(row, Mapping):
                raise InputError(f"{source}: {key} must be a table, not {shorten(row)}")
            values = {"spread": 0.0, **typed_values(row, _CONSTANT_TABLE, source, f"{key}.")}
            constants[key] = _check_constant(Constant(**values), kinds.get(key), source, key)
    return constants


def _check_constant(constant: Constant, kind: str | None, source: str, key: str) -> Constant:
    """Return a constant whose value is of its kind, a flag as True or False."""
    if not constant.rows:
        # Only rows can be fitted on; without any the text is the reason of the value.
        constant = constant._replace(fitted_on="", why=constant.why or constant.fitted_on)
    if not constant.rows and not constant.why:
        raise InputError(f"{source}: {key} needs 'rows', the sets that told it, or 'why'")
    is_flag = kind == "flag"
    if isinstance(constant.value, bool) != is_flag:
        rule = "true or false" if is_flag else "a number"
        value = shorten(constant.value)
        raise InputError(f"{source}: '{key}.value' must be {rule}, not {value}")
    # Seconds, bytes and shares may be 0, which is their neutral value. Factors and constants of
    # unknown kind may not: they would remove what they multiply.
    may_be_zero = kind is not None and NEUTRAL.get(kind) == 0
    is_in_range = 0 <= constant.value < inf and (may_be_zero or constant.value > 0)
    if not is_in_range or constant.spread < 0:
        rule = "0 or more" if may_be_zero else "above 0"
        raise InputError(f"{source}: {key}: a value {rule} and a spread of 0 or more")
    return constant

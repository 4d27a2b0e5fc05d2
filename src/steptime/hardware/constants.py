"""The named constants of a model of time: a value, how far it varies, and what it was fitted on."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from steptime.core.checks import NUMBER, TEXT, Check, checked
from steptime.core.errors import InputError, shorten


class Constant(NamedTuple):
    """A prior: most devices have a constant within `value` * or / exp(`spread`).

    A spread of 0 says that the constant is the same everywhere. Units are in the name.
    """

    value: float
    spread: float
    fitted_on: str


_CONSTANT: dict[str, Check] = {"value": NUMBER, "spread": NUMBER, "fitted_on": TEXT}


def constants_from_table(table: Mapping[str, Any], where: str) -> dict[str, Constant]:
    """Return the constants of a TOML table of forms by `form.name`; `where` is named in errors.

    Raises `InputError` for what is not a table of constants, and for a value that is not positive.
    """
    found: dict[str, Constant] = {}
    for form, rows in table.items():
        for name, row in (rows if isinstance(rows, Mapping) else {"": rows}).items():
            key = f"{form}.{name}"
            if not isinstance(row, Mapping):
                raise InputError(f"{where}: {key} must be a table, not {shorten(row)}")
            one = Constant(**checked(row, _CONSTANT, tuple(_CONSTANT), where, f"{key}."))
            if one.value <= 0 or one.spread < 0:
                raise InputError(f"{where}: {key}: a value above 0 and a spread of 0 or more")
            found[key] = one
    return found

"""Names of the columns of quantities and hyperparameters, which no other column has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from steptime.records.row import COLUMNS, PARAM_PREFIX, Kinds

QUANTITY_PREFIX = "quantity_"


def merge_kinds(parts: Sequence[Kinds]) -> Kinds:
    """Return the names of all parts, as first seen, each with all types that its values have."""
    names: Kinds = {}
    for part in parts:
        for name, kinds in part.items():
            names[name] = [*names.get(name, ()), *kinds]
    return names


def name_quantities(quantities: Kinds) -> dict[str, str]:
    """Return the column of each quantity that not every table has."""
    return _name_columns(quantities, (*COLUMNS, "folder"), QUANTITY_PREFIX)


def name_settings(settings: Kinds, quantities: Kinds) -> dict[str, str]:
    """Return the column of each hyperparameter."""
    used = (*COLUMNS, "folder", *name_quantities(quantities).values())
    return _name_columns(settings, used, PARAM_PREFIX)


def _name_columns(names: Iterable[str], used: Iterable[str], prefix: str) -> dict[str, str]:
    """Return a column for each name; SQL knows no case, and no name that is empty."""
    used_names = {name.lower() for name in used}
    columns: dict[str, str] = {}
    for name in names:
        column = name
        while not column or column.lower() in used_names:  # until the prefix makes it a new name
            column = prefix + column
        used_names.add(column.lower())
        columns[name] = column
    return columns

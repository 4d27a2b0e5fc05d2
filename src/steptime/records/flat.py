"""The table `flat` of a database: its columns, those of `records` over it, and writing SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from steptime.records.column_names import name_quantities, name_settings
from steptime.records.row import (
    COLUMNS,
    ESTIMATE,
    Kinds,
    Row,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Into = Callable[[str], str]  # a statement that does something with the rows of another
MADE = {  # columns of `records` that are not of flat rows
    **{
        f"step_s_{end}": f"if(samples IS NULL, stated_{end}, if(estimate.{end} IS NULL, NULL, "
        f"{best}(estimate.{end}, step_s)))"
        for end, best in (("low", "least"), ("high", "greatest"))
    },
    "steady": "CAST(estimate.steady AS BOOLEAN)",
}
ESTIMATED = f"STRUCT({', '.join(f'{name} DOUBLE' for name in ESTIMATE)})"
SQL_TYPES = {"bool": "BOOLEAN", "int": "BIGINT", "float": "DOUBLE", "str": "VARCHAR"}
METHOD = "method, method_version, method_options"
NAME = "regexp_replace(method, '-compile$', '')"  # of a method, whatever the stack
TEXT = """CASE json_type({v}) WHEN 'BOOLEAN' THEN if({v} = 'true', 'yes', 'no')
    WHEN 'DOUBLE' THEN if(regexp_matches(CAST({v} AS VARCHAR), '[.e]'),
        CAST(CAST({v} AS DOUBLE) AS VARCHAR), CAST({v} AS VARCHAR)) ELSE {v}->>'$' END"""


def rate(value: str) -> str:
    """Return the SQL of a text as a rate, None where it is none that a device may have."""
    number = f"TRY_CAST({value} AS DOUBLE)"
    return f"CASE WHEN {number} BETWEEN 1 AND 1e30 THEN {number} END"


def copy(rows: str, to: Path) -> str:
    """Return the statement that writes rows; at most as many at once as are read for a few."""
    kind = "FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 20480"
    return f"COPY ({rows}) TO {text(str(to))} ({kind})"


def fetched(cursor: DuckDBPyConnection) -> list[Row]:
    """Return the rows of an answer, each with the names of its columns."""
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def text(value: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def name(value: str) -> str:
    """Return the name of a column as SQL writes it."""
    return '"' + value.replace('"', '""') + '"'


def pointer(key: str) -> str:
    """Return the SQL of the place of a key in an object of JSON."""
    return text("/" + key.replace("~", "~0").replace("/", "~1"))


def struct(columns: Mapping[str, str]) -> str:
    """Return the SQL of a struct of columns, each of SQL."""
    return f"struct_pack({', '.join(f'{name(one)} := {sql}' for one, sql in columns.items())})"


def columns_of(params: Kinds, others: Kinds) -> dict[str, str]:
    """Return the expression of each column of the table `records` over flat rows."""
    told = {one: MADE.get(one, one) for one in COLUMNS}
    for place, kinds, named in (
        (quantity, others, name_quantities(others)),
        (param, params, name_settings(params, others)),
    ):
        told |= {column: typed(place(one), kinds[one]) for one, column in named.items()}
    return told


def quantity(key: str) -> str:
    """Return the SQL over `flat` of the JSON of a quantity that is no column."""
    return f"others[{text(key)}]"


def param(key: str) -> str:
    """Return the SQL over `flat` of the JSON of a hyperparameter."""
    return f"json_extract(params, {pointer(key)})"


def typed(value: str, found: Sequence[str]) -> str:
    """Return the expression of a JSON text in the type of a column whose values have these."""
    kinds = set(found)
    if kinds == {"int", "float"}:
        return f"CAST({value} AS DOUBLE)"
    if len(kinds) == 1 and kinds != {"str"}:
        return f"CAST({value} AS {SQL_TYPES[found[0]]})"
    return TEXT.format(v=value)

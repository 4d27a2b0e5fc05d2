"""The table `flat` of a database: its columns, those of `records` over it, and writing SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from steptime.core.units import QUANTITIES
from steptime.records.row import COLUMNS, ESTIMATE, PARAM_PREFIX, Row
from steptime.records.rows import RATES, Kinds

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MADE = {  # columns of `records` that are not of flat rows
    **{
        f"step_s_{end}": f"if(samples IS NULL, stated_{end}, if(estimate.{end} IS NULL, NULL, "
        f"{best}(estimate.{end}, numbers['step_s'])))"
        for end, best in (("low", "least"), ("high", "greatest"))
    },
    "steady": "CAST(estimate.steady AS BOOLEAN)",
    **{name: f"numbers['{name}']" for name in COLUMNS if name in QUANTITIES},
}
BUFFER_BYTES = 16 << 20  # of lines that the database reads at once
ESTIMATED = f"STRUCT({', '.join(f'{name} DOUBLE' for name in ESTIMATE)})"
SQL_TYPES = {"bool": "BOOLEAN", "int": "BIGINT", "float": "DOUBLE", "str": "VARCHAR"}
_SAMPLES = "samples DOUBLE[], run BIGINT[]"
TYPES = {  # of the columns of `flat`
    **{name: SQL_TYPES[kind.__name__] for name, kind in COLUMNS.items() if name not in MADE},
    **dict.fromkeys(("place", "global_batch", "examples", "marks_n"), "BIGINT"),
    **dict.fromkeys(("plan", "date", "batch_source", "source_file", "duplicate_of"), "VARCHAR"),
    **dict.fromkeys(("stated_low", "stated_high", "step_s_max", *RATES), "DOUBLE"),
    "overlap": "BOOLEAN",
    "samples": "DOUBLE[]",
    "run": "BIGINT[]",
    **dict.fromkeys(("params", "settings", "others"), "MAP(VARCHAR, VARCHAR)"),
    "numbers": "MAP(VARCHAR, DOUBLE)",
    "sampled": f"MAP(VARCHAR, STRUCT({_SAMPLES}))",
    "estimate": ESTIMATED,
}
TEXT = """CASE json_type({v}) WHEN 'BOOLEAN' THEN if({v} = 'true', 'yes', 'no')
    WHEN 'DOUBLE' THEN if(regexp_matches(CAST({v} AS VARCHAR), '[.e]'),
        CAST(CAST({v} AS DOUBLE) AS VARCHAR), CAST({v} AS VARCHAR)) ELSE {v}->>'$' END"""


def rate(value: str) -> str:
    """Return the SQL of a text as a rate, None where it is none that a device may have."""
    number = f"TRY_CAST({value} AS DOUBLE)"
    return f"CASE WHEN {number} BETWEEN 1 AND 1e30 THEN {number} END"


def read(path: str, longest: int) -> str:
    """Return the statement that reads rows of JSON, none of them longer than `longest` bytes."""
    types = ", ".join(f"'{name}': '{kind}'" for name, kind in TYPES.items())
    return (
        f"FROM read_json({text(path)}, format = 'newline_delimited', "
        f"maximum_object_size = {max(longest + 1, BUFFER_BYTES)}, columns = {{{types}}})"
    )


def fetched(cursor: DuckDBPyConnection) -> list[Row]:
    """Return the rows of an answer, each with the names of its columns."""
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def listed(cursor: DuckDBPyConnection) -> dict[str, list[Any]]:
    """Return the columns of an answer."""
    import numpy as np

    return {
        name: np.ma.asarray(column).tolist()  # None where masked
        for name, column in cursor.fetchnumpy().items()
    }


def keep(connection: DuckDBPyConnection, table: str, columns: Mapping[str, Sequence[Any]]) -> None:
    """Make a table of two columns: whole numbers, then texts."""
    import numpy as np

    (keys, of), (texts, held) = columns.items()
    connection.register("made", {keys: np.array(of, np.int64), texts: np.array(held, object)})
    connection.execute(
        f"CREATE OR REPLACE TABLE {table} AS SELECT {keys}, {texts}::VARCHAR AS {texts} FROM made"
    )
    connection.unregister("made")


def text(value: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def name(value: str) -> str:
    """Return the name of a column as SQL writes it."""
    return '"' + value.replace('"', '""') + '"'


def struct(columns: Mapping[str, str]) -> str:
    """Return the SQL of a struct of columns, each of SQL."""
    return f"struct_pack({', '.join(f'{name(one)} := {sql}' for one, sql in columns.items())})"


def merged(every: Sequence[Kinds]) -> Kinds:
    """Return the names of all, as first seen, each with all types that its values have."""
    names: Kinds = {}
    for one in every:
        for key, found in one.items():
            names[key] = [*names.get(key, ()), *found]
    return names


def quantity_columns(others: Kinds) -> dict[str, str]:
    """Return the column of each quantity that is not one of every table."""
    return _columns(others, (*COLUMNS, "folder"), "quantity_")


def param_columns(params: Kinds, others: Kinds) -> dict[str, str]:
    """Return the column of each hyperparameter."""
    return _columns(params, (*COLUMNS, "folder", *quantity_columns(others).values()), PARAM_PREFIX)


def _columns(names: Iterable[str], taken: Iterable[str], prefix: str) -> dict[str, str]:
    """Return a column for each name; SQL knows no case, and no name that is empty."""
    used = {one.lower() for one in taken}
    columns: dict[str, str] = {}
    for one in names:
        column = one
        while not column or column.lower() in used:
            column = prefix + column
        used.add(column.lower())
        columns[one] = column
    return columns


def columns_of(params: Kinds, others: Kinds) -> dict[str, str]:
    """Return the expression of each column of the table `records` over flat rows."""
    told = {one: MADE.get(one, one) for one in COLUMNS}
    for held, kinds, named in (
        ("others", others, quantity_columns(others)),
        ("params", params, param_columns(params, others)),
    ):
        told |= {column: typed(f"{held}[{text(one)}]", kinds[one]) for one, column in named.items()}
    return told


def typed(value: str, found: Sequence[str]) -> str:
    """Return the expression of a JSON text in the type of a column whose values have these."""
    kinds = set(found)
    if kinds == {"int", "float"}:
        return f"CAST({value} AS DOUBLE)"
    if len(kinds) == 1 and kinds != {"str"}:
        return f"CAST({value} AS {SQL_TYPES[found[0]]})"
    return TEXT.format(v=value)

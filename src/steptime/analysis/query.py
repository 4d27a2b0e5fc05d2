"""SQL over the records, and export, through DuckDB: a reader; the JSON lines stay the truth."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steptime.analysis.row import COLUMNS, Row
from steptime.core.errors import InputError, unknown
from steptime.core.files import check_folder, replacing
from steptime.store import StoreError

if TYPE_CHECKING:
    import duckdb


SQL_TYPES = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "VARCHAR"}
FORMATS = {  # ending of the file: options of DuckDB's COPY
    ".csv": "FORMAT csv, HEADER true",
    ".parquet": "FORMAT parquet, COMPRESSION zstd",
    ".jsonl": "FORMAT json",
}


def query(rows: Sequence[Row], sql: str) -> list[Row]:
    """Return the answer to `sql` over the table `records`, as rows of values that JSON can say.

    The statement sees that table only: no file, no network, no settings. A number that is not
    finite comes back as None. Raises `InputError` with DuckDB's own reason for what it refuses.
    """
    with _connection(rows) as connection, _refusals():
        answer: duckdb.DuckDBPyConnection | None = connection.execute(sql)
        if answer is None or not answer.description:  # an empty statement
            return []
        names = _distinct([column[0] for column in answer.description])
        return [
            {name: _plain(value) for name, value in zip(names, values, strict=True)}
            for values in answer.fetchall()
        ]


def export(rows: Sequence[Row], path: Path, sql: str = "FROM records") -> int:
    """Write the answer to `sql` as `.csv`, `.parquet` or `.jsonl`; gives the number of rows.

    `path` is there whole or as it was before. Raises `InputError` for another ending, a folder that
    is absent, and what DuckDB refuses; `StoreError` where the disk does not take it.
    """
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise unknown("export format", ending or path.name, FORMATS, str(path))
    check_folder(path)
    try:
        with replacing(path) as part, _connection(rows, writes=part) as connection:
            with _refusals():
                relation: duckdb.DuckDBPyRelation | None = connection.sql(sql)
                if relation is None:
                    raise InputError("the query: gives no table to export")
                relation.create("answer")
            _copy(connection, part, ending)
            number = connection.execute("SELECT count(*) FROM answer").fetchall()[0][0]
    except OSError as error:
        raise StoreError(f"{path}: cannot write: {error.strerror}") from error
    return int(number)


def _copy(connection: duckdb.DuckDBPyConnection, path: Path, ending: str) -> None:
    import duckdb

    target = str(path).replace("'", "''")
    try:
        connection.execute(f"COPY answer TO '{target}' ({FORMATS[ending]}, USE_TMP_FILE false)")
    except duckdb.IOException as error:
        raise StoreError(f"{path}: cannot write: {_first_lines(error)}") from error


@contextmanager
def _connection(
    rows: Sequence[Row], writes: Path | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Return a database in memory that holds `rows` as `records` and can reach nothing else.

    Only the file `writes` may be written.
    """
    with connected({"records": rows}) as connection:
        if writes:
            connection.execute("SET allowed_paths = [?]", [str(writes)])
        for setting in ("autoinstall_known_extensions", "autoload_known_extensions"):
            connection.execute(f"SET {setting} = false")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


def connected(tables: Mapping[str, Sequence[Row]]) -> duckdb.DuckDBPyConnection:
    """Return a database in memory with these tables.

    The rows pass through a file of JSON lines: a hundred times faster than row by row.
    """
    import duckdb

    connection = duckdb.connect()
    for table, rows in tables.items():
        types = _types(rows)
        with tempfile.TemporaryDirectory(prefix="steptime-") as folder:
            lines = Path(folder) / "rows.jsonl"
            with lines.open("w", encoding="utf-8") as file:
                for row in rows:
                    told = {
                        n: _text(row[n]) if k == "VARCHAR" else row[n] for n, k in types.items()
                    }
                    file.write(json.dumps(told) + "\n")
            columns = ", ".join(f"{_quoted(name)}: '{kind}'" for name, kind in types.items())
            connection.execute(
                f"CREATE TABLE {table} AS FROM read_json(?, format = 'newline_delimited', "
                f"maximum_object_size = 1000000000, columns = {{{columns}}})",
                [str(lines)],
            )
    return connection


def _quoted(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _types(rows: Sequence[Row]) -> dict[str, str]:
    names = list(rows[0]) if rows else list(COLUMNS)
    return {name: SQL_TYPES[_kind(name, rows)] for name in names}


def _kind(name: str, rows: Sequence[Row]) -> type:
    if name in COLUMNS:
        return COLUMNS[name]
    kinds = {type(row[name]) for row in rows if row[name] is not None}
    if kinds == {int} and any(abs(row[name] or 0) >= 2**63 for row in rows):
        return float
    if len(kinds) == 1:
        return kinds.pop()
    return float if kinds == {int, float} else str


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value is None else str(value)


@contextmanager
def _refusals() -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise InputError(f"the query: {_first_lines(error)}") from error


def _first_lines(error: Exception) -> str:
    """Return DuckDB's reason, with its hint of a near name where it has one, as one line."""
    first, *others = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    hints = [line for line in others[:1] if line.startswith(("Candidate", "Did you mean"))]
    return "; ".join([first, *hints])


def _distinct(names: Sequence[str]) -> list[str]:
    distinct: list[str] = []
    for name in names:
        tried = (f"{name}_{number}" if number else name for number in count())
        distinct.append(next(fresh for fresh in tried if fresh not in distinct))
    return distinct


def _plain(value: Any) -> Any:
    """Return a value of DuckDB as one that JSON can say."""
    if isinstance(value, float | Decimal):
        number = float(value)
        return number if abs(number) < float("inf") else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | str) else str(value)

"""SQL over the records, and export, through DuckDB: a reader; the JSON lines stay the truth."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steptime.core.errors import InputError
from steptime.core.files import check_ending, replacing
from steptime.core.printers import APOSTROPHE, FORMULA, harmless
from steptime.records import flat
from steptime.records.data import Data
from steptime.records.row import Row
from steptime.records.store import StoreError

if TYPE_CHECKING:
    import duckdb


WRITING = {"copy", "export", "attach", "prepare", "execute"}
FORMATS = {  # ending of the file: options of DuckDB's COPY
    ".csv": "FORMAT csv, HEADER true",
    ".parquet": "FORMAT parquet, COMPRESSION zstd",
    ".jsonl": "FORMAT json",
}


def query(data: Data, sql: str) -> list[Row]:
    """Return the answer to `sql` over the table `records`, as rows of values that JSON can say.

    The statement sees that table only: no file, no network, no settings. A number that is not
    finite comes back as None. Raises `InputError` with DuckDB's own reason for what it refuses.
    """
    with _connection(data) as connection, _refusals():
        if not _answer(connection, sql):  # an empty statement
            return []
        rows = flat.fetched(connection.execute("FROM answer"))
        return [{name: _plain(value) for name, value in row.items()} for row in rows]


def export(data: Data, path: Path, sql: str = "FROM records") -> int:
    """Write the answer to `sql` as `.csv`, `.parquet` or `.jsonl`; gives the number of rows.

    `path` is there whole or as it was before. Raises `InputError` for another ending, a folder that
    is absent, and what DuckDB refuses; `StoreError` where the disk does not take it.
    """
    ending = check_ending(path, FORMATS, "export format")
    try:
        with replacing(path) as part, _connection(data, writes=part) as connection:
            with _refusals():
                if not _answer(connection, sql):
                    raise InputError("the query: gives no table to export")
            _copy(connection, part, ending)
            number = connection.execute("SELECT count(*) FROM answer").fetchall()[0][0]
    except OSError as error:
        raise StoreError(f"{path}: cannot write: {error.strerror}") from error
    return int(number)


def _copy(connection: duckdb.DuckDBPyConnection, path: Path, ending: str) -> None:
    import duckdb

    rows = "FROM answer"
    to = f"{flat.text(str(path))} ({FORMATS[ending]}, USE_TMP_FILE false)"
    if ending == ".csv":
        kinds = connection.execute("SELECT column_name, column_type FROM (DESCRIBE answer)")
        rows = f"SELECT {', '.join(_harmless(*one) for one in kinds.fetchall())} FROM answer"  # noqa: S608  # quoted names
    try:
        connection.execute(f"COPY ({rows}) TO {to}")
    except duckdb.IOException as error:
        raise StoreError(f"{path}: cannot write: {_first_lines(error)}") from error


def _harmless(column: str, kind: str) -> str:
    """Return the SQL of a column of CSV, no text of which a spreadsheet takes for a formula."""
    cell = flat.name(column)
    heading = flat.name(harmless(column))
    if kind != "VARCHAR":
        return f"{cell} AS {heading}"
    begins = " OR ".join(f"starts_with({cell}, {flat.text(one)})" for one in FORMULA)
    is_formula = f"({begins}) AND TRY_CAST({cell} AS DOUBLE) IS NULL"
    return f"if({is_formula}, concat({flat.text(APOSTROPHE)}, {cell}), {cell}) AS {heading}"


@contextmanager
def _connection(data: Data, writes: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Return a database that holds the table `records` and can reach nothing else.

    Only the caches of the records may be read, and only the file `writes` written.
    """
    tables = data.tables()
    with tables.connection as connection:
        connection.execute("CREATE OR REPLACE VIEW records AS " + tables.one_folder())
        paths = [*tables.files, *([str(writes)] if writes else [])]
        if paths:
            connection.execute("SET allowed_paths = ?", [paths])
        for setting in ("autoinstall_known_extensions", "autoload_known_extensions"):
            connection.execute(f"SET {setting} = false")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


def _answer(connection: duckdb.DuckDBPyConnection, sql: str) -> bool:
    """Make the table `answer` of what a statement gives, and tell whether it gives one.

    What could write is refused: to a cache, which a statement may read.
    """
    import duckdb

    for one in connection.extract_statements(sql):
        words = set(re.findall("[a-z]+", one.query.lower()))
        if one.type != duckdb.StatementType.SELECT and words & WRITING:
            raise InputError("the query: a statement only reads; export writes files")
    relation: duckdb.DuckDBPyRelation | None = connection.sql(sql)
    if relation is not None:
        relation.create("answer")
    return relation is not None


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

"""Answer one SQL statement over the table `records`, in a process of its own with limits.

`main` reads a request as one line of JSON from stdin and writes lines of JSON: the names of the
columns, the values of each row, and at the end either the number of rows or why there is no answer.
The process cannot take more memory than it is allowed, ends by itself at its time limit, and can
read nothing but the Parquet files of the records.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from steptime.records.column_names import name_quantities, name_settings
from steptime.records.row import COLUMNS, Kinds

if TYPE_CHECKING:
    import duckdb

WRITING_WORDS = {"copy", "export", "attach", "prepare", "execute"}
COPY_OPTIONS = {  # of DuckDB's COPY, by the ending of the file
    ".csv": "FORMAT csv, HEADER true",
    ".parquet": "FORMAT parquet, COMPRESSION zstd",
    ".jsonl": "FORMAT json",
}
SPILL_SHARE = 0.75  # of the memory, from which on DuckDB writes to its temporary folder
MAX_SPILLED_SHARE = 4  # of the memory, on the disk
ROWS_OF_CHUNK = 1000
MAX_RESERVED_BYTES = 128 << 20  # two arenas of glibc's malloc; stacks of threads are not counted
GRACE_S = 1.0  # in which the process that asked ends this one


# An end of a step's interval: of one with samples the bootstrapped end, widened to include the step
# itself, a median; of any other the end that its record states.
STEP_END = "if(samples IS NULL, stated_{end}, if(estimate.{end} IS NULL, NULL, {choose}))"
DERIVED_COLUMNS = {  # of the view `records`, that the files do not have
    "step_s_low": STEP_END.format(end="low", choose="least(estimate.low, step_s)"),
    "step_s_high": STEP_END.format(end="high", choose="greatest(estimate.high, step_s)"),
    "steady": "CAST(estimate.steady AS BOOLEAN)",
}
SQL_TYPES = {"bool": "BOOLEAN", "int": "BIGINT", "float": "DOUBLE"}
# To DuckDB an integer beyond 64 bits is a DOUBLE of JSON as well: its digits stay as they are.
TEXT_OF_JSON = """CASE json_type({value}) WHEN 'BOOLEAN' THEN if({value} = 'true', 'yes', 'no')
    WHEN 'DOUBLE' THEN if(regexp_matches(CAST({value} AS VARCHAR), '[.e]'),
        CAST(CAST({value} AS DOUBLE) AS VARCHAR), CAST({value} AS VARCHAR))
    ELSE {value}->>'$' END"""


class QueryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A statement and what it may use.

    Attributes:
        sql: the statement.
        files: the Parquet files of the records, the only files that may be read.
        model: records of models that begin so take part; "" for all.
        setting_kinds: the types of the values of each hyperparameter.
        quantity_kinds: the types of the values of each quantity that not every record has.
        temporary_folder: where DuckDB writes what does not fit into the memory.
        memory_bytes: memory that the statement may take.
        limit_s: time after which the process ends.
        max_rows: rows that the answer may have; None for any number.
        max_answer_bytes: size of the answer as JSON.
        write_to: the file to write the answer to; "" answers with rows.
        ending: the format of that file.
    """

    sql: str
    files: list[str]
    model: str
    setting_kinds: Kinds
    quantity_kinds: Kinds
    temporary_folder: str
    memory_bytes: int
    limit_s: float
    max_rows: int | None = None
    max_answer_bytes: int = 0
    write_to: str = ""
    ending: str = ""


class QueryEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last line of an answer.

    Attributes:
        row_count: number of rows.
        fault: what the answer lacks: `memory`, `rows`, `size`, `refused` or `disk`.
        reason: the library's own reason, for `refused` and `disk`.
    """

    row_count: int = 0
    fault: str = ""
    reason: str = ""


class QueryFaultError(Exception):
    """A statement has no answer; holds the `fault` and the `reason` of a `QueryEnd`."""

    def __init__(self, fault: str, reason: str = "") -> None:
        super().__init__(fault)
        self.fault = fault
        self.reason = reason


def main() -> None:
    """Answer the request on stdin."""
    import duckdb  # noqa: F401  # while the request is still being made

    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=QueryRequest)
    _limit_time(request.limit_s + GRACE_S)
    out = sys.stdout.buffer
    try:
        with _open_connection(request) as connection:
            limit_memory(request.memory_bytes)
            row_count = answer(request, connection, out)
        end = QueryEnd(row_count=row_count)
    except QueryFaultError as error:
        end = QueryEnd(fault=error.fault, reason=error.reason)
    except MemoryError:
        end = QueryEnd(fault="memory")
    out.write(msgspec.json.encode(end) + b"\n")
    out.flush()
    os._exit(0)  # DuckDB may take long to give back its memory


def _limit_time(limit_s: float) -> None:
    """Let the system end this process after a time, whatever it does then."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)


def limit_memory(memory_bytes: int) -> None:
    """Allow this process so much memory beside what it has now, by its address space; Linux only.

    What malloc has reserved and not touched yet is part of the address space, so it is taken off.
    """
    size_bytes = _process_sizes()
    if not size_bytes:  # not Linux
        return
    # RLIMIT_AS limits the address space. The part that malloc has reserved and not touched serves
    # new memory without enlarging it, so it counts towards the memory that is granted.
    untouched_bytes = min(size_bytes["VmData"] - size_bytes["RssAnon"], MAX_RESERVED_BYTES)
    credited_bytes = min(untouched_bytes, memory_bytes // 2)
    limit_bytes = size_bytes["VmSize"] + memory_bytes - credited_bytes
    _, hard_limit_bytes = resource.getrlimit(resource.RLIMIT_AS)
    if hard_limit_bytes != resource.RLIM_INFINITY:
        limit_bytes = min(limit_bytes, hard_limit_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard_limit_bytes))


def _process_sizes() -> dict[str, int]:
    """Return the sizes of this process in bytes as Linux says them, nothing elsewhere."""
    path = Path("/proc/self/status")
    if not path.exists():
        return {}
    status = path.read_text(encoding="ascii")
    sizes = re.findall(r"^(\w+):\s+(\d+) kB$", status, re.MULTILINE)
    return {name: int(size_kib) << 10 for name, size_kib in sizes}


@contextmanager
def _open_connection(request: QueryRequest) -> Iterator[duckdb.DuckDBPyConnection]:
    """Return a database that has the view `records` and can reach nothing else."""
    import duckdb

    with duckdb.connect() as connection:
        max_memory_bytes = int(request.memory_bytes * SPILL_SHARE)
        max_spilled_bytes = request.memory_bytes * MAX_SPILLED_SHARE
        connection.execute("SET temp_directory = ?", [request.temporary_folder])
        connection.execute("SET memory_limit = ?", [f"{max_memory_bytes}B"])
        connection.execute("SET max_temp_directory_size = ?", [f"{max_spilled_bytes}B"])
        connection.execute("SET enable_progress_bar = false")
        if request.files:
            connection.execute(f"CREATE VIEW records AS {_records_sql(request)}")
        # From here on the statement of the user can reach these files and nothing else.
        allowed_paths = [*request.files, *filter(None, [request.write_to])]
        if allowed_paths:
            connection.execute("SET allowed_paths = ?", [allowed_paths])
        for setting in ("autoinstall_known_extensions", "autoload_known_extensions"):
            connection.execute(f"SET {setting} = false")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


def _records_sql(request: QueryRequest) -> str:
    """Return the SQL of the view `records`, whose columns have the types of their values."""
    files = " UNION ALL BY NAME ".join(f"FROM {quote_text(path)}" for path in request.files)
    # The files hold maps as lists of entries.
    maps = ", ".join(f"map_from_entries({name}) AS {name}" for name in ("others", "sampled"))
    rows = f"FROM ({files}) SELECT * REPLACE ({maps})"
    if request.model:
        rows += f" WHERE starts_with(model, {quote_text(request.model)})"
    return f"FROM ({rows}) SELECT {_cells_sql(request)}"


def _cells_sql(request: QueryRequest) -> str:
    """Return the SQL of the columns of the view `records`."""
    sql_by_column = {name: DERIVED_COLUMNS.get(name, name) for name in COLUMNS}
    for name, column in name_quantities(request.quantity_kinds).items():
        value_sql = f"others[{quote_text(name)}]"
        sql_by_column[column] = _typed_sql(value_sql, request.quantity_kinds[name])
    settings = name_settings(request.setting_kinds, request.quantity_kinds)
    for name, column in settings.items():
        json_pointer = "/" + name.replace("~", "~0").replace("/", "~1")
        value_sql = f"json_extract(params, {quote_text(json_pointer)})"
        sql_by_column[column] = _typed_sql(value_sql, request.setting_kinds[name])
    return ", ".join(f"{sql} AS {quote_name(column)}" for column, sql in sql_by_column.items())


def _typed_sql(value_sql: str, kinds: Sequence[str]) -> str:
    """Return the SQL of a JSON text in the type of a column whose values have these types."""
    distinct_kinds = {*kinds}
    # Values of several types, and texts, stay texts.
    if distinct_kinds == {"int", "float"}:
        return f"CAST({value_sql} AS DOUBLE)"
    has_single_plain_kind = len(distinct_kinds) == 1 and distinct_kinds != {"str"}
    if has_single_plain_kind:
        return f"CAST({value_sql} AS {SQL_TYPES[kinds[0]]})"
    return TEXT_OF_JSON.format(value=value_sql)


def quote_text(value: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def quote_name(value: str) -> str:
    """Return the name of a column as SQL writes it."""
    return '"' + value.replace('"', '""') + '"'


def answer(request: QueryRequest, connection: duckdb.DuckDBPyConnection, out: BinaryIO) -> int:
    """Write the answer to a request, to its file or as lines of JSON; return the number of rows.

    Raises:
        QueryFaultError: if there is no answer within the limits.
    """
    with _convert_errors("refused"):
        if not _make_answer(request, connection):  # a statement without a table
            return 0
        (row_count,) = connection.execute("SELECT count(*) FROM answer").fetchall()[0]
    if request.max_rows is not None and row_count > request.max_rows:
        raise QueryFaultError("rows")
    if request.write_to:
        with _convert_errors("disk"):
            _copy_answer(request, connection)
    else:
        with _convert_errors("refused"):
            _write_rows(connection, out, request.max_answer_bytes)
    return int(row_count)


def _make_answer(request: QueryRequest, connection: duckdb.DuckDBPyConnection) -> bool:
    """Make the table `answer` of a statement; return whether the statement gives a table.

    A statement that writes is refused: the caches of the records may be read, not changed.
    """
    import duckdb

    for statement in connection.extract_statements(request.sql):
        # By its words, as a COPY may stand in a statement of another type, such as EXPLAIN.
        words = set(re.findall("[a-z]+", statement.query.lower()))
        may_write = statement.type != duckdb.StatementType.SELECT and words & WRITING_WORDS
        if may_write:
            raise QueryFaultError("refused", "a statement only reads; export writes files")
    relation: duckdb.DuckDBPyRelation | None = connection.sql(request.sql)
    if relation is None:  # the statement gives no table
        if request.write_to:
            raise QueryFaultError("refused", "gives no table to export")
        return False
    if request.max_rows is not None:  # a row more shows that there are too many
        relation = relation.limit(request.max_rows + 1)
    relation.create("answer")
    return True


def _write_rows(connection: duckdb.DuckDBPyConnection, out: BinaryIO, max_bytes: int) -> None:
    """Write the names of the columns and the values of each row, a line of JSON each."""
    cursor = connection.execute("FROM answer")
    column_names = [description[0] for description in cursor.description]
    lines = [json.dumps(column_names)]
    answer_bytes = 0
    while lines:
        chunk = "".join(f"{line}\n" for line in lines).encode()
        answer_bytes += len(chunk)
        if answer_bytes > max_bytes:
            raise QueryFaultError("size")
        out.write(chunk)
        # No lines are left after the last row, which ends the loop.
        lines = [json.dumps(plain_value(row)) for row in cursor.fetchmany(ROWS_OF_CHUNK)]


def _copy_answer(request: QueryRequest, connection: duckdb.DuckDBPyConnection) -> None:
    rows = "FROM answer"
    if request.ending == ".csv":
        columns = connection.execute("SELECT column_name, column_type FROM (DESCRIBE answer)")
        cells = [_csv_cell(name, sql_type) for name, sql_type in columns.fetchall()]
        rows = f"FROM answer SELECT {', '.join(cells)}"
    options = f"{COPY_OPTIONS[request.ending]}, USE_TMP_FILE false"
    connection.execute(f"COPY ({rows}) TO {quote_text(request.write_to)} ({options})")


def _csv_cell(column: str, sql_type: str) -> str:
    """Return the SQL of a column of CSV, no text of which a spreadsheet takes for a formula."""
    from steptime.core.tables.printers import APOSTROPHE, FORMULA, neutralise_csv_cell

    cell = quote_name(column)
    heading = quote_name(neutralise_csv_cell(column))
    if sql_type != "VARCHAR":
        return f"{cell} AS {heading}"
    begins_as_formula = " OR ".join(f"starts_with({cell}, {quote_text(mark)})" for mark in FORMULA)
    # `-1.5` begins as a formula but is a number.
    is_formula = f"({begins_as_formula}) AND TRY_CAST({cell} AS DOUBLE) IS NULL"
    escaped_cell = f"concat({quote_text(APOSTROPHE)}, {cell})"
    return f"if({is_formula}, {escaped_cell}, {cell}) AS {heading}"


@contextmanager
def _convert_errors(fault: str) -> Iterator[None]:
    """Raise `QueryFaultError` for what DuckDB refuses, by default with this fault."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise QueryFaultError("memory") from error
    except (duckdb.Error, RuntimeError) as error:
        lacks_memory = re.search(r"bad[_ ]alloc", str(error)) is not None
        raise QueryFaultError("memory" if lacks_memory else fault, first_lines(error)) from error


def first_lines(error: Exception) -> str:
    """Return DuckDB's reason, with its hint of a near name if it has one, as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    hints = [line for line in lines[1:2] if line.startswith(("Candidate", "Did you mean"))]
    return "; ".join([lines[0], *hints])


def plain_value(value: Any) -> Any:
    """Return a value of DuckDB as one that JSON can say; a number that is not finite is None."""
    if isinstance(value, float | Decimal):
        number = float(value)
        return number if math.isfinite(number) else None
    if isinstance(value, dict):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | str) else str(value)


if __name__ == "__main__":
    main()

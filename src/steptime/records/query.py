"""Answer one SQL statement over the table `records`, in a process of its own with limits.

`main` reads a request as one line of JSON from stdin and writes lines of JSON: the names of the
columns, the values of each row, and at the end either the number of rows or why there is no answer.
The process cannot take more memory than it is allowed, ends by itself at its time limit, and can
read nothing but the Parquet files of the records.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from steptime.records import flat

if TYPE_CHECKING:
    import duckdb

WRITING_WORDS = {"copy", "export", "attach", "prepare", "execute"}
COPY_OPTIONS = {  # of DuckDB's COPY, by the ending of the file
    ".csv": "FORMAT csv, HEADER true",
    ".parquet": "FORMAT parquet, COMPRESSION zstd",
    ".jsonl": "FORMAT json",
}
SPILL_AT_SHARE = 0.75  # of the memory, from which on DuckDB writes to its temporary folder
MAX_SPILLED_SHARE = 4  # of the memory, on the disk
ROWS_AT_ONCE = 1000
MAX_RESERVED_BYTES = 128 << 20  # two arenas of glibc's malloc; stacks of threads are not counted
GRACE_S = 1.0  # in which the process that asked ends this one


class QueryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A statement and what it may use.

    Attributes:
        sql: the statement.
        setup: statements that make the view `records`.
        readable_paths: the only files that may be read.
        temporary_folder: where DuckDB writes what does not fit into the memory.
        memory_bytes: memory that the statement may take.
        limit_s: time after which the process ends.
        max_rows: rows that the answer may have; None for any number.
        max_answer_bytes: size of the answer as JSON.
        write_to: the file to write the answer to; "" answers with rows.
        ending: the format of that file.
    """

    sql: str
    setup: list[str]
    readable_paths: list[str]
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
    _end_at(request.limit_s + GRACE_S)
    out = sys.stdout.buffer
    try:
        with _connection(request) as connection:
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


def _end_at(limit_s: float) -> None:
    """Let the system end this process after a time, whatever it does then."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s)


def limit_memory(memory_bytes: int) -> None:
    """Allow this process so much memory beside what it has now, by its address space; Linux only.

    What malloc has reserved and not touched yet is part of the address space, so it is taken off.
    """
    status = _process_status()
    if not status:
        return
    untouched_bytes = min(status["VmData"] - status["RssAnon"], MAX_RESERVED_BYTES)
    limit_bytes = status["VmSize"] + memory_bytes - min(untouched_bytes, memory_bytes // 2)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit_bytes = min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard))


def _process_status() -> dict[str, int]:
    """Return the sizes of this process in bytes as Linux says them, nothing elsewhere."""
    path = Path("/proc/self/status")
    if not path.exists():
        return {}
    sizes = re.findall(r"^(\w+):\s+(\d+) kB$", path.read_text(encoding="ascii"), re.MULTILINE)
    return {name: int(size) << 10 for name, size in sizes}


@contextmanager
def _connection(request: QueryRequest) -> Iterator[duckdb.DuckDBPyConnection]:
    """Return a database that has the view `records` and can reach nothing else."""
    import duckdb

    with duckdb.connect() as connection:
        spill_at_bytes = int(request.memory_bytes * SPILL_AT_SHARE)
        spilled_bytes = request.memory_bytes * MAX_SPILLED_SHARE
        connection.execute("SET temp_directory = ?", [request.temporary_folder])
        connection.execute("SET memory_limit = ?", [f"{spill_at_bytes}B"])
        connection.execute("SET max_temp_directory_size = ?", [f"{spilled_bytes}B"])
        connection.execute("SET enable_progress_bar = false")
        for statement in request.setup:
            connection.execute(statement)
        paths = [*request.readable_paths, *filter(None, [request.write_to])]
        if paths:
            connection.execute("SET allowed_paths = ?", [paths])
        for setting in ("autoinstall_known_extensions", "autoload_known_extensions"):
            connection.execute(f"SET {setting} = false")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection


def answer(request: QueryRequest, connection: duckdb.DuckDBPyConnection, out: BinaryIO) -> int:
    """Write the answer to a request, to its file or as lines of JSON; return the number of rows.

    Raises:
        QueryFaultError: if there is no answer within the limits.
    """
    with _faults("refused"):
        if not _make_answer(request, connection):
            return 0
        (row_count,) = connection.execute("SELECT count(*) FROM answer").fetchall()[0]
    if request.max_rows is not None and row_count > request.max_rows:
        raise QueryFaultError("rows")
    if request.write_to:
        with _faults("disk"):
            _copy_answer(request, connection)
    else:
        with _faults("refused"):
            _write_rows(connection, out, request.max_answer_bytes)
    return int(row_count)


def _make_answer(request: QueryRequest, connection: duckdb.DuckDBPyConnection) -> bool:
    """Make the table `answer` of a statement; return whether the statement gives a table.

    A statement that writes is refused: the caches of the records may be read, not changed.
    """
    import duckdb

    for statement in connection.extract_statements(request.sql):
        words = set(re.findall("[a-z]+", statement.query.lower()))
        if statement.type != duckdb.StatementType.SELECT and words & WRITING_WORDS:
            raise QueryFaultError("refused", "a statement only reads; export writes files")
    relation: duckdb.DuckDBPyRelation | None = connection.sql(request.sql)
    if relation is None:
        if request.write_to:
            raise QueryFaultError("refused", "gives no table to export")
        return False
    if request.max_rows is not None:
        relation = relation.limit(request.max_rows + 1)
    relation.create("answer")
    return True


def _write_rows(connection: duckdb.DuckDBPyConnection, out: BinaryIO, max_bytes: int) -> None:
    """Write the names of the columns and the values of each row, a line of JSON each."""
    cursor = connection.execute("FROM answer")
    lines = [json.dumps([column[0] for column in cursor.description])]
    byte_count = 0
    while lines:
        text = "".join(f"{line}\n" for line in lines).encode()
        byte_count += len(text)
        if byte_count > max_bytes:
            raise QueryFaultError("size")
        out.write(text)
        lines = [json.dumps(plain_value(row)) for row in cursor.fetchmany(ROWS_AT_ONCE)]


def _copy_answer(request: QueryRequest, connection: duckdb.DuckDBPyConnection) -> None:
    rows = "FROM answer"
    if request.ending == ".csv":
        columns = connection.execute("SELECT column_name, column_type FROM (DESCRIBE answer)")
        cells = [_csv_cell(name, kind) for name, kind in columns.fetchall()]
        rows = f"SELECT {', '.join(cells)} FROM answer"  # noqa: S608  # quoted names
    options = f"{COPY_OPTIONS[request.ending]}, USE_TMP_FILE false"
    connection.execute(f"COPY ({rows}) TO {flat.text(request.write_to)} ({options})")


def _csv_cell(column: str, kind: str) -> str:
    """Return the SQL of a column of CSV, no text of which a spreadsheet takes for a formula."""
    from steptime.core.printers import APOSTROPHE, FORMULA, harmless

    cell = flat.name(column)
    heading = flat.name(harmless(column))
    if kind != "VARCHAR":
        return f"{cell} AS {heading}"
    begins = " OR ".join(f"starts_with({cell}, {flat.text(mark)})" for mark in FORMULA)
    is_formula = f"({begins}) AND TRY_CAST({cell} AS DOUBLE) IS NULL"
    return f"if({is_formula}, concat({flat.text(APOSTROPHE)}, {cell}), {cell}) AS {heading}"


@contextmanager
def _faults(fault: str) -> Iterator[None]:
    """Raise `QueryFaultError` for what DuckDB refuses, by default with this fault."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise QueryFaultError("memory") from error
    except (duckdb.Error, RuntimeError) as error:
        is_memory = re.search(r"bad[_ ]alloc", str(error)) is not None
        raise QueryFaultError("memory" if is_memory else fault, first_lines(error)) from error


def first_lines(error: Exception) -> str:
    """Return DuckDB's reason, with its hint of a near name if it has one, as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    hints = [line for line in lines[1:2] if line.startswith(("Candidate", "Did you mean"))]
    return "; ".join([lines[0], *hints])


def plain_value(value: Any) -> Any:
    """Return a value of DuckDB as one that JSON can say; a number that is not finite is None."""
    if isinstance(value, float | Decimal):
        number = float(value)
        return number if abs(number) < float("inf") else None
    if isinstance(value, dict):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | str) else str(value)


if __name__ == "__main__":
    main()

"""Ask an SQL statement over the records, with limits of memory and time.

The statement runs in a process of its own (`records.query`), which reads the records as Parquet
files. The JSON lines stay the truth.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from threading import Timer
from types import TracebackType
from typing import Self

import msgspec

from steptime.core.errors import InputError
from steptime.core.files import check_ending, replace_on_success
from steptime.core.scratch import make_temporary_folder
from steptime.core.units import format_bytes
from steptime.records.data import Data
from steptime.records.query import COPY_OPTIONS, QueryEnd, QueryRequest
from steptime.records.row import Row
from steptime.records.store import StoreError

MAX_ANSWER_ROWS = 100_000  # of an answer that is no file
ANSWER_SHARE = 1 / 16  # of the memory: the largest answer as JSON, which takes more as objects
MAX_ARENAS = "2"  # of glibc's malloc: each one reserves address space, which is limited


@dataclass(frozen=True)
class QueryLimits:
    """What a statement may take.

    Attributes:
        memory_bytes: memory beside that of the program itself.
        limit_s: time for the statement, without reading the lines of the records.
        max_rows: rows of the answer; None for any number.
    """

    memory_bytes: int = 2 << 30
    limit_s: float = 60.0
    max_rows: int | None = MAX_ANSWER_ROWS


def query(data: Data, sql: str, limits: QueryLimits | None = None) -> list[Row]:
    """Return the answer to a statement over the table `records`, as values that JSON can say.

    The statement sees that table only: no file, no network, no settings. A number that is not
    finite comes back as None.

    Args:
        data: the records.
        sql: the statement, in DuckDB's dialect.
        limits: what it may take.

    Raises:
        InputError: for what DuckDB refuses, and for a statement that needs more than the limits.
    """
    limits = limits or QueryLimits()
    with QueryProcess(limits) as process:
        lines, _ = process.ask(data, sql)
    if not lines:  # an empty statement
        return []
    # The first line has the names of the columns.
    columns = json.loads(lines[0])
    return [dict(zip(columns, json.loads(line), strict=True)) for line in lines[1:]]


def export(
    data: Data, path: Path, sql: str = "FROM records", limits: QueryLimits | None = None
) -> int:
    """Write the answer to a statement as `.csv`, `.parquet` or `.jsonl`.

    `path` is there whole or as it was before.

    Returns:
        The number of rows.

    Raises:
        InputError: for another ending, a folder that is absent, what DuckDB refuses, and a
            statement that needs more than the limits.
        StoreError: if the disk does not take the file.
    """
    ending = check_ending(path, COPY_OPTIONS, "export format")
    limits = limits or QueryLimits(max_rows=None)
    try:
        with replace_on_success(path) as temporary_path, QueryProcess(limits, path) as process:
            _, row_count = process.ask(data, sql, temporary_path, ending)
    except OSError as error:
        raise StoreError(f"{path}: cannot write: {error.strerror}") from error
    return row_count


class QueryProcess:
    """The process that answers one statement; a context manager, which ends the process.

    It starts before the records are read, so that both happen at once.
    """

    def __init__(self, limits: QueryLimits, path: Path | None = None) -> None:
        self._limits = limits
        self._path = path
        self._is_late = False

    def __enter__(self) -> Self:
        """Start the process that answers statements."""
        self._process = subprocess.Popen(  # of this package, nobody else's program
            # A process of its own, so that limits of memory and time can be enforced; `-P`: it
            # imports nothing from the current folder.
            [sys.executable, "-P", "-m", "steptime.records.query"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "MALLOC_ARENA_MAX": MAX_ARENAS},
            start_new_session=True,  # Ctrl-C is for this process, which ends the other one
        )
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Kill the process and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def ask(
        self, data: Data, sql: str, write_to: Path | None = None, ending: str = ""
    ) -> tuple[list[bytes], int]:
        """Return the lines of an answer without the last one, and the number of rows.

        Raises:
            InputError: if there is no answer, with the reason.
            StoreError: if the disk does not take the file.
        """
        limits = self._limits
        folder = make_temporary_folder()
        tables = data.tables()  # may hold files that the other process reads
        try:
            request = QueryRequest(
                sql=sql,
                files=[str(path) for path in tables.parquets],
                model=tables.model,
                setting_kinds=tables.setting_kinds,
                quantity_kinds=tables.quantity_kinds,
                temporary_folder=str(folder),
                memory_bytes=limits.memory_bytes,
                limit_s=limits.limit_s,
                max_rows=limits.max_rows,
                max_answer_bytes=int(limits.memory_bytes * ANSWER_SHARE),
                write_to="" if write_to is None else str(write_to),
                ending=ending,
            )
            lines = self._exchange(request)
        finally:
            rmtree(folder, ignore_errors=True)
        end = self._read_end(lines)
        if end.fault:
            raise self._make_error(end)
        return lines, end.row_count

    def _exchange(self, request: QueryRequest) -> list[bytes]:
        """Send a request and return the lines of the answer; kill the process at its limit."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("the process was started without pipes")
        timer = Timer(self._limits.limit_s, self._stop)
        timer.start()
        try:
            with suppress(BrokenPipeError):  # it has ended: there is no answer
                self._process.stdin.write(msgspec.json.encode(request) + b"\n")
                self._process.stdin.flush()
            return self._process.stdout.readlines()
        finally:
            timer.cancel()

    def _stop(self) -> None:
        """Kill the process, which is too late."""
        self._is_late = True
        self._process.kill()

    def _read_end(self, lines: list[bytes]) -> QueryEnd:
        """Take the last line from an answer; a process that died had too little memory."""
        if self._is_late:
            return QueryEnd(fault="time")
        try:
            return msgspec.json.decode(lines.pop(), type=QueryEnd)  # the last line
        except (IndexError, msgspec.MsgspecError):  # it is missing: the process was killed
            return QueryEnd(fault="memory")

    def _make_error(self, end: QueryEnd) -> InputError | StoreError:
        """Return the error that says why there is no answer, and how there can be one."""
        limits = self._limits
        max_rows = f"{limits.max_rows:,}" if limits.max_rows is not None else ""
        answer_bytes = limits.memory_bytes * ANSWER_SHARE
        reasons = {
            "time": f"was not answered within {limits.limit_s:g} s; --seconds allows more",
            "memory": f"needs more memory than {format_bytes(limits.memory_bytes)}; --memory "
            "allows more",
            "rows": f"its answer has more than {max_rows} rows; --rows allows more, LIMIT asks "
            "for fewer, --out writes all to a file",
            "size": f"its answer is larger than {format_bytes(answer_bytes)}; --out writes it to a "
            "file, --memory allows more",
        }
        if end.fault == "disk":
            return StoreError(f"{self._path}: cannot write: {end.reason}")
        return InputError(f"the query: {reasons.get(end.fault, end.reason)}")

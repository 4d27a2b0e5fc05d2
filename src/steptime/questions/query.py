"""Answer an SQL statement over the records, printed or written to a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from steptime.analysis import query as sql_query
from steptime.core import values
from steptime.core.answer import Answer
from steptime.core.errors import InputError
from steptime.core.progress import print_note
from steptime.core.signatures.kinds import Kind
from steptime.core.tables.table import Column, Table
from steptime.core.units import format_bytes, format_count
from steptime.questions import kinds
from steptime.records.data import Data

ALL_RECORDS = "FROM records"
MIN_MEMORY_BYTES = 64 << 20  # in which DuckDB opens a folder of records
MAX_LIMIT_S = 86_400.0
MaxRows = Annotated[values.Count, Kind("N")]
Statement = Annotated[str, Kind("SQL", is_argument=True)]


class QueryAnswer(Answer, frozen=True, kw_only=True):
    """The answer to an SQL statement over the records.

    Attributes:
        rows: one mapping from columns to values a row; none where a file was written.
        row_count: number of rows of the answer or of the file.
        path: the file that was written; None where the rows are here.
        headline: the number of rows and the file.
    """

    rows: tuple[Mapping[str, Any], ...]
    row_count: int
    path: str | None
    headline: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the rows, with the columns of the statement; no table where a file was written."""
        if self.path is not None:
            return []
        column_names = self.rows[0].keys() if self.rows else ()
        heads = [Column(name, name) for name in column_names]
        return [Table(heads, self.rows, has_units=False)]


def query(
    in_: kinds.InFolder,
    sql: Statement | None = None,
    out: kinds.OutFile | None = None,
    memory: kinds.Bytes = "2GiB",
    seconds: kinds.Seconds = 60,
    rows: MaxRows | None = None,
) -> QueryAnswer:
    """Answer an SQL statement over the table 'records'.

    One row is one record; times are in seconds. The statement runs in a process of its own, which
    is ended at its limits.

    Args:
        in_: Folder of records.
        sql: A statement over the table 'records', as DuckDB reads it; --out takes all.
        out: Write the rows into this .csv, .parquet or .jsonl file.
        memory: Memory that the statement may take.
        seconds: Time that the statement may take.
        rows: Most rows of the answer. Default: 100,000 if they are shown, no limit with --out.

    Raises:
        InputError: if there is no folder of records, for a statement that DuckDB refuses or that
            needs more than its limits, and for a file that cannot be written there.
        StoreError: if the disk does not take the file.
    """
    folder = Path(in_)
    max_rows = None if rows is None else values.parse_count(rows, "--rows")
    if max_rows is None and out is None:
        max_rows = sql_query.MAX_ANSWER_ROWS
    limits = sql_query.QueryLimits(
        memory_bytes=_parse_memory(memory),
        limit_s=values.parse_seconds(seconds, "--seconds", at_most=MAX_LIMIT_S),
        max_rows=max_rows,
    )
    if out is not None:
        return _write_table(folder, Path(out), sql or ALL_RECORDS, limits)
    if sql is None:
        raise InputError("missing argument 'SQL', such as 'SELECT model, mean_s FROM results'")
    answer_rows = tuple(sql_query.query(Data.load([folder], print_note), sql, limits))
    row_count = len(answer_rows)
    headline = (format_count(row_count, "row"),)
    return QueryAnswer(rows=answer_rows, row_count=row_count, path=None, headline=headline)


def _parse_memory(memory: kinds.Bytes) -> int:
    """Return a limit of memory in bytes; raises `InputError` for one that is too small."""
    memory_bytes = int(values.parse_bytes(memory, "--memory"))
    if memory_bytes < MIN_MEMORY_BYTES:
        raise InputError(f"--memory: must be at least {format_bytes(MIN_MEMORY_BYTES)}")
    return memory_bytes


def _write_table(folder: Path, path: Path, sql: str, limits: sql_query.QueryLimits) -> QueryAnswer:
    """Write the rows of a statement as CSV, Parquet or JSON lines."""
    is_inside_folder = folder.resolve() in path.resolve().parents
    has_ending_of_records = path.suffix.lower() == ".jsonl"
    if is_inside_folder and has_ending_of_records:
        raise InputError(f"{path}: rows of a table cannot lie among the records of {folder}")
    row_count = sql_query.export(Data.load([folder], print_note), path, sql, limits)
    headline = f"{format_count(row_count, 'row')} written to {path}"
    return QueryAnswer(rows=(), row_count=row_count, path=str(path), headline=(headline,))

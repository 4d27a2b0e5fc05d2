"""Answer an SQL statement over the records, printed or written to a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from steptime.analysis import query as sql_query
from steptime.core.answer import Answer
from steptime.core.errors import InputError
from steptime.core.kinds import Kind
from steptime.core.progress import note
from steptime.core.table import Column, Table
from steptime.core.units import counted
from steptime.questions import kinds
from steptime.records.data import Data

ALL_RECORDS = "FROM records"
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
        heads = [Column(name, name) for name in (self.rows[0] if self.rows else ())]
        return [Table(heads, self.rows, has_units=False)]


def query(
    in_: kinds.InFolder, sql: Statement | None = None, out: kinds.OutFile | None = None
) -> QueryAnswer:
    """Answer an SQL statement over the table 'records'.

    One row is one record; times are in seconds.

    Args:
        in_: Folder of records.
        sql: A statement over the table 'records', as DuckDB reads it; --out takes all.
        out: Write it as a .csv, .parquet or .jsonl file.

    Raises:
        InputError: if there is no folder of records, for a statement that DuckDB refuses, and for a
            file that cannot be written there.
        StoreError: if the disk does not take the file.
    """
    folder = Path(in_)
    if out is not None:
        return _write_table(folder, Path(out), sql or ALL_RECORDS)
    if sql is None:
        raise InputError("Missing argument 'SQL'.")
    rows = tuple(sql_query.query(Data.load([folder], note), sql))
    return QueryAnswer(
        rows=rows, row_count=len(rows), path=None, headline=(counted(len(rows), "row"),)
    )


def _write_table(folder: Path, path: Path, sql: str) -> QueryAnswer:
    """Write the rows of a statement as CSV, Parquet or JSON lines."""
    if path.suffix.lower() == ".jsonl" and path.parent.resolve() == folder.resolve():
        raise InputError(f"{path}: rows of a table cannot lie among the records of {folder}")
    row_count = sql_query.export(Data.load([folder], note), path, sql)
    headline = f"{counted(row_count, 'row')} written to {path}"
    return QueryAnswer(rows=(), row_count=row_count, path=str(path), headline=(headline,))

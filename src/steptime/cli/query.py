"""The command `query`: an answer of SQL over the records, printed or written to a file."""

from pathlib import Path
from typing import Annotated

from steptime.analysis import query as sql_query
from steptime.core.errors import InputError
from steptime.core.progress import note
from steptime.core.question import File, Text, argument, optional, question
from steptime.core.table import Answer, Column, Table
from steptime.core.units import counted
from steptime.questions import options
from steptime.records.data import Data

ALL = "FROM records"
Sql = Annotated[
    Text,
    argument(
        "SQL",
        "A statement over the table 'records', as DuckDB reads it; --out takes all.",
    ),
]


@question(long="reading the records")
def query(
    in_dir: options.In,
    sql: Sql = None,
    out: File = optional("-o --out FILE", "Write it as a .csv, .parquet or .jsonl file."),
) -> Answer:
    """Answer an SQL statement over the table 'records'.

    One row is one record; times are in seconds.
    """
    if out is not None:
        return _write_table(in_dir, out, sql or ALL)
    if sql is None:
        raise InputError("Missing argument 'SQL'.")
    rows = sql_query.query(Data.load([in_dir], note), sql)
    heads = [Column(name, name) for name in (rows[0] if rows else ())]
    table = Table(heads, rows, units=False)
    return Answer(rows, [table], [counted(len(rows), "row")])


def _write_table(in_dir: Path, out: Path, sql: str) -> Answer:
    """Write the rows of a statement as CSV, Parquet or JSON lines."""
    if out.suffix.lower() == ".jsonl" and out.parent.resolve() == in_dir.resolve():
        raise InputError(f"{out}: rows of a table cannot lie among the records of {in_dir}")
    count = sql_query.export(Data.load([in_dir], note), out, sql)
    summary = f"{counted(count, 'row')} written to {out}"
    return Answer({"path": str(out), "rows": count}, notes=[summary])

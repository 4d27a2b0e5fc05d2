"""The command `query`: an answer of SQL over the records, printed or written to a file."""

from pathlib import Path
from typing import Annotated

from steptime.analysis import query as sql_query
from steptime.core.errors import InputError
from steptime.core.progress import note
from steptime.core.question import File, Text, argument, option, optional, question
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
        return export(in_dir, out, sql or ALL)
    if sql is None:
        raise InputError("Missing argument 'SQL'.")
    found = sql_query.query(Data.load([in_dir], note), sql)
    heads = [Column(name, name) for name in (found[0] if found else ())]
    table = Table(heads, found, units=False)
    return Answer(found, [table], [counted(len(found), "row")])


@question(long="reading the records")
def export(
    in_dir: options.In,
    out: Path = option("-o --out FILE", "A .csv, .parquet or .jsonl file."),
    sql: str = option("SQL", "What to export. Default: all records.", ALL, show_default=False),
) -> Answer:
    """Write records as a table: CSV, Parquet or JSON lines."""
    if out.suffix.lower() == ".jsonl" and out.parent.resolve() == in_dir.resolve():
        raise InputError(f"{out}: rows of a table cannot lie among the records of {in_dir}")
    count = sql_query.export(Data.load([in_dir], note), out, sql)
    said = f"{counted(count, 'row')} written to {out}"
    return Answer({"path": str(out), "rows": count}, notes=[said])

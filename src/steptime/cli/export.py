"""The command `export`: the records as one table in a file."""

from pathlib import Path

from steptime.analysis import query as sql_query
from steptime.cli import options
from steptime.cli.command import command, note
from steptime.cli.options import option
from steptime.core.errors import InputError
from steptime.core.table import Answer
from steptime.core.units import counted
from steptime.records.data import Data


@command(long="reading the records")
def export(
    in_dir: options.In,
    out: Path = option("-o --out FILE", "A .csv, .parquet or .jsonl file."),
    sql: str = option(
        "SQL", "What to export. Default: all records.", "FROM records", show_default=False
    ),
) -> Answer:
    """Write records as a table: CSV, Parquet or JSON lines."""
    if out.suffix.lower() == ".jsonl" and out.parent.resolve() == in_dir.resolve():
        raise InputError(f"{out}: rows of a table cannot lie among the records of {in_dir}")
    count = sql_query.export(Data.load([in_dir], note), out, sql)
    said = f"{counted(count, 'row')} written to {out}"
    return Answer({"path": str(out), "rows": count}, notes=[said])

"""The command `query`: an answer of SQL over the records."""

from typing import Annotated

from steptime.analysis import query as sql_query
from steptime.cli import options
from steptime.cli.command import command, note
from steptime.cli.options import argument
from steptime.core.table import Answer, Column, Table
from steptime.core.units import counted
from steptime.records.data import Data

Sql = Annotated[str, argument("SQL", "A statement over the table 'records', as DuckDB reads it.")]


@command(tabular=True, long="reading the records")
def query(sql: Sql, in_dir: options.In) -> Answer:
    """Answer an SQL statement over the table 'records'.

    One row is one record; times are in seconds.
    """
    found = sql_query.query(Data.load([in_dir], note), sql)
    heads = [Column(name, name) for name in (found[0] if found else ())]
    table = Table(heads, found, units=False)
    return Answer(found, [table], [counted(len(found), "row")])

"""Folders of records as the tables of a database in memory: what `Data` and `query` ask."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING
from weakref import finalize

from steptime import store
from steptime.analysis import cache, flat
from steptime.analysis.row import COLUMNS, Row
from steptime.core.record import Record

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Source = tuple[str, Path | Sequence[Record]]  # a folder's name, and where its records are


class Tables:
    """A database with the view `records` over folders of records; it ends with this object.

    `flat` is what lies below: rows with maps of quantities and hyperparameters, samples, and the
    `place` of each record in its folder. `params` has the kinds of hyperparameters, `others` those
    of quantities that are no columns of every table, `files` the caches that are read.
    """

    def __init__(self, folders: Sequence[Source], warn: Callable[[str], None]) -> None:
        scratch = Path(mkdtemp(prefix="steptime-"))
        self.connection = cache.connected(scratch)
        finalize(self, _end, self.connection, scratch)
        rows = [
            self._rows(f"lines_{number}", held, scratch, warn)
            for number, (_, held) in enumerate(folders)
        ]
        self.params = flat.merged([one.params for one in rows])
        self.others = flat.merged([one.others for one in rows])
        self.files = [file for one in rows for file in one.files]
        told = " UNION ALL BY NAME ".join(
            f"SELECT *, {flat.text(name)} AS folder FROM ({one.sql})"
            for (name, _), one in zip(folders, rows, strict=True)
        )
        self.connection.execute(
            f"CREATE VIEW flat AS SELECT *, estimated(samples, run) AS estimate FROM ({told})"
        )
        self.columns = flat.columns_of(self.params, self.others) | {"folder": "folder"}
        shown = ", ".join(f"{made} AS {flat.name(name)}" for name, made in self.columns.items())
        self.connection.execute(f"CREATE VIEW records AS SELECT {shown} FROM flat")

    def one_folder(self) -> str:
        """Return the statement of `records` without the name of their folder."""
        told = ((name, made) for name, made in self.columns.items() if name != "folder")
        return f"SELECT {', '.join(f'{made} AS {flat.name(n)}' for n, made in told)} FROM flat"

    def _rows(
        self, table: str, held: Path | Sequence[Record], scratch: Path, warn: Callable[[str], None]
    ) -> cache.Rows:
        if isinstance(held, Path):
            with store.readable(held):
                return cache.rows_of(self.connection, table, held, scratch, warn)
        return cache.rows_of_records(self.connection, table, held, scratch)


def _end(connection: DuckDBPyConnection, scratch: Path) -> None:
    connection.close()
    rmtree(scratch, ignore_errors=True)


def add_rows(connection: DuckDBPyConnection, table: str, rows: Sequence[Row]) -> None:
    """Add a table of rows.

    They pass through a file of JSON lines: a hundred times faster than row by row.
    """
    types = _types(rows)
    with TemporaryDirectory(prefix="steptime-") as folder:
        lines = Path(folder) / "rows.jsonl"
        with lines.open("w", encoding="utf-8") as file:
            for row in rows:
                told = {n: _text(row[n]) if k == "VARCHAR" else row[n] for n, k in types.items()}
                file.write(json.dumps(told) + "\n")
        columns = ", ".join(f"{flat.text(name)}: '{kind}'" for name, kind in types.items())
        connection.execute(
            f"CREATE TABLE {table} AS FROM read_json(?, format = 'newline_delimited', "
            f"maximum_object_size = 100000000, columns = {{{columns}}})",
            [str(lines)],
        )


def _types(rows: Sequence[Row]) -> dict[str, str]:
    names = list(rows[0]) if rows else list(COLUMNS)
    return {name: flat.SQL_TYPES[_kind(name, rows)] for name in names}


def _kind(name: str, rows: Sequence[Row]) -> type:
    if name in COLUMNS:
        return COLUMNS[name]
    kinds = {type(row[name]) for row in rows if row[name] is not None}
    if kinds == {int} and any(abs(row[name] or 0) >= 2**63 for row in rows):
        return float
    if len(kinds) == 1:
        return kinds.pop()
    return float if kinds == {int, float} else str


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value is None else str(value)

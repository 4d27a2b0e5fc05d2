"""Folders of records as the tables of a database in memory: what `Data` and `query` ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING
from weakref import finalize

from steptime.core.scratch import temporary
from steptime.records import cache, flat, results_sql, store
from steptime.records.record import Record

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Source = tuple[str, Path | Sequence[Record]]  # a folder's name, and where its records are
_ASKED = """
    SELECT tree->>'$..table_name', tree->>'$..column_names[*]', tree->>'$..class'
    FROM (SELECT json_serialize_sql(?::VARCHAR) AS tree)
"""


class Tables:
    """A database with the view `records` over folders of records; it ends with this object.

    `flat` is what lies below: rows with maps of quantities and hyperparameters, samples, and the
    `place` of each record in its folder. `params` has the kinds of hyperparameters, `others` those
    of quantities that are no columns of every table, `files` the caches that are read.
    """

    def __init__(
        self, folders: Sequence[Source], warn: Callable[[str], None], model: str = ""
    ) -> None:
        scratch = temporary()
        self.connection = cache.connected(scratch)
        finalize(self, _end, self.connection, scratch)
        rows = [
            self._rows(f"lines_{number}", held, scratch, warn)
            for number, (_, held) in enumerate(folders)
        ]
        self.params = flat.merged([one.params for one in rows])
        self.others = flat.merged([one.others for one in rows])
        self.files = [file for one in rows for file in one.files]
        self.marks = [one.marks for one in rows]
        told = " UNION ALL BY NAME ".join(
            f"SELECT *, {flat.text(name)} AS folder, {rank} AS folder_rank, "
            f"{rank << 52} + place AS seq FROM ({one.sql})"
            for rank, ((name, _), one) in enumerate(zip(folders, rows, strict=True))
        )
        only = f" WHERE starts_with(model, {flat.text(model)})" if model else ""
        self.connection.execute(f"CREATE VIEW flat AS FROM ({told}){only}")
        self.param_columns = flat.param_columns(self.params, self.others)
        self.columns = flat.columns_of(self.params, self.others) | {"folder": "folder"}
        shown = ", ".join(f"{made} AS {flat.name(name)}" for name, made in self.columns.items())
        self.connection.execute(f"CREATE VIEW records AS SELECT {shown} FROM flat")
        self._typed = {column: self.columns[column] for column in self.param_columns.values()}
        self._folders, self._scratch = [name for name, _ in folders], scratch
        self._state = [one.state for one in rows]
        self._can_be_stored, self._stored = bool(self.files) and not model, ""
        self._has_results = self._is_named = False
        if len(folders) == 1:
            self._store()

    def named(self, sql: str) -> None:
        """See to it that a statement over `results` finds them, and names where it asks for any."""
        ((tables, columns, kinds),) = self.connection.execute(_ASKED, [sql]).fetchall()
        if "results" not in tables:
            return
        if not self._has_results:
            self._store()
            if self._stored:
                results_sql.read(self.connection, self._typed, self._stored)
            else:
                results_sql.add(self.connection, self._typed, hold=True)
            self._has_results, self._is_named = True, bool(self._stored)
        if not self._is_named and ("STAR" in kinds or {"name", "label"} & {*columns}):
            self._is_named = True
            results_sql.add_names(self.connection, self._typed)

    def _store(self) -> None:
        """See to it that of large files what needs all their records is made once, too."""
        if not self._can_be_stored or self._stored:
            return

        def make(path: Path) -> None:
            results_sql.add(self.connection, self._typed)
            results_sql.store(self.connection, self._typed, path, self._scratch)

        state = f"{(self._folders, self._state)} {results_sql.VIEWS}"  # other views: other results
        stored = cache.kept(Path(self.files[0]).parent, self._scratch, state, make)
        self._stored = str(stored)
        self.files.append(self._stored)

    def one_folder(self) -> str:
        """Return the statement of `records` without the name of their folder."""
        told = ((name, made) for name, made in self.columns.items() if name != "folder")
        return f"SELECT {', '.join(f'{made} AS {flat.name(n)}' for n, made in told)} FROM flat"

    def _rows(
        self, table: str, held: Path | Sequence[Record], scratch: Path, warn: Callable[[str], None]
    ) -> cache.FlatRows:
        if isinstance(held, Path):
            with store.readable(held):
                return cache.rows_of(self.connection, table, held, scratch, warn)
        return cache.rows_of_records(self.connection, table, held, scratch)


def _end(connection: DuckDBPyConnection, scratch: Path) -> None:
    connection.close()
    rmtree(scratch, ignore_errors=True)

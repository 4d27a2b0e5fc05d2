"""Folders of records as one table of a database in memory: what `Data` and `query` ask.

The JSON lines are the truth. Rows of a large folder are kept as a Parquet in `.cache` beside them,
and its results as another. These can be thrown away at any time: they are known by name, size and
times of the files, by their own size, and by the version that made them, and what does not fit is
made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import finalize

from steptime import __version__
from steptime.core.errors import InputError
from steptime.core.files import cache_folder, replacing
from steptime.core.scratch import temporary
from steptime.records import flat, store
from steptime.records.record import Record
from steptime.records.row import Kinds

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from steptime.records.rows import RowLines

Source = tuple[str, Path | Sequence[Record]]  # a folder's name, and where its records are
FORMAT = f"{__version__} {hashlib.sha256(flat.SQL.encode()).hexdigest()}"
FOLDER = ".cache"
LEAST_BYTES = 1 << 20  # a smaller folder is read as it stands
MEMORY = "25%"  # of the machine's, for a database
IN_USE_S = 600.0  # that a command may go on reading what another has replaced


class FolderRows(NamedTuple):
    """The rows of a folder as SQL.

    Attributes:
        sql: what gives its rows: `FROM ...`.
        params: the types of the values of each hyperparameter.
        others: the types of the values of each quantity that is no column of every table.
        starts: where each of its files begins, and the end of the last one (`FolderLines`); of
            records at hand 0 and their number.
        paths: its files.
        parquet: its cache, if it has one.
    """

    sql: str
    params: Kinds
    others: Kinds
    starts: Sequence[int]
    paths: Sequence[Path] = ()
    parquet: Path | None = None


class Tables:
    """A database with the view `records` over folders of records; it ends with this object.

    `flat` is what lies below: rows with maps of quantities and hyperparameters, samples, the
    `place` of each record in its folder and `seq`, the place if all folders stood one behind the
    other. `columns` has the SQL over `flat` of those of `records`, `param_columns` the column of
    each hyperparameter, `files` the caches that are read.
    """

    def __init__(
        self, folders: Sequence[Source], warn: Callable[[str], None], model: str = ""
    ) -> None:
        self._scratch = temporary()
        self.connection = connected(self._scratch)
        finalize(self, _end, self.connection, self._scratch)
        self._names = [name for name, _ in folders]
        self._model = model
        self._folder_rows = [
            self._rows(f"lines_{number}", held, warn) for number, (_, held) in enumerate(folders)
        ]
        params = flat.merged([rows.params for rows in self._folder_rows])
        others = flat.merged([rows.others for rows in self._folder_rows])
        parquets = [rows.parquet for rows in self._folder_rows]
        self.files = [str(parquet) for parquet in parquets if parquet]
        sources = [rows.sql for rows in self._folder_rows]
        self.connection.execute(f"CREATE VIEW flat AS {self._flat_sql(sources)}")
        self.param_columns = flat.param_columns(params, others)
        self.columns = flat.columns_of(params, others) | {"folder": "folder"}
        shown = ", ".join(f"{made} AS {flat.name(name)}" for name, made in self.columns.items())
        self.connection.execute(f"CREATE VIEW records AS SELECT {shown} FROM flat")
        self._kept = parquets[0] if len(parquets) == 1 and not model else None
        self._has_results = False

    def _flat_sql(self, sources: Sequence[str]) -> str:
        """Return the statement of `flat` over the rows of all folders."""
        parts = []
        first_place = 0
        for rank, source in enumerate(sources):
            seq = f"{first_place} + place" if first_place else "place"
            name = flat.text(self._names[rank])
            parts.append(
                f"SELECT *, {name} AS folder, {rank} AS folder_rank, {seq} AS seq {source}"
            )
            first_place += self._folder_rows[rank].starts[-1]
        only = f" WHERE starts_with(model, {flat.text(self._model)})" if self._model else ""
        return f"FROM ({' UNION ALL BY NAME '.join(parts)}){only}"

    def files_of(self, folder: int) -> tuple[Sequence[Path], Sequence[int]]:
        """Return the files of a folder and where each begins, for `record_files.read_record`."""
        rows = self._folder_rows[folder]
        return rows.paths, rows.starts

    def add_results(self, add: Callable[[], None], sql: str) -> None:
        """Let there be the table `results`, which `add` adds; that of one large folder is kept.

        What it is made of hangs on `sql`, too.
        """
        if self._has_results:
            return
        self._has_results = True
        if not self._kept:
            add()
            return

        def make(to: Path) -> None:
            add()
            self.connection.execute(f"{flat.copy('FROM results', to)}; DROP TABLE results")

        name = f"results-{_mark(self._names[0] + sql)[:8]}-{self._kept.stem.removeprefix('rows-')}"
        path, _ = kept(self._kept.parent, name, make)
        self.connection.execute(f"CREATE VIEW results AS FROM {flat.text(str(path))}")
        self.files.append(str(path))

    def share(self, folder: Path) -> tuple[list[str], list[str]]:
        """Return how another process makes `records` of one folder, without its column `folder`.

        Rows that have no cache are written to a folder as Parquet.

        Returns:
            The statements, and the Parquet files that they read.
        """
        from duckdb import IOException

        paths = []
        for number, rows in enumerate(self._folder_rows):
            path = rows.parquet or folder / f"records-{number}.parquet"
            if rows.parquet is None:
                try:
                    self.connection.execute(flat.copy(rows.sql, path))
                except IOException as error:
                    raise store.StoreError(f"{path}: cannot write: {error}") from error
            paths.append(path)
        shown = ", ".join(
            f"{made} AS {flat.name(name)}"
            for name, made in self.columns.items()
            if name != "folder"
        )
        sources = [f"FROM {flat.text(str(path))}" for path in paths]
        setup = [
            f"CREATE VIEW flat AS {self._flat_sql(sources)}",
            f"CREATE VIEW records AS SELECT {shown} FROM flat",
        ]
        return setup, [str(path) for path in paths]

    def _rows(
        self, table: str, held: Path | Sequence[Record], warn: Callable[[str], None]
    ) -> FolderRows:
        """Return the rows of a folder, or of records at hand, in their order.

        `warn` gets a line for each torn last line, and for what is left out. Raises `InputError` as
        `store.load` does.
        """
        if not isinstance(held, Path):
            return self._table(table, partial(self._filled, held=held, said=[]), len(held))
        with store.readable(held):
            paths = store.paths(held)
            stamps = {str(path.relative_to(held)): stamp_of(path) for path in paths}
            size_bytes = sum(stamp[0] for stamp in stamps.values())
            warnings: list[str] = []

            def read(into: flat.Into) -> RowLines:
                rows = self._filled(into, paths, warnings)
                if not rows.number and size_bytes:
                    raise InputError("; ".join([f"{held}: {store.NONE}", *warnings[:1]]))
                return rows

            def make(to: Path) -> dict[str, Any]:
                rows = read(partial(flat.copy, to=to))
                about = {"params": rows.params, "others": rows.others, "said": warnings}
                return {**about, "starts": starts_of(rows)}

            if size_bytes < LEAST_BYTES:
                result = self._table(table, read)._replace(paths=paths)
            else:
                path, about = self._kept_rows(held, f"rows-{_mark(json.dumps(stamps))[:16]}", make)
                sql, warnings = f"FROM {flat.text(str(path))}", about["said"]
                kinds = about["params"], about["others"]
                result = FolderRows(sql, *kinds, about["starts"], paths, path)
        for warning in warnings:
            warn(warning)
        return result

    def _filled(
        self, into: flat.Into, held: Sequence[Path] | Sequence[Record], said: list[str]
    ) -> RowLines:
        from steptime.records.rows import filled  # a cache needs none of it

        return filled(self.connection, into, held, said, self._scratch)

    def _table(
        self, table: str, read: Callable[[flat.Into], RowLines], number: int = 0
    ) -> FolderRows:
        """Return the rows of a folder that are held in memory; `number` of records at hand."""
        rows = read(lambda rows: f"CREATE OR REPLACE TABLE {table} AS {rows}")
        return FolderRows(f"FROM {table}", rows.params, rows.others, starts_of(rows) or [0, number])

    def _kept_rows(self, folder: Path, name: str, make: Callable[[Path], Any]) -> tuple[Path, Any]:
        """Return the Parquet of a folder: beside it, among the user's caches, or for this once."""
        from duckdb import IOException  # of a full disk, say

        mark = _mark(str(folder.resolve()))[:16]
        for place in (folder / FOLDER, cache_folder() / mark, self._scratch):
            with suppress(OSError, IOException):
                place.mkdir(parents=True, exist_ok=True)
                return kept(place, name, make)
        raise store.StoreError(f"{folder}: no folder, not even a temporary one, takes its cache")


def starts_of(rows: RowLines) -> list[int]:
    """Return where the files begin from which rows come; [] for records at hand."""
    return rows.lines.starts if rows.lines else []


def kept(
    folder: Path, name: str, make: Callable[[Path], dict[str, Any] | None]
) -> tuple[Path, dict[str, Any]]:
    """Return a Parquet among caches, and what `make` said of it, made where absent.

    Others of its kind go, but those that a command may still read.
    """
    path, known = folder / f"{name}.parquet", folder / f"{name}.json"
    about = _told(known, path)
    if about is None:
        with _alone(folder):
            if (about := _told(known, path)) is None:
                with replacing(path) as to:
                    about = make(to) or {}
                text = json.dumps({"format": FORMAT, "stamp": stamp_of(path), "about": about})
                with replacing(known) as to:
                    to.write_text(json.dumps({"of": _mark(text), "told": text}), encoding="utf-8")
                for other in {*folder.glob(f"{name.partition('-')[0]}-*")} - {path, known}:
                    if other.stat().st_mtime < path.stat().st_mtime - IN_USE_S:
                        other.unlink()
    return path, about


def _told(known: Path, parquet: Path) -> dict[str, Any] | None:
    """Return what is said of a Parquet that is as it was made, None for what others wrote."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        table = json.loads(known.read_text(encoding="utf-8"))
        if table["of"] == _mark(str(table["told"])):
            told = json.loads(table["told"])
            if (told["format"], told["stamp"]) == (FORMAT, stamp_of(parquet)):
                return dict(told["about"])
    return None


def stamp_of(path: Path) -> list[int]:
    """Return what changes with every write to a file: size, times, and which file it is."""
    told = path.stat()
    return [told.st_size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait for other processes that fill this cache; where there are no locks, go ahead."""
    with (folder / "lock").open("w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
            for left in folder.glob(".*"):  # by a command that was killed
                left.unlink()
        yield


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def threads() -> int:
    """Return how many threads may work on records at once: one on each CPU that is allowed."""
    allowed: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def connected(scratch: Path) -> DuckDBPyConnection:
    """Return a database that keeps to a part of the memory; what it lacks goes to `scratch`."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET temp_directory = ?", [str(scratch)])
    connection.execute("SET memory_limit = ?", [MEMORY])
    connection.execute("SET enable_progress_bar = false")  # on the stdout of notebooks
    return connection


def _end(connection: DuckDBPyConnection, scratch: Path) -> None:
    connection.close()
    rmtree(scratch, ignore_errors=True)

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import finalize

from steptime import __version__
from steptime.core.files import cache_folder, replacing
from steptime.core.scratch import temporary
from steptime.records import flat, store
from steptime.records.column_names import merge_kinds, name_settings
from steptime.records.folder_source import FolderSource, Source, open_source
from steptime.records.row import Kinds

if TYPE_CHECKING:
    import polars as pl
    from duckdb import DuckDBPyConnection

MAKERS = ("frame_builder.py", "frame_columns.py", "frame_lists.py", "statistics.py", "warmup.py")
_MAKER_CODE = b"".join(Path(__file__).with_name(name).read_bytes() for name in MAKERS)
FORMAT = f"{__version__} {hashlib.sha256(_MAKER_CODE).hexdigest()}"
FOLDER = ".cache"
LEAST_BYTES = 1 << 20  # a smaller folder is read as it stands
MEMORY = "25%"  # of the machine's, for a database
IN_USE_S = 600.0  # that a command may go on reading what another has replaced


class FolderRows(NamedTuple):
    """The rows of a folder.

    Attributes:
        rank: the number of the folder.
        name: its name.
        starts: where each of its files begins, and the end of the last one (`FolderLines`); of
            records at hand 0 and their number.
        paths: its files.
        parquet: the cache of its rows; None for a small folder.
    """

    rank: int
    name: str
    starts: Sequence[int]
    paths: Sequence[Path] = ()
    parquet: Path | None = None


class Tables:
    """A database with the view `records` over folders of records; it ends with this object.

    `flat` is what lies below (`frame_columns.SCHEMA`): rows with maps of quantities, samples, the
    `place` of each record in its folder and `seq`, the place if all folders stood one behind the
    other. `columns` has the SQL over `flat` of those of `records`, `param_columns` the column of
    each hyperparameter, `files` the caches that are read.
    """

    def __init__(
        self, folders: Sequence[Source], warn: Callable[[str], None], model: str = ""
    ) -> None:
        self._scratch = temporary()
        finalize(self, rmtree, self._scratch, ignore_errors=True)
        self._warn = warn
        self.model = model
        self._params: list[Kinds] = []
        self._others: list[Kinds] = []
        self._small_parquet = self._scratch / "small.parquet"
        self._folder_rows = self._read_folders(folders)
        params = merge_kinds(self._params)
        self.setting_kinds = params
        others = merge_kinds(self._others)
        self.quantity_kinds = others
        parquets = [rows.parquet for rows in self._folder_rows]
        self.param_columns = name_settings(params, others)
        self._kept = parquets[0] if len(parquets) == 1 and not model else None
        self._has_results = False

    @cached_property
    def columns(self) -> dict[str, str]:
        """The SQL over `flat` of the columns of `records`."""
        columns = flat.columns_of(self.setting_kinds, self.quantity_kinds)
        return columns | {"folder": "folder"}

    @cached_property
    def connection(self) -> DuckDBPyConnection:
        """The database, made when a statement is asked."""
        connection = connected(self._scratch)
        finalize(self, connection.close)
        if self._small_parquet.exists():
            source = flat.text(str(self._small_parquet))
            connection.execute(f"CREATE TABLE small AS FROM read_parquet({source})")
        connection.execute(f"CREATE VIEW flat AS {self._flat_sql('small')}")
        shown = ", ".join(f"{made} AS {flat.name(name)}" for name, made in self.columns.items())
        connection.execute(f"CREATE VIEW records AS SELECT {shown} FROM flat")
        return connection

    def _flat_sql(self, small: str) -> str:
        """Return the statement of `flat`; `small` is the table of the rows without a cache."""
        parts = [f"SELECT * FROM {small}"] if self._small_parquet.exists() else []
        first_place = 0
        for rows in self._folder_rows:
            if rows.parquet is not None:
                parts.append(
                    f"SELECT * REPLACE ({flat.text(rows.name)} AS folder, "
                    f"{rows.rank}::BIGINT AS folder_rank, {first_place} + place AS seq) "
                    f"FROM {flat.text(str(rows.parquet))}"
                )
            first_place += rows.starts[-1]
        only = f" WHERE starts_with(model, {flat.text(self.model)})" if self.model else ""
        maps = ", ".join(f"map_from_entries({name}) AS {name}" for name in ("others", "sampled"))
        return f"SELECT * REPLACE ({maps}) FROM ({' UNION ALL BY NAME '.join(parts)}){only}"

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

        mark = _mark(self._folder_rows[0].name + sql)[:8]
        name = f"results-{mark}-{self._kept.stem.removeprefix('rows-')}"
        path, _ = kept(self._kept.parent, name, make)
        self.connection.execute(f"CREATE VIEW results AS FROM {flat.text(str(path))}")

    def cache_results(
        self, make: Callable[[], pl.DataFrame], makers: Sequence[str]
    ) -> pl.DataFrame | pl.LazyFrame:
        """Return the results that `make` makes; those of one large folder are cached.

        Args:
            make: makes the frame.
            makers: modules of this package that decide it.
        """
        import polars as pl

        if self._kept is None:
            return make()
        code = b"".join(Path(__file__).with_name(f"{name}.py").read_bytes() for name in makers)
        mark = _mark(self._folder_rows[0].name + hashlib.sha256(code).hexdigest())[:8]
        name = f"results-{mark}-{self._kept.stem.removeprefix('rows-')}"
        try:
            path, _ = kept(self._kept.parent, name, lambda path: make().write_parquet(path))
        except OSError:  # of a folder that is full, or may only be read
            return make()
        return pl.scan_parquet(path)

    def scan(self, ends: tuple[int, int] | None = None) -> pl.LazyFrame:
        """Return records as a lazy frame (`frame_columns.SCHEMA`), in their order.

        Args:
            ends: the lowest and the highest `seq` of those that are read; None reads all.
        """
        import polars as pl

        parts = []
        first_place = 0
        for rows in self._folder_rows:
            if rows.parquet is not None:
                part = pl.scan_parquet(rows.parquet)
                if ends is not None:  # of `place`, whose statistics spare reading the others
                    low, high = ends
                    is_read = pl.col("place").is_between(low - first_place, high - first_place)
                    part = part.filter(is_read)
                parts.append(
                    part.with_columns(
                        pl.lit(rows.name).alias("folder"),
                        pl.lit(rows.rank, pl.Int64()).alias("folder_rank"),
                        (pl.col("place") + first_place).alias("seq"),
                    )
                )
            first_place += rows.starts[-1]
        if self._small_parquet.exists():
            small = pl.scan_parquet(self._small_parquet)
            parts.append(small if ends is None else small.filter(pl.col("seq").is_between(*ends)))
        records = pl.concat(parts)
        if self.model:
            records = records.filter(pl.col("model").str.starts_with(self.model))
        return records if len(parts) == 1 else records.sort("seq", maintain_order=True)

    @property
    def parquets(self) -> list[Path]:
        """The Parquet files that hold all records; they end with this object."""
        caches = [rows.parquet for rows in self._folder_rows if rows.parquet is not None]
        return [self._small_parquet, *caches] if self._small_parquet.exists() else caches

    def _read_folders(self, folders: Sequence[Source]) -> list[FolderRows]:
        """Return the rows of folders, or of records at hand, in their order.

        Large folders are read first: the places of the small ones behind them follow.

        Raises:
            InputError: as `store.load`.
        """
        sources = [open_source(rank, *folder) for rank, folder in enumerate(folders)]
        large = {
            source.rank: self._large_rows(source)
            for source in sources
            if source.size_bytes >= LEAST_BYTES
        }
        small = [source for source in sources if source.rank not in large]
        if small:
            self._write_small(sources, large)
        for source in small:
            large[source.rank] = FolderRows(source.rank, source.name, source.starts, source.paths)
        for source in sources:
            for warning in source.warnings:
                self._warn(warning)
        return [large[source.rank] for source in sources]

    def _write_small(
        self, sources: Sequence[FolderSource], large: Mapping[int, FolderRows]
    ) -> None:
        """Write the rows of all folders that have no cache as one Parquet."""
        from steptime.records.frame_builder import FolderLine, FrameBuilder, write_parquet

        def lines() -> Iterator[FolderLine]:
            first_place = 0
            for source in sources:
                if source.rank in large:
                    first_place += large[source.rank].starts[-1]
                    continue
                for place, line in source.lines():
                    seq = first_place + place
                    yield FolderLine(source.name, source.rank, place, seq, line)
                first_place += source.starts[-1]

        builder = FrameBuilder()
        try:
            write_parquet(builder.frames(lines()), self._small_parquet, self._scratch)
        except OSError as error:
            raise store.StoreError(f"{self._scratch}: cannot write: {error.strerror}") from error
        self._params.append(builder.params)
        self._others.append(builder.others)

    def _large_rows(self, source: FolderSource) -> FolderRows:
        """Return the rows of a large folder, whose Parquet is made if there is none that fits."""

        def make(path: Path) -> dict[str, Any]:
            from steptime.records.frame_builder import FolderLine, FrameBuilder, write_parquet

            builder = FrameBuilder()
            lines = (FolderLine("", 0, place, place, line) for place, line in source.lines())
            write_parquet(builder.frames(lines), path, self._scratch)
            kinds = {"params": builder.params, "others": builder.others}
            return {**kinds, "warnings": source.warnings, "starts": source.starts}

        if source.folder is None:
            raise AssertionError("records at hand have no cache")
        stamps = {str(path.relative_to(source.folder)): stamp_of(path) for path in source.paths}
        path, about = self._kept_rows(source.folder, f"rows-{_mark(json.dumps(stamps))[:16]}", make)
        source.warnings = about["warnings"]
        self._params.append(about["params"])
        self._others.append(about["others"])
        return FolderRows(source.rank, source.name, about["starts"], source.paths, path)

    def _kept_rows(self, folder: Path, name: str, make: Callable[[Path], Any]) -> tuple[Path, Any]:
        """Return the Parquet of a folder: beside it, among the user's caches, or for this once."""
        mark = _mark(str(folder.resolve()))[:16]
        for place in (folder / FOLDER, cache_folder() / mark, self._scratch):
            with suppress(OSError):
                place.mkdir(parents=True, exist_ok=True)
                return kept(place, name, make)
        raise store.StoreError(f"{folder}: no folder, not even a temporary one, takes its cache")


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

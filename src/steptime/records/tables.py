"""Folders of records as Parquet files: what `Data` and `query` ask.

Rows of a large folder are cached in `.cache` beside its lines, and its results too; those of small
folders are written for this once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, NamedTuple
from weakref import finalize

from steptime.core.files import cache_folder, stamp_of
from steptime.core.scratch import make_temporary_folder
from steptime.records import store
from steptime.records.column_names import merge_kinds
from steptime.records.folder_source import FolderSource, Source, open_source
from steptime.records.parquet_cache import FrameFacts, find_or_make, hash_text
from steptime.records.row import Kinds

if TYPE_CHECKING:
    import polars as pl

CACHE_FOLDER = ".cache"
MIN_CACHED_BYTES = 1 << 20  # a smaller folder is read as it stands


class FolderRows(NamedTuple):
    """The rows of a folder.

    Attributes:
        rank: the number of the folder.
        name: its name.
        starts: where each of its files begins, and the end of the last one (`FolderLines`); of
            records in memory 0 and their number.
        paths: its files.
        parquet: the cache of its rows; None for a small folder.
    """

    rank: int
    name: str
    starts: Sequence[int]
    paths: Sequence[Path] = ()
    parquet: Path | None = None


class Tables:
    """The rows of folders of records; files that are not caches end with this object.

    A row has the columns of `frame_columns.SCHEMA`: `place` is that of the record in its folder,
    `seq` the place if all folders stood one behind the other.

    Attributes:
        model: only records of models that begin so are read; "" for all.
        setting_kinds: the types of the values of each hyperparameter.
        quantity_kinds: the types of the values of each quantity that not every record has.
    """

    def __init__(
        self, folders: Sequence[Source], warn: Callable[[str], None], model: str = ""
    ) -> None:
        self._scratch = make_temporary_folder()
        finalize(self, rmtree, self._scratch, ignore_errors=True)
        self._warn = warn
        self.model = model
        self._facts: list[FrameFacts] = []
        self._small_parquet = self._scratch / "small.parquet"
        self._folder_rows = self._read_folders(folders)
        self.setting_kinds: Kinds = merge_kinds([facts.setting_kinds for facts in self._facts])
        self.quantity_kinds: Kinds = merge_kinds([facts.quantity_kinds for facts in self._facts])

    def files_of(self, folder: int) -> tuple[Sequence[Path], Sequence[int]]:
        """Return the files of a folder and where each begins, for `record_files.read_record`."""
        rows = self._folder_rows[folder]
        return rows.paths, rows.starts

    @property
    def parquets(self) -> list[Path]:
        """The Parquet files that hold all records."""
        caches = [rows.parquet for rows in self._folder_rows if rows.parquet is not None]
        return [self._small_parquet, *caches] if self._small_parquet.exists() else caches

    def cache_results(
        self, make: Callable[[], pl.DataFrame], makers: Sequence[str]
    ) -> pl.DataFrame | pl.LazyFrame:
        """Return the results that `make` makes; those of one large folder are cached.

        Args:
            make: makes the frame.
            makers: modules of this package that decide it.
        """
        import polars as pl

        is_single_folder = len(self._folder_rows) == 1
        rows_cache = self._folder_rows[0].parquet if is_single_folder else None
        if rows_cache is None or self.model:  # results of several folders, or of a part of one
            return make()

        def write(path: Path) -> FrameFacts:
            make().write_parquet(path)
            return FrameFacts()

        # The code that makes results is part of the name: other code makes them anew.
        name_hash = hash_text(self._folder_rows[0].name + _hash_code(makers))[:8]
        cache_name = f"results-{name_hash}-{rows_cache.stem.removeprefix('rows-')}"
        try:
            path, _ = find_or_make(rows_cache.parent, cache_name, write)
        except OSError:  # of a folder that is full, or may only be read
            return make()
        return pl.scan_parquet(path)

    def scan(self, seq_range: tuple[int, int] | None = None) -> pl.LazyFrame:
        """Return records as a lazy frame (`frame_columns.SCHEMA`), in their order.

        Args:
            seq_range: the lowest and the highest `seq` of those that are read; None reads all.
        """
        import polars as pl

        # A record's `seq` is its offset as if all files of all folders were concatenated.
        parts = []
        folder_start = 0
        for rows in self._folder_rows:
            if rows.parquet is not None:
                parts.append(_scan_large_folder(rows, rows.parquet, folder_start, seq_range))
            folder_start += rows.starts[-1]  # `starts` of its files, and the end of the last one
        if self._small_parquet.exists():
            small = pl.scan_parquet(self._small_parquet)
            parts.append(
                small if seq_range is None else small.filter(pl.col("seq").is_between(*seq_range))
            )
        records = pl.concat(parts)
        if self.model:
            records = records.filter(pl.col("model").str.starts_with(self.model))
        is_in_order = len(parts) == 1  # otherwise small folders may belong between large ones
        return records if is_in_order else records.sort("seq", maintain_order=True)

    def _read_folders(self, folders: Sequence[Source]) -> list[FolderRows]:
        """Return the rows of folders, or of records in memory, in their order.

        Large folders are read first: the places of the small ones behind them follow.

        Raises:
            InputError: as `store.load`.
        """
        # A large folder has a cached Parquet file of its own; all small ones share one, not cached.
        sources = [open_source(rank, *folder) for rank, folder in enumerate(folders)]
        rows_by_rank = {
            source.rank: self._cache_large_folder(source)
            for source in sources
            if source.size_bytes >= MIN_CACHED_BYTES
        }
        small_sources = [source for source in sources if source.rank not in rows_by_rank]
        if small_sources:
            self._write_small_folders(sources, rows_by_rank)
        for source in small_sources:
            rows = FolderRows(source.rank, source.name, source.starts, source.paths)
            rows_by_rank[source.rank] = rows
        for source in sources:
            for warning in source.warnings:
                self._warn(warning)
        return [rows_by_rank[source.rank] for source in sources]

    def _write_small_folders(
        self, sources: Sequence[FolderSource], large_by_rank: Mapping[int, FolderRows]
    ) -> None:
        """Write the rows of all folders that have no cache as one Parquet file."""
        from steptime.records.frames.frame_builder import FolderLine, FrameBuilder, write_parquet

        def lines() -> Iterator[FolderLine]:
            folder_start = 0
            for source in sources:
                if source.rank in large_by_rank:  # only its length counts, for `seq` behind it
                    folder_start += large_by_rank[source.rank].starts[-1]
                    continue
                for place, record_id, line in source.lines():
                    seq = folder_start + place
                    yield FolderLine(source.name, source.rank, place, record_id, seq, line)
                folder_start += source.starts[-1]  # complete after its lines are read

        builder = FrameBuilder()
        try:
            write_parquet(builder.frames(lines()), self._small_parquet, self._scratch)
        except OSError as error:
            raise store.StoreError(f"{self._scratch}: cannot write: {error.strerror}") from error
        facts = FrameFacts(setting_kinds=builder.params, quantity_kinds=builder.others)
        self._facts.append(facts)

    def _cache_large_folder(self, source: FolderSource) -> FolderRows:
        """Return the rows of a large folder, whose Parquet file is made if there is none."""
        if source.folder is None:
            raise AssertionError("records in memory have no cache")
        stamps = {str(path.relative_to(source.folder)): stamp_of(path) for path in source.paths}
        cache_name = f"rows-{hash_text(json.dumps(stamps))[:16]}"
        make = partial(self._write_large_folder, source)
        parquet, facts = self._find_cache(source.folder, cache_name, make)
        source.warnings = facts.warnings  # as they were when the cache was made
        self._facts.append(facts)
        return FolderRows(source.rank, source.name, facts.starts, source.paths, parquet)

    def _write_large_folder(self, source: FolderSource, path: Path) -> FrameFacts:
        """Write the rows of a large folder as a Parquet file and return its facts."""
        from steptime.records.frames.frame_builder import FolderLine, FrameBuilder, write_parquet

        builder = FrameBuilder()
        # The cache knows no other folders: `_scan_large_folder` sets name, rank and `seq`.
        lines = (
            FolderLine(
                folder="", folder_rank=0, place=place, record_id=record_id, seq=place, line=line
            )
            for place, record_id, line in source.lines()
        )
        write_parquet(builder.frames(lines), path, self._scratch)
        return FrameFacts(
            setting_kinds=builder.params,
            quantity_kinds=builder.others,
            warnings=source.warnings,
            starts=list(source.starts),
        )

    def _find_cache(
        self, folder: Path, name: str, make: Callable[[Path], FrameFacts]
    ) -> tuple[Path, FrameFacts]:
        """Return the cache of a folder: beside it, among the user's caches, or for this once."""
        folder_hash = hash_text(str(folder.resolve()))[:16]
        # The first folder that can be written to.
        for caches in (folder / CACHE_FOLDER, cache_folder() / folder_hash, self._scratch):
            with suppress(OSError):
                caches.mkdir(parents=True, exist_ok=True)
                return find_or_make(caches, name, make)
        raise store.StoreError(f"{folder}: no folder, not even a temporary one, takes its cache")


def _scan_large_folder(
    rows: FolderRows, parquet: Path, folder_start: int, seq_range: tuple[int, int] | None
) -> pl.LazyFrame:
    """Return the records of a cached folder whose first `seq` is `folder_start`; see `scan`."""
    import polars as pl

    # `place` is an offset in the folder, `seq` one over all folders. The range is asked of `place`,
    # which the file holds: by its statistics Polars skips row groups.
    records = pl.scan_parquet(parquet)
    if seq_range is not None:
        low_seq, high_seq = seq_range
        is_read = pl.col("place").is_between(low_seq - folder_start, high_seq - folder_start)
        records = records.filter(is_read)
    return records.with_columns(
        pl.lit(rows.name).alias("folder"),
        pl.lit(rows.rank, pl.Int64()).alias("folder_rank"),
        (pl.col("place") + folder_start).alias("seq"),
    )


def _hash_code(modules: Sequence[str]) -> str:
    """Return a hash of the code of modules of this package."""
    paths = [Path(__file__).parent / f"{name}.py" for name in modules]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def count_threads() -> int:
    """Return the number of threads that may work at once: one on each CPU that is allowed."""
    allowed: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1

"""The files of a folder of records as DuckDB reads them: large ones once, into a Parquet each.

The JSON lines are the truth. What lies in `.cache` beside them can be thrown away at any time: it
is known by size, times and content of its file, by its own size, and by the version that made it,
and whatever does not fit is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any

from steptime import __version__, store
from steptime.analysis import flat
from steptime.analysis.row import ESTIMATE
from steptime.core.files import own_caches, replacing
from steptime.core.progress import tell
from steptime.core.record import Record

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Warn = Callable[[str], None]
FORMAT = (
    f"{__version__} {store.MARKED} {hashlib.sha256(flat.select([''], 0).encode()).hexdigest()[:16]}"
)
FOLDER = ".cache"
LEAST_BYTES = 1 << 20  # a smaller file is read as it stands,
MOST_BYTES = 64 << 20  # unless all such of a folder are more than this
LONGEST_BYTES = 16 << 20  # of a line; a longer one is read by way of Python
RANK = 1 << 40  # lines of a file
BLOCK = 1 << 22
AT_ONCE = 100_000  # lines whose samples are in memory
MEMORY = "1200MB"
IN_USE_S = 600.0  # that a command may go on reading what another has replaced


@dataclass(frozen=True)
class Rows:
    """Flat rows for SQL: the statement that gives them, the kinds of names in their maps, files.

    `state` has a hash of each file, `marks` by rank where lines of a large one begin.
    """

    sql: str
    params: flat.Kinds
    others: flat.Kinds
    files: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    marks: Mapping[int, Sequence[int]] = field(default_factory=dict)


def connected(scratch: Path) -> DuckDBPyConnection:
    """Return a database that keeps to a part of the memory; what it lacks goes to `scratch`."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET temp_directory = ?", [str(scratch)])
    connection.execute("SET memory_limit = ?", [MEMORY])
    flat.add_functions(connection)
    return connection


def rows_of(
    connection: DuckDBPyConnection, table: str, folder: Path, scratch: Path, warn: Warn
) -> Rows:
    """Return the rows of a folder, in the order of its files; tables are named after `table`.

    `warn` gets a line for each torn last line. Raises `InputError` as `store.load` does.
    """
    paths = files_of(folder)
    small = {path for path in paths if path.stat().st_size < LEAST_BYTES}
    if sum(path.stat().st_size for path in small) > MOST_BYTES:
        small = set()
    parts: list[Rows] = []
    for is_small, group in groupby(enumerate(paths), lambda one: one[1] in small):
        found = list(group)
        if is_small:
            name, files = f"{table}_{len(parts)}", [path for _, path in found]
            parts.append(_table(connection, name, files, found[0][0], scratch, warn))
        else:
            held = [_held(path, scratch, warn) for _, path in found]
            parts.append(_parquets(held, [rank for rank, _ in found]))
    return Rows(
        " UNION ALL BY NAME ".join(part.sql for part in parts),
        flat.merged([part.params for part in parts]),
        flat.merged([part.others for part in parts]),
        tuple(file for part in parts for file in part.files),
        tuple(one for part in parts for one in part.state),
        {rank: marks for part in parts for rank, marks in part.marks.items()},
    )


def files_of(folder: Path) -> list[Path]:
    """Return the files of a folder that hold records, in order."""
    return [path for path in store.paths(folder) if path.stat().st_size]


def rows_of_records(
    connection: DuckDBPyConnection, table: str, records: Iterable[Record], scratch: Path
) -> Rows:
    """Return the rows of records that are at hand."""
    path = scratch / f"{table}.jsonl"
    path.write_text("".join(f"{store.line_of(record)}\n" for record in records), encoding="utf-8")
    return _table(connection, table, [path], 0, scratch, lambda _: None)


def _table(
    connection: DuckDBPyConnection,
    name: str,
    paths: Sequence[Path],
    rank: int,
    scratch: Path,
    warn: Warn,
) -> Rows:
    def fill(select: str) -> None:
        connection.execute(f"CREATE OR REPLACE TABLE {name} AS {select}")

    rows = f"FROM {name}"
    lines = [_Lines(path, scratch) for path in paths]
    _fill(connection, fill, rows, lines, scratch)
    for one in lines:
        if one.torn:
            store.warn_of_torn(warn, one.path, *one.torn)
    sql = f"SELECT *, {rank * RANK} + line AS place, estimated(samples, run) AS estimate {rows}"
    kinds = (flat.kinds(connection, rows, one) for one in ("params", "others"))
    return Rows(sql, next(kinds), next(kinds), state=tuple(one.hash for one in lines))


def _parquets(held: Sequence[tuple[Path, dict[str, Any]]], ranks: Sequence[int]) -> Rows:
    files = tuple(str(path) for path, _ in held)
    told = ", ".join(map(flat.text, files))
    rank = f"[{', '.join(map(str, ranks))}][list_position([{told}], filename)]"
    return Rows(
        f"SELECT *, {rank} * {RANK} + line AS place FROM read_parquet([{told}])",
        flat.merged([known["params"] for _, known in held]),
        flat.merged([known["others"] for _, known in held]),
        files,
        tuple(known["hash"] for _, known in held),
        {rank: known["marks"] for rank, (_, known) in zip(ranks, held, strict=True)},
    )


class _Lines:
    """The whole lines of a file as it is now: where DuckDB can read them, and how many.

    `torn` is the number and the size of a last line that was skipped.
    """

    def __init__(self, path: Path, scratch: Path) -> None:
        import numpy as np

        self.path, self.stamp, self.scratch = path, stamp_of(path), scratch
        self.size, self.number = self.stamp[0], 0
        self.torn: list[int] | None = None
        self.marks = [0]
        digest, last, start = hashlib.blake2b(digest_size=16), b"", 0
        with path.open("rb") as file:
            for block in _blocks(file, self.size):
                digest.update(block)
                ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + start + 1
                self.marks += ends[-(self.number + 1) % store.MARKED :: store.MARKED].tolist()
                self.number += len(ends)
                start, last = start + len(block), block
        self.hash = digest.hexdigest()
        self.source = path if last.endswith(b"\n") else self.copied()

    def copied(self) -> Path:
        """Copy the lines to where nobody appends to them; a last one may lack only its end."""
        end = _end_of_lines(self.path, self.size)
        copy = self.scratch / f"{self.hash}-{self.path.name}"
        with self.path.open("rb") as file, copy.open("wb") as part:
            for block in _blocks(file, end):
                part.write(block)
            tail = file.read(self.size - end)
            if tail and store.is_record(tail):
                part.write(tail + b"\n")
                self.number += 1
            elif tail:
                self.torn = [self.number + 1, len(tail)]
        return copy


def _blocks(file: Any, size: int) -> Iterator[bytes]:
    while size and (block := file.read(min(BLOCK, size))):
        size -= len(block)
        yield block


def _end_of_lines(path: Path, size: int) -> int:
    with path.open("rb") as file:
        start = size
        while start:
            start, stop = max(0, start - BLOCK), start
            file.seek(start)
            if (found := file.read(stop - start).rfind(b"\n")) >= 0:
                return start + found + 1
    return 0


def stamp_of(path: Path) -> list[int]:
    """Return what changes with every write to a file: size, times, and which file it is."""
    told = path.stat()
    return [told.st_size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino]


def _fill(
    connection: DuckDBPyConnection,
    fill: Callable[[str], None],
    rows: str,
    lines: Sequence[_Lines],
    scratch: Path,
) -> None:
    """Fill a table with files; lines that DuckDB does not read as records go through Python."""
    import duckdb

    def is_filled() -> bool:
        try:
            fill(flat.select([str(one.source) for one in lines], LONGEST_BYTES))
        except duckdb.Error:
            return False
        told = connection.execute(f"SELECT count(*), bool_and(is_plain) {rows}").fetchall()
        number = sum(one.number for one in lines)
        return bool(told[0] in ((number, True), (0, None)))

    if not is_filled():
        for one in lines:
            if one.source == one.path and stamp_of(one.path) != one.stamp:  # a writer goes on
                one.source = one.copied()
        if not is_filled():
            plain = scratch / "plain.jsonl"
            longest = LONGEST_BYTES
            with plain.open("wb") as file:
                for one in lines:
                    for record in store.load_file(one.path, lambda _: None):
                        line = f"{store.line_of(record)}\n".encode()
                        longest = max(longest, len(line))
                        file.write(line)
            fill(flat.select([str(plain)], longest))


def _held(path: Path, scratch: Path, warn: Warn) -> tuple[Path, dict[str, Any]]:
    """Return the Parquet of a file with what is known of it, made where there is none that fits."""
    for folder in _places(path, scratch):
        parquet, known = folder / f"{path.name}.parquet", folder / f"{path.name}.json"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            found = _fitting(path, parquet, known)
            if not found:
                with _alone(folder):
                    found = _fitting(path, parquet, known) or _made(path, parquet, known)
            if found["torn"]:
                store.warn_of_torn(warn, path, *found["torn"])
            return parquet, found
    raise store.StoreError(f"{path}: no folder, not even a temporary one, takes its cache")


def _places(path: Path, scratch: Path) -> list[Path]:
    """Return where a cache may lie: beside its file, among the user's caches, for this once."""
    mark = hashlib.sha256(str(path.resolve().parent).encode()).hexdigest()[:16]
    return [path.parent / FOLDER, own_caches() / mark, scratch / mark]


def kept(folder: Path, scratch: Path, told: str, make: Callable[[Path], None]) -> Path:
    """Return a Parquet among caches that is known by what `told` says, made where absent.

    Others of its kind go, but those that a command may still read. Where `folder` takes no file, it
    lies in `scratch`.
    """
    name = f"results-{hashlib.sha256(f'{FORMAT} {told}'.encode()).hexdigest()[:16]}"
    for place in (folder, scratch):
        parquet, known = place / f"{name}.parquet", place / f"{name}.json"
        with suppress(OSError):
            if _is_kept(parquet, known):
                return parquet
            with _alone(place):
                if _is_kept(parquet, known):
                    return parquet
                with replacing(parquet) as to:
                    make(to)
                _write(known, {"parquet": stamp_of(parquet)})
                for other in {*place.glob("results-*")} - {parquet, known}:
                    if other.stat().st_mtime < parquet.stat().st_mtime - IN_USE_S:
                        other.unlink()
            return parquet
    raise store.StoreError(f"{folder}: no folder, not even a temporary one, takes its cache")


def _is_kept(parquet: Path, known: Path) -> bool:
    with suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads(known.read_text(encoding="utf-8"))
        return bool(told["parquet"] == stamp_of(parquet))
    return False


def _fitting(path: Path, parquet: Path, known: Path) -> dict[str, Any] | None:
    """Return what is known of a Parquet that is of this file as it is now."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        told: dict[str, Any] = json.loads(known.read_text(encoding="utf-8"))
        if told["format"] != FORMAT or told["parquet"] != stamp_of(parquet):
            return None
        now = stamp_of(path)
        if told["stamp"] == now:
            return told
        if told["stamp"][0] == now[0] and told["hash"] == _hash(path):  # it was copied or touched
            told["stamp"] = now
            with suppress(OSError):
                _write(known, told)
            return told
    return None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _write(known: Path, told: dict[str, Any]) -> None:
    with replacing(known) as part:
        part.write_text(json.dumps(told), encoding="utf-8")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait for other processes that fill this cache; where there are no locks, go ahead."""
    with (folder / "lock").open("w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _made(path: Path, parquet: Path, known: Path) -> dict[str, Any]:
    with TemporaryDirectory(dir=parquet.parent, prefix="making-") as name, replacing(parquet) as to:
        scratch, rows = Path(name), f"FROM read_parquet({flat.text(str(to))})"
        with connected(scratch) as connection:
            lines = _Lines(path, scratch)

            def fill(select: str) -> None:
                made = f"CREATE OR REPLACE TABLE lines AS {select}"
                watched(connection, made, path.name, lines.size)

            _fill(connection, fill, "FROM lines", [lines], scratch)
            _add_estimates(connection)
            target = f"TO {flat.text(str(to))} (FORMAT parquet, COMPRESSION zstd)"
            connection.execute(f"COPY (FROM lines POSITIONAL JOIN estimates) {target}")
            kinds = {n: flat.kinds(connection, rows, n) for n in ("params", "others")}
    about = {"format": FORMAT, "stamp": lines.stamp, "hash": lines.hash, "torn": lines.torn}
    told = {**about, "marks": lines.marks, "parquet": stamp_of(parquet), **kinds}
    _write(known, told)
    return told


def _add_estimates(connection: DuckDBPyConnection) -> None:
    """Make the table `estimates`: of each of the table `lines`, what `estimated` says of it."""
    from steptime.analysis.statistics import of_arrays

    connection.execute(f"CREATE TABLE estimates (estimate {flat.ESTIMATED})")
    ((number,),) = connection.execute("SELECT count(*) FROM lines").fetchall()
    told = ", ".join(f"{name} := nullif({name}, 'nan')" for name in ESTIMATE)
    for start in range(0, number, AT_ONCE):
        held = connection.execute(
            "SELECT samples, run FROM lines WHERE line > ? AND line <= ? ORDER BY line",
            [start, start + AT_ONCE],
        ).fetchnumpy()
        connection.register("found", of_arrays(held["samples"], held["run"]))
        connection.execute(
            f"INSERT INTO estimates SELECT if(value = 'nan', NULL, struct_pack({told})) FROM found"
        )
        connection.unregister("found")


def watched(connection: DuckDBPyConnection, sql: str, what: str, size: int) -> None:
    """Execute a statement, and tell the listener how far it is."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            connection.execute(sql)
        except BaseException as error:  # noqa: BLE001  # raised again below, in the caller's thread
            failed.append(error)

    connection.execute("SET enable_progress_bar = true")
    connection.execute("SET enable_progress_bar_print = false")
    thread = Thread(target=run)
    thread.start()
    while thread.is_alive():
        thread.join(0.5)
        done = max(0.0, connection.query_progress()) / 100
        tell(f"{what}, MB into the cache", round(done * size / 1e6), round(size / 1e6))
    if failed:
        raise failed[0]

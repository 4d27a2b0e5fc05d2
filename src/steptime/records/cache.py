"""The files of a folder of records as DuckDB reads them: large ones once, into a Parquet each.

The JSON lines are the truth. What lies in `.cache` beside them can be thrown away at any time: it
is known by size, times and content of its file, by its own size, and by the version that made it,
and whatever does not fit is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from steptime import __version__
from steptime.core.errors import InputError
from steptime.core.files import own_caches, replacing
from steptime.core.progress import tell
from steptime.records import flat, store
from steptime.records.lines import FileLines, FilePiece, checked, stamp_of
from steptime.records.record import Record
from steptime.records.row import ESTIMATE

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Warn = Callable[[str], None]
Part = tuple[Path, dict[str, flat.Kinds], store.Faults]
FORMAT = (
    f"{__version__} {store.MARKED} {hashlib.sha256(flat.select('', 0).encode()).hexdigest()[:16]}"
)
FOLDER, MAKING = ".cache", "making-"
LEAST_BYTES = 1 << 20  # a smaller file is read as it stands,
MOST_BYTES = 64 << 20  # unless all such of a folder are more than this
BUFFER_BYTES = 16 << 20  # of lines that the database reads at once
RANK = 1 << 40  # lines of a file
AT_ONCE = 100_000  # lines whose samples are in memory
MEMORY = "25%"  # of the machine's, for a database
IN_USE_S = 600.0  # that a command may go on reading what another has replaced


@dataclass(frozen=True)
class FlatRows:
    """Flat rows for SQL: the statement that gives them, their number, kinds of names, files.

    `state` has a hash of each file, `marks` by rank where lines of a large one begin.
    """

    sql: str
    number: int
    params: flat.Kinds
    others: flat.Kinds
    files: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    marks: Mapping[int, Sequence[int]] = field(default_factory=dict)


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
    flat.add_functions(connection)
    return connection


def rows_of(
    connection: DuckDBPyConnection, table: str, folder: Path, scratch: Path, warn: Warn
) -> FlatRows:
    """Return the rows of a folder, in the order of its files; tables are named after `table`.

    `warn` gets a line for each torn last line. Raises `InputError` as `store.load` does.
    """
    said: list[str] = []
    paths = files_of(folder)
    small = {path for path in paths if path.stat().st_size < LEAST_BYTES}
    if sum(path.stat().st_size for path in small) > MOST_BYTES:
        small = set()
    parts: list[FlatRows] = []
    for is_small, group in groupby(enumerate(paths), lambda one: one[1] in small):
        found = list(group)
        if is_small:
            name, files = f"{table}_{len(parts)}", [path for _, path in found]
            parts.append(_table(connection, name, files, found[0][0], scratch, said.append))
        else:
            held = _held([path for _, path in found], scratch, said.append)
            parts.append(_parquets(*held, [rank for rank, _ in found]))
    number = sum(part.number for part in parts)
    if paths and not number:
        raise InputError("; ".join([f"{folder}: {store.NONE}", *said[:1]]))
    for line in said:
        warn(line)
    return FlatRows(
        " UNION ALL BY NAME ".join(part.sql for part in parts),
        number,
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
) -> FlatRows:
    """Return the rows of records that are at hand."""
    path = scratch / f"{table}.jsonl"
    path.write_text("".join(f"{store.line_of(record)}\n" for record in records), encoding="utf-8")
    return _table(connection, table, [path], 0, scratch, _refuse)


def _refuse(fault: str) -> None:
    raise InputError(fault)


def _table(
    connection: DuckDBPyConnection,
    name: str,
    paths: Sequence[Path],
    rank: int,
    scratch: Path,
    warn: Warn,
) -> FlatRows:
    rows, lines = f"FROM {name}", [FileLines(path) for path in paths]
    faults = [store.Faults(path) for path in paths]
    pieces = [(piece, of) for one, of in zip(lines, faults, strict=True) for piece in one.pieces()]
    source = scratch / f"{name}.checked"
    _read(connection, name, source, checked(pieces, source))
    source.unlink()
    for one, of in zip(lines, faults, strict=True):
        if one.torn:
            store.warn_of_torn(warn, one.path, *one.torn)
        of.tell(warn)
    number = sum(one.number for one in lines) - sum(of.number for of in faults)
    sql = f"SELECT *, {rank * RANK} + line AS place, estimated(samples, run) AS estimate {rows}"
    kinds = (flat.kinds(connection, rows, one) for one in ("params", "others"))
    hashes = tuple(one.hash for one in lines)
    return FlatRows(sql, number, next(kinds), next(kinds), state=hashes)


def _parquets(folder: Path, held: Sequence[dict[str, Any]], ranks: Sequence[int]) -> FlatRows:
    of = zip(ranks, held, strict=True)
    found = [(str(folder / name), rank) for rank, known in of for name in known["parquets"]]
    files = tuple(file for file, _ in found)
    place = f"[{', '.join(str(rank * RANK) for _, rank in found)}][file_index::BIGINT + 1] + line"
    return FlatRows(
        f"SELECT *, {place} AS place FROM read_parquet([{', '.join(map(flat.text, files))}])",
        sum(known["number"] for known in held),
        flat.merged([known["params"] for known in held]),
        flat.merged([known["others"] for known in held]),
        files,
        tuple(known["hash"] for known in held),
        {rank: known["marks"] for rank, known in zip(ranks, held, strict=True)},
    )


def _read(connection: DuckDBPyConnection, table: str, source: Path, longest: int) -> None:
    """Fill a table with a file of checked lines."""
    select = flat.select(str(source), max(longest + 1, BUFFER_BYTES))
    connection.execute(f"CREATE TABLE {table} AS {select}")


def _held(
    paths: Sequence[Path], scratch: Path, warn: Warn
) -> tuple[Path, Sequence[dict[str, Any]]]:
    """Return where the Parquets of files are, and what is known of them, made where none fit."""
    for folder in _places(paths[0], scratch):
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            known = [told for path in paths if (told := _fitting(path, folder))]
            if len(known) < len(paths):
                with _alone(folder):
                    known = _made(paths, folder)
            for path, told in zip(paths, known, strict=True):
                if told["torn"]:
                    store.warn_of_torn(warn, path, *told["torn"])
                store.Faults(path, *told["faults"]).tell(warn)
            return folder, known
    raise store.StoreError(f"{paths[0]}: no folder, not even a temporary one, takes its cache")


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
        return bool(_told(known)["parquet"] == stamp_of(parquet))
    return False


def _fitting(path: Path, folder: Path) -> dict[str, Any] | None:
    """Return what is known of Parquets that are of this file as it is now."""
    known = folder / f"{path.name}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        told = _told(known)
        stamps = {name: stamp_of(folder / name) for name in told["parquets"]}
        if told["format"] != FORMAT or not stamps or told["parquets"] != stamps:
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
    text = json.dumps(told)
    with replacing(known) as part:
        part.write_text(json.dumps({"of": _mark(text), "told": text}), encoding="utf-8")


def _told(known: Path) -> dict[str, Any]:
    """Return what `_write` wrote; raises `ValueError` for what others did."""
    table = json.loads(known.read_text(encoding="utf-8"))
    if table["of"] != _mark(str(table["told"])):
        raise ValueError
    return dict(json.loads(table["told"]))


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait for other processes that fill this cache; where there are no locks, go ahead."""
    with (folder / "lock").open("w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
            for left in folder.glob(f"{MAKING}*"):  # by a command that was killed
                rmtree(left, ignore_errors=True)
        yield


def _made(paths: Sequence[Path], folder: Path) -> list[dict[str, Any]]:
    """Return what is known of the Parquets of files, those made that do not fit."""
    pool = ThreadPoolExecutor(threads())
    with TemporaryDirectory(dir=folder, prefix=MAKING) as name:
        scratch = Path(name)

        def begun(path: Path) -> Callable[[], dict[str, Any]]:
            lines = FileLines(path)
            parts = [(pool.submit(_of_piece, one, scratch), one) for one in lines.pieces()]
            return lambda: _of_file(lines, parts, folder)

        try:
            found = [_fitting(path, folder) or begun(path) for path in paths]
            return [one() if callable(one) else one for one in found]
        finally:
            pool.shutdown(cancel_futures=True)


def _of_file(
    lines: FileLines, pieces: Sequence[tuple[Future[Part], FilePiece]], folder: Path
) -> dict[str, Any]:
    """Return what is known of the Parquets of a file, once all of its pieces are made."""
    for future, piece in pieces:
        while not future.done():
            wait([future], 0.5)
            tell(f"{lines.path.name}, MB into the cache", piece.start // 10**6, lines.end // 10**6)
    made = [future.result() for future, _ in pieces]
    faults = store.Faults(lines.path)
    for part in made:
        faults.merge(part[2])
    parquets: dict[str, Any] = {}
    for number, (path, *_) in enumerate(made):
        name = f"{lines.path.name}{f'.{number}' if number else ''}.parquet"
        parquets[name] = stamp_of(path.replace(folder / name))
    about: dict[str, Any] = {
        "format": FORMAT,
        "stamp": lines.stamp,
        "hash": lines.hash,
        "torn": lines.torn,
    }
    about |= {"number": lines.number - faults.number, "faults": [faults.number, faults.first]}
    kinds = {n: flat.merged([of[n] for _, of, _ in made]) for n in ("params", "others")}
    told = {**about, "marks": lines.marks, "parquets": parquets, **kinds}
    _write(folder / f"{lines.path.name}.json", told)
    return told


def _of_piece(piece: FilePiece, scratch: Path) -> Part:
    """Return what becomes of the lines of a piece, and what is wrong with those that are none."""
    source, faults = scratch / f"{piece.before}-{piece.path.name}", store.Faults(piece.path)
    longest = checked([(piece, faults)], source)
    with connected(scratch) as connection:
        connection.execute("SET threads = 1")  # other pieces have the other cores
        _read(connection, "lines", source, longest)
        source.unlink()
        return *_written(connection, piece.before, source.with_suffix(".parquet")), faults


def _written(
    connection: DuckDBPyConnection, before: int, to: Path
) -> tuple[Path, dict[str, flat.Kinds]]:
    """Write the table `lines`, which others are `before`; return where, and its kinds."""
    _add_estimates(connection)
    connection.execute(
        f"COPY (SELECT * REPLACE (line + {before} AS line) FROM lines POSITIONAL JOIN estimates) "
        f"TO {flat.text(str(to))} (FORMAT parquet, COMPRESSION zstd)"
    )
    return to, {name: flat.kinds(connection, "FROM lines", name) for name in ("params", "others")}


def _add_estimates(connection: DuckDBPyConnection) -> None:
    """Make the table `estimates`: of each of the table `lines`, what `estimated` says of it."""
    from steptime.records.statistics import of_arrays

    connection.execute(f"CREATE TABLE estimates (estimate {flat.ESTIMATED})")
    ((number,),) = connection.execute("SELECT coalesce(max(line), 0) FROM lines").fetchall()
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

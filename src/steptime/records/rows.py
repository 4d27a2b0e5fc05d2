"""Records as rows of the table `flat`: what each says, and the statistics of its samples.

`row_of` says what a record holds; what follows from the samples of a step is added to many rows at
once. Keys carry their unit; None is unknown.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain, islice
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from steptime.core.progress import tell
from steptime.core.workload import plan_to_json
from steptime.records import flat
from steptime.records.reading import PARTS, Line, env_of, line_from, method_of, workload_of
from steptime.records.record import Quantity, Record, measured_stack
from steptime.records.record_files import FolderLines, StoredLine
from steptime.records.row import (
    AMOUNTS,
    ESTIMATE,
    OF_ENV,
    RATES,
    Kinds,
    Row,
    headline,
    no_collection,
    settings_of,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

AT_ONCE = 20_000  # records in memory
PART_BYTES = 128 << 20  # of records, or of rows, that go through one pipe
_encode = msgspec.json.Encoder().encode


class RowLines:
    """Rows as they are written, a line of JSON each.

    `params` and `others` are the kinds of hyperparameters and of quantities that are no columns of
    every table, `number` says how many rows there are, `longest` how long their longest line is,
    `lines` from which files they come.
    """

    def __init__(self) -> None:
        self.number = self.longest = 0
        self.lines: FolderLines | None = None
        self.params, self.others = dict[str, list[str]](), dict[str, list[str]]()

    def write(self, records: Iterable[StoredLine], out: BinaryIO, most: int, room: float) -> None:
        """Write the rows of records until `room` bytes are full, and none of more than `most`."""
        every, known, written = iter(records), b"", 0
        with no_collection():
            while written < room and (part := [*islice(every, AT_ONCE)]):
                held = [self._row(*one) for one in part]
                _add_statistics([row for row in held if "samples" in row])
                for row, (_, one) in zip(held, part, strict=True):
                    text = bytes(one.workload)
                    workload = workload_of(text)
                    if text != known:
                        _add_kinds(self.params, workload.settings.items())
                        known = text
                    method = _of_method(bytes(one.method), one.origin, workload.plan.data)
                    parts = (_items(row), _of_workload(text), method, _of_env(bytes(one.env)))
                    line = b"{%b,%b,%b,%b}\n" % parts
                    self.longest = max(self.longest, len(line))
                    if self.longest <= most:
                        written += out.write(line)
                self.number += len(held)

    def _row(self, place: int, line: Line) -> Row:
        """Return what a line says, without what follows from the samples of its step."""
        row: Row = {
            "place": place,
            "origin": line.origin,
            "status": line.status,
            "platform": line.platform,
            "scope": line.scope,
            "workload_key": line.key,
            "cause": line.cause or None,
            "note": line.note or None,
            "taken_at": line.taken_at or None,
        }
        others, sampled = dict[str, str | None](), Row()
        for name, one in line.quantities.items():
            value = headline(one) if one.samples else one.value
            if name in AMOUNTS:
                row[name] = None if value is None else float(value)
            else:
                others[name] = None if value is None else json.dumps(value)
                _add_kinds(self.others, [(name, value)])
            if one.samples and name != "step_s":
                sampled[name] = {"samples": one.samples, "run": one.runs}
        if others:
            row["others"] = others
        if sampled:
            row["sampled"] = sampled
        if step := line.quantities.get("step_s"):
            row["stated_low"], row["stated_high"] = step.low, step.high
            if step.samples:
                row |= _of_step(step, line.quantities.get("input_s", _NONE))
        return row


_NONE = Quantity()


def filled(
    database: DuckDBPyConnection,
    into: flat.Into,
    source: Sequence[Path] | Sequence[Record],
    said: list[str],
    scratch: Path,
) -> RowLines:
    """Return the rows of records in files, or at hand, which a statement reads as they are written.

    `into` makes it of the one that reads them; it runs again where a row is longer than the
    database expects. `said` gets lines as in `store.load`. The place of a record at hand is its
    number, of others where its line begins (`StoredLine`). The database holds all that comes
    through a pipe, so that of many it writes parts into `scratch`.
    """
    longest_bytes = flat.MOST_BYTES
    paths = [one for one in source if isinstance(one, Path)]
    is_large = sum(path.stat().st_size for path in paths) > PART_BYTES
    while True:
        said.clear()
        rows = RowLines()
        if len(paths) == len(source):
            rows.lines = FolderLines(paths, said.append)
            records = _stored(rows.lines)
        else:
            records = _at_hand([one for one in source if isinstance(one, Record)])
        parts = list[Path]()
        for first in records if is_large else ():
            parts.append(scratch / f"part-{len(parts)}.parquet")
            part = partial(flat.copy, to=parts[-1])
            _pipe(database, part, rows, chain([first], records), longest_bytes, PART_BYTES)
        if parts:
            files = ", ".join(flat.text(str(one)) for one in parts)
            database.execute(into(f"FROM read_parquet([{files}])"))
        else:
            _pipe(database, into, rows, records, longest_bytes)
        for one in parts:
            one.unlink()
        if rows.longest <= longest_bytes:
            return rows
        longest_bytes = rows.longest


def _pipe(
    database: DuckDBPyConnection,
    into: flat.Into,
    rows: RowLines,
    records: Iterable[StoredLine],
    most: int,
    room: float = inf,
) -> None:
    source, to = os.pipe()
    out = os.fdopen(to, "wb", 1 << 16)

    def read() -> None:
        try:
            database.execute(into(flat.read(f"/dev/fd/{source}", most)))
        finally:
            os.close(source)  # so that nobody goes on writing

    # `out` is closed whatever comes, so that the reader ends; why it ended before, `reading` says
    with ThreadPoolExecutor(1) as beside, suppress(BrokenPipeError), out:
        reading = beside.submit(read)
        rows.write(records, out, most, room)
    reading.result()


def _stored(lines: FolderLines) -> Iterator[StoredLine]:
    """Yield the records of files, and report the progress of large ones."""
    sizes = [path.stat().st_size for path in lines.paths]
    total_mb = sum(sizes) >> 20
    for number, stored in enumerate(lines):
        if total_mb and number % AT_ONCE == 0:
            tell("MB of records read", min(stored.place >> 20, total_mb), total_mb)
        yield stored


def _at_hand(records: Sequence[Record]) -> Iterator[StoredLine]:
    """Yield records that stand in no file; their place is their number."""
    for number, record in enumerate(records):
        yield StoredLine(number, line_from(record))


def _of_step(step: Quantity, waited: Quantity) -> Row:
    """Return what the samples of a step say at once."""
    run, disturbed = step.runs, step.columns.get("disturbed")
    runs, total = len({*run}), sum(step.samples)
    is_fed = total > 0 and len(waited.samples) == len(step.samples)
    return {
        "samples": step.samples,
        "run": run,
        "runs": runs,
        "step_s_interval": "between-runs" if runs > 1 else "within-run",
        "samples_n": len(step.samples),
        "samples_disturbed": sum(disturbed or ()),
        "marks_n": None if disturbed is None else len(disturbed),
        "infeed": sum(waited.samples) / total if is_fed else None,
    }


def _add_statistics(rows: Sequence[Row]) -> None:
    """Add what follows from the samples of steps: their spread, speeds, and the `estimate`."""
    from steptime.records.statistics import of_samples, spreads

    samples, runs = ([row[name] for row in rows] for name in ("samples", "run"))
    spread, estimates = spreads(samples), of_samples(samples, runs)
    told = [column.tolist() for column in spread.values()]
    ends = [column.tolist() for column in estimates.values()]
    for row, one, estimate in zip(
        rows, zip(*told, strict=True), zip(*ends, strict=True), strict=True
    ):
        row["spread"] = dict(zip(spread, one, strict=True))
        if estimate[0] == estimate[0]:
            row["estimate"] = dict(zip(ESTIMATE, estimate, strict=True))


def _add_kinds(kinds: Kinds, values: Iterable[tuple[str, Any]]) -> None:
    for name, value in values:
        if value is not None:
            kind = type(value).__name__
            if kind == "int" and not -(2**63) <= value < 2**63:
                kind = "float"
            if kind not in (known := kinds.setdefault(name, [])):
                known.append(kind)


@lru_cache(PARTS)
def _of_workload(text: bytes) -> bytes:
    """Return what a workload says, as items of JSON; so do the others."""
    workload = workload_of(text)
    return _items(
        {
            "model": workload.file or workload.label,
            "family": workload.family,
            "batch": workload.batch_per_replica,
            "examples": workload.global_batch,
            "replicas": workload.plan.data,
            **{name: getattr(workload, name) for name in ("dtype", "phase", "optimizer")},
            "plan": json.dumps(plan_to_json(workload.plan)),
            "settings": json.dumps(settings_of(workload)),
            "params": json.dumps(workload.settings),
        }
    )


@lru_cache(PARTS)
def _of_env(text: bytes) -> bytes:
    """Return what an environment says."""
    env = env_of(text)
    return _items(
        {
            "env": json.dumps(env, sort_keys=True),
            "round": _whole(env.get("round")),
            "date": _text(env.get("date")) or None,
            "duplicate_of": _text(env.get("duplicate_of")) or None,
            **{name: _text(env.get(name)) for name in OF_ENV},
        }
    )


@lru_cache(PARTS)
def _of_method(text: bytes, origin: str, replicas: int) -> bytes:
    """Return what a method and its options say; None is unknown, or of no meaning.

    A measurement names an option of its input only where it is not the default.
    """
    method = method_of(text)
    options = method.options
    kind, staging, loaders, prefetch = (
        _text(options.get(name)) for name in ("input", "staging", "loaders", "prefetch")
    )
    if origin == "measured":
        kind = kind or "device"
        staging = staging or "shared" if kind == "dataset" else None
        loaders = loaders or "0" if kind == "dataset" else None
        prefetch = prefetch or "2" if loaders not in (None, "0") else None
    devices = _whole(options.get("devices", replicas))
    is_unknown = "devices" in options and options["devices"] is None
    return _items(
        {
            "method": method.label,
            "method_version": method.version,
            "ran_by": measured_stack(method) if origin == "measured" else None,
            "method_options": json.dumps(options, sort_keys=True),
            "threads": _whole(options.get("threads")),
            **{name: _text(options.get(name)) or None for name in ("gpu", "strategy")},
            "devices": replicas if devices is None and not is_unknown else devices,
            "overlap": _text(options.get("overlap")) not in ("false", "0"),
            "input": kind,
            "staging": staging,
            "loaders": _whole(loaders),
            "prefetch": _whole(prefetch),
            **{name: _rate(options.get(name)) for name in RATES},
        }
    )


def _items(row: Row) -> bytes:
    return _encode(row)[1:-1]


def _text(value: Any) -> str | None:
    """Return a JSON value as text, one that is a text as it is; None stays None."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _float(value: Any) -> float | None:
    """Return a number, or that of a text; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _whole(value: Any) -> int | None:
    """Return a whole number as a table has them, None for what is none."""
    number = _float(value)
    return None if number is None or not abs(number) < 2**63 else round(number)


def _rate(value: Any) -> float | None:
    """Return a rate, None where it is none that a device may have."""
    number = _float(value)
    return number if number is not None and 1 <= number <= 1e30 else None

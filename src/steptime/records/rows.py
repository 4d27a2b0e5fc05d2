"""Records as rows of the table `flat`: what each says, and the statistics of its samples.

`row_of` says what a record holds; what follows from the samples of a step is added to many rows at
once. Keys carry their unit; None is unknown.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from steptime.core.progress import tell
from steptime.core.workload import Plan, plan_to_json
from steptime.records import store
from steptime.records.record import Quantity, Record, stack_of
from steptime.records.row import COLUMNS, ESTIMATE, UNKNOWN, Row, headline, settings_of

Kinds = dict[str, list[str]]  # by name, as first seen: the names of the types that its values have
encode = msgspec.json.Encoder().encode
Stored = tuple[int, Record, str]  # where a record stands, the record, the key of its workload

RANK = 1 << 40  # bytes of a file
AT_ONCE = 20_000  # records in memory
RATES = ("peak_flop_per_s", "memory_bytes_per_s")
OF_ENV = ("op_kind", "host", "batch_source", "source_file")
OF_SAMPLES = {  # of a step: its columns by the names of `statistics.spreads`
    **{f"step_s_{name}": name for name in ("min", "max", "mean", "p5", "p95")},
    "speed_per_s": "speed",
    "speed_uncertainty_per_s": "uncertainty",
    "speed_jitter_per_s": "jitter",
}


def write_rows(records: Iterable[Stored], to: Path) -> tuple[int, int, Kinds, Kinds]:
    """Write records to a file, a row of JSON each line.

    Return how many there are, the longest line, and the kinds of hyperparameters and of quantities
    that are no columns of every table.
    """
    number, longest, every = 0, 2, iter(records)
    params, others = dict[str, list[str]](), dict[str, list[str]]()
    with to.open("wb") as out, _no_collection():
        while part := [(row_of(*one), one[1]) for one in islice(every, AT_ONCE)]:
            _add_statistics([row for row, _ in part])
            for row, record in part:
                _add_kinds(params, record.workload.settings.items())
                _add_kinds(others, ((n, headline(record.quantities[n])) for n in row["others"]))
            lines = [encode(row) for row, _ in part]
            longest, number = max(longest, *map(len, lines)), number + len(lines)
            out.write(b"\n".join([*lines, b""]))
    return number, longest, params, others


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let nobody look for circles of objects, which rows are not: a quarter of their time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def stored_in(paths: Sequence[Path], warn: store.Warn) -> Iterator[Stored]:
    """Yield the records of files, where each begins, and its workload's key; as `store.load`.

    The place of a record is `RANK` times that of its file, and the byte at which its line begins.
    """
    sizes = [path.stat().st_size for path in paths]
    whole = sum(sizes) >> 20  # MiB; of less than one nobody waits
    for rank, path in enumerate(paths):
        for number, (at, record, key) in enumerate(store.lines_of(path, warn)):
            if whole and number % AT_ONCE == 0:
                tell("MB of records read", (sum(sizes[:rank]) + at) >> 20, whole)
            yield rank * RANK + at, record, key


def row_of(place: int, record: Record, workload_key: str) -> Row:
    """Return what a record says, without what follows from the samples of its step."""
    workload, env, options = record.workload, record.env, record.method.options
    step = record.quantities.get("step_s", Quantity())
    examples, replicas = workload.global_batch, workload.plan.data
    batch = None if env.get("batch_source") == UNKNOWN else workload.batch_per_replica
    run = _runs(step)
    disturbed = step.columns.get("disturbed")
    waited = record.quantities.get("input_s", Quantity()).samples
    has_samples, is_fed = len(step.samples) > 0, 0 < len(waited) == len(step.samples)
    numbers = {name: headline(one) for name, one in record.quantities.items()}
    return {
        "place": place,
        "origin": record.origin,
        "method": record.method.label,
        "method_version": record.method.version,
        "status": record.status,
        "platform": record.platform,
        "scope": record.scope,
        "cause": record.cause or None,
        "note": record.note or None,
        "taken_at": record.taken_at or None,
        "model": workload.file or workload.label,
        "family": workload.model,
        "batch": batch,
        "global_batch": None if batch is None else examples,
        "examples": examples,
        "replicas": replicas,
        "dtype": workload.dtype,
        "phase": workload.phase,
        "optimizer": workload.optimizer,
        "workload_key": workload_key,
        "stated_low": step.low,
        "stated_high": step.high,
        "step_s_interval": ("between-runs" if len({*run}) > 1 else "within-run") if run else None,
        "samples_n": len(run) if run else None,
        "samples_disturbed": sum(disturbed or ()) if run else None,
        "marks_n": None if disturbed is None else len(disturbed),
        "runs": len({*run}) if run else None,
        "speed_per_s": examples / step.value if batch and step.value and not has_samples else None,
        "infeed": sum(waited) / (sum(step.samples) or float("nan")) if is_fed else None,
        **_of_env(encode(env), record.taken_at[:10] or None),
        **_of_options(encode(options), record.origin, replicas),
        "stack": _text(stack_of(record)),
        "plan": _of_plan(workload.plan),
        "settings": {name: _json(value) for name, value in settings_of(workload).items()},
        "samples": step.samples or None,
        "run": run or None,
        "params": {name: _json(value) for name, value in workload.settings.items()},
        "numbers": {n: None if v is None else float(v) for n, v in numbers.items() if n in COLUMNS},
        "others": {n: _json(value) for n, value in numbers.items() if n not in COLUMNS},
        "sampled": {
            name: {"samples": one.samples, "run": _runs(one)}
            for name, one in record.quantities.items()
            if name != "step_s" and one.samples
        },
    }


def _add_statistics(rows: Sequence[Row]) -> None:
    """Add what follows from the samples of steps: their spread, speeds, and the `estimate`."""
    from steptime.records.statistics import of_samples, spreads

    rows = [row for row in rows if row["samples"]]
    samples, runs = ([row[name] for row in rows] for name in ("samples", "run"))
    columns = {name: column.tolist() for name, column in spreads(samples).items()}
    estimates = [column.tolist() for column in of_samples(samples, runs).values()]
    for at, row in enumerate(rows):
        for name, of in OF_SAMPLES.items():
            row[name] = columns[of][at] * (row["examples"] if name.startswith("speed") else 1)
        row["estimate"] = dict(zip(ESTIMATE, (column[at] for column in estimates), strict=True))
        if math.isnan(row["estimate"]["value"]):
            row["estimate"] = None


def _add_kinds(kinds: Kinds, values: Iterable[tuple[str, Any]]) -> None:
    for name, value in values:
        if value is not None:
            kind = type(value).__name__
            if kind == "int" and not -(2**63) <= value < 2**63:
                kind = "float"
            if kind not in (known := kinds.setdefault(name, [])):
                known.append(kind)


def _runs(one: Quantity) -> Sequence[int]:
    return one.columns.get("run") or (0,) * len(one.samples)


@lru_cache(4096)
def _of_env(text: bytes, day: str | None) -> Row:
    """Return what an environment says of a record of that day."""
    env = json.loads(text)
    return {
        "env": json.dumps(env, sort_keys=True),
        "round": _whole(env.get("round")),
        "date": _text(env.get("date")) or day,
        "duplicate_of": _text(env.get("duplicate_of")) or None,
        **{name: _text(env.get(name)) for name in OF_ENV},
    }


@lru_cache(4096)
def _of_options(text: bytes, origin: str, replicas: int) -> Row:
    """Return what the options of a method say; None is unknown, or of no meaning.

    A measurement names an option of its input only where it is not the default.
    """
    options = json.loads(text)
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
    return {
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


def _text(value: Any) -> str | None:
    """Return a JSON value as text, one that is a text as it is; None stays None."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _json(value: object) -> str | None:
    """Return the JSON of a value, None of None."""
    if type(value) in (int, float):
        return repr(value)
    return None if value is None else json.dumps(value)


@lru_cache(256)
def _of_plan(plan: Plan) -> str:
    return json.dumps(plan_to_json(plan))


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

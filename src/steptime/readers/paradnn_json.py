"""ParaDnn's released JSON files: speeds of TPU and GPU, profiles of a TPU and of its operations.

All hold lists of equal length, one entry a point. The authors' scripts say by the file's name
where a file is from; `fl` over `params` x `intensity`, the bytes of a parameter, says the type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from steptime.build import make_workload
from steptime.core.errors import InputError, shorten
from steptime.core.record import Method, Quantity, Record
from steptime.readers.paradnn_label import network, split_label
from steptime.readers.sources import Found, Source, Unread

Lists = Mapping[str, list[Any]]

SOURCE = "Emma926/paradnn; Wang, Wei, Brooks, MLSys 2020"
CORES = 8  # of a Cloud TPU v2-8: its files count FLOP of one core
TPU, GPU = "tpu-v2-8", "v100-sxm2-16gb"
BEST = "best interval of the run"

SPEEDS = {  # list: our quantity, our unit over theirs, whether theirs is of one core of a TPU
    "example_per_sec": ("published_speed_per_s", 1.0, False),
    "flops": ("published_flop_per_s", 1e9, True),
    "fl": ("published_flop", 1e9, True),
    "intensity": ("published_flop_per_parameter_byte", 1.0, False),
    "params": ("published_parameters", 1.0, False),
}
PROFILE = {
    "time_perc": ("published_time_share", 0.01),
    "flops_perc": ("published_flop_share", 0.01),
    "memory_bandwidth": ("published_bandwidth_share", 0.01),
    "rawMB": ("published_traffic_bytes", 1e6),
    "intensity": ("published_intensity_flop_per_byte", 1.0),
    "infeed": ("published_infeed_share", 0.01),
    "infeed_std": ("published_infeed_share_std", 0.01),
}
TRACES = {  # list: our quantity, whose samples are the profiles of a run
    "flops_trace": "published_flop_shares",
    "infeed_trace": "published_infeed_shares",
}
OF_TRACES = ("flops_perc_m", "flops_perc_std", "infeed_m")  # mean and deviation of the above
FAILURES = ("err_jobs", "states")
STATES = {"OOM": "oom", "Deadline Exceeded": "timeout"}  # the rest failed


def recognises(source: Source) -> bool:
    """Whether this is a JSON object with lists of labels."""
    return source.head.lstrip().startswith("{") and (
        b'"labels"' in source.content or b'"err_jobs"' in source.content
    )


def read(source: Source) -> Found:
    """Return a record a label, failed ones too; an operation of a profile is a record's scope."""
    try:
        lists = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no JSON: {shorten(str(error))[1:-1]}") from None
    lists = _checked(lists)
    points = _speeds if "example_per_sec" in lists or lists["err_jobs"] else _profiles
    records: list[Record] = []
    unread: list[Unread] = []
    for place, found in points(lists, source.name):
        if isinstance(found, Record):
            records.append(found)
        else:
            unread.append(Unread(source.name, place, found))
    return Found(tuple(records), tuple(unread))


def _checked(lists: Mapping[str, Any]) -> Lists:
    for name, values in lists.items():
        if not isinstance(values, list):
            raise InputError(f"{shorten(name)} is no list")
    found = {"labels": [], "err_jobs": [], "states": [], **lists}
    for names in (FAILURES, [name for name in found if name not in FAILURES]):
        if len({len(found[name]) for name in names}) > 1:
            raise InputError(f"the lists {', '.join(map(shorten, names))} differ in length")
    return found


@dataclass(frozen=True)
class _Machine:
    platform: str
    dtype: str
    cores: int
    file: str  # whose name may say the kind of block or cell


Points = Iterator[tuple[str | None, Record | str]]  # a label, and its record or why there is none


def _speeds(lists: Lists, file: str) -> Points:
    machine = _machine(lists, file)
    method = Method("paradnn", "unknown", {"statistic": BEST})
    known = {"labels", "step_per_sec", *SPEEDS, *FAILURES}
    yield from _unknown_lists(lists, known)
    for index, label in enumerate(lists["labels"]):
        values = {
            ours: _scaled(lists, name, index, unit * (machine.cores if of_core else 1))
            for name, (ours, unit, of_core) in SPEEDS.items()
        }
        steps = _scaled(lists, "step_per_sec", index, 1.0)
        if steps is None or steps <= 0:
            yield str(label), "has no positive step_per_sec"
        else:
            yield _point(label, machine, method, {"step_s": 1 / steps, **values})
    for label, state in zip(lists["err_jobs"], lists["states"], strict=True):
        status = STATES.get(str(state), "failed")
        yield _point(label, machine, method, {}, status=status, cause=str(state))


def _profiles(lists: Lists, file: str) -> Points:
    machine = _Machine(TPU, "bfloat16-mixed", CORES, file)
    method = Method("paradnn-profile", "unknown", {})
    yield from _unknown_lists(lists, {"labels", *FAILURES, *PROFILE, *TRACES, *OF_TRACES})
    for index, label in enumerate(lists["labels"]):
        values = {
            ours: _scaled(lists, name, index, unit)
            for name, (ours, unit) in PROFILE.items()
            if name in lists
        }
        traces = {
            ours: _trace(lists[name][index]) for name, ours in TRACES.items() if name in lists
        }
        yield _point(label, machine, method, values, traces)


def _unknown_lists(lists: Lists, known: set[str]) -> Points:
    for name in lists:
        if name not in known:
            yield None, f"list {shorten(name)} is not known"


def _trace(values: object) -> Quantity | None:
    if not isinstance(values, list) or not values or not all(map(_is_number, values)):
        return None
    return Quantity(samples=tuple(0.01 * share for share in values))


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < 1e300
        and math.isfinite(value)
    )


def _scaled(lists: Lists, name: str, index: int, unit: float) -> float | None:
    value: Any = lists[name][index] if name in lists else None
    return value * unit if _is_number(value) else None


def _point(
    label: object,
    machine: _Machine,
    method: Method,
    values: Mapping[str, float | None],
    traces: Mapping[str, Quantity | None] | None = None,
    *,
    status: str = "ok",
    cause: str = "",
) -> tuple[str, Record | str]:
    text = str(label)
    try:
        run, scope = split_label(text)
        choice, batch = network(run, machine.file)
        workload = make_workload(choice, batch=batch, dtype=machine.dtype, optimizer="rmsprop")
    except InputError as error:
        return text[:200], str(error)
    env: dict[str, Any] = {"source_entry": text, "cores": machine.cores}
    absent = [name for name, value in {**values, **(traces or {})}.items() if value is None]
    if absent:
        env["not_given"] = absent
    known = {name: Quantity(value) for name, value in values.items() if value is not None}
    known |= {name: trace for name, trace in (traces or {}).items() if trace}
    return text, Record(
        origin="published",
        method=method,
        workload=workload,
        platform=machine.platform,
        quantities=known,
        status=status,
        cause=cause,
        scope=scope,
        env=env,
    )


def _machine(lists: Lists, file: str) -> _Machine:
    """Return where the speeds are from; raises `InputError` where name and numbers do not say.

    Forward and backward are 6 FLOP a multiply-add; a core of eight sees an eighth of the batch.
    """
    points = range(len(lists["labels"]))
    shares = [share for index in points if (share := _share(lists, index, file))]
    sizes = [size for index in points if (size := _parameter_bytes(lists, index))]
    wide = round(median(sizes)) == 4 if sizes else None
    name = file.rpartition("/")[2].lower()
    named = [word for word in ("tpu", "gpu") if word in name]
    seen = ("tpu" if median(shares) < 2 else "gpu") if shares else None
    if len(named) > 1 or not (named or seen) or (named and seen and named[0] != seen):
        raise InputError(
            f"the file's name says {' and '.join(named) or 'no device'}, "
            f"its FLOP a step say {seen or 'nothing'}"
        )
    if "gpu" in (*named, seen):
        return _Machine(GPU, "float16-mixed" if wide is False else "float32", 1, file)
    return _Machine(TPU, "float32" if wide else "bfloat16-mixed", CORES, file)


def _share(lists: Lists, index: int, file: str) -> float | None:
    """Return FLOP of a step as counted over batch x parameters: 6, or an eighth of it on a core."""
    flop, params = _scaled(lists, "fl", index, 1e9), _scaled(lists, "params", index, 1.0)
    try:
        _, batch = network(str(lists["labels"][index]), file)
    except InputError:
        return None
    return flop / (batch * params) if flop and params else None


def _parameter_bytes(lists: Lists, index: int) -> float | None:
    """Return the bytes of a parameter: `intensity` is FLOP over these."""
    flop, params = _scaled(lists, "fl", index, 1e9), _scaled(lists, "params", index, 1.0)
    intensity = _scaled(lists, "intensity", index, 1.0)
    return flop / (params * intensity) if flop and params and intensity else None

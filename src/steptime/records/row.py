"""A record as a row: the columns that every table has, and the shortest names of rows.

Tables, pairs, SQL, plots and `run --json` pick from these rows, which `rows` makes. Keys
carry their unit; None is unknown.
"""

import gc
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from operator import itemgetter
from typing import Any, TypeVar

from steptime.core.errors import InputError
from steptime.core.units import QUANTITIES
from steptime.core.workload import FULL_TRAINING, Tuning, Workload, plan_to_json
from steptime.records.record import Quantity

Row = dict[str, Any]
Kinds = dict[str, list[str]]  # by name, as first seen: the names of the types that its values have
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

COLUMNS: Mapping[str, type] = {
    **dict.fromkeys(("origin", "method", "method_version", "status", "cause", "note"), str),
    **dict.fromkeys(("model", "family"), str),
    **dict.fromkeys(("batch", "replicas"), int),
    **dict.fromkeys(("dtype", "phase", "optimizer", "platform", "scope", "op_kind"), str),
    "workload_key": str,
    **dict.fromkeys(("step_s", "step_s_low", "step_s_high"), float),
    "step_s_interval": str,
    **dict.fromkeys(("step_s_min", "step_s_mean", "step_s_p5", "step_s_p95"), float),
    "steady": bool,
    **dict.fromkeys(("samples_n", "samples_disturbed", "runs"), int),
    **dict.fromkeys(("speed_per_s", "speed_uncertainty_per_s", "speed_jitter_per_s"), float),
    "infeed": float,
    **{
        name: float
        for name in QUANTITIES
        if name != "step_s" and not name.startswith("published_")  # these follow where they occur
    },
    "round": int,
    **dict.fromkeys(("taken_at", "host"), str),
    "threads": int,
    **dict.fromkeys(("method_options", "env", "gpu"), str),
    "device_count": int,
    **dict.fromkeys(("stack", "strategy", "input", "staging"), str),
    **dict.fromkeys(("loaders", "prefetch"), int),
    "record_id": str,
}
"""The columns that every table has, in order; further quantities and hyperparameters follow."""
AMOUNTS = frozenset(COLUMNS.keys() & QUANTITIES.keys())  # quantities that every table has

WAYS = ("tensor", "pipeline", "expert", "context")  # of a plan, to be parallel
PARAM_PREFIX = "param_"
UNKNOWN = "unknown"
HOW = ("gpu", "device_count", "input", "staging", "loaders", "prefetch", "threads")
ESTIMATE = ("value", "low", "high", "error", "drift", "steady")  # of `statistics.estimates`
RATES = ("peak_flop_per_s", "memory_bytes_per_s")  # of a device, as options of methods say them
OF_ENV = ("op_kind", "host", "batch_source", "source_file", "stack")  # texts of an environment
SPREAD = ("min", "max", "mean", "p5", "p95", "speed", "uncertainty", "jitter")  # of samples
BESIDES = ("platform", "method")  # columns of their own, where rows are shown
MORE_IS_BETTER = ("per_s", "accuracy", "share", "fraction", "shares")  # ends of quantities
WASTE = ("infeed", "time_share", "uncertainty", "jitter", "std")  # that less is better of, still
Texts = Mapping[str, Sequence[str | None]]  # settings: of each a column, JSON, None if absent


def more_is_better(quantity: str) -> bool:
    """Return whether more of a quantity is better: of a rate or accuracy it is, of seconds not."""
    return quantity.endswith(MORE_IS_BETTER) and not any(one in quantity for one in WASTE)


@lru_cache(1 << 14)
def loaded(text: str) -> Any:
    """Return what a JSON text says; nobody changes it."""
    return json.loads(text)


def settings_of(workload: Workload) -> Row:
    """Return the settings of a workload, except its model and batch, in the order of names."""
    step = {name: getattr(workload, name) for name in ("dtype", "phase", "optimizer")}
    if workload.tuning != FULL_TRAINING:
        step["tuning"] = describe_tuning(workload.tuning)
    spread = {"replicas": workload.plan.data}
    for name, value in plan_to_json(workload.plan).items():
        if name != "data":
            spread[f"{name}-parallel" if name in WAYS else name] = value
    return {**workload.settings, **step, **spread}


def describe_tuning(tuning: Tuning) -> str:
    """Return all settings of a fine-tuning: "LoRA r=8 on attention, host_link pcie-4-x16"."""
    methods = {"how": "+".join(tuning.methods), "host_link": tuning.host_link}
    extra = [f"{name} {value}" for name, value in methods.items() if value]
    return ", ".join(filter(None, (tuning.text, *extra)))


def by_run(samples: Iterable[Item], told: Iterable[int]) -> list[list[Item]]:
    """Return the samples of each run (fresh process); `told` is the run of each.

    Raises `InputError` where that is of another length.
    """
    samples, told = list(samples), list(told)
    if len(samples) != len(told):
        raise InputError(f"{len(samples)} samples, but {len(told)} say their run")
    if len(set(told)) < 2:
        return [samples]
    found = grouped(zip(told, samples, strict=True), itemgetter(0))
    return [[sample for _, sample in run] for run in found.values()]


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by their key, keys and items in the order in which they come."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


@contextmanager
def no_collection() -> Iterator[None]:
    """Let nobody look for circles of objects, which rows are not: a quarter of their time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def over(a: float | None, b: float | None) -> float | None:
    """Return a / b, or None where either is unknown or b is 0."""
    return a / b if a is not None and b else None


def headline(quantity: Quantity) -> float | None:
    """Return the one number of a quantity: the median of its samples, or its value."""
    if not quantity.samples:
        return quantity.value
    ordered, half = sorted(quantity.samples), len(quantity.samples) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@lru_cache(64)
def exchange_name(strategy: str | None, overlap: bool) -> str:
    """Return what names a strategy behind a network's name: `, sharded, no overlap`."""
    return (f", {strategy}" if strategy else "") + ("" if overlap else ", no overlap")


def columns_of(rows: Sequence[Mapping[str, object]]) -> Texts:
    """Return settings of several as columns, in the order in which they are told."""
    names = dict.fromkeys(name for one in rows for name in one)
    return {n: [json.dumps(one[n]) if n in one else None for one in rows] for n in names}


def telling_of(settings: Texts) -> list[str]:
    """Return the settings that tell more of these apart than those before them do."""
    telling: list[str] = []
    told, number = [0] * max(map(len, settings.values()), default=0), 1
    for name, column in settings.items():
        values = {*column}
        if len(values) > 1:
            places = {one: at for at, one in enumerate(values | {"null"})}
            places[None], most = places["null"], len(places)
            pairs = [at * most + places[one] for at, one in zip(told, column, strict=True)]
            if (found := len({*pairs})) > number:
                telling.append(name)
                told, number = pairs, found
    return telling


def said(name: str, value: object, model: str = "") -> str:
    """Return a setting in few words: one such as `lstm` needs no name before it."""
    if isinstance(value, str) and value.isidentifier() and value != model:
        return value
    text = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return f"{name} {text}"

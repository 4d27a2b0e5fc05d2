"""A record as a row: the columns that every table has, and the shortest names of rows.

Tables, pairs, SQL, plots and `run --json` pick from these rows, which `analysis.flat` makes. Keys
carry their unit; None is unknown. `labels` names rows by all in which they differ.
"""

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import isnan
from operator import itemgetter
from statistics import median
from typing import Any, TypeVar

from steptime.core.errors import InputError
from steptime.core.record import Quantity
from steptime.core.units import QUANTITIES
from steptime.core.workload import Workload, plan_to_json

Row = dict[str, Any]
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
    "devices": int,
    **dict.fromkeys(("stack", "strategy", "input", "staging"), str),
    **dict.fromkeys(("loaders", "prefetch"), int),
}
"""The columns that every table has, in order; further quantities and hyperparameters follow."""

WAYS = ("tensor", "pipeline", "expert", "context")  # of a plan, to be parallel
PARAM_PREFIX = "param_"
UNKNOWN = "unknown"
HOW = ("gpu", "devices", "input", "staging", "loaders", "prefetch", "threads")
ESTIMATE = ("value", "low", "high", "error", "drift", "steady")  # of `statistics.estimates`
BESIDES = ("platform", "method")  # columns of their own, where rows are shown
OF_CELL = (  # what a pair takes from the last record of its cell
    *("model", "family", "batch", "replicas", "strategy", "overlap", "dtype", "phase"),
    *("optimizer", "platform", "workload_key"),
)
OF_LABEL = (  # columns of `flat` of which `facts_of` makes what `labels` needs
    *("family", "params", "plan", "dtype", "phase", "optimizer", "batch", "strategy", "overlap"),
    *("method", "method_version", "method_options", "platform", "host", *HOW),
)
MORE_IS_BETTER = ("per_s", "accuracy", "share", "fraction")  # ends of quantities
UNTOLD = ("runs", "strategy", "overlap", *HOW)  # options that have a place, or tell nothing


def facts_of(row: Mapping[str, Any]) -> Row:
    """Return a row of `flat` with its `settings`, of the network and of the step, and `options`."""
    return {**row, "settings": settings_in(row), "options": json.loads(row["method_options"])}


def settings_in(row: Mapping[str, Any]) -> Row:
    """Return what a row of `flat` is of, as `settings_of` a workload."""
    params = {name: _valued(value) for name, value in row["params"].items()}
    return _settings(params, row, _valued(row["plan"]))


@lru_cache(1 << 14)
def _valued(text: str) -> Any:
    return json.loads(text)


def settings_of(workload: Workload) -> Row:
    """Return what a workload is of, but its model and batch, in the order in which it is told."""
    return _settings(workload.settings, vars(workload), plan_to_json(workload.plan))


def _settings(params: Mapping[str, Any], step: Mapping[str, Any], plan: Mapping[str, Any]) -> Row:
    spread = {f"{n}-parallel" if n in WAYS else n: value for n, value in plan.items()}
    replicas = spread.pop("data", 1)
    told = {name: step[name] for name in ("dtype", "phase", "optimizer")}
    return {**params, **told, "replicas": replicas, **spread}


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


def over(a: float | None, b: float | None) -> float | None:
    """Return a / b, or None where either is unknown or b is 0."""
    return a / b if a is not None and b else None


def known_number(value: float) -> float | None:
    """Return a number of a column, None for NaN."""
    return None if isnan(value) else float(value)


def headline(quantity: Quantity) -> float | None:
    """Return the one number of a quantity: the median of its samples, or its value."""
    return median(quantity.samples) if quantity.samples else quantity.value


def exchange_name(strategy: str | None, overlap: bool) -> str:
    """Return what names a strategy behind a network's name: `, sharded, no overlap`."""
    return (f", {strategy}" if strategy else "") + ("" if overlap else ", no overlap")


def labels(told: Sequence[Row], besides: Collection[str] = BESIDES) -> list[str]:
    """Return the shortest name of each row of `facts_of` that tells it from the others.

    Of the settings of a model only those are named that tell its networks apart, then the batch,
    then of how each ran what tells rows of one network apart: `fc nodes 256, batch 64, p100`. The
    keys `besides` are columns that stand beside the name, and tell rows apart, too.
    """
    names = step_names(told)
    ends = ways_told(
        told, [(n, *(one[key] for key in besides)) for n, one in zip(names, told, strict=True)]
    )
    return [name + end for name, end in zip(names, ends, strict=True)]


def ways_told(told: Sequence[Row], keys: Sequence[Hashable]) -> list[str]:
    """Return what is added to the names of rows that have one key: how each of them ran."""
    ends = [""] * len(told)
    for places in grouped(range(len(told)), keys.__getitem__).values():
        ways = [_how(told[at]) for at in places]
        telling = telling_of(ways)
        for at, how in zip(places, ways, strict=True):
            words = [said(name, how[name]) for name in telling if how.get(name) is not None]
            ends[at] = "".join(f", {word}" for word in words)
    return ends


def _how(told: Row) -> Row:
    """Return how and where a step ran, in the order in which it is told."""
    others = {name: value for name, value in told["options"].items() if name not in UNTOLD}
    last = {"version": told["method_version"], "host": told["host"]}
    return {name: told[name] for name in HOW} | others | last


def step_names(told: Sequence[Row]) -> list[str]:
    """Return the names of networks, with the strategy by which replicas exchange gradients."""
    return [
        name + exchange_name(one["strategy"], one["overlap"])
        for name, one in zip(network_names(told), told, strict=True)
    ]


def network_names(told: Sequence[Row]) -> list[str]:
    """Return the names that `labels` begins with.

    They have the model, the settings that tell its networks apart, and the batch where known.
    """
    by_model: dict[str, dict[tuple[Any, ...], Row]] = {}
    for one in told:
        same = by_model.setdefault(one["family"], {})
        same[tuple(one["settings"].items())] = one["settings"]
    telling = {model: telling_of(list(same.values())) for model, same in by_model.items()}
    names = []
    for one in told:
        model, settings = one["family"], one["settings"]
        words = [said(n, settings[n], model) for n in telling[model] if n in settings]
        words += [] if one["batch"] is None else [f"batch {one['batch']}"]
        names.append(" ".join([model, ", ".join(words)]).strip())
    return names


def telling_of(settings: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the settings that tell more of these apart than those before them do."""
    telling: list[str] = []
    told, kinds = [0] * len(settings), 1
    for name in dict.fromkeys(name for one in settings for name in one):
        places: dict[tuple[int, str], int] = {}
        finer = [
            places.setdefault((before, str(one.get(name))), len(places))
            for before, one in zip(told, settings, strict=True)
        ]
        if len(places) > kinds:
            telling.append(name)
            told, kinds = finer, len(places)
    return telling


def said(name: str, value: object, model: str = "") -> str:
    """Return a setting in few words: one such as `lstm` needs no name before it."""
    if isinstance(value, str) and value.isidentifier() and value != model:
        return value
    text = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return f"{name} {text}"

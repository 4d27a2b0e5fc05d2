"""A record as a row: the one place where the facts and numbers of a record get their names.

Tables, pairs, SQL, plots and `run --json` pick from these rows. Keys carry their unit; None is
unknown. `facts` is what a record says, `row_of` adds what its samples amount to, and `labels` names
rows by all in which they differ. `analysis.flat` says the same in SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter
from statistics import median
from typing import Any, TypeVar

from steptime.analysis.statistics import summarize
from steptime.core.errors import InputError
from steptime.core.record import Quantity, Record, stack_of
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
OF_ENV = ("round", "host", "op_kind", "batch_source", "source_file", "duplicate_of")
HOW = ("gpu", "devices", "input", "staging", "loaders", "prefetch", "threads")
BESIDES = ("platform", "method")  # columns of their own, where rows are shown
UNTOLD = ("runs", "strategy", "overlap", *HOW)  # options that have a place, or tell nothing


def facts(record: Record) -> Row:
    """Return what a record says of a step, but its quantities.

    `settings` are those of the network and of the step, `options` those of the method. `batch` is
    of one replica; it and `global_batch` are None where a log of others does not tell them.
    """
    workload, env, options = record.workload, record.env, record.method.options
    batch_known = env.get("batch_source") != UNKNOWN
    return {
        **{name: getattr(record, name) for name in ("origin", "status", "platform", "scope")},
        **{name: getattr(record, name) or None for name in ("cause", "note", "taken_at")},
        "method": record.method.label,
        "method_version": record.method.version,
        "model": workload.label,
        "family": workload.model,
        "batch": workload.batch_per_replica if batch_known else None,
        "global_batch": workload.global_batch if batch_known else None,
        "replicas": workload.plan.data,
        **{name: getattr(workload, name) for name in ("dtype", "phase", "optimizer")},
        "workload_key": workload.key,
        "date": env.get("date") or record.taken_at[:10] or None,
        "threads": options.get("threads"),
        **{name: options.get(name) or None for name in ("gpu", "strategy")},
        "devices": options.get("devices", workload.plan.data),
        "overlap": options.get("overlap", True),
        **_input(record),
        **{name: env.get(name) for name in OF_ENV},
        "stack": stack_of(record),
        "settings": settings_of(workload),
        "options": dict(options),
    }


def _input(record: Record) -> Row:
    """Return where input came from and how it was read; None is unknown, or of no meaning.

    A measurement names an option only where it is not the default.
    """
    options, names = record.method.options, ("input", "staging", "loaders", "prefetch")
    if record.origin != "measured":
        return {name: options.get(name) for name in names}
    kind = options.get("input", "device")
    files = kind == "dataset"
    return {
        "input": kind,
        "staging": options.get("staging", "shared") if files else None,
        "loaders": options.get("loaders", 0) if files else None,
        "prefetch": options.get("prefetch", 2) if files and options.get("loaders") else None,
    }


def row_of(record: Record) -> Row:
    """Return the facts and the numbers of a record, in SI.

    `step_s` is the median of the samples, or the value; so is every other quantity.
    `speed_per_s` counts the examples of all replicas.
    """
    table = facts(record)
    table |= {name: headline(quantity) for name, quantity in record.quantities.items()}
    table["infeed"] = _infeed(record)
    step = record.quantities.get("step_s")
    if step is None:
        return table
    examples = record.workload.global_batch
    if step.samples and min(step.samples) > 0:  # an op may rest for a step
        table["samples_disturbed"] = sum(map(bool, step.columns.get("disturbed", ())))
        return table | summarize(samples_by_run(step), examples)
    speed = examples / step.value if step.value and table["batch"] else None
    return table | {"step_s_low": step.low, "step_s_high": step.high, "speed_per_s": speed}


def _infeed(record: Record) -> float | None:
    """Return the share of a step that it waited for input; None where that was not measured."""
    waited, step = (record.quantities.get(name) for name in ("input_s", "step_s"))
    if waited is None or step is None or len(waited.samples) != len(step.samples):
        return None
    return sum(waited.samples) / sum(step.samples)


def runs_of(quantity: Quantity) -> tuple[int, ...]:
    """Return the run (fresh process) of each sample; without that column all are of one run.

    Raises `InputError` for a column of another length.
    """
    told: tuple[int, ...] = quantity.columns.get("run") or (0,) * len(quantity.samples)
    if len(told) != len(quantity.samples):
        raise InputError(f"{len(quantity.samples)} samples, but {len(told)} say their run")
    return told


def samples_by_run(quantity: Quantity) -> list[list[float]]:
    """Return the samples of each run."""
    told = grouped(zip(runs_of(quantity), quantity.samples, strict=True), itemgetter(0))
    return [[sample for _, sample in run] for run in told.values()]


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by their key, keys and items in the order in which they come."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def headline(quantity: Quantity) -> float | None:
    """Return the one number of a quantity: the median of its samples, or its value."""
    return median(quantity.samples) if quantity.samples else quantity.value


def exchange_name(told: Row) -> str:
    """Return what names a strategy behind a network's name: `, sharded, no overlap`."""
    strategy, overlap = told["strategy"], told["overlap"]
    return (f", {strategy}" if strategy else "") + ("" if overlap else ", no overlap")


def labels(told: Sequence[Row], besides: Collection[str] = BESIDES) -> list[str]:
    """Return the shortest name of each row of `facts` that tells it from the others.

    Of the settings of a model only those are named that tell its networks apart, then the batch,
    then of how each ran what tells rows of one network apart: `fc nodes 256, batch 64, p100`. The
    keys `besides` are columns that stand beside the name, and tell rows apart, too.
    """
    networks = [(one["family"], one["settings"], one["batch"]) for one in told]
    names = [name + exchange_name(one) for name, one in zip(_networks(networks), told, strict=True)]
    alike = grouped(range(len(told)), lambda at: (names[at], *(told[at][key] for key in besides)))
    for places in alike.values():
        ways = [_how(told[index]) for index in places]
        telling = telling_of(ways)
        for index, how in zip(places, ways, strict=True):
            words = [said(name, how[name]) for name in telling if how.get(name) is not None]
            names[index] = ", ".join([names[index], *words])
    return names


def _how(told: Row) -> Row:
    """Return how and where a step ran, in the order in which it is told."""
    others = {name: value for name, value in told["options"].items() if name not in UNTOLD}
    last = {"version": told["method_version"], "host": told["host"]}
    return {name: told[name] for name in HOW} | others | last


def short_names(workloads: Iterable[Workload], *, batch: bool = True) -> dict[str, str]:
    """Return the name of each workload, by its key, that `labels` begins with."""
    found = {one.key: one for one in workloads}
    networks = [
        (one.model, settings_of(one), one.batch_per_replica if batch else None)
        for one in found.values()
    ]
    return dict(zip(found, _networks(networks), strict=True))


def _networks(networks: Sequence[tuple[str, Row, int | None]]) -> list[str]:
    """Return the model, the settings that tell its networks apart, and the batch where known."""
    by_model: dict[str, dict[tuple[Any, ...], Row]] = {}
    for model, settings, _ in networks:
        by_model.setdefault(model, {})[tuple(settings.items())] = settings
    telling = {model: telling_of(list(same.values())) for model, same in by_model.items()}
    names = []
    for model, settings, batch in networks:
        words = [said(n, settings[n], model) for n in telling[model] if n in settings]
        words += [] if batch is None else [f"batch {batch}"]
        names.append(" ".join([model, ", ".join(words)]).strip())
    return names


def telling_of(settings: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the settings that tell more of these apart than those before them do."""
    telling: list[str] = []
    told: list[tuple[object, ...]] = [() for _ in settings]
    for name in dict.fromkeys(name for one in settings for name in one):
        finer = [(*before, str(one.get(name))) for before, one in zip(told, settings, strict=True)]
        if len(set(finer)) > len(set(told)):
            telling.append(name)
            told = finer
    return telling


def settings_of(workload: Workload) -> Row:
    """Return what a workload is of, but its model and batch, in the order in which it is told."""
    plan = plan_to_json(workload.plan)
    spread = {"replicas": plan.pop("data")}
    spread |= {f"{n}-parallel" if n in WAYS else n: value for n, value in plan.items()}
    return {
        **workload.settings,
        "dtype": workload.dtype,
        "phase": workload.phase,
        "optimizer": workload.optimizer,
        **spread,
    }


def said(name: str, value: object, model: str = "") -> str:
    """Return a setting in few words: one such as `lstm` needs no name before it."""
    if isinstance(value, str) and value.isidentifier() and value != model:
        return value
    text = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return f"{name} {text}"

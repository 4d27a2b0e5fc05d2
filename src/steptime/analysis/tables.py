"""Records as flat rows: one row a record, every row with every column, None where unknown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from steptime.analysis.statistics import Summary, summarize_steps
from steptime.core.record import Quantity, Record
from steptime.core.units import QUANTITIES
from steptime.core.workload import Workload

COLUMNS: Mapping[str, type] = {
    "origin": str,
    "method": str,
    "method_version": str,
    "status": str,
    "cause": str,
    "note": str,
    "model": str,
    "family": str,
    "batch": int,
    "replicas": int,
    "dtype": str,
    "phase": str,
    "optimizer": str,
    "platform": str,
    "scope": str,
    "workload_key": str,
    "step_s": float,
    "step_s_low": float,
    "step_s_high": float,
    "step_s_interval": str,
    "step_s_min": float,
    "step_s_mean": float,
    "step_s_p5": float,
    "step_s_p95": float,
    "steady": bool,
    "samples_n": int,
    "samples_disturbed": int,
    "runs": int,
    "speed_per_s": float,
    "speed_uncertainty_per_s": float,
    "speed_jitter_per_s": float,
    "infeed": float,
    **{
        name: float
        for name in QUANTITIES
        if name != "step_s" and not name.startswith("published_")  # these follow where they occur
    },
    "round": int,
    "taken_at": str,
    "host": str,
    "threads": int,
    "method_options": str,
    "env": str,
}
"""The columns that every table has, in order; further quantities and hyperparameters follow."""

PARAM_PREFIX = "param_"
UNKNOWN = "unknown"


def rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Give one flat row a record, in SI units, each with every column of the table.

    Beside `COLUMNS` there is a column for every other quantity and every hyperparameter; one whose
    name is taken (whatever its case) has the prefix `param_`. `step_s` is the median of the
    samples, or the value. `batch` is of one replica, `speed_per_s` counts all of them.
    """
    found = [(record, _fixed(record), _quantities(record)) for record in records]
    quantities = list(dict.fromkeys(name for _, _, values in found for name in values))
    columns = list(dict.fromkeys([*COLUMNS, *quantities]))
    params = _param_columns((record for record, _, _ in found), columns)
    columns += params.values()
    table = []
    for record, fixed, values in found:
        given = {params[name]: value for name, value in record.workload.params.items()}
        row = {**fixed, **values, **given}
        table.append({name: row.get(name) for name in columns})
    return table


def _fixed(record: Record) -> dict[str, Any]:
    workload, env, options = record.workload, record.env, record.method.options
    return {
        "origin": record.origin,
        "method": record.method.name,
        "method_version": record.method.version,
        "status": record.status,
        "cause": record.cause or None,
        "note": record.note or None,
        "model": workload.label,
        "family": workload.model,
        "batch": batch_of(record),
        "replicas": workload.plan.data,
        "dtype": workload.dtype,
        "phase": workload.phase,
        "optimizer": workload.optimizer,
        "platform": record.platform,
        "scope": record.scope,
        "workload_key": workload.key,
        **_step(record),
        "infeed": infeed(record),
        "round": env.get("round"),
        "taken_at": record.taken_at or None,
        "host": env.get("host"),
        "threads": options.get("threads"),
        "method_options": json.dumps(dict(options), sort_keys=True),
        "env": json.dumps(dict(env), sort_keys=True),
    }


def batch_of(record: Record) -> int | None:
    """Give the batch of a replica, None where a log of others does not tell it."""
    known = record.env.get("batch_source") != UNKNOWN
    return record.workload.batch_per_replica if known else None


def _step(record: Record) -> dict[str, Any]:
    quantity = record.quantities.get("step_s")
    if quantity is None:
        return {}
    batch = record.workload.global_batch
    if not quantity.samples:
        speed = batch / quantity.value if quantity.value and batch_of(record) else None
        return {
            "step_s": quantity.value,
            "step_s_low": quantity.low,
            "step_s_high": quantity.high,
            "speed_per_s": speed,
        }
    summary = summarize(quantity, batch)
    return {
        "step_s": summary.median_s,
        "step_s_low": summary.low_s,
        "step_s_high": summary.high_s,
        "step_s_interval": summary.interval,
        "step_s_min": summary.min_s,
        "step_s_mean": summary.mean_s,
        "step_s_p5": summary.p5_s,
        "step_s_p95": summary.p95_s,
        "steady": summary.steady,
        "samples_n": summary.n,
        "samples_disturbed": sum(map(bool, quantity.columns.get("disturbed", ()))),
        "runs": summary.runs,
        "speed_per_s": summary.speed_mean,
        "speed_uncertainty_per_s": summary.speed_uncertainty,
        "speed_jitter_per_s": summary.speed_jitter,
    }


def infeed(record: Record) -> float | None:
    """Give the share of a step that it waited for its input; None where that was not measured."""
    waited, step = (record.quantities.get(name) for name in ("input_s", "step_s"))
    if waited is None or step is None or len(waited.samples) != len(step.samples):
        return None
    return sum(waited.samples) / sum(step.samples)


def runs_of(quantity: Quantity) -> tuple[int, ...]:
    """Give the run (fresh process) of each sample; without that column all are of one run."""
    return quantity.columns.get("run") or (0,) * len(quantity.samples)


def summarize(quantity: Quantity, batch: int) -> Summary:
    """Give the statistics of the samples [s] of a step over `batch` examples."""
    return summarize_steps(quantity.samples, runs_of(quantity), batch)


def headline(quantity: Quantity) -> float | None:
    """Give the one number of a quantity: the median of its samples, or its value."""
    return median(quantity.samples) if quantity.samples else quantity.value


def _quantities(record: Record) -> dict[str, float | None]:
    return {
        name: headline(quantity) for name, quantity in record.quantities.items() if name != "step_s"
    }


def _param_columns(records: Iterable[Record], taken: Iterable[str]) -> dict[str, str]:
    """Give the column of each hyperparameter; SQL knows no case, so neither does a clash."""
    used = {name.lower() for name in taken}
    columns: dict[str, str] = {}
    for record in records:
        for name in record.workload.params:
            if name in columns:
                continue
            column = name
            while column.lower() in used:
                column = PARAM_PREFIX + column
            used.add(column.lower())
            columns[name] = column
    return columns


def input_of(record: Record) -> dict[str, Any]:
    """Give where `input` came from and how many `loaders` read it; None is unknown, or none at all.

    A measurement names an option only where it is not the default.
    """
    options = record.method.options
    if record.origin != "measured":
        return {"input": options.get("input"), "loaders": options.get("loaders")}
    kind = options.get("input", "device")
    return {"input": kind, "loaders": options.get("loaders", 0) if kind == "dataset" else None}


def exchange_of(record: Record) -> tuple[str, bool]:
    """Give by which strategy replicas exchange ("" for one) and whether they may overlap it.

    A prediction is of the same strategy as the measurement that it is held against.
    """
    options = record.method.options
    return options.get("strategy", ""), options.get("overlap", True)


def exchange_name(record: Record) -> str:
    """Give what names a strategy behind a network's name: `, sharded, no overlap`."""
    strategy, overlap = exchange_of(record)
    return (f", {strategy}" if strategy else "") + ("" if overlap else ", no overlap")


def short_names(workloads: Iterable[Workload], *, batch: bool = True) -> dict[str, str]:
    """Give each workload, by its key, the shortest name that tells it from the others.

    Of the settings of a model only those are named that tell its workloads apart, and the batch
    where asked: `fc nodes 256, batch 64`, `fc nodes 1024, batch 64`.
    """
    by_model: dict[str, dict[str, Workload]] = {}
    for workload in workloads:
        by_model.setdefault(workload.model, {})[workload.key] = workload
    names = {}
    for model, same in by_model.items():
        settings = {key: _settings(workload) for key, workload in same.items()}
        telling = telling_of(list(settings.values()))
        for key, workload in same.items():
            words = [said(n, settings[key][n], model) for n in telling if n in settings[key]]
            words += [f"batch {workload.batch_per_replica}"] if batch else []
            names[key] = " ".join([model, ", ".join(words)]).strip()
    return names


def telling_of(settings: Sequence[Mapping[str, object]]) -> list[str]:
    """Give the settings that tell more of these apart than those before them do."""
    telling: list[str] = []
    told: list[tuple[object, ...]] = [() for _ in settings]
    for name in dict.fromkeys(name for one in settings for name in one):
        finer = [(*before, str(one.get(name))) for before, one in zip(told, settings, strict=True)]
        if len(set(finer)) > len(set(told)):
            telling.append(name)
            told = finer
    return telling


def _settings(workload: Workload) -> dict[str, object]:
    plan = asdict(workload.plan)
    spread = {"replicas": plan.pop("data")}
    spread |= {f"{name}-parallel": ways for name, ways in plan.items()}
    return {
        **workload.params,
        "dtype": workload.dtype,
        "phase": workload.phase,
        "optimizer": workload.optimizer,
        **spread,
    }


def said(name: str, value: object, model: str = "") -> str:
    """Give a setting in few words: one such as `lstm` needs no name before it."""
    if isinstance(value, str) and value.isidentifier() and value != model:
        return value
    text = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return f"{name} {text}"

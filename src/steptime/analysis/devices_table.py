"""The seed's table: speed, its uncertainty and jitter by device, number of devices and staging.

A row is a record. Published numbers stand as they were published; those of measured records follow
from their samples by the same formulas (`statistics.summarize_steps`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from steptime.analysis.tables import batch_of, headline, input_of, summarize
from steptime.core.record import Record

Row = dict[str, Any]

MAIN = (
    "mean_speed",
    "Mean_Time_Per_Step",
    "speed_uncertainty",
    "Speed_Jitter",
    "gpu_type",
    "num_gpu",
    "staged_from",
    "batch",
    "strategy",
    "dtype",
    "phase",
    "optimizer",
    "input",
    "loaders",
    "status",
    "mean_speed_corrected",
)
COLUMNS = (
    *MAIN,
    "global_batch",
    "replicas",
    "accuracy",
    "model",
    "platform",
    "cause",
    "origin",
    "method",
    "batch_source",
    "date",
    "source_file",
    "duplicate_of",
)
TOLD_BY_PLACE = ("strategy", "batch", "num_gpu", "replicas", "staged_from")  # in plots
SHOWN_OPTIONS = ("gpu", "devices", "staging", "strategy")  # by columns and places of their own
STAGED = {"local": "$LOCAL", "shared": "$SCRATCH"}  # our word: the seed's


def device_rows(records: Iterable[Record]) -> list[Row]:
    """Give one row for each measured or published record of a whole step; failed ones too.

    Speeds are in examples/s, times in seconds; None is unknown. `mean_speed` is what was logged,
    `mean_speed_corrected` is the batch of all `replicas` over the mean time of a step, which
    differs where a program divided by the batch of one replica only. `num_gpu` counts the devices
    that the job had, `replicas` those that worked.
    """
    return [
        _row(record)
        for record in records
        if record.origin != "predicted"
        and not record.scope
        and (record.status != "ok" or "step_s" in record.quantities)
    ]


def _row(record: Record) -> Row:
    workload, env, options = record.workload, record.env, record.method.options
    row = {
        **_speeds(record),
        "gpu_type": options.get("gpu") or record.platform,
        "num_gpu": options.get("devices", workload.plan.data),
        "staged_from": _staged_from(options),
        "batch": batch_of(record),
        "strategy": options.get("strategy") or None,
        "dtype": workload.dtype,
        "phase": workload.phase,
        "optimizer": workload.optimizer,
        **input_of(record),
        "status": record.status,
        "replicas": workload.plan.data,
        "accuracy": _value(record, "accuracy"),
        "model": workload.label,
        "platform": record.platform,
        "cause": record.cause or None,
        "origin": record.origin,
        "method": record.method.name,
        "batch_source": env.get("batch_source"),
        "date": env.get("date") or record.taken_at[:10] or None,
        "source_file": env.get("source_file"),
        "duplicate_of": env.get("duplicate_of"),
    }
    return {name: row[name] for name in COLUMNS}


def _speeds(record: Record) -> Row:
    step = record.quantities.get("step_s")
    known = batch_of(record) is not None
    batch = record.workload.global_batch
    row: Row = {
        "mean_speed": _value(record, "published_speed_per_s"),
        "Mean_Time_Per_Step": step.value if step else None,
        "speed_uncertainty": _value(record, "published_speed_uncertainty_per_s"),
        "Speed_Jitter": _value(record, "published_speed_jitter_per_s"),
        "mean_speed_corrected": batch / step.value if step and step.value and known else None,
        "global_batch": batch if step and known else None,
    }
    if step and step.samples:
        summary = summarize(step, batch)
        row |= {
            "mean_speed": summary.speed_mean,
            "Mean_Time_Per_Step": summary.mean_s,
            "speed_uncertainty": summary.speed_uncertainty,
            "Speed_Jitter": summary.speed_jitter,
            "mean_speed_corrected": summary.speed_mean,
        }
    return row


def _staged_from(options: Mapping[str, Any]) -> str | None:
    """Give where the files of the input were, None for input that comes from no file."""
    if "staging" not in options and options.get("input") != "dataset":
        return None
    return STAGED[options.get("staging", "shared")]


def _value(record: Record, name: str) -> float | None:
    quantity = record.quantities.get(name)
    return headline(quantity) if quantity else None


def device_bars(records: Iterable[Record]) -> list[Row]:
    """Give the speed of each step that was measured or published, with its error, for bars.

    `speed` [examples/s] counts all replicas. `low` and `high` are the 95 % interval of a
    measurement; of a published number one sigma to each side, as published (`interval` says which).
    `settings` has all that may tell this step from others of its network. What only has the content
    of another file is left out.
    """
    chosen = [r for r in records if r.status == "ok" and not r.env.get("duplicate_of")]
    return [
        {**row, **bar, "settings": _settings(record, row)}
        for record in chosen
        for row in device_rows([record])
        if (bar := _bar(record, row))
    ]


def _settings(record: Record, row: Row) -> Row:
    """Give the settings of a step in the order in which they are told; what repeats is none."""
    options = record.method.options
    return {
        **{name: row[name] for name in ("phase", "optimizer", "dtype", "method")},
        **{name: row[name] for name in TOLD_BY_PLACE},
        **{k: v for k, v in options.items() if k not in SHOWN_OPTIONS and k != "runs"},
    }


def _bar(record: Record, row: Row) -> Row | None:
    step = record.quantities.get("step_s")
    if step is None or not row["mean_speed_corrected"]:
        return None
    batch = record.workload.global_batch
    if step.samples:
        summary = summarize(step, batch)
        ends = (summary.low_s, summary.high_s)
        return {
            "speed": batch / summary.value_s,
            "low": ends[1] and batch / ends[1],
            "high": ends[0] and batch / ends[0],
            "interval": "95 %",
        }
    speed, sigma = row["mean_speed_corrected"], row["speed_uncertainty"]
    if sigma is not None and row["mean_speed"]:
        sigma *= speed / row["mean_speed"]  # of the batch that the speed counts
    return {
        "speed": speed,
        "low": None if sigma is None else speed - sigma,
        "high": None if sigma is None else speed + sigma,
        "interval": "1 sigma",
    }

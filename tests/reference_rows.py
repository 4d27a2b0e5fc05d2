"""The row of a record by Python and numpy: what SQL says of it is held against this."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from steptime.records.record import Record, stack_of
from steptime.records.row import Row, by_run, headline
from steptime.records.statistics import BETWEEN, WITHIN, estimate

UNKNOWN = "unknown"
OF_ENV = ("round", "host", "op_kind", "batch_source", "source_file", "duplicate_of")


def facts(record: Record) -> Row:
    """Return what a record says of a step, but its quantities."""
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
        "device_count": options.get("device_count", workload.plan.data),
        "overlap": options.get("overlap", True),
        **_input(record),
        **{name: env.get(name) for name in OF_ENV},
        "stack": stack_of(record),
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


def reference_row(record: Record) -> Row:
    """Return the facts and the numbers of a record, in SI.

    `step_s` is the median of the samples, or the value; so is every other quantity.
    `examples_per_s` counts the examples of all replicas.
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
        run = step.columns.get("run") or (0,) * len(step.samples)
        return table | summarize(by_run(step.samples, run), examples)
    speed = examples / step.value if step.value and table["batch"] else None
    return table | {"step_s_low": step.low, "step_s_high": step.high, "examples_per_s": speed}


def _infeed(record: Record) -> float | None:
    """Return the share of a step that it waited for input; None where that was not measured."""
    waited, step = (record.quantities.get(name) for name in ("input_s", "step_s"))
    if waited is None or step is None or len(waited.samples) != len(step.samples):
        return None
    return sum(waited.samples) / sum(step.samples)


def summarize(runs: Sequence[Sequence[float]], batch: int) -> dict[str, Any]:
    """Return the statistics of runs [samples of s] of a step over `batch` examples."""
    found = estimate(runs)
    times = np.concatenate([np.asarray(run, dtype=np.float64) for run in runs])
    speeds = batch / times
    median_s = float(np.median(times))
    return {
        "step_s": median_s,
        "step_s_low": None if found["low"] is None else min(found["low"], median_s),
        "step_s_high": None if found["high"] is None else max(found["high"], median_s),
        "step_s_interval": BETWEEN if len(runs) > 1 else WITHIN,
        "step_s_min": float(times.min()),
        "step_s_mean": float(times.mean()),
        "step_s_p5": float(np.quantile(times, 0.05)),
        "step_s_p95": float(np.quantile(times, 0.95)),
        "steady": None if found["steady"] is None else bool(found["steady"]),
        "samples_n": len(times),
        "runs": len(runs),
        "examples_per_s": float(batch / times.mean()),
        "examples_uncertainty_per_s": float(speeds.std() / math.sqrt(len(times))),
        "examples_jitter_per_s": 1.4826 * float(np.median(np.abs(speeds - np.median(speeds)))),
    }

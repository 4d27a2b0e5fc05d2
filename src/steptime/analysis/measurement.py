"""One measured record as people and programs read it: the derived numbers of `steptime run`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from statistics import median
from typing import Any

from steptime.analysis.tables import infeed, summarize
from steptime.core.record import Record


def measurement(record: Record, flop: float, peaks: Mapping[str, float | None]) -> dict[str, Any]:
    """Give the record's numbers in SI; what was not measured is None, `remarks` say what to mind.

    `flop` is that of one replica's step; `fraction_of_peak` the FLOP/s that a replica achieved over
    each of `peaks`. Speed and the document's FLOP count all replicas.
    """
    workload = record.workload
    replicas = workload.plan.data
    examples = workload.global_batch
    document: dict[str, Any] = {
        "status": record.status,
        "cause": record.cause,
        "note": record.note,
        "model": workload.label,
        "batch": workload.batch_per_replica,
        "replicas": replicas,
        "global_batch": examples,
        "strategy": record.method.options.get("strategy"),
        "phase": workload.phase,
        "dtype": workload.dtype,
        "optimizer": workload.optimizer,
        "platform": record.platform,
        "method": asdict(record.method),
        "step_s": None,
        "speed": None,
        "parts": None,
        "input_s": None,
        "infeed": None,
        "accuracy": _middle(record, "accuracy"),
        "loss": _middle(record, "loss"),
        "comm_s": _middle(record, "comm_s"),
        "first_step_s": _value(record, "first_step_s"),
        "peak_memory_bytes": _value(record, "peak_memory_bytes"),
        "energy_j": _middle(record, "energy_j"),
        "power_w": _middle(record, "power_w"),
        "flop": replicas * flop,
        "flop_per_s": None,
        "fraction_of_peak": dict.fromkeys(peaks),
        "disturbed": None,
        "remarks": [],
        "env": dict(record.env),
    }
    if record.status != "ok":
        return document
    step = record.quantities["step_s"]
    found = summarize(step, examples)
    rate = flop / found.median_s  # of one replica
    document["step_s"] = {
        **{
            k: getattr(found, f"{k}_s")
            for k in ("median", "mean", "low", "high", "min", "p5", "p95")
        },
        "interval": found.interval,
        "samples": list(step.samples),
        "run_of_sample": list(step.columns.get("run", ())),
    }
    document["speed"] = {
        "mean": found.speed_mean,
        "uncertainty": found.speed_uncertainty,
        "jitter": found.speed_jitter,
    }
    document["parts"] = {
        name: summarize(quantity, examples).median_s
        for name, quantity in record.quantities.items()
        if name in ("forward_s", "backward_s", "update_s") and quantity.samples
    }
    document["input_s"] = _middle(record, "input_s")
    document["infeed"] = infeed(record)
    document["flop_per_s"] = replicas * rate
    document["fraction_of_peak"] = {
        name: None if peak is None else rate / peak for name, peak in peaks.items()
    }
    marks = step.columns.get("disturbed", ())
    document["disturbed"] = sum(1 for mark in marks if mark)
    document["remarks"] = _remarks(record, found.interval)
    return document


def _value(record: Record, name: str) -> float | None:
    quantity = record.quantities.get(name)
    return None if quantity is None else quantity.value


def _middle(record: Record, name: str) -> float | None:
    """Give the median of a quantity's samples."""
    quantity = record.quantities.get(name)
    return median(quantity.samples) if quantity and quantity.samples else None


def _remarks(record: Record, interval: str) -> list[str]:
    remarks = []
    if record.env.get("energy_meter") and "energy_j" not in record.quantities:
        remarks.append(f"no energy: {record.env['energy_meter']}")
    if "comm_meter" in record.env and "comm_s" not in record.quantities:
        remarks.append(f"no time of communication: {record.env['comm_meter']}")
    if record.env.get("few_samples"):
        remarks.append("fewer than 20 samples: a longer --budget gives more")
    if record.env.get("steady") is False:
        remarks.append("no steady state: the first and the second half of the samples differ")
    if _learned_nothing(record):
        remarks.append("the network learned nothing: its accuracy is that of guessing")
    if interval == "within-run":
        remarks.append("one run: the interval says nothing of how runs differ (--runs 5 does)")
    marks = record.quantities["step_s"].columns.get("disturbed", ())
    if marks and sum(map(bool, marks)) > len(marks) / 4:
        others = "other work"
        if record.workload.plan.data > 1:
            others += ", or threads of the exchange itself,"
        remarks.append(f"over a quarter of the samples were disturbed: {others} used these CPUs")
    return remarks


def _learned_nothing(record: Record) -> bool:
    """Say whether a training's accuracy is within 5 sigma of naming the most frequent class."""
    training, accuracy = record.env.get("training"), _middle(record, "accuracy")
    if training is None or accuracy is None:
        return False
    guess, images = training["guess"], training["test_images"]
    return bool(accuracy <= guess + 5 * math.sqrt(guess * (1 - guess) / images))

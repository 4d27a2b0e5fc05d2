"""One measured record as people and programs read it: the derived numbers of `steptime run`."""

import math
from collections.abc import Mapping
from typing import Any

from steptime.core.units import counted
from steptime.records.data import Data
from steptime.records.record import Record, method_to_json
from steptime.records.row import Row
from steptime.records.statistics import WITHIN

FACTS_SHOWN = ("status", "model", "replicas", "strategy", "phase", "dtype", "optimizer", "platform")
PARTS = ("forward_s", "backward_s", "update_s")
OF_STEP = ("mean", "low", "high", "min", "p5", "p95", "interval")
SHOWN = (
    *("accuracy", "loss", "communication_s", "first_step_s", "peak_bytes", "planned_memory_bytes"),
    *("energy_j", "power_w"),
)


def measurement(record: Record, flop: float, peaks: Mapping[str, float | None]) -> dict[str, Any]:
    """Return the record's numbers in SI; what was not measured is None, `remarks` say what to mind.

    `flop` is that of one replica's step; `fraction_of_peak` the FLOP/s that a replica achieved over
    each of `peaks`. Speed and the document's FLOP count all replicas.
    """
    (told,) = Data.of([record]).rows("FROM records")
    document: dict[str, Any] = {
        **{name: told[name] for name in FACTS_SHOWN},
        "cause": record.cause,
        "note": record.note,
        "batch": record.workload.batch_per_replica,
        "global_batch": record.workload.global_batch,
        "method": method_to_json(record.method),
        **dict.fromkeys(("step_s", "speed", "parts", "input_s", "infeed")),
        **{name: told.get(name) for name in SHOWN},
        "flop": told["replicas"] * flop,
        "flop_per_s": None,
        "fraction_of_peak": dict.fromkeys(peaks),
        "disturbed": None,
        "remarks": [],
        "env": dict(record.env),
    }
    if record.status != "ok":
        return document
    step = record.quantities["step_s"]
    rate = flop / told["step_s"]  # of one replica
    return document | {
        "step_s": {
            "median": told["step_s"],
            **{name: told[f"step_s_{name}"] for name in OF_STEP},
            "samples": list(step.samples),
            "run_of_sample": list(step.columns.get("run", ())),
        },
        "speed": {
            "mean": told["speed_per_s"],
            "uncertainty": told["speed_uncertainty_per_s"],
            "jitter": told["speed_jitter_per_s"],
        },
        "parts": {name: told[name] for name in PARTS if told.get(name) is not None},
        **{name: told.get(name) for name in ("input_s", "infeed")},
        "flop_per_s": told["replicas"] * rate,
        "fraction_of_peak": {
            name: None if peak is None else rate / peak for name, peak in peaks.items()
        },
        "disturbed": told["samples_disturbed"],
        "remarks": _remarks(record, told),
    }


def _remarks(record: Record, told: Row) -> list[str]:
    remarks = []
    if record.env.get("energy_meter") and "energy_j" not in record.quantities:
        remarks.append(f"no energy: {record.env['energy_meter']}")
    if "comm_meter" in record.env and "communication_s" not in record.quantities:
        remarks.append(f"no time of communication: {record.env['comm_meter']}")
    if breaks := record.env.get("graph_breaks"):
        why = max(breaks, key=breaks.get)
        remarks.append(f"{counted(sum(breaks.values()), 'graph break')}, most of them: {why}")
    if record.env.get("few_samples"):
        remarks.append("fewer than 20 samples in a run: a longer --budget gives more")
    if record.env.get("steady") is False:
        remarks.append("no steady state: the first and the second half of the samples differ")
    if _learned_nothing(record, told.get("accuracy")):
        remarks.append("the network learned nothing: its accuracy is that of guessing")
    if told["step_s_interval"] == WITHIN:
        remarks.append("one run: the interval says nothing of how runs differ (--runs 5 does)")
    elif told["step_s_low"] is None:
        remarks.append("two runs are too few for an interval: --runs 3 or more gives one")
    if told["samples_disturbed"] > told["samples_n"] / 4:
        others = "other work"
        if record.workload.plan.data > 1:
            others += ", or threads of the communication itself,"
        remarks.append(f"over a quarter of the samples were disturbed: {others} used these CPUs")
    return remarks


def _learned_nothing(record: Record, accuracy: float | None) -> bool:
    """Whether a training's accuracy is within 5 sigma of naming the most frequent class."""
    training = record.env.get("training")
    if training is None or accuracy is None:
        return False
    guess, images = training["guess"], training["test_images"]
    return bool(accuracy <= guess + 5 * math.sqrt(guess * (1 - guess) / images))

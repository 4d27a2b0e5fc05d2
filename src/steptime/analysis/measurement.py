"""One measured record as people and programs read it: the derived numbers of `steptime run`."""

import math
from collections.abc import Mapping

import polars as pl

from steptime.core.units import format_count
from steptime.records.data import Data
from steptime.records.record import LARGEST_DISTURBED_SHARE, Record, method_to_json
from steptime.records.record_columns import DERIVED_COLUMNS
from steptime.records.row import Row
from steptime.records.statistics import WITHIN

FACTS = ("status", "model", "replicas", "strategy", "phase", "dtype", "optimizer", "platform")
PARTS = ("forward_s", "backward_s", "update_s")
QUANTITIES = (
    *("accuracy", "loss", "communication_s", "first_step_s", "peak_bytes", "planned_memory_bytes"),
    *("energy_j", "power_w"),
)
COLUMNS = (
    *(*FACTS, *PARTS, *QUANTITIES, "input_s", "infeed", "step_s", "samples_n"),
    *("samples_disturbed", "step_s_interval", "step_s_mean", "step_s_min", "step_s_p5"),
    *(
        "step_s_p95",
        "step_s_low",
        "step_s_high",
        "examples_per_s",
        "examples_uncertainty_per_s",
        "examples_jitter_per_s",
    ),
)


def measurement(record: Record, flop: float, peaks: Mapping[str, float | None]) -> Row:
    """Return the record's numbers in SI.

    An unknown number is None; `remarks` are lines on what may mislead. Speed and FLOP count all
    replicas.

    Args:
        record: a measured record.
        flop: FLOP of one replica's step.
        peaks: peak FLOP/s by name, of each of which `fraction_of_peak` has the share.
    """
    row = _read_row(record)
    document = {
        **{name: row[name] for name in FACTS},
        "cause": record.cause,
        "note": record.note,
        "batch": record.workload.batch_per_replica,
        "global_batch": record.workload.global_batch,
        "method": method_to_json(record.method),
        **dict.fromkeys(("step_s", "speed", "parts", "input_s", "infeed")),
        **{name: row[name] for name in QUANTITIES},
        "flop": row["replicas"] * flop,
        "flop_per_s": None,
        "fraction_of_peak": dict.fromkeys(peaks),
        "disturbed": None,
        "remarks": [],
        "env": dict(record.env),
    }
    # A step that failed has no numbers of time.
    if record.status != "ok":
        return document
    return document | _step_numbers(record, row, flop, peaks)


def _read_row(record: Record) -> Row:
    """Return the row of a record in its frame, with the ends of its interval."""
    data = Data.from_records([record])  # its files end with it
    columns = {name: DERIVED_COLUMNS.get(name, pl.col(name)) for name in COLUMNS}
    return data.scan().select(**columns).collect().row(0, named=True)


def _step_numbers(record: Record, row: Row, flop: float, peaks: Mapping[str, float | None]) -> Row:
    """Return the numbers of a step that ran."""
    step = record.quantities["step_s"]
    # Shares of the peak are of one device.
    replica_flop_per_s = flop / row["step_s"]
    names = ("mean", "low", "high", "min", "p5", "p95", "interval")
    return {
        "step_s": {
            "median": row["step_s"],
            **{name: row[f"step_s_{name}"] for name in names},
            "samples": list(step.samples),
            "run_of_sample": list(step.columns.get("run", ())),
        },
        "speed": {
            "mean": row["examples_per_s"],
            "uncertainty": row["examples_uncertainty_per_s"],
            "jitter": row["examples_jitter_per_s"],
        },
        "parts": {name: row[name] for name in PARTS if row[name] is not None},
        **{name: row[name] for name in ("input_s", "infeed")},
        "flop_per_s": row["replicas"] * replica_flop_per_s,
        "fraction_of_peak": {
            name: None if peak is None else replica_flop_per_s / peak
            for name, peak in peaks.items()
        },
        "disturbed": row["samples_disturbed"],
        "remarks": _list_remarks(record, row),
    }


def _list_remarks(record: Record, row: Row) -> list[str]:
    """Return lines on what may mislead in a measured record."""
    remarks = []
    # Without a reading, `energy_meter` and `comm_meter` hold the reason instead of the meter.
    if record.env.get("energy_meter") and "energy_j" not in record.quantities:
        remarks.append(f"no energy: {record.env['energy_meter']}")
    if "comm_meter" in record.env and "communication_s" not in record.quantities:
        remarks.append(f"no time of communication: {record.env['comm_meter']}")
    if "module_runs_for" in record.env:
        kinds = f"ops that {record.method.name} does not run: {record.env['module_runs_for']}"
        remarks.append(f"the module itself ran, as its graph holds {kinds}")
    if breaks := record.env.get("graph_breaks"):
        why = max(breaks, key=breaks.get)  # they are counts by reason
        remarks.append(f"{format_count(sum(breaks.values()), 'graph break')}, most of them: {why}")
    if record.env.get("few_samples"):
        remarks.append("fewer than 20 samples in a run: a longer --budget gives more")
    if record.env.get("steady") is False:  # None: unknown
        remarks.append("no steady state: the first and the second half of the samples differ")
    if _learned_nothing(record, row.get("accuracy")):
        remarks.append("the network learned nothing: its accuracy is that of guessing")
    if row["step_s_interval"] == WITHIN:
        remarks.append("one run: the interval says nothing of how runs differ (--runs 5 does)")
    elif row["step_s_low"] is None:
        remarks.append("two runs are too few for an interval: --runs 3 or more gives one")
    if row["samples_disturbed"] > LARGEST_DISTURBED_SHARE * row["samples_n"]:
        disturber = "other work"
        if record.workload.plan.data > 1:
            disturber += ", or threads of the communication itself,"
        remarks.append(f"over a quarter of the samples were disturbed: {disturber} used these CPUs")
    return remarks


def _learned_nothing(record: Record, accuracy: float | None) -> bool:
    """Whether a training's accuracy is within 5 sigma of naming the most frequent class."""
    training = record.env.get("training")
    if training is None or accuracy is None:
        return False
    guess, images = training["guess"], training["test_images"]
    return bool(accuracy <= guess + 5 * math.sqrt(guess * (1 - guess) / images))

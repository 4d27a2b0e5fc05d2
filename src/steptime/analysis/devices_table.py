"""The seed's table: speed, its uncertainty and jitter by device, number of devices and staging.

A row is a record. Published numbers stand as they were published; those of measured records follow
from their samples by the same formulas (`statistics.summarize`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from steptime.analysis.analyses import Analysis
from steptime.analysis.data import Data
from steptime.analysis.row import Row, row_of
from steptime.core.progress import watched
from steptime.core.record import Record
from steptime.core.table import Table, columns
from steptime.core.units import counted

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
    "prefetch",
    "threads",
    "host",
)
BEHIND = ("model", "cause")  # for people; csv and json have all
IF_DIFFERENT = ("phase", "optimizer", "method", "input", "loaders", "prefetch", "threads", "host")
TOLD_BY_PLACE = ("strategy", "batch", "num_gpu", "replicas", "staged_from")  # in plots
SHOWN_OPTIONS = ("gpu", "devices", "staging", "strategy", "runs")  # elsewhere, or not at all
ORDER = (
    "model",
    "gpu_type",
    "platform",
    "num_gpu",
    "strategy",
    "batch",
    "staged_from",
    "dtype",
    "phase",
    "optimizer",
    "input",
    "loaders",
    "prefetch",
)
STAGED = {"local": "$LOCAL", "shared": "$SCRATCH", None: None}  # our word: the seed's


def device_rows(records: Iterable[Record]) -> list[Row]:
    """Return one row for each measured or published record of a whole step; failed ones too.

    Speeds are in examples/s, times in seconds; None is unknown. `mean_speed` is what was logged,
    `mean_speed_corrected` is the batch of all `replicas` over the mean time of a step, which
    differs where a program divided by the batch of one replica only. `num_gpu` counts the devices
    that the job had, `replicas` those that worked. Rows stand by model, device and number of
    devices, strategy, batch and staging; of equal ones the first recorded comes first.
    """
    found = list(filter(_is_shown, records))
    return sorted((_row(row_of(one)) for one in watched(found, "rows")), key=_order)


def device_table(data: Data) -> Table:
    """Return `device_rows`; people see one of `IF_DIFFERENT` only where it tells rows apart."""
    rows = device_rows(data.records)
    differ = [name for name in IF_DIFFERENT if len({row[name] for row in rows}) > 1]
    always = (name for name in MAIN if name not in IF_DIFFERENT)
    shown = columns(*always, *BEHIND, *differ)
    return Table(shown, rows, units=False, full=columns(*COLUMNS))


def _is_shown(record: Record) -> bool:
    whole = record.origin != "predicted" and not record.scope
    return whole and (record.status != "ok" or "step_s" in record.quantities)


def _order(row: Row) -> list[tuple[bool, Any]]:
    return [(row[name] is not None, row[name]) for name in ORDER]


def _row(told: Row) -> Row:
    own = bool(told.get("samples_n"))  # else the numbers are those that others published
    speed = "speed" if own else "published_speed"
    files = "shared" if told["input"] == "dataset" else None  # other input comes from no file
    table = told | {
        "mean_speed": told.get(f"{speed}_per_s"),
        "Mean_Time_Per_Step": told.get("step_s_mean" if own else "step_s"),
        "speed_uncertainty": told.get(f"{speed}_uncertainty_per_s"),
        "Speed_Jitter": told.get(f"{speed}_jitter_per_s"),
        "mean_speed_corrected": told.get("speed_per_s"),
        "global_batch": told["global_batch"] if "step_s" in told else None,
        "gpu_type": told["gpu"] or told["platform"],
        "num_gpu": told["devices"],
        "staged_from": STAGED[told["staging"] or files],
    }
    return {name: table.get(name) for name in COLUMNS}


def device_bars(records: Iterable[Record]) -> list[Row]:
    """Return the speed of each step that was measured or published, with its error, for bars.

    `speed` [examples/s] counts all replicas. `low` and `high` are the 95 % interval of a
    measurement; of a published number one sigma to each side, as published (`interval` says which).
    `settings` has all that may tell this step from others of its network. What only has the content
    of another file is left out.
    """
    return [
        {**row, **bar, "settings": _settings(told, row)}
        for told in map(row_of, watched(list(filter(_is_shown, records)), "bars"))
        if told["status"] == "ok" and not told["duplicate_of"]
        for row in (_row(told),)
        if (bar := _bar(told, row))
    ]


def _settings(told: Row, row: Row) -> Row:
    """Return the settings of a step in the order in which they are told; what repeats is none."""
    return {
        **{name: row[name] for name in ("phase", "optimizer", "dtype", "method")},
        **{name: row[name] for name in TOLD_BY_PLACE},
        **{k: v for k, v in told["options"].items() if k not in SHOWN_OPTIONS},
    }


def _bar(told: Row, row: Row) -> Row | None:
    speed = row["mean_speed_corrected"]
    if not speed:
        return None
    if "step_s_steady" in told:
        steady, low, high = (
            end and told["global_batch"] / end
            for end in (told[f"step_s_{name}"] for name in ("steady", "high", "low"))
        )
        return {"speed": steady, "low": low, "high": high, "interval": "95 %"}
    sigma = row["speed_uncertainty"]
    low, high = None, None
    if sigma is not None:
        sigma *= speed / (row["mean_speed"] or speed)  # of the batch that the speed counts
        low, high = speed - sigma, speed + sigma
    return {"speed": speed, "low": low, "high": high, "interval": "1 sigma"}


ANALYSIS = Analysis(
    """Print speeds by device, number of devices and staging.

    A row is a measured or published step.
    """,
    device_table,
    lambda table: [counted(len(table.rows), "row")],
)

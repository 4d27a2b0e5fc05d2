"""The seed's table: speed, its uncertainty and jitter by device, number of devices and staging.

A row is a record. Published numbers stand as they were published; those of measured records follow
from their samples by the same formulas (`records.frame_builder`).
"""

import json

import polars as pl

from steptime.analysis.analyses import Analysis
from steptime.core.table import Column, Table, describe_hidden_rows
from steptime.core.units import counted
from steptime.records.data import Data
from steptime.records.frame_columns import other_number
from steptime.records.row import Row

MAIN = (
    *("mean_speed", "Mean_Time_Per_Step", "speed_uncertainty", "Speed_Jitter"),
    *("gpu_type", "num_gpu", "staged_from", "batch", "strategy"),
    *("dtype", "phase", "optimizer", "input", "loaders", "status", "mean_speed_corrected"),
)
COLUMNS = (
    *MAIN,
    *("global_batch", "replicas", "accuracy", "model", "platform", "cause"),
    *("origin", "method", "batch_source", "date", "source_file", "duplicate_of"),
    *("prefetch", "threads", "host"),
)
BEHIND = ("model", "cause")  # for people; csv and json have all
IF_DIFFERENT = ("phase", "optimizer", "method", "input", "loaders", "prefetch", "threads", "host")
TOLD_BY_PLACE = ("strategy", "batch", "num_gpu", "replicas", "staged_from")  # in plots
SHOWN_OPTIONS = ("gpu", "device_count", "staging", "strategy", "runs")  # elsewhere, or not at all
ORDER = (
    *("model", "gpu_type", "platform", "num_gpu", "strategy", "batch"),
    *("staged_from", "dtype", "phase", "optimizer", "input", "loaders", "prefetch"),
)
STAGED = {"local": "$LOCAL", "shared": "$SCRATCH"}  # our word: the seed's
PUBLISHED = {  # numbers that others published, or that follow from samples
    "mean_speed": "speed_per_s",
    "speed_uncertainty": "speed_uncertainty_per_s",
    "Speed_Jitter": "speed_jitter_per_s",
}
FURTHER_COLUMNS = ("seq", "method_options", "estimate", "family", "params")


def step_rows(data: Data) -> pl.LazyFrame:
    """Return `COLUMNS` and `FURTHER_COLUMNS` of each measured or published whole step."""
    has_samples = pl.col("samples_n") > 0
    is_step = (pl.col("origin") != "predicted") & (pl.col("scope") == "")
    has_outcome = (pl.col("status") != "ok") | pl.col("step_s").is_not_null()
    published = {
        name: pl.when(has_samples)
        .then(pl.col(column))
        .otherwise(other_number(f"published_{column}"))
        for name, column in PUBLISHED.items()
    }
    from_disk = pl.when(pl.col("input") == "dataset").then(pl.lit("shared"))
    columns = {
        **published,
        "Mean_Time_Per_Step": pl.when(has_samples)
        .then(pl.col("step_s_mean"))
        .otherwise(pl.col("step_s")),
        "mean_speed_corrected": pl.col("speed_per_s"),
        "global_batch": pl.when(pl.col("step_s").is_not_null()).then(pl.col("global_batch")),
        "gpu_type": pl.coalesce("gpu", "platform"),
        "num_gpu": pl.col("device_count"),
        "staged_from": pl.coalesce("staging", from_disk).replace_strict(STAGED, default=None),
    }
    return (
        data.scan()
        .filter(is_step & has_outcome)
        .select(
            *(columns.get(name, pl.col(name)).alias(name) for name in COLUMNS),
            *FURTHER_COLUMNS,
        )
    )


def device_table(data: Data) -> Table:
    """Return a row for each measured or published record of a whole step; failed ones too.

    Speeds are in examples/s, times in seconds; None is unknown. `mean_speed` is what was logged,
    `mean_speed_corrected` is the batch of all `replicas` over the mean time of a step, which
    differs where a program divided by the batch of one replica only. `num_gpu` counts the devices
    that the job had, `replicas` those that worked. Rows stand by model, device and number of
    devices, strategy, batch and staging; of equal ones the first recorded comes first. People see
    one of `IF_DIFFERENT` only where it tells rows apart, and the first rows of very many.
    """
    steps = step_rows(data).select(*COLUMNS, "seq").collect()
    counts = steps.select(pl.col(IF_DIFFERENT).cast(pl.String).fill_null("").n_unique())
    differ = [name for name in IF_DIFFERENT if counts[name].sum() > 1]
    ordered = steps.sort(*ORDER, "seq", nulls_last=False)
    shown_steps = ordered if data.max_rows is None else ordered.head(data.max_rows)
    rows = shown_steps.select(COLUMNS).to_dicts()
    total = len(steps)
    always = (name for name in MAIN if name not in IF_DIFFERENT)
    shown = tuple(map(Column, (*always, *BEHIND, *differ)))
    return Table(
        shown,
        rows,
        footnotes=describe_hidden_rows(total - len(rows)),
        has_units=False,
        csv_columns=tuple(map(Column, COLUMNS)),
        summary={"rows": total} if total > len(rows) else {},
    )


def device_bars(data: Data, most: int = 60) -> list[Row]:
    """Return the speed of each step that was measured or published, with its error, for bars.

    `speed` [examples/s] counts all replicas. `low` and `high` are the 95 % interval of a
    measurement; of a published number one sigma to each side, as published (`interval` says which).
    `settings` has all that may tell this step from others of its network. What only has the content
    of another file is left out. Of more than `most` models those come first that ran in several
    places; `models` says how many there are.
    """
    is_bar = (
        (pl.col("status") == "ok")
        & pl.col("duplicate_of").is_null()
        & (pl.col("mean_speed_corrected") > 0)
    )
    bars = step_rows(data).filter(is_bar).collect()
    place_count = pl.struct("num_gpu", "gpu_type", "staged_from").n_unique()
    models = (
        bars.group_by("model", maintain_order=True)
        .agg((place_count == 1).alias("is_single"), pl.col("seq").min())
        .sort("is_single", "seq")
    )
    model_names = models["model"].head(most).to_list()
    rows = bars.filter(pl.col("model").is_in(model_names)).sort("seq").drop("seq").to_dicts()
    return [row | _bar(row) | {"settings": _settings(row), "models": len(models)} for row in rows]


def _settings(row: Row) -> Row:
    """Return the settings of a step in the order in which they are told; what repeats is none."""
    options = json.loads(row["method_options"])
    return {
        **{name: row[name] for name in ("phase", "optimizer", "dtype", "method")},
        **{name: row[name] for name in TOLD_BY_PLACE},
        **{k: v for k, v in options.items() if k not in SHOWN_OPTIONS},
    }


def _bar(row: Row) -> Row:
    speed, low, high = row["mean_speed_corrected"], None, None
    found = row["estimate"]
    if found and found["value"]:
        steady, low, high = (
            end and row["global_batch"] / end for end in map(found.get, ("value", "high", "low"))
        )
        return {"speed": steady, "low": low, "high": high, "interval": "95 %"}
    sigma = row["speed_uncertainty"]
    if sigma is not None:
        sigma *= speed / (row["mean_speed"] or speed)  # of the batch that the speed counts
        low, high = speed - sigma, speed + sigma
    return {"speed": speed, "low": low, "high": high, "interval": "1 sigma"}


ANALYSIS = Analysis(
    """Print speeds by device, number of devices and staging.

    A row is a measured or published step.
    """,
    device_table,
    lambda table: [counted(table.summary.get("rows", len(table.rows)), "row")],
)

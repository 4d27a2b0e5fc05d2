"""The device table: speed, its uncertainty and jitter by device, number of devices and staging.

A row is a record. Published numbers stand as they were published; those of measured records follow
from their samples by the same formulas (`records.frames`).
"""

import json

import msgspec
import polars as pl

from steptime.analysis.analyses import Analysis
from steptime.analysis.device_row import DEVICE_COLUMNS, DeviceTableRow
from steptime.analysis.frame_rows import map_rows, read_rows
from steptime.core.tables.table import Column, Table, describe_hidden_rows
from steptime.core.units import format_count
from steptime.records.data import Data
from steptime.records.frames.frame_columns import other_number
from steptime.records.row import Row

MAIN_COLUMNS = (
    *("mean_speed", "Mean_Time_Per_Step", "speed_uncertainty", "Speed_Jitter"),
    *("gpu_type", "num_gpu", "staged_from", "batch", "strategy"),
    *("dtype", "phase", "optimizer", "input", "loaders", "status", "mean_speed_corrected"),
)
LAST_COLUMNS = ("model", "cause")  # for people; csv and json have all
COLUMNS_IF_DIFFERENT = (
    "phase",
    "optimizer",
    "method",
    "input",
    "loaders",
    "prefetch",
    "threads",
    "host",
)
PLACE_SETTINGS = ("strategy", "batch", "num_gpu", "replicas", "staged_from")  # the axis of a plot
SILENT_OPTIONS = ("gpu", "device_count", "staging", "strategy", "runs")  # of a bar
MAX_MODELS = 60  # of a plot
SORT_COLUMNS = (
    *("model", "gpu_type", "platform", "num_gpu", "strategy", "batch"),
    *("staged_from", "dtype", "phase", "optimizer", "input", "loaders", "prefetch"),
)
STAGED = {"local": "$LOCAL", "shared": "$SCRATCH"}  # our word: that of the PSC logs (docs/seeds.md)
PUBLISHED_COLUMNS = {  # numbers that others published, or that follow from samples
    "mean_speed": "examples_per_s",
    "speed_uncertainty": "examples_uncertainty_per_s",
    "Speed_Jitter": "examples_jitter_per_s",
}
FURTHER_COLUMNS = ("seq", "method_options", "estimate", "family", "params")


def step_rows(data: Data) -> pl.LazyFrame:
    """Return `DEVICE_COLUMNS` and `FURTHER_COLUMNS` of each measured or published whole step."""
    has_samples = pl.col("samples_n") > 0
    is_step = (pl.col("origin") != "predicted") & (pl.col("scope") == "")
    # Records of single passes or phases have no step.
    has_outcome = (pl.col("status") != "ok") | pl.col("step_s").is_not_null()
    # Without samples of one's own the published numbers stand in.
    published = {
        name: pl.when(has_samples)
        .then(pl.col(column))
        .otherwise(other_number(f"published_{column}"))
        for name, column in PUBLISHED_COLUMNS.items()
    }
    # A data set that states no staging counts as read from the shared file system.
    from_disk = pl.when(pl.col("input") == "dataset").then(pl.lit("shared"))
    columns = {
        **published,
        "Mean_Time_Per_Step": pl.when(has_samples)
        .then(pl.col("step_s_mean"))
        .otherwise(pl.col("step_s")),
        "mean_speed_corrected": pl.col("examples_per_s"),
        "global_batch": pl.when(pl.col("step_s").is_not_null()).then(pl.col("global_batch")),
        "gpu_type": pl.coalesce("gpu", "platform"),
        "num_gpu": pl.col("device_count"),
        "staged_from": pl.coalesce("staging", from_disk).replace_strict(STAGED, default=None),
    }
    return (
        data.scan()
        .filter(is_step & has_outcome)
        .select(
            *(columns.get(name, pl.col(name)).alias(name) for name in DEVICE_COLUMNS),
            *FURTHER_COLUMNS,
        )
    )


def device_table(data: Data) -> Table:
    """Return a row for each measured or published record of a whole step; failed ones too.

    Speeds are in examples/s, times in seconds; None is unknown. `mean_speed` is what was logged,
    `mean_speed_corrected` is the batch of all `replicas` over the mean time of a step, which
    differs where a program divided by the batch of one replica only. `num_gpu` counts the devices
    that the job had, `replicas` those that worked. Rows stand by model, device and number of
    devices, strategy, batch and staging; among equal rows the first recorded comes first. People
    see a setting of `COLUMNS_IF_DIFFERENT` only where it tells rows apart, and the first rows of
    very many.
    """
    steps = step_rows(data)
    values = [pl.col(name).cast(pl.String).fill_null("") for name in COLUMNS_IF_DIFFERENT]
    counts = steps.select(pl.len().alias("rows"), *(value.n_unique() for value in values)).collect()
    differing = [name for name in COLUMNS_IF_DIFFERENT if counts[name].item() > 1]
    ordered = steps.sort(*SORT_COLUMNS, "seq", nulls_last=False).select(DEVICE_COLUMNS)
    row_count = counts["rows"].item()
    printed_count = row_count if data.max_rows is None else min(row_count, data.max_rows)
    main_columns = (name for name in MAIN_COLUMNS if name not in COLUMNS_IF_DIFFERENT)
    rows = read_rows(ordered, printed_count)
    return Table(
        tuple(map(Column, (*main_columns, *LAST_COLUMNS, *differing))),
        rows,
        footnotes=describe_hidden_rows(row_count - printed_count),
        has_units=False,  # plain numbers, as the PSC logs have them
        csv_columns=tuple(map(Column, DEVICE_COLUMNS)),
        summary={"rows": row_count} if row_count > printed_count else {},
        structs=map_rows(lambda row: msgspec.convert(row, DeviceTableRow), rows),
    )


def device_bars(data: Data, max_models: int = MAX_MODELS) -> list[Row]:
    """Return the speed of each measured or published step, with its error, for bars.

    `speed` [examples/s] counts all replicas. `low` and `high` are the 95 % interval of a
    measurement; of a published number one sigma to each side, as published (`interval` says which).
    `settings` has all that may tell this step from others of its network. A step whose file
    is a copy of another file is left out. Of more than `max_models` models those come first that
    ran in several places; `models` is their number.
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
        # Models that ran in several places come first: their bars can be compared.
        .sort("is_single", "seq")
    )
    model_names = models["model"].head(max_models).to_list()
    rows = bars.filter(pl.col("model").is_in(model_names)).sort("seq").drop("seq").to_dicts()
    return [
        row | _estimate_bar(row) | {"settings": _list_bar_settings(row), "models": len(models)}
        for row in rows
    ]


def _list_bar_settings(row: Row) -> Row:
    """Return the settings of a step in the order of a bar's label, each of them once."""
    options = json.loads(row["method_options"])
    return {
        **{name: row[name] for name in ("phase", "optimizer", "dtype", "method")},
        **{name: row[name] for name in PLACE_SETTINGS},
        **{k: v for k, v in options.items() if k not in SILENT_OPTIONS},
    }


def _estimate_bar(row: Row) -> Row:
    """Return the speed of a step with its ends, and the kind of the interval."""
    estimate = row["estimate"]
    if estimate and estimate["value"]:

        def to_speed(step_s: float | None) -> float | None:  # in examples per second
            return row["global_batch"] / step_s if step_s else None

        # A longer step is a lower speed: the ends of the interval change places.
        speed = to_speed(estimate["value"])
        low, high = to_speed(estimate["high"]), to_speed(estimate["low"])
        return {"speed": speed, "low": low, "high": high, "interval": "95 %"}
    speed = row["mean_speed_corrected"]
    sigma = row["speed_uncertainty"]
    if sigma is None:
        return {"speed": speed, "low": None, "high": None, "interval": "1 sigma"}
    # The uncertainty is of the speed as logged, which may be by another batch than `speed`.
    logged_speed = row["mean_speed"] or speed
    reach = sigma * speed / logged_speed
    return {"speed": speed, "low": speed - reach, "high": speed + reach, "interval": "1 sigma"}


ANALYSIS = Analysis(
    """Print speeds by device, number of devices and staging.

    A row is a measured or published step.
    """,
    device_table,
    lambda table: [format_count(table.summary.get("rows", len(table.rows)), "row")],
    row_struct=DeviceTableRow,
)

"""The points of a roofline: the intensity and the speed of networks or of single ops."""

from collections.abc import Mapping, Sequence

import polars as pl

from steptime.core.errors import unknown
from steptime.records.data import Data
from steptime.records.frames.frame_columns import other_number
from steptime.records.pooled_step import IS_PREDICTED, IS_STEP
from steptime.records.record_columns import record_column_names, record_columns

FACTS = ("model", "family", "platform", "dtype", "batch", "origin", "method")
LINE_COLUMNS = ("replicas", "phase", "optimizer")  # and hyperparameters: equal along a line
SETTING_PREFIX = "setting "  # of columns that users name: a hyperparameter has any name
PREDICTION_NUMBERS = ("predicted_flop_per_s", "peak_flop_per_s", "memory_bytes_per_s")
POINT_NUMBERS = ("intensity", "flop_per_s", "peak_share", *PREDICTION_NUMBERS)
STATED_SPEED = other_number("published_flop_per_s")
STATED_FLOP = other_number("published_flop")
STATED_PEAK_SHARE = other_number("published_flop_share")
STATED_INTENSITY = other_number("published_intensity_flop_per_byte")
IS_PUBLISHED = pl.col("origin") == "published"
SUCCEEDED = pl.col("status") == "ok"
NETWORK = ("workload_key", "platform")
OP = (*NETWORK, "scope")
PREDICTED_SUFFIX = " of the prediction"


def list_points(data: Data, names: Sequence[str], *, ops: bool) -> pl.DataFrame:
    """Return the points: `name`, `FACTS`, `POINT_NUMBERS` and settings; null is unknown.

    The settings are hyperparameters, `LINE_COLUMNS` and `names`, behind `SETTING_PREFIX`.

    Args:
        data: the records.
        names: names of further settings.
        ops: whether points are single ops instead of whole networks.

    Raises:
        InputError: for the name of no column.
    """
    columns = record_column_names(data)
    schema = data.scan_results().collect_schema()
    for name in names:
        if name not in {*columns, *schema}:
            raise unknown("column", name, [*data.hyperparameters, *columns, *schema])
    # Points of equal settings are drawn as one line.
    line_columns = [name for name in (*LINE_COLUMNS, *data.hyperparameters) if name in columns]
    settings = [
        name for name in dict.fromkeys((*line_columns, *names)) if name not in ("name", *FACTS)
    ]
    if ops:
        return _list_ops(_select_records(data, settings), settings)
    points = []
    if "published" in data.origins:
        records = _select_records(data, settings)
        points.append(_list_published(records, _list_costs(data), settings))
    points.append(_list_results(data, settings))
    return pl.concat(points, how="vertical_relaxed").collect()


def setting_column(name: str) -> str:
    """Return the column of a setting in a frame of points."""
    return f"{SETTING_PREFIX}{name}"


def _setting_columns(columns: Mapping[str, pl.Expr], settings: Sequence[str]) -> list[pl.Expr]:
    """Return settings, null where there is no such column."""
    unknown_value = pl.lit(None)
    return [columns.get(name, unknown_value).alias(setting_column(name)) for name in settings]


def _select_records(data: Data, settings: Sequence[str]) -> pl.LazyFrame:
    """Return the records with the columns of points, and the published numbers that they state."""
    return data.scan().select(
        *FACTS,
        *("workload_key", "scope", "status", "duplicate_of", "step_s"),
        pl.col("flop").alias("op_flop"),
        pl.col("traffic_bytes").alias("op_traffic_bytes"),
        pl.col("peak_flop_per_s").alias("op_peak_flop_per_s"),
        pl.col("memory_bytes_per_s").alias("op_memory_bytes_per_s"),
        *_setting_columns(record_columns(data), settings),
        STATED_SPEED.alias("stated_speed"),
        STATED_FLOP.alias("stated_flop"),
        STATED_PEAK_SHARE.alias("peak_share"),
        STATED_INTENSITY.alias("stated_intensity"),
    )


def _list_results(data: Data, settings: Sequence[str]) -> pl.LazyFrame:
    """Return the results with a time that are not published."""
    results = data.scan_results()
    columns = {name: pl.col(name) for name in results.collect_schema()}
    has_time = (pl.col("measured_s") > 0) | (pl.col("predicted_s") > 0)
    numbers = {name: pl.col(name) for name in POINT_NUMBERS}
    numbers["peak_share"] = pl.lit(None, pl.Float64())  # only publications state it
    return results.filter(~IS_PUBLISHED & has_time).select(
        pl.col("label").alias("name"),
        *FACTS,
        *_setting_columns(columns, settings),
        *(numbers[name].alias(name) for name in POINT_NUMBERS),
    )


def _list_costs(data: Data) -> pl.LazyFrame:
    """Return the predicted FLOP of each network on each platform, from its first result."""
    return (
        data.scan_results()
        .filter(pl.col("flop") > 0)
        .unique(NETWORK, keep="first", maintain_order=True)
        .select("label", *NETWORK, "flop", "intensity", *PREDICTION_NUMBERS)
    )


def _list_published(
    records: pl.LazyFrame, costs: pl.LazyFrame, settings: Sequence[str]
) -> pl.LazyFrame:
    """Return the published steps; FLOP that they do not state are those of a prediction."""
    is_counted = IS_PUBLISHED & IS_STEP & SUCCEEDED & pl.col("duplicate_of").is_null()
    batch = pl.concat_str(pl.lit(", batch "), pl.col("batch").cast(pl.String())).fill_null("")
    # A number that is published wins over one that follows from a prediction of the network.
    speed = pl.coalesce("stated_flop", "flop") / _null_if_zero("step_s")
    return (
        records.filter(is_counted)
        .join(costs, on=NETWORK, how="left", maintain_order="left")
        .select(
            pl.coalesce("label", pl.concat_str("model", batch)).alias("name"),
            *FACTS,
            *map(setting_column, settings),
            pl.coalesce("stated_intensity", "intensity").alias("intensity"),
            pl.coalesce("stated_speed", speed).alias("flop_per_s"),
            "peak_share",
            *PREDICTION_NUMBERS,
        )
    )


def _list_ops(records: pl.LazyFrame, settings: Sequence[str]) -> pl.DataFrame:
    """Return the ops, each measurement beside the prediction of the op."""
    ops = records.filter(~IS_STEP & SUCCEEDED)
    # The first prediction of each op.
    predicted = ops.filter(IS_PREDICTED).unique(OP, keep="first", maintain_order=True)
    pairs = ops.filter(~IS_PREDICTED).join(
        predicted,
        on=OP,
        how="full",
        coalesce=True,
        suffix=PREDICTED_SUFFIX,
        maintain_order="left_right",
    )
    # FLOP and bytes are predicted, times measured.
    cost_flop = pl.col(f"op_flop{PREDICTED_SUFFIX}")
    speed = pl.coalesce("stated_flop", cost_flop) / _null_if_zero("step_s")
    intensity = cost_flop / _null_if_zero(f"op_traffic_bytes{PREDICTED_SUFFIX}")
    return pairs.select(
        pl.concat_str("scope", pl.lit(" in "), _coalesce_with_prediction("model")).alias("name"),
        *(pl.col(name) if name in OP else _coalesce_with_prediction(name) for name in FACTS),
        *(_coalesce_with_prediction(setting_column(name)) for name in settings),
        pl.coalesce("stated_intensity", intensity).alias("intensity"),
        pl.coalesce("stated_speed", speed).alias("flop_per_s"),
        "peak_share",
        (cost_flop / _null_if_zero(f"step_s{PREDICTED_SUFFIX}")).alias("predicted_flop_per_s"),
        *(
            pl.col(f"op_{name}{PREDICTED_SUFFIX}").alias(name)
            for name in ("peak_flop_per_s", "memory_bytes_per_s")
        ),
    ).collect()


def _coalesce_with_prediction(name: str) -> pl.Expr:
    """Return a column of the measurement, of the prediction if there is none."""
    return pl.coalesce(name, f"{name}{PREDICTED_SUFFIX}").alias(name)


def _null_if_zero(name: str) -> pl.Expr:
    """Return a column, null where it is 0."""
    return pl.when(pl.col(name) != 0).then(pl.col(name))

"""How far predictions are from measurements, by method, platform and family of networks."""

import numpy as np
import polars as pl

from steptime.analysis.analyses import Analysis
from steptime.core.table import Column, Table
from steptime.core.units import counted, percent
from steptime.records.data import Data
from steptime.records.ratios import accuracy
from steptime.records.row import Row

GROUP = ("predicted_by", "platform", "family")
SHARES = ("median_error", "within_factor_2")  # named so where a name says its unit


def error_table(data: Data) -> Table:
    """Return the errors of the predictions by method, platform and family; most pairs first."""
    results = data.results_frame([*GROUP, "name", "ratio"]).filter(pl.col("ratio") > 0)
    farthest = pl.col("ratio").log().abs().arg_max()
    groups = (
        results.group_by(GROUP, maintain_order=True)
        .agg(
            pl.col("ratio").alias("ratios"),
            pl.col("name").get(farthest).alias("farthest"),
            pl.col("ratio").get(farthest).alias("farthest_ratio"),
            pl.len().alias("pairs"),
        )
        .sort("predicted_by", "platform", -pl.col("pairs").cast(pl.Int64), "family")
    )
    rows = [_row(**group) for group in groups.drop("pairs").iter_rows(named=True)]
    return Table(
        (
            Column("predicted_by", "predicted by"),
            Column("platform", is_spare=True),
            Column("family"),
            Column("pairs"),
            Column("median_error_share", "median error"),
            Column("geometric_mean_ratio", "measured / predicted"),
            Column("within_factor_2_share", "within a factor of 2"),
            Column("farthest", is_spare=True),
            Column("farthest_ratio", "its ratio", is_spare=True),
        ),
        rows,
    )


def _row(ratios: list[float], farthest: str, farthest_ratio: float, **group: str) -> Row:
    off = accuracy(np.array(ratios))
    told = {f"{name}_share" if name in SHARES else name: value for name, value in off.items()}
    return {**group, **told, "farthest": farthest, "farthest_ratio": farthest_ratio}


def _says(table: Table) -> list[str]:
    if not table.rows:
        hint = "steptime predict --in DIR predicts every step in a folder"
        return [f"nothing here is both measured and predicted; {hint}"]
    worst = max(table.rows, key=lambda row: float(row["median_error_share"]))
    what = f"{worst['predicted_by']} for {worst['family']} on {worst['platform']}"
    error = f"The largest median error is {percent(worst['median_error_share'])}"
    return [f"{error}, of {what} ({counted(worst['pairs'], 'pair')})."]


ANALYSIS = Analysis(
    """Print how far predictions are from measurements, by family.

    The error of a pair is |predicted / measured - 1|. The ratio is the
    geometric mean of measured / predicted.
    """,
    error_table,
    _says,
    section="How far predictions are from measurements",
)

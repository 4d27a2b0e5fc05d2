"""How far predictions are from measurements, by method, platform and family of networks."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from steptime.analysis.analyses import Analysis
from steptime.core.answer import AnswerRow
from steptime.core.tables.table import Column, Table
from steptime.core.units import format_count, format_percent
from steptime.records.data import Data
from steptime.records.ratios import accuracy

GROUP = ("predicted_by", "platform", "family")


class FamilyErrors(AnswerRow, frozen=True, kw_only=True):
    """The errors of one method on one platform, for one family of networks.

    Attributes:
        predicted_by: the cost model of the predictions.
        platform: the platform.
        family: the family of networks.
        pairs: number of predictions with a measurement.
        median_error_share: median of |predicted / measured - 1|.
        geometric_mean_ratio: geometric mean of measured / predicted.
        within_factor_2_share: share of the pairs that lie within a factor of 2.
        farthest: name of the network whose ratio is farthest from 1.
        farthest_ratio: measured / predicted of that network.
    """

    predicted_by: str
    platform: str
    family: str | None
    pairs: int
    median_error_share: float
    geometric_mean_ratio: float
    within_factor_2_share: float
    farthest: str
    farthest_ratio: float


def measure_errors(data: Data) -> list[FamilyErrors]:
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
    return [_measure_group(**group) for group in groups.drop("pairs").iter_rows(named=True)]


def _measure_group(
    ratios: Sequence[float],
    farthest: str,
    farthest_ratio: float,
    predicted_by: str,
    platform: str,
    family: str | None,
) -> FamilyErrors:
    """Return the errors of the predictions of one group, from their ratios."""
    errors = accuracy(np.array(ratios))
    return FamilyErrors(
        predicted_by=predicted_by,
        platform=platform,
        family=family,
        pairs=errors["pairs"],
        median_error_share=errors["median_error"],
        geometric_mean_ratio=errors["geometric_mean_ratio"],
        within_factor_2_share=errors["within_factor_2"],
        farthest=farthest,
        farthest_ratio=farthest_ratio,
    )


def make_error_table(data: Data) -> Table:
    """Return the table of `measure_errors`."""
    groups = measure_errors(data)
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
            Column("farthest_ratio", "farthest ratio", is_spare=True),
        ),
        [group.to_dict() for group in groups],
        structs=groups,
    )


def _describe_errors(table: Table) -> list[str]:
    """Return the group with the largest median error: "The largest median error is 9 %, ..."."""
    if not table.rows:
        hint = "steptime predict --in DIR predicts every step in a folder"
        return [f"nothing here is both measured and predicted; {hint}"]
    worst: FamilyErrors = max(table.structs, key=lambda group: float(group.median_error_share))
    group = f"{worst.predicted_by} for {worst.family} on {worst.platform}"
    error = f"The largest median error is {format_percent(worst.median_error_share)}"
    return [f"{error}, of {group} ({format_count(worst.pairs, 'pair')})."]


ANALYSIS = Analysis(
    """Print how far predictions are from measurements, by family.

    The error of a pair is |predicted / measured - 1|. The ratio is the
    geometric mean of measured / predicted.
    """,
    make_error_table,
    _describe_errors,
    row_struct=FamilyErrors,
    section="How far predictions are from measurements",
)

"""What all records of a row of results say together: times, samples, memory, hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from steptime.records.frame_columns import COUNT

if TYPE_CHECKING:
    from steptime.records.folders import Folders
    from steptime.records.group_members import Ids, Members

ATTEMPT_COLUMNS = (
    *("tried", "host", "measured_min_s", "mean_s", "samples_n", "disturbed_share"),
    "measured_memory_bytes",
)
RECORD_COLUMNS = (
    *("place", "host", "step_s_min", "step_s", "step_s_mean", "samples_n"),
    *("samples_disturbed", "marks_n", "peak_bytes"),
)


def attempt_columns(data: Folders, members: Members, groups: Ids) -> pl.DataFrame:
    """Return `ATTEMPT_COLUMNS` for each of some groups, nulls for -1.

    `tried` has the places of the records, `mean_s` the mean over all samples.
    """
    distinct = np.unique(groups[groups >= 0])
    places, owner = members.of_groups(distinct)
    owners = pl.DataFrame({"seq": members.seq[places], "group": distinct[owner]})
    is_ok = (pl.col("status") == "ok").alias("is_ok")
    records = data.take_records(members.seq[places], [*RECORD_COLUMNS, is_ok])
    rows = owners.join(records, on="seq", how="left", maintain_order="left")
    attempts = rows.group_by("group", maintain_order=True).agg(_attempt_expressions())
    frame = pl.DataFrame({"group": pl.Series(groups, dtype=COUNT)})
    columns = frame.join(attempts, on="group", how="left", maintain_order="left")
    return columns.with_columns(pl.col("samples_n").fill_null(0)).select(ATTEMPT_COLUMNS)


def _attempt_expressions() -> list[pl.Expr]:
    is_good = pl.col("is_ok") & pl.col("step_s").is_not_null()
    count = is_good.sum()
    good = {name: pl.col(name).filter(is_good) for name in RECORD_COLUMNS}
    sampled = pl.col("samples_n").filter(is_good).drop_nulls()
    has_samples = sampled.len() > 0
    total_s = (pl.col("step_s_mean") * pl.col("samples_n")).filter(is_good).drop_nulls()
    mean_s = pl.when(has_samples & (total_s.len() > 0)).then(total_s.sum() / sampled.sum())
    several = pl.when(count > 1)
    marks = good["marks_n"].drop_nulls()
    disturbed = good["samples_disturbed"].drop_nulls()
    has_marks = (marks.sum() > 0) & (disturbed.len() > 0)
    hosts = pl.col("host").filter(pl.col("host") != "").unique(maintain_order=True)
    return [
        pl.col("place").alias("tried"),
        hosts.str.join(", ").replace("", None).alias("host"),
        pl.coalesce(good["step_s_min"].min(), several.then(good["step_s"].min())).alias(
            "measured_min_s"
        ),
        pl.coalesce(mean_s, good["step_s"].median()).alias("mean_s"),
        pl.coalesce(pl.when(has_samples).then(sampled.sum()), several.then(count).otherwise(0))
        .cast(COUNT)
        .alias("samples_n"),
        pl.when(has_marks).then(disturbed.sum() / marks.sum()).alias("disturbed_share"),
        pl.col("peak_bytes").filter("is_ok").max().alias("measured_memory_bytes"),
    ]

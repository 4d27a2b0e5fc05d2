"""What all records of a row of results say together: times, samples, memory, hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from steptime.records.frames.frame_columns import COUNT

if TYPE_CHECKING:
    from steptime.records.folders import Folders
    from steptime.records.groups.group_members import Ids, Members

ATTEMPT_COLUMNS = (
    *("tried", "host", "measured_min_s", "mean_s", "samples_n", "disturbed_share"),
    "measured_memory_bytes",
)
RECORD_COLUMNS = (
    *("place", "host", "step_s_min", "step_s", "step_s_mean", "samples_n", "runs"),
    *("samples_disturbed", "marks_n", "peak_bytes"),
)


def attempt_columns(data: Folders, members: Members, groups: Ids) -> pl.DataFrame:
    """Return `ATTEMPT_COLUMNS` for each of some groups, nulls for -1.

    `tried` has the places of the records, `mean_s` the mean over all samples. Repeats, runs of one
    sample each, count as their median: one slow run of five does not decide.
    """
    distinct = np.unique(groups[groups >= 0])  # without -1, which stands for no group
    # `group_index[i]` is the place in `distinct` of the group of record `i`.
    members_of_groups, group_index = members.list_members(distinct)
    seqs = members.seq[members_of_groups]
    group_of_record = pl.DataFrame({"seq": seqs, "group": distinct[group_index]})
    is_ok = (pl.col("status") == "ok").alias("is_ok")
    records = data.take_records(seqs, [*RECORD_COLUMNS, is_ok])
    rows = group_of_record.join(records, on="seq", how="left", maintain_order="left")
    # One row for each group, then one for each entry of `groups`, which may repeat a group.
    attempts = rows.group_by("group", maintain_order=True).agg(_attempt_expressions())
    group_rows = pl.DataFrame({"group": pl.Series(groups, dtype=COUNT)})
    columns = group_rows.join(attempts, on="group", how="left", maintain_order="left")
    return columns.with_columns(pl.col("samples_n").fill_null(0)).select(ATTEMPT_COLUMNS)


def _attempt_expressions() -> list[pl.Expr]:
    is_good = pl.col("is_ok") & pl.col("step_s").is_not_null()
    good = {name: pl.col(name).filter(is_good) for name in RECORD_COLUMNS}
    sample_counts = good["samples_n"].drop_nulls()
    has_samples = sample_counts.len() > 0
    has_several_good = is_good.sum() > 1

    # Without samples, the values of several records count as samples. A single value is no sample,
    # so it has no shortest time.
    shortest_value_s = pl.when(has_several_good).then(good["step_s"].min())
    repeat_count = pl.when(has_several_good).then(is_good.sum()).otherwise(0)
    sample_count = pl.when(has_samples).then(sample_counts.sum())

    # Repeats, runs of one sample each, count as their median: one slow run does not decide.
    is_repeated = pl.col("runs") == pl.col("samples_n")
    record_s = pl.when(is_repeated).then(pl.col("step_s")).otherwise(pl.col("step_s_mean"))
    total_s = (record_s * pl.col("samples_n")).filter(is_good).drop_nulls()
    has_total = has_samples & (total_s.len() > 0)
    mean_s = pl.when(has_total).then(total_s.sum() / sample_counts.sum())

    # `marks_n`: samples for which the record says whether another process disturbed them.
    marks = good["marks_n"].drop_nulls()
    disturbed = good["samples_disturbed"].drop_nulls()
    has_marks = (marks.sum() > 0) & (disturbed.len() > 0)
    disturbed_share = pl.when(has_marks).then(disturbed.sum() / marks.sum())
    hosts = pl.col("host").filter(pl.col("host") != "").unique(maintain_order=True)
    return [
        pl.col("place").alias("tried"),
        hosts.str.join(", ").replace("", None).alias("host"),
        pl.coalesce(good["step_s_min"].min(), shortest_value_s).alias("measured_min_s"),
        pl.coalesce(mean_s, good["step_s"].median()).alias("mean_s"),
        pl.coalesce(sample_count, repeat_count).cast(COUNT).alias("samples_n"),
        disturbed_share.alias("disturbed_share"),
        pl.col("peak_bytes").filter("is_ok").max().alias("measured_memory_bytes"),
    ]

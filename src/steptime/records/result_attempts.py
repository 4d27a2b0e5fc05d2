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


IS_GOOD = pl.col("is_ok") & pl.col("step_s").is_not_null()  # whether a record holds a step
HAS_SEVERAL_GOOD = IS_GOOD.sum() > 1
SAMPLE_COUNTS = pl.col("samples_n").filter(IS_GOOD).drop_nulls()  # of records with samples
HAS_SAMPLES = SAMPLE_COUNTS.len() > 0


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
    """Return the expressions of `ATTEMPT_COLUMNS` over the records of a group."""
    hosts = pl.col("host").filter(pl.col("host") != "").unique(maintain_order=True)
    return [
        pl.col("place").alias("tried"),
        hosts.str.join(", ").replace("", None).alias("host"),
        _shortest_s().alias("measured_min_s"),
        pl.coalesce(_mean_s(), _select_good("step_s").median()).alias("mean_s"),
        _sample_count().cast(COUNT).alias("samples_n"),
        _disturbed_share().alias("disturbed_share"),
        pl.col("peak_bytes").filter("is_ok").max().alias("measured_memory_bytes"),
    ]


def _select_good(name: str) -> pl.Expr:
    """Return a column of the records that hold a step."""
    return pl.col(name).filter(IS_GOOD)


def _shortest_s() -> pl.Expr:
    """Return the shortest sample, or the shortest value of several records without samples."""
    # A single value is no sample, so it has no shortest time.
    shortest_value_s = pl.when(HAS_SEVERAL_GOOD).then(_select_good("step_s").min())
    return pl.coalesce(_select_good("step_s_min").min(), shortest_value_s)


def _sample_count() -> pl.Expr:
    """Return the number of samples; without any, the values of several records count as samples."""
    sample_count = pl.when(HAS_SAMPLES).then(SAMPLE_COUNTS.sum())
    repeat_count = pl.when(HAS_SEVERAL_GOOD).then(IS_GOOD.sum()).otherwise(0)
    return pl.coalesce(sample_count, repeat_count)


def _mean_s() -> pl.Expr:
    """Return the mean over all samples, null without any.

    Repeats, runs of one sample each, count as their median: one slow run does not decide.
    """
    is_repeated = pl.col("runs") == pl.col("samples_n")
    record_s = pl.when(is_repeated).then(pl.col("step_s")).otherwise(pl.col("step_s_mean"))
    total_s = (record_s * pl.col("samples_n")).filter(IS_GOOD).drop_nulls()
    has_total = HAS_SAMPLES & (total_s.len() > 0)
    return pl.when(has_total).then(total_s.sum() / SAMPLE_COUNTS.sum())


def _disturbed_share() -> pl.Expr:
    """Return the share of disturbed samples among those marked as disturbed or not."""
    mark_count = _select_good("marks_n").drop_nulls().sum()
    disturbed = _select_good("samples_disturbed").drop_nulls()
    has_marks = (mark_count > 0) & (disturbed.len() > 0)
    return pl.when(has_marks).then(disturbed.sum() / mark_count)

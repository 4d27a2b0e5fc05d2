"""The records that take part in a comparison, as columns, and the samples that they hold."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from steptime.records.frames.frame_columns import NUMBER, SAMPLED
from steptime.records.pair_keys import (
    IS_PREDICTED,
    METHOD,
    quantity_value,
    sort_levels,
    without_keys,
)
from steptime.records.row import ESTIMATE
from steptime.records.warmup import Floats

if TYPE_CHECKING:
    from steptime.records.folders import Folders

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]
NO_KEY = -1
ALL_RECORDS = pl.lit(True)
ANY_METHOD = (pl.lit(""),)  # groups do not differ in how they were measured


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """The question by what records are grouped; all are expressions over a frame of records.

    Attributes:
        quantity: the quantity that is compared.
        level: the level of a record as text; a record without one takes no part.
        cell: the values that records share if they may be paired.
        takes_part: whether a record takes part.
        method: the values that the records of a group share beside level and cell.
        partner_key: what the two of a pair must share if both have it; None pairs by options.
        level_options: options of methods in which a pair may differ if `partner_key` is None.
    """

    quantity: str
    level: pl.Expr
    cell: Sequence[pl.Expr]
    takes_part: pl.Expr = ALL_RECORDS
    method: Sequence[pl.Expr] = tuple(map(pl.col, METHOD))
    partner_key: pl.Expr | None = None
    level_options: Collection[str] = ()


class _MemberSamples(NamedTuple):
    """Samples of records one behind the other.

    Attributes:
        samples: the samples.
        runs: number of the run of each sample.
        counts: number of samples of each record.
    """

    samples: Floats
    runs: Ids
    counts: Ids


@dataclass(frozen=True, kw_only=True)
class Members:
    """The records that take part, in their order, one entry a record.

    Attributes:
        data: the folders that hold the records.
        quantity: the quantity that is compared.
        levels: the levels in order: numbers by size, words as recorded.
        seq: place of the record among all.
        group: number of its group, by first records.
        level: its level, as an index of `levels`.
        cell: number of its cell.
        partner_key: hash of what the two of a pair must share, `NO_KEY` where unknown.
        setup: hash of its host, origin and method.
        is_step: whether it is of a whole step.
        has_value: whether its value counts: predicted, or measured without a failure.
        is_sampled: whether it has samples of the quantity.
        is_repeated: whether it has a value without samples, which repeats may have too.
        is_resting: whether a sample or the value is not above 0.
        value: the value; NaN where unknown, here as below.
        low: stated low end of an interval.
        high: stated high end.
        runs: number of runs.
        estimate: the columns of `statistics.estimates` by name.
    """

    data: Folders
    quantity: str
    levels: Sequence[str]
    seq: Ids
    group: Ids
    level: Ids
    cell: Ids
    partner_key: Ids
    setup: Ids
    is_step: Flags
    has_value: Flags
    is_sampled: Flags
    is_repeated: Flags
    is_resting: Flags
    value: Floats
    low: Floats
    high: Floats
    runs: Floats
    estimate: dict[str, Floats]

    @cached_property
    def order(self) -> Ids:
        """The places of records by group; those of a group stand in their order."""
        return np.asarray(np.argsort(self.group, kind="stable"))

    @cached_property
    def starts(self) -> Ids:
        """Where each group begins in `order`, and the end of the last one."""
        counts = np.bincount(self.group)
        return np.asarray(np.r_[0, counts.cumsum()].astype(np.int64))

    def list_members(self, groups: Ids) -> tuple[Ids, Ids]:
        """Return the places of the records of groups, and for each the place in `groups`."""
        # For each record of the answer: the place of its group in `groups`, and its rank within the
        # group, from 0.
        counts = self.starts[groups + 1] - self.starts[groups]
        group_index = np.repeat(np.arange(len(groups)), counts)
        first_of_group = counts.cumsum() - counts
        rank_in_group = np.arange(counts.sum()) - first_of_group[group_index]
        return self.order[self.starts[groups][group_index] + rank_in_group], group_index

    def read_samples(self, groups: Ids, is_of_repeats: Flags) -> tuple[list[Floats], list[Ids]]:
        """Return the samples of groups, and the run of each sample.

        Args:
            groups: the groups, in any order.
            is_of_repeats: groups whose samples are the values of their records, each one a run.
        """
        # `groups` may name a group several times: it is read once, and repeated at the end.
        distinct, first, distinct_index = np.unique(groups, return_index=True, return_inverse=True)
        members, group_index = self.list_members(distinct)
        # A repeat is a record without samples: its value counts as a sample of its group.
        is_repeat = is_of_repeats[first][group_index]
        is_read = np.where(is_repeat, self.is_repeated[members], self.is_sampled[members])
        member_samples = self._read_member_samples(members[is_read], is_repeat[is_read])
        # The samples of all records stand in one array, which is cut where a group ends.
        sample_counts = np.bincount(group_index[is_read], member_samples.counts, len(distinct))
        group_stops = sample_counts.cumsum().astype(np.int64)
        samples_by_group = _cut_column(member_samples.samples, group_stops)
        runs_by_group = _cut_column(member_samples.runs, group_stops)
        samples = [samples_by_group[number] for number in distinct_index]
        runs = [runs_by_group[number] for number in distinct_index]
        return samples, runs

    def _read_member_samples(self, members: Ids, is_repeat: Flags) -> _MemberSamples:
        """Return the samples of records; runs of different records have different numbers."""
        records = self._take_sample_lists(self.seq[members[~is_repeat]])
        counts = np.ones(len(members), np.int64)  # a repeat has its value alone
        counts[~is_repeat] = records["samples"].list.len().to_numpy()
        record_index = np.repeat(np.arange(len(members)), counts)  # of each sample
        is_of_repeat = is_repeat[record_index]

        samples = np.empty(len(record_index))
        samples[is_of_repeat] = self.value[members[is_repeat]]
        samples[~is_of_repeat] = _flatten(records["samples"])

        run_in_record = np.zeros(len(record_index), np.int64)
        run_in_record[~is_of_repeat] = _flatten(records["run"])
        return _MemberSamples(samples, _number_runs(record_index, run_in_record), counts)

    def _take_sample_lists(self, seqs: Ids) -> pl.DataFrame:
        """Return the lists `samples` and `run` of records, in the order of `seqs`."""
        list_columns = list(sample_columns(self.quantity))
        # `take_records` returns records sorted by `seq`.
        records_by_seq = self.data.take_records(seqs, list_columns)
        return records_by_seq[np.searchsorted(records_by_seq["seq"].to_numpy(), seqs)]


def _cut_column(column: NDArray[Any], stops: Ids) -> list[NDArray[Any]]:
    """Return the pieces of a column that end at these places; none without a place."""
    return np.split(column, stops[:-1]) if len(stops) else []


def _number_runs(record_index: Ids, run_in_record: Ids) -> Ids:
    """Return a number for each pair of record and run: two records never share a run."""
    distinct_runs, run_place = np.unique(run_in_record, return_inverse=True)
    return record_index * len(distinct_runs) + run_place


def _flatten(lists: pl.Series) -> NDArray[Any]:
    """Return the cells of all lists one behind the other."""
    return lists.explode(empty_as_null=False).to_numpy()


def sample_columns(quantity: str) -> tuple[pl.Expr, pl.Expr]:
    """Return the samples of a quantity and the run of each, as lists."""
    if quantity == "step_s":
        return pl.col("samples"), pl.col("run")
    # Quantities without a column of their own are entries of key and value in `sampled`.
    is_quantity = pl.element().struct.field("key") == quantity
    values = pl.element().filter(is_quantity).struct.field("value")
    sampled = pl.col("sampled").list.eval(values).list.first().cast(SAMPLED)
    return sampled.struct.field("samples"), sampled.struct.field("run")


def read_members(data: Folders, grouping: Grouping) -> Members:
    """Return the records that take part, with the numbers of their groups."""
    records = data.scan().filter(grouping.takes_part).select(_member_columns(data, grouping))
    members = records.filter(pl.col("level").is_not_null()).collect()
    levels = sort_levels(members["level"].unique(maintain_order=True))
    arrays = {name: members[name].to_numpy() for name in members.columns if name != "level"}
    estimate = {name: arrays.pop(f"estimate_{name}") for name in ESTIMATE}
    # Hashes become numbers in the order of records.
    return Members(
        data=data,
        quantity=grouping.quantity,
        levels=levels,
        level=_number_levels(members["level"], levels),
        group=number_by_first(arrays.pop("group")),
        cell=number_by_first(arrays.pop("cell")),
        estimate=estimate,
        **arrays,
    )


def _number_levels(column: pl.Series, levels: Sequence[str]) -> Ids:
    """Return the level of each record as its place among the sorted levels."""
    places = pl.Series(range(len(levels)), dtype=pl.Int64)
    return column.replace_strict(pl.Series(levels, dtype=pl.String), places).to_numpy()


def number_by_first(hashes: NDArray[Any]) -> Ids:
    """Return numbers in place of hashes: 0 for the first one and all equal ones, then 1, ..."""
    _, first, hash_index = np.unique(hashes, return_index=True, return_inverse=True)
    number_of_hash = np.empty(len(first), np.int64)  # in the order of the sorted hashes
    number_of_hash[np.argsort(first)] = np.arange(len(first))
    return number_of_hash[hash_index]


def _member_columns(data: Folders, grouping: Grouping) -> list[pl.Expr]:
    """Return the expressions of the columns of `Members`; keys are hashes."""
    columns = _quantity_columns(grouping.quantity)
    is_good = columns.value.is_not_null() & (pl.col("status") == "ok")
    has_samples = columns.sample_count.fill_null(0) > 0
    # A single value counts as a repeat only if it is neither predicted nor a copy of another
    # record.
    is_original = ~IS_PREDICTED & pl.col("duplicate_of").is_null()
    smallest = pl.coalesce(columns.smallest_sample, columns.value)
    return [
        pl.col("seq"),
        *_key_columns(data, grouping),
        (pl.col("scope") == "").alias("is_step"),
        # A predicted time counts even if the status says that the step does not fit the memory.
        (IS_PREDICTED | is_good).alias("has_value"),
        (is_good & has_samples).alias("is_sampled"),
        (is_good & ~has_samples & is_original).alias("is_repeated"),
        (smallest <= 0).fill_null(value=False).alias("is_resting"),
        columns.value.alias("value"),
        columns.low.alias("low"),
        columns.high.alias("high"),
        columns.run_count.cast(NUMBER).alias("runs"),
        *(column.alias(f"estimate_{name}") for name, column in columns.estimate.items()),
    ]


def _key_columns(data: Folders, grouping: Grouping) -> list[pl.Expr]:
    """Return the level, and hashes of the values by which records are grouped and paired."""
    return [
        grouping.level.alias("level"),
        hash_of([grouping.level, *grouping.cell, *grouping.method]).alias("group"),
        hash_of(grouping.cell).alias("cell"),
        _partner_key(data, grouping).alias("partner_key"),
        hash_of(("host", "origin", *METHOD)).alias("setup"),
    ]


class _QuantityColumns(NamedTuple):
    """Expressions of the numbers of a quantity in a record.

    Attributes:
        value: the value.
        sample_count: number of samples.
        smallest_sample: the smallest sample.
        run_count: number of runs.
        low: the stated low end of an interval, null but for step times; `high` likewise.
        high: the stated high end.
        estimate: columns of `statistics.estimates` by name, null but for step times.
    """

    value: pl.Expr
    sample_count: pl.Expr
    smallest_sample: pl.Expr
    run_count: pl.Expr
    low: pl.Expr
    high: pl.Expr
    estimate: dict[str, pl.Expr]


def _quantity_columns(quantity: str) -> _QuantityColumns:
    """Return the numbers of a quantity: step times have columns of their own in the frame."""
    value = quantity_value(quantity).cast(NUMBER)
    if quantity == "step_s":
        return _QuantityColumns(
            value=value,
            sample_count=pl.col("samples_n"),
            smallest_sample=pl.col("step_s_min"),
            run_count=pl.col("runs"),
            low=pl.col("stated_low"),
            high=pl.col("stated_high"),
            estimate={name: pl.col("estimate").struct.field(name) for name in ESTIMATE},
        )
    samples, run = sample_columns(quantity)
    unknown = pl.lit(None, NUMBER)  # records hold intervals and estimates of steps alone
    return _QuantityColumns(
        value=value,
        sample_count=samples.list.len(),
        smallest_sample=samples.list.min(),
        run_count=run.list.n_unique(),
        low=unknown,
        high=unknown,
        estimate=dict.fromkeys(ESTIMATE, unknown),
    )


def _partner_key(data: Folders, grouping: Grouping) -> pl.Expr:
    """Return the hash of what a pair must share, which by default are the options."""
    key = grouping.partner_key
    if key is not None:
        no_key = pl.lit(NO_KEY, pl.Int64)
        return pl.when(key.is_null()).then(no_key).otherwise(_signed_hash(key))
    # Without a key, a pair must share all options of its methods, but for those that are compared.
    options = pl.col("method_options")
    if grouping.level_options:
        options = without_keys(data, "method_options", grouping.level_options)
    return _signed_hash(options)


def _signed_hash(column: pl.Expr) -> pl.Expr:
    """Return a hash of 63 bits, which is not below 0 and so is never `NO_KEY`."""
    return (hash_of([column]) // pl.lit(2, pl.UInt64)).cast(pl.Int64)


def hash_of(columns: Sequence[str | pl.Expr]) -> pl.Expr:
    """Return a hash of 64 bits of the values of columns."""
    expressions = [pl.col(column) if isinstance(column, str) else column for column in columns]
    aliased = [column.alias(f"key_{number}") for number, column in enumerate(expressions)]
    return pl.struct(aliased).hash()

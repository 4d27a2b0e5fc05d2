"""The columns of groups of records that count as one measurement, from those of their records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from steptime.records.groups.group_members import Flags, Ids, Members, number_by_first
from steptime.records.statistics import estimate_samples
from steptime.records.warmup import Floats

NO_MEMBER = -1


@dataclass(frozen=True, kw_only=True)
class GroupColumns:
    """Groups in the order of their first records, one entry a group; NaN is unknown.

    Attributes:
        level: its level, as an index of the levels.
        cell: number of its cell.
        partner_key: hash of what the two of a pair must share, as its last record has it.
        setup: number of the set of hosts, origins and methods of its records.
        last_seq: `seq` of its last record.
        best_seq: `seq` of its last record with a value, or of its last one.
        record_count: number of its records.
        value: median of the samples, or the value that is stated.
        low: low end of the interval.
        high: high end of the interval.
        runs: number of runs of the samples.
        estimate: columns of `statistics.estimates` by name.
        is_step: whether it is of whole steps.
        is_pooled: whether the value is of samples or of repeats.
        is_repeated: whether its samples are the values of repeats.
        has_value: whether some record has a value.
    """

    level: Ids
    cell: Ids
    partner_key: Ids
    setup: Ids
    last_seq: Ids
    best_seq: Ids
    record_count: Ids
    value: Floats
    low: Floats
    high: Floats
    runs: Floats
    estimate: Mapping[str, Floats]
    is_step: Flags
    is_pooled: Flags
    is_repeated: Flags
    has_value: Flags


def make_group_columns(members: Members) -> GroupColumns:
    """Return the columns of groups; samples of several records are pooled."""
    groups = _take_group_columns(members)
    sampled_count = np.bincount(members.group, members.is_sampled, len(groups.cell))
    # Reading samples is slow: only those of several records, or without an estimate, are read.
    has_several_sampled = sampled_count > 1
    has_no_estimate = np.isnan(groups.estimate["value"])
    needs_pooling = groups.is_pooled & (has_several_sampled | has_no_estimate)
    groups = _pool_samples(members, groups, np.flatnonzero(needs_pooling))
    stated_value = _take_or_nan(members.value, _last_members(members, members.has_value))
    is_pooled = groups.is_pooled
    return replace(
        groups,
        value=np.where(is_pooled, groups.value, stated_value),
        # The value, a median, may lie outside the interval of the mean: it is included.
        low=np.where(is_pooled, np.minimum(groups.estimate["low"], groups.value), groups.low),
        high=np.where(is_pooled, np.maximum(groups.estimate["high"], groups.value), groups.high),
    )


def _take_group_columns(members: Members) -> GroupColumns:
    """Return the columns of groups from single records, before samples of several are pooled.

    Level and cell are equal in a group; where its records may differ, the last one counts.
    """
    # The index of the first record of each group; all arrays below have an entry for each group.
    _, first_member = np.unique(members.group, return_index=True)
    last_member = _last_members(members)
    last_with_value = _last_members(members, members.has_value)
    last_with_samples = _last_members(members, members.is_sampled)
    has_samples = last_with_samples != NO_MEMBER
    has_stated_value = np.isfinite(_take_or_nan(members.value, last_with_value))
    is_repeated, is_pooled = _find_pooled(members, has_samples)

    def take_single(column: Floats) -> Floats:
        """Return the column of the last record with samples, NaN for groups that are not pooled."""
        return np.where(is_pooled, _take_or_nan(column, last_with_samples), np.nan)

    return GroupColumns(
        level=members.level[first_member],
        cell=members.cell[first_member],
        partner_key=members.partner_key[last_member],
        setup=_number_setups(members),
        last_seq=members.seq[last_member],
        best_seq=members.seq[np.where(last_with_value == NO_MEMBER, last_member, last_with_value)],
        record_count=np.bincount(members.group),
        value=take_single(members.value),
        low=_take_or_nan(members.low, last_with_value),
        high=_take_or_nan(members.high, last_with_value),
        runs=take_single(members.runs),
        # A single record with samples has its estimate in the frame already.
        estimate={name: take_single(column) for name, column in members.estimate.items()},
        is_step=members.is_step[first_member],
        is_pooled=is_pooled,
        is_repeated=is_repeated,
        has_value=has_samples | has_stated_value,
    )


def _find_pooled(members: Members, has_samples: Flags) -> tuple[Flags, Flags]:
    """Return the groups whose values count as samples (repeats), and all groups that are pooled.

    Args:
        members: the records.
        has_samples: whether some record of each group has samples.
    """
    repeat_count = np.bincount(members.group, members.is_repeated, len(has_samples))
    is_repeated = ~has_samples & (repeat_count > 1)
    # Pooling takes logarithms, so a group with a time of 0 (an op that is idle in a step) is not
    # pooled: its last record counts.
    is_pooled = (has_samples | is_repeated) & ~_is_resting(members, has_samples)
    return is_repeated, is_pooled


def _is_resting(members: Members, has_samples: Flags) -> Flags:
    """Return for each group whether a record that would be pooled has a time of 0."""
    return np.where(
        has_samples,
        _any_member(members, members.is_sampled & members.is_resting),
        _any_member(members, members.is_repeated & members.is_resting),
    )


def _pool_samples(members: Members, groups: GroupColumns, ids: Ids) -> GroupColumns:
    """Return groups with median, runs and estimate of these ids from all their samples."""
    if not len(ids):
        return groups
    samples_of_groups, runs_of_groups = members.read_samples(ids, groups.is_repeated[ids])
    value = groups.value.copy()
    value[ids] = [np.median(samples) for samples in samples_of_groups]
    run_count = groups.runs.copy()
    run_count[ids] = [len(np.unique(runs)) for runs in runs_of_groups]
    estimate = {name: column.copy() for name, column in groups.estimate.items()}
    for name, pooled_column in estimate_samples(samples_of_groups, runs_of_groups).items():
        estimate[name][ids] = pooled_column
    return replace(groups, value=value, runs=run_count, estimate=estimate)


def _last_members(members: Members, is_candidate: Flags | None = None) -> Ids:
    """Return the index of the last record of each group, by default of all records.

    `NO_MEMBER` stands for a group without a candidate.
    """
    all_members = np.arange(len(members.group))
    candidates = all_members if is_candidate is None else all_members[is_candidate]
    group_count = len(members.starts) - 1
    last_member = np.full(group_count, NO_MEMBER)
    np.maximum.at(last_member, members.group[candidates], candidates)
    return last_member


def _any_member(members: Members, flags: Flags) -> Flags:
    """Return whether a flag is set for some record of each group."""
    return np.bincount(members.group, flags, len(members.starts) - 1) > 0


def _take_or_nan(column: Floats, indices: Ids) -> Floats:
    """Return a column at indices, NaN for `NO_MEMBER`."""
    return np.asarray(np.r_[column, np.nan][indices])


def _number_setups(members: Members) -> Ids:
    """Return a number for the setups of the records of each group, whatever their order is."""
    # Setups of all records, group by group (`starts`), and sorted within each group so that equal
    # sets become equal tuples.
    order = np.lexsort((members.setup, members.group))
    setup_by_group = number_by_first(members.setup)[order]
    starts = members.starts
    # Most groups have one record: its setup is that of the group. The others get a number of their
    # tuple, below 0, so that it never equals the setup of a single record.
    has_groups = len(starts) > 1
    group_setup = setup_by_group[starts[:-1]] if has_groups else setup_by_group
    number_by_setups: dict[tuple[int, ...], int] = {}
    for group in np.flatnonzero(np.diff(starts) > 1).tolist():
        setups = tuple(setup_by_group[starts[group] : starts[group + 1]].tolist())
        group_setup[group] = number_by_setups.setdefault(setups, -1 - len(number_by_setups))
    return number_by_first(group_setup)

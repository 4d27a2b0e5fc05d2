"""Groups of records that count as one measurement, as columns, and the pairs of their levels.

A group has one level, one cell and one method; its samples are pooled. A cell is what records share
if they differ in nothing but the column that is compared; a level is a value of that column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from steptime.records.group_members import (
    NO_KIN,
    Flags,
    Grouping,
    Ids,
    Members,
    number_by_first,
    read_members,
)
from steptime.records.row import Row
from steptime.records.statistics import of_samples
from steptime.records.warmup import Floats

if TYPE_CHECKING:
    from steptime.records.folders import Folders

Cells = Mapping[str, str | pl.Expr]  # columns of rows: names, or expressions over records
NO_MEMBER = -1
NO_LEVEL = -1


@dataclass(frozen=True, kw_only=True)
class GroupColumns:
    """Groups in the order of their first records, one entry a group; NaN is unknown.

    Attributes:
        level: its level, as a place in the levels.
        cell: number of its cell.
        kin: hash of what the two of a pair must share, as its last record has it.
        way: number of how its records were measured: hosts, origins and methods.
        last: `seq` of its last record.
        best: `seq` of its last record with a value, or of its last one.
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
    kin: Ids
    way: Ids
    last: Ids
    best: Ids
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


class _Lonely(NamedTuple):
    """Groups without a partner: ids, level of the partner, whether it has others in the cell."""

    ids: Ids
    partner: Ids
    in_cell: Flags


class RecordGroups:
    """The groups of a quantity by level, and the pairs of those of one level with the others.

    Attributes:
        data: the folders of the records.
        quantity: the quantity that is compared.
        levels: the levels in order: numbers by size, words as recorded.
        members: the records that take part.
        columns: the groups.
    """

    def __init__(self, data: Folders, grouping: Grouping) -> None:
        self.data = data
        self.quantity = grouping.quantity
        self.members = read_members(data, grouping)
        self.levels = self.members.levels
        self.columns = _group(self.members)
        self._is_by_options = grouping.kin is None

    def __len__(self) -> int:
        return len(self.columns.level)

    def samples(self, ids: Ids) -> tuple[list[Floats], list[Ids]]:
        """Return the samples of groups, and the run of each sample; ids come in any order."""
        return self.members.samples(ids, self.columns.is_repeated[ids])

    def place(self, level: str) -> int:
        """Return the place of a level in `levels`, -1 for no level."""
        return self.levels.index(level) if level in self.levels else -1

    def level_of(self, ids: Ids) -> NDArray[Any]:
        """Return the levels of groups, as texts."""
        return np.array(self.levels, object)[self.columns.level[ids]]

    def estimate(self, ids: Ids) -> dict[str, Floats]:
        """Return the columns of `statistics.estimates` of groups, and their `runs`."""
        columns = {name: column[ids] for name, column in self.columns.estimate.items()}
        return columns | {"runs": self.columns.runs[ids]}

    def pairs(self, against: str) -> dict[str, Ids]:
        """Return the ids `a` and `b` of the pairs of `against` and other levels, in their order."""
        level = self.columns.level
        cell = self.columns.cell
        kin = self.columns.kin
        first_level = self.place(against)
        small_level = level.astype(np.min_scalar_type(len(self.levels)))  # which sorts faster
        by_level = np.argsort(small_level, kind="stable")
        seconds = by_level[level[by_level] != first_level]
        firsts = np.flatnonzero(level == first_level)
        firsts = firsts[np.argsort(cell[firsts], kind="stable")]

        # Each second with all firsts of its cell, which stand one behind the other in `firsts`.
        cell_sizes = np.bincount(cell[firsts], minlength=len(cell))
        cell_stops = cell_sizes.cumsum()
        counts = cell_sizes[cell[seconds]]
        starts = cell_stops[cell[seconds]] - counts
        pair_starts = counts.cumsum() - counts
        first_places = np.repeat(starts - pair_starts, counts) + np.arange(counts.sum())
        a = firsts[first_places]
        b = np.repeat(seconds, counts)

        is_match = kin[a] == kin[b]
        if not self._is_by_options:
            is_match |= (kin[a] == NO_KIN) | (kin[b] == NO_KIN)  # unknown of one: not a mismatch
        elif not is_match.all():
            is_single = self._is_single_of_level
            is_match |= is_single[a] & is_single[b]  # no other can be the partner
        a = a[is_match]
        b = b[is_match]
        order = np.lexsort((a, small_level[b]))  # by `b` they stand in order already
        return {"a": a[order], "b": b[order]}

    @cached_property
    def _is_single_of_level(self) -> Flags:
        """Which groups are the only ones of their level in their cell."""
        key = self.columns.cell * len(self.levels) + self.columns.level
        _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
        return np.asarray(counts[inverse] == 1)

    def lonely(
        self, against: str, levels: Sequence[str], pairs: Mapping[str, Ids]
    ) -> dict[str, NDArray[Any]]:
        """Return the whole steps that `pairs` leave without a partner.

        Returns:
            `id`; `is_a`, whether it is of `against`; `other`, the place in `levels` of the level
            that has no partner, -1 for `against`; `in_cell`, whether that level has a group in the
            cell which differs.
        """
        level = self.columns.level
        is_first = level == self.place(against)
        # Those of other levels lack one of `against`; those of `against` may lack each level.
        parts = [self._find_lonely(NO_LEVEL, pairs["b"], ~is_first, is_first)]
        for number, name in enumerate(levels):
            is_partner = level == self.place(name)
            paired = pairs["a"][is_partner[pairs["b"]]]
            parts.append(self._find_lonely(number, paired, is_first, is_partner))
        ids = np.concatenate([part.ids for part in parts])
        partner = np.concatenate([part.partner for part in parts])
        in_cell = np.concatenate([part.in_cell for part in parts])
        is_a = partner != NO_LEVEL
        order = np.lexsort((partner, ids, ~is_a))
        columns = {"id": ids, "is_a": is_a, "other": partner, "in_cell": in_cell}
        return {name: column[order] for name, column in columns.items()}

    def _find_lonely(
        self, partner_level: int, paired: Ids, is_side: Flags, is_partner: Flags
    ) -> _Lonely:
        """Return the whole steps of a side without a partner.

        Args:
            partner_level: the number of the level of partners, `NO_LEVEL` for the first one.
            paired: the ids that have a partner.
            is_side: the groups that need a partner.
            is_partner: the groups that could be partners.
        """
        is_unpaired = self.columns.is_step & is_side
        is_unpaired[paired] = False
        ids = np.flatnonzero(is_unpaired)
        cell = self.columns.cell
        in_cell = np.isin(cell[ids], cell[is_partner])
        return _Lonely(ids=ids, partner=np.full(len(ids), partner_level), in_cell=in_cell)

    def facts(self, ids: Ids, cells: Cells) -> dict[int, Row]:
        """Return columns of the last record of groups, by id; see `facts_frame`."""
        frame = self.facts_frame(ids, cells)
        return dict(zip(frame["id"].to_list(), frame.drop("id").to_dicts(), strict=True))

    def facts_frame(self, ids: Ids, cells: Cells) -> pl.DataFrame:
        """Return columns of the last record of groups, and their `id`, which ascends.

        Expressions may use `id`, `host`, which names all hosts of the group, and `good_s`, the
        median step over all its records if there are several.
        """
        ids = np.unique(ids)
        last = self.columns.last[ids]
        of_ids = pl.DataFrame({"seq": last, "id": ids}).join(
            self._shared_facts(ids), on="id", how="left", maintain_order="left"
        )
        expressions = {
            name: pl.col(cell) if isinstance(cell, str) else cell for name, cell in cells.items()
        }
        needed = {name for cell in expressions.values() for name in cell.meta.root_names()}
        columns = sorted({*needed, "host"} - {"id", "good_s", "seq"})
        records = self.data.take_records(last, columns)
        host = pl.coalesce("hosts", pl.col("host"), pl.lit(""))
        rows = of_ids.join(records, on="seq", how="left", maintain_order="left")
        return rows.with_columns(host.alias("host")).select(
            "id", *(cell.alias(name) for name, cell in expressions.items())
        )

    def _shared_facts(self, ids: Ids) -> pl.DataFrame:
        """Return `id`, `hosts` and `good_s` of the groups that have several records."""
        several = ids[self.columns.record_count[ids] > 1]
        schema = {"id": pl.Int64(), "hosts": pl.String(), "good_s": pl.Float64()}
        if not len(several):
            return pl.DataFrame(schema=schema)
        members, owner = self.members.of_groups(several)
        seq = self.members.seq[members]
        owners = pl.DataFrame({"seq": seq, "id": several[owner]})
        is_ok = (pl.col("status") == "ok").alias("is_ok")
        samples_n = pl.col("samples_n").fill_null(0)
        columns: list[str | pl.Expr] = ["host", "origin", "step_s", "samples", is_ok, samples_n]
        records = self.data.take_records(seq, columns)
        rows = owners.join(records, on="seq", how="left", maintain_order="left")

        # The median of all samples; without samples the last prediction or the median of values.
        has_samples = pl.col("is_ok") & (pl.col("samples_n") > 0)
        sampled_s = pl.col("samples").filter(has_samples).explode().median()
        values_s = pl.col("step_s").filter("is_ok").drop_nulls()
        is_predicted = pl.col("origin").first() == "predicted"
        stated_s = pl.when(is_predicted).then(values_s.last()).otherwise(values_s.median())
        hosts = pl.col("host").filter(pl.col("host") != "").unique().sort()
        host_text = hosts.str.join(", ").replace("", None)
        return rows.group_by("id", maintain_order=True).agg(
            host_text.alias("hosts"), pl.coalesce(sampled_s, stated_s).alias("good_s")
        )

    def rows(self, ids: Ids, cells: Cells, columns: Mapping[str, str]) -> list[Row]:
        """Return rows of groups: facts, then columns of `GroupColumns` under other names."""
        facts = self.facts(ids, cells)
        numbers = [finite_cells(getattr(self.columns, column)[ids]) for column in columns.values()]
        return [
            facts[group] | dict(zip(columns, row, strict=True))
            for group, row in zip(ids.tolist(), zip(*numbers, strict=True), strict=True)
        ]


def _group(members: Members) -> GroupColumns:
    """Return the columns of groups; samples of several records are pooled."""
    first = np.unique(members.group, return_index=True)[1]
    last = _last(members)
    sampled, repeated = members.is_sampled, members.is_repeated
    sampled_count = np.bincount(members.group, sampled, len(first))
    is_repeated = (sampled_count == 0) & (np.bincount(members.group, repeated, len(first)) > 1)
    is_resting = np.where(
        sampled_count > 0,
        _any(members, sampled & members.is_resting),
        _any(members, repeated & members.is_resting),
    )
    is_pooled = ((sampled_count > 0) | is_repeated) & ~is_resting
    best = _last(members, members.has_value)
    newest = _last(members, sampled)
    stated = _take(members.value, best)
    estimate = {
        name: np.where(is_pooled, _take(column, newest), np.nan)
        for name, column in members.estimate.items()
    }
    groups = GroupColumns(
        level=members.level[first],
        cell=members.cell[first],
        kin=members.kin[last],
        way=_ways(members),
        last=members.seq[last],
        best=members.seq[np.where(best == NO_MEMBER, last, best)],
        record_count=np.bincount(members.group),
        value=np.where(is_pooled, _take(members.value, newest), np.nan),
        low=_take(members.low, best),
        high=_take(members.high, best),
        runs=np.where(is_pooled, _take(members.runs, newest), np.nan),
        estimate=estimate,
        is_step=members.is_step[first],
        is_pooled=is_pooled,
        is_repeated=is_repeated,
        has_value=(sampled_count > 0) | np.isfinite(stated),
    )
    needs_pooling = is_pooled & ((sampled_count > 1) | np.isnan(estimate["value"]))
    groups = _pool(members, groups, np.flatnonzero(needs_pooling))
    return replace(
        groups,
        value=np.where(is_pooled, groups.value, stated),
        low=np.where(is_pooled, np.minimum(groups.estimate["low"], groups.value), groups.low),
        high=np.where(is_pooled, np.maximum(groups.estimate["high"], groups.value), groups.high),
    )


def _pool(members: Members, groups: GroupColumns, ids: Ids) -> GroupColumns:
    """Return groups with median, runs and estimate of these ids from all their samples."""
    if not len(ids):
        return groups
    samples, runs = members.samples(ids, groups.is_repeated[ids])
    value, run_count = groups.value.copy(), groups.runs.copy()
    value[ids] = [np.median(cell) for cell in samples]
    run_count[ids] = [len(np.unique(cell)) for cell in runs]
    estimate = {name: column.copy() for name, column in groups.estimate.items()}
    for name, column in of_samples(samples, runs).items():
        estimate[name][ids] = column
    return replace(groups, value=value, runs=run_count, estimate=estimate)


def _last(members: Members, takes_part: Flags | None = None) -> Ids:
    """Return the place of the last record of each group, or of the last one that is asked for."""
    places = np.arange(len(members.group)) if takes_part is None else np.flatnonzero(takes_part)
    last = np.full(len(members.starts) - 1, NO_MEMBER)
    np.maximum.at(last, members.group[places], places)
    return last


def _any(members: Members, flags: Flags) -> Flags:
    """Return whether a flag is set for some record of each group."""
    return np.bincount(members.group, flags, len(members.starts) - 1) > 0


def _take(column: Floats, places: Ids) -> Floats:
    """Return a column at places, NaN for `NO_MEMBER`."""
    return np.asarray(np.r_[column, np.nan][places])


def _ways(members: Members) -> Ids:
    """Return numbers of how the records of groups were measured, whatever their order is."""
    order = np.lexsort((members.way, members.group))
    way = number_by_first(members.way)[order]
    starts = members.starts
    has_several_records = np.bincount(members.group) > 1
    group_ways = way[starts[:-1]] if len(has_several_records) else way
    way_lists = {
        group: tuple(way[starts[group] : starts[group + 1]].tolist())
        for group in np.flatnonzero(has_several_records).tolist()
    }
    # Negative numbers: a group of several records is never equal to one of a single record.
    distinct_lists = dict.fromkeys(way_lists.values())
    list_numbers = {way_list: -1 - number for number, way_list in enumerate(distinct_lists)}
    for group, way_list in way_lists.items():
        group_ways[group] = list_numbers[way_list]
    return number_by_first(group_ways)


def finite_cells(column: NDArray[Any]) -> list[Any]:
    """Return cells as they stand in rows, None in place of a number that is not finite."""
    if column.dtype.kind != "f":
        return list(column.tolist())
    return [cell if math.isfinite(cell) else None for cell in column.tolist()]


def places_of(numbers: Ids, count: int) -> list[Ids]:
    """Return the places of each whole number below `count` in a column."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.searchsorted(numbers[order], np.arange(1, count)))

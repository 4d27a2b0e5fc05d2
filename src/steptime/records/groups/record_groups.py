"""Groups of records that count as one measurement, as columns, and the pairs of their levels.

A group has one level, one cell and one method; its samples are pooled. A cell is what records share
if they differ in nothing but the column that is compared; a level is a value of that column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from steptime.records.groups.group_columns import make_group_columns
from steptime.records.groups.group_members import (
    NO_KEY,
    Flags,
    Grouping,
    Ids,
    read_members,
)
from steptime.records.row import Row
from steptime.records.warmup import Floats

if TYPE_CHECKING:
    from steptime.records.folders import Folders

Cells = Mapping[str, str | pl.Expr]  # columns of rows: names, or expressions over records
NO_LEVEL = -1


class _Unpaired(NamedTuple):
    """Groups without a partner.

    Attributes:
        ids: the groups.
        partner_level: number of the level in which a partner is absent.
        has_mismatch: whether that level has a group in the cell, which differs.
    """

    ids: Ids
    partner_level: Ids
    has_mismatch: Flags


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
        self.columns = make_group_columns(self.members)
        self._pairs_by_options = grouping.partner_key is None  # their options must be equal

    def __len__(self) -> int:
        return len(self.columns.level)

    def read_samples(self, ids: Ids) -> tuple[list[Floats], list[Ids]]:
        """Return the samples of groups, and the run of each sample; ids come in any order."""
        return self.members.read_samples(ids, self.columns.is_repeated[ids])

    def level_index(self, level: str) -> int:
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
        # In a pair `a` is of the level `against`, `b` of another one.
        is_first = self.columns.level == self.level_index(against)
        # Integers of fewer bytes sort faster.
        level = self.columns.level.astype(np.min_scalar_type(len(self.levels)))
        ids_by_level = np.argsort(level, kind="stable")
        second_ids = ids_by_level[~is_first[ids_by_level]]
        a, b = self._join_by_cell(np.flatnonzero(is_first), second_ids)
        is_match = self._match_partners(a, b)
        a = a[is_match]
        b = b[is_match]
        # By the level of `b`, then by `a`, then by `b`: the sort is stable, and `b` is in order.
        order = np.lexsort((a, level[b]))
        return {"a": a[order], "b": b[order]}

    def _join_by_cell(self, first_ids: Ids, second_ids: Ids) -> tuple[Ids, Ids]:
        """Return all pairs of a first and a second group of one cell, in the order of seconds."""
        # An inner join on the number of the cell. The firsts, sorted by cell, are a slice for each
        # cell, which ends at `cell_stop`.
        cell = self.columns.cell
        firsts_by_cell = first_ids[np.argsort(cell[first_ids], kind="stable")]
        first_counts = np.bincount(cell[first_ids], minlength=len(cell))
        cell_stop = first_counts.cumsum()

        # Each second group is repeated for each first of its cell; `partner_rank` counts these from
        # 0.
        partner_count = first_counts[cell[second_ids]]
        partner_start = cell_stop[cell[second_ids]] - partner_count
        pair_start = partner_count.cumsum() - partner_count
        pair_numbers = np.arange(partner_count.sum())
        partner_rank = pair_numbers - np.repeat(pair_start, partner_count)
        partner_index = np.repeat(partner_start, partner_count) + partner_rank
        return firsts_by_cell[partner_index], np.repeat(second_ids, partner_count)

    def _match_partners(self, a: Ids, b: Ids) -> Flags:
        """Return whether the two groups of each pair share what a pair must share."""
        partner_key = self.columns.partner_key
        has_equal_keys = partner_key[a] == partner_key[b]
        if not self._pairs_by_options:
            is_unknown = (partner_key[a] == NO_KEY) | (partner_key[b] == NO_KEY)
            return np.asarray(has_equal_keys | is_unknown)  # an unknown key is no mismatch
        if has_equal_keys.all():
            return np.asarray(has_equal_keys)
        # Groups with different options are compared all the same if neither has another partner.
        is_only_choice = self._is_single_in_cell[a] & self._is_single_in_cell[b]
        return np.asarray(has_equal_keys | is_only_choice)

    @cached_property
    def _is_single_in_cell(self) -> Flags:
        """Which groups are the only ones of their level in their cell."""
        # A number for each combination of cell and level.
        cell_and_level = self.columns.cell * len(self.levels) + self.columns.level
        _, combination, group_counts = np.unique(
            cell_and_level, return_inverse=True, return_counts=True
        )
        return np.asarray(group_counts[combination] == 1)

    def unpaired_steps(
        self, against: str, levels: Sequence[str], pairs: Mapping[str, Ids]
    ) -> dict[str, NDArray[Any]]:
        """Return the whole steps that `pairs` leave without a partner.

        Returns:
            `id`; `is_a`, whether it is of `against`; `partner_level`, the index in `levels` of the
            level that has no partner, -1 for `against`; `has_mismatch`, whether that level has a
            group in the cell which differs.
        """
        parts = self._list_unpaired(against, levels, pairs)
        partner_level = np.concatenate([part.partner_level for part in parts])
        columns = {
            "id": np.concatenate([part.ids for part in parts]),
            "is_a": partner_level != NO_LEVEL,  # of `against`, as `a` of a pair is
            "partner_level": partner_level,
            "has_mismatch": np.concatenate([part.has_mismatch for part in parts]),
        }
        order = np.lexsort((partner_level, columns["id"], ~columns["is_a"]))
        return {name: column[order] for name, column in columns.items()}

    def _list_unpaired(
        self, against: str, levels: Sequence[str], pairs: Mapping[str, Ids]
    ) -> list[_Unpaired]:
        """Return the groups without a partner of `against`, then those without one of each level.

        A group of another level lacks a partner of `against`. A group of `against` may lack a
        partner in several levels, and then has an entry for each.
        """
        level = self.columns.level
        is_first = level == self.level_index(against)
        parts = [self._find_unpaired(NO_LEVEL, pairs["b"], ~is_first, is_first)]
        for level_number, level_name in enumerate(levels):
            is_partner = level == self.level_index(level_name)
            paired_ids = pairs["a"][is_partner[pairs["b"]]]
            parts.append(self._find_unpaired(level_number, paired_ids, is_first, is_partner))
        return parts

    def _find_unpaired(
        self, partner_level: int, paired_ids: Ids, needs_partner: Flags, is_partner: Flags
    ) -> _Unpaired:
        """Return the whole steps that need a partner and have none.

        Args:
            partner_level: the number of the level of partners, `NO_LEVEL` for the first one.
            paired_ids: the ids that have a partner.
            needs_partner: the groups that need a partner.
            is_partner: the groups that could be partners.
        """
        is_unpaired = self.columns.is_step & needs_partner
        is_unpaired[paired_ids] = False
        ids = np.flatnonzero(is_unpaired)
        cell = self.columns.cell
        # If the cell has a group of the partner's level, it was no partner since its options
        # differ.
        has_mismatch = np.isin(cell[ids], cell[is_partner])
        return _Unpaired(ids, np.full(len(ids), partner_level), has_mismatch)

    def facts(self, ids: Ids, cells: Cells) -> dict[int, Row]:
        """Return columns of the last record of groups, by id; see `facts_frame`."""
        frame = self.facts_frame(ids, cells)
        return dict(zip(frame["id"].to_list(), frame.drop("id").to_dicts(), strict=True))

    def facts_frame(self, ids: Ids, cells: Cells) -> pl.DataFrame:
        """Return columns of the last record of groups, and their `id`, which ascends.

        Expressions may use `id`, `host`, which names all hosts of the group, and `good_s`, the
        median step over all its records if there are several.
        """
        expressions = {
            name: pl.col(cell) if isinstance(cell, str) else cell for name, cell in cells.items()
        }
        read_columns = {name for cell in expressions.values() for name in cell.meta.root_names()}
        rows = self._read_last_records(np.unique(ids), read_columns)
        host = pl.coalesce("hosts", pl.col("host"), pl.lit(""))  # of several records all hosts
        return rows.with_columns(host.alias("host")).select(
            "id", *(cell.alias(name) for name, cell in expressions.items())
        )

    def _read_last_records(self, ids: Ids, columns: set[str]) -> pl.DataFrame:
        """Return columns of the last record of groups, with `id`, `hosts` and `good_s`."""
        last = self.columns.last_seq[ids]
        shared_facts = self._read_shared_facts(ids)  # `hosts` and `good_s`, of all records
        groups = pl.DataFrame({"seq": last, "id": ids}).join(
            shared_facts, on="id", how="left", maintain_order="left"
        )
        columns_of_groups = {"id", "good_s", "seq"}  # which `groups` has already
        record_columns = sorted({*columns, "host"} - columns_of_groups)
        last_records = self.data.take_records(last, record_columns)
        return groups.join(last_records, on="seq", how="left", maintain_order="left")

    def _read_shared_facts(self, ids: Ids) -> pl.DataFrame:
        """Return `id`, `hosts` and `good_s` of the groups that have several records."""
        pooled_ids = ids[self.columns.record_count[ids] > 1]
        if not len(pooled_ids):
            schema = {"id": pl.Int64(), "hosts": pl.String(), "good_s": pl.Float64()}
            return pl.DataFrame(schema=schema)
        members, group_index = self.members.list_members(pooled_ids)
        seq = self.members.seq[members]
        id_of_record = pl.DataFrame({"seq": seq, "id": pooled_ids[group_index]})
        is_ok = (pl.col("status") == "ok").alias("is_ok")
        samples_n = pl.col("samples_n").fill_null(0)
        columns: list[str | pl.Expr] = ["host", "origin", "step_s", "samples", is_ok, samples_n]
        records = self.data.take_records(seq, columns)
        rows = id_of_record.join(records, on="seq", how="left", maintain_order="left")
        hosts = pl.col("host").filter(pl.col("host") != "").unique().sort()
        host_text = hosts.str.join(", ").replace("", None)
        return rows.group_by("id", maintain_order=True).agg(
            host_text.alias("hosts"), _good_s().alias("good_s")
        )

    def rows(self, ids: Ids, cells: Cells, columns: Mapping[str, str]) -> list[Row]:
        """Return rows of groups: facts, then columns of `GroupColumns` under other names."""
        facts_by_id = self.facts(ids, cells)
        number_columns = [
            finite_cells(getattr(self.columns, column)[ids]) for column in columns.values()
        ]
        number_rows = zip(*number_columns, strict=True)
        return [
            facts_by_id[group_id] | dict(zip(columns, numbers, strict=True))
            for group_id, numbers in zip(ids.tolist(), number_rows, strict=True)
        ]


def _good_s() -> pl.Expr:
    """Return the time of a group: the median of all samples of its successful records.

    Without samples it is the last prediction, or the median of the values.
    """
    has_samples = pl.col("is_ok") & (pl.col("samples_n") > 0)
    sampled_s = pl.col("samples").filter(has_samples).explode().median()
    values_s = pl.col("step_s").filter("is_ok").drop_nulls()
    is_predicted = pl.col("origin").first() == "predicted"
    stated_s = pl.when(is_predicted).then(values_s.last()).otherwise(values_s.median())
    return pl.coalesce(sampled_s, stated_s)


def finite_cells(column: NDArray[Any]) -> list[Any]:
    """Return cells as they stand in rows, None in place of a number that is not finite."""
    if column.dtype.kind != "f":
        return list(column.tolist())
    return [cell if math.isfinite(cell) else None for cell in column.tolist()]


def split_by_number(numbers: Ids, count: int) -> list[Ids]:
    """Return the places of each whole number below `count` in a column."""
    places = np.argsort(numbers, kind="stable")
    first_of_number = np.searchsorted(numbers[places], np.arange(1, count))
    return np.split(places, first_of_number)

"""Groups of records side by side, as columns: 10^6 records are seconds.

A group is of one cell and one method, its samples pooled; a cell is what records have in common
that differ in nothing but the column that is compared. A level is a value of that column.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steptime.records import flat
from steptime.records.levels import in_order, sql_of
from steptime.records.row import ESTIMATE, Row
from steptime.records.statistics import of_samples

if TYPE_CHECKING:
    from steptime.records.folders import Folders

KEY = "(hash({}) >> 2)::BIGINT"  # texts take memory
WHOLE_NUMBERS = ("group_", "last", "best", "records", "level", "cell", "kin", "way", "sampled")
OF_STATED = ("value", "low", "high")
_NUMBERS = count()  # of tables
Ids = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]


class Sides:
    """The groups of a quantity by level, and the pairs of those of one level with the others.

    `level` and `cell` are SQL over `flat`, `where` says which records take part; options that are
    `apart` may differ in a pair. `kin` is SQL of what may not, where both know it; by default these
    are the options, unless both groups are the only ones of their level in the cell. `way` is SQL
    of what a group shares, by default its method. `levels` stand in order: numbers by size, words
    as recorded. `groups` are columns by id: `level` (a place in `levels`), `cell`, the `last`
    record and the `best`, which is the last with a value, `value`, `low`, `high`, the number of
    `runs`, and as `e_value`, ... what `statistics.estimates` says, NaN where unknown; whether
    samples are `pooled`, some value is `held`, and it is of `whole` steps.
    """

    def __init__(
        self,
        data: Folders,
        quantity: str,
        level: str,
        cell: str,
        where: str = "true",
        apart: Collection[str] = (),
        kin: str = "",
        way: str = "method_",
    ) -> None:
        self.data, self.quantity, self._is_by_options = data, quantity, not kin
        self._where = where
        self.same = set[str]()
        self.members = f"members_{next(_NUMBERS)}"
        self._take(level, cell, apart, kin, way)
        levels = data.rows(f"SELECT level_ FROM {self.members} GROUP BY 1 ORDER BY min(seq)")
        self.levels = in_order(row["level_"] for row in levels)
        self.groups = self._grouped()

    def _take(self, level: str, cell: str, apart: Collection[str], kin: str, way: str) -> None:
        """Make the table of the records that take part."""
        own = "" if self.quantity == "step_s" else f"sampled[{flat.text(self.quantity)}]"
        number, least, runs = (
            (f"len({own}.samples)", f"list_min({own}.samples)", f"list_unique({own}.run)")
            if own
            else ("samples_n", "step_s_min", "runs")
        )
        gone = flat.text(json.dumps(dict.fromkeys(apart)))
        how = KEY.format(f"json_merge_patch(method_options, {gone})")
        of_options = (
            f"JOIN (SELECT method_options, {how} AS how FROM (SELECT DISTINCT method_options "
            "FROM flat)) USING (method_options) "
        )
        made = {
            "group_": KEY.format(f"level_, {cell}, {way}"),
            "cell": KEY.format(cell),
            "kin": f"if({kin} IS NULL, -1, {KEY.format(kin)})" if kin else "how",
            "way": KEY.format("host, origin, method_"),
            "whole": "scope = ''",
            "held": "origin = 'predicted' OR (value_ IS NOT NULL AND status = 'ok')",
            "sampled": f"value_ IS NOT NULL AND status = 'ok' AND coalesce({number}, 0) > 0",
            "repeated": f"value_ IS NOT NULL AND status = 'ok' AND coalesce({number}, 0) = 0 "
            "AND origin <> 'predicted' AND duplicate_of IS NULL",
            "resting": f"coalesce({least}, value_) <= 0",
            "runs": runs,
            **{
                f"stated_{end}": "NULL::DOUBLE" if own else f"stated_{end}"
                for end in ("low", "high")
            },
            "estimate": f"NULL::{flat.ESTIMATED}" if own else "estimate",
        }
        told = ", ".join(f"{sql} AS {name}" for name, sql in made.items())
        self.data.rows(
            f"CREATE TEMP TABLE {self.members} AS SELECT seq, level_, value_, {told} FROM (SELECT "
            f"*, {level} AS level_, hash({flat.METHOD}) AS method_, "
            f"CAST({sql_of(self.quantity)} AS DOUBLE) AS value_ FROM flat "
            f"WHERE {self._where}) {'' if kin else of_options}WHERE level_ IS NOT NULL"
        )

    def _grouped(self) -> Columns:
        """Return the columns of groups, which stand in the order of their first records."""
        estimate = ", ".join(f"one.estimate.{name} AS e_{name}" for name in ESTIMATE)
        ends = ", ".join(f"stated.{one} AS stated_{one}" for one in OF_STATED)
        found = self.data.arrays(
            f"SELECT * EXCLUDE (first, level_, rests, repeats, one, stated), {estimate}, {ends}, "
            "sampled = 0 AND repeats > 1 AS is_repeated, "
            "coalesce((sampled > 0 OR repeats > 1) AND NOT rests, false) AS pooled, "
            "sampled > 0 OR stated.value IS NOT NULL AS held, "
            "one.value AS value, one.runs AS runs "
            "FROM (SELECT group_, min(seq) AS first, max(seq) AS last, count(*) AS records, "
            "coalesce(max(seq) FILTER (held), max(seq)) AS best, "
            "any_value(level_) AS level_, any_value(cell) AS cell, any_value(whole) AS whole, "
            "arg_max(kin, seq) AS kin, (hash(list_sort(list(way))) >> 2)::BIGINT AS way, "
            "count(*) FILTER (sampled) AS sampled, count(*) FILTER (repeated) AS repeats, "
            "coalesce(bool_or(resting) FILTER (sampled), bool_or(resting) FILTER (repeated)) "
            "AS rests, "
            "arg_max({'value': value_, 'runs': runs, 'estimate': estimate}, seq) "
            "FILTER (sampled) AS one, arg_max({'value': value_, 'low': stated_low, "
            "'high': stated_high}, seq) FILTER (held) AS stated "
            f"FROM {self.members} GROUP BY group_) JOIN (SELECT unnest($1::VARCHAR[]) AS level_, "
            "unnest(range(len($1))) AS level) USING (level_) ORDER BY first",
            self.levels,
            exact=WHOLE_NUMBERS,
        )
        found["cell"] = np.unique(found["cell"], return_inverse=True)[1]
        found |= {name: found[name] == 1 for name in ("whole", "pooled", "held", "is_repeated")}
        pooled = found["pooled"]
        stated = found.pop("stated_value")
        for name in ("value", "runs", *(f"e_{name}" for name in ESTIMATE)):
            found[name] = np.where(pooled, found[name], np.nan)
        several = pooled & ((found.pop("sampled") > 1) | np.isnan(found["e_value"]))
        if several.any():
            self._pool(found, np.flatnonzero(several))
        with np.errstate(invalid="ignore"):
            for end, widest in (("low", np.minimum), ("high", np.maximum)):
                told = found.pop(f"stated_{end}")
                found[end] = np.where(pooled, widest(found[f"e_{end}"], found["value"]), told)
        return found | {"value": np.where(pooled, found["value"], stated)}

    def _pool(self, found: Columns, several: Ids) -> None:
        """Set median, runs and estimate of groups whose samples nobody has looked at together.

        Of stated values that differ in nothing else each one is a run.
        """
        samples, runs = self._samples_of(several, found)
        found["value"][several] = [np.median(one) for one in samples]
        found["runs"][several] = [len(np.unique(one)) for one in runs]
        for name, told in of_samples(samples, runs).items():
            found[f"e_{name}"][several] = told

    def samples(self, ids: Ids) -> tuple[list[Any], list[Any]]:
        """Return the samples of groups, and the run of each sample; ids may come in any order."""
        return self._samples_of(ids, self.groups)

    def _samples_of(self, ids: Ids, groups: Columns) -> tuple[list[Any], list[Any]]:
        """Return the samples of groups, and the run of each sample."""
        if not len(ids):
            return [], []
        own = "" if self.quantity == "step_s" else f"flat.sampled[{flat.text(self.quantity)}]."
        asked = {name: groups[name][ids] for name in ("group_", "is_repeated")}
        self.data.lend("asked", {"id": np.arange(len(ids)), **asked})
        runs = f"[(hash(seq, r) >> 1)::BIGINT for r in {own}run]"
        rows = self.data.arrays(
            "SELECT id, flatten(list(samples ORDER BY seq)) AS samples, "
            "flatten(list(run ORDER BY seq)) AS run FROM (SELECT id, seq, "
            f"if(is_repeated, [value_], {own}samples) AS samples, "
            f"if(is_repeated, [(hash(seq) >> 1)::BIGINT], {runs}) AS run "
            f"FROM asked JOIN {self.members} USING (group_) JOIN flat USING (seq) WHERE "
            f"if(is_repeated, {self.members}.repeated, {self.members}.sampled)) "
            "GROUP BY id ORDER BY id",
            exact=("id",),
        )
        return list(rows["samples"]), list(rows["run"])

    def place(self, level: str) -> int:
        """Return which of the `levels` this is, -1 for none."""
        return self.levels.index(level) if level in self.levels else -1

    def level_of(self, ids: Any) -> Any:
        """Return the level of groups, as text."""
        return np.array(self.levels, object)[self.groups["level"][ids]]

    def estimate(self, ids: Ids) -> dict[str, NDArray[np.float64]]:
        """Return what `statistics.estimates` says of these groups, and their `runs`."""
        names = {name: f"e_{name}" for name in ESTIMATE} | {"runs": "runs"}
        return {name: self.groups[column][ids] for name, column in names.items()}

    def pairs(self, against: str) -> dict[str, Ids]:
        """Return the ids `a` and `b` of the pairs of `against` and other levels, in their order."""
        level, cell, kin = (self.groups[name] for name in ("level", "cell", "kin"))
        place = level.astype(np.min_scalar_type(len(self.levels)))  # small numbers are sorted fast
        first = self.place(against)
        others = np.argsort(place, kind="stable")
        others = others[level[others] != first]
        mine = np.flatnonzero(level == first)
        mine = mine[np.argsort(cell[mine], kind="stable")]
        sizes = np.bincount(cell[mine], minlength=len(cell))
        number, stop = sizes[cell[others]], sizes.cumsum()[cell[others]]
        at = np.repeat(stop - number.cumsum(), number) + np.arange(number.sum())
        a = mine[at]
        b = np.repeat(others, number)
        alike = kin[a] == kin[b]
        if not self._is_by_options:
            alike |= (kin[a] < 0) | (kin[b] < 0)
        elif not alike.all():
            _, of, count = np.unique(
                cell * len(self.levels) + level, return_inverse=True, return_counts=True
            )
            alone = count[of] == 1
            alike |= alone[a] & alone[b]
        a, b = a[alike], b[alike]
        order = np.lexsort((a, place[b]))  # by `b` they stand in order already
        return {"a": a[order], "b": b[order]}

    def lonely(self, against: str, others: Sequence[str], pairs: dict[str, Ids]) -> Columns:
        """Return the whole steps that `pairs` leave alone, by `id`, and whether they `is_a`.

        `other` is the place in `others` of the level that is not there, -1 for `against`; `in_cell`
        says whether it has a group that is not alike.
        """
        level, cell, whole = (self.groups[name] for name in ("level", "cell", "whole"))
        first = self.place(against)
        found = [(-1, pairs["b"], level != first, level == first)]
        for place, other in enumerate(others):
            there = level == self.place(other)
            found.append((place, pairs["a"][there[pairs["b"]]], level == first, there))
        parts = []
        for place, ids, mine, beside in found:
            left = whole & mine
            left[ids] = False
            alone = np.flatnonzero(left)
            near = np.isin(cell[alone], cell[beside])
            parts.append((alone, np.full(len(alone), place), near))
        one, other_, near = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((other_, one, other_ < 0))
        told = {"id": one, "is_a": other_ >= 0, "other": other_, "in_cell": near}
        return {name: column[order] for name, column in told.items()}

    def columns(self, names: Sequence[str]) -> Columns:
        """Return columns of `records` of each group, as its last record says them.

        Of what all records say alike, which is not read one by one, the names are in `same`.
        """
        told = {name: self.data.expression(name) for name in names}
        same = self._alike(told)
        self.same |= same.keys()
        shown = (f", {sql} AS {flat.name(one)}" for one, sql in told.items() if one not in same)
        number = len(self.groups["last"])
        self.data.lend("asked", {"seq": self.groups["last"], "id": np.arange(number)})
        found = self.data.arrays(
            f"SELECT id AS id_{''.join(shown)} FROM asked JOIN flat USING (seq) ORDER BY id"
        )
        found |= {one: np.full(number, held) for one, held in same.items()}
        return {one: found[one] for one in names}

    def _alike(self, columns: Mapping[str, str]) -> dict[str, Any]:
        """Return the columns, of SQL, of which all records say one value, and this value."""
        ends = (f", list_value(min({one}), max({one})) AS a{at}, count({one}) AS n{at}"
                for at, one in enumerate(columns.values()))  # fmt: skip
        number, *found = self.data.one(
            f"SELECT count(*){''.join(ends)} FROM flat WHERE {self._where}"
        )
        told = zip(columns, found[::2], found[1::2], strict=True)
        alike = {name: low for name, (low, high), n in told if low == high and n in (0, number)}
        return {
            name: float(one) if isinstance(one, int | float) else np.array(one, object)
            for name, one in alike.items()
        }

    def facts(self, ids: Ids, columns: Mapping[str, str]) -> dict[int, Row]:
        """Return columns of the last record of groups, by id; `host` and `good_s` are of all."""
        return {row.pop("id"): row for row in self.data.rows(f"FROM {self.lent(ids, columns)}")}

    def rows(self, ids: Ids, facts: Mapping[str, str], groups: Mapping[str, str]) -> list[Row]:
        """Return rows of groups: `facts` of them, and columns of `groups` under other names."""
        told = self.facts(ids, facts)
        cells = zip(*(known(self.groups[name][ids]) for name in groups.values()), strict=True)
        return [
            told[at] | dict(zip(groups, row, strict=True))
            for at, row in zip(ids.tolist(), cells, strict=True)
        ]

    def lent(self, ids: Ids, columns: Mapping[str, str]) -> str:
        """Return the SQL of `facts`, which holds until others are asked for."""
        ids = np.flatnonzero(np.bincount(ids))
        told_ = {name: self.groups[name][ids] for name in ("group_", "records", "last")}
        self.data.lend("last", {"id": ids, **told_})
        told = ", ".join(f"{made} AS {flat.name(name)}" for name, made in columns.items())
        host, good_s, several = "coalesce(host, '')", "NULL", ""
        if (told_["records"] > 1).any():
            host, good_s = f"coalesce(hosts, {host})", "of_all_s"
            several = (
                "LEFT JOIN (SELECT id, array_to_string(list_sort(list(DISTINCT host) FILTER "
                "(host <> '')), ', ') AS hosts, coalesce(list_median(flatten(list(samples) FILTER "
                "(status = 'ok' AND samples_n > 0))), if(any_value(origin) = 'predicted', "
                "arg_max(step_s, seq) FILTER (status = 'ok'), "
                "median(step_s) FILTER (status = 'ok'))) "
                f"AS of_all_s FROM last JOIN {self.members} USING (group_) JOIN flat USING (seq) "
                "WHERE records > 1 GROUP BY id) USING (id)"
            )
        return (
            f"(SELECT id, {told} FROM (SELECT id, 0 AS within, {good_s}::DOUBLE AS good_s, "
            f"flat.* REPLACE ({host} AS host) FROM last JOIN flat ON seq = last.last {several}))"
        )


def known(column: NDArray[Any]) -> list[Any]:
    """Return cells as they stand in rows, None in place of what is no finite number."""
    if column.dtype.kind != "f":
        return list(column.tolist())
    return [one if math.isfinite(one) else None for one in column.tolist()]


def places_of(numbers: Ids, many: int) -> list[Ids]:
    """Return where each of the whole numbers below `many` stands in a column."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.searchsorted(numbers[order], np.arange(1, many)))

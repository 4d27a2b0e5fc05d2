"""Groups of records side by side, as columns: 10^6 records are seconds.

A group is of one cell and one method, its samples pooled; a cell is what records have in common
that differ in nothing but the column that is compared. A level is a value of that column.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.core.errors import InputError, unknown
from steptime.records import flat
from steptime.records.data import Data
from steptime.records.row import ESTIMATE, Row
from steptime.records.statistics import of_samples

OF_PLATFORM = ("gpu", "allocation")  # options that say by what word a platform was asked for
OF_STACK = ("compile", "stack")  # options that say a stack
PLACES = ("platform", "gpu", "threads", "host")  # that may give a platform another name
APART = {  # options in which the levels of a column may differ
    **dict.fromkeys(("platform", "gpu"), OF_PLATFORM),
    **dict.fromkeys(("stack", "method"), OF_STACK),
}
NAME = "regexp_replace(method, '-compile$', '')"
OF_SAMPLES = (
    *("params", "plan", "samples", "run", "runs", "numbers", "others", "sampled", "estimate"),
    *("env", "method_options", "seq", "place", "folder_rank"),
)
KEY = "(hash({}) >> 2)::BIGINT"  # texts take memory
METHOD = "method, method_version, method_options"
Ids = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]


class Sides:
    """The groups of a quantity by level, and the pairs of those of one level with the others.

    `level` and `cell` are SQL over `flat`, `where` says which records take part; options that are
    `apart` may differ in a pair. `kin` is SQL of what may not, where both know it; by default these
    are the options, unless both groups are the only ones of their level in the cell. `levels` stand
    in order: numbers by size, words as recorded. `groups` are columns by id: `level` (a place in
    `levels`), `cell`, `value`, `low`, `high`, the number of `runs`, and as `e_value`, ... what
    `statistics.estimates` says, NaN where unknown; whether samples are `pooled`, some value is
    `held`, and it is of `whole` steps. Raises `InputError` for a quantity that no record holds.
    """

    def __init__(
        self,
        data: Data,
        quantity: str,
        level: str,
        cell: str,
        where: str = "true",
        apart: Collection[str] = (),
        kin: str = "",
    ) -> None:
        self.data, self.quantity, self._is_by_options = data, quantity, not kin
        self._where, self.same = where, set[str]()
        records = self._records(level, cell, where, apart, kin)
        named = data.rows(
            f"SELECT DISTINCT {level} AS level, {KEY.format('level')} AS key FROM flat"
        )
        by_seq = np.argsort(records["seq"], kind="stable")
        self.levels, records["level"] = _levels(records["level"], by_seq, named)
        self.groups = self._grouped(records, by_seq)

    def _records(
        self, level: str, cell: str, where: str, apart: Collection[str], kin: str
    ) -> Columns:
        """Return columns of the records that take part, in no order."""
        step, own = self.quantity == "step_s", f"sampled[{flat.text(self.quantity)}]"
        number, least, runs = (
            ("samples_n", "step_s_min", "runs")
            if step
            else (f"len({own}.samples)", f"list_min({own}.samples)", f"list_unique({own}.run)")
        )
        gone = flat.text(json.dumps(dict.fromkeys(apart)))
        how = KEY.format(f"json_merge_patch(method_options, {gone})")
        whole_numbers = {
            "seq": "seq",
            "level": KEY.format("level_"),
            "cell": KEY.format(cell),
            "group": KEY.format(f"level_, {cell}, method_"),
            "kin": f"if({kin} IS NULL, -1, {KEY.format(kin)})" if kin else "how",
            "way": KEY.format("host, origin, method_"),
        }
        numbers = {
            "value": value_of(self.data, self.quantity),
            "held": "origin <> 'measured' OR status = 'ok'",
            "whole": "scope = ''",
            "sampled": f"status = 'ok' AND {number} > 0",
            "resting": f"{least} <= 0",
            "runs": runs,
            **{f"stated_{end}": f"stated_{end}" if step else "NULL" for end in ("low", "high")},
            **{f"e_{name}": f"estimate.{name}" if step else "NULL" for name in ESTIMATE},
        }
        told = [f"{made} AS {flat.name(name)}" for name, made in whole_numbers.items()]
        told += [
            f"coalesce(CAST({made} AS DOUBLE), 'nan') AS {flat.name(name)}"
            for name, made in numbers.items()
        ]
        of_options = (
            f"JOIN (SELECT method_options, {how} AS how FROM (SELECT DISTINCT method_options "
            "FROM flat)) USING (method_options) "
        )
        records = f"SELECT *, {level} AS level_, hash({METHOD}) AS method_ FROM flat WHERE {where}"
        return self.data.arrays(
            f"SELECT {', '.join(told)} FROM ({records}) {'' if kin else of_options}"
            "WHERE level_ IS NOT NULL",
            exact=whole_numbers,
        )

    def _grouped(self, of: Columns, by_seq: Ids) -> Columns:
        """Return the columns of groups, which stand in the order of their first records."""
        order = np.argsort(of["group"][by_seq], kind="stable")
        key = of["group"][by_seq[order]]
        starts = np.flatnonzero(np.r_[True, key[1:] != key[:-1]][: len(order)])
        first = np.argsort(order[starts])
        sizes = np.diff(np.r_[starts, len(order)])[first]
        self._ends = sizes.cumsum()
        begins = self._ends - sizes
        order = by_seq[order[np.repeat(starts[first] - begins, sizes) + np.arange(len(order))]]
        self._seq, last = of["seq"][order], order[self._ends - 1]
        known = np.isfinite(of["value"])
        sampled, held = ((known & (of[name] == 1))[order] for name in ("sampled", "held"))
        self._is_sampled = sampled

        def number(which: NDArray[np.bool_]) -> Ids:
            return np.asarray(np.add.reduceat(which, begins, dtype=np.int64))

        def latest(which: NDArray[np.bool_]) -> Ids:
            return np.maximum.reduceat(np.where(which, np.arange(len(order)), -1), begins)

        samples, stated = latest(sampled), latest(held)
        pooled = (samples >= 0) & (number(sampled & (of["resting"] == 1)[order]) == 0)
        found = {name: of[name][last] for name in ("level", "kin")}
        found["cell"] = np.unique(of["cell"][last], return_inverse=True)[1]
        found |= {"way": np.add.reduceat(of["way"][order], begins), "whole": of["whole"][last] == 1}
        found |= {"pooled": pooled, "held": (samples >= 0) | (stated >= 0)}
        for name in ("value", "runs", *(f"e_{name}" for name in ESTIMATE)):
            found[name] = np.where(pooled, of[name][order[samples]], np.nan)
        several = pooled & ((number(sampled) > 1) | np.isnan(found["e_value"]))
        if several.any():
            self._pool(found, np.flatnonzero(several))
        with np.errstate(invalid="ignore"):
            for end, widest in (("low", np.minimum), ("high", np.maximum)):
                own = np.where(stated >= 0, of[f"stated_{end}"][order[stated]], np.nan)
                found[end] = np.where(pooled, widest(found[f"e_{end}"], found["value"]), own)
        own = np.where(stated >= 0, of["value"][order[stated]], np.nan)
        return found | {"value": np.where(pooled, found["value"], own)}

    def _pool(self, found: Columns, several: Ids) -> None:
        """Set median, runs and estimate of groups whose samples nobody has looked at together."""
        ids, places = self._of(several)
        chosen = self._is_sampled[places]
        own = "" if self.quantity == "step_s" else f"sampled[{flat.text(self.quantity)}]."
        self.data.lend("asked", {"id": ids[chosen], "place_": self._seq[places[chosen]]})
        held = self.data.arrays(
            "SELECT id, flatten(list(samples ORDER BY place_)) AS samples, "
            "flatten(list(run ORDER BY place_)) AS run FROM (SELECT id, place_, "
            f"{own}samples AS samples, [(hash(place_, r) >> 1)::BIGINT for r in {own}run] AS run "
            f"FROM asked JOIN flat ON seq = place_) GROUP BY id ORDER BY id",
            exact=("id",),
        )
        at = held["id"]
        found["value"][at] = [np.median(one) for one in held["samples"]]
        found["runs"][at] = [len(np.unique(one)) for one in held["run"]]
        for name, told in of_samples(list(held["samples"]), list(held["run"])).items():
            found[f"e_{name}"][at] = told

    def _of(self, ids: Ids) -> tuple[Ids, Ids]:
        """Return the records of groups: the id of each, and its place among all records."""
        ends = self._ends[ids]
        sizes = ends - np.r_[0, self._ends][ids]
        within = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)
        return np.repeat(ids, sizes), np.repeat(ends - sizes, sizes) + within

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
        first, others = self.place(against), np.argsort(place, kind="stable")
        others = others[level[others] != first]
        mine = np.flatnonzero(level == first)
        mine = mine[np.argsort(cell[mine], kind="stable")]
        sizes = np.bincount(cell[mine], minlength=len(cell))
        number, stop = sizes[cell[others]], sizes.cumsum()[cell[others]]
        at = np.repeat(stop - number.cumsum(), number) + np.arange(number.sum())
        a, b = mine[at], np.repeat(others, number)
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
        names = np.argsort(np.argsort([*others, ""]))[other_]
        order = np.lexsort((names, one, other_ < 0))
        told = {"id": one, "is_a": other_ >= 0, "other": other_, "in_cell": near}
        return {name: column[order] for name, column in told.items()}

    def columns(self, names: Sequence[str]) -> Columns:
        """Return columns of `records` of each group, as its last record says them.

        `flop_` is what is known of its network [FLOP], `examples_` what all replicas work on. Of
        what all records say alike, which is not read one by one, the names are in `same`.
        """
        flop = "coalesce(numbers['flop'], TRY_CAST(others['published_flop'] AS DOUBLE))"
        made = {"flop_": "counted.flop", "examples_": "examples"}
        told = {one: made.get(one) or self.data.expression(one) for one in names}
        same = self._alike({one: sql for one, sql in told.items() if one not in made})
        self.same |= same.keys()
        shown = (f", {sql} AS {flat.name(one)}" for one, sql in told.items() if one not in same)
        counted = (
            f"LEFT JOIN (SELECT workload_key, max({flop}) AS flop FROM flat WHERE scope = '' "
            "GROUP BY 1) counted USING (workload_key) "
        )
        last = {"place_": self._seq[self._ends - 1], "id": np.arange(len(self._ends))}
        self.data.lend("asked", last)
        found = self.data.arrays(
            f"SELECT id AS id_{''.join(shown)} FROM asked JOIN flat ON seq = place_ "
            f"{counted if 'flop_' in names else ''}ORDER BY id"
        )
        found |= {one: np.full(len(self._ends), held) for one, held in same.items()}
        return {one: found[one] for one in names}

    def _alike(self, columns: Mapping[str, str]) -> dict[str, Any]:
        """Return the columns, of SQL, of which all records say one value, and this value."""
        ends = (f", list_value(min({one}), max({one})) AS a{at}, count({one}) AS n{at}"
                for at, one in enumerate(columns.values()))  # fmt: skip
        ((number, *found),) = (
            row.values()
            for row in self.data.rows(
                f"SELECT count(*){''.join(ends)} FROM flat WHERE {self._where}"
            )
        )
        told = zip(columns, found[::2], found[1::2], strict=True)
        alike = {name: low for name, (low, high), n in told if low == high and n in (0, number)}
        return {
            name: float(one) if isinstance(one, int | float) else np.array(one, object)
            for name, one in alike.items()
        }

    def last(self, ids: Ids) -> Ids:
        """Return which record, by its `seq`, is the last one of each of these groups."""
        return np.asarray(self._seq[self._ends[ids] - 1])

    def facts(self, ids: Ids, columns: Mapping[str, str]) -> dict[int, Row]:
        """Return columns of the last record of groups, by id; `host` and `good_s` are of all."""
        return {row.pop("id"): row for row in self.data.rows(f"FROM {self.lent(ids, columns)}")}

    def lent(self, ids: Ids, columns: Mapping[str, str]) -> str:
        """Return the SQL of `facts`, which holds until others are asked for."""
        ids = np.flatnonzero(np.bincount(ids))
        of, places = self._of(ids[self._ends[ids] - np.r_[0, self._ends][ids] > 1])
        self.data.lend("last", {"id": ids, "place_": self.last(ids)})
        self.data.lend("every", {"id": of, "place_": self._seq[places]})
        told = ", ".join(f"{made} AS {flat.name(name)}" for name, made in columns.items())
        return (
            f"(SELECT id, {told} FROM (SELECT last.id, 0 AS within, good_s, flat.* REPLACE "
            "(coalesce(hosts, flat.host, '') AS host) FROM last JOIN flat ON seq = place_ "
            "LEFT JOIN (SELECT id, array_to_string(list_sort(list(DISTINCT host) FILTER "
            "(host <> '')), ', ') AS hosts, median(numbers['step_s']) FILTER (status = 'ok') "
            "AS good_s FROM every JOIN flat ON seq = place_ GROUP BY id) USING (id)))"
        )


def _levels(keys: Ids, by_seq: Ids, named: Sequence[Row]) -> tuple[list[str], Ids]:
    """Return the levels of records in order, and the place of the level of each record."""
    names = {row["key"]: row["level"] for row in named if row["level"] is not None}
    known = np.sort(np.array([*names], np.int64))
    of, first = np.searchsorted(known, keys), np.full(len(known), -1)
    first[of[by_seq[::-1]]] = np.arange(len(keys))[::-1]  # of several the last, so the first record
    seen = np.flatnonzero(first >= 0)
    levels = [names[key] for key in known[seen[np.argsort(first[seen])]].tolist()]
    with suppress(ValueError):
        levels.sort(key=float)
    place = {level: at for at, level in enumerate(levels)}
    places = np.array([place.get(names[key], -1) for key in known.tolist()], np.int64)
    return levels, places[of]


def value_of(data: Data, quantity: str) -> str:
    """Return the SQL of a quantity; raises `InputError` where no record has it."""
    key = flat.text(quantity)
    own = quantity if quantity == "speed_per_s" else f"numbers[{key}]"
    value = f"coalesce({own}, TRY_CAST(others[{key}] AS DOUBLE))"
    if data.rows(f"SELECT 1 FROM flat WHERE {value} IS NOT NULL LIMIT 1"):
        return value
    if data.failed:
        raise InputError(data.failed)
    held = data.rows(
        "SELECT DISTINCT unnest(map_keys(numbers) || map_keys(others)) AS name FROM flat"
    )
    raise unknown("quantity", quantity, sorted(row["name"] for row in held))


def cell_of(data: Data, column: str, free: Collection[str]) -> str:
    """Return the SQL of what records have in common that may be paired, whatever `free` says."""
    network = {
        "model": "if(starts_with(model, family), family, model)",
        "batch": "examples / replicas",
        **{name: name for name in ("dtype", "phase", "optimizer", "params", "plan")},
    }
    if "replicas" in free:
        network["plan"] = "json_merge_patch(plan, '{\"data\":null}')"
    settings = {*network, "replicas", *data.settings} & {*free}
    for name in settings & set(data.settings):
        network["params"] = (
            f"list_filter(map_entries(params), lambda e: e.key <> {flat.text(name)})"
        )
    kept = [made for name, made in network.items() if name not in free]
    cell = [*kept, "scope", "origin"] if settings else ["workload_key", "scope", "origin"]
    if column not in PLACES:
        cell.append("platform")
    if column == "stack":  # a prediction of a stack has one method
        cell.append(f"if(origin = 'predicted', {NAME}, '')")
    elif column not in ("method", "predicted_by"):
        cell.append(NAME)
    return f"hash({', '.join(cell)})"


def level_of(data: Data, column: str) -> str:
    """Return the SQL of what a column says of a record, as text; None where it says nothing of it.

    A column is one of the tables, a hyperparameter, an option, or one of the environment. Raises
    `InputError` for a column of which no record says anything.
    """
    path, own = flat.text(f'$."{column.replace(chr(34), "")}"'), f"params[{flat.text(column)}]"
    known = [name for name in data.columns("flat") if name not in OF_SAMPLES]
    told = [flat.TEXT.format(v=own)] if column in data.settings else []
    told += [f"json_extract_string({one}, {path})" for one in ("method_options", "env")]
    way = flat.text(f"$.{column.removesuffix('-parallel')}")
    told += [f"json_extract_string(plan, {way})"] if column.endswith("-parallel") else []
    if column in known:
        told = [f"CAST({flat.name(column)} AS VARCHAR)"]
    value = f"coalesce({', '.join(told)})"
    text = f"CASE {value} WHEN 'true' THEN 'yes' WHEN 'false' THEN 'no' ELSE {value} END"
    if column == "predicted_by":
        text = f"CASE WHEN origin = 'predicted' THEN {NAME} END"
    if column == "host":  # where a prediction was computed changes nothing
        text = f"CASE WHEN origin <> 'predicted' THEN {text} END"
    if data.rows(f"SELECT 1 FROM flat WHERE ({text}) IS NOT NULL LIMIT 1"):
        return text
    keys = data.rows(
        "SELECT DISTINCT unnest(json_keys(method_options) || json_keys(env)) AS name FROM flat"
    )
    every = [*known, *data.settings, *(row["name"] for row in keys), "predicted_by"]
    if column in every:
        raise InputError(f"--by {column}: no step here says its {column}")
    raise unknown("column", column, every, "--by")

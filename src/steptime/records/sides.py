"""Groups of records side by side, as columns: 10^6 records are seconds.

A group is of one cell and one method, its samples pooled; a cell is what records have in common
that differ in nothing but the column that is compared. A level is a value of that column.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from steptime.core.errors import InputError, unknown
from steptime.records import flat
from steptime.records.row import AMOUNTS, ESTIMATE, Row
from steptime.records.statistics import of_samples

if TYPE_CHECKING:
    from steptime.records.folders import Folders

OF_PLATFORM = ("gpu", "allocation")  # options that say by what word a platform was asked for
OF_STACK = ("compile", "stack")  # options that say a stack
PLACES = ("platform", "gpu", "threads", "host")  # that may give a platform another name
APART = {  # options in which the levels of a column may differ
    **dict.fromkeys(("platform", "gpu"), OF_PLATFORM),
    **dict.fromkeys(("stack", "method"), OF_STACK),
}
OF_SAMPLES = (
    *("params", "settings", "plan", "samples", "run", "runs", "others", "sampled", *AMOUNTS),
    *("estimate", "env", "method_options", "seq", "place", "folder_rank"),
)
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
        self._where, self.same = where, set[str]()
        self.members = f"members_{next(_NUMBERS)}"
        self._take(level, cell, apart, kin, way)
        self.levels = [
            row["level_"]
            for row in data.rows(f"SELECT level_ FROM {self.members} GROUP BY 1 ORDER BY min(seq)")
        ]
        with suppress(ValueError):
            self.levels.sort(key=float)
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
            "resting": f"{least} <= 0",
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
            f"CAST({_value(self.quantity)} AS DOUBLE) AS value_ FROM flat "
            f"WHERE {self._where}) {'' if kin else of_options}WHERE level_ IS NOT NULL"
        )

    def _grouped(self) -> Columns:
        """Return the columns of groups, which stand in the order of their first records."""
        estimate = ", ".join(f"one.estimate.{name} AS e_{name}" for name in ESTIMATE)
        ends = ", ".join(f"stated.{one} AS stated_{one}" for one in OF_STATED)
        found = self.data.arrays(
            f"SELECT * EXCLUDE (first, level_, rests, one, stated), {estimate}, {ends}, "
            "coalesce(sampled > 0 AND NOT rests, false) AS pooled, "
            "sampled > 0 OR stated.value IS NOT NULL AS held, "
            "one.value AS value, one.runs AS runs "
            "FROM (SELECT group_, min(seq) AS first, max(seq) AS last, count(*) AS records, "
            "coalesce(max(seq) FILTER (held), max(seq)) AS best, "
            "any_value(level_) AS level_, any_value(cell) AS cell, any_value(whole) AS whole, "
            "arg_max(kin, seq) AS kin, (hash(list_sort(list(way))) >> 2)::BIGINT AS way, "
            "count(*) FILTER (sampled) AS sampled, bool_or(resting) FILTER (sampled) AS rests, "
            "arg_max({'value': value_, 'runs': runs, 'estimate': estimate}, seq) "
            "FILTER (sampled) AS one, arg_max({'value': value_, 'low': stated_low, "
            "'high': stated_high}, seq) FILTER (held) AS stated "
            f"FROM {self.members} GROUP BY group_) JOIN (SELECT unnest($1::VARCHAR[]) AS level_, "
            "unnest(range(len($1))) AS level) USING (level_) ORDER BY first",
            self.levels,
            exact=WHOLE_NUMBERS,
        )
        found["cell"] = np.unique(found["cell"], return_inverse=True)[1]
        found |= {name: found[name] == 1 for name in ("whole", "pooled", "held")}
        pooled, stated = found["pooled"], found.pop("stated_value")
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
        """Set median, runs and estimate of groups whose samples nobody has looked at together."""
        own = "" if self.quantity == "step_s" else f"flat.sampled[{flat.text(self.quantity)}]."
        self.data.lend("asked", {"id": several, "group_": found["group_"][several]})
        held = self.data.arrays(
            "SELECT id, flatten(list(samples ORDER BY seq)) AS samples, "
            "flatten(list(run ORDER BY seq)) AS run FROM (SELECT id, seq, "
            f"{own}samples AS samples, [(hash(seq, r) >> 1)::BIGINT for r in {own}run] AS run "
            f"FROM asked JOIN {self.members} USING (group_) JOIN flat USING (seq) WHERE "
            f"{self.members}.sampled) GROUP BY id ORDER BY id",
            exact=("id",),
        )
        at = held["id"]
        found["value"][at] = [np.median(one) for one in held["samples"]]
        found["runs"][at] = [len(np.unique(one)) for one in held["run"]]
        for name, told in of_samples(list(held["samples"]), list(held["run"])).items():
            found[f"e_{name}"][at] = told

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
        flop = "coalesce(flop, TRY_CAST(others['published_flop'] AS DOUBLE))"
        made = {"flop_": "counted.flop", "examples_": "examples"}
        told = {one: made.get(one) or self.data.expression(one) for one in names}
        same = self._alike({one: sql for one, sql in told.items() if one not in made})
        self.same |= same.keys()
        shown = (f", {sql} AS {flat.name(one)}" for one, sql in told.items() if one not in same)
        counted = (
            f"LEFT JOIN (SELECT workload_key, max({flop}) AS flop FROM flat WHERE scope = '' "
            "GROUP BY 1) counted USING (workload_key) "
        )
        number = len(self.groups["last"])
        self.data.lend("asked", {"seq": self.groups["last"], "id": np.arange(number)})
        found = self.data.arrays(
            f"SELECT id AS id_{''.join(shown)} FROM asked JOIN flat USING (seq) "
            f"{counted if 'flop_' in names else ''}ORDER BY id"
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
                "(status = 'ok' AND samples_n > 0))), arg_max(step_s, seq) FILTER (status = 'ok')) "
                f"AS of_all_s FROM last JOIN {self.members} USING (group_) JOIN flat USING (seq) "
                "WHERE records > 1 GROUP BY id) USING (id)"
            )
        return (
            f"(SELECT id, {told} FROM (SELECT id, 0 AS within, {good_s}::DOUBLE AS good_s, "
            f"flat.* REPLACE ({host} AS host) FROM last JOIN flat ON seq = last.last {several}))"
        )


def value_of(data: Folders, quantity: str) -> str:
    """Return the SQL of a quantity; raises `InputError` where no record has it."""
    value = _value(quantity)
    if data.rows(f"SELECT 1 FROM flat WHERE {value} IS NOT NULL LIMIT 1"):
        return value
    if data.failed:
        raise InputError(data.failed)
    held = data.rows("SELECT DISTINCT unnest(map_keys(others)) AS name FROM flat")
    (known,) = data.rows(
        f"SELECT {', '.join(f'count({one}) AS {one}' for one in AMOUNTS)} FROM flat"
    )
    names = [name for name, number in known.items() if number]
    raise unknown("quantity", quantity, sorted([*names, *(row["name"] for row in held)]))


def _value(quantity: str) -> str:
    value = f"TRY_CAST(others[{flat.text(quantity)}] AS DOUBLE)"
    return f"coalesce({quantity}, {value})" if quantity in (*AMOUNTS, "speed_per_s") else value


def cell_of(data: Folders, column: str, free: Collection[str]) -> str:
    """Return the SQL of what records have in common that may be paired, whatever `free` says."""
    model = "if(starts_with(model, family), family, model)"
    network = {  # of a network with a hash that says it, whatever it was called
        "model": model if "sha256" in free else f"if(contains(params, 'sha256'), '', {model})",
        "batch": "examples / replicas",
        **{name: name for name in ("dtype", "phase", "optimizer", "params", "plan")},
    }
    if "replicas" in free:
        network["plan"] = "json_merge_patch(plan, '{\"data\":null}')"
    settings = {*network, "replicas", *data.settings} & {*free}
    for name in settings & set(data.settings):
        gone = flat.text(json.dumps({name: None}))
        network["params"] = f"json_merge_patch({network['params']}, {gone})"
    kept = [made for name, made in network.items() if name not in free]
    cell = [*kept, "scope", "origin"] if settings else ["workload_key", "scope", "origin"]
    if column not in PLACES:
        cell.append("platform")
    if column == "stack":  # a prediction of a stack has one method
        cell.append(f"if(origin = 'predicted', {flat.NAME}, '')")
    elif column not in ("method", "predicted_by"):
        cell.append(flat.NAME)
    return f"hash({', '.join(cell)})"


def level_of(data: Folders, column: str) -> str:
    """Return the SQL of what a column says of a record, as text; None where it says nothing of it.

    A column is one of the tables, a hyperparameter, an option, or one of the environment. Raises
    `InputError` for a column of which no record says anything.
    """
    path = flat.text(f'$."{column.replace(chr(34), "")}"')
    known = [name for name in data.columns("flat") if name not in OF_SAMPLES]
    told = [flat.TEXT.format(v=flat.param(column))] if column in data.settings else []
    told += [f"json_extract_string({one}, {path})" for one in ("method_options", "env")]
    way = flat.text(f"$.{column.removesuffix('-parallel')}")
    told += [f"json_extract_string(plan, {way})"] if column.endswith("-parallel") else []
    if column in known:
        told = [f"CAST({flat.name(column)} AS VARCHAR)"]
    value = f"coalesce({', '.join(told)})"
    text = f"CASE {value} WHEN 'true' THEN 'yes' WHEN 'false' THEN 'no' ELSE {value} END"
    if column == "predicted_by":
        text = f"CASE WHEN origin = 'predicted' THEN {flat.NAME} END"
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

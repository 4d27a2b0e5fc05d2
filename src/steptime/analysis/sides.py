"""Groups of records side by side, found by SQL: 10^6 records are seconds.

A group is of one cell and one method, its samples pooled; a cell is what records have in common
that differ in nothing but the column that is compared. A level is a value of that column.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.analysis import flat
from steptime.analysis.data import Data
from steptime.analysis.row import ESTIMATE, Row, facts_of
from steptime.analysis.statistics import of_arrays
from steptime.core.errors import InputError, unknown

OF_PLATFORM = ("gpu", "allocation")  # options that say by what word a platform was asked for
OF_STACK = ("compile", "stack")  # options that say a stack
PLACES = ("platform", "gpu", "threads", "host")  # that may give a platform another name
APART = {  # options in which the levels of a column may differ
    **dict.fromkeys(("platform", "gpu"), OF_PLATFORM),
    **dict.fromkeys(("stack", "method"), OF_STACK),
}
NAME = "regexp_replace(method, '-compile$', '')"
ALIKE = "a.how_ = b.how_ OR (a.alone_ AND b.alone_)"
GROUP = "level_, cell_, hash(method, method_version, method_options)"  # texts take memory
OF_GROUP = {  # what stands in `groups`, by aggregates over the tries of a group
    **{name: f"any_value({name})" for name in ("cell_", "how_", "scope", "family", "op_kind")},
    **{name: f"any_value({name})" for name in ("origin", "method_version", "method_options")},
    "stack": "arg_max_null(stack, seq)",
    "first_": "min(seq)",
    "last_": "max(seq)",
    **{name: f"arg_max_null({name}, seq)" for name in ("status", "cause")},
    "step_s": "median(numbers['step_s']) FILTER (status = 'ok')",
    "sampled": "count(*) FILTER (is_sampled)",
    "resting": "count(*) FILTER (is_sampled AND list_min(samples_) <= 0)",
    "stated": "arg_max(value_, seq) FILTER (is_held)",
    "stated_low": "arg_max_null(stated_low, seq) FILTER (is_held AND step_)",
    "stated_high": "arg_max_null(stated_high, seq) FILTER (is_held AND step_)",
    "median_": "any_value(value_) FILTER (is_sampled)",
    **{f"e_{n}": f"any_value(estimate.{n}) FILTER (is_sampled AND step_)" for n in ESTIMATE},
    "hosts": "list_sort(list(DISTINCT host) FILTER (host <> ''))",
    "runs": "any_value(len(list_distinct(run_))) FILTER (is_sampled)",
}
OF_SAMPLES = (
    *("params", "plan", "samples", "run", "runs", "numbers", "others", "sampled", "estimate"),
    *("env", "method_options", "seq", "line", "filename", "is_plain", "place", "folder_rank"),
)
_NUMBER = count()


class Sides:
    """The groups of a quantity by level, and the pairs of those of one level with the others.

    `level` and `cell` are SQL over `flat`, `where` says which records take part; options that are
    `apart` may differ in a pair. `levels` stand in order: numbers by size, words as recorded.
    `groups` are columns by `id`, NaN or None where unknown. Raises `InputError` for a quantity that
    no record holds.
    """

    def __init__(
        self,
        data: Data,
        quantity: str,
        level: str,
        cell: str,
        where: str = "true",
        apart: Collection[str] = (),
    ) -> None:
        self.data, self.quantity, self.table = data, quantity, f"sides_{next(_NUMBER)}"
        self._tries = _tries(data, quantity, level, cell, where, apart)
        aggregates = ", ".join(f"{made} AS {name}" for name, made in OF_GROUP.items())
        data.rows(
            f"CREATE TEMP TABLE {self.table} AS SELECT row_number() OVER (ORDER BY first_) - 1 "
            "AS id, *, dense_rank() OVER (ORDER BY cell_) - 1 AS cell, "
            "count(*) OVER (PARTITION BY level_, cell_) = 1 AS alone_ FROM "
            f"(SELECT level_, {aggregates} FROM ({self._tries}) GROUP BY {GROUP})"
        )
        found = data.rows(f"SELECT level_ FROM {self.table} GROUP BY 1 ORDER BY min(first_)")
        self.levels = [row["level_"] for row in found]
        with suppress(ValueError):
            self.levels.sort(key=float)
        self.groups = self._groups()

    def _groups(self) -> dict[str, NDArray[Any]]:
        """Return the columns of the groups: `value`, `low` and `high`, and what `OF_GROUP` says.

        `e_value`, ... are what `statistics.estimates` says of the pooled samples.
        """
        found = self.data.arrays(
            f"SELECT * EXCLUDE (method_version, method_options) FROM {self.table} ORDER BY id"
        )
        pooled = (found["sampled"] > 0) & (found["resting"] == 0)
        several = pooled & ((found["sampled"] > 1) | np.isnan(found["e_value"]))
        if several.any():
            self._pool(found, several)
        with np.errstate(invalid="ignore"):
            for end, widest in (("low", np.minimum), ("high", np.maximum)):
                widened = widest(found[f"e_{end}"], found["median_"])
                found[end] = np.where(pooled, widened, found[f"stated_{end}"])
        for name in ("runs", *(f"e_{name}" for name in ESTIMATE)):
            found[name] = np.where(pooled, found[name], np.nan)
        value = np.where(pooled, found["median_"], found["stated"])
        return found | {"value": value, "pooled": pooled}

    def _pool(self, found: dict[str, NDArray[Any]], several: NDArray[np.bool_]) -> None:
        """Set median, runs and estimate of groups whose samples nobody has looked at together."""
        self.data.lend("several", {"id": np.flatnonzero(several)})
        held = self.data.arrays(
            "SELECT id, held.samples, held.run FROM (SELECT min(seq) AS first_, "
            "flatten(list(samples_ ORDER BY seq) FILTER (is_sampled)) AS samples, "
            "flatten(list([(hash(seq, r) >> 1)::BIGINT for r in run_] ORDER BY seq) "
            f"FILTER (is_sampled)) AS run FROM ({self._tries}) GROUP BY {GROUP}) held "
            f"JOIN {self.table} USING (first_) SEMI JOIN several USING (id)"
        )
        at = held["id"].astype(np.int64)
        found["median_"][at] = [np.median(one) for one in held["samples"]]
        found["runs"][at] = [len(np.unique(one)) for one in held["run"]]
        for name, told in of_arrays(held["samples"], held["run"]).items():
            found[f"e_{name}"][at] = told

    def estimate(self, ids: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        """Return what `statistics.estimates` says of these groups, and their `runs`."""
        names = {name: f"e_{name}" for name in ESTIMATE} | {"runs": "runs"}
        return {name: self.groups[column][ids] for name, column in names.items()}

    def pairs(self, against: str, alike: str = ALIKE) -> dict[str, NDArray[Any]]:
        """Return the ids `a` and `b` of the pairs of `against` and other levels, in their order."""
        self._match(against, alike)
        return {
            name: found.astype(np.int64)
            for name, found in self.data.arrays(f"SELECT a, b FROM {self.table}_pairs").items()
        }

    def _match(self, against: str, alike: str) -> None:
        levels = ", ".join(f"({flat.text(one)}, {at})" for at, one in enumerate(self.levels))
        self.data.rows(
            f"CREATE OR REPLACE TEMP TABLE {self.table}_pairs AS WITH levels (level_, rank_) AS "
            f"(VALUES {levels}) SELECT a.id AS a, b.id AS b FROM {self.table} a JOIN {self.table} "
            "b USING (cell_) JOIN levels ON levels.level_ = b.level_ WHERE a.level_ = ? AND "
            f"b.level_ <> a.level_ AND ({alike}) ORDER BY rank_, a.first_, b.first_",
            against,
        )

    def lonely(self, against: str, others: Sequence[str]) -> list[Row]:
        """Return the whole steps that `pairs` has left alone: `id`, `level`, `side`, `in_cell`.

        `in_cell` says whether the other side has a group that is not alike.
        """
        beside = f"EXISTS (FROM {self.table} y WHERE y.cell_ = x.cell_ AND y.level_ = {{}})"
        return self.data.rows(
            f"SELECT x.id, l.level_ AS level, 'a' AS side, {beside.format('l.level_')} AS in_cell "
            f"FROM {self.table} x, (SELECT unnest($2::VARCHAR[]) AS level_) l "
            "WHERE x.scope = '' AND x.level_ = $1 AND (x.id, l.level_) NOT IN "
            f"(SELECT (p.a, y.level_) FROM {self.table}_pairs p JOIN {self.table} y ON y.id = p.b) "
            f"UNION ALL SELECT x.id, x.level_, 'b', {beside.format('$1')} FROM {self.table} x "
            "WHERE x.scope = '' AND x.level_ <> $1 "
            f"AND x.id NOT IN (SELECT b FROM {self.table}_pairs) ORDER BY side, id",
            against,
            list(others),
        )

    def columns(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return columns of `records` of each group, as its last record says them.

        `flop_` is what is known of its network [FLOP], `examples_` what all replicas work on.
        """
        flop = "coalesce(numbers['flop'], TRY_CAST(others['published_flop'] AS DOUBLE))"
        made = {"flop_": "counted.flop", "examples_": "examples"}
        told = ", ".join(
            f"{made.get(one) or self.data.expression(one)} AS {flat.name(one)}" for one in names
        )
        counted = (
            f"LEFT JOIN (SELECT workload_key, max({flop}) AS flop FROM flat WHERE scope = '' "
            "GROUP BY 1) counted USING (workload_key) "
        )
        return self.data.arrays(
            f"SELECT {told} FROM (SELECT id, last_ FROM {self.table}) JOIN flat ON seq = last_ "
            f"{counted if 'flop_' in names else ''}ORDER BY id"
        )

    def facts(self, ids: Sequence[int]) -> dict[int, Row]:
        """Return `row.facts_of` of the last record of each of these groups, by its id.

        `host` names all of its machines.
        """
        asked = np.unique(np.asarray(ids, np.int64))
        self.data.lend("asked", {"id": asked})
        found = self.data.rows(
            f"SELECT id, flat.* FROM asked JOIN {self.table} USING (id) JOIN flat ON seq = last_"
        )
        return {
            row["id"]: facts_of(row) | {"host": ", ".join(self.groups["hosts"][row["id"]] or ())}
            for row in found
        }

    def ways(self, a: NDArray[Any], b: NDArray[Any]) -> Iterator[tuple[int, Row, Row]]:
        """Yield how many of the pairs ran in the same two ways, and these, the first pair first."""
        self.data.lend("pairs_", {"nth": np.arange(len(a)), "a": a, "b": b})
        names = ("origin", "method_version", "method_options", "hosts")
        told = ", ".join(f"{side}.{name} AS {side}_{name}" for side in "ab" for name in names)
        for row in self.data.rows(
            f"SELECT {told}, count(*) AS n, min(nth) AS first FROM pairs_ JOIN {self.table} a ON "
            f"a.id = pairs_.a JOIN {self.table} b ON b.id = pairs_.b GROUP BY ALL ORDER BY first"
        ):
            left, right = (
                {name: row[f"{side}_{name}"] for name in names}
                | {"options": json.loads(row[f"{side}_method_options"])}
                | {"host": ", ".join(row[f"{side}_hosts"] or ())}
                for side in "ab"
            )
            yield row["n"], left, right


def _tries(
    data: Data, quantity: str, level: str, cell: str, where: str, apart: Collection[str]
) -> str:
    """Return the statement of the records that take part, with what groups are made of."""
    step = quantity == "step_s"
    key, value = flat.text(quantity), value_of(data, quantity)
    samples, run = (
        ("samples", "run") if step else (f"sampled[{key}].{n}" for n in ("samples", "run"))
    )
    gone = flat.text(json.dumps(dict.fromkeys(apart)))
    return (
        f"SELECT *, value_ IS NOT NULL AND (origin <> 'measured' OR status = 'ok') AS is_held, "
        "value_ IS NOT NULL AND status = 'ok' AND len(samples_) > 0 AS is_sampled FROM ("
        f"SELECT flat.*, how_, {level} AS level_, {cell} AS cell_, {value} AS value_, "
        f"{samples} AS samples_, {run} AS run_, {step} AS step_ FROM flat JOIN ("
        f"SELECT method_options, hash(json_merge_patch(method_options, {gone})) AS how_ "
        "FROM (SELECT DISTINCT method_options FROM flat)) USING (method_options) "
        f"WHERE {where}) WHERE level_ IS NOT NULL"
    )


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
    if column == "predicted_by":
        return f"CASE WHEN origin = 'predicted' THEN {NAME} END"
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

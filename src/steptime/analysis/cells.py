"""The levels of a column paired by SQL, so that 100,000 networks take seconds.

A cell is what records have in common that differ in nothing but the column; a level has one value
in it, the median of its records. `levels.by_column` judges samples; this knows their intervals.
"""

from __future__ import annotations

import json
from typing import Any

from steptime.analysis import flat
from steptime.analysis.data import Data
from steptime.analysis.row import HOW, PARAM_PREFIX, Row
from steptime.analysis.sides import APART, PLACES, level_of
from steptime.analysis.statistics import MISS, two_sided_t
from steptime.core.errors import InputError, unknown

OF_NETWORK = ("family", "replicas", "dtype", "phase", "optimizer", "strategy")
ORIGINS = ("measured", "published", "predicted")
REACH = [round(two_sided_t(MISS, freedom), 3) for freedom in range(1, 31)]  # in standard errors
MORE_IS_BETTER = ("per_s", "accuracy", "share", "fraction")


class Cells:
    """The cells of a quantity by a column: of what was measured, else published, else predicted.

    `levels` are those of the column, `features` the columns that tell networks apart. Types stand
    in one cell with `any_dtype`, or where the levels have no type in common. Raises `InputError`
    for a quantity or a column that no record has.
    """

    def __init__(self, data: Data, by: str, quantity: str, *, any_dtype: bool = False) -> None:
        self.data, self.by, self.quantity = data, by, quantity
        known = data.columns("records")
        numbers = [name for name, kind in known.items() if kind == "DOUBLE"]
        if quantity not in numbers:
            raise unknown("quantity", quantity, numbers)
        self.more_is_better = quantity.endswith(MORE_IS_BETTER)
        params = [n if n in known else PARAM_PREFIX + n for n in data.hyperparameters]
        params = [name for name in params if name in known]
        self._network = ["batch", *params, *OF_NETWORK]
        told = dict.fromkeys(["batch", *params, *OF_NETWORK, *HOW])
        self.features = [name for name in told if name not in (by, "dtype")]
        self._level = _level(by, known)
        self.any_dtype, self.origin = any_dtype, ""
        self.levels: list[str] = []
        self._choose(data, by)

    def _choose(self, data: Data, by: str) -> None:
        """Choose the first origin that has several levels, and whether types are told apart."""
        found = self.data.rows(
            "SELECT origin, level_, list(DISTINCT dtype) AS dtypes "
            f"FROM ({self._held()}) WHERE level_ IS NOT NULL GROUP BY origin, level_ "
            "ORDER BY try_cast(level_ AS DOUBLE), level_"
        )
        if not found:
            level_of(data, by)
            raise InputError(f"--by {by}: no step here says its {by}")
        for origin in ORIGINS:
            rows = [row for row in found if row["origin"] == origin]
            if len(rows) > max(1, len(self.levels)):
                self.origin, self.levels = origin, [row["level_"] for row in rows]
                apart = not set.intersection(*(set(row["dtypes"]) for row in rows))
                self.any_dtype |= apart and self.by != "dtype"
                break

    def pairs(self, against: str) -> list[Row]:
        """Return a row for each cell of `against` and each other level that it has.

        `value` and `against_value`, `low` and `high` of both where known, their hosts and ids, the
        cell `pair_`, and its features; what may differ in a pair is there for both sides.
        """
        sides = "".join(
            f", {side}.{name}_ AS {prefix}{name}"
            for side, prefix in (("b", ""), ("a", "against_"))
            for name in ("value", "low", "high", "host", "id")
        )
        how = [name for name in HOW if name in self.features]
        ways = "".join(f", a.{flat.name(name)} AS against_{name}" for name in how)
        columns = sides + ways + "".join(f", b.{flat.name(name)}" for name in self.features)
        return self.data.rows(
            f"WITH cells AS ({self._cells()}) SELECT b.level_ AS level, pair_{columns} "
            "FROM cells a JOIN cells b USING (pair_) WHERE a.level_ = ? AND b.level_ <> a.level_ "
            "AND (a.how_ = b.how_ OR (a.ways_ = 1 AND b.ways_ = 1)) "
            "ORDER BY b.level_, pair_, b.how_",
            against,
        )

    def speeds(self) -> dict[str, Any]:
        """Return of each cell its level, id, value, FLOP of a step (NaN unknown) and features."""
        known = self.data.columns("records")
        flop = ", ".join(name for name in ("flop", "published_flop") if name in known)
        return self.data.arrays(
            f"WITH cells AS ({self._cells()}), counted AS (SELECT workload_key, "
            f"max(coalesce({flop}, NULL)) AS flop FROM records WHERE scope = '' GROUP BY 1) "
            "SELECT cells.*, counted.flop AS flop_ FROM cells LEFT JOIN counted "
            "ON counted.workload_key = cells.key_"
        )

    def slowest(self) -> str | None:
        """Return the level that is worst in the geometric mean of the cells it shares."""
        order = "ASC" if self.more_is_better else "DESC"
        found = self.data.rows(
            f"WITH cells AS ({self._cells()}), "
            "logs AS (SELECT level_, ln(value_) AS log_, "
            "avg(ln(value_)) OVER (PARTITION BY pair_) AS usual_ FROM cells) "
            "SELECT level_ AS level FROM logs GROUP BY level_ "
            f"ORDER BY avg(log_ - usual_) {order}, level_ LIMIT 1"
        )
        return found[0]["level"] if found and len(self.levels) > 1 else None

    def failed(self) -> dict[str, int]:
        """Return how many networks of each level have no value because they failed."""
        found = self.data.rows(
            "SELECT level_ AS level, count(DISTINCT workload_key) AS n "
            f"FROM ({self._held(ok=False)}) WHERE level_ IS NOT NULL "
            "GROUP BY level_ ORDER BY level_"
        )
        return {row["level"]: row["n"] for row in found if row["level"] in self.levels}

    def _held(self, *, ok: bool = True) -> str:
        value = flat.name(self.quantity)
        which = f"status = 'ok' AND {value} > 0" if ok else "status <> 'ok'"
        return (
            f"SELECT *, {self._level} AS level_, {value} AS value_ FROM records "
            f"WHERE scope = '' AND {which}"
        )

    def _cells(self) -> str:
        """Return the query of one row for each cell, level and way of running it.

        A row of several networks, of plans that no column tells, is left out.
        """
        free = {self.by, "dtype"} if self.any_dtype else {self.by}
        same = [name for name in self._network if name not in free]
        cell = same if free & set(self._network) else ["workload_key"]
        cell = [*cell, *([] if self.by in PLACES else ["platform"])]
        way = [] if self.by in ("method", "predicted_by", "stack") else ["method"]
        if self.by == "compile":
            way = ["replace(method, '-compile', '')"]
        gone = APART.get(self.by, (self.by,))
        how = f"json_merge_patch(method_options, {flat.text(json.dumps(dict.fromkeys(gone)))})"
        ends = "any_value(step_s_{0})", "median(value_) * exp({1} * stddev_samp(ln(value_)) * "
        spread = f"{REACH}[least(count(*) - 1, {len(REACH)})] / sqrt(count(*)))"
        known = (self.quantity, self.origin) == ("step_s", "measured")
        several = f"CASE count(*) WHEN 1 THEN {ends[0]} ELSE {ends[1]}{spread} END"
        intervals = "".join(
            f", ({several.format(*end) if known else 'NULL'})::DOUBLE AS {end[0]}_"
            for end in (("low", "-1"), ("high", "1"))
        )
        features = "".join(f", any_value({flat.name(n)}) AS {flat.name(n)}" for n in self.features)
        grouped = (
            f"SELECT level_, ROW({', '.join([*map(flat.name, cell), *way])})::VARCHAR AS pair_, "
            f"{how}::VARCHAR AS how_, any_value(workload_key) AS key_, "
            "any_value(batch) AS batch_, any_value(replicas) AS replicas_, "
            f"string_agg(DISTINCT host, ', ') AS host_, median(value_) AS value_{intervals}"
            f"{features} FROM ({self._held()}) WHERE level_ IS NOT NULL "
            f"AND origin = '{self.origin}' GROUP BY 1, 2, 3 HAVING count(DISTINCT workload_key) = 1"
        )
        return (
            "SELECT *, level_ || pair_ || how_ AS id_, count(*) OVER (PARTITION BY level_, pair_) "
            f"AS ways_ FROM ({grouped})"
        )


def _level(by: str, known: dict[str, str]) -> str:
    """Return the SQL of the level of a record: a column, an option, or one of its environment."""
    if by == "predicted_by":
        return "CASE WHEN origin = 'predicted' THEN method END"
    if by == "host":  # where a prediction was computed changes nothing
        return "CASE WHEN origin <> 'predicted' THEN host END"
    path = flat.text(f'$."{by.replace(chr(34), "")}"')
    told = [f"json_extract_string({where}, {path})" for where in ("method_options", "env")]
    text = f"CAST({flat.name(by)} AS VARCHAR)" if by in known else f"coalesce({', '.join(told)})"
    return f"CASE {text} WHEN 'true' THEN 'yes' WHEN 'false' THEN 'no' ELSE {text} END"

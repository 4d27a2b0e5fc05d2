"""Records side by side: measured and predicted, two folders, the levels of any column.

Side A is what side B is held against: `ratio` is B / A, and a verdict is on B. What pairs amount to
is computed of whole columns; rows are made of those that are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime import catalog, stacks
from steptime.analysis import flat
from steptime.analysis.data import Data
from steptime.analysis.row import BESIDES, OF_CELL, Row, known_number, labels, over
from steptime.analysis.sides import (
    APART,
    NAME,
    OF_PLATFORM,
    OF_STACK,
    PLACES,
    Sides,
    cell_of,
    level_of,
)  # fmt: skip
from steptime.analysis.statistics import BETWEEN, WITHIN
from steptime.analysis.verdict import compared
from steptime.core.errors import InputError, one_of, unknown
from steptime.core.units import shown

WORDS = ("faster", "slower", "same", "unsure")
WORST = ("name", "model", "batch", "ratio")
CELL = "hash(workload_key, platform, coalesce(strategy, ''), overlap, scope)"


def predicted_and_measured(data: Data, quantity: str = "step_s") -> Pairing:
    """Return every measurement (B) beside every prediction (A) of workload, platform and strategy.

    What others published stands for a measurement where there is none. A row of a whole step also
    has `flop_per_s`, `peak_fraction` and `roof_fraction` as `results` has them. Raises `InputError`
    for a quantity that no record holds.
    """
    cells = f"SELECT {CELL} FROM flat WHERE origin ="
    where = (
        "(origin <> 'predicted' OR place IN (SELECT max(place) FROM flat WHERE origin = "
        f"'predicted' GROUP BY {CELL}, {NAME}, stack))"
    )
    if "published" in data.origins:
        where += (
            " AND (origin <> 'published' OR (duplicate_of IS NULL AND "
            f"map_contains(numbers, 'step_s') AND {CELL} IN ({cells} 'predicted') AND "
            f"{CELL} NOT IN ({cells} 'measured')))"
        )
    known = ", ".join(map(flat.text, stacks.known()))
    kin = (
        f"if(origin = 'predicted' OR stack IN ({known}) OR stack IS NULL, stack, "
        f"{flat.text(catalog.stack().label)})"
    )
    sides = Sides(data, quantity, "if(origin = 'predicted', 'a', 'b')", CELL, where, kin=kin)
    words = {"a": "predicted", "b": "measured"}
    return Pairing(sides, "a", words, but="not {} for this stack")


def two_folders(data: Data, quantity: str = "step_s") -> Pairing:
    """Return the records of the second folder beside those of the first, on the same platforms."""
    sides = Sides(data, quantity, "folder_rank::VARCHAR", cell_of(data, "folder", ()))
    return Pairing(sides, "0", {"0": "in the first folder", "1": "in the second folder"})


def by_column(
    data: Data,
    column: str,
    quantity: str = "step_s",
    *,
    against: str | None = None,
    any_dtype: bool = False,
    where: str = "true",
) -> Pairing:
    """Return every level of a column beside the first one (the least number), or `against`.

    A column is `folder`, one of the tables, an option, a hyperparameter, or what a record says of
    its environment. Measured stands beside measured, predicted beside predicted; all else is equal,
    but where a side has a single candidate. With `any_dtype` a network in one type is paired with
    itself in another. `where` says in SQL which records take part. Raises `InputError` for a
    column, a level or a quantity that no record has, and for a single level.
    """
    free = (column, "dtype") if any_dtype else (column,)
    apart = APART.get(column, (column,))
    cell = cell_of(data, column, free)
    sides = Sides(data, quantity, level_of(data, column), cell, where, apart)
    if len(sides.levels) == 1:
        raise InputError(f"--by {column}: all records have one {column}, '{sides.levels[0]}'")
    if against not in (None, *sides.levels):
        raise unknown(column, str(against), sides.levels, "--against")
    prefix = "on" if column in PLACES else f"with {column}"
    words = {level: f"{prefix} {level}" for level in sides.levels}
    return Pairing(sides, against or sides.levels[0], words, column, free)


def two_platforms(
    data: Data, a: str, b: str, quantity: str = "step_s", *, any_dtype: bool = False
) -> Pairing:
    """Return platform `b` beside platform `a`, as `by_column` does.

    Raises `InputError` for a platform or a quantity that no record has.
    """
    known = [row["platform"] for row in data.rows("SELECT DISTINCT platform FROM flat ORDER BY 1")]
    for platform in (a, b):
        one_of("platform", platform, known)
    if a == b:
        raise InputError(f"a platform is compared with another, not '{a}' with itself")
    where = f"platform IN ({flat.text(a)}, {flat.text(b)})"
    return by_column(data, "platform", quantity, against=a, any_dtype=any_dtype, where=where)


@dataclass(frozen=True)
class Pairing:
    """Pairs as columns, and what has no partner; rows of them where they are asked for.

    `words` has each level in words, `free` what tells the two of a pair apart, and so no names.
    """

    sides: Sides
    against: str
    words: Mapping[str, str]
    column: str = ""
    free: Collection[str] = ()
    but: str = "not with these options {}"
    _about: dict[int, Row] = field(default_factory=dict)

    @property
    def levels(self) -> list[str]:
        """The levels that stand against the first."""
        return [level for level in self.sides.levels if level != self.against]

    @cached_property
    def _matched(self) -> dict[str, NDArray[np.int64]]:
        return self.sides.pairs(self.against)

    @cached_property
    def _whole(self) -> NDArray[np.bool_]:
        """Which of the matched have a number above 0 on both sides."""
        value = self.sides.groups["value"]
        return np.asarray((value[self._matched["a"]] > 0) & (value[self._matched["b"]] > 0))

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Of each pair the ids `a` and `b`, the ratio, what `compared` says of it, its level."""
        of = self.sides.groups
        a, b = (self._matched[side][self._whole] for side in "ab")
        ratio = of["value"][b] / of["value"][a]
        sampled = np.isfinite(of["e_value"][a]) & np.isfinite(of["e_value"][b])
        left, right = (self.sides.estimate(side[sampled]) for side in (a, b))
        found = compared(left, right, ratio[sampled])
        told = {name: np.full(len(a), np.nan) for name in ("low", "high", "p_value")}
        for name, column in told.items():
            column[sampled] = found[name]
        stated = ~sampled & (np.isfinite(of["low"][a]) | np.isfinite(of["low"][b]))
        for end, other in (("low", "high"), ("high", "low")):
            widest = _end(of, b, end) / _end(of, a, other)
            told[end][stated] = widest[stated]
        verdict = np.full(len(a), None, object)
        verdict[sampled] = found["verdict"]
        several = np.minimum(of["runs"][a], of["runs"][b]) > 1
        told |= {"a": a, "b": b, "ratio": ratio, "verdict": verdict, "sampled": sampled}
        told |= {"single": sampled & ~several, "level": self.sides.level_of(b)}
        return told | {"unsteady": (of["e_steady"][a] == 0) | (of["e_steady"][b] == 0)}

    def __len__(self) -> int:
        return len(self.columns["ratio"])

    @cached_property
    def unpaired(self) -> list[Row]:
        """What has no partner, whole steps only: `id`, `level`, `side`, what it `lacks`."""
        others = [name for name in self.words if name != self.against]
        told = list(self.sides.lonely(self.against, others, self._matched))
        of = self.sides.groups
        for at in np.flatnonzero(~self._whole & of["whole"][self._matched["b"]]):
            pair = {side: int(self._matched[side][at]) for side in "ab"}
            lacks = [side for side, one in pair.items() if not of["value"][one] > 0]
            told.append({"id": pair["b"], "side": "both", "lacks": lacks, "pair": pair})
        return told

    def _why_unpaired(self, row: Row) -> str:
        if "lacks" not in row:
            other = self.words[row["level"] if row["side"] == "a" else self.against]
            return self.but.format(other) if row["in_cell"] else f"not {other}"
        ids = [row["pair"][side] for side in row["lacks"]]
        told = zip(self.sides.level_of(ids), map(self._missing, ids), strict=True)
        return "; ".join(f"{self.words[level]}: {why}" for level, why in told)

    def _missing(self, one: int) -> str:
        facts = self.sides.facts([one])[one]
        if facts["status"] != "ok":
            return str(facts["status"]) + (f" ({facts['cause']})" if facts["cause"] else "")
        quantity = self.sides.quantity
        return f"{quantity} is not above 0" if self.sides.groups["held"][one] else f"no {quantity}"

    def summary(self) -> Row:
        """Return how far A is off from B, with the pairs that are `worst`; see `errors`."""
        ratio = self.columns["ratio"]
        farthest = np.argsort(-np.abs(np.log(ratio)), kind="stable")[:3]
        ids = self.columns["b"][farthest].tolist()
        self.learn(ids)
        told = zip(ids, ratio[farthest].tolist(), strict=True)
        return errors(ratio) | {
            "worst": [
                {name: {**self._about[b], "ratio": one}[name] for name in WORST} for b, one in told
            ]
        }

    def of_levels(self) -> list[Row]:
        """Return what the pairs of each level amount to."""
        return [self._of_level(level) for level in self.levels] if self.column else []

    def _of_level(self, level: str) -> Row:
        mine = self.columns["level"] == level
        ratio, words = self.columns["ratio"][mine], self.columns["verdict"][mine]
        known = len(ratio) > 0
        return {
            "level": level,
            "pairs": len(ratio),
            "geometric_mean_ratio": errors(ratio)["geometric_mean_ratio"],
            "median_ratio": float(np.median(ratio)) if known else None,
            "min_ratio": float(ratio.min()) if known else None,
            "max_ratio": float(ratio.max()) if known else None,
            **{word: int((words == word).sum()) for word in WORDS},
        }

    def differences(self) -> Counter[str]:
        """Return in what the two of a pair differ beside time, and how many pairs do."""
        found: Counter[str] = Counter()
        for number, left, right in self.sides.ways(self.columns["a"], self.columns["b"]):
            for text in self._apart(left, right)["differ"]:
                found[text] += number
        return found

    def rows(self, which: Iterable[int] | None = None) -> list[Row]:
        """Return pairs as rows, all of them or those at these places."""
        places = range(len(self)) if which is None else [int(at) for at in which]
        ids = [tuple(int(self.columns[side][at]) for side in "ab") for at in places]
        told = self.sides.facts(one for pair in ids for one in pair)
        self.learn(b for _, b in ids)
        return [
            self._about[b] | self._row(at, told[a], told[b])
            for at, (a, b) in zip(places, ids, strict=True)
        ]

    def unpaired_rows(self, found: Sequence[Row]) -> list[Row]:
        """Return some of what is `unpaired` as rows, with the `reason`."""
        self.sides.facts(one for row in found for one in row.get("pair", {}).values())
        self.learn(row["id"] for row in found)
        return [
            self._about[row["id"]]
            | {name: row[name] for name in ("side", "lacks") if name in row}
            | {"reason": self._why_unpaired(row)}
            for row in found
        ]

    def learn(self, ids: Iterable[int]) -> None:
        """See to it that these groups have names that tell them from all others that have one.

        What is `free` tells none apart, as in a pair.
        """
        new = set(ids) - self._about.keys()
        if not new:
            return
        told = self.sides.facts(new)
        known = [*self._about, *sorted(new)]
        blank = dict.fromkeys(set(self.free) - set(BESIDES))
        named = [
            one
            | blank
            | {"settings": {k: "" if k in self.free else v for k, v in one["settings"].items()}}
            | {"options": {k: v for k, v in one["options"].items() if k not in self.free}}
            for one in (told[at] for at in known)
        ]
        names = labels(named, besides=(*BESIDES, "scope"))
        for at, name in zip(known, names, strict=True):
            if at in new:
                about = {key: told[at][key] for key in (*OF_CELL, "scope", "op_kind")}
                self._about[at] = {"name": name, **about}

    def _row(self, at: int, left: Row, right: Row) -> Row:
        """Return the two sides of a pair, its ratio with the verdict, and what differs in it."""
        of, told = self.sides.groups, {n: column[at] for n, column in self.columns.items()}
        sides = {"a": self._side(told["a"], left), "b": self._side(told["b"], right)}
        kind = (
            (WITHIN if told["single"] else BETWEEN) if told["sampled"] else sides["b"]["interval"]
        )
        steady = [of["e_steady"][told[side]] for side in "ab"]
        told_steady = told["sampled"] and not np.isnan(steady).any()
        row = {**sides, "quantity": self.sides.quantity, "ratio": float(told["ratio"])}
        if self.column:
            row |= {"level": told["level"], "against": self.against}
        row |= {
            "dtype": left["dtype"] if left["dtype"] == right["dtype"] else None,
            "ratio_low": known_number(told["low"]),
            "ratio_high": known_number(told["high"]),
            "verdict": told["verdict"],
            "p_value": known_number(told["p_value"]),
            "interval": kind,
            "steady": bool(all(steady)) if told_steady else None,
            **self._apart(left, right),
        }
        if left["origin"] == "predicted" != right["origin"] and not right["scope"]:
            row |= _share_of_roof(left, right["step_s"])
        return row

    def _side(self, one: int, told: Row) -> Row:
        of = self.sides.groups
        runs, told_of = of["runs"][one], ("origin", "method", "platform", "dtype")
        return {
            **{name: told[name] for name in told_of},
            "version": told["method_version"],
            **{name: known_number(of[name][one]) for name in ("value", "low", "high")},
            "interval": None if np.isnan(runs) else BETWEEN if runs > 1 else WITHIN,
            "runs": None if np.isnan(runs) else int(runs),
        }

    def _apart(self, left: Row, right: Row) -> Row:
        """Return in what measurements differ, in words, too: `threads 1 | 2`.

        The `column` by which they are compared is left out.
        """
        ways = [
            {"host": one["host"] or None, "version": one["method_version"], **one["options"]}
            for one in (left, right)
        ]
        differ = [n for n in {**ways[0], **ways[1]} if ways[0].get(n) != ways[1].get(n)]
        if {left["origin"], right["origin"]} not in ({"measured"}, {"measured", "published"}):
            differ = []
        known = ("version", *OF_STACK) if self.column in ("stack", "method") else ()
        told = [name for name in differ if name not in (self.column, *OF_PLATFORM[1:], *known)]
        options = {**left["options"], **right["options"]}
        return {
            "options_that_differ": [name for name in differ if name in options],
            "differ": [
                f"{name} {' | '.join(str(shown(name, way.get(name))) for way in ways)}"
                for name in told
            ],
        }


def errors(ratio: NDArray[np.float64]) -> Row:
    """Return how far A is off from B by their ratios B / A: what a prediction is judged by.

    `median_error` is the median of |A / B - 1|, `geometric_mean_ratio` that of B / A,
    `within_factor_2` a share. All are None without a pair.
    """
    known = len(ratio) > 0
    return {
        "pairs": len(ratio),
        "median_error": float(np.median(np.abs(1 / ratio - 1))) if known else None,
        "geometric_mean_ratio": float(np.exp(np.log(ratio).mean())) if known else None,
        "within_factor_2": float(((ratio >= 0.5) & (ratio <= 2)).mean()) if known else None,
    }


def _end(of: Mapping[str, NDArray[Any]], side: NDArray[np.int64], end: str) -> NDArray[Any]:
    """Return an end of the interval of each side; an exact value is its own."""
    return np.where(np.isnan(of[end][side]), of["value"][side], of[end][side])


def _share_of_roof(predicted: Row, step_s: float | None) -> Row:
    """Return the speed of a step [FLOP/s] and its shares of peak and roof, as `results` does."""
    numbers, peak = predicted["numbers"], predicted["peak_flop_per_s"]
    flop_per_s = over(numbers.get("flop"), step_s)
    intensity = over(numbers.get("flop"), numbers.get("traffic_bytes"))
    roof = roof_flop_per_s(intensity, peak, predicted["memory_bytes_per_s"])
    return {
        "flop_per_s": flop_per_s,
        "peak_fraction": over(flop_per_s, peak),
        "roof_fraction": over(flop_per_s, roof),
    }


def roof_flop_per_s(
    intensity: float | None, peak: float | None, bandwidth: float | None
) -> float | None:
    """Return the lower ceiling [FLOP/s] at an intensity [FLOP/byte], None where unknown."""
    if intensity is None or peak is None or bandwidth is None:
        return None
    return min(peak, intensity * bandwidth)

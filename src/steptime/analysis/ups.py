"""Speed-ups as columns: what 10^6 records amount to, without a row for each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.analysis.sql_pairing import Pairing
from steptime.analysis.verdict import MARGIN
from steptime.records.data import Data
from steptime.records.ratios import farness, geometric_mean
from steptime.records.row import HOW, Row, more_is_better
from steptime.records.sides import Sides, places_of
from steptime.records.statistics import SEED
from steptime.records.warmup import Floats

DRAWS, MOST_DRAWN = 2000, 20_000  # of the bootstrap, and pairs; beyond, its interval is the normal
OUTCOMES = ("won", "lost", "same", "unsure")
OF_NETWORK = ("family", "replicas", "dtype", "phase", "optimizer", "strategy")


@dataclass(frozen=True)
class Ups:
    """Speed-ups as columns: ids `a` and `b` of the groups of a pair, its speed-up and verdict.

    `features` are those of all groups, None or NaN where unknown, which tell networks apart.
    """

    pairing: Pairing
    sides: Sides
    against: str
    a: NDArray[np.int64]
    b: NDArray[np.int64]
    up: Floats
    verdict: NDArray[Any]
    features: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.up)

    @cached_property
    def place(self) -> NDArray[np.int64]:
        """The level of each pair, as its place among those of the sides."""
        return np.asarray(self.sides.groups["level"][self.b])

    @cached_property
    def levels(self) -> list[str]:
        """The levels that stand against the first."""
        number = np.bincount(self.place, minlength=len(self.sides.levels))
        return [level for level in self.sides.levels if number[self.sides.place(level)]]

    @cached_property
    def outcome(self) -> NDArray[np.int8]:
        """How each pair ended, as its place in `OUTCOMES`."""
        near = farness(self.up) <= math.log1p(MARGIN)
        untold = self.verdict == None  # noqa: E711  # of each
        found = np.where(self.up > 1, OUTCOMES.index("won"), OUTCOMES.index("lost"))
        found[self.verdict == "unsure"] = OUTCOMES.index("unsure")
        found[(untold & near) | (self.verdict == "same")] = OUTCOMES.index("same")
        return found.astype(np.int8)

    def share(self, outcome: str, mine: Any = slice(None)) -> float:
        """Return the share of pairs, or of some, that ended so."""
        return float((self.outcome[mine] == OUTCOMES.index(outcome)).mean())

    @cached_property
    def varying(self) -> list[str]:
        """The features in which pairs differ."""
        told = (name for name in self.features if name not in self.sides.same)
        known = ((name, known_of(self.of(name))[1]) for name in told)
        return [name for name, held in known if (held != held[:1]).any()]

    def of(self, name: str) -> NDArray[Any]:
        """Return a feature of each pair."""
        return np.asarray(self.features[name][self.b])

    def cells(self, name: str, ids: NDArray[np.int64]) -> list[Any]:
        """Return a feature of groups as it stands in rows."""
        return plain_column(self.features[name][ids])

    def only(self, mine: NDArray[np.bool_]) -> Ups:
        """Return some of the pairs."""
        found = replace(self, **{n: getattr(self, n)[mine] for n in ("a", "b", "up", "verdict")})
        vars(found).update(place=self.place[mine], outcome=self.outcome[mine])  # not made anew
        return found


def worst_of(sides: Sides) -> str | None:
    """Return the level that is worst in the geometric mean of the cells it shares."""
    if len(sides.levels) < 2:
        return None
    value, level = sides.groups["value"], sides.groups["level"]
    known = value > 0
    logs = np.log(value[known])
    cell = np.unique(sides.groups["cell"][known], return_inverse=True)[1]
    off = logs - (np.bincount(cell, logs) / np.bincount(cell))[cell]
    means = {one: float(off[level[known] == sides.place(one)].mean()) for one in sides.levels}
    return min(means, key=lambda one: means[one] * (1 if more_is_better(sides.quantity) else -1))


def speedups(data: Data, sides: Sides, first: str, by: str) -> Ups | None:
    """Return the speed-ups against the level `first`, None where no pair has one."""
    pairs = Pairing(sides, first, {}, by)
    if not len(pairs):
        return None
    told = dict.fromkeys(["batch", *data.hyperparameters, *OF_NETWORK, *HOW])
    features = sides.columns([name for name in told if name not in (by, "dtype")])
    a, b, ratio, words = (pairs.columns[name] for name in ("a", "b", "ratio", "verdict"))
    up = ratio if more_is_better(sides.quantity) else 1 / ratio
    return Ups(pairs, sides, first, a, b, up, words, features)


def distribution(ups: Ups) -> Row:
    """Return how speed-ups are spread, and their geometric mean with its 95 % interval."""
    logs = np.log(np.sort(ups.up))
    n = len(ups)
    mean = logs.mean()
    if n > MOST_DRAWN:
        reach = 1.96 * logs.std() / math.sqrt(n)
        ends = np.array([mean - reach, mean + reach])
    else:
        rng = np.random.default_rng(SEED)
        draws = [logs[rng.integers(n, size=n)].mean() for _ in range(DRAWS)]
        ends = np.quantile(draws, (0.025, 0.975))
    names = ("min", "p5", "p25", "median", "p75", "p95", "max")
    spread = np.exp(np.quantile(logs, (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)))
    return {
        "pairs": n,
        **dict(zip(names, spread.tolist(), strict=True)),
        "median": float(np.median(ups.up)),
        "geometric_mean": geometric_mean(ups.up),
        "low": math.exp(ends[0]) if n > 1 else None,
        "high": math.exp(ends[1]) if n > 1 else None,
        "wins_share": ups.share("won"),
        **{f"{one}_share": ups.share(one) for one in ("same", "unsure")},
    }


def medians(ups: Ups, x: str | None) -> Row:
    """Return pairs, median and share of wins by value of a hyperparameter, in its order."""
    if not x:
        return {}
    places, held = known_of(ups.of(x))
    values, of = np.unique(held, return_inverse=True)
    mine = [places[some] for some in places_of(of, len(values))]
    return {
        str(plain(value)): {
            "pairs": len(some),
            "median": float(np.median(ups.up[some])),
            "wins_share": ups.share("won", some),
        }
        for value, some in zip(values.tolist(), mine, strict=True)
    }


def known_of(column: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the places in a column that are known, and what stands there."""
    known = ~np.isnan(column) if column.dtype.kind == "f" else column != None  # noqa: E711  # of each
    places = np.flatnonzero(known)
    return places, column[places]


def plain(value: Any) -> Any:
    """Return a cell as it stands in a row: whole numbers as such, None where unknown."""
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() else value


def plain_column(column: NDArray[Any]) -> list[Any]:
    """Return cells as they stand in rows, as `plain` does."""
    return [*map(plain, column.tolist())]

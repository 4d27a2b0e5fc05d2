"""Speed-ups as columns: one entry for each pair, so that 10^6 records take seconds.

A speed-up is above 1 where a level is better: a shorter time, fewer bytes, or a higher rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from steptime.analysis.comparison.pairing import Pairing
from steptime.analysis.comparison.speedup_answer import Distribution, SpeedupsOfValue
from steptime.analysis.comparison.verdict import MARGIN
from steptime.records.data import Data
from steptime.records.groups.group_members import Flags, Ids
from steptime.records.groups.record_groups import RecordGroups
from steptime.records.ratios import farness, geometric_mean
from steptime.records.record_columns import record_columns
from steptime.records.row import RUN_OPTIONS, is_higher_better
from steptime.records.statistics import SEED
from steptime.records.warmup import Floats

DRAWS = 2000  # of the bootstrap
MAX_BOOTSTRAPPED = 20_000  # pairs; beyond, the interval is that of the normal distribution
NORMAL_95 = 1.96  # standard errors to each side of a 95 % interval
OUTCOMES = ("won", "lost", "same", "unsure")
WON, LOST, TIE, UNSURE = range(len(OUTCOMES))
NETWORK_FEATURES = ("family", "replicas", "dtype", "phase", "optimizer", "strategy")
QUANTILES = {"min": 0, "p5": 0.05, "p25": 0.25, "p75": 0.75, "p95": 0.95, "max": 1}


@dataclass(frozen=True)
class Speedups:
    """The pairs of a level with others, one entry a pair.

    Attributes:
        pairing: the pairs with their verdicts.
        features: the features that tell networks apart, a row a group; null is unknown.
        a: group of the first level.
        b: group of the other level.
        ratio: the speed-up of `b` over `a`.
        verdict: the verdict on `b`; None without samples.
    """

    pairing: Pairing
    features: pl.DataFrame
    a: Ids
    b: Ids
    ratio: Floats
    verdict: NDArray[Any]

    def __len__(self) -> int:
        return len(self.ratio)

    @property
    def groups(self) -> RecordGroups:
        """The groups that are paired."""
        return self.pairing.groups

    @cached_property
    def level_indices(self) -> Ids:
        """The level of each pair, as its place among those of the groups."""
        return np.asarray(self.groups.columns.level[self.b])

    @cached_property
    def levels(self) -> list[str]:
        """The levels that stand against the first, if they have a pair."""
        counts = np.bincount(self.level_indices, minlength=len(self.groups.levels))
        return [
            level for level, count in zip(self.groups.levels, counts.tolist(), strict=True) if count
        ]

    @cached_property
    def outcomes(self) -> NDArray[np.int8]:
        """The outcome of each pair, as its place in `OUTCOMES`."""
        # Noise decides where there is a verdict, else the margin.
        is_near = farness(self.ratio) <= math.log1p(MARGIN)
        has_no_verdict = self.verdict == None  # noqa: E711 - compares each entry
        outcomes = np.where(self.ratio > 1, WON, LOST)
        outcomes[self.verdict == "unsure"] = UNSURE
        outcomes[(has_no_verdict & is_near) | (self.verdict == "same")] = TIE
        return outcomes.astype(np.int8)

    @cached_property
    def varying_features(self) -> list[str]:
        """The features in which pairs differ."""
        return [name for name in self.features.columns if self.feature(name).n_unique() > 1]

    def feature(self, name: str) -> pl.Series:
        """Return the values of a feature of the pairs that are known."""
        return self.cells(name, self.b).drop_nulls()

    def cells(self, name: str, ids: Ids) -> pl.Series:
        """Return a feature of groups."""
        return self.features[name].gather(ids)

    def select(self, is_selected: Flags) -> Speedups:
        """Return some of the pairs."""
        return replace(
            self,
            a=self.a[is_selected],
            b=self.b[is_selected],
            ratio=self.ratio[is_selected],
            verdict=self.verdict[is_selected],
        )


def find_worst_level(groups: RecordGroups) -> str | None:
    """Return the level that is worst in the geometric mean of the cells that it shares."""
    if len(groups.levels) < 2:
        return None
    has_value = groups.columns.value > 0
    logs = np.log(groups.columns.value[has_value])
    # A level is judged by its distance from the mean of the cells that it takes part in.
    _, cell = np.unique(groups.columns.cell[has_value], return_inverse=True)
    cell_means = np.bincount(cell, weights=logs) / np.bincount(cell)
    offsets = logs - cell_means[cell]
    level = groups.columns.level[has_value]
    mean_offsets = {
        name: float(offsets[level == groups.level_index(name)].mean()) for name in groups.levels
    }
    # Of a rate the lowest level is the worst, of a time the highest.
    if is_higher_better(groups.quantity):
        return min(mean_offsets, key=mean_offsets.__getitem__)
    return max(mean_offsets, key=mean_offsets.__getitem__)


def compute_speedups(
    data: Data, groups: RecordGroups, against: str, column: str
) -> Speedups | None:
    """Return the speed-ups over a level, None where no pair has one.

    Args:
        data: the records.
        groups: their groups by level.
        against: the level that the others are compared with.
        column: the column of the levels.
    """
    pairing = Pairing(groups, against, level_words={}, column=column)
    if not len(pairing):
        return None
    columns = record_columns(data)
    names = dict.fromkeys(["batch", *data.hyperparameters, *NETWORK_FEATURES, *RUN_OPTIONS])
    # The sides of a pair may have types of their own (`--any-dtype`): the type is no feature of it.
    cells = {name: columns[name] for name in names if name not in (column, "dtype")}
    features = groups.facts_frame(np.arange(len(groups)), cells).drop("id")
    ratio = pairing.columns.ratio
    return Speedups(
        pairing=pairing,
        features=features,
        a=pairing.columns.a,
        b=pairing.columns.b,
        # A speed-up above 1 is better, of times as well.
        ratio=ratio if is_higher_better(groups.quantity) else 1 / ratio,
        verdict=pairing.columns.verdict,
    )


def summarise_distribution(speedups: Speedups) -> Distribution:
    """Return the quantiles of speed-ups, and their geometric mean with its 95 % interval."""
    ratio = speedups.ratio
    logs = np.log(np.sort(ratio))
    # Quantiles of logs, so that a speed-up and its inverse are treated alike.
    quantiles = np.exp(np.quantile(logs, list(QUANTILES.values()))).tolist()
    low, high = _mean_interval(logs) if len(logs) > 1 else (None, None)
    shares = np.bincount(speedups.outcomes, minlength=len(OUTCOMES)) / len(ratio)
    return Distribution(
        pairs=len(ratio),
        median=float(np.median(ratio)),
        geometric_mean=geometric_mean(ratio),
        low=low,
        high=high,
        wins_share=float(shares[WON]),
        ties_share=float(shares[TIE]),
        unsure_share=float(shares[UNSURE]),
        **dict(zip(QUANTILES, quantiles, strict=True)),
    )


def _mean_interval(logs: Floats) -> tuple[float, float]:
    """Return the 95 % interval of a geometric mean, bootstrapped if pairs are not too many."""
    count = len(logs)
    if count > MAX_BOOTSTRAPPED:
        reach = NORMAL_95 * logs.std() / math.sqrt(count)
        return math.exp(logs.mean() - reach), math.exp(logs.mean() + reach)
    rng = np.random.default_rng(SEED)
    draws = [logs[rng.integers(count, size=count)].mean() for _ in range(DRAWS)]
    low, high = np.quantile(draws, (0.025, 0.975)).tolist()
    return math.exp(low), math.exp(high)


def summarise_by_value(speedups: Speedups, feature: str | None) -> dict[str, SpeedupsOfValue]:
    """Return pairs, median and share of wins by value of a feature, in the order of its values."""
    if not feature:
        return {}
    pairs = pl.DataFrame(
        {
            "value": speedups.cells(feature, speedups.b),
            "ratio": speedups.ratio,
            "is_win": speedups.outcomes == WON,
        }
    )
    by_value = pairs.filter(pl.col("value").is_not_null()).group_by("value")
    values = by_value.agg(
        pl.len().alias("pairs"), pl.col("ratio").median(), pl.col("is_win").sum().alias("wins")
    )
    return {
        str(plain_value(value)): SpeedupsOfValue(
            pairs=pair_count, median=median, wins_share=wins / pair_count
        )
        for value, pair_count, median, wins in values.sort("value").iter_rows()
    }


def plain_value(value: Any) -> Any:
    """Return a value as it stands in a row: whole numbers as such."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def plain_values(column: pl.Series) -> Sequence[Any]:
    """Return the values of a column as they stand in rows."""
    return [plain_value(value) for value in column.to_list()]

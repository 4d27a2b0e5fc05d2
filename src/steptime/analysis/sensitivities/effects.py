"""Effects of single hyperparameters: the change of a quantity for a doubled one, others equal."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steptime.analysis.sensitivities import regression
from steptime.analysis.sensitivities.design_matrix import DesignMatrix
from steptime.analysis.sensitivities.sensitivity_answer import CurvePoint
from steptime.records.warmup import Floats

LARGEST_LOG = 700.0  # of a ratio that a number holds
DOUBLING, HAVING = "doubling", "having it"  # changes that an effect is of
Effect = dict[str, str | int | float | None]


class _NeighbourPairs(NamedTuple):
    """Pairs of networks that differ in one column alone: rows of the lower and higher level.

    Pairs with equal settings in all other columns have the same `key`.
    """

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    key: NDArray[np.uint64]


def measure_effect(design: DesignMatrix, name: str) -> tuple[Effect, list[CurvePoint]]:
    """Return the change for a doubled hyperparameter, all others equal, and the curve by level."""
    x = design.columns[name]
    y = design.values
    is_indicator = "=" in name  # 0 or 1, which cannot be doubled
    is_usable = ~design.has_failed & (y > 0)
    if not is_indicator:
        is_usable &= x > 0  # 0 cannot be doubled
    column = list(design.columns).index(name)
    pairs = _pair_neighbours(design, column, np.flatnonzero(is_usable))  # differ in this alone
    effect: Effect = {
        "effect_of": HAVING if is_indicator else DOUBLING,
        "effect_pairs": len(pairs.low),
    }
    if not len(pairs.low):
        return effect, []
    log_ratio = np.log(y[pairs.high] / y[pairs.low])
    if is_indicator:
        return effect | _estimate_ratio(log_ratio, pairs), []
    doublings = np.log2(x[pairs.high] / x[pairs.low])
    curve = _trace_curve(
        name, np.unique(x).tolist(), log_ratio, design.level_ranks[:, column], pairs
    )
    return effect | _estimate_ratio(log_ratio / doublings, pairs), curve


def _estimate_ratio(log_ratio: Floats, pairs: _NeighbourPairs) -> Effect:
    """Return the mean ratio of pairs and the ends of its interval; None beyond a number's range."""
    mean_low_high = regression.estimate_clustered(log_ratio, pairs.key)
    names = ("effect_ratio", "effect_low", "effect_high")
    return {
        name: None if log is None or log > LARGEST_LOG else math.exp(log)
        for name, log in zip(names, mean_low_high, strict=True)
    }


def _pair_neighbours(design: DesignMatrix, column: int, rows: NDArray[np.int64]) -> _NeighbourPairs:
    """Return the pairs of rows that follow each other in a column, all others equal."""
    rank = design.level_ranks[:, column]
    other_columns = np.delete(design.level_ranks, column, axis=1)
    key = regression.hash_rows(other_columns)
    # Sorted by the other columns, then by this one: neighbours in the order differ in this one.
    ordered = rows[np.lexsort((rank[rows], key[rows]))]
    low = ordered[:-1]
    high = ordered[1:]
    is_pair = key[low] == key[high]
    return _NeighbourPairs(low[is_pair], high[is_pair], key[low[is_pair]])


def _trace_curve(
    name: str,
    levels: Sequence[float],
    log_ratio: Floats,
    ranks: NDArray[np.int64],
    pairs: _NeighbourPairs,
) -> list[CurvePoint]:
    """Return the quantity by level, as far as pairs of neighbouring levels reach.

    Args:
        name: the hyperparameter.
        levels: its distinct values, from the lowest.
        log_ratio: the logarithm of the ratio of each pair.
        ranks: the level of each network, from 0.
        pairs: the pairs.
    """
    curve: list[CurvePoint] = []
    height = 0.0  # logarithm of the quantity over that of the first level
    for rank, (level, next_level) in enumerate(pairwise(levels)):
        is_step = (ranks[pairs.low] == rank) & (ranks[pairs.high] == rank + 1)
        log_ratios = log_ratio[is_step]
        pair_count = len(log_ratios)
        if not pair_count:  # nothing joins the levels
            break
        if not curve:
            curve.append(CurvePoint(hyperparameter=name, pairs=pair_count, level=level, ratio=1.0))
        height += float(log_ratios.mean())
        if height > LARGEST_LOG:
            break
        curve.append(
            CurvePoint(
                hyperparameter=name, pairs=pair_count, level=next_level, ratio=math.exp(height)
            )
        )
    return curve

"""Which of many like things differ from the others beyond noise, the noise estimated from them.

Everything here is a logarithm: 0.04 is 4 % slower.
"""

import math
from dataclasses import dataclass

import numpy as np

from steptime.records.statistics import MISS, two_sided_t
from steptime.records.warmup import Floats

FALSE_ALARMS = (
    0.025  # that any is named where all are alike: so that 5 % holds with heavier tails, too
)
SLOW_SHARE = 0.8  # of the false alarms that are allowed: to name what is slow matters most
CLIP = 3.0  # noise of a cell, beyond which one cell no longer pulls its node


@dataclass(frozen=True)
class Deviation:
    """How far each thing is from the others: `value` between `low` and `high` (95 %).

    NaN where a thing was not measured. `slow` and `fast` are those beyond noise.
    """

    value: Floats
    low: Floats
    high: Floats
    slow: np.ndarray
    fast: np.ndarray
    noise: float


def deviations(logs: Floats, miss: float = FALSE_ALARMS) -> Deviation:
    """Return how far the columns of `logs` (a row a cell, NaN where not measured) are off.

    Of each cell the median over columns is taken off. What is left is combined by column, cells
    weighted by the inverse of their variance (robust: of the median absolute deviation), a cell
    that is far from the others of its column clipped. Then columns are held against one another by
    the generalised extreme Studentised deviate test (Rosner 1983), which finds several outliers
    that would hide one another: with probability `miss` at most, any is found where all are alike.
    """
    known = np.flatnonzero(np.isfinite(logs).any(axis=0))
    left = logs[:, known] - np.nanmedian(logs[:, known], axis=1, keepdims=True)
    noise = _noise(left)
    seen = np.isfinite(left)
    value = _centre(left, seen / noise[:, None] ** 2, noise)
    own = _noise(left - value) if len(left) > 1 else noise
    weights = seen / own[:, None] ** 2
    value = _centre(left, weights, own)
    variance = 1 / weights.sum(axis=0)
    among = float(_noise(value[None, :])[0] ** 2)
    common = max(0.0, among - float(np.median(variance))) if len(left) > 1 else 0.0
    reach = np.sqrt(common + variance)
    score = value / reach
    found = extremes(score, miss)
    rest = np.delete(score, found)
    centre, spread = float(rest.mean()), float(rest.std(ddof=1))
    far = two_sided_t(MISS, max(1, len(rest) - 1)) * spread * reach
    value = value - centre * reach

    def every(values: Floats, missing: float) -> np.ndarray:
        full = np.full(logs.shape[1], missing, dtype=values.dtype)
        full[known] = values
        return full

    named = np.isin(np.arange(len(known)), found)
    return Deviation(
        value=every(value, math.nan),
        low=every(value - far, math.nan),
        high=every(value + far, math.nan),
        slow=every(named & (score > centre), False),
        fast=every(named & (score < centre), False),
        noise=spread * float(np.median(reach)),
    )


def _noise(left: Floats) -> Floats:
    """Return the spread of each row, robust; one that is 0 or tiny counts as a third of most."""
    centred = np.abs(left - np.nanmedian(left, axis=1, keepdims=True))
    spread = 1.4826 * np.nanmedian(centred, axis=1)
    return np.asarray(np.maximum(spread, max(float(np.median(spread)) / 3, 1e-9)))


def _centre(left: Floats, weights: Floats, noise: Floats) -> Floats:
    """Return the mean of each column, cells clipped that are far from its median."""
    with np.errstate(invalid="ignore", divide="ignore"):
        middle = np.nanmedian(np.where(weights > 0, left, np.nan), axis=0)
        reach = CLIP * noise[:, None]
        clipped = np.clip(np.nan_to_num(left), middle - reach, middle + reach)
        return np.asarray((weights * clipped).sum(axis=0) / weights.sum(axis=0))


def extremes(score: Floats, miss: float) -> list[int]:
    """Return which of the scores are outliers, the farthest first; at most a third of them.

    Of the probability to name any where all are of one normal distribution, `miss`, the slow (large
    scores) have `SLOW_SHARE`.
    """
    from scipy.special import stdtr

    rest = list(range(len(score)))
    removed: list[int] = []
    believed = 0
    for _ in range(max(1, (len(score) - 1) // 3) if len(score) > 2 else 0):
        values, n = score[rest], len(rest)
        spread = float(values.std(ddof=1))
        if spread == 0:
            break
        off = (values - values.mean()) / spread
        room = np.maximum((n - 1) ** 2 / n - off**2, 1e-12)
        p = n * stdtr(n - 2, -np.abs(off) * np.sqrt((n - 2) / room))
        p /= np.where(off > 0, SLOW_SHARE, 1 - SLOW_SHARE)
        at = int(np.argmin(p))
        removed.append(rest.pop(at))
        believed = len(removed) if p[at] <= miss else believed
    return removed[:believed]

"""Which of many like things differ from the others beyond noise, the noise estimated from them.

Everything here is a logarithm: 0.04 is 4 % slower.
"""

import math
from dataclasses import dataclass

import numpy as np

from steptime.records.statistics import MISS, two_sided_t
from steptime.records.warmup import Floats

FALSE_ALARMS = 0.025  # that any is called slow where all are alike; as many, that any is fast
THRESHOLD = 3.5  # of a robust z, beyond which a value is an outlier (Iglewicz and Hoaglin 1993)
NORMAL = 0.6745  # median absolute deviation of a normal distribution, in standard deviations
NORMAL_MEAN = 1.253314  # standard deviation of one, in mean absolute deviations
EFFICIENCY = 0.37  # of the median absolute deviation beside the standard one (Hampel 1974)
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


def deviations(logs: Floats, miss: float = FALSE_ALARMS, threshold: float = THRESHOLD) -> Deviation:
    """Return how far the columns of `logs` (a row a cell, NaN where not measured) are off.

    Of each cell the median over columns is taken off. What is left is combined by column, cells
    weighted by the inverse of their variance (robust: of the median absolute deviation), a cell
    that is far from the others of its column clipped. A column is beyond noise where its robust z
    among the columns is above `threshold`, and above what their number makes likely: a spread of
    few is itself unsure, and of many the farthest is far (`limit`).
    """
    known = np.flatnonzero(np.isfinite(logs).any(axis=0))
    left = logs[:, known] - _medians(logs[:, known])[:, None]
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
    centre, spread = middle_and_spread(score)
    far = two_sided_t(MISS, freedom(len(known))) * spread * reach
    value = value - centre * reach
    z = (score - centre) / spread if spread else np.zeros(len(known))
    at_least = max(threshold, limit(len(known), miss))

    def every(values: np.ndarray, missing: float) -> np.ndarray:
        full = np.full(logs.shape[1], missing, dtype=values.dtype)
        full[known] = values
        return full

    return Deviation(
        value=every(value, math.nan),
        low=every(value - far, math.nan),
        high=every(value + far, math.nan),
        slow=every(z > at_least, False),
        fast=every(z < -at_least, False),
        noise=spread * float(np.median(reach)),
    )


def middle_and_spread(score: Floats) -> tuple[float, float]:
    """Return the median, and the standard deviation that the median absolute deviation tells.

    Where that is 0, as more than half are equal, the mean absolute deviation tells it (Iglewicz and
    Hoaglin 1993). 0.6745 (x - median) / MAD is (x - median) over this spread.
    """
    middle = float(np.median(score))
    off = np.abs(score - middle)
    median = float(np.median(off))
    return middle, median / NORMAL if median else NORMAL_MEAN * float(off.mean())


def limit(number: int, miss: float) -> float:
    """Return what the largest robust z of so many alike exceeds with probability `miss` at most."""
    return two_sided_t(2 * miss / number, freedom(number))


def freedom(number: int) -> float:
    """Return the degrees of freedom of a median absolute deviation of so many."""
    return max(1.0, EFFICIENCY * (number - 1))


def _noise(left: Floats) -> Floats:
    """Return the spread of each row, robust; one that is 0 or tiny counts as a third of most."""
    spread = _medians(np.abs(left - _medians(left)[:, None])) / NORMAL
    return np.asarray(np.maximum(spread, max(float(np.median(spread)) / 3, 1e-9)))


def _centre(left: Floats, weights: Floats, noise: Floats) -> Floats:
    """Return the mean of each column, cells clipped that are far from its median."""
    with np.errstate(invalid="ignore", divide="ignore"):
        middle = _medians(np.where(weights > 0, left, np.nan).T)
        reach = CLIP * noise[:, None]
        clipped = np.clip(np.nan_to_num(left), middle - reach, middle + reach)
        return np.asarray((weights * clipped).sum(axis=0) / weights.sum(axis=0))


def _medians(rows: Floats) -> Floats:
    """Return the median of each row without its NaN, as `np.nanmedian` in eight times the time."""
    ordered = np.sort(rows, axis=1)
    counts = np.isfinite(rows).sum(axis=1)  # NaN come last
    middle = np.stack(((counts - 1) // 2, counts // 2), axis=1)
    return np.asarray(np.take_along_axis(ordered, np.maximum(middle, 0), axis=1).mean(axis=1))

"""Find the columns of a matrix that differ from the others beyond noise: the slow nodes.

The noise is estimated from the columns themselves. Everything here is a natural logarithm of a
time: 0.04 is 4 % slower.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from steptime.records.statistics import MISS, two_sided_t
from steptime.records.warmup import Floats

FALSE_ALARMS = 0.025  # chance of any slow column where all are equal, and of any fast one
THRESHOLD = 3.5  # of a robust z, beyond which a value is an outlier (Iglewicz and Hoaglin 1993)
NORMAL = 0.6745  # median absolute deviation of a normal distribution, in standard deviations
NORMAL_MEAN = 1.253314  # standard deviation of one, in mean absolute deviations
EFFICIENCY = 0.37  # of the median absolute deviation beside the standard one (Hampel 1974)
CLIP = 3.0  # noise of a cell, beyond which one cell no longer pulls its node


@dataclass(frozen=True)
class Deviation:
    """The deviation of each column from the others.

    Attributes:
        log_ratio: logarithm of the deviation; NaN where a column was not measured.
        low: low end of its 95 % interval.
        high: high end of its 95 % interval.
        is_slow: columns that are above the others beyond noise.
        is_fast: columns that are below the others beyond noise.
        noise: standard deviation of a column that is like the others.
    """

    log_ratio: Floats
    low: Floats
    high: Floats
    is_slow: np.ndarray
    is_fast: np.ndarray
    noise: float


def deviations(
    logs: Floats, false_alarms: float = FALSE_ALARMS, threshold: float = THRESHOLD
) -> Deviation:
    """Return the deviation of each column of a matrix from the other columns.

    The median of each row is subtracted. The residuals of a column are averaged, rows weighted by
    the inverse of their robust variance, a cell far from the others of its column clipped. A column
    is beyond noise if its robust z among the columns exceeds `threshold` and `z_limit`, which
    counts that the spread of few columns is uncertain, and that the farthest of many is far.

    Args:
        logs: a row for each cell, a column for each node; NaN where a node did not measure a cell.
        false_alarms: chance that any column is called slow where all are equal.
        threshold: the smallest robust z of an outlier.
    """
    # Rows are cells (a network on a device), columns are nodes. Less the median of its row, an
    # entry says how much slower a node was than the others in this cell.
    columns = np.flatnonzero(np.isfinite(logs).any(axis=0))  # of nodes that measured anything
    residuals = logs[:, columns] - _medians(logs[:, columns])[:, None]
    means, errors = _estimate_columns(residuals)
    # Each mean in units of its own error: regular columns scatter alike, so that the median and the
    # spread of these scores are those of a regular column, and the distance from them a robust z.
    score = means / errors
    centre, spread = middle_and_spread(score)
    # Columns that all agree have no spread, and no outlier.
    z = (score - centre) / spread if spread else np.zeros(len(columns))
    min_z = max(threshold, z_limit(len(columns), false_alarms))
    # Back to logarithms: how far a column is from a regular one, and the half of its interval.
    value = means - centre * errors
    reach = two_sided_t(MISS, degrees_of_freedom(len(columns))) * spread * errors

    def to_all_columns(values: np.ndarray, missing: float) -> np.ndarray:
        all_values = np.full(logs.shape[1], missing, dtype=values.dtype)
        all_values[columns] = values
        return all_values

    return Deviation(
        log_ratio=to_all_columns(value, math.nan),
        low=to_all_columns(value - reach, math.nan),
        high=to_all_columns(value + reach, math.nan),
        is_slow=to_all_columns(z > min_z, missing=False),
        is_fast=to_all_columns(z < -min_z, missing=False),
        noise=spread * float(np.median(errors)),
    )


class _ColumnEstimates(NamedTuple):
    """The mean of each column, and its standard error."""

    mean: Floats
    error: Floats


def _estimate_columns(residuals: Floats) -> _ColumnEstimates:
    """Return the weighted mean of each column; a row weighs the inverse of its variance."""
    is_measured = np.isfinite(residuals)
    row_noise = _noise(residuals)
    means = _weighted_means(residuals, is_measured / row_noise[:, None] ** 2, row_noise)
    if len(residuals) > 1:
        # Slow nodes count as noise of a row until the means of the columns are taken off.
        row_noise = _noise(residuals - means)
    weights = is_measured / row_noise[:, None] ** 2
    means = _weighted_means(residuals, weights, row_noise)
    return _ColumnEstimates(means, _column_errors(means, weights))


def _column_errors(means: Floats, weights: Floats) -> Floats:
    """Return the standard error of each column's mean.

    It has two parts: the noise of the cells, and of several rows the scatter of the columns that
    the noise of the cells does not explain.
    """
    variance = 1 / weights.sum(axis=0)
    if len(weights) == 1:
        return np.asarray(np.sqrt(variance))
    # Nodes scatter more than the noise of their cells explains. The excess is the variance between
    # regular nodes, and is added to the error of each.
    (scatter,) = _noise(means[None, :]) ** 2  # a matrix of one row
    common_variance = max(0.0, float(scatter) - float(np.median(variance)))
    return np.asarray(np.sqrt(common_variance + variance))


def middle_and_spread(score: Floats) -> tuple[float, float]:
    """Return the median, and the standard deviation from the median absolute deviation (MAD).

    A MAD of 0, where more than half are equal, is replaced by the mean absolute deviation.

    Source: Iglewicz and Hoaglin 1993, whose robust z, 0.6745 (x - median) / MAD, is (x - median)
    over this spread.
    """
    middle = float(np.median(score))
    distances = np.abs(score - middle)
    median_distance = float(np.median(distances))
    if median_distance:
        return middle, median_distance / NORMAL
    # More than half of the values are equal: the mean distance stands in for the median.
    return middle, NORMAL_MEAN * float(distances.mean())


def z_limit(column_count: int, false_alarms: float) -> float:
    """Return the limit that some robust z of equal columns exceeds with this probability."""
    return two_sided_t(2 * false_alarms / column_count, degrees_of_freedom(column_count))


def degrees_of_freedom(column_count: int) -> float:
    """Return the degrees of freedom of a median absolute deviation of `column_count` values."""
    return max(1.0, EFFICIENCY * (column_count - 1))


def _noise(residuals: Floats) -> Floats:
    """Return the robust spread of each row, at least a third of the median spread."""
    spread = _medians(np.abs(residuals - _medians(residuals)[:, None])) / NORMAL
    return np.asarray(np.maximum(spread, max(float(np.median(spread)) / 3, 1e-9)))


def _weighted_means(residuals: Floats, weights: Floats, row_noise: Floats) -> Floats:
    """Return the weighted mean of each column, cells clipped that are far from its median."""
    with np.errstate(invalid="ignore", divide="ignore"):
        middle = _medians(np.where(weights > 0, residuals, np.nan).T)
        reach = CLIP * row_noise[:, None]
        clipped = np.clip(np.nan_to_num(residuals), middle - reach, middle + reach)
        return np.asarray((weights * clipped).sum(axis=0) / weights.sum(axis=0))


def _medians(rows: Floats) -> Floats:
    """Return the median of each row without its NaN, eight times as fast as `np.nanmedian`."""
    ordered = np.sort(rows, axis=1)
    counts = np.isfinite(rows).sum(axis=1)  # NaN come last
    middle = np.stack(((counts - 1) // 2, counts // 2), axis=1)
    return np.asarray(np.take_along_axis(ordered, np.maximum(middle, 0), axis=1).mean(axis=1))

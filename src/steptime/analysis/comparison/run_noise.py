"""The noise from run to run, pooled over the pairs of a comparison, as logarithms of times."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steptime.records.warmup import Floats

Flags = NDArray[np.bool_]

TAIL = 0.95  # quantile of the residuals that sets the noise of long tails
NORMAL_TAIL = 1.959964  # the same quantile of |z|
NORMAL_MEDIAN = 0.674490  # median of |z|
CLIP = 3.0  # noise, beyond which a run no longer pulls a mean
# chance that the noise of a single pair is above the noise that it is judged with
EXCESS_NOISE = 0.2
LOUD_NOISE = 0.02  # chance that a network counts as louder than the others
MIN_NOISE = 1e-9


class Noise(NamedTuple):
    """Noise from run to run, an entry a pair.

    Attributes:
        deviation: standard deviation for each pair, at least the one pooled over its comparison.
        degrees_of_freedom: number of spare runs of the comparison: runs less one, over all sides.
        is_loud: pairs with more noise than the others.
        unpooled_deviation: standard deviation of each pair by itself.
    """

    deviation: Floats
    degrees_of_freedom: NDArray[np.int64]
    is_loud: Flags
    unpooled_deviation: Floats


def pool_noise(a: Floats, b: Floats, comparisons: int = 1) -> Noise:
    """Return the noise from run to run of pairs that all have two runs a side.

    Args:
        a: the runs of the sides A [pairs, runs], NaN for those that are missing.
        b: the runs of the sides B.
        comparisons: number of comparisons of equal size, one behind the other.
    """
    from scipy.special import chdtri

    pair_count = len(a) // comparisons  # of each comparison
    residuals = np.abs(np.concatenate([_residuals(a), _residuals(b)], axis=1))
    comparison_noise = _pool_residuals(residuals.reshape(comparisons, -1))
    pooled = np.repeat(comparison_noise, pair_count)

    # A pair may be noisier than the others. By chance its own noise exceeds the pooled one by
    # `expected_excess` or more in `EXCESS_NOISE` of pairs, by `loud_excess` or more in `LOUD_NOISE`
    # of them (chi-square). Beyond the first its noise is raised, beyond the second it is loud.
    freedom = count_runs(a) + count_runs(b) - 2  # of each pair
    pair_noise = np.sqrt((_squares(a) + _squares(b)) / freedom)
    expected_excess = np.sqrt(chdtri(freedom, EXCESS_NOISE) / freedom)
    loud_excess = np.sqrt(chdtri(freedom, LOUD_NOISE) / freedom)
    comparison_freedom = freedom.reshape(comparisons, -1).sum(axis=1)
    return Noise(
        deviation=np.maximum(pooled, pair_noise / expected_excess),
        degrees_of_freedom=np.repeat(comparison_freedom, pair_count),
        is_loud=(pair_noise > loud_excess * pooled) & (pair_count > 1),
        unpooled_deviation=pair_noise,
    )


def _pool_residuals(residuals: Floats) -> Floats:
    """Return the standard deviation of each row of |residuals|: the larger of two estimates.

    The root mean square counts all residuals, those beyond `CLIP` times the bulk clipped. The 95 %
    quantile, over that of a normal distribution, is raised by long tails and second speeds.
    """
    quantile = np.nanquantile if np.isnan(residuals).any() else np.quantile
    median_size, tail_size = quantile(residuals, (0.5, TAIL), axis=1)
    tail_noise = tail_size / NORMAL_TAIL
    bulk_noise = np.maximum(tail_noise, median_size / NORMAL_MEDIAN)  # says where clipping begins
    clipped = np.minimum(residuals, CLIP * bulk_noise[:, None])
    residual_count = np.isfinite(residuals).sum(axis=1)
    root_mean_square = np.sqrt(np.nansum(clipped**2, axis=1) / residual_count)
    return np.asarray(np.maximum(np.maximum(tail_noise, root_mean_square), MIN_NOISE))


def count_runs(side: Floats) -> NDArray[np.int64]:
    """Return the number of runs of each side, whose missing runs are NaN."""
    return np.asarray(np.isfinite(side).sum(axis=1))


def _residuals(side: Floats) -> Floats:
    """Return the residuals of runs about their mean, scaled to the spread of single runs."""
    runs = count_runs(side)
    return np.asarray(_deviations(side) * np.sqrt(runs / (runs - 1))[:, None])


def _squares(side: Floats) -> Floats:
    return np.asarray(np.nansum(_deviations(side) ** 2, axis=1))


def _deviations(side: Floats) -> Floats:
    return np.asarray(side - (np.nansum(side, axis=1) / count_runs(side))[:, None])

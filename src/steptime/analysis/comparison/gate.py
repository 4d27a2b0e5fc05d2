"""Judge from the runs of two sides which of many networks changed beyond noise.

Everything here is a natural logarithm of a time: 0.04 is 4 % slower. `docs/statistics.md` explains
the rule, `docs/gate-error-rates.md` has its measured error rates.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steptime.analysis.comparison.run_noise import CLIP, Noise, count_runs, pool_noise
from steptime.records.statistics import MISS, SEED, two_sided_t
from steptime.records.warmup import Floats

Flags = NDArray[np.bool_]

FALSE_ALARMS = 0.034  # of a whole comparison in the formula; below 5 % in every measured cell
FALSE_ALARMS_FEW = 0.12  # the same where `FEW_FREEDOM` holds: `FEW_CHANGE` does the work there
POWER = 0.9  # with which `smallest_change` is found
PAIR_POWER = 0.94  # of a pair as loud as the others: louder draws have a higher limit
MIN_RUNS = 2  # on each side, of a pair that can be judged
FEW_FREEDOM = 4  # spare runs: so few, with 2 runs a side, can all have met one of two speeds
FEW_CHANGE = math.log(1.25)  # two speeds of one machine are not farther apart
SPREAD_FREEDOM = 12  # spare runs: so few do not show how often a second speed occurs
SPREAD_RUNS = 4  # runs a side: more average two speeds
MAX_SMALLEST = 20.0  # logarithm of a factor that no longer means anything, and is a number still
GUARD_QUANTILES = {2: 0.0, 3: 0.25, 4: 0.4}  # of the differences between single runs, by runs
MEDIAN_QUANTILE = 0.5  # the same quantile for 5 runs and more
DRAWS = 4000  # of normal noise, for the power


class Judgement(NamedTuple):
    """The change of each pair, and whether it is beyond noise.

    Attributes:
        change: logarithm of B / A; NaN where a side has a single run.
        low: low end of the 95 % interval of `change`.
        high: high end of the 95 % interval of `change`.
        p_value: probability of such a change without a difference, of this pair alone.
        is_changed: whether the change is beyond noise, over all pairs together.
        smallest_change: the smallest change that is found with 90 % power.
        noise: standard deviation from run to run that the pair was judged with.
    """

    change: Floats
    low: Floats
    high: Floats
    p_value: Floats
    is_changed: Flags
    smallest_change: Floats
    noise: Floats


def judge_runs(
    a: Floats,
    b: Floats,
    margin: float = 0.0,
    false_alarms: float = FALSE_ALARMS,
    comparisons: int = 1,
) -> Judgement:
    """Find the pairs that changed by more than `margin`, at most 5 % false alarms over all pairs.

    The noise is pooled over the runs of all pairs. A change has to be beyond it as the difference
    of the clipped means and as the difference of single runs, so that no outlying run decides:
    with two runs a side, each run of B must be beyond each run of A.

    Args:
        a: logarithms of the times of the runs [pairs, runs], NaN behind the last run.
        b: the same of the other side.
        margin: logarithm below which a change counts as none.
        false_alarms: share of comparisons without any change that may have an alarm.
        comparisons: the pairs are of so many comparisons of equal size, one behind the other, each
            judged by itself; more than one need two runs a side in every pair.
    """
    runs_a, runs_b = count_runs(a), count_runs(b)
    is_judged = np.minimum(runs_a, runs_b) >= MIN_RUNS
    columns = {name: np.full(len(a), np.nan) for name in Judgement._fields}
    if is_judged.any():
        judged = _judge_pairs(a[is_judged], b[is_judged], margin, false_alarms, comparisons)
        for name, column in columns.items():
            column[is_judged] = getattr(judged, name)
    # Back to booleans. Pairs that cannot be judged have NaN and count as unchanged.
    columns["is_changed"] = columns["is_changed"] == 1
    return Judgement(**columns)


def _judge_pairs(
    a: Floats, b: Floats, margin: float, false_alarms: float, comparisons: int
) -> Judgement:
    """Return the judgement of pairs that all have two runs a side or more."""
    from scipy.special import stdtr, stdtrit

    runs_a = count_runs(a)
    runs_b = count_runs(b)
    noise = pool_noise(a, b, comparisons)
    limit = _find_limit(a, b, noise, false_alarms, comparisons)
    change = _clipped_mean(b, noise.deviation) - _clipped_mean(a, noise.deviation)
    # Tested is the change of the means or that of single runs, whichever is smaller, so that no
    # outlying run decides.
    evidence = _weigh_evidence(a, b, change)
    standard_error = noise.deviation * _error_factor(runs_a, runs_b)
    half_width = -stdtrit(noise.degrees_of_freedom, MISS / 2) * standard_error
    power_loss = _power_losses(runs_a, runs_b) * noise.deviation
    exceeds_noise = np.abs(evidence) > limit
    # Beyond noise is not enough: the change must matter as well.
    exceeds_margin = np.abs(change) > margin
    return Judgement(
        change=change,
        low=change - half_width,
        high=change + half_width,
        p_value=2 * stdtr(noise.degrees_of_freedom, -np.abs(evidence) / standard_error),
        is_changed=exceeds_noise & exceeds_margin,
        smallest_change=_find_smallest(
            limit, power_loss, standard_error, noise.degrees_of_freedom, margin
        ),
        noise=noise.deviation,
    )


def smallest_of_equal(noise: float, runs: int, pairs: int, margin: float = 0.0) -> float:
    """Return the smallest change that is found with 90 % power if all pairs have as many runs."""
    freedom = 2 * (runs - 1) * pairs
    error_factor = math.sqrt(2 / runs)  # standard error of a difference of two means, in noise
    has_few_runs = runs == MIN_RUNS and freedom <= FEW_FREEDOM
    error_share = FALSE_ALARMS_FEW if has_few_runs else FALSE_ALARMS
    limit = noise * two_sided_t(error_share / pairs, freedom) * error_factor

    # As in `_find_limit`: a machine with two speeds spreads the runs of one side, and a change must
    # exceed this spread.
    hides_second_speed = runs <= SPREAD_RUNS and freedom <= SPREAD_FREEDOM
    is_single_of_two_runs = has_few_runs and pairs == 1
    if hides_second_speed and not is_single_of_two_runs:
        limit = max(limit, noise * _expected_spread(runs, pairs))
    if has_few_runs:
        limit = max(limit, FEW_CHANGE)
    power_loss = _power_loss(runs, runs) * noise
    return float(_find_smallest(limit, power_loss, noise * error_factor, freedom, margin))


def _find_smallest(
    limit: float | Floats,
    power_loss: float | Floats,
    standard_error: float | Floats,
    freedom: int | NDArray[np.int64],
    margin: float,
) -> Floats:
    """Return the smallest change that is found with 90 % power."""
    # The evidence may stay below the true change by `power_loss`, and the limit, which rests on an
    # estimate of the noise, be too high by `limit_loss`: independent errors, whose squares add up.
    sigmas = _find_normal_quantile(PAIR_POWER)
    limit_loss = sigmas * limit / np.sqrt(2 * freedom)
    min_for_noise = limit + np.hypot(power_loss, limit_loss)
    min_for_margin = margin + sigmas * standard_error
    return np.asarray(np.minimum(np.maximum(min_for_noise, min_for_margin), MAX_SMALLEST))


@lru_cache(256)
def _expected_spread(runs: int, pairs: int) -> float:
    """Return the mean of the largest difference between two runs of a side, for noise of 1."""
    draws = np.random.default_rng(SEED).standard_normal((DRAWS, 2 * pairs, runs))
    return float(np.ptp(draws, axis=2).max(axis=1).mean())


def _find_limit(
    a: Floats, b: Floats, noise: Noise, false_alarms: float, comparisons: int
) -> Floats:
    """Return the limit that the evidence for a change of each pair must exceed.

    Bonferroni over the pairs, and over the loud pairs, which have their own noise alone. Where few
    runs are pooled, two speeds of a machine look like a change, so that a change must also be
    larger than `FEW_CHANGE`, or than the difference between any two runs of one side.
    """
    pair_count = len(a) // comparisons  # of each comparison
    runs_a = count_runs(a)
    runs_b = count_runs(b)
    run_count = np.minimum(runs_a, runs_b)
    has_pair_of_two_runs = _reduce_comparisons(run_count, np.min, comparisons) == MIN_RUNS
    has_few_runs = (noise.degrees_of_freedom <= FEW_FREEDOM) & has_pair_of_two_runs
    error_share = np.where(has_few_runs, max(false_alarms, FALSE_ALARMS_FEW), false_alarms)
    noise_limit = _find_noise_limit(noise, runs_a, runs_b, error_share, comparisons)

    # A machine may have two speeds. All of a few runs may have met the same one, which no spread
    # of theirs shows: a change must exceed the usual difference of two speeds.
    limit = np.where(has_few_runs, np.maximum(noise_limit, FEW_CHANGE), noise_limit)

    # A few more runs show a second speed as the difference between two runs of one side.
    # A single pair with two runs a side has `FEW_CHANGE` alone.
    spreads = np.maximum(_find_spreads(a), _find_spreads(b))
    largest_spread = _reduce_comparisons(spreads, np.max, comparisons)
    is_single_of_two_runs = has_few_runs & (pair_count == 1)
    has_few_spare_runs = noise.degrees_of_freedom <= SPREAD_FREEDOM
    averages_few_runs = run_count <= SPREAD_RUNS
    must_exceed_spread = has_few_spare_runs & averages_few_runs & ~is_single_of_two_runs
    return np.asarray(np.where(must_exceed_spread, np.maximum(limit, largest_spread), limit))


def _find_noise_limit(
    noise: Noise,
    runs_a: NDArray[np.int64],
    runs_b: NDArray[np.int64],
    error_share: Floats,
    comparisons: int,
) -> Floats:
    """Return the limit of a difference of means that noise alone exceeds with a probability.

    Args:
        noise: the noise of each pair.
        runs_a: number of runs of each side A.
        runs_b: number of runs of each side B.
        error_share: the probability that some pair of the comparison exceeds its limit.
        comparisons: number of comparisons of equal size, one behind the other.
    """
    from scipy.special import stdtrit

    # The pooled noise: the pairs of a comparison share the probability, and both signs halve it.
    pair_count = len(runs_a) // comparisons
    pooled_share = error_share / pair_count / 2
    pooled_limit = -stdtrit(noise.degrees_of_freedom, pooled_share) * noise.deviation

    # A loud pair must also exceed its own noise: the loud pairs share half of the probability.
    loud_count = _reduce_comparisons(noise.is_loud, np.sum, comparisons)
    loud_share = error_share / np.maximum(1, 2 * loud_count)
    single_freedom = runs_a + runs_b - 2
    single_limit = -stdtrit(single_freedom, loud_share / 2) * noise.unpooled_deviation
    run_limit = np.where(noise.is_loud, np.maximum(pooled_limit, single_limit), pooled_limit)
    return np.asarray(run_limit * _error_factor(runs_a, runs_b))  # of the difference of two means


def _reduce_comparisons(column: NDArray[Any], reduce: Any, comparisons: int) -> NDArray[Any]:
    """Return the sum, minimum or maximum over the pairs of each comparison, repeated for each."""
    number_of_comparison = reduce(column.reshape(comparisons, -1), axis=1)
    return np.asarray(np.repeat(number_of_comparison, len(column) // comparisons))


def _weigh_evidence(a: Floats, b: Floats, change: Floats) -> Floats:
    """Return the smaller of the change of means and the guarded change of single runs.

    The guarded change is a quantile of all differences between a run of B and a run of A: the
    smallest with two runs a side, the median from five runs on. It is 0 where the signs differ.
    """
    run_counts_a = count_runs(a)
    run_counts_b = count_runs(b)
    guarded_low = np.empty(len(a))
    guarded_high = np.empty(len(a))
    # Pairs with equal numbers of runs on each side are computed at once.
    distinct_counts = np.unique(np.stack([run_counts_a, run_counts_b]), axis=1).T
    for count_a, count_b in distinct_counts:
        pairs = np.flatnonzero((run_counts_a == count_a) & (run_counts_b == count_b))
        runs_of_a = _drop_missing_runs(a[pairs], count_a)
        runs_of_b = _drop_missing_runs(b[pairs], count_b)
        guarded_low[pairs], guarded_high[pairs] = _guarded_changes(runs_of_a, runs_of_b)
    # Runs that changed in the other direction leave no evidence.
    increase = np.maximum(0, np.minimum(change, guarded_low))
    decrease = np.maximum(0, np.minimum(-change, -guarded_high))
    return np.where(change > 0, increase, -decrease)


def _guarded_changes(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return a low and a high quantile of the differences between runs of B and of A."""
    run_count = min(a.shape[1], b.shape[1])
    # The fewer the runs, the more extreme the quantile: the minimum for 2, the median from 5 on.
    quantile = GUARD_QUANTILES.get(run_count, MEDIAN_QUANTILE)
    run_differences = b[:, :, None] - a[:, None, :]  # [pairs, runs of B, runs of A]
    ordered = np.sort(run_differences.reshape(len(a), -1), axis=1)
    count = ordered.shape[1]
    if quantile == MEDIAN_QUANTILE:
        lower_middle = ordered[:, (count - 1) // 2]
        upper_middle = ordered[:, count // 2]
        median = (lower_middle + upper_middle) / 2
        return median, median
    low_rank = int(quantile * (count - 1))
    high_rank = count - 1 - low_rank
    return ordered[:, low_rank], ordered[:, high_rank]


def _clipped_mean(side: Floats, noise: Floats) -> Floats:
    """Return the mean of the runs, each clipped at `CLIP` times the noise from their median."""
    run_count = count_runs(side)
    ordered = np.sort(side, axis=1)  # NaN come last
    rows = np.arange(len(side))
    lower_middle = ordered[rows, (run_count - 1) // 2]
    upper_middle = ordered[rows, run_count // 2]
    median = (lower_middle + upper_middle) / 2
    reach = CLIP * noise
    low = (median - reach)[:, None]
    high = (median + reach)[:, None]
    clipped = np.minimum(np.maximum(side, low), high)
    return np.asarray(np.nansum(clipped, axis=1) / run_count)


def _drop_missing_runs(side: Floats, runs: int) -> Floats:
    """Return the runs of sides that have as many, without NaN."""
    return side[np.isfinite(side)].reshape(len(side), int(runs))


def _find_spreads(side: Floats) -> Floats:
    return np.asarray(np.nanmax(side, axis=1) - np.nanmin(side, axis=1))


def _error_factor(runs_a: NDArray[np.int64], runs_b: NDArray[np.int64]) -> Floats:
    """Return the standard error of a difference of means, for noise of 1."""
    return np.asarray(np.sqrt(1 / runs_a + 1 / runs_b))


def _power_losses(runs_a: NDArray[np.int64], runs_b: NDArray[np.int64]) -> Floats:
    """Return the power loss of each pair: one simulation for pairs with as many runs."""
    run_counts = np.stack([runs_a, runs_b])
    distinct_counts, count_index = np.unique(run_counts, axis=1, return_inverse=True)
    losses = [_power_loss(int(count_a), int(count_b)) for count_a, count_b in distinct_counts.T]
    return np.array(losses)[np.ravel(count_index)]


@lru_cache(1024)
def _power_loss(runs_a: int, runs_b: int) -> float:
    """Return the distance by which evidence stays below the true change in 6 % of draws.

    In units of the noise, for normal noise; by simulation from a fixed seed.
    """
    rng = np.random.default_rng(SEED)
    true_change = 100.0  # times the noise: leaves no doubt of its sign
    a = rng.standard_normal((DRAWS, runs_a))
    b = rng.standard_normal((DRAWS, runs_b)) + true_change
    no_clipping = np.full(DRAWS, true_change)  # a noise so large that no run is clipped
    change = _clipped_mean(b, no_clipping) - _clipped_mean(a, no_clipping)
    # `evidence` is the change less what noise leaves open, in units of the noise.
    evidence = _weigh_evidence(a, b, change)
    # So much of the change remains as evidence with the wanted power; the rest is lost to noise.
    remaining_change = np.quantile(evidence, 1 - PAIR_POWER)
    return float(true_change - remaining_change)


def _find_normal_quantile(share: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(share))

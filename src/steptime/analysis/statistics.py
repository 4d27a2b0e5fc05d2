"""From the samples of a step to numbers with a 95 % interval.

Samples inside a process are one level, fresh processes (runs) another. With several runs the
interval is over runs; a single run says that it is one, and its interval then says nothing of what
another process would show. The procedure, its measured coverage, and what it leaves out are on the
page `docs/statistics.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.analysis.warmup import Floats, find_warm_up, middle
from steptime.core.errors import InputError

MISS = 0.05  # an interval is to miss the truth as seldom as this
DRAWS = 4000  # of the bootstrap
SEED = 20151115
LEAST_FOR_CORRELATION = 8  # samples

WITHIN, BETWEEN = "within-run", "between-runs"


@dataclass(frozen=True)
class Estimate:
    """The time of a steady step in seconds, with its 95 % interval.

    `low` and `high` are None for a single sample. `interval` is "within-run" or "between-runs".
    `warm_up` counts the samples of each run that were left out; `steady` False is the verdict "no
    steady state", None that there are too few samples to tell.
    """

    value: float
    low: float | None
    high: float | None
    interval: str
    warm_up: tuple[int, ...]
    steady: bool | None


def estimate(runs: Sequence[Sequence[float]]) -> Estimate:
    """Return the step time [s] of one or more runs [samples of s] with its 95 % interval.

    Several runs: the geometric mean of the medians of the runs, and a t-interval over their
    logarithms. One run: its median, and a bootstrap interval. Warm-up is left out (`find_warm_up`);
    where no steady state is found the interval is widened by the drift that is left. Raises
    `InputError` for no samples, or a time that is not positive.
    """
    side = locate(runs)
    if len(runs) > 1:
        centre, error = mean_and_error(side.medians)
        reach = two_sided_t(MISS, len(runs) - 1) * error
        ends = (centre - reach, centre + reach)
    else:
        centre = float(side.medians[0])
        log = side.kept[0]
        drawn = np.bincount(_rank_draws(log, np.random.default_rng(SEED)), minlength=len(log))
        ends = middle_share(np.repeat(np.sort(log), drawn), centre)
    known = len(runs) > 1 or len(side.kept[0]) > 1
    return Estimate(
        value=side.unit_s * math.exp(centre),
        low=side.unit_s * math.exp(ends[0] - side.drift) if known else None,
        high=side.unit_s * math.exp(ends[1] + side.drift) if known else None,
        interval=BETWEEN if len(runs) > 1 else WITHIN,
        warm_up=side.warm_up,
        steady=side.steady,
    )


def summarize(runs: Sequence[Sequence[float]], batch: int) -> dict[str, Any]:
    """Return the statistics of runs [samples of s] of a step over `batch` examples, as a row.

    Mean, median, percentiles [s] and speeds [examples/s] are over all samples, disturbed ones too.
    `step_s_steady` is the value of `estimate`; `step_s_low` and `step_s_high` are its interval,
    widened where the plain median `step_s` lies outside. Speed uncertainty and jitter are those of
    TensorFlow's benchmarks (tf_cnn_benchmarks) and the logs made with them: the population standard
    deviation of the speeds over sqrt(n), and 1.4826 times their median absolute deviation. The
    uncertainty is one sigma, assumes independent samples, and is of the mean of the speeds, not of
    `speed_per_s`. Raises `InputError` like `estimate`.
    """
    found = estimate(runs)
    times = np.concatenate([np.asarray(run, dtype=np.float64) for run in runs])
    ordered = np.sort(times)
    speeds = batch / times
    median_s = middle(times)
    return {
        "step_s": median_s,
        "step_s_low": None if found.low is None else min(found.low, median_s),
        "step_s_high": None if found.high is None else max(found.high, median_s),
        "step_s_interval": found.interval,
        "step_s_steady": found.value,
        "step_s_min": float(times.min()),
        "step_s_mean": float(times.mean()),
        "step_s_p5": quantile(ordered, 0.05),
        "step_s_p95": quantile(ordered, 0.95),
        "steady": found.steady,
        "samples_n": len(times),
        "runs": len(runs),
        "speed_per_s": float(batch / times.mean()),
        "speed_uncertainty_per_s": float(speeds.std() / math.sqrt(len(times))),
        "speed_jitter_per_s": 1.4826 * middle(np.abs(speeds - middle(speeds))),
    }


@dataclass(frozen=True)
class Side:
    """The runs of one thing, warm-up left out, as logarithms of times in units of `unit_s`."""

    unit_s: float
    kept: tuple[Floats, ...]
    medians: Floats
    warm_up: tuple[int, ...]
    steady: bool | None
    drift: float


def locate(runs: Sequence[Sequence[float]]) -> Side:
    """Return the medians of the runs [s], warm-up left out; raises `InputError` as `estimate`."""
    if not runs or not all(map(len, runs)):
        raise InputError("a run without samples has no step time")
    times = [np.asarray(run, dtype=np.float64) for run in runs]
    for number, run in enumerate(times):
        if not (run.min() > 0 and run.max() < math.inf):
            wrong = run[~((run > 0) & np.isfinite(run))]
            raise InputError(f"run {number}: a step time is a positive number, not {wrong[0]}")
    unit_s = middle(np.array([middle(run) for run in times]))
    logs = [np.log(run / unit_s) for run in times]
    found = find_warm_up(logs)
    kept = tuple(log[count:] for log, count in zip(logs, found.samples, strict=True))
    medians = np.array([middle(log) for log in kept])
    return Side(unit_s, kept, medians, found.samples, found.steady, found.drift)


def two_sided_p(t: float, freedom: int) -> float:
    """Return the probability that |T| of Student's distribution is at least |t|."""
    from scipy.special import stdtr  # what scipy.stats.t calls, loaded in a third of the time

    return float(2 * stdtr(freedom, -abs(t)))


def two_sided_t(p: float, freedom: int) -> float:
    """Return the t that |T| reaches with probability `p`: 2.776 for 0.05 and 4 degrees."""
    from scipy.special import stdtrit

    return float(-stdtrit(freedom, p / 2))


def mean_and_error(values: Floats) -> tuple[float, float]:
    """Return the mean and its standard error, the same in whatever order."""
    ordered = np.sort(values)
    return float(ordered.mean()), float(ordered.std(ddof=1) / math.sqrt(len(ordered)))


def median_draws(log: Floats, rng: np.random.Generator) -> Floats:
    """Return bootstrap draws of the median [draws].

    Of m resampled values the median is the sorted value at a rank that follows a Beta(h, h)
    distribution, h = (m + 1) / 2 (an order statistic of uniform numbers), so no resample is made.
    m is the number of independent samples that the run is worth, n (1 - r) / (1 + r), where r is
    the correlation of the ranks of neighbours, its bias of -1/n mended, between 0 and 0.9.
    """
    return np.asarray(np.sort(log)[_rank_draws(log, rng)])


def _rank_draws(log: Floats, rng: np.random.Generator) -> NDArray[np.int64]:
    n = len(log)
    ranks = np.argsort(np.argsort(log, kind="stable"), kind="stable") - (n - 1) / 2
    follows = float((ranks[1:] * ranks[:-1]).sum() / max((ranks**2).sum(), 1.0)) + 1 / n
    r = min(max(follows, 0.0), 0.9) if n >= LEAST_FOR_CORRELATION else 0.0
    half = (max(3.0, n * (1 - r) / (1 + r)) + 1) / 2
    return np.minimum((rng.beta(half, half, DRAWS) * n).astype(np.int64), n - 1)


def middle_share(ordered: Floats, centre: float) -> tuple[float, float]:
    """Return the ends of the middle 95 % of ordered draws, moved to hold `centre`."""
    low, high = quantile(ordered, MISS / 2), quantile(ordered, 1 - MISS / 2)
    return min(low, centre), max(high, centre)


def quantile(ordered: Floats, share: float) -> float:
    """Return a quantile of ordered values, linear between neighbours as numpy's, in a tenth."""
    place = share * (len(ordered) - 1)
    at = int(place)
    low, high = float(ordered[at]), float(ordered[min(at + 1, len(ordered) - 1)])
    return low + (high - low) * (place - at)

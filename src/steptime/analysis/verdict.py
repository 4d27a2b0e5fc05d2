"""Is B faster than A? The ratio of their step times, its interval, and one of four words.

The runs are interleaved, A B A B, so that what changes slowly on the machine is in both; run k of A
is compared with run k of B.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from steptime.analysis import statistics
from steptime.core.errors import InputError

Ends = tuple[np.ndarray, np.ndarray, np.ndarray]
MARGIN = 0.02  # of the ratio, that counts as no difference


@dataclass(frozen=True)
class Comparison:
    """How long a step of B takes relative to one of A: `ratio` below 1 means that B is faster.

    `low` and `high` bound the ratio with 95 %, `p_value` is that of no difference; all three are
    None where a side has a single sample. `interval` is "between-runs", or "within-run" where a
    side has a single run: then it leaves out how processes differ. `steady` is False if a side has
    no steady state, None if that cannot be told.
    """

    ratio: float
    low: float | None
    high: float | None
    p_value: float | None
    verdict: str
    interval: str
    steady: bool | None

    def holding(self, ratio: float) -> Comparison:
        """Return this about another `ratio`, that of plain medians: the interval holds it, too."""
        if self.low is None or self.high is None:
            return replace(self, ratio=ratio)
        low, high = min(self.low, ratio), max(self.high, ratio)
        word = _verdict(low, high)
        return replace(self, ratio=ratio, low=low, high=high, verdict=word)


def compare_runs(
    a_runs: Sequence[Sequence[float]], b_runs: Sequence[Sequence[float]], *, paired: bool = True
) -> Comparison:
    """Return time of B / time of A for runs [samples of s], and the verdict on B.

    "same" means that the whole interval lies between 1 / (1 + `MARGIN`) and 1 + `MARGIN`; "faster"
    and "slower" that it leaves out 1. Paired runs: a t-interval over the logarithms of the ratios
    of each pair. `paired=False`, for runs that were not interleaved: Welch's interval. A single run
    on a side: the bootstrap of both medians. Raises `InputError` as `estimate` does, and for pairs
    that do not match.
    """
    a, b = statistics.locate(a_runs), statistics.locate(b_runs)
    steady = None if None in (a.steady, b.steady) else bool(a.steady and b.steady)
    base = math.log(b.unit_s / a.unit_s)
    drift = a.drift + b.drift
    single = min(len(a_runs), len(b_runs)) == 1
    if single and min(len(side.kept[0]) for side in (a, b)) == 1:
        ratio = math.exp(base + float(b.medians.mean() - a.medians.mean()))
        return Comparison(ratio, None, None, None, "unsure", statistics.WITHIN, steady)
    if single:
        centre, ends, p_value = _within(a, b, base)
    elif paired:
        if len(a_runs) != len(b_runs):
            raise InputError(f"{len(a_runs)} runs of A and {len(b_runs)} of B make no pairs")
        centre, error = statistics.mean_and_error(b.medians - a.medians + base)
        ends, p_value = _student(centre, error, len(a_runs) - 1)
    else:
        centre, error, freedom = _welch(a, b)
        centre += base
        ends, p_value = _student(centre, error, freedom)
    low, high = math.exp(ends[0] - drift), math.exp(ends[1] + drift)
    return Comparison(
        ratio=math.exp(centre),
        low=low,
        high=high,
        p_value=p_value,
        verdict=_verdict(low, high),
        interval=statistics.WITHIN if single else statistics.BETWEEN,
        steady=steady,
    )


def control_false_discovery(p_values: Sequence[float]) -> list[bool]:
    """Return which of many differences to believe: at most a share `MISS` of those is false.

    Source: Benjamini and Hochberg 1995.
    """
    if len(p_values) < 2:
        return [p <= statistics.MISS for p in p_values]
    from scipy.stats import false_discovery_control

    return [bool(p <= statistics.MISS) for p in false_discovery_control(p_values)]


def verdicts(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the verdicts of comparisons that are read together.

    "faster" and "slower" that the false discovery rate does not allow become "unsure".
    """
    p_values = [1.0 if c.p_value is None else c.p_value for c in comparisons]
    return _believed([c.verdict for c in comparisons], p_values)


def _believed(words: Sequence[str], p_values: Sequence[float]) -> list[str]:
    return [
        "unsure" if word in ("faster", "slower") and not known else word
        for word, known in zip(words, control_false_discovery(p_values), strict=True)
    ]


def verdicts_of_intervals(a: Ends, b: Ends) -> list[str | None]:
    """Return the verdict on each B from the (value, low, high) [s] of many A and B, NaN unknown.

    The interval of the ratio is recovered from those of its sides (MOVER, Donner and Zou 2012), on
    a logarithmic scale; the false discovery rate is held over all. None where a side has none.
    """
    from scipy.special import ndtr

    (la, a_low, a_high), (lb, b_low, b_high) = (np.log(np.asarray(side, float)) for side in (a, b))
    ratio = lb - la
    down, up = np.hypot(lb - b_low, a_high - la), np.hypot(b_high - lb, la - a_low)
    low, high = np.exp(ratio - down), np.exp(ratio + up)
    known = np.isfinite(low) & np.isfinite(high)
    reach = np.maximum(np.where(ratio > 0, down, up), 1e-12) / 1.96
    words = [_verdict(*ends) for ends in zip(low[known], high[known], strict=True)]
    said = np.full(len(ratio), None, object)
    said[known] = _believed(words, 2 * ndtr(-np.abs(ratio / reach))[known])
    return list(said)


def _verdict(low: float, high: float) -> str:
    if low >= 1 / (1 + MARGIN) and high <= 1 + MARGIN:
        return "same"
    if high < 1:
        return "faster"
    return "slower" if low > 1 else "unsure"


def _student(centre: float, error: float, freedom: int) -> tuple[tuple[float, float], float]:
    reach = statistics.two_sided_t(statistics.MISS, freedom) * error
    if error == 0:
        return (centre, centre), 1.0 if centre == 0 else 0.0
    return (centre - reach, centre + reach), statistics.two_sided_p(centre / error, freedom)


def _welch(a: statistics.Side, b: statistics.Side) -> tuple[float, float, int]:
    """Return difference, standard error and degrees of freedom, rounded down (Welch 1947)."""
    (mean_a, error_a), (mean_b, error_b) = (
        statistics.mean_and_error(a.medians),
        statistics.mean_and_error(b.medians),
    )
    error = math.hypot(error_a, error_b)
    spread = error_a**4 / (len(a.medians) - 1) + error_b**4 / (len(b.medians) - 1)
    least = min(len(a.medians), len(b.medians)) - 1
    freedom = max(least, math.floor(error**4 / spread)) if spread > 0 else least
    return mean_b - mean_a, error, freedom


def _within(
    a: statistics.Side, b: statistics.Side, base: float
) -> tuple[float, tuple[float, float], float]:
    """Return ratio, interval and p-value from bootstrap draws of each run's median (logarithms)."""
    rng = np.random.default_rng(statistics.SEED)
    draws_a = np.mean([statistics.median_draws(log, rng) for log in a.kept], axis=0)
    draws_b = np.mean([statistics.median_draws(log, rng) for log in b.kept], axis=0)
    centre = base + float(b.medians.mean() - a.medians.mean())
    differences = base + draws_b - draws_a
    tail = min(np.count_nonzero(differences <= 0), np.count_nonzero(differences >= 0))
    p_value = min(1.0, 2 * (int(tail) + 1) / (len(differences) + 1))
    return centre, statistics.middle_share(np.sort(differences), centre), p_value

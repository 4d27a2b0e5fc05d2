"""How often the 95 % interval holds the truth, and how often A differs from A, on known noise.

5 runs of 20 samples, 2,000 trials a case, one procedure with no setting. The truth is always 1: the
location of the undisturbed, steady step over all processes that could be started.
"""

import numpy as np
import pytest

from steptime.analysis.comparison.verdict import MARGIN, compare_sides
from steptime.records.statistics import estimates

pytestmark = pytest.mark.slow

TRIALS, RUNS, SAMPLES = 2000, 5, 20
SHAPE = (TRIALS, RUNS, SAMPLES)
LEVELS = (0.003, 0.01, 0.05)  # standard deviation of a sample


def independent(rng, level):
    return 1 + level * rng.standard_normal(SHAPE)


def autocorrelated(rng, level, rho=0.7):
    noise = rng.standard_normal(SHAPE)
    for i in range(1, SAMPLES):
        noise[..., i] = rho * noise[..., i - 1] + np.sqrt(1 - rho**2) * noise[..., i]
    return 1 + level * noise


def between_runs(rng, level, spread=0.01):
    return independent(rng, level) * (1 + spread * rng.standard_normal((TRIALS, RUNS, 1)))


def spikes(rng, level, share=0.02):
    hit = rng.random(SHAPE) < share
    return independent(rng, level) * np.where(hit, rng.uniform(2, 6, SHAPE), 1)


def warming(rng, level, height=0.5, decay=1.5):
    return independent(rng, level) * (1 + height * np.exp(-np.arange(SAMPLES) / decay))


def slow_start(rng, level, height=0.2, length=4):
    return independent(rng, level) * (1 + height * (np.arange(SAMPLES) < length))


def everything(rng, level):
    other = autocorrelated(rng, level) * between_runs(rng, 0.0) * spikes(rng, 0.0)
    return other * (1 + 0.5 * np.exp(-np.arange(SAMPLES) / 1.5))


CASES = (independent, autocorrelated, between_runs, spikes, warming, slow_start, everything)


def coverage(times):
    """Return the share of trials whose interval holds 1, and the share that is called unsteady."""
    found = estimates(times)
    return ((found["low"] <= 1) & (found["high"] >= 1)).mean(), (found["steady"] == 0).mean()


def false_alarms(a, b):
    sides = [estimates(one) | {"runs": np.full(TRIALS, float(RUNS))} for one in (a, b)]
    found = compare_sides(*sides)
    apart = (found["low"] > 1) | (found["high"] < 1)  # each by itself
    small = (found["low"] >= 1 / (1 + MARGIN)) & (found["high"] <= 1 + MARGIN)
    return (apart & ~small).mean()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_the_interval_holds_the_truth_93_times_in_a_hundred(case):
    for level in LEVELS:
        share, _ = coverage(case(np.random.default_rng(1), level))
        assert share >= 0.93, level


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
def test_a_differs_from_a_at_most_6_times_in_a_hundred(case):
    rng = np.random.default_rng(2)
    assert false_alarms(case(rng, 0.05), case(rng, 0.05)) <= 0.06

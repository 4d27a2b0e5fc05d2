import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steptime.analysis.row import samples_by_run
from steptime.analysis.statistics import (
    estimate,
    summarize,
    two_sided_p,
    two_sided_t,
)
from steptime.analysis.verdict import (
    Comparison,
    compare_runs,
    control_false_discovery,
    verdicts,
)
from steptime.analysis.warmup import find_warm_up
from steptime.core.errors import InputError
from steptime.core.record import Quantity

TIMES = st.lists(st.floats(1e-6, 10.0), min_size=2, max_size=30)
RUNS = st.lists(TIMES, min_size=1, max_size=6)


def noisy(seed, runs=5, samples=20, level=0.01, middle=1.0):
    rng = np.random.default_rng(seed)
    return (middle * (1 + level * rng.standard_normal((runs, samples)))).tolist()


# the numbers of the logs


def test_the_seeds_numbers_by_hand():
    # batch 10: speeds 10, 5, 2.5 a second
    summary = summarize([[1.0, 2.0, 4.0]], 10)
    assert summary["step_s_mean"] == pytest.approx(7 / 3)
    assert summary["step_s"] == 2.0
    assert summary["step_s_min"] == 1.0
    assert summary["speed_per_s"] == pytest.approx(10 / (7 / 3))
    # mean speed 35/6; squares of deviations 625/36, 25/36, 400/36; a third of 1050/36 is 9.7222
    assert summary["speed_uncertainty_per_s"] == pytest.approx(
        math.sqrt(1050 / 36 / 3) / math.sqrt(3)
    )
    assert summary["speed_jitter_per_s"] == pytest.approx(1.4826 * 2.5)  # deviations 5, 0, 2.5
    assert (summary["runs"], summary["samples_n"]) == (1, 3)


def test_percentiles_lie_between_samples():
    summary = summarize([[float(i) for i in range(1, 22)]], 1)
    assert (summary["step_s_p5"], summary["step_s_p95"]) == (
        2.0,
        20.0,
    )  # rank 0.05 * 20 above the first


def test_the_interval_of_a_summary_holds_its_median():
    slow_start = [3.0] * 6 + [1.0 + 0.001 * (i % 5) for i in range(7)]
    summary = summarize([slow_start], 1)
    assert summary["step_s"] == pytest.approx(1.004)
    assert summary["step_s_low"] <= summary["step_s_steady"] <= summary["step_s_high"]
    assert summary["step_s_low"] <= summary["step_s"] <= summary["step_s_high"]


# the interval


def test_several_runs_have_a_t_interval_over_their_medians():
    # medians e^-1, 1, e: mean of logarithms 0, standard error 1 / sqrt(3), t = 4.303 for 2
    runs = [[math.exp(x)] * 3 for x in (-1.0, 0.0, 1.0)]
    found = estimate(runs)
    assert found.value == pytest.approx(1.0)
    assert found.high == pytest.approx(math.exp(4.30265 / math.sqrt(3)), rel=1e-5)
    assert found.low == pytest.approx(math.exp(-4.30265 / math.sqrt(3)), rel=1e-5)
    assert found.interval == "between-runs"
    assert found.steady is None  # three samples cannot tell


def test_one_run_says_that_it_is_one():
    found = estimate(noisy(1, runs=1))
    assert found.interval == "within-run"
    assert found.low < found.value < found.high
    assert estimate(noisy(1, runs=1)) == found  # the bootstrap has a seed


def test_one_sample_has_no_interval():
    found = estimate([[2.0]])
    assert (found.value, found.low, found.high) == (2.0, None, None)
    summary = summarize([[2.0]], 8)
    assert (summary["step_s_low"], summary["step_s_high"], summary["speed_per_s"]) == (
        None,
        None,
        4.0,
    )


def test_correlated_samples_are_worth_fewer():
    rng = np.random.default_rng(3)
    steps = rng.standard_normal(200)
    walk = np.convolve(steps, np.ones(20) / math.sqrt(20), "valid")
    spread = [1 + 0.01 * walk, 1 + 0.01 * rng.permutation(walk)]
    related, mixed = (estimate([run.tolist()]) for run in spread)
    assert related.high - related.low > 2 * (mixed.high - mixed.low)


@pytest.mark.parametrize("runs", [[], [[]], [[1.0], []]])
def test_no_samples_are_refused(runs):
    with pytest.raises(InputError, match="without samples"):
        estimate(runs)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_time_is_a_positive_number(wrong):
    with pytest.raises(InputError, match="run 1: a step time is a positive number"):
        estimate([[1.0, 1.0], [1.0, wrong]])


def test_columns_of_unequal_length_are_refused():
    with pytest.raises(InputError, match="3 samples, but 2 say their run"):
        samples_by_run(Quantity(samples=(1.0, 1.0, 1.0), columns={"run": (0, 0)}))


# warm-up


def test_a_slow_start_is_left_out_twice_over():
    found = find_warm_up([np.log([2.0] * 4 + [1.0] * 16)])
    assert found.samples == (8,)  # four slow samples, doubled
    assert found.steady


def test_each_run_has_its_own_warm_up():
    runs = [np.log(r) for r in noisy(4, runs=4)]
    runs[2][:5] += 1.0
    found = find_warm_up(runs)
    assert found.samples[2] >= 10
    assert estimate([np.exp(r).tolist() for r in runs]).value == pytest.approx(1.0, rel=0.01)


def test_a_drift_has_no_steady_state_and_a_wider_interval():
    drifting = [[t * (2 - i / 20) for i, t in enumerate(run)] for run in noisy(5)]
    found = estimate(drifting)
    assert found.steady is False
    assert found.low < 1.05  # where it would be after 19 samples
    assert max(found.warm_up) == 15  # a quarter is kept


def test_runs_without_warm_up_are_steady():
    assert [estimate(noisy(seed)).steady for seed in range(20)].count(False) <= 2


# properties


@settings(deadline=None, max_examples=60)
@given(RUNS)
def test_the_value_lies_in_its_interval(runs):
    found = estimate(runs)
    assert found.low <= found.value <= found.high


@settings(deadline=None, max_examples=60)
@given(RUNS, st.integers(-10, 10))
def test_other_units_change_nothing_else(runs, power):
    factor = 2.0**power  # exact in floating point
    found, scaled = estimate(runs), estimate([[t * factor for t in run] for run in runs])
    assert scaled.value == found.value * factor
    assert (scaled.low, scaled.high) == (found.low * factor, found.high * factor)


@settings(deadline=None, max_examples=60)
@given(RUNS, st.randoms(use_true_random=False))
def test_the_order_of_runs_is_no_matter(runs, random):
    mixed = random.sample(runs, len(runs))
    found, other = estimate(runs), estimate(mixed)
    assert (found.value, found.low, found.high) == (other.value, other.low, other.high)


@settings(deadline=None, max_examples=60)
@given(RUNS, st.floats(0.5, 2.0))
def test_a_comparison_turned_round_is_the_inverse(runs, factor):
    other = [[t * factor for t in run] for run in runs]
    forth, back = compare_runs(runs, other), compare_runs(other, runs)
    assert forth.ratio == pytest.approx(1 / back.ratio, rel=1e-9)
    assert forth.low <= forth.ratio <= forth.high


# Student's t


@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (30, 2.042)],
)
def test_quantiles_are_those_of_the_tables(freedom, t):
    assert two_sided_t(0.05, freedom) == pytest.approx(t, abs=5e-4)
    assert two_sided_p(two_sided_t(0.05, freedom), freedom) == pytest.approx(0.05)


def test_one_and_two_degrees_by_hand():
    assert two_sided_p(1.0, 1) == pytest.approx(0.5)  # Cauchy: 1 - 2/pi * pi/4
    assert two_sided_p(1.0, 2) == pytest.approx(1 - 1 / math.sqrt(3))  # 1 - t / sqrt(2 + t^2)
    assert two_sided_p(0.0, 7) == 1.0
    assert two_sided_p(math.inf, 3) == 0.0
    normal = 2 * (1 - statistics.NormalDist().cdf(1.96))
    assert two_sided_p(1.96, 4001) == pytest.approx(normal, rel=1e-2)


# comparisons


@pytest.mark.parametrize(
    ("factor", "verdict"), [(0.9, "faster"), (1.1, "slower"), (1.001, "same"), (1.0, "same")]
)
@pytest.mark.parametrize("paired", [True, False])
def test_the_four_words(factor, verdict, paired):
    found = compare_runs(noisy(6), noisy(7, middle=factor), paired=paired)
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(factor, rel=0.01)
    assert found.interval == "between-runs"


def test_too_much_noise_is_unsure():
    assert compare_runs(noisy(8, level=0.2), noisy(9, level=0.2)).verdict == "unsure"


def test_a_paired_interval_by_hand():
    # ratios of the pairs e^0.1, e^0.2, e^0.3: mean 0.2, standard error 0.1 / sqrt(3)
    base = [5.0, 7.0, 2.0]
    pairs = [[t * math.exp(x)] * 3 for t, x in zip(base, (0.1, 0.2, 0.3), strict=True)]
    found = compare_runs([[t] * 3 for t in base], pairs)
    assert found.ratio == pytest.approx(math.exp(0.2))
    assert found.high == pytest.approx(math.exp(0.2 + 4.30265 * 0.1 / math.sqrt(3)), rel=1e-5)
    assert found.p_value == pytest.approx(1 - 2 * math.sqrt(3) / math.sqrt(2 + 12))  # t = 2 sqrt(3)
    assert found.verdict == "unsure"


def test_pairing_removes_what_both_share():
    drift = [[t * (1 + 0.2 * k) for t in run] for k, run in enumerate(noisy(10, level=0.001))]
    slower = [[t * 1.05 for t in run] for run in drift]
    assert compare_runs(drift, slower).verdict == "slower"
    assert compare_runs(drift, slower, paired=False).verdict == "unsure"


def test_pairs_must_match():
    with pytest.raises(InputError, match="5 runs of A and 4 of B"):
        compare_runs(noisy(1), noisy(2)[:4])
    assert compare_runs(noisy(1), noisy(2)[:4], paired=False).verdict == "same"


def test_single_runs_are_marked():
    found = compare_runs(noisy(1, runs=1), noisy(2, runs=1, middle=1.1))
    assert (found.verdict, found.interval) == ("slower", "within-run")
    assert found.low <= found.ratio <= found.high
    assert found.p_value < 0.01
    assert compare_runs(noisy(1, runs=1), noisy(2)).interval == "within-run"


def test_single_samples_prove_nothing():
    found = compare_runs([[1.0]], [[3.0]])
    assert found.ratio == pytest.approx(3.0)
    assert (found.low, found.high, found.p_value) == (None, None, None)
    assert found.verdict == "unsure"


def test_the_same_numbers_are_the_same():
    found = compare_runs([[1.0, 1.0]] * 3, [[1.0, 1.0]] * 3)
    assert (found.ratio, found.p_value, found.verdict) == (1.0, 1.0, "same")


def test_benjamini_hochberg_by_hand():
    # limits k * 0.05 / 5: 0.01 0.02 0.03 0.04 0.05; the largest k that holds is 4
    assert control_false_discovery([0.5, 0.001, 0.039, 0.008, 0.035]) == [
        False, True, True, True, True,
    ]  # fmt: skip
    assert control_false_discovery([0.02, 0.04, 0.9]) == [False, False, False]
    assert control_false_discovery([]) == []


def test_many_comparisons_believe_less():
    def comparison(p_value, verdict):
        return Comparison(0.9, 0.8, 0.99, p_value, verdict, "between-runs", True)

    alone = [comparison(0.04, "faster")]
    assert verdicts(alone) == ["faster"]
    crowd = alone + [comparison(0.5, "unsure")] * 8 + [comparison(None, "same")]
    assert verdicts(crowd) == ["unsure"] * 9 + ["same"]

import math
import statistics
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import synthetic
from every import every
from steptime.analysis.comparison.verdict import compare_sides, control_false_discovery, verdicts
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.records import statistics as ours
from steptime.records.record import Quantity
from steptime.records.row import by_run
from steptime.records.statistics import estimates, two_sided_p, two_sided_t
from steptime.records.warmup import find_warm_up
from told import row_of

TIMES = st.lists(st.floats(1e-6, 10.0), min_size=2, max_size=30)
RUNS = st.lists(TIMES, min_size=1, max_size=6)


def estimate(runs):
    return SimpleNamespace(**ours.estimate(runs))


def summarize(runs, batch):
    """Return the row of a record with these runs, as the tables have it."""
    workload = replace(synthetic.workloads()[0], batch_per_replica=batch)
    number = tuple(at for at, run in enumerate(runs) for _ in run)
    step = Quantity(samples=tuple(t for run in runs for t in run), columns={"run": number})
    return row_of(replace(synthetic.measured(workload), quantities={"step_s": step}))


def compare_runs(a, b):
    """Return what `compare_sides` says of one pair."""
    sides = [estimates([runs]) | {"runs": np.array([float(len(runs))])} for runs in (a, b)]
    return SimpleNamespace(**{name: told[0] for name, told in compare_sides(*sides).items()})


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
    assert summary["examples_per_s"] == pytest.approx(10 / (7 / 3))
    # mean speed 35/6; squares of deviations 625/36, 25/36, 400/36; a third of 1050/36 is 9.7222
    assert summary["examples_uncertainty_per_s"] == pytest.approx(
        math.sqrt(1050 / 36 / 3) / math.sqrt(3)
    )
    assert summary["examples_jitter_per_s"] == pytest.approx(1.4826 * 2.5)  # deviations 5, 0, 2.5
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
    assert summary["step_s_low"] <= summary["step_s"] <= summary["step_s_high"]


# the interval


def test_several_runs_have_a_t_interval_over_their_medians():
    # medians e^-1, 1, e: mean of logarithms 0, standard error 1 / sqrt(3), t = 4.303 for 2
    runs = [[math.exp(x)] * 3 for x in (-1.0, 0.0, 1.0)]
    found = estimate(runs)
    assert found.value == pytest.approx(1.0)
    assert found.high == pytest.approx(math.exp(4.30265 / math.sqrt(3)), rel=1e-5)
    assert found.low == pytest.approx(math.exp(-4.30265 / math.sqrt(3)), rel=1e-5)
    assert found.steady is None  # three samples cannot tell


def test_one_run_says_that_it_is_one():
    found = estimate(noisy(1, runs=1))
    assert found.error is None
    assert found.low < found.value < found.high
    assert estimate(noisy(1, runs=1)) == found


def test_one_sample_has_no_interval():
    found = estimate([[2.0]])
    assert (found.value, found.low, found.high) == (2.0, None, None)
    summary = summarize([[2.0]], 8)
    assert (summary["step_s_low"], summary["step_s_high"], summary["examples_per_s"]) == (
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


@every("runs", [[], [[]], [[1.0], []]])
def test_no_samples_are_refused(runs):
    with pytest.raises(InputError, match="without samples"):
        estimate(runs)


@every("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_time_is_a_positive_number(wrong):
    with pytest.raises(InputError, match="run 1: a step time is a positive number"):
        estimate([[1.0, 1.0], [1.0, wrong]])


def test_columns_of_unequal_length_are_refused():
    with pytest.raises(InputError, match="3 samples, but 2 runs of samples"):
        by_run((1.0, 1.0, 1.0), (0, 0))


# warm-up


def test_a_slow_start_is_left_out_twice_over():
    found = find_warm_up([np.log([2.0] * 4 + [1.0] * 16)], [1])
    assert found.sample_counts.tolist() == [8]  # four slow samples, doubled
    assert found.steady == 1


def test_each_run_has_its_own_warm_up():
    runs = [np.log(r) for r in noisy(4, runs=4)]
    runs[2][:5] += 1.0
    found = find_warm_up(runs, [len(runs)])
    assert found.sample_counts[2] >= 10
    assert estimate([np.exp(r).tolist() for r in runs]).value == pytest.approx(1.0, rel=0.01)


def test_a_drift_has_no_steady_state_and_a_wider_interval():
    drifting = [[t * (2 - i / 20) for i, t in enumerate(run)] for run in noisy(5)]
    found = estimate(drifting)
    assert found.steady == 0
    assert found.low < 1.05  # where it would be after 19 samples
    warm = find_warm_up([np.log(run) for run in drifting], [len(drifting)])
    assert max(warm.sample_counts) == 15  # a quarter is kept


def test_runs_without_warm_up_are_steady():
    assert [estimate(noisy(seed)).steady for seed in range(20)].count(0) <= 2


# properties


@settings(deadline=None, max_examples=60)
@given(RUNS)
def test_the_value_lies_in_its_interval(runs):
    assume(len(runs) != 2)  # no interval
    found = estimate(runs)
    assert found.low <= found.value <= found.high


@settings(deadline=None, max_examples=60)
@given(RUNS, st.integers(-10, 10))
def test_other_units_change_nothing_else(runs, power):
    assume(len(runs) != 2)  # no interval
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


@every(
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
def test_the_four_words(factor, verdict):
    found = compare_runs(noisy(6), noisy(7, middle=factor))
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(factor, rel=0.01)


def test_too_much_noise_is_unsure():
    assert compare_runs(noisy(8, level=0.2), noisy(9, level=0.2)).verdict == "unsure"


def test_welchs_interval_by_hand():
    # logarithms of the medians 0, 0.1, 0.2 and 0.3, 0.5, 0.7: errors 0.1 and 0.2 over sqrt(3), so
    # 0.0167 / 0.000139 + ... gives (0.05 / 3)^2 / ((0.01 / 3)^2 / 2 + (0.04 / 3)^2 / 2) = 2.94
    a, b = ([[math.exp(x)] * 3 for x in side] for side in ((0.0, 0.1, 0.2), (0.3, 0.5, 0.7)))
    found, error = compare_runs(a, b), math.sqrt(0.05 / 3)
    assert found.ratio == pytest.approx(math.exp(0.4))
    assert found.high == pytest.approx(math.exp(0.4 + 4.30265 * error), rel=1e-5)  # t for 2
    assert found.p_value == pytest.approx(two_sided_p(0.4 / error, 2))
    assert found.verdict == "unsure"


def test_a_single_run_has_the_interval_of_both_sides():
    # MOVER: the ends of the logarithm are as far off as the sides' own, taken at right angles
    a, b = noisy(1, runs=1), noisy(2, runs=1, middle=1.1)
    one, other, found = estimate(a), estimate(b), compare_runs(a, b)
    down = math.hypot(math.log(other.value / other.low), math.log(one.high / one.value))
    assert found.low == pytest.approx(other.value / one.value * math.exp(-down))


def test_a_wide_side_makes_wide_runs_of_unequal_number():
    assert compare_runs(noisy(1), noisy(2)[:4]).verdict == "same"


def test_single_runs_have_a_verdict():
    found = compare_runs(noisy(1, runs=1), noisy(2, runs=1, middle=1.1))
    assert found.verdict == "slower"
    assert found.low <= found.ratio <= found.high
    assert found.p_value < 0.01


def test_single_samples_prove_nothing():
    found = compare_runs([[1.0]], [[3.0]])
    assert found.ratio == pytest.approx(3.0)
    assert np.isnan([found.low, found.high, found.p_value]).all()
    assert found.verdict == "unsure"


def test_the_same_numbers_are_the_same():
    found = compare_runs([[1.0, 1.0]] * 3, [[1.0, 1.0]] * 3)
    assert (found.ratio, found.p_value, found.verdict) == (1.0, 1.0, "same")


def test_benjamini_hochberg_by_hand():
    # limits k * 0.05 / 5: 0.01 0.02 0.03 0.04 0.05; the largest k that holds is 4
    assert control_false_discovery([0.5, 0.001, 0.039, 0.008, 0.035]).tolist() == [
        False, True, True, True, True,
    ]  # fmt: skip
    assert control_false_discovery([0.02, 0.04, 0.9]).tolist() == [False, False, False]
    assert control_false_discovery([]).tolist() == []


def test_many_comparisons_believe_less():
    def words(*told):
        ratio, low, high, p_value = np.array(told).T
        return verdicts(ratio, low, high, p_value).tolist()

    faster, unsure, same = (0.9, 0.8, 0.99, 0.04), (0.9, 0.8, 1.2, 0.5), (1, 0.99, 1.01, np.nan)
    assert words(faster) == ["faster"]
    assert words(faster, *[unsure] * 8, same) == ["unsure"] * 9 + ["same"]
    assert words((np.nan,) * 4) == [None]


# what the interval of one run is


def test_the_interval_of_a_run_misses_at_2_5_percent_on_either_side():
    # 100 samples, 1000 to 1099, of which neighbours are unlike: worth 100 independent ones
    found = estimate([[1000.0 + 43 * (i + 5) % 100 for i in range(100)]])
    # 100 times the quantiles 0.025 and 0.975 of Beta(50.5, 50.5), 0.4031 and 0.5969
    assert (found.low, found.high) == (pytest.approx(1040), pytest.approx(1059))


def test_samples_like_their_neighbours_are_worth_fewer():
    rng = np.random.default_rng(7)
    noise = [0.0]
    for _ in range(399):
        noise.append(0.7 * noise[-1] + rng.standard_normal())
    times = [1000.0 + value for value in noise]
    r = scipy.stats.spearmanr(times[1:], times[:-1]).statistic + 1 / len(times)
    worth = len(times) * (1 - r) / (1 + r)
    half = (worth + 1) / 2
    rank = int(len(times) * scipy.stats.beta.ppf(0.025, half, half))
    found = estimate([times])
    ordered = sorted(times)
    assert found.low == pytest.approx(ordered[rank], rel=1e-5)
    assert found.high == pytest.approx(ordered[len(times) - 1 - rank], rel=1e-5)
    assert 0.4 < r < 0.8  # so that it is worth a quarter of its number


def test_two_runs_have_no_interval_and_three_do():
    two = ours.estimate([[1.0, 1.1, 0.9], [2.0, 2.1, 1.9]])
    assert (two["low"], two["high"]) == (None, None)
    assert two["value"] == pytest.approx(2**0.5)  # the geometric mean of 1 and 2
    three = ours.estimate([[1.0, 1.1, 0.9], [2.0, 2.1, 1.9], [1.5, 1.6, 1.4]])
    assert three["low"] < three["value"] < three["high"]

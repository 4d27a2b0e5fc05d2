"""Is B better than A? The ratio of their numbers, its interval, and one of four words.

"faster" is the better value of any quantity, "slower" the worse; people read `screen_words`. Two
folders are judged by their runs (`judge_folders`): at most 5 % of comparisons without a change
have any alarm. Other pairs are compared by the intervals of their sides (`compare_sides`), and the
false discovery rate is controlled over them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steptime.analysis.comparison.gate import FALSE_ALARMS, Judgement, judge_runs
from steptime.records.row import ESTIMATE, is_higher_better
from steptime.records.statistics import MISS
from steptime.records.warmup import Floats

MARGIN = 0.02  # of the ratio, that counts as no difference
NORMAL_95 = 1.96  # standard errors to each side of a 95 % interval
MIN_REACH = 1e-12  # in place of 0, that nothing is divided by 0
SIDE_COLUMNS = (*ESTIMATE, "runs")
Side = Mapping[str, Floats]  # the columns of `SIDE_COLUMNS`, NaN where unknown
Flags = NDArray[np.bool_]


def screen_words(quantity: str) -> dict[str, str]:
    """Return the words for "faster" and "slower" on the screen: "better", "worse" for accuracy."""
    if quantity.endswith("_s"):
        return {"faster": "faster", "slower": "slower"}
    return {"faster": "better", "slower": "worse"}


def judge_folders(
    a: Floats,
    b: Floats,
    ratio: Floats,
    drift: Floats,
    is_step: Flags,
    quantity: str,
    margin: float,
    comparisons: int = 1,
) -> dict[str, NDArray[Any]]:
    """Return `ratio`, `low`, `high`, `p_value`, `verdict`, ... of the pairs of two folders.

    Steps and ops are two families, each with half of the false alarms, as they differ in noise.

    Args:
        a: logarithms of the medians of the runs [pairs, runs], NaN behind the last run.
        b: the same of the second folder.
        ratio: second / first, of the medians of all samples.
        drift: what both sides still changed by at the end of their runs, as a logarithm.
        is_step: whether each pair is of whole steps; else it is of an op.
        quantity: the quantity, which says what is worse.
        margin: share below which a change counts as none.
        comparisons: so many comparisons of equal size, one behind the other (`judge_runs`).

    Returns:
        One column a name. `smallest` is the smallest worsening that is found with 90 % power, as a
        share: 0.1 is 10 % more time, or a tenth less throughput. NaN where a side has a single run.
        `noise` is the standard deviation from run to run that the pair was judged with.
    """
    columns = {name: np.full(len(ratio), np.nan) for name in Judgement._fields}
    kind_masks = [is_kind for is_kind in (is_step, ~is_step) if is_kind.any()]
    # Steps and single ops are judged apart, since their noise differs.
    for is_kind in kind_masks:
        false_alarms = FALSE_ALARMS / len(kind_masks)
        judged = judge_runs(a[is_kind], b[is_kind], math.log1p(margin), false_alarms, comparisons)
        for name, column in columns.items():
            column[is_kind] = getattr(judged, name)
    # The interval of clipped means is widened to hold the ratio of plain medians.
    low = np.minimum(np.exp(columns["low"] - drift), ratio)
    high = np.maximum(np.exp(columns["high"] + drift), ratio)
    smallest = np.expm1(columns["smallest_change"])
    if is_higher_better(quantity):
        # Of a rate the worsening is a fall: -10 % has another logarithm than +10 %.
        smallest = -np.expm1(-columns["smallest_change"])
    is_changed = columns["is_changed"] == 1  # NaN: not judged
    words = _choose_words(columns["change"], low, high, is_changed, quantity, margin)
    words[np.isnan(ratio)] = None
    return {
        "ratio": ratio,
        "low": low,
        "high": high,
        "p_value": columns["p_value"],
        "verdict": words,
        "smallest_worsening": smallest,
        "noise": columns["noise"],
    }


def compare_sides(
    a: Side, b: Side, ratio: Floats | None = None, quantity: str = "step_s"
) -> dict[str, NDArray[Any]]:
    """Return `ratio` (B / A), `low`, `high`, `p_value` and `verdict` of pairs, a column each.

    "same" means that the whole interval lies between 1 / (1 + `MARGIN`) and 1 + `MARGIN`; "faster"
    and "slower" that it leaves out 1, and that the false discovery rate over all allows it. If both
    sides have several runs, the interval is Welch's, over the logarithms of the medians of the
    runs. With a single run on a side it is recovered from the intervals of the sides. If a side
    has no interval, there is none and the verdict is "unsure"; without a value it is None.

    Args:
        a: the columns of the sides A.
        b: the columns of the sides B.
        ratio: the ratios of plain medians, which the intervals are widened to hold.
        quantity: the quantity, which says whether a larger value is better.

    Source: MOVER, Donner and Zou 2012.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        log_ratio = np.log(b["value"]) - np.log(a["value"])
        drift = a["drift"] + b["drift"]
        by_runs = _compare_runs(a, b, log_ratio)
        by_intervals = _compare_intervals(a, b, log_ratio)
        has_runs = np.isfinite(by_runs.reach_up)  # several on both sides
        reach_down = np.where(has_runs, by_runs.reach_down, by_intervals.reach_down)
        reach_up = np.where(has_runs, by_runs.reach_up, by_intervals.reach_up)
        low = np.exp(log_ratio - reach_down - drift)
        high = np.exp(log_ratio + reach_up + drift)
        has_interval = np.isfinite(low + high)
        p_without_runs = np.where(has_interval, by_intervals.p_value, np.nan)
        p_value = np.where(has_runs, by_runs.p_value, p_without_runs)
        ratios = np.exp(log_ratio) if ratio is None else ratio
        low = np.minimum(low, ratios)
        high = np.maximum(high, ratios)
    return {
        "ratio": ratios,
        "low": low,
        "high": high,
        "p_value": p_value,
        "verdict": verdicts(ratios, low, high, p_value, quantity),
    }


class _Comparison(NamedTuple):
    """How far the interval of each log ratio reaches to both sides, and the p-value of no change.

    NaN where the sides do not have what the comparison needs.
    """

    reach_down: Floats
    reach_up: Floats
    p_value: Floats


def _compare_runs(a: Side, b: Side, log_ratio: Floats) -> _Comparison:
    """Return the interval and the test of Welch, of pairs with several runs on both sides."""
    from scipy.special import stdtr, stdtrit

    error, freedom = _find_welch_error(a, b)
    reach = -stdtrit(freedom, MISS / 2) * error
    p_of_error = 2 * stdtr(freedom, -np.abs(log_ratio) / error)
    p_without_noise = np.where(log_ratio == 0, 1.0, 0.0)  # runs that all agree have an error of 0
    return _Comparison(reach, reach, np.where(error > 0, p_of_error, p_without_noise))


def _compare_intervals(a: Side, b: Side, log_ratio: Floats) -> _Comparison:
    """Return the interval of a difference from the intervals of both sides (MOVER).

    MOVER is the method of variance estimates recovery: reaches add up as squares. B - A is lowest
    where B is at its low and A at its high end. The test is that of a normal distribution as wide.
    """
    from scipy.special import ndtr

    reach_down = np.hypot(_interval_reach(b, "low"), _interval_reach(a, "high"))
    reach_up = np.hypot(_interval_reach(b, "high"), _interval_reach(a, "low"))
    reach_to_equal = np.where(log_ratio > 0, reach_down, reach_up)
    sigmas = -np.abs(log_ratio) * NORMAL_95 / np.maximum(reach_to_equal, MIN_REACH)
    return _Comparison(reach_down, reach_up, 2 * ndtr(sigmas))


def verdicts(
    ratio: Floats, low: Floats, high: Floats, p_value: Floats, quantity: str = "step_s"
) -> NDArray[Any]:
    """Return the words on comparisons that are read together; None without a ratio."""
    complete_p_value = np.nan_to_num(p_value, nan=1.0)  # an unknown one is no evidence
    is_significant = control_false_discovery(complete_p_value)
    has_changed = is_significant & (ratio != 1)
    log_ratio = np.log(ratio)
    words = _choose_words(log_ratio, low, high, has_changed, quantity, MARGIN)
    words[np.isnan(ratio)] = None
    return words


def control_false_discovery(p_values: Sequence[float] | Floats) -> Flags:
    """Return the differences to believe, of which at most a share `MISS` is false.

    Source: Benjamini and Hochberg 1995.
    """
    p = np.asarray(p_values, float)
    ordered = np.sort(p)
    # Benjamini and Hochberg (1995): the k-th smallest of n p-values has the limit k / n * MISS. The
    # largest one below its limit is believed, and all smaller ones.
    rank_limits = MISS * np.arange(1, len(p) + 1) / max(len(p), 1)
    accepted = ordered[ordered <= rank_limits]
    if not len(accepted):
        return np.zeros(p.shape, bool)
    return np.asarray(p <= accepted[-1])


def _choose_words(
    change: Floats, low: Floats, high: Floats, is_changed: Flags, quantity: str, margin: float
) -> NDArray[Any]:
    """Return the word on each pair: "same" only where the interval lies within the margin."""
    words = np.full(len(change), "unsure", object)
    is_rate = is_higher_better(quantity)
    word_if_smaller = "slower" if is_rate else "faster"
    word_if_larger = "faster" if is_rate else "slower"
    # A word needs the whole interval on one side of 1.
    is_smaller = (change < 0) & (high < 1)
    is_larger = (change > 0) & (low > 1)
    is_within_margin = (low >= 1 / (1 + margin)) & (high <= 1 + margin)
    words[is_smaller & is_changed] = word_if_smaller
    words[is_larger & is_changed] = word_if_larger
    words[is_within_margin] = "same"  # even if it surely changed a little
    return words


def _interval_reach(side: Side, end: str) -> Floats:
    """Return the distance of an interval's end from its value, as a logarithm without the drift."""
    return np.asarray(np.abs(np.log(side[end] / side["value"])) - side["drift"])


def _find_welch_error(a: Side, b: Side) -> tuple[Floats, Floats]:
    """Return standard error and degrees of freedom, rounded down (Welch 1947); NaN without runs."""
    error = np.hypot(a["error"], b["error"])
    # Degrees of freedom by Welch and Satterthwaite, at least those of the side with fewer runs.
    spread = a["error"] ** 4 / (a["runs"] - 1) + b["error"] ** 4 / (b["runs"] - 1)
    min_freedom = np.minimum(a["runs"], b["runs"]) - 1
    welch_freedom = np.maximum(min_freedom, np.floor(error**4 / spread))
    freedom = np.where(spread > 0, welch_freedom, min_freedom)
    return error, freedom

"""Find where the level of a series changed, in series as machines make them.

Everything here is a natural logarithm of a time. A change is believed only if constant levels
explain the series better than a series without a change, whose values resemble their predecessors
(an autoregression of order 1); outliers are clipped first, and a level needs two values. So a
series that is correlated, has two speeds or long tails raises a false alarm in at most 5 % of
cases (`docs/gate-error-rates.md`).
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steptime.analysis.comparison.gate import FEW_CHANGE, MAX_SMALLEST
from steptime.analysis.comparison.run_noise import CLIP, NORMAL_TAIL, TAIL
from steptime.records.statistics import MISS, two_sided_t
from steptime.records.warmup import Floats

MIN_VALUES = 8  # that show how much values differ without a change
MIN_LEVEL = 2  # values of the newest level, and of all in a short series
MIN_INNER_LEVELS = {20: 3, 100: 4}  # by values: a second speed makes shorter levels by chance
MIN_FOR_NEWEST = 20  # values, with which the newest alone can be a change: 1 of 20 is the farthest
VALUES_PER_CHANGE = 8  # more changes would fit two speeds by chance
NEWEST_FARTHEST = 1.3  # times the farthest value before, which long tails seldom reach by chance
NEWEST_FAR = 3.6  # noise, beyond which the newest value alone is a change
WINDOW = 5  # values of the running median that outliers are clipped around
LOCAL_NOISE = 0.87  # standard deviation about the running median, for normal noise of 1
GAIN = 7.2  # log likelihood that a change must bring, with up to `GAIN_VALUES`
GAIN_VALUES = 30  # a longer series has more places for a change by chance
MAX_CORRELATION = 0.95
CORRELATIONS = 39  # of the grid: steps of 0.025
FEW_ALARMS = 0.02  # false alarms of the t-test where values are few
POWER_SIGMAS = 1.2816  # for 90 %
MIN_NOISE = 1e-9


class LevelChange(NamedTuple):
    """A change of level in a series.

    Attributes:
        level_start: index of the first value of the new level.
        size: logarithm of the change.
        low: low end of its 95 % interval.
        high: high end of its 95 % interval.
    """

    level_start: int
    size: float
    low: float
    high: float


class SeriesLevel(NamedTuple):
    """A level between two changes: its mean, and the standard error of this mean."""

    mean: float
    error: float


class SeriesGroup(NamedTuple):
    """Series that are judged together.

    Attributes:
        size: number of series.
        farthest: the farthest value of all series before the newest, over the noise of its series.
    """

    size: int = 1
    farthest: float = 0.0


SINGLE_SERIES = SeriesGroup()  # one series, judged by itself


def change_points(
    logs: Sequence[float],
    errors: Sequence[float],
    error_freedom: int,  # degrees of freedom of all `errors` together
    margin: float = 0.0,
    series_group: SeriesGroup = SINGLE_SERIES,
) -> list[LevelChange]:
    """Find the changes of the level of a series that are larger than `margin`.

    Args:
        logs: logarithms of the values, in the order of time.
        errors: the standard error of each value by itself, 0 if unknown.
        error_freedom: degrees of freedom of the errors together.
        margin: logarithm below which a change counts as none.
        series_group: the series that are judged together.
    """
    values = np.asarray(logs, float)  # a natural logarithm of a time each
    value_noise = _root_mean_square(errors)  # standard error of one value, from its own runs
    if len(values) < MIN_VALUES:
        # Machines switch between two speeds, and few values do not show whether this one does. So
        # only a change larger than the usual difference of such speeds (`FEW_CHANGE`) counts.
        min_change = max(FEW_CHANGE, margin)
        level_starts = _split_short_series(
            values, value_noise, error_freedom, min_change, series_group
        )
    else:
        level_starts = _split_long_series(values, value_noise, margin, series_group)
    return _describe_changes(values, level_starts, value_noise, error_freedom)


def find_levels(
    logs: Sequence[float], errors: Sequence[float], error_freedom: int, level_starts: Sequence[int]
) -> list[SeriesLevel]:
    """Return the levels between changes at `level_starts`."""
    values = np.asarray(logs, float)
    value_noise = _root_mean_square(errors)
    noise, _ = _estimate_noise(values, level_starts, value_noise, error_freedom)
    return [
        SeriesLevel(mean=float(part.mean()), error=noise / math.sqrt(len(part)))
        for part in _split_values(values, level_starts)
    ]


def smallest_change(
    logs: Sequence[float],
    errors: Sequence[float],
    error_freedom: int,
    level_starts: Sequence[int],
    margin: float,
    series_group: SeriesGroup = SINGLE_SERIES,
) -> float | None:
    """Return the smallest change of the newest values that is found with 90 % power.

    Of the newest value alone in a series of `MIN_FOR_NEWEST`, else of the newest two. None where
    nothing can be judged: single runs in two folders.
    """
    values = np.asarray(logs, float)
    n = len(values)
    value_noise = _root_mean_square(errors)
    noise, _ = _estimate_noise(values, level_starts, value_noise, error_freedom)
    degrees_of_freedom = n - 2 + error_freedom  # two means are fitted
    if n < 2 or degrees_of_freedom < 1:
        return None
    newest_error = noise * math.sqrt(n / (n - 1))  # of the newest value less the mean before it
    # `error` is the standard error of a change, `limit` the smallest change that the test believes.
    if n < MIN_VALUES:
        # A short series is tested by a t-test, with Bonferroni's share for each split and series.
        error = newest_error
        t = two_sided_t(FEW_ALARMS / (n - 1) / series_group.size, degrees_of_freedom)
        limit = max(FEW_CHANGE, t * error)
    elif n >= MIN_FOR_NEWEST:
        # A long series: the newest value must be the farthest one.
        error = newest_error
        limit = max(NEWEST_FAR, NEWEST_FARTHEST * series_group.farthest) * error
    else:
        # Between them, a level of the newest two values. A change raises the log likelihood by
        # gain = n / 2 * log(1 + (change / error)^2 / n), which is solved for the change.
        error = noise * math.sqrt(1 / MIN_LEVEL + 1 / (n - MIN_LEVEL))
        gain = _find_needed_gain(n, series_group.size)
        limit = error * math.sqrt(n * math.expm1(2 * gain / n))
    # 90 % power: the true change must be above the limit by 1.28 errors.
    return min(max(limit, margin) + POWER_SIGMAS * error, MAX_SMALLEST)


def find_series_group(all_logs: Sequence[Sequence[float]]) -> SeriesGroup:
    """Return the size of a group of series, and the farthest value before their newest ones."""
    farthest = 0.0
    for logs in all_logs:
        # Short series are not judged by their newest value alone.
        if len(logs) < MIN_FOR_NEWEST:
            continue
        # The newest value is the one that is judged: it must not widen the noise.
        before_newest = np.asarray(logs, float)[:-1]
        residuals = before_newest - _running_median(before_newest)
        noise = max(_robust_noise(residuals), MIN_NOISE)
        farthest = max(farthest, float(np.abs(residuals).max()) / noise)
    return SeriesGroup(size=len(all_logs), farthest=farthest)


def _root_mean_square(errors: Sequence[float]) -> float:
    return float(np.sqrt((np.asarray(errors, float) ** 2).mean())) if len(errors) else 0.0


class _Splits(NamedTuple):
    """Splits of values in two levels: mean after less mean before, and squares explained."""

    changes: Floats
    explained_squares: Floats


def _measure_splits(values: Floats, counts_before: NDArray[np.int64]) -> _Splits:
    """Return the splits of values behind the first `counts_before` of them."""
    n = len(values)
    counts_after = n - counts_before
    sums_before = np.cumsum(values)[counts_before - 1]
    sums_after = values.sum() - sums_before
    changes = sums_after / counts_after - sums_before / counts_before
    return _Splits(changes, explained_squares=changes**2 * counts_before * counts_after / n)


def _split_short_series(
    values: Floats,
    value_noise: float,
    error_freedom: int,
    min_change: float,
    series_group: SeriesGroup,
) -> list[int]:
    """Return the best split if a t-test believes it and it is larger than two speeds can be."""
    n = len(values)
    degrees_of_freedom = n - 2 + error_freedom  # two means are fitted
    if n < 2 or degrees_of_freedom < 1:
        return []
    # Each split after 1, 2, ... values; the one that explains most of the squares is tested.
    splits = _measure_splits(values, np.arange(1, n))
    best = int(np.argmax(splits.explained_squares))
    explained = splits.explained_squares[best]
    squares = ((values - values.mean()) ** 2).sum()
    unexplained = max(0.0, float(squares - explained))
    scatter = math.sqrt(unexplained / (n - 2)) if n > 2 else 0.0
    noise = max(scatter, value_noise, MIN_NOISE)
    # Bonferroni over the places of a split and over the series.
    false_alarms = FEW_ALARMS / (n - 1) / series_group.size
    t = two_sided_t(false_alarms, degrees_of_freedom)
    exceeds_noise = math.sqrt(explained) > t * noise
    is_large = abs(splits.changes[best]) > min_change
    return [best + 1] if exceeds_noise and is_large else []


def _split_long_series(
    values: Floats, value_noise: float, margin: float, series_group: SeriesGroup
) -> list[int]:
    """Return the starts of the new levels of a series that is long enough to show its noise."""
    level_starts = _find_likely_changes(_clip_outliers(values), value_noise, series_group.size)
    large_level_starts = _drop_small_changes(values, level_starts, margin)
    newest_level_start = large_level_starts[-1] if large_level_starts else 0
    newest_level = values[newest_level_start:]
    # The newest value alone is shorter than any level that is looked for, so it is tested apart.
    if _is_newest_changed(newest_level, value_noise, margin, series_group.farthest):
        return [*large_level_starts, len(values) - 1]
    return large_level_starts


def _find_likely_changes(clipped: Floats, value_noise: float, series_count: int) -> list[int]:
    """Return the changes of the largest gain in log likelihood over a series without a change."""
    n = len(clipped)
    min_squares = max(value_noise**2 * n, MIN_NOISE**2 * n)
    # The alternative to a change is correlated noise, which explains slow drifts as well.
    squares_without = max(_autoregressive_squares(clipped), min_squares)
    needed_gain = _find_needed_gain(n, series_count)
    level_starts: list[int] = []
    best_level_starts: list[int] = []
    largest_gain = 0.0
    # Greedy: the best split is added, then the number of changes with the largest gain is chosen.
    for change_count in range(1, n // VALUES_PER_CHANGE + 1):
        level_start = _find_best_split(clipped, level_starts)
        if level_start is None:
            break
        level_starts = sorted([*level_starts, level_start])
        parts = _split_values(clipped, level_starts)
        squares = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
        likelihood_gain = n / 2 * math.log(squares_without / max(squares, min_squares))
        gain = likelihood_gain - change_count * needed_gain
        if gain > largest_gain:
            largest_gain = gain
            best_level_starts = level_starts
    return best_level_starts


def _clip_outliers(values: Floats) -> Floats:
    """Return the series with values far from the running median clipped."""
    middle = _running_median(values)
    noise = _robust_noise(values - middle) / LOCAL_NOISE
    return np.clip(values, middle - CLIP * noise, middle + CLIP * noise)


def _running_median(values: Floats) -> Floats:
    padded = np.pad(values, WINDOW // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)
    return np.asarray(np.median(windows, axis=1))


def _robust_noise(residuals: Floats) -> float:
    """Return the larger of two spreads: of the 95 % quantile, and of clipped squares."""
    sizes = np.abs(residuals)
    tail = float(np.quantile(sizes, TAIL)) / NORMAL_TAIL
    clipped = np.minimum(sizes, CLIP * tail)
    return max(tail, float(np.sqrt((clipped**2).mean())))


def _autoregressive_squares(values: Floats) -> float:
    """Return the sum of squares of an autoregression of order 1, as white noise of its likelihood.

    The exact likelihood is maximised over the correlation (a grid) and the mean. Of its logarithm
    -n/2 log(squares) + 1/2 log(1 - r^2), the second term is moved into the squares.
    """
    n = len(values)
    # The model: value[i] - mean = r * (value[i - 1] - mean) + innovation[i]. Each correlation r of
    # a grid is a row. The mean is fitted by weighted least squares, since the first value has no
    # predecessor: its variance is 1 / (1 - r^2) times that of an innovation.
    r = np.linspace(0.0, MAX_CORRELATION, CORRELATIONS)[:, None]
    first_weight = 1 - r[:, 0] ** 2
    next_weight = 1 - r[:, 0]
    innovations = values[1:] - r * values[:-1]
    weight_sum = first_weight + (n - 1) * next_weight**2
    weighted_sum = first_weight * values[0] + next_weight * innovations.sum(axis=1)
    mean = (weighted_sum / weight_sum)[:, None]
    squares = ((innovations - (1 - r) * mean) ** 2).sum(axis=1)
    squares += first_weight * (values[0] - mean[:, 0]) ** 2
    # The log likelihood is -n / 2 * log(squares) + log(1 - r^2) / 2: the factor adds its last term.
    return float((squares * first_weight ** (-1 / n)).min())


def _find_needed_gain(value_count: int, series_count: int) -> float:
    """Return the gain of a change; a family of networks needs more, as Bonferroni's share does."""
    return GAIN + math.log(series_count) + max(0.0, math.log(value_count / GAIN_VALUES))


def _find_best_split(values: Floats, level_starts: Sequence[int]) -> int | None:
    """Return the split that explains most, with levels that are long enough."""
    # Longer series need longer inner levels.
    min_lengths = [length for count, length in MIN_INNER_LEVELS.items() if len(values) >= count]
    min_inner = max([MIN_LEVEL, *min_lengths])
    best_start = None
    largest_explained = 0.0
    for start, stop in pairwise([0, *level_starts, len(values)]):
        # The newest level may be shorter than the others: it may go on.
        min_after = MIN_LEVEL if stop == len(values) else min_inner
        counts_before = np.arange(min_inner, stop - start - min_after + 1)
        if not len(counts_before):
            continue
        explained = _measure_splits(values[start:stop], counts_before).explained_squares
        best = int(np.argmax(explained))
        if explained[best] > largest_explained:
            best_start = start + int(counts_before[best])
            largest_explained = float(explained[best])
    return best_start


def _drop_small_changes(values: Floats, level_starts: list[int], margin: float) -> list[int]:
    """Return the starts without those whose change is within the margin, the smallest first."""
    while level_starts:
        medians = [float(np.median(part)) for part in _split_values(values, level_starts)]
        sizes = [abs(after - before) for before, after in pairwise(medians)]
        smallest = int(np.argmin(sizes))
        if sizes[smallest] > margin:
            break
        # One at a time, since levels beside a dropped change are joined.
        level_starts = [
            level_start for index, level_start in enumerate(level_starts) if index != smallest
        ]
    return level_starts


def _is_newest_changed(
    level: Floats, value_noise: float, margin: float, group_farthest: float
) -> bool:
    """Whether the newest value is the farthest of its level, and beyond noise and margin."""
    if len(level) < MIN_FOR_NEWEST:
        return False
    *earlier, newest = level
    middle = np.median(earlier)
    residuals = np.array(earlier) - middle
    noise = max(_robust_noise(residuals), value_noise, MIN_NOISE)
    # Neither here nor in any other series was a value so far away without a change.
    farthest = max(float(np.abs(residuals).max()), group_farthest * noise)
    newest_distance = abs(float(newest - middle))
    return newest_distance > max(NEWEST_FAR * noise, NEWEST_FARTHEST * farthest, margin)


def _describe_changes(
    values: Floats, level_starts: Sequence[int], value_noise: float, error_freedom: int
) -> list[LevelChange]:
    """Return the size of each change with its 95 % interval."""
    noise, degrees_of_freedom = _estimate_noise(values, level_starts, value_noise, error_freedom)
    t = two_sided_t(MISS, max(1, degrees_of_freedom))
    changes = []
    neighbours = pairwise(_split_values(values, level_starts))
    for level_start, (before, after) in zip(level_starts, neighbours, strict=True):
        size = float(after.mean() - before.mean())
        error = noise * math.sqrt(1 / len(before) + 1 / len(after))
        half_width = t * error
        changes.append(
            LevelChange(
                level_start=level_start, size=size, low=size - half_width, high=size + half_width
            )
        )
    return changes


def _estimate_noise(
    values: Floats, level_starts: Sequence[int], value_noise: float, error_freedom: int
) -> tuple[float, int]:
    """Return the noise about the levels, and its degrees of freedom."""
    parts = _split_values(values, level_starts)
    spare_values = len(values) - len(parts)
    squares = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
    scatter = math.sqrt(squares / spare_values) if spare_values > 0 else 0.0
    return max(scatter, value_noise, MIN_NOISE), spare_values + error_freedom


def _split_values(values: Floats, level_starts: Sequence[int]) -> list[Floats]:
    return [values[start:stop] for start, stop in pairwise([0, *level_starts, len(values)])]

"""The end of warm-up in the samples of each run, found from the data by the MSER rule.

MSER (White 1997) leaves out as many first samples as make the standard error of the mean of the
others smallest. The number is doubled, because the rule stops where a decay disappears in the
noise: an exponential decay that is as small as the noise after k samples is as small again,
relative to that, after 2 k. The rule is applied to each run and to the mean profile of all runs, in
which noise is smaller; the later end counts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIN_SAMPLES = 8  # of a run in which warm-up can be told from noise


@dataclass(frozen=True)
class WarmUp:
    """The warm-up samples of each run, and whether each cell becomes steady.

    Attributes:
        sample_counts: number of first samples of each run that are warm-up.
        steady: of each cell 1, 0 if its runs still change in the later half of their samples, and
            NaN if there are too few samples to tell.
        drift: of each cell that is not steady the change of the logarithm of the time between the
            last two quarters of the samples, else 0.
    """

    sample_counts: NDArray[np.int64]
    steady: Floats
    drift: Floats


def middles(rows: Floats) -> Floats:
    """Return the median of each row; an eighth of the time of `numpy.median` for 20 values."""
    ordered = np.sort(rows)
    count = rows.shape[-1]
    lower_middle = ordered[..., (count - 1) // 2]
    upper_middle = ordered[..., count // 2]
    return np.asarray((lower_middle + upper_middle) / 2)


def by_length(runs: Sequence[Floats]) -> Iterator[tuple[NDArray[np.int64], Floats]]:
    """Yield the places of the runs of each length, and these runs as rows."""
    lengths = np.fromiter(map(len, runs), np.int64, len(runs))
    for length in np.unique(lengths):
        run_numbers = np.flatnonzero(lengths == length)
        samples = np.concatenate([runs[number] for number in run_numbers.tolist()])
        yield run_numbers, samples.reshape(len(run_numbers), length)


def find_warm_up(logs: Sequence[Floats], sizes: Iterable[int]) -> WarmUp:
    """Return the warm-up of cells.

    Args:
        logs: logarithms of the times of each run [samples].
        sizes: number of runs of each cell, in their order.
    """
    run_counts = np.fromiter(sizes, np.int64)
    sample_counts = np.fromiter(map(len, logs), np.int64, len(logs))
    first_runs = run_counts.cumsum() - run_counts
    run_ends = _find_warm_up_ends(logs)
    steady = np.full(len(run_counts), np.nan)
    drift = np.zeros(len(run_counts))
    profile_ends = np.zeros(len(logs), np.int64)  # the end of the cell's profile, for each run

    single_cells = np.flatnonzero(run_counts == 1)
    single_runs = first_runs[single_cells]
    steady[single_cells] = _judge_runs(run_ends[single_runs], sample_counts[single_runs])

    # Several runs are judged by their mean profile, which has less noise. A single run needs its
    # profile only for the drift, if it is not steady.
    needs_profile = (run_counts > 1) | (steady == 0)
    for cell in np.flatnonzero(needs_profile).tolist():
        runs = slice(first_runs[cell], first_runs[cell] + run_counts[cell])
        profile = _find_profile(logs[runs], run_ends[runs])
        if profile is None:
            continue
        profile_ends[runs] = profile.warm_up_end
        is_steady = profile.warm_up_end < len(profile.logs) // 2  # as in `_judge_runs`
        steady[cell] = is_steady
        if not is_steady:
            drift[cell] = _measure_drift(profile.logs)
    ends = np.maximum(profile_ends, run_ends)
    max_warm_up = sample_counts - sample_counts // 4  # at least a quarter of the samples is kept
    # Doubled, because the rule stops already where a decay disappears in the noise.
    warm_up_samples = np.minimum(2 * ends, max_warm_up)
    has_warm_up = sample_counts >= MIN_SAMPLES
    return WarmUp(
        sample_counts=np.where(has_warm_up, warm_up_samples, 0), steady=steady, drift=drift
    )


def _judge_runs(run_ends: NDArray[np.int64], sample_counts: NDArray[np.int64]) -> Floats:
    """Return 1 for each run that is steady, 0 for others, NaN for one of too few samples."""
    # MSER leaves out at most half of the samples: an end there means that they still change.
    is_steady = run_ends < sample_counts // 2
    return np.where(sample_counts < MIN_SAMPLES, np.nan, is_steady)


class _Profile(NamedTuple):
    """The usual run of a cell [samples], and the number of its first samples that are warm-up."""

    logs: Floats
    warm_up_end: int


def _find_profile(logs: Sequence[Floats], run_ends: NDArray[np.int64]) -> _Profile | None:
    """Return the mean profile of the runs of a cell, None if all have too few samples to tell."""
    long_runs = [run_logs for run_logs in logs if len(run_logs) >= MIN_SAMPLES]
    if not long_runs:
        return None
    if len(long_runs) == 1:  # a run alone is its own profile; the ends of short runs are 0
        return _Profile(long_runs[0], int(run_ends.max()))
    profile_logs = _mean_profile(long_runs)
    return _Profile(profile_logs, int(_find_warm_up_ends([profile_logs])[0]))


def _mean_profile(logs: Sequence[Floats]) -> Floats:
    """Return the mean over runs, each relative to the median of its later half [samples]."""
    sample_count = min(map(len, logs))
    relative_logs = np.array([run_logs[:sample_count] for run_logs in logs])  # [runs, samples]
    later_halves = relative_logs[:, sample_count // 2 :]
    relative_logs -= middles(later_halves)[:, np.newaxis]
    # Sorted, so that the order of runs does not change the sum.
    return np.asarray(np.sort(relative_logs, axis=0).mean(axis=0))


def _find_warm_up_ends(logs: Sequence[Floats]) -> NDArray[np.int64]:
    """Return the number of first samples of each run to leave out by MSER, at most half of them.

    It is 0 for a run of fewer samples than `MIN_SAMPLES`.
    """
    ends = np.zeros(len(logs), np.int64)
    for runs, run_logs in by_length(logs):
        sample_count = run_logs.shape[1]
        if sample_count < MIN_SAMPLES:  # no warm-up can be told from noise
            continue
        centred = run_logs - middles(run_logs)[:, np.newaxis]
        # MSER: leave out as many first samples as make the standard error of the mean smallest.
        # Cumulative sums from the back are sums over the samples that remain.
        backwards = centred[:, ::-1]
        remaining = np.arange(1, sample_count + 1)
        square_sums = (backwards**2).cumsum(axis=1)
        # Sum of (x - mean)^2 = sum of x^2 - (sum of x)^2 / n.
        squared_deviations = square_sums - backwards.cumsum(axis=1) ** 2 / remaining
        squared_error_of_mean = squared_deviations / remaining**2
        criterion = squared_error_of_mean[:, ::-1]  # [runs, samples left out]
        max_left_out = sample_count // 2
        ends[runs] = criterion[:, : max_left_out + 1].argmin(axis=1)
    return ends


def _measure_drift(profile: Floats) -> float:
    quarter = len(profile) // 4
    last_quarter = profile[-quarter:]
    quarter_before = profile[-2 * quarter : -quarter]
    return float(abs(middles(last_quarter) - middles(quarter_before)))

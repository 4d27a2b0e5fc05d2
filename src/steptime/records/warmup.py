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
    run_ends = _find_warm_up_ends(logs)
    steady = _judge_single_runs(run_ends, sample_counts, run_counts)
    drift = np.zeros(len(run_counts))
    profile_ends = np.zeros(len(logs), np.int64)  # the end of the cell's profile, for each run
    first_runs = run_counts.cumsum() - run_counts
    # Several runs are judged by their mean profile, which has less noise. A single run needs its
    # profile only for the drift, if it is not steady.
    needs_profile = (run_counts > 1) | (steady == 0)
    for cell in np.flatnonzero(needs_profile).tolist():
        runs = slice(first_runs[cell], first_runs[cell] + run_counts[cell])
        profile = _find_profile(logs[runs], run_ends[runs])
        if profile is not None:
            profile_ends[runs] = profile.warm_up_end
            steady[cell] = profile.is_steady
            drift[cell] = 0.0 if profile.is_steady else _measure_drift(profile.logs)
    warm_up_counts = _double_ends(np.maximum(profile_ends, run_ends), sample_counts)
    return WarmUp(sample_counts=warm_up_counts, steady=steady, drift=drift)


def _double_ends(ends: NDArray[np.int64], sample_counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the warm-up samples of each run: twice those that MSER leaves out.

    Doubled, because the rule stops already where a decay disappears in the noise. At least a
    quarter of the samples is kept; a run of too few samples has no warm-up.
    """
    max_warm_up = sample_counts - sample_counts // 4
    return np.where(sample_counts >= MIN_SAMPLES, np.minimum(2 * ends, max_warm_up), 0)


def _judge_single_runs(
    run_ends: NDArray[np.int64], sample_counts: NDArray[np.int64], run_counts: NDArray[np.int64]
) -> Floats:
    """Return 1 for each cell of one steady run, 0 for a run that still changes, else NaN.

    NaN is for a run of too few samples to tell, and for a cell of several runs.
    """
    # MSER leaves out at most half of the samples: an end there means that they still change.
    is_steady = run_ends < sample_counts // 2
    steady_of_run = np.where(sample_counts < MIN_SAMPLES, np.nan, is_steady)
    steady = np.full(len(run_counts), np.nan)
    single_cells = np.flatnonzero(run_counts == 1)
    first_runs = run_counts.cumsum() - run_counts
    steady[single_cells] = steady_of_run[first_runs[single_cells]]
    return steady


class _Profile(NamedTuple):
    """The usual run of a cell [samples], and the number of its first samples that are warm-up."""

    logs: Floats
    warm_up_end: int

    @property
    def is_steady(self) -> bool:
        """Whether the later half of the samples does not change, as in `_judge_single_runs`."""
        return self.warm_up_end < len(self.logs) // 2


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
        if sample_count >= MIN_SAMPLES:  # in fewer, no warm-up can be told from noise
            max_left_out = sample_count // 2
            squared_errors = _squared_errors_of_mean(run_logs)
            ends[runs] = squared_errors[:, : max_left_out + 1].argmin(axis=1)
    return ends


def _squared_errors_of_mean(logs: Floats) -> Floats:
    """Return the MSER criterion of runs of one length [runs, samples left out].

    It is the squared standard error of the mean of the samples that remain.
    """
    centred = logs - middles(logs)[:, np.newaxis]
    # Cumulative sums from the back are sums over the samples that remain.
    backwards = centred[:, ::-1]
    remaining = np.arange(1, logs.shape[1] + 1)
    sums = backwards.cumsum(axis=1)
    square_sums = (backwards**2).cumsum(axis=1)
    # Sum of (x - mean)^2 = sum of x^2 - (sum of x)^2 / n.
    squared_deviations = square_sums - sums**2 / remaining
    squared_errors = squared_deviations / remaining**2
    return np.asarray(squared_errors[:, ::-1])


def _measure_drift(profile: Floats) -> float:
    """Return the change of the logarithm of the time between the last two quarters of a run."""
    quarter = len(profile) // 4
    last_quarter = profile[-quarter:]
    quarter_before = profile[-2 * quarter : -quarter]
    return float(abs(middles(last_quarter) - middles(quarter_before)))

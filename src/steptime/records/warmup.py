"""Where warm-up ends in the samples of each run, and whether it ends at all.

The end is found from the data by the MSER rule (White 1997): leave out as many first samples as
make the standard error of the mean of the rest smallest. What is left out is doubled, because the
rule stops where a decay disappears in the noise: an exponential decay that is as small as the
noise after k samples is as small again, relative to that, after 2 k. The rule is applied to each
run and to the mean profile of all runs, in which noise is smaller; the later end counts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST = 8  # samples of a run in which warm-up can be told from noise


@dataclass(frozen=True)
class WarmUp:
    """How many samples of each run are warm-up, and whether each cell becomes steady.

    `steady` [cells] is 1, 0 if the runs still change where half of the samples are left, and NaN if
    there are too few samples to tell. `drift` is then the change of the logarithm of the time
    between the last two quarters of the samples, else 0.
    """

    samples: NDArray[np.int64]
    steady: Floats
    drift: Floats


def middles(rows: Floats) -> Floats:
    """Return the median of each row; an eighth of the time of `numpy.median` for 20 values."""
    ordered = np.sort(rows)
    n = rows.shape[-1]
    return np.asarray((ordered[..., (n - 1) // 2] + ordered[..., n // 2]) / 2)


def by_length(runs: Sequence[Floats]) -> Iterator[tuple[NDArray[np.int64], Floats]]:
    """Yield the places of the runs of each length, and these runs as rows."""
    lengths = np.fromiter(map(len, runs), np.int64, len(runs))
    for length in np.unique(lengths):
        places = np.flatnonzero(lengths == length)
        every = np.concatenate([runs[place] for place in places.tolist()])
        yield places, every.reshape(len(places), length)


def find_warm_up(logs: Sequence[Floats], sizes: Iterable[int]) -> WarmUp:
    """Return the warm-up of cells: of runs [samples] of logarithms of times, so many for each."""
    number = np.fromiter(sizes, np.int64)
    lengths = np.fromiter(map(len, logs), np.int64, len(logs))
    starts = number.cumsum() - number
    steady = np.full(len(number), np.nan)
    drift = np.zeros(len(number))
    own = _ends(logs)
    shared = np.zeros(len(logs), np.int64)
    alone = np.flatnonzero(number == 1)
    of = starts[alone]
    steady[alone] = np.where(lengths[of] < LEAST, np.nan, own[of] < lengths[of] // 2)
    for cell in np.flatnonzero((number > 1) | (steady == 0)).tolist():
        runs = slice(starts[cell], starts[cell] + number[cell])
        long = [run for run in logs[runs] if len(run) >= LEAST]
        if not long:
            continue
        profile = long[0] if len(long) == 1 else _profile(long)
        end = int(own[runs].max()) if len(long) == 1 else int(_ends([profile])[0])
        shared[runs] = end
        steady[cell] = end < len(profile) // 2
        if not steady[cell]:
            drift[cell] = _drift(profile)
    counts = np.minimum(2 * np.maximum(shared, own), lengths - lengths // 4)
    return WarmUp(np.where(lengths >= LEAST, counts, 0), steady, drift)


def _profile(logs: Sequence[Floats]) -> Floats:
    """Return the mean over runs, each relative to the median of its later half [samples]."""
    common = min(map(len, logs))
    runs = np.array([run[:common] for run in logs])
    runs -= middles(runs[:, common // 2 :])[:, np.newaxis]
    return np.asarray(np.sort(runs, axis=0).mean(axis=0))  # sorted: the order of runs is no matter


def _ends(logs: Sequence[Floats]) -> NDArray[np.int64]:
    """Return how many of the first samples of each to leave out, at most half (White 1997, MSER).

    That is 0 where there are fewer than `LEAST`.
    """
    ends = np.zeros(len(logs), np.int64)
    for places, rows in by_length(logs):
        n = rows.shape[1]
        if n < LEAST:
            continue
        centred = (rows - middles(rows)[:, np.newaxis])[:, ::-1]
        counts = np.arange(1, n + 1)
        squares = (centred**2).cumsum(axis=1) - centred.cumsum(axis=1) ** 2 / counts
        criterion = (squares / counts**2)[:, ::-1]  # [runs, samples left out]
        ends[places] = criterion[:, : n // 2 + 1].argmin(axis=1)
    return ends


def _drift(profile: Floats) -> float:
    quarter = len(profile) // 4
    return float(abs(middles(profile[-quarter:]) - middles(profile[-2 * quarter : -quarter])))

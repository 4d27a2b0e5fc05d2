"""Where warm-up ends in the samples of each run, and whether it ends at all.

The end is found from the data by the MSER rule (White 1997): leave out as many first samples as
make the standard error of the mean of the rest smallest. What is left out is doubled, because the
rule stops where a decay disappears in the noise: an exponential decay that is as small as the
noise after k samples is as small again, relative to that, after 2 k. The rule is applied to each
run and to the mean profile of all runs, in which noise is smaller; the later end counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST = 8  # samples of a run in which warm-up can be told from noise


@dataclass(frozen=True)
class WarmUp:
    """How many samples of each run are warm-up.

    `steady` is False if the runs still change where half of the samples are left, None if there
    are too few samples to tell. `drift` is then the change of the logarithm of the time between
    the last two quarters of the samples, else 0.
    """

    samples: tuple[int, ...]
    steady: bool | None
    drift: float


def middle(values: Floats) -> float:
    """Give the median; an eighth of the time that `numpy.median` takes for 20 values."""
    ordered = np.sort(values)
    n = len(ordered)
    return float(ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def find_warm_up(logs: Sequence[Floats]) -> WarmUp:
    """Give the warm-up of runs [samples] of logarithms of step times."""
    profile = _profile([run for run in logs if len(run) >= LEAST])
    shared = _end(profile) if len(profile) else 0
    counts = []
    for run in logs:
        end = max(shared, _end(run)) if len(run) >= LEAST else 0
        counts.append(min(2 * end, len(run) - len(run) // 4))
    if not len(profile):
        return WarmUp(tuple(counts), None, 0.0)
    steady = shared < len(profile) // 2
    return WarmUp(tuple(counts), steady, 0.0 if steady else _drift(profile))


def _profile(logs: Sequence[Floats]) -> Floats:
    """Give the mean over runs, each relative to the median of its later half [samples]."""
    if not logs:
        return np.empty(0)
    common = min(map(len, logs))
    rows = [run[:common] - middle(run[common // 2 : common]) for run in logs]
    return np.asarray(np.sort(rows, axis=0).mean(axis=0))  # sorted: the order of runs is no matter


def _end(log: Floats) -> int:
    """Give how many of the first samples to leave out, at most half (White 1997, MSER)."""
    n = len(log)
    centred = (log - middle(log))[::-1]
    counts = np.arange(1, n + 1)
    squares = np.cumsum(centred**2) - np.cumsum(centred) ** 2 / counts
    criterion = (squares / counts**2)[::-1]  # [samples left out]
    return int(np.argmin(criterion[: n // 2 + 1]))


def _drift(profile: Floats) -> float:
    quarter = len(profile) // 4
    return abs(middle(profile[-quarter:]) - middle(profile[-2 * quarter : -quarter]))

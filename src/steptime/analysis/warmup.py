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
    """Return the median; an eighth of the time that `numpy.median` takes for 20 values."""
    return float(middles(values))


def middles(rows: Floats) -> Floats:
    """Return the median of each row."""
    ordered, n = np.sort(rows), rows.shape[-1]
    return np.asarray((ordered[..., (n - 1) // 2] + ordered[..., n // 2]) / 2)


def find_warm_up(logs: Sequence[Floats]) -> WarmUp:
    """Return the warm-up of runs [samples] of logarithms of step times."""
    long = [run for run in logs if len(run) >= LEAST]
    profile = _profile(long)
    ends = _ends([*long, profile] if long else [])
    shared = ends.pop() if ends else 0
    own = iter(ends)
    counts = [
        min(2 * max(shared, next(own)), len(run) - len(run) // 4) if len(run) >= LEAST else 0
        for run in logs
    ]
    if not long:
        return WarmUp(tuple(counts), None, 0.0)
    steady = shared < len(profile) // 2
    return WarmUp(tuple(counts), steady, 0.0 if steady else _drift(profile))


def _profile(logs: Sequence[Floats]) -> Floats:
    """Return the mean over runs, each relative to the median of its later half [samples]."""
    if not logs:
        return np.empty(0)
    common = min(map(len, logs))
    runs = np.array([run[:common] for run in logs])
    runs -= middles(runs[:, common // 2 :])[:, np.newaxis]
    return np.asarray(np.sort(runs, axis=0).mean(axis=0))  # sorted: the order of runs is no matter


def _ends(logs: Sequence[Floats]) -> list[int]:
    """Return how many of the first samples of each to leave out, at most half (White 1997, MSER).

    Runs of one length are looked at together.
    """
    ends = [0] * len(logs)
    lengths: dict[int, list[int]] = {}
    for index, log in enumerate(logs):
        lengths.setdefault(len(log), []).append(index)
    for n, places in lengths.items():
        rows = np.array([logs[index] for index in places])
        centred = (rows - middles(rows)[:, np.newaxis])[:, ::-1]
        counts = np.arange(1, n + 1)
        squares = (centred**2).cumsum(axis=1) - centred.cumsum(axis=1) ** 2 / counts
        criterion = (squares / counts**2)[:, ::-1]  # [runs, samples left out]
        for index, end in zip(places, criterion[:, : n // 2 + 1].argmin(axis=1), strict=True):
            ends[index] = int(end)
    return ends


def _drift(profile: Floats) -> float:
    quarter = len(profile) // 4
    return abs(middle(profile[-quarter:]) - middle(profile[-2 * quarter : -quarter]))

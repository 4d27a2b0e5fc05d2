"""Ratios of measured and predicted numbers, and their errors and means."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.records.row import Row
from steptime.records.warmup import Floats


def geometric_mean(ratios: Floats | list[float]) -> float | None:
    """Return the mean in which twice and half make 1; None without a ratio."""
    return math.exp(math.fsum(np.log(ratios)) / len(ratios)) if len(ratios) else None


def relative_errors(ratios: Floats) -> Floats:
    """Return the relative errors of predictions, |predicted / measured - 1|."""
    return np.asarray(np.abs(1 / ratios - 1))


def farness(ratio: Any) -> Any:
    """Return the distance of ratios from 1, as a logarithm: half is as far as twice."""
    return np.abs(np.log(ratio))


def farthest(ratios: Floats, limit: int | None = None) -> NDArray[np.int64]:
    """Return the places of at most `limit` ratios, the farthest from 1 first.

    Of equally far ratios the first comes first.
    """
    distances = farness(ratios)
    indices = np.arange(len(ratios))
    # Faster than sorting all: only the `limit` farthest are sorted, and those that tie with the
    # last of them, among which the first one wins.
    if limit is not None and 0 < limit < len(ratios):
        indices = np.flatnonzero(distances >= np.partition(distances, -limit)[-limit])
    return indices[np.argsort(-distances[indices], kind="stable")][:limit]


def accuracy(ratios: Floats) -> Row:
    """Return the errors of many predictions together, None where there is none."""
    numbers: Row = {
        "pairs": len(ratios),
        "median_error": None,
        "geometric_mean_ratio": geometric_mean(ratios),
        "within_factor_2": None,
    }
    if not len(ratios):
        return numbers
    return numbers | {
        "median_error": float(np.median(relative_errors(ratios))),
        "within_factor_2": float(((ratios >= 0.5) & (ratios <= 2)).mean()),
    }

"""Ratios of numbers that stand side by side, and what many of them amount to.

That of a prediction is measured / predicted.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.records.row import Row
from steptime.records.warmup import Floats

FARNESS = "abs(ln(ratio))"  # `farness` in SQL


def geometric_mean(ratios: Floats | list[float]) -> float | None:
    """Return the mean in which twice and half make 1; None of nothing."""
    return math.exp(math.fsum(np.log(ratios)) / len(ratios)) if len(ratios) else None


def relative_errors(ratios: Floats) -> Floats:
    """Return how far predictions are off: |predicted / measured - 1|."""
    return np.asarray(np.abs(1 / ratios - 1))


def farness(ratio: Any) -> Any:
    """Return how far a ratio, or each of many, is from 1: half is as far as twice."""
    return np.abs(np.log(ratio))


def farthest(ratios: Floats, most: int | None = None) -> NDArray[np.int64]:
    """Return the places of ratios, the farthest from 1 first."""
    return np.argsort(-farness(ratios), kind="stable")[:most]


def accuracy(ratios: Floats) -> Row:
    """Return what many predictions are judged by, None where there is none."""
    known = len(ratios) > 0
    return {
        "pairs": len(ratios),
        "median_error": float(np.median(relative_errors(ratios))) if known else None,
        "geometric_mean_ratio": geometric_mean(ratios),
        "within_factor_2": float(((ratios >= 0.5) & (ratios <= 2)).mean()) if known else None,
    }

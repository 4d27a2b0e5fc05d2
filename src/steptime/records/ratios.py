"""Ratios of two sides, and their means; the ratio of a prediction is measured / predicted."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.records.row import Row
from steptime.records.warmup import Floats

FARNESS = "abs(ln(ratio))"  # `farness` in SQL


def geometric_mean(ratios: Floats | list[float]) -> float | None:
    """Return the geometric mean; None without a ratio."""
    return math.exp(math.fsum(np.log(ratios)) / len(ratios)) if len(ratios) else None


def relative_errors(ratios: Floats) -> Floats:
    """Return the relative errors of predictions: |predicted / measured - 1|."""
    return np.asarray(np.abs(1 / ratios - 1))


def farness(ratio: Any) -> Any:
    """Return the distance of ratios from 1, |ln ratio|: half is as far as twice."""
    return np.abs(np.log(ratio))


def farthest(ratios: Floats, limit: int | None = None) -> NDArray[np.int64]:
    """Return the places of ratios, the farthest from 1 first, at most `limit` of them."""
    return np.argsort(-farness(ratios), kind="stable")[:limit]


def accuracy(ratios: Floats) -> Row:
    """Return the errors of predictions by name; None for an error of no prediction."""
    has_ratios = len(ratios) > 0
    is_near = (ratios >= 0.5) & (ratios <= 2)
    return {
        "pairs": len(ratios),
        "median_error": float(np.median(relative_errors(ratios))) if has_ratios else None,
        "geometric_mean_ratio": geometric_mean(ratios),
        "within_factor_2": float(is_near.mean()) if has_ratios else None,
    }

"""The choice of cases to fit, and of the point to measure next.

Of a table, cases of all kinds and sizes are drawn. On a machine the point is measured next after
which predictions are expected to be surest. For that predictions are treated as linear in the logs
of the constants, whose uncertainty is a covariance matrix in units of their spreads: at first the
identity, since priors are independent. A measured row has the slopes of `fit.log_slopes` and the
noise `fit.SIGMA`.
"""

import random
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import log
from operator import itemgetter

import numpy as np

from steptime.calibration.cases import Case
from steptime.calibration.fit import SIGMA
from steptime.prediction.prices import Floats
from steptime.records.row import group_by

MIN_RANGE = 1e-9  # of the logs of sizes, against division by 0


def update_covariance(covariance: Floats, slopes: Floats) -> Floats:
    """Return the covariance of the constants after rows of these slopes were measured.

    This is the update of a Kalman filter: one constant and one row of slope `SIGMA` halve the
    variance.

    Args:
        covariance: the covariance before, as [constants, constants].
        slopes: the slopes of the new rows, as [rows, constants].
    """
    # C - C S' (S C S' + sigma^2 I)^-1 S C: the posterior of a linear model with normal noise.
    projected = slopes @ covariance
    noise = SIGMA**2 * np.eye(len(slopes))
    gain = np.linalg.solve(slopes @ projected.T + noise, projected)
    posterior: Floats = covariance - projected.T @ gain
    return posterior


def mean_variance(covariance: Floats, target_slopes: Floats) -> float:
    """Return the mean variance of ln(predicted) over the targets, as [targets, constants]."""
    total = np.einsum("ij,jk,ik->", target_slopes, covariance, target_slopes)
    return float(total / len(target_slopes))


def choose_point(
    slopes_by_point: Mapping[str, Floats], target_slopes: Floats, covariance: Floats
) -> str:
    """Return the point whose rows leave the smallest mean variance of the targets.

    Of equal points it is the first by name.
    """
    variances = {
        name: mean_variance(update_covariance(covariance, slopes), target_slopes)
        for name, slopes in slopes_by_point.items()
    }
    return min(variances, key=lambda name: (variances[name], name))


def choose_cases(cases: Sequence[Case], points: int | None, seed: int = 0) -> list[Case]:
    """Draw cases of all kinds and sizes, as many of each kind.

    Kinds with few cases give all they have, and what is left is shared by the others.

    Args:
        cases: the cases to draw from.
        points: the number of cases, None for all.
        seed: of the draw of a case within each part of the range.
    """
    if points is None or len(cases) <= points:
        return list(cases)
    draw = random.Random(seed)  # noqa: S311  # a draw of rows keeps no secret
    cases_by_kind = group_by(cases, lambda case: case.kind)
    rarest_first = sorted(cases_by_kind, key=lambda kind: (len(cases_by_kind[kind]), kind))
    remaining_points = points
    choice: list[Case] = []
    for index, kind in enumerate(rarest_first):
        kind_cases = cases_by_kind[kind]
        remaining_kinds = len(rarest_first) - index
        even_share = remaining_points // remaining_kinds
        kind_point_count = min(len(kind_cases), even_share)
        remaining_points -= kind_point_count
        indices = draw_evenly(_positions_of(kind_cases), kind_point_count, draw)
        choice += [kind_cases[i] for i in indices]
    return choice


def _positions_of(cases: Sequence[Case]) -> list[float]:
    """Return the positions of the cases of a kind, over which a draw is spread evenly.

    Whole steps are at their ranks by size: a table has many networks of the size that people use,
    and few that are far larger or smaller with residuals of their own. Ops are at the mean of rank
    and log of the size.
    """
    log_sizes = np.array([_log_work(case) for case in cases])
    ascending = np.argsort(log_sizes, kind="stable")
    positions = np.argsort(ascending) / len(log_sizes)  # the ranks of the cases
    if cases[0].is_single_op:
        log_range = max(np.ptp(log_sizes), MIN_RANGE)
        positions += (log_sizes - log_sizes.min()) / log_range
    return list(positions.tolist())


def draw_evenly(positions: Sequence[float], count: int, draw: random.Random) -> list[int]:
    """Draw indices of positions that lie evenly between the smallest and the largest.

    The range has `count` parts of equal width; the position nearest to a random point of each part
    is drawn, without replacement.
    """
    low, high = min(positions), max(positions)
    candidates = sorted((position, index) for index, position in enumerate(positions))
    indices = []
    for part in range(count):
        target = low + (high - low) * (part + draw.random()) / count
        right = bisect_left(candidates, target, key=itemgetter(0))
        # The nearest position is the one before or the one behind the target.
        neighbours = candidates[max(0, right - 1) : right + 1]
        nearest = min(neighbours, key=lambda candidate: abs(candidate[0] - target))
        candidates.remove(nearest)
        _position, index = nearest
        indices.append(index)
    return indices


def _log_work(case: Case) -> float:
    """Return the log of the bytes and of the arithmetic, at 10 FLOP a byte."""
    return log(1 + sum(kernel.bytes + kernel.flop / 10 for kernel in case.kernels))

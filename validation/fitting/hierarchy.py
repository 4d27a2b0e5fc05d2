"""Constants of many devices at once: each device has its own near those of all.

A constant of a device is that of all times exp(own), `own` lying around 0 as Student's t does,
with a spread that is fitted too. So a machine with a slow host moves its own constant, and not the
others, nor much that of all. Least is the sum of squares of ln(measured / predicted) / `SIGMA`, as
far as rows are not far off (soft L1), and of own / spread; the spread of a constant is that of the
devices that tell it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from steptime.calibration.columns import Columns
from steptime.calibration.fit import SIGMA, constants_of, log_residuals
from steptime.hardware.constants import Constant
from steptime.prediction.prices import Floats

ROUNDS = 15
STEP = 1e-3  # of ln(constant), by which slopes are found
LONGEST = 0.5  # a round moves ln(constant) by no more
LOOSE = 1.0  # spread of a constant of all around its value before
FIRST, LEAST, MOST = 0.2, 0.08, 0.7  # spreads between devices: at the start; few cannot show less


def hierarchical(
    sets: Sequence[Columns],
    priors: Mapping[str, Constant],
    free: Sequence[str],
    weights: Sequence[Floats],
    shared: Sequence[str] = (),
    held: Mapping[str, float] | None = None,
    freedom: int = 1,
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the constants of all devices, and how far those of single ones spread around them.

    Constants in `shared` are the same on all devices: their spread is 0. `held` are the spreads of
    constants of all that are not `LOOSE`. What is a device's own has `freedom` degrees: 1
    where some are far off, as hosts are.
    """
    start, size = constants_of(priors), len(free)
    common, own = np.zeros(size), np.zeros((len(sets), size))
    loose = np.array([(held or {}).get(name, LOOSE) for name in free])
    varies = np.array([name not in shared for name in free])
    spread = np.where(varies, FIRST, 1e-4)
    for _ in range(ROUNDS):
        whole: Floats = np.zeros((size * (len(sets) + 1),) * 2)
        pull: Floats = np.zeros(len(whole))
        told: Floats = np.zeros((len(sets), size))
        for i, one in enumerate(sets):
            off, slope = _slopes(one, start, free, common + own[i])
            weight = weights[i] / SIGMA**2 / np.sqrt(1 + (off / SIGMA) ** 2)
            square, side = slope.T @ (weight[:, None] * slope), slope.T @ (weight * off)
            told[i] = np.diag(square)
            here = slice(size * (i + 1), size * (i + 2))
            whole[:size, :size] += square
            whole[:size, here], whole[here, :size] = square, square
            hold = (freedom + 1) / (freedom * spread**2 + own[i] ** 2)
            whole[here, here] = square + np.diag(hold)
            pull[:size] += side
            pull[here] = side - hold * own[i]
        whole[:size, :size] += np.diag(1 / loose**2)
        pull[:size] -= common / loose**2
        moved = np.clip(np.linalg.solve(whole, pull), -LONGEST, LONGEST)
        common = common + moved[:size]
        own = own + moved[size:].reshape(own.shape)
        unsure = np.diag(np.linalg.inv(whole))[size:].reshape(own.shape)
        known = told > 1  # a device without such rows says nothing
        count = np.maximum(known.sum(axis=0), 1)
        hold = (freedom + 1) / (freedom + (own / spread) ** 2)
        new = np.sqrt((known * hold * (own**2 + unsure)).sum(axis=0) / count)
        spread = np.where(varies & known.any(axis=0), np.clip(new, LEAST, MOST), spread)
    values = start | {
        name: start[name] * float(np.exp(step)) for name, step in zip(free, common, strict=True)
    }
    return values, {
        name: float(one) if own_one else 0.0
        for name, one, own_one in zip(free, spread, varies, strict=True)
    }


def _slopes(
    columns: Columns, start: Mapping[str, float], free: Sequence[str], at: Floats
) -> tuple[Floats, Floats]:
    """Return ln(measured / predicted), and how ln(predicted) changes with each ln(constant)."""
    here = dict(start) | {
        name: start[name] * np.exp(step) for name, step in zip(free, at, strict=True)
    }
    base = log_residuals(columns, here)
    slope: Floats = np.empty((len(base), len(free)))
    for i, name in enumerate(free):
        slope[:, i] = (
            base - log_residuals(columns, here | {name: here[name] * np.exp(STEP)})
        ) / STEP
    return base, slope

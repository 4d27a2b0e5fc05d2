"""The most probable constants, given rows that were measured and how far constants vary.

Least is the sum of the squares of ln(measured / predicted) / `SIGMA`, as far as a row is not far
off (soft L1: outliers pull little), and of ln(constant / prior) / spread.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from scipy.optimize import least_squares

from steptime.calibration.columns import Columns, Floats
from steptime.core.constants import Constant

SIGMA = 0.2  # of the log of one row: what the forms leave unexplained


def constants_of(priors: Mapping[str, Constant]) -> dict[str, float]:
    """Return the values of priors."""
    return {name: one.value for name, one in priors.items()}


def logs(columns: Columns, constants: Mapping[str, float]) -> Floats:
    """Return ln(measured / predicted) of each case."""
    found: Floats = np.log(columns.seconds / columns.predicted(constants))
    return found


def fitted(
    sets: Sequence[Columns],
    priors: Mapping[str, Constant],
    free: Collection[str] | None = None,
    weights: Sequence[Floats] | None = None,
) -> dict[str, float]:
    """Return all constants, those in `free` fitted to the cases of one device or of several.

    `free` are the names that may move, by default those whose prior has a spread. `weights` are of
    each case of each set, 1 if left out.
    """
    start = constants_of(priors)
    names = [name for name in (priors if free is None else free) if priors[name].spread > 0]
    scale = np.array([priors[name].spread for name in names])

    def at(steps: Floats) -> dict[str, float]:
        moved = np.exp(steps * scale)
        return start | {name: start[name] * m for name, m in zip(names, moved, strict=True)}

    def residuals(steps: Floats) -> Floats:
        constants = at(steps)
        rows = []
        for i, columns in enumerate(sets):
            one = logs(columns, constants) / SIGMA
            if weights is not None:
                one = one * np.sqrt(weights[i])
            rows.append(np.sign(one) * np.sqrt(2 * (np.sqrt(1 + one**2) - 1)))  # soft L1
        found: Floats = np.concatenate([*rows, steps])
        return found

    if not names:
        return start
    return at(least_squares(residuals, np.zeros(len(names)), diff_step=1e-3).x)

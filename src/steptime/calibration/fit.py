"""The most probable constants, given rows that were measured and how far constants vary.

The fit minimises the sum of the squares of ln(measured / predicted) / `SIGMA`, with the soft L1
loss so that outliers pull little, and of ln(constant / prior) / spread.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

from steptime.hardware.constants import Constant
from steptime.prediction.prices import Floats
from steptime.records.row import group_by

SIGMA = 0.2  # standard deviation of ln(measured / predicted) of a row that the forms leave open
TOLERANCE = 1e-4  # a fit ends when a round changes constants and loss by a smaller share
STEP = 1e-3  # of a constant, in spreads: the finite difference of its slope


class FittedRows(Protocol):
    """Measured rows whose time can be predicted under any constants."""

    @property
    def seconds(self) -> Floats:
        """The measured seconds of each row."""

    def predict_s(self, constants: Mapping[str, float], /) -> Floats:
        """Return the predicted seconds of each row."""


def constants_of(priors: Mapping[str, Constant]) -> dict[str, float]:
    """Return the values of priors."""
    return {name: prior.value for name, prior in priors.items()}


def log_residuals(rows: FittedRows, constants: Mapping[str, float]) -> Floats:
    """Return ln(measured / predicted) of each row."""
    residuals: Floats = np.log(rows.seconds / rows.predict_s(constants))
    return residuals


def log_slopes(
    rows: FittedRows,
    priors: Mapping[str, Constant],
    constants: Mapping[str, float],
    names: Sequence[str],
) -> Floats:
    """Return the derivatives of ln(predicted) by the logs of constants, as [rows, names].

    The unit of a constant is its spread: a slope of 1 means that ln(predicted) grows by `spread`
    if the constant grows by the factor exp(spread).
    """
    residuals = log_residuals(rows, constants)
    slopes: Floats = np.empty((len(residuals), len(names)))
    for column, name in enumerate(names):
        # A finite difference in units of the constant's spread.
        increased = constants[name] * np.exp(STEP * priors[name].spread)
        increased_residuals = log_residuals(rows, {**constants, name: increased})
        # Of ln(predicted), which falls in a residual: ln(measured) - ln(predicted).
        slopes[:, column] = (residuals - increased_residuals) / STEP
    return slopes


def influential_constants(
    row_sets: Sequence[FittedRows], priors: Mapping[str, Constant]
) -> list[str]:
    """Return the names of the constants that may vary and that change a prediction."""
    # No spread: the constant is known.
    names = [name for name, prior in priors.items() if prior.spread > 0]
    start = constants_of(priors)
    # Of each set of rows, the steepest slope by each constant: 0 if no row depends on it.
    max_slopes = [np.abs(log_slopes(rows, priors, start, names)).max(axis=0) for rows in row_sets]
    return [
        name
        for column, name in enumerate(names)
        if max(slopes[column] for slopes in max_slopes) > 0
    ]


def fit_constants(
    row_sets: Sequence[FittedRows],
    priors: Mapping[str, Constant],
    free: Collection[str] | None = None,
    sigma: float = SIGMA,
) -> dict[str, float]:
    """Return all constants, those in `free` fitted to the rows of one device or of several.

    Args:
        row_sets: the measured rows of each device.
        priors: the prior of each constant.
        free: names of the constants to fit, None for all that change a prediction; a constant
            whose prior has no spread is never fitted.
        sigma: standard deviation of ln(measured / predicted) of a row.
    """
    start = constants_of(priors)
    candidates = influential_constants(row_sets, priors) if free is None else free
    names = [name for name in candidates if priors[name].spread > 0]
    spreads = np.array([priors[name].spread for name in names])

    def move_constants(steps: Floats) -> dict[str, float]:
        factors = dict(zip(names, np.exp(steps * spreads), strict=True))
        return start | {name: start[name] * factor for name, factor in factors.items()}

    def compute_residuals(steps: Floats) -> Floats:
        constants = move_constants(steps)
        scaled = np.concatenate([log_residuals(rows, constants) / sigma for rows in row_sets])
        # Soft L1: its square is the loss, quadratic for small and linear for large residuals, so
        # that outliers count little. The steps themselves are the residuals of the priors.
        soft_l1 = np.sign(scaled) * np.sqrt(2 * (np.sqrt(1 + scaled**2) - 1))
        residuals: Floats = np.concatenate([soft_l1, steps])
        return residuals

    if not names:
        return start
    from scipy.optimize import least_squares  # 0.5 s, which an evaluation does not need

    solution = least_squares(
        compute_residuals, np.zeros(len(names)), ftol=TOLERANCE, xtol=TOLERANCE, diff_step=STEP
    )
    return move_constants(solution.x)


def leave_out_residuals(
    rows: FittedRows,
    priors: Mapping[str, Constant],
    constants: Mapping[str, float],
    sigma: float = SIGMA,
    families: Sequence[str] = (),
) -> Floats:
    """Return ln(measured / predicted) of each row as if its family had not been fitted.

    No fit is repeated. A row of leverage h (its diagonal element of the hat matrix of the ridge
    regression, weighted as soft L1 weights) has 1 / (1 - h) times its residual when it is left
    out; this is exact where predictions are linear in the logs of the constants. No row gets a
    larger residual than the largest under the priors or the fit, since the linear model does not
    hold beyond that.

    Args:
        rows: the measured rows.
        priors: the prior of each constant.
        constants: constants that were fitted to all rows.
        sigma: standard deviation of ln(measured / predicted) of a row.
        families: the family of each row; rows of one family are left out together, rows of the
            family "" one by one.
    """
    residuals = log_residuals(rows, constants)
    names = influential_constants([rows], priors)
    # Nothing was fitted, so that nothing changes without a row.
    if not names:
        return residuals
    slopes = log_slopes(rows, priors, constants, names) / sigma
    # Weights of the soft L1 loss at the fit.
    weights = 1 / np.sqrt(1 + (residuals / sigma) ** 2)
    weighted_slopes = weights[:, None] * slopes
    # Ridge regression: the identity is the precision of the priors, in spreads.
    covariance = np.linalg.inv(slopes.T @ weighted_slopes + np.eye(len(names)))
    hat = slopes @ covariance @ weighted_slopes.T
    # Residuals of each family in closed form, without a fit that leaves it out.
    left_out = np.empty(len(residuals))
    single_rows = [""] * len(residuals)  # by convention each row of no family is left out alone
    for indices in indices_by_family(families or single_rows):
        block = np.eye(len(indices)) - hat[np.ix_(indices, indices)]
        left_out[indices] = np.linalg.solve(block, residuals[indices])
    # The linear model does not hold beyond residuals that occur.
    limit = np.abs([residuals, log_residuals(rows, constants_of(priors))]).max()
    return np.clip(left_out, -limit, limit)


def indices_by_family(families: Sequence[str]) -> list[list[int]]:
    """Return the indices of the rows of each family; a row of the family "" is its own group."""
    groups = group_by(range(len(families)), lambda index: families[index] or index)
    return list(groups.values())

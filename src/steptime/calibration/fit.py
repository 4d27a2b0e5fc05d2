"""The most probable constants, given rows that were measured and how far constants vary.

Least is the sum of the squares of ln(measured / predicted) / `SIGMA`, as far as a row is not far
off (soft L1: outliers pull little), and of ln(constant / prior) / spread.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
from scipy.optimize import least_squares

from steptime.hardware.constants import Constant
from steptime.prediction.kernels import Floats
from steptime.records.row import grouped

SIGMA = 0.2  # of the log of one row: what the forms leave unexplained
NEAR = 1e-4  # a fit ends when a round changes no more than this share
STEP = 1e-3  # of a constant, in spreads, by which slopes are found


class FittedRows(Protocol):
    """Cases: the seconds that they took, and those that are predicted under constants."""

    @property
    def seconds(self) -> Floats:
        """Seconds that each took."""

    def predicted(self, constants: Mapping[str, float], /) -> Floats:
        """Return the seconds of each."""


def constants_of(priors: Mapping[str, Constant]) -> dict[str, float]:
    """Return the values of priors."""
    return {name: one.value for name, one in priors.items()}


def logs(columns: FittedRows, constants: Mapping[str, float]) -> Floats:
    """Return ln(measured / predicted) of each case."""
    found: Floats = np.log(columns.seconds / columns.predicted(constants))
    return found


def slopes(
    columns: FittedRows,
    priors: Mapping[str, Constant],
    constants: Mapping[str, float],
    names: Sequence[str],
) -> Floats:
    """Return by how much ln(predicted) of each case changes with each constant [cases, names].

    The unit of a constant is its spread: 1 is a constant that is larger by exp(spread).
    """
    base = logs(columns, constants)
    found: Floats = np.empty((len(base), len(names)))
    for i, name in enumerate(names):
        moved = dict(constants) | {name: constants[name] * np.exp(STEP * priors[name].spread)}
        found[:, i] = (base - logs(columns, moved)) / STEP
    return found


def told_by(sets: Sequence[FittedRows], priors: Mapping[str, Constant]) -> list[str]:
    """Return the names of the constants that may vary and that change what is predicted."""
    names = [name for name, one in priors.items() if one.spread > 0]
    start = constants_of(priors)
    felt = [np.abs(slopes(one, priors, start, names)).max(axis=0) for one in sets]
    return [name for i, name in enumerate(names) if max(one[i] for one in felt) > 0]


def fitted(
    sets: Sequence[FittedRows],
    priors: Mapping[str, Constant],
    free: Collection[str] | None = None,
    sigma: float = SIGMA,
) -> dict[str, float]:
    """Return all constants, those in `free` fitted to the cases of one device or of several.

    `free` are the names that may move, by default those whose prior has a spread and that the cases
    tell; `sigma` is of the log of a row.
    """
    start = constants_of(priors)
    allowed = told_by(sets, priors) if free is None else free
    names = [name for name in allowed if priors[name].spread > 0]
    scale = np.array([priors[name].spread for name in names])

    def at(steps: Floats) -> dict[str, float]:
        moved = np.exp(steps * scale)
        return start | {name: start[name] * m for name, m in zip(names, moved, strict=True)}

    def residuals(steps: Floats) -> Floats:
        constants = at(steps)
        off = np.concatenate([logs(columns, constants) / sigma for columns in sets])
        rows = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off**2) - 1))  # soft L1
        found: Floats = np.concatenate([rows, steps])
        return found

    if not names:
        return start
    near = {"ftol": NEAR, "xtol": NEAR, "diff_step": STEP}
    return at(least_squares(residuals, np.zeros(len(names)), **near).x)


def left_out(
    columns: FittedRows,
    priors: Mapping[str, Constant],
    constants: Mapping[str, float],
    sigma: float = SIGMA,
    families: Sequence[str] = (),
) -> Floats:
    """Return ln(measured / predicted) of each case as if its family had not been fitted.

    `constants` are those fitted to all of `columns`. A case of which the fit takes up the share h
    is 1 / (1 - h) times as far off when it is left out: exact where predictions are linear in the
    logs of the constants (the hat matrix of ridge regression, weighted as soft L1 weights). Cases
    of one of the `families` are left out together; those of none, "", one by one. None is farther
    off than the farthest of all is under the priors or the fit: no line holds beyond that.
    """
    off = logs(columns, constants)
    names = told_by([columns], priors)
    if not names:
        return off
    slope = slopes(columns, priors, constants, names) / sigma
    weight = 1 / np.sqrt(1 + (off / sigma) ** 2)
    inverse = np.linalg.inv(slope.T @ (weight[:, None] * slope) + np.eye(len(names)))
    share = slope @ inverse @ (weight[:, None] * slope).T
    found = np.empty(len(off))
    for own in together(families or [""] * len(off)):
        found[own] = np.linalg.solve(np.eye(len(own)) - share[np.ix_(own, own)], off[own])
    most = np.abs([off, logs(columns, constants_of(priors))]).max()
    return np.clip(found, -most, most)


def together(families: Sequence[str]) -> list[list[int]]:
    """Return the places of the cases of each family, and of each case of none, ""."""
    return [*grouped(range(len(families)), lambda i: families[i] or i).values()]

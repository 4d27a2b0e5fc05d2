"""Which point to measure next: the one that is expected to make predictions surest.

Predictions are taken as linear in the logs of the constants. What is not known of these is a
covariance, in spreads: at first that of the priors, 1 and independent. A row tells about them what
`fit.slopes` says, to `fit.SIGMA`.
"""

from collections.abc import Mapping

import numpy as np

from steptime.calibration.fit import SIGMA
from steptime.prediction.kernels import Floats


def after(covariance: Floats, rows: Floats) -> Floats:
    """Return what is not known once rows of these slopes [rows, constants] were measured.

    One constant, one row of slope 1 that is known as well as the prior: the variance halves.
    """
    known = rows @ covariance
    gain = np.linalg.solve(rows @ known.T + SIGMA**2 * np.eye(len(rows)), known)
    found: Floats = covariance - known.T @ gain
    return found


def uncertainty(covariance: Floats, asked: Floats) -> float:
    """Return the mean variance of ln(predicted) over what is asked for [cases, constants]."""
    return float(np.einsum("ij,jk,ik->", asked, covariance, asked) / len(asked))


def best(points: Mapping[str, Floats], asked: Floats, covariance: Floats) -> str:
    """Return the point whose rows lower the mean variance of what is asked for most."""
    left = {name: uncertainty(after(covariance, rows), asked) for name, rows in points.items()}
    return min(left, key=lambda name: (left[name], name))

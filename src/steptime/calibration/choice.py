"""The point to measure next: the one after which predictions are expected to be surest.

Predictions are treated as linear in the logs of the constants, whose uncertainty is a covariance
matrix in units of their spreads: at first the identity, since priors are independent. A measured
row has the slopes of `fit.log_slopes` and the noise `fit.SIGMA`.
"""

from collections.abc import Mapping

import numpy as np

from steptime.calibration.fit import SIGMA
from steptime.prediction.prices import Floats


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

"""A Gaussian process of the residuals that a device's constants leave, learnt from measured cases.

It models ln(measured / predicted) of matrix products by their sizes, and of steps behind a host by
the seconds of host and device: similar cases have similar residuals. Far from all measured cases
it is 0.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from steptime.calibration.columns import Columns, product_similarity
from steptime.calibration.fit import indices_by_family, log_residuals
from steptime.prediction.host import step_similarity
from steptime.prediction.prices import Floats

MIN_ROWS = 10  # products, or steps, below which nothing is learnt
SPREAD = 0.2  # prior standard deviation of the residual that similar cases share
STEP_NOISE = 0.1  # of the residual of one step alone; judged with SPREAD on three data sets
PRODUCT_NOISE = 0.15  # of one product; judged on five devices, each by the others
DEGREES_OF_FREEDOM = 4  # of Student's t noise: outliers count little
ROUNDS = 3  # of reweighting for that noise
MAX_RATIO = 10  # of a residual left out to one that is fitted

WeightRows = list[list[float]]  # sizes of a measured case, and its weight


class _Posterior(NamedTuple):
    """The fitted process: the weight of each case, and its residual when it is left out."""

    weights: Floats
    left_out: Floats


def learn_residuals(
    columns: Columns, constants: Mapping[str, float], left_out: Floats
) -> tuple[dict[str, dict[str, WeightRows] | WeightRows], Floats]:
    """Fit the process, and return the tables of a calibration and the residuals left out.

    The tables are `products` by kind and type, and `steps`; a table of too few rows is absent.

    Args:
        columns: the measured cases of one device.
        constants: constants that were fitted to them.
        left_out: ln(measured / predicted) of each case as if the constants had not been fitted to
            its family. The residuals that are returned leave families out of the process, too.
    """
    residuals = log_residuals(columns, constants)
    # The process is fitted to the residuals of constants that saw all families. What it leaves of
    # a family is then scaled to constants that did not see that family.
    left_out_ratios = _left_out_ratios(left_out, residuals)
    posterior_residuals = left_out.copy()  # of a case that is no product and no step as they are
    tables: dict[str, dict[str, WeightRows] | WeightRows] = {}
    product_indices, sensitivity = columns.find_product_cases(constants)
    if len(product_indices) >= MIN_ROWS:
        tables["products"], product_residuals = _learn_products(
            columns, product_indices, sensitivity, residuals
        )
        posterior_residuals[product_indices] = product_residuals * left_out_ratios[product_indices]
    step_indices, host_s, device_s = columns.find_host_steps(constants)
    if len(step_indices) >= MIN_ROWS:
        families = [columns.families[index] for index in step_indices]
        tables["steps"], step_residuals = _learn_steps(
            host_s, device_s, residuals[step_indices], families
        )
        posterior_residuals[step_indices] = step_residuals * left_out_ratios[step_indices]
    return tables, posterior_residuals


def _left_out_ratios(left_out: Floats, residuals: Floats) -> Floats:
    """Return the ratio of each residual left out to the one of constants fitted to all families."""
    no_residual = np.ones(len(residuals))  # 1 where a case has no residual to compare with
    ratios = np.divide(left_out, residuals, out=no_residual, where=residuals != 0)
    # A case may have hardly any residual by chance, and then a ratio without meaning.
    return ratios.clip(-MAX_RATIO, MAX_RATIO)


def _learn_steps(
    host_s: Floats, device_s: Floats, residuals: Floats, families: Sequence[str]
) -> tuple[WeightRows, Floats]:
    """Return the weights of steps by the seconds of host and device, and residuals left out."""
    # Steps are similar if host and device take similar seconds: [steps, steps].
    similarity = step_similarity(host_s[:, None], device_s[:, None], host_s, device_s)
    posterior = _fit_process(SPREAD**2 * similarity, residuals, STEP_NOISE, families)
    weight_rows = np.column_stack([host_s, device_s, SPREAD**2 * posterior.weights])
    return _round_rows(weight_rows), posterior.left_out


def _learn_products(
    columns: Columns, indices: Sequence[int], sensitivity: Floats, residuals: Floats
) -> tuple[dict[str, WeightRows], Floats]:
    """Return the weights of products by kind and type, and their residuals left out."""
    kernels = [columns.cases[index].kernels[0] for index in indices]
    kinds = np.array([f"{kernel.kind} {kernel.dtype}" for kernel in kernels])
    sizes = np.array([kernel.products[0] for kernel in kernels], dtype=float).T
    first_sizes = sizes[:, :, None]
    similarity = product_similarity(*first_sizes, *sizes)  # of each pair of products
    has_equal_kinds = kinds[:, None] == kinds
    # `sensitivity` is the share of a case's time that follows its product; products of other kinds
    # or types share nothing.
    covariance = SPREAD**2 * similarity * np.outer(sensitivity, sensitivity) * has_equal_kinds
    families = [columns.families[index] for index in indices]
    posterior = _fit_process(covariance, residuals[indices], PRODUCT_NOISE, families)
    weights = SPREAD**2 * sensitivity * posterior.weights
    weight_rows = np.column_stack([sizes.T, weights])
    tables = {str(kind): _round_rows(weight_rows[kinds == kind]) for kind in np.unique(kinds)}
    return tables, posterior.left_out


def _fit_process(
    covariance: Floats, residuals: Floats, noise: float, families: Sequence[str]
) -> _Posterior:
    """Fit a Gaussian process with Student's t noise by reweighting.

    Cases of one family are left out together, as in `fit.leave_out_residuals`.
    """
    # The noise is Student's t. Reweighting: a large residual gets a larger variance next round.
    variances = np.full(len(residuals), noise**2)
    for _ in range(ROUNDS):
        precision = np.linalg.inv(covariance + np.diag(variances))
        weights = precision @ residuals
        # `residuals - covariance @ weights` is what the process leaves of each case.
        scaled_residuals = (residuals - covariance @ weights) / noise
        variances = noise**2 * (DEGREES_OF_FREEDOM + scaled_residuals**2) / (DEGREES_OF_FREEDOM + 1)
    left_out = np.empty(len(weights))
    for indices in indices_by_family(families):
        # The leave-one-out formula of Gaussian processes, for a block of cases at once.
        block = precision[np.ix_(indices, indices)]
        left_out[indices] = np.linalg.solve(block, weights[indices])
    return _Posterior(weights, left_out)


def _round_rows(weight_rows: Floats) -> WeightRows:
    """Return rows with four significant digits."""
    return [[float(f"{number:.4g}") for number in row] for row in weight_rows]

"""Regressions of a number on hyperparameters, with what says how far they may be believed."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from steptime.records.statistics import MISS, SEED, two_sided_t
from steptime.records.warmup import Floats

DRAWS = 2000  # of the bootstrap
BLOCKS = 500  # of rows, that it draws from
MAX_SINGLE_ROWS = 2000  # up to which it draws from rows instead of blocks
FOLDS = 5
MAX_FOLDED_ROWS = 20_000  # of cross-validation
RIDGE = 1.0  # on standardised weights, of winners that a plane tells apart
FLAT = 1e-9  # of the largest number: a deviation that is of rounding
MIN_VARIANCE_SHARE = 1e-6  # share of a column's variance, below which it is of other columns
MIN_EIGENVALUE = MIN_VARIANCE_SHARE**2  # of correlations: below, columns depend on each other
MIN_SEPARATION = 1e-6  # of rows from a plane: below, it is rounding of the solver
MIN_NEWTON_STEP = 1e-6  # of standardised weights: with a smaller one they have converged
MIN_COEFFICIENT = 1e-4  # of a column that another is a combination of
MIN_SOUND_SHARE = 0.5  # of draws: with fewer the others tell nothing of the ends
SMALLEST_VARIANCE = 1e-300  # in place of 0, that nothing is divided by 0
MAX_NEWTON_STEPS = 100
MAX_LOG_ODDS = 500.0  # whose exponential is a finite number
MIN_EXPECTED_COUNT = 1  # of a cell: below, the chi-square distribution does not hold
Ranks = Any  # whole numbers, rows x columns: the place of each level among its column's


class RegressionFit(NamedTuple):
    """A regression of standardised columns.

    Attributes:
        weight: weight of each column.
        r2: share of the variance that the columns explain.
        low: low ends of the 95 % intervals of weights; None if they cannot be bootstrapped.
        high: high ends.
        r2_low: low end of the 95 % interval of `r2`.
        r2_high: high end of the 95 % interval of `r2`.
    """

    weight: Floats
    r2: float
    low: Floats | None = None
    high: Floats | None = None
    r2_low: float | None = None
    r2_high: float | None = None


def standardise(values: Floats, reference_rows: Any = slice(None)) -> Floats:
    """Return z-scores by mean and deviation of `reference_rows`; 0 where these are equal."""
    offsets = values - values[reference_rows].mean(axis=0)
    spread = np.sqrt((offsets[reference_rows] ** 2).mean(axis=0))
    varies = spread > FLAT * np.abs(values[reference_rows]).max(axis=0)
    if not varies.all():  # a column without a spread becomes 0 everywhere
        offsets = np.where(varies, offsets, 0)
        spread = np.where(varies, spread, 1)
    return np.asarray(offsets / spread)


def make_terms(z: Floats, order: int) -> tuple[Floats, list[list[int]]]:
    """Return the terms of a regression, in order 2 squares and products, too, and their columns."""
    column_count = z.shape[1]
    terms = [[column] for column in range(column_count)]
    if order == 2:
        terms += [[i, j] for i in range(column_count) for j in range(i, column_count)]
    values = [z[:, term].prod(axis=1) for term in terms]
    return np.stack(values, axis=1), terms


def find_independent(x: Floats) -> tuple[list[int], dict[int, list[int]]]:
    """Return the columns that are no combination of those before, and the parts of the others."""
    z = standardise(x)
    correlation = z.T @ z / len(z)
    independent: list[int] = []
    combinations: dict[int, list[int]] = {}
    # Each column is regressed on the independent columns before it.
    for column in range(x.shape[1]):
        independent_correlation = correlation[np.ix_(independent, independent)]
        column_correlation = correlation[independent, column]
        coefficients = np.linalg.solve(independent_correlation, column_correlation)
        # What the columns before do not explain of this one's variance.
        unexplained_share = correlation[column, column] - column_correlation @ coefficients
        if unexplained_share >= MIN_VARIANCE_SHARE:
            independent.append(column)
            continue
        needed_columns = np.flatnonzero(np.abs(coefficients) > MIN_COEFFICIENT)
        combinations[column] = [independent[index] for index in needed_columns]
    return independent, combinations


def fit_columns(x: Floats, y: Floats, draws: int = 0) -> RegressionFit:
    """Return standardised weights on independent columns and R2, with bootstrapped 95 % ends.

    Every draw is standardised anew. Ends are missing where half of the draws lack a column.
    """
    table = np.column_stack([np.ones(len(y)), standardise(x), standardise(y)])
    # A regression needs only sums of products of columns. So a bootstrap draw adds the sums of the
    # drawn rows, without a pass over the rows.
    all_moments = table.T @ table
    solution = _solve_regressions(all_moments[None])  # a batch of one regression
    r2 = float(solution.r2[0]) if solution.is_sound[0] else 0.0
    fit = RegressionFit(weight=solution.weights[0], r2=r2)
    if not draws:
        return fit
    bootstrap = _solve_regressions(_bootstrap_moments(table, draws))
    if bootstrap.is_sound.mean() <= MIN_SOUND_SHARE:
        return fit
    end_shares = (MISS / 2, 1 - MISS / 2)
    low, high = np.quantile(bootstrap.weights[bootstrap.is_sound], end_shares, axis=0)
    r2_low, r2_high = np.quantile(bootstrap.r2[bootstrap.is_sound], end_shares).tolist()
    return fit._replace(low=low, high=high, r2_low=r2_low, r2_high=r2_high)


def _bootstrap_moments(table: Floats, draws: int) -> Floats:
    """Return the sums of products of columns for each draw of rows [draws, columns, columns].

    The products are summed once per piece, a row or a block of rows, and pieces are drawn.
    """
    row_count, column_count = table.shape
    piece_count = row_count if row_count <= MAX_SINGLE_ROWS else BLOCKS
    # Neighbouring rows are alike: shuffled, each piece is a random sample of all rows.
    shuffled = np.random.default_rng(SEED).permutation(table)
    pieces = np.array_split(shuffled, piece_count)
    moments = np.stack([piece.T @ piece for piece in pieces]).reshape(len(pieces), -1)
    moments_of_draws = _draw_counts(len(pieces), draws) @ moments
    return np.asarray(moments_of_draws.reshape(draws, column_count, column_count))


@lru_cache(1)
def _draw_counts(pieces: int, draws: int) -> Floats:
    """Return the number of times that each draw of a bootstrap has each piece [draws, pieces]."""
    rng = np.random.default_rng(SEED)
    return rng.multinomial(pieces, np.full(pieces, 1 / pieces), draws).astype(np.float64)


class _Solution(NamedTuple):
    """Solved regressions, an entry each: weights [draws, columns], R2, and whether both hold."""

    weights: Floats
    r2: Floats
    is_sound: Any


def _solve_regressions(moments: Floats) -> _Solution:
    """Solve regressions, each given by the sums of products of 1, columns and y.

    A regression is not sound if a column never varies, or is a combination of the others.
    """
    covariance = _covariance_of(moments)
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    deviation = np.sqrt(np.maximum(variance, SMALLEST_VARIANCE))
    correlation = covariance / (deviation[:, :, None] * deviation[:, None, :])
    # Nearly 0 if a column is a combination of the others; the last column is y.
    smallest_eigenvalue = np.linalg.eigvalsh(correlation[:, :-1, :-1])[:, 0]
    is_independent = smallest_eigenvalue > MIN_EIGENVALUE
    varies = (deviation > FLAT).all(axis=1)
    is_sound = is_independent & varies
    correlation[~is_sound] = np.eye(correlation.shape[1])  # solvable; its result is ignored
    column_correlation = correlation[:, :-1, :-1]
    y_correlation = correlation[:, :-1, -1]
    weights = np.linalg.solve(column_correlation, y_correlation[..., None])[..., 0]
    r2 = (weights * y_correlation).sum(axis=1)
    return _Solution(weights, r2, is_sound)


def _covariance_of(moments: Floats) -> Floats:
    """Return the covariances of columns and y, from sums of products of 1, columns and y.

    Both are of many regressions: `[regressions, terms, terms]`.
    """
    # The sums of products with the term 1 are the number of rows (1 * 1) and each column's sum.
    counts = moments[:, :1, 0]
    mean = moments[:, 0, 1:] / counts
    mean_product = moments[:, 1:, 1:] / counts[:, :, None]
    return np.asarray(mean_product - mean[:, :, None] * mean[:, None, :])


def cross_validate(z: Floats, y: Floats, order: int) -> tuple[float, Floats]:
    """Return the R2 of rows left out of a fit, and its fall without each column.

    A column is taken away by values of other rows, drawn at random.
    """
    rng = np.random.default_rng(SEED)
    sample = rng.permutation(len(y))[:MAX_FOLDED_ROWS]
    x = z[sample]
    target = y[sample]
    column_count = x.shape[1]
    squares = 0.0  # of the residuals of rows that were left out
    shuffled_squares = np.zeros(column_count)  # the same, with the values of a column shuffled
    for fold in range(FOLDS):
        is_test_row = np.arange(len(target)) % FOLDS == fold
        training_table = _make_table(x[~is_test_row], order)
        weights, *_ = np.linalg.lstsq(training_table, target[~is_test_row], rcond=None)
        test_target = target[is_test_row]
        residuals = test_target - _make_table(x[is_test_row], order) @ weights
        squares += (residuals**2).sum()
        for column in range(column_count):
            shuffled = x[is_test_row]
            # Permutation importance: with values of other rows the column keeps its distribution,
            # but says nothing of its row.
            shuffled[:, column] = rng.choice(x[:, column], len(shuffled))
            shuffled_residuals = test_target - _make_table(shuffled, order) @ weights
            shuffled_squares[column] += (shuffled_residuals**2).sum()
    all_squares = ((target - target.mean()) ** 2).sum() or 1  # equal values: nothing to explain
    unexplained_share = squares / all_squares
    return float(1 - unexplained_share), shuffled_squares / all_squares - unexplained_share


def _make_table(x: Floats, order: int) -> Floats:
    """Return an intercept and the terms of a regression as columns."""
    terms, _ = make_terms(x, order)
    return np.column_stack([np.ones(len(x)), terms])


def estimate_clustered(values: Floats, groups: Any) -> tuple[float, float | None, float | None]:
    """Return the mean of values with its 95 % interval, where those of a group go together."""
    mean = float(values.mean())
    _, group = np.unique(groups, return_inverse=True)
    deviations = np.bincount(group, values - mean)  # of each group, summed
    group_count = len(deviations)
    if group_count < 2:
        return mean, None, None
    # Cluster-robust standard error: values of a group share their error, so groups are the samples.
    summed_squares = (deviations**2).sum() * group_count / (group_count - 1)
    error = float(np.sqrt(summed_squares)) / len(values)
    half_width = two_sided_t(MISS, group_count - 1) * error
    return mean, mean - half_width, mean + half_width


def is_separable(z: Floats, wins: Any) -> bool:
    """Whether a plane has all that win on one side, at most touching it (Konis 2007)."""
    from scipy.optimize import linprog

    # With the signs of losers turned, a plane separates if no row lies behind it. Among such
    # planes the one with the largest sum of distances is sought: 0 if only the zero plane is left.
    signs = np.where(wins, 1, -1)[:, None]
    x = np.unique(np.column_stack([np.ones(len(z)), z]) * signs, axis=0)
    solution = linprog(-x.sum(axis=0), A_ub=-x, b_ub=np.zeros(len(x)), bounds=(-1, 1))
    is_solved = solution.status == 0
    return bool(is_solved and -solution.fun > MIN_SEPARATION)


def fit_logistic(z: Floats, wins: Any, ridge: float) -> tuple[Floats, Floats, float]:
    """Return log-odds a deviation, half their 95 % intervals (Wald), and the share told right."""
    x = np.column_stack([np.ones(len(z)), z])
    penalty = ridge * np.diag([0.0, *[1.0] * z.shape[1]])  # none on the intercept
    weights = np.zeros(x.shape[1])
    hessian = penalty
    for _ in range(MAX_NEWTON_STEPS):
        gradient, hessian = _likelihood_slopes(x, wins, weights, penalty)
        newton_step = np.linalg.solve(hessian, gradient)
        weights += newton_step
        if np.abs(newton_step).max() < MIN_NEWTON_STEP:
            break
    error = np.sqrt(np.diag(np.linalg.inv(hessian)))
    is_right = (x @ weights > 0) == (wins > 0)
    # Without the intercept.
    half_width = two_sided_t(MISS, len(z)) * error[1:]
    return weights[1:], half_width, float(is_right.mean())


def _likelihood_slopes(
    x: Floats, wins: Any, weights: Floats, penalty: Floats
) -> tuple[Floats, Floats]:
    """Return the gradient and the Hessian of a logistic likelihood with a ridge penalty."""
    log_odds = np.clip(x @ weights, -MAX_LOG_ODDS, MAX_LOG_ODDS)
    chance = 1 / (1 + np.exp(-log_odds))
    variance = chance * (1 - chance)
    gradient = x.T @ (wins - chance) - penalty @ weights
    hessian = (x * variance[:, None]).T @ x + penalty
    return gradient, hessian


def measure_dependence(level: Any, failed: Any) -> float | None:
    """Return the p that failing has nothing to do with a level (chi-square), None for too few."""
    from scipy.special import chdtrc

    # Pearson's chi-square test of independence, of failures and levels.
    level_count = level.max() + 1
    counts = np.bincount(level * 2 + failed, minlength=2 * level_count)
    counts = counts.reshape(-1, 2).T  # [worked or failed, levels]
    outcome_counts = counts.sum(axis=1)[:, None]
    level_counts = counts.sum(axis=0)[None]
    expected = outcome_counts * level_counts / counts.sum()
    # With so few the chi-square distribution does not hold.
    if counts.shape[1] < 2 or expected.min() < MIN_EXPECTED_COUNT:
        return None
    chi_square = ((counts - expected) ** 2 / expected).sum()
    return float(chdtrc(counts.shape[1] - 1, chi_square))


def hash_rows(codes: Ranks) -> Any:
    """Return a number for each row, equal for rows of equal levels: a sum of random odd numbers."""
    return codes.astype(np.uint64) @ _make_multipliers(codes.shape[1])


def _make_multipliers(columns: int) -> Any:
    """Return a random odd number for each column, by which keys of rows are made."""
    rng = np.random.default_rng(SEED)
    return rng.integers(1, 2**63, columns, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def bound_by_neighbours(codes: Ranks, values: Floats, rows: Any) -> tuple[Floats, Floats]:
    """Return the lowest and highest known value one level from each of `rows`, else of all."""
    keys = hash_rows(codes)
    valued_rows = np.flatnonzero(~np.isnan(values))
    valued_rows = valued_rows[np.argsort(keys[valued_rows])]
    sorted_keys = keys[valued_rows]
    neighbour_keys = _neighbour_keys(keys[rows], codes.shape[1])
    positions = np.searchsorted(sorted_keys, neighbour_keys).clip(max=len(valued_rows) - 1)
    candidates = valued_rows[positions]
    exists = keys[candidates] == neighbour_keys
    neighbour_values = np.where(exists, values[candidates], np.nan)
    # Without a known neighbour: the lowest and the highest of all.
    low = np.nan_to_num(np.fmin.reduce(neighbour_values), nan=np.nanmin(values))
    high = np.nan_to_num(np.fmax.reduce(neighbour_values), nan=np.nanmax(values))
    return low, high


def _neighbour_keys(keys: Any, column_count: int) -> Any:
    """Return the keys of all possible neighbours of rows, `[neighbours, rows]`.

    A row's key is the sum of its levels times the multipliers of their columns. So the key of a
    neighbour, a level higher or lower in one column, is that key plus or minus the multiplier.
    """
    multipliers = _make_multipliers(column_count)
    # Numbers are unsigned and wrap around: `~m + 1` is -m.
    negative_multipliers = ~multipliers + np.uint64(1)
    return np.stack([keys + multiplier for multiplier in (*multipliers, *negative_multipliers)])

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
MIN_COEFFICIENT = 1e-4  # of a column that another is a combination of
Ranks = Any  # whole numbers, rows x columns: the place of each level among its column's


class RegressionFit(NamedTuple):
    """A regression of standardised columns.

    Attributes:
        weight: weight of each column.
        r2: share of the variance that the columns explain.
        low: low ends of the 95 % intervals of weights; None if they cannot be bootstrapped.
        high: high ends.
        r2_low: low end of the 95 % interval of `r2`.
        r2_high: high end.
    """

    weight: Floats
    r2: float
    low: Floats | None = None
    high: Floats | None = None
    r2_low: float | None = None
    r2_high: float | None = None


def standardise(values: Floats, rows: Any = slice(None)) -> Floats:
    """Return z-scores, with mean and population deviation of `rows`; 0 where these are equal."""
    offsets = values - values[rows].mean(axis=0)
    spread = np.sqrt((offsets[rows] ** 2).mean(axis=0))
    varies = spread > FLAT * np.abs(values[rows]).max(axis=0)
    if not varies.all():
        offsets = np.where(varies, offsets, 0)
        spread = np.where(varies, spread, 1)
    return np.asarray(offsets / spread)


def make_terms(z: Floats, order: int) -> tuple[Floats, list[list[int]]]:
    """Return the terms of a regression, in order 2 squares and products, too, and their columns."""
    terms = [[i] for i in range(z.shape[1])]
    terms += [[i, j] for (i,) in terms for j in range(i, z.shape[1]) if order == 2]
    return np.stack([z[:, term].prod(axis=1) for term in terms], axis=1), terms


def find_independent(x: Floats) -> tuple[list[int], dict[int, list[int]]]:
    """Return the columns that are no combination of those before, and the parts of the others."""
    z = standardise(x)
    r = z.T @ z / len(z)
    independent: list[int] = []
    combinations: dict[int, list[int]] = {}
    for j in range(x.shape[1]):
        coefficients = np.linalg.solve(r[np.ix_(independent, independent)], r[independent, j])
        if r[j, j] - r[independent, j] @ coefficients < MIN_VARIANCE_SHARE:
            parts = np.flatnonzero(np.abs(coefficients) > MIN_COEFFICIENT)
            combinations[j] = [independent[part] for part in parts]
        else:
            independent.append(j)
    return independent, combinations


def fit_columns(x: Floats, y: Floats, draws: int = 0) -> RegressionFit:
    """Return standardised weights on independent columns and R2, with bootstrapped 95 % ends.

    Every draw is standardised anew. Ends are missing where half of the draws lack a column.
    """
    table = np.column_stack([np.ones(len(y)), standardise(x), standardise(y)])
    weights, r2, is_sound = _solve((table.T @ table)[None])
    fit = RegressionFit(weight=weights[0], r2=float(r2[0]) if is_sound[0] else 0.0)
    if not draws:
        return fit
    rng = np.random.default_rng(SEED)
    piece_count = len(y) if len(y) <= MAX_SINGLE_ROWS else BLOCKS
    pieces = np.array_split(rng.permutation(table), piece_count)
    moments = np.stack([piece.T @ piece for piece in pieces]).reshape(len(pieces), -1)
    sums = _draw_counts(len(pieces), draws) @ moments
    weights, r2, is_sound = _solve(sums.reshape(draws, *[table.shape[1]] * 2))
    if is_sound.mean() <= 0.5:
        return fit
    low, high = np.quantile(weights[is_sound], (MISS / 2, 1 - MISS / 2), axis=0)
    r2_low, r2_high = np.quantile(r2[is_sound], (MISS / 2, 1 - MISS / 2)).tolist()
    return fit._replace(low=low, high=high, r2_low=r2_low, r2_high=r2_high)


@lru_cache(1)
def _draw_counts(pieces: int, draws: int) -> Floats:
    """Return the number of times that each draw of a bootstrap has each piece [draws, pieces]."""
    rng = np.random.default_rng(SEED)
    return rng.multinomial(pieces, np.full(pieces, 1 / pieces), draws).astype(np.float64)


def _solve(moments: Floats) -> tuple[Floats, Floats, Any]:
    """Return weights, R2, and whether they are sound, of sums of products of 1, columns and y."""
    mean = moments[:, 0, 1:] / moments[:, :1, 0]
    spread = moments[:, 1:, 1:] / moments[:, :1, :1] - mean[:, :, None] * mean[:, None, :]
    deviation = np.sqrt(np.maximum(np.diagonal(spread, axis1=1, axis2=2), 1e-300))
    r = spread / (deviation[:, :, None] * deviation[:, None, :])
    smallest = np.linalg.eigvalsh(r[:, :-1, :-1])[:, 0]
    is_sound = (smallest > MIN_VARIANCE_SHARE**2) & (deviation > FLAT).all(axis=1)
    r[~is_sound] = np.eye(r.shape[1])
    weights = np.linalg.solve(r[:, :-1, :-1], r[:, :-1, -1:])[..., 0]
    return weights, (weights * r[:, :-1, -1]).sum(axis=1), is_sound


def cross_validate(z: Floats, y: Floats, order: int) -> tuple[float, Floats]:
    """Return the R2 of rows left out of a fit, and its fall without each column.

    A column is taken away by values of other rows, drawn at random.
    """
    rng = np.random.default_rng(SEED)
    rows = rng.permutation(len(y))[:MAX_FOLDED_ROWS]
    z = z[rows]
    y = y[rows]
    missed = np.zeros(z.shape[1] + 1)  # with all columns as they are, then with each shuffled

    def table(rows: Floats) -> Floats:
        return np.column_stack([np.ones(len(rows)), make_terms(rows, order)[0]])

    for fold in range(FOLDS):
        is_out = np.arange(len(y)) % FOLDS == fold
        weights = np.linalg.lstsq(table(z[~is_out]), y[~is_out], rcond=None)[0]
        for column in range(-1, z.shape[1]):
            left_out = z[is_out]
            if column >= 0:
                left_out[:, column] = rng.choice(z[:, column], len(left_out))
            missed[column + 1] += ((y[is_out] - table(left_out) @ weights) ** 2).sum()
    missed /= ((y - y.mean()) ** 2).sum() or 1
    return float(1 - missed[0]), missed[1:] - missed[0]


def estimate_clustered(values: Floats, groups: Any) -> tuple[float, float | None, float | None]:
    """Return the mean of values with its 95 % interval, where those of a group go together."""
    mean = float(values.mean())
    group = np.unique(groups, return_inverse=True)[1]
    off = np.bincount(group, values - mean)
    if len(off) < 2:
        return mean, None, None
    error = float(np.sqrt((off**2).sum() * len(off) / (len(off) - 1))) / len(values)
    reach = two_sided_t(MISS, len(off) - 1) * error
    return mean, mean - reach, mean + reach


def is_separable(z: Floats, wins: Any) -> bool:
    """Whether a plane has all that win on one side, at most touching it (Konis 2007)."""
    from scipy.optimize import linprog

    x = np.unique(np.column_stack([np.ones(len(z)), z]) * np.where(wins, 1, -1)[:, None], axis=0)
    solution = linprog(-x.sum(axis=0), A_ub=-x, b_ub=np.zeros(len(x)), bounds=(-1, 1))
    return bool(solution.status == 0 and -solution.fun > MIN_VARIANCE_SHARE)


def fit_logistic(z: Floats, wins: Any, ridge: float) -> tuple[Floats, Floats, float]:
    """Return log-odds a deviation, half their 95 % intervals (Wald), and the share told right."""
    x = np.column_stack([np.ones(len(z)), z])
    penalty = ridge * np.diag([0.0, *[1.0] * z.shape[1]])
    weights = np.zeros(x.shape[1])
    for _ in range(100):
        chance = 1 / (1 + np.exp(-np.clip(x @ weights, -500, 500)))
        bend = (x * (chance * (1 - chance))[:, None]).T @ x + penalty
        step = np.linalg.solve(bend, x.T @ (wins - chance) - penalty @ weights)
        weights += step
        if np.abs(step).max() < MIN_VARIANCE_SHARE:
            break
    error = np.sqrt(np.diag(np.linalg.inv(bend)))
    reach = two_sided_t(MISS, len(z)) * error[1:]
    return weights[1:], reach, float(((x @ weights > 0) == (wins > 0)).mean())


def measure_dependence(level: Any, failed: Any) -> float | None:
    """Return the p that failing has nothing to do with a level (chi-square), None for too few."""
    from scipy.special import chdtrc

    counts = np.bincount(level * 2 + failed, minlength=2 * level.max() + 2).reshape(-1, 2).T
    expected = counts.sum(axis=1)[:, None] * counts.sum(axis=0)[None] / counts.sum()
    if counts.shape[1] < 2 or expected.min() < 1:
        return None
    return float(chdtrc(counts.shape[1] - 1, ((counts - expected) ** 2 / expected).sum()))


def hash_rows(codes: Ranks) -> Any:
    """Return a number for each row, equal for rows of equal levels: a sum of random odd numbers."""
    return codes.astype(np.uint64) @ _marks(codes.shape[1])


def _marks(columns: int) -> Any:
    rng = np.random.default_rng(SEED)
    return rng.integers(1, 2**63, columns, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def bound_by_neighbours(codes: Ranks, values: Floats, rows: Any) -> tuple[Floats, Floats]:
    """Return the lowest and highest known value one level from each of `rows`, else of all."""
    marks = _marks(codes.shape[1])
    keys = hash_rows(codes)
    places = np.flatnonzero(~np.isnan(values))
    places = places[np.argsort(keys[places])]
    neighbour_keys = np.stack([keys[rows] + mark for mark in (*marks, *(~marks + np.uint64(1)))])
    nearest = places[np.searchsorted(keys[places], neighbour_keys).clip(max=len(places) - 1)]
    neighbours = np.where(keys[nearest] == neighbour_keys, values[nearest], np.nan)
    low = np.nan_to_num(np.fmin.reduce(neighbours), nan=np.nanmin(values))
    return low, np.nan_to_num(np.fmax.reduce(neighbours), nan=np.nanmax(values))

"""Regressions of a number on hyperparameters, with what says how far they may be believed."""

from functools import lru_cache
from typing import Any

import numpy as np

from steptime.records.statistics import MISS, SEED, two_sided_t
from steptime.records.warmup import Floats

DRAWS = 2000  # of the bootstrap
BLOCKS = 500  # of rows, that it draws from
MOST_ALONE = 2000  # rows: of no more, it draws each row alone
FOLDS = 5
MOST_FOLDED = 20_000  # rows
RIDGE = 1.0  # on standardised weights, of winners that a plane tells apart
FLAT = 1e-9  # of the largest number: a deviation that is of rounding
SAME = 1e-6  # share of a column's variance that others leave, where it is theirs
Ranks = Any  # whole numbers, rows x columns: the place of each level among its column's


def standard(values: Floats, of: Any = slice(None)) -> Floats:
    """Return z-scores, with mean and population deviation of rows `of`; 0 where these are equal."""
    off = values - values[of].mean(axis=0)
    spread = np.sqrt((off[of] ** 2).mean(axis=0))
    varies = spread > FLAT * np.abs(values[of]).max(axis=0)
    if not varies.all():
        off, spread = np.where(varies, off, 0), np.where(varies, spread, 1)
    return np.asarray(off / spread)


def terms(z: Floats, order: int) -> tuple[Floats, list[list[int]]]:
    """Return the terms of a regression, in order 2 squares and products, too, and their columns."""
    told = [[i] for i in range(z.shape[1])]
    told += [[i, j] for (i,) in told for j in range(i, z.shape[1]) if order == 2]
    return np.stack([z[:, one].prod(axis=1) for one in told], axis=1), told


def independent(x: Floats) -> tuple[list[int], dict[int, list[int]]]:
    """Return the columns that are no combination of those before, and of what the others are."""
    z = standard(x)
    r = z.T @ z / len(z)
    kept: list[int] = []
    others: dict[int, list[int]] = {}
    for j in range(x.shape[1]):
        made = np.linalg.solve(r[np.ix_(kept, kept)], r[kept, j])
        if r[j, j] - r[kept, j] @ made < SAME:
            others[j] = [kept[at] for at in np.flatnonzero(np.abs(made) > 1e-4)]
        else:
            kept.append(j)
    return kept, others


def fitted(x: Floats, y: Floats, draws: int = 0) -> dict[str, Any]:
    """Return standardised weights on independent columns and R2, with bootstrapped 95 % ends.

    Every draw is standardised anew. Ends are missing where half of the draws lack a column.
    """
    table = np.column_stack([np.ones(len(y)), standard(x), standard(y)])
    made, r2, sound = _solved((table.T @ table)[None])
    found = {"weight": made[0], "r2": float(r2[0]) if sound[0] else 0.0}
    if draws:
        rng = np.random.default_rng(SEED)
        pieces = np.array_split(rng.permutation(table), len(y) if len(y) <= MOST_ALONE else BLOCKS)
        moments = np.stack([piece.T @ piece for piece in pieces]).reshape(len(pieces), -1)
        drawn = _drawn(len(pieces), draws) @ moments
        made, r2, sound = _solved(drawn.reshape(draws, *[table.shape[1]] * 2))
        if sound.mean() > 0.5:
            for end, q in (("low", MISS / 2), ("high", 1 - MISS / 2)):
                found[end] = np.quantile(made[sound], q, axis=0)
                found[f"r2_{end}"] = float(np.quantile(r2[sound], q))
    return found


@lru_cache(1)
def _drawn(pieces: int, draws: int) -> Floats:
    """Return how often each draw of a bootstrap has each of the pieces [draws, pieces]."""
    rng = np.random.default_rng(SEED)
    return rng.multinomial(pieces, np.full(pieces, 1 / pieces), draws).astype(np.float64)


def _solved(moments: Floats) -> tuple[Floats, Floats, Any]:
    """Return weights, R2, and whether they are sound, of sums of products of 1, columns and y."""
    mean = moments[:, 0, 1:] / moments[:, :1, 0]
    spread = moments[:, 1:, 1:] / moments[:, :1, :1] - mean[:, :, None] * mean[:, None, :]
    deviation = np.sqrt(np.maximum(np.diagonal(spread, axis1=1, axis2=2), 1e-300))
    r = spread / (deviation[:, :, None] * deviation[:, None, :])
    sound = (np.linalg.eigvalsh(r[:, :-1, :-1])[:, 0] > SAME**2) & (deviation > FLAT).all(axis=1)
    r[~sound] = np.eye(r.shape[1])
    made = np.linalg.solve(r[:, :-1, :-1], r[:, :-1, -1:])[..., 0]
    return made, (made * r[:, :-1, -1]).sum(axis=1), sound


def held_out(z: Floats, y: Floats, order: int) -> tuple[float, Floats]:
    """Return the R2 of rows left out of a fit, and how far it falls without each column.

    A column is taken away by values of other rows, drawn at random.
    """
    rng = np.random.default_rng(SEED)
    chosen = rng.permutation(len(y))[:MOST_FOLDED]
    z, y = z[chosen], y[chosen]
    missed = np.zeros(z.shape[1] + 1)  # with all columns as they are, then with each shuffled

    def table(rows: Floats) -> Floats:
        return np.column_stack([np.ones(len(rows)), terms(rows, order)[0]])

    for fold in range(FOLDS):
        out = np.arange(len(y)) % FOLDS == fold
        made = np.linalg.lstsq(table(z[~out]), y[~out], rcond=None)[0]
        for column in range(-1, z.shape[1]):
            rows = z[out]
            if column >= 0:
                rows[:, column] = rng.choice(z[:, column], len(rows))
            missed[column + 1] += ((y[out] - table(rows) @ made) ** 2).sum()
    missed /= ((y - y.mean()) ** 2).sum() or 1
    return float(1 - missed[0]), missed[1:] - missed[0]


def clustered(values: Floats, groups: Any) -> tuple[float, float | None, float | None]:
    """Return the mean of values with its 95 % interval, where those of a group go together."""
    mean = float(values.mean())
    group = np.unique(groups, return_inverse=True)[1]
    off = np.bincount(group, values - mean)
    if len(off) < 2:
        return mean, None, None
    error = float(np.sqrt((off**2).sum() * len(off) / (len(off) - 1))) / len(values)
    reach = two_sided_t(MISS, len(off) - 1) * error
    return mean, mean - reach, mean + reach


def separable(z: Floats, wins: Any) -> bool:
    """Whether a plane has all that win on one side, at most touching it (Konis 2007)."""
    from scipy.optimize import linprog

    x = np.unique(np.column_stack([np.ones(len(z)), z]) * np.where(wins, 1, -1)[:, None], axis=0)
    found = linprog(-x.sum(axis=0), A_ub=-x, b_ub=np.zeros(len(x)), bounds=(-1, 1))
    return bool(found.status == 0 and -found.fun > SAME)


def logistic(z: Floats, wins: Any, ridge: float) -> tuple[Floats, Floats, float]:
    """Return log-odds a deviation, half their 95 % intervals (Wald), and the share told right."""
    x = np.column_stack([np.ones(len(z)), z])
    held = ridge * np.diag([0.0, *[1.0] * z.shape[1]])
    made = np.zeros(x.shape[1])
    for _ in range(100):
        chance = 1 / (1 + np.exp(-np.clip(x @ made, -500, 500)))
        bend = (x * (chance * (1 - chance))[:, None]).T @ x + held
        step = np.linalg.solve(bend, x.T @ (wins - chance) - held @ made)
        made += step
        if np.abs(step).max() < SAME:
            break
    error = np.sqrt(np.diag(np.linalg.inv(bend)))
    reach = two_sided_t(MISS, len(z)) * error[1:]
    return made[1:], reach, float(((x @ made > 0) == (wins > 0)).mean())


def depends(level: Any, failed: Any) -> float | None:
    """Return the p that failing has nothing to do with a level (chi-square), None for too few."""
    from scipy.special import chdtrc

    seen = np.bincount(level * 2 + failed, minlength=2 * level.max() + 2).reshape(-1, 2).T
    expected = seen.sum(axis=1)[:, None] * seen.sum(axis=0)[None] / seen.sum()
    if seen.shape[1] < 2 or expected.min() < 1:
        return None
    return float(chdtrc(seen.shape[1] - 1, ((seen - expected) ** 2 / expected).sum()))


def keys_of(codes: Ranks) -> Any:
    """Return a number for each row, equal where all levels are: sums of odd numbers tell them."""
    return codes.astype(np.uint64) @ _marks(codes.shape[1])


def _marks(columns: int) -> Any:
    rng = np.random.default_rng(SEED)
    return rng.integers(1, 2**63, columns, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def neighbours(codes: Ranks, values: Floats, of: Any) -> tuple[Floats, Floats]:
    """Return the least and greatest known value one level beside each of rows `of`, else of all."""
    marks = _marks(codes.shape[1])
    known = np.flatnonzero(~np.isnan(values))
    keys = keys_of(codes)
    known = known[np.argsort(keys[known])]
    wanted = np.stack([keys[of] + mark for mark in (*marks, *(~marks + np.uint64(1)))])
    at = known[np.searchsorted(keys[known], wanted).clip(max=len(known) - 1)]
    beside = np.where(keys[at] == wanted, values[at], np.nan)
    low = np.nan_to_num(np.fmin.reduce(beside), nan=np.nanmin(values))
    return low, np.nan_to_num(np.fmax.reduce(beside), nan=np.nanmax(values))

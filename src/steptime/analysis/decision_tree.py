"""Where does each win? A short tree over hyperparameters, in words, that says only what holds up.

A split stays if it tells what was left out when it was found: in cross-validation it must gain
likelihood, more than `GAIN` in all and more than `SURE` standard errors. A leaf names a winner only
where the majority is no coin's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.analysis.statistics import SEED

Flags = NDArray[np.bool_]
DEPTH, FOLDS = 3, 10
LEAST = 5  # rows of a leaf
SURE, GAIN = 1.645, 2.0  # standard errors (95 %, one-sided), nats: what a split gains at least
CHANCE = 0.05  # that a coin has such a majority
PULLED = 4  # rows: a share of few rows says little
MOST_CUTS = 32  # tried of one hyperparameter


@dataclass(frozen=True)
class Leaf:
    """A corner of the space: `where` in words, how many rows each side wins there, the winner."""

    where: str
    wins: Mapping[str, int]
    winner: str | None  # None where neither wins clearly


def leaves(features: Mapping[str, Sequence[Any]], winners: Sequence[str]) -> list[Leaf]:
    """Return the leaves of the tree that tells the winners of rows from their hyperparameters.

    Numbers are cut between two values that occur; of names one is told from the others. A leaf of
    everything has no words. A row whose value is None is on the side of those that it is not.
    """
    if not winners:
        return []
    names, of = np.unique(np.asarray(winners), return_inverse=True)
    folds = np.random.default_rng(SEED).permutation(len(of)) % FOLDS
    cuts = [cut for name, column in features.items() for cut in _cuts(name, column)]
    inside = np.stack([yes for _, _, yes in cuts]) if cuts else np.zeros((0, len(of)), bool)
    found = _grow(np.ones(len(of), bool), {}, DEPTH, (cuts, inside, of, folds, len(names)))
    return [
        Leaf(
            " and ".join(_joined(words)),
            dict(zip(names.tolist(), counts.tolist(), strict=True)),
            str(names[counts.argmax()]) if _clear(counts) else None,
        )
        for words, rows in found
        for counts in [np.bincount(of[rows], minlength=len(names))]
    ]


def _cuts(name: str, column: Sequence[Any]) -> list[tuple[tuple[str, str], tuple[str, str], Flags]]:
    """Return the cuts of a hyperparameter: where the words stand, the words of both sides, rows."""
    known = sorted(
        {one for one in column if one is not None}, key=lambda one: (str(type(one)), one)
    )
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in known):
        texts = np.array([str(one) for one in column])
        both = [((name, f"{name} {one}"), (name, f"{name} not {one}")) for one in map(str, known)]
        pair = [((name, f"{name} {a}"), (name, f"{name} {b}")) for a, b in pairwise(known)]
        chosen = both if len(known) > 2 else pair
        return [(yes, no, texts == yes[1].removeprefix(f"{name} ")) for yes, no in chosen]
    numbers = np.array([np.nan if one is None else one for one in column], float)
    steps = list(pairwise(known))
    return [
        ((f"{name} <", f"{name} <= {low:g}"), (f"{name} >", f"{name} >= {high:g}"), numbers <= low)
        for low, high in steps[:: 1 + len(steps) // MOST_CUTS]
    ]


def _joined(words: Mapping[str, str]) -> list[str]:
    """Return the words of a leaf: of a number with both ends `batch 128 to 512`, or `batch 128`."""
    said = dict(words)
    for place in words:
        name, _, end = place.rpartition(" ")
        if end == "<" and f"{name} >" in words:
            ends = (said.pop(f"{name} >").split()[-1], said[place].split()[-1])
            said[place] = f"{name} {' to '.join(dict.fromkeys(ends))}"
    return list(said.values())


def _grow(
    rows: Flags, words: dict[str, str], depth: int, told: tuple[Any, ...]
) -> list[tuple[dict[str, str], Flags]]:
    """Return the leaves below a node as words by place and rows."""
    cuts, inside, of, _, kinds = told
    best = _best(rows, inside, of, kinds) if depth and _holds(rows, told) else None
    if best is None:
        return [(words, rows)]
    (at_yes, yes), (at_no, no), flags = cuts[best]
    return [
        *_grow(rows & flags, {**words, at_yes: yes}, depth - 1, told),
        *_grow(rows & ~flags, {**words, at_no: no}, depth - 1, told),
    ]


def _best(rows: Flags, inside: Flags, of: NDArray[np.int64], kinds: int) -> int | None:
    """Return the cut of rows that leaves the least entropy, None where none can be made."""
    if not rows.any() or not len(inside):
        return None
    one_hot = np.eye(kinds)[of[rows]]
    left = inside[:, rows] @ one_hot
    right = one_hot.sum(axis=0) - left
    can = np.minimum(left.sum(axis=1), right.sum(axis=1)) >= LEAST
    cost = np.where(can, _entropy(left) + _entropy(right), np.inf)
    return int(cost.argmin()) if can.any() else None


def _entropy(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the entropy [nat] of each row of counts, times its sum."""
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return np.asarray(-(counts * np.log(np.where(share > 0, share, 1))).sum(axis=1))


def _holds(rows: Flags, told: tuple[Any, ...]) -> bool:
    """Whether the best cut of rows, found without a fold, tells that fold better than no cut."""
    _, inside, of, folds, kinds = told
    gains: list[float] = []
    for fold in range(FOLDS):
        kept, tested = rows & (folds != fold), rows & (folds == fold)
        best = _best(kept, inside, of, kinds)
        if best is None or not tested.any():
            gains += [0.0] * int(tested.sum())
            continue
        side = inside[best]
        whole = _chances(of[kept], kinds)
        sides = (of[kept & ~side], of[kept & side])
        parts = np.stack([_chances(one, kinds, whole) for one in sides])
        gains += np.log(parts[side[tested].astype(int), of[tested]] / whole[of[tested]]).tolist()
    gained = np.array(gains)
    error = gained.std() / np.sqrt(len(gained)) if len(gained) else 0.0
    return bool(gained.sum() > GAIN and gained.mean() > SURE * error)


def _chances(
    of: NDArray[np.int64], kinds: int, usual: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the share of each kind, drawn to what is `usual` as by `PULLED` rows, or to even."""
    counts = np.bincount(of, minlength=kinds)
    added = np.full(kinds, 0.5) if usual is None else PULLED * usual
    return np.asarray((counts + added) / (counts + added).sum())


def _clear(counts: NDArray[np.int64]) -> bool:
    """Whether the majority of rows is more than chance gives the first of two."""
    from scipy.special import bdtrc

    first, second = sorted([0, *counts.tolist()])[:-3:-1]
    return bool(2 * bdtrc(first - 1, first + second, 0.5) <= CHANCE or (second == 0 < first))

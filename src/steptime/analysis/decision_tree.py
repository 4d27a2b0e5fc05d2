"""Where does each win? A short tree over hyperparameters, in words, that says only what holds up.

A cut stays if chance seldom makes the best of all that can be made as good (a likelihood-ratio
test, with Bonferroni). A leaf names a winner only where the majority is no coin's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
DEPTH = 3
LEAST = 5  # rows of a leaf
LUCK = 0.01  # that a cut of what nothing tells is as good
CHANCE = 0.05  # that a coin has such a majority
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
    cuts = [cut for name, column in features.items() for cut in _cuts(name, column)]
    inside = np.stack([yes for _, _, yes in cuts]) if cuts else np.zeros((0, len(of)), bool)
    found = _grow(np.ones(len(of), bool), {}, DEPTH, (cuts, inside, of, len(names)))
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
    cuts, *table = told
    best = _best(rows, *table) if depth else None
    if best is None:
        return [(words, rows)]
    (at_yes, yes), (at_no, no), flags = cuts[best]
    return [
        *_grow(rows & flags, {**words, at_yes: yes}, depth - 1, told),
        *_grow(rows & ~flags, {**words, at_no: no}, depth - 1, told),
    ]


def _best(rows: Flags, inside: Flags, of: NDArray[np.int64], kinds: int) -> int | None:
    """Return the cut of rows that leaves the least entropy, None where luck leaves as little."""
    from scipy.special import chdtrc

    one_hot = np.eye(kinds)[of[rows]]
    left, whole = inside[:, rows] @ one_hot, one_hot.sum(axis=0, keepdims=True)
    can = np.minimum(left.sum(axis=1), (whole - left).sum(axis=1)) >= LEAST
    if not can.any():
        return None
    cost = np.where(can, _entropy(left) + _entropy(whole - left), np.inf)
    p = can.sum() * chdtrc(kinds - 1, 2 * (_entropy(whole)[0] - cost.min()))
    return int(cost.argmin()) if p <= LUCK else None


def _entropy(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the entropy [nat] of each row of counts, times its sum."""
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return np.asarray(-(counts * np.log(np.where(share > 0, share, 1))).sum(axis=1))


def _clear(counts: NDArray[np.int64]) -> bool:
    """Whether the majority of rows is more than chance gives the first of two."""
    from scipy.special import bdtrc

    first, second = sorted([0, *counts.tolist()])[:-3:-1]
    return bool(2 * bdtrc(first - 1, first + second, 0.5) <= CHANCE or (second == 0 < first))

"""Where does each win? A short tree over hyperparameters, in words, that says only what holds up.

A cut stays if chance seldom makes the best of all that can be made as good (a likelihood-ratio
test, with Bonferroni). A leaf names a winner only where the majority is no coin's.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.records.row import Row

Flags = NDArray[np.bool_]
DEPTH = 3
LEAST = 5  # rows of a leaf
LUCK = 0.01  # that a cut of what nothing tells is as good
CHANCE = 0.05  # that a coin has such a majority
MOST_CUTS = 32  # tried of one hyperparameter


def leaves(features: Mapping[str, Sequence[Any]], winners: Sequence[str]) -> list[Row]:
    """Return the leaves of the tree that tells the winners of rows from their hyperparameters.

    Of each `where` it is in words, the number of `rows`, how many each `wins`, and the `winner`,
    None where none wins clearly. Numbers are cut between two values that occur; of names one is
    told from the others. A leaf of everything has no words. A row whose value is None is on the
    side of those that it is not.
    """
    names, of = np.unique(np.asarray(winners, str), return_inverse=True)
    cuts = [cut for name, column in features.items() for cut in _cuts(name, column)]
    inside = np.stack([yes for _, _, yes in cuts]) if cuts else np.zeros((0, len(of)), bool)
    won = np.eye(len(names))[of]

    def grow(rows: Flags, words: dict[str, str], depth: int) -> Iterator[Row]:
        best = _best(inside[:, rows], won[rows]) if depth else None
        if best is not None:
            *sides, flags = cuts[best]
            for (place, word), some in zip(sides, (flags, ~flags), strict=True):
                yield from grow(rows & some, {**words, place: word}, depth - 1)
            return
        counts = won[rows].sum(axis=0).astype(int)
        yield {
            "where": " and ".join(_joined(words)),
            "wins": dict(zip(names.tolist(), counts.tolist(), strict=True)),
            "winner": str(names[counts.argmax()]) if _clear(counts) else None,
            "rows": int(rows.sum()),
        }

    return [*grow(np.ones(len(of), bool), {}, DEPTH)] if len(of) else []


def _cuts(name: str, column: Sequence[Any]) -> list[tuple[tuple[str, str], tuple[str, str], Flags]]:
    """Return the cuts of a hyperparameter: where the words stand, the words of both sides, rows."""
    known = sorted({*column} - {None}, key=lambda one: (str(type(one)), one))
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in known):
        is_pair = len(known) == 2
        return [
            (
                (name, f"{name} {one}"),
                (name, f"{name} {known[1] if is_pair else f'not {one}'}"),
                np.array([str(cell) == str(one) for cell in column]),
            )
            for one in (known[:1] if is_pair else known if len(known) > 1 else ())
        ]
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


def _best(inside: Flags, won: NDArray[np.float64]) -> int | None:
    """Return the cut of rows that leaves the least entropy, None where luck leaves as little."""
    from scipy.special import chdtrc

    left = inside @ won
    whole = won.sum(axis=0, keepdims=True)
    can = np.minimum(left.sum(axis=1), (whole - left).sum(axis=1)) >= LEAST
    if not can.any():
        return None
    cost = np.where(can, _entropy(left) + _entropy(whole - left), np.inf)
    p = can.sum() * chdtrc(won.shape[1] - 1, 2 * (_entropy(whole)[0] - cost.min()))
    return int(cost.argmin()) if p <= LUCK else None


def _entropy(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the entropy [nat] of each row of counts, times its sum."""
    from scipy.special import xlogy

    whole = counts.sum(axis=1)
    return np.asarray(xlogy(whole, whole) - xlogy(counts, counts).sum(axis=1))


def _clear(counts: NDArray[np.int64]) -> bool:
    """Whether the majority of rows is more than chance gives the first of two."""
    from scipy.special import bdtrc

    first, second = sorted([0, *counts.tolist()])[:-3:-1]
    return bool(2 * bdtrc(first - 1, first + second, 0.5) <= CHANCE or (second == 0 < first))

"""A systolic array played cycle by cycle: registers, neighbours, and the edges that feed them.

It knows no formula: a tile is done when its last result has left the array, and cycles and words
at the edges are counted as they happen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.int64]
Grid = list[list[int | None]]


@dataclass
class Machine:
    """The PEs, and what was counted. Only values that meet in a PE are multiplied."""

    rows: int
    columns: int
    cycles: int = 0
    macs: int = 0
    words: dict[str, int] = field(
        default_factory=lambda: {"in": 0, "out": 0, "sums in": 0, "sums out": 0}
    )

    def empty(self) -> Grid:
        """Return registers that hold nothing."""
        return [[None] * self.columns for _ in range(self.rows)]

    def multiply(self, a: Matrix, b: Matrix, dataflow: str, passes: int = 1) -> Matrix:
        """Return a @ b, made tile by tile."""
        if dataflow == "output":
            return self._by_outputs(a, b)
        if dataflow == "input":
            return self._by_stationary(b.T, a.T, passes).T
        return self._by_stationary(a, b, passes)

    def _by_outputs(self, a: Matrix, b: Matrix) -> Matrix:
        c = np.zeros((len(a), b.shape[1]), np.int64)
        for i in range(0, len(a), self.rows):
            for j in range(0, b.shape[1], self.columns):
                tile = self._output_tile(a[i : i + self.rows], b[:, j : j + self.columns])
                c[i : i + self.rows, j : j + self.columns] = tile
        return c

    def _by_stationary(self, a: Matrix, b: Matrix, passes: int) -> Matrix:
        """Tiles of b stay; the rows of a stream in `passes` pieces."""
        c = np.zeros((len(a), b.shape[1]), np.int64)
        for piece in np.array_split(np.arange(len(a)), passes):
            for j in range(0, b.shape[1], self.columns):
                panel = np.ix_(piece, np.arange(j, min(j + self.columns, b.shape[1])))
                for i in range(0, len(b), self.rows):
                    weights = b[i : i + self.rows, j : j + self.columns]
                    made = self._stationary_tile(a[piece, i : i + self.rows], weights)
                    if i:
                        self.words["sums in"] += made.size
                    last = i + self.rows >= len(b)
                    self.words["out" if last else "sums out"] += made.size
                    c[panel] += made
        return c

    def _output_tile(self, a: Matrix, b: Matrix) -> Matrix:
        (r, k), c = a.shape, b.shape[1]
        right, down, sums = self.empty(), self.empty(), self.empty()
        done = 0
        for cycle in count():
            if done == r * c * k:
                break
            self.cycles += 1
            for i in range(self.rows):  # each PE passes on what it held
                right[i] = [self._fed(a, i, cycle - i, i < r), *right[i][:-1]]
            top = [self._fed(b.T, j, cycle - j, j < c) for j in range(self.columns)]
            down = [top, *down[:-1]]
            for i in range(self.rows):
                for j in range(self.columns):
                    left, above = right[i][j], down[i][j]
                    if left is not None and above is not None:
                        sums[i][j] = (sums[i][j] or 0) + left * above
                        done += 1
        self.macs += done
        gone: list[list[int | None]] = []
        while sum(value is not None for row in gone for value in row) < r * c:
            self.cycles += 1
            gone.append(sums[0])  # the sums move up one row
            sums = [*sums[1:], [None] * self.columns]
        self.words["out"] += r * c
        return np.array([row[:c] for row in gone], np.int64)

    def _stationary_tile(self, a: Matrix, weights: Matrix) -> Matrix:
        (t, r), c = a.shape, weights.shape[1]
        held = self.empty()
        for i in reversed(range(r)):  # the last row enters first and is pushed down
            self.cycles += 1
            top = [self._fed(weights, i, j, j < c) for j in range(self.columns)]
            held = [top, *held[:-1]]
        right, sums = self.empty(), self.empty()
        made: list[list[int]] = [[] for _ in range(c)]
        for step in count():
            if min(map(len, made)) == t:
                break
            self.cycles += 1
            for i in range(self.rows):
                fed = self._fed(a.T, i, step - (r - 1 - i), i < r)
                right[i] = [fed, *right[i][:-1]]
            sums = [*sums[1:], [None] * self.columns]  # up one row
            for i in range(self.rows):
                for j in range(self.columns):
                    value, weight = right[i][j], held[i][j]
                    if value is not None and weight is not None:
                        sums[i][j] = (sums[i][j] or 0) + value * weight
                        self.macs += 1
            for j in range(c):
                if (total := sums[0][j]) is not None:
                    made[j].append(total)
        return np.array(made, np.int64).T

    def _fed(self, matrix: Matrix, lane: int, step: int, wanted: bool) -> int | None:
        """Return the word that enters a lane at a step, None before, after and beside the tile."""
        if not wanted or not 0 <= step < matrix.shape[1]:
            return None
        self.words["in"] += 1
        return int(matrix[lane, step])

"""Times that grow with the batch along lines with bends: sums and maxima of lines.

A kernel takes the longer of two lines, its arithmetic and its traffic, so its time bends where
they cross, and a step's time is a sum of such. Once the bends are known, the time at any batch is
one look-up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import inf

Line = tuple[float, float]  # value at batch 0, growth with the batch


@dataclass(frozen=True)
class Bends:
    """A continuous function of the batch, line by line: `lines[i]` holds from `starts[i]` on.

    The longer of 2 and n, from n = 1 on, has the starts 1 and 2 and the lines (2, 0) and (0, 1).
    """

    starts: tuple[float, ...]
    lines: tuple[Line, ...]

    def __call__(self, batch: float) -> float:
        """Give the value at a batch."""
        at, grows = self.lines[bisect_right(self.starts, batch) - 1]
        return at + grows * batch


def straight(line: Line, low: float) -> Bends:
    """Give a line as a function from `low` on."""
    return Bends((low,), (line,))


def highest(one: Bends, other: Bends) -> Bends:
    """Give the larger of two functions that begin at the same batch."""
    starts = sorted({*one.starts, *other.starts})
    found: list[tuple[float, Line]] = []
    for start, end in pairwise([*starts, inf]):
        lines = [f.lines[bisect_right(f.starts, start) - 1] for f in (one, other)]
        for at, line in _higher(lines[0], lines[1], start, end):
            if not found or found[-1][1] != line:
                found.append((at, line))
    return Bends(tuple(at for at, _ in found), tuple(line for _, line in found))


def _higher(one: Line, other: Line, start: float, end: float) -> list[tuple[float, Line]]:
    """Give the higher of two lines from `start` on, and the other from where it overtakes."""
    first, second = sorted((one, other), key=lambda line: (line[0] + line[1] * start, line[1]))
    if first[1] <= second[1]:
        return [(start, second)]
    crossing = (second[0] - first[0]) / (first[1] - second[1])
    return [(start, second), (crossing, first)] if start < crossing < end else [(start, second)]


def total(functions: Iterable[tuple[Bends, float]], low: float) -> Bends:
    """Give the sum of functions that begin at `low`, each so many times."""
    at = grows = 0.0
    turns: dict[float, tuple[float, float]] = {}
    for function, times in functions:
        at += times * function.lines[0][0]
        grows += times * function.lines[0][1]
        for start, (before, after) in zip(
            function.starts[1:], pairwise(function.lines), strict=True
        ):
            more = turns.get(start, (0.0, 0.0))
            turns[start] = (
                more[0] + times * (after[0] - before[0]),
                more[1] + times * (after[1] - before[1]),
            )
    starts, lines = [low], [(at, grows)]
    for start in sorted(turns):
        at, grows = at + turns[start][0], grows + turns[start][1]
        starts.append(start)
        lines.append((at, grows))
    return Bends(tuple(starts), tuple(lines))

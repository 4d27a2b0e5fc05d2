"""Kernels as columns: those that differ in numbers alone side by side, and sums by index.

A step, a grid, a stage of a plan and a table of measured rows are such columns, and numpy is their
only arithmetic: a price is asked for a group of kernels at once, whatever they are of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steptime.core.graph import PLACE, Part
from steptime.hardware.device import Device
from steptime.prediction.kernel import Interval, Kernel, Unit, interval_of

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Numbers = tuple[float, ...]  # of a kernel, in the order of `numbers_of`


class Rows(NamedTuple):
    """Kernels that differ in numbers alone: each number is an array of theirs.

    What the fields are `Kernel` says. An array has a row a kernel, and may have a column a batch.
    """

    kind: str
    pass_: Part
    dtype: str
    unit: Unit
    channels_last: bool
    tf32: bool
    transposed: bool
    flop: Any
    bytes: Any
    serial: Any
    launches: Any
    row: Any
    fresh: Any
    window: tuple[Any, ...] | None
    products: tuple[tuple[Any, Any, Any, Any], ...]
    figures: tuple[Any, ...]


def computed_as(kernel: Kernel | Rows, device: Device) -> str:
    """Return the type that kernels are computed in: TF32 where they may and it has it."""
    as_tf32 = kernel.tf32 and kernel.dtype == "float32" and "tf32" in device.peak_flop_per_s
    return "tf32" if as_tf32 else kernel.dtype


_ALIKE = 7  # fields of `Rows` that are no numbers
_kind_of = itemgetter(*[Kernel._fields.index(name) for name in Rows._fields[:_ALIKE]])
_APART = ("op", "after", "views", "calls")  # what no price asks
_same_of = itemgetter(
    *[i for i, name in enumerate(Kernel._fields) if name not in (*_APART, "fresh")]
)


def numbers_of(kernel: Kernel) -> Numbers:
    """Return the numbers in which kernels differ that are priced side by side."""
    sizes = [size for product in kernel.products for size in product]
    own = kernel.flop, kernel.bytes, kernel.serial, kernel.launches, kernel.row, kernel.fresh
    return (*own, *(kernel.window or ()), *sizes, *kernel.figures)


class Prices(NamedTuple):
    """The seconds of many kernels: what `Interval` says of one, as arrays of a row each.

    A bound that is not known is NaN.
    """

    value: Floats
    low: Floats
    high: Floats
    is_extrapolated: Floats
    compute_s: Floats
    memory_s: Floats
    shared: Floats

    @classmethod
    def of(cls, times: Sequence[Interval]) -> Prices:
        """Return the seconds of kernels, one after the other."""
        return cls._make(np.array(times, dtype=float).reshape(-1, len(cls._fields)).T)

    def at(self, places: Any) -> Prices:
        """Return the seconds of kernels at places, as often as these are named."""
        return Prices._make(column[places] for column in self)

    def times(self, factor: Any) -> Prices:
        """Return so many times as many seconds."""
        value, low, high, is_extrapolated, compute_s, memory_s, shared = self
        seconds = [one * factor for one in (value, low, high, compute_s, memory_s)]
        return Prices._make((*seconds[:3], is_extrapolated, *seconds[3:], shared))

    def intervals(self) -> list[Interval]:
        """Return the seconds of each kernel."""
        return [
            Interval(
                value,
                None if low != low else low,  # noqa: PLR0124  # NaN
                None if high != high else high,  # noqa: PLR0124
                is_extrapolated > 0,
                *rest,
            )
            for value, low, high, is_extrapolated, *rest in zip(
                *(column.tolist() for column in self), strict=True
            )
        ]

    def alike(self, which: Ints, count: int) -> Prices:
        """Return the sums of kernels that are off alike whenever they run, by which they are."""
        found = [added(column, which, count) for column in self]
        first = np.zeros(count, dtype=np.intp)
        first[which[::-1]] = np.arange(len(which))[::-1]
        return Prices._make((*found[:-1], self.shared[first]))

    def sums(self, index: Ints, count: int) -> Prices:
        """Return the sums of kernels by index, which have a bound where all of them have one.

        What prices share adds up, and what is their own as squares: each is another kernel. Two of
        1 s, 0.5 s shared and 0.1 s own, are off by 1 s shared and 0.14 s own.
        """
        return sums_of(self.parts(*[lambda column: added(column, index, count)] * 2))

    def parts(self, add: Adding, add_squares: Adding) -> list[Floats]:
        """Return what sums are made of (`sums_of`), as two functions add up columns."""
        shared, apart = self.shared, 1 - self.shared**2
        down, up = _beyond(self.value, self.low, 1), _beyond(self.value, self.high, -1)
        squares = map(add_squares, (apart * down**2, apart * up**2))
        return [*map(add, (*self[:-1], shared * down, shared * up)), *squares]

    def total(self) -> Interval:
        """Return the sum of all kernels, as `sums` has it."""
        return self.sums(np.zeros(len(self.value), dtype=np.intp), 1).intervals()[0]


def _beyond(value: Floats, end: Floats, sign: int) -> Floats:
    """Return how far a bound is off, a column where nobody knows it at any batch."""
    is_known = end.shape == value.shape or not np.isnan(end).all()
    return (value - end) * sign if is_known else end


Ask = Callable[[Rows, Ints], Interval | float]
Adding = Callable[[Floats], Floats]
PARTS = 10  # of a sum
EQUAL_SHARES = 1e-9  # shares of the way between two batches that round to one batch


def sums_of(parts: Sequence[Floats]) -> Prices:
    """Return sums of which parts are known: those of a price, both ends off, squares of those."""
    value, low, high, is_extrapolated, compute_s, memory_s, below, above, below2, above2 = parts
    squares = below2 + above2 > 0  # not so of NaN
    off_low, off_high = np.sqrt(below**2 + below2), np.sqrt(above**2 + above2)
    return Prices(
        value,
        np.where(squares, value - off_low, low),
        np.where(squares, value + off_high, high),
        is_extrapolated,
        compute_s,
        memory_s,
        np.divide(above, off_high, out=np.ones_like(off_high), where=squares & (off_high > 0)),
    )


def added(column: Floats, index: Ints, count: int) -> Floats:
    """Return the sums of a column's rows by index, in their order."""
    if column.ndim == 1:
        one: Floats = np.bincount(index, column, count).astype(float)
        return one
    found: Floats = np.zeros((count, *column.shape[1:]))
    if len(index):
        order = np.argsort(index, kind="stable")
        places, starts = np.unique(index[order], return_index=True)
        found[places] = np.add.reduceat(column[order], starts)
    return found


class Kernels:
    """Kernels as columns, each of those that differ once.

    `which` says which of them each kernel is, `groups` are their rows side by side with their
    places; exchanges are in none. `alike` says which of them differ in new pages alone, and how
    many do not. `last` are the same kernels at another batch (`between`). Kernels whose `owners`
    differ are kept apart.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        last: Sequence[Kernel] = (),
        owners: Sequence[int] = (),
    ) -> None:
        places: dict[object, int] = {}
        alike: dict[object, int] = {}
        which, same, owner = [], [], []
        self.distinct: list[Kernel] = []
        rows: dict[object, tuple[list[int], list[Numbers], list[Numbers]]] = {}
        for i, (kernel, end) in enumerate(zip(kernels, last or kernels, strict=True)):
            owned_by = owners[i] if owners else 0
            key = _same_of(kernel), _same_of(end) if last else (), owned_by
            place = places.setdefault((key, kernel.fresh), len(places))
            which.append(place)
            if place < len(self.distinct):
                continue
            self.distinct.append(kernel)
            owner.append(owned_by)
            same.append(alike.setdefault(key, len(alike)))
            if kernel.exchange is None:
                counts = len(kernel.products), len(kernel.figures), kernel.window is None
                found = rows.setdefault((_kind_of(kernel), counts), ([], [], []))
                found[0].append(place)
                found[1].append(numbers_of(kernel))
                found[2].append(numbers_of(end) if last else ())
        self.owner: Ints = np.array(owner, dtype=np.intp)
        self.alike: tuple[Ints, int] = np.array(same, dtype=np.intp), len(alike)
        self.which: Ints = np.array(which, dtype=np.intp)
        self.width = 1
        self._ends = [
            (self.distinct[own[0]], np.array(own), _columns(first), _columns(end))
            for own, first, end in rows.values()
        ]
        self.groups: list[tuple[Rows, Ints]] = [
            (_side_by_side(one, [*first]), own) for one, own, first, _ in self._ends
        ]

    def between(self, shares: Floats) -> Kernels:
        """Return the kernels at batches so far on the way to the `last` ones: a column each."""
        found = copy(self)
        found.width = len(shares)
        found.groups = []
        for one, own, first, last in self._ends:
            change = last - first
            moved = np.flatnonzero(change.any(axis=1))
            along = first[moved, :, None] + change[moved, :, None] * shares
            columns = dict(zip(moved.tolist(), along, strict=True))
            still = first[:, :, None]
            every = [columns.get(i, still[i]) for i in range(len(first))]
            found.groups.append((_side_by_side(one, every), own))
        return found

    def merging_shares(self) -> list[float]:
        """Return shares of the way to the `last` batch at which two kernels are the same.

        Two products of 1 and 3 rows at the first batch, of 5 and 3 at the last are so halfway.
        """
        shares: set[float] = set()
        for _, places, first, last in self._ends:
            for i in range(len(places) - 1):
                initial = first[:, i + 1 :] - first[:, i : i + 1]
                final = last[:, i + 1 :] - last[:, i : i + 1]
                shares.update(_find_zeros(initial, final))
        return sorted(shares)

    @cached_property
    def often(self) -> Floats:
        """How often each kernel of those that differ comes."""
        return np.bincount(self.which, minlength=len(self.distinct)).astype(float)

    @cached_property
    def passes(self) -> Ints:
        """The place of the pass of each kernel of those that differ."""
        return np.array([PLACE[one.pass_] for one in self.distinct], dtype=np.intp)

    def priced(self, ask: Ask) -> Prices:
        """Return the prices of those that differ: `ask` says those of rows and their places."""
        block: Floats = np.zeros((len(Prices._fields), len(self.distinct)))
        for rows, places in self.groups:
            for column, one in zip(block, interval_of(ask(rows, places)), strict=True):
                column[places] = np.nan if one is None else one
        return Prices._make(block)

    def weighted(self, ask: Ask, often: Floats) -> list[Floats]:
        """Return the parts of sums, of which each row of `often` says how often kernels come.

        Each is off alike whenever it comes.
        """
        found: Floats = np.zeros((PARTS, len(often), self.width))
        for rows, places in self.groups:
            count = often[:, places]
            own = count.any(axis=1)  # sums of its pass
            count = count[own]
            one_each = np.ones((len(places), 1))
            said: Any = (np.nan if one is None else one for one in interval_of(ask(rows, places)))
            each = Prices._make(one if np.ndim(one) else one * one_each for one in said)
            parts = each.parts(count.__matmul__, (count**2).__matmul__)
            for into, part in zip(found, parts, strict=True):
                into[own] += part
        return [*found]


def _find_zeros(initial: Floats, final: Floats) -> list[float]:
    """Return the shares at which all rows of a column, lines between both ends, are 0."""
    moves = initial != final
    share = np.divide(initial, initial - final, out=np.full_like(initial, np.nan), where=moves)
    never = (~moves & (initial != 0)).any(axis=0) | ~moves.any(axis=0)
    share = share[:, ~never]
    lowest = np.nanmin(share, axis=0, initial=np.inf)
    highest = np.nanmax(share, axis=0, initial=-np.inf)
    is_zero = (highest - lowest <= EQUAL_SHARES) & (lowest >= 0) & (highest <= 1)
    shares: list[float] = lowest[is_zero].tolist()
    return shares


def _columns(rows: Sequence[Numbers]) -> Floats:
    found: Floats = np.array(rows, dtype=float).T
    return found


def _side_by_side(one: Kernel, columns: Sequence[Floats]) -> Rows:
    """Return kernels as rows of arrays, all as `one` in what is no number."""
    own, i = columns[:6], 6 if one.window is None else 12
    window = None if one.window is None else tuple(columns[6:12])
    sides = i + 4 * len(one.products)
    products: Any = tuple([tuple(columns[at : at + 4]) for at in range(i, sides, 4)])
    return Rows._make((*_kind_of(one), *own, window, products, tuple(columns[sides:])))

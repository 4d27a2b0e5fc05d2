"""Kernels as columns: those that differ in numbers alone side by side, and sums by index.

A step, a grid, a stage of a plan and a table of measured rows are such columns, and numpy is their
only arithmetic: kernels are priced by groups that share kind, pass and data type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from steptime.core.graph import PASS_INDEX, Part
from steptime.hardware.device import Device
from steptime.prediction.kernel import Interval, Kernel, Unit, as_interval
from steptime.prediction.prices import Floats, Ints, Prices, SumParts

Numbers = tuple[float, ...]  # of a kernel, in the order of `kernel_numbers`
SCALAR_NUMBERS = 6  # numbers of a kernel before those of its window: FLOP to fresh pages
WINDOW_NUMBERS = 6  # height, width, two strides, height and width of the map
MEETING_NUMBERS = 1 << 15  # differences of kernels that are looked at at once
EQUAL_SHARES = 1e-9  # shares of the way between two batches that round to one batch
EQUAL = 1e-12  # rounding of interpolated numbers; the next whole number is further away


class Rows(NamedTuple):
    """Kernels that differ in numbers alone: each number is an array of theirs.

    The fields are those of `Kernel`. An array has a row for each kernel, and may have a column for
    each batch.
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
    """Return the type that kernels compute in: TF32 where they may and the device has it."""
    as_tf32 = (
        kernel.tf32 and kernel.dtype == "float32" and "tf32" in device.datasheet.peak_flop_per_s
    )
    return "tf32" if as_tf32 else kernel.dtype


_CLASS_FIELD_COUNT = 7  # first fields of `Rows`, which are no numbers
_class_of = itemgetter(*[Kernel._fields.index(name) for name in Rows._fields[:_CLASS_FIELD_COUNT]])
_UNPRICED_FIELDS = ("op", "after", "views", "calls")  # which no price reads
_priced_fields_of = itemgetter(
    *[i for i, name in enumerate(Kernel._fields) if name not in (*_UNPRICED_FIELDS, "fresh")]
)


def kernel_numbers(kernel: Kernel) -> Numbers:
    """Return the numbers of a kernel: those in which kernels of a group differ."""
    sizes = [size for product in kernel.products for size in product]
    scalars = (kernel.flop, kernel.bytes, kernel.serial, kernel.launches, kernel.row, kernel.fresh)
    # The order that `_make_rows` reads.
    return (*scalars, *(kernel.window or ()), *sizes, *kernel.figures)


PriceRows = Callable[[Rows, Ints], Interval | float]


class ErrorClasses(NamedTuple):
    """Distinct kernels by the error of their prices.

    Attributes:
        class_of: the class of each distinct kernel; those that differ in new pages alone share one.
        class_count: number of classes.
    """

    class_of: Ints
    class_count: int


class MergingPair(NamedTuple):
    """Two distinct kernels that are equal at some batch, and differ at others.

    Attributes:
        group_index: their group.
        first: the place of one of them in the group.
        second: the place of the other.
    """

    group_index: int
    first: int
    second: int


class _Group(NamedTuple):
    """Distinct kernels that differ in numbers alone.

    Attributes:
        kernel: one of them, for all that is no number.
        distinct_indices: their places among the distinct kernels.
        first_numbers: their numbers at the first batch, a row for each number.
        last_numbers: their numbers at the last batch; no rows without one.
    """

    kernel: Kernel
    distinct_indices: Ints
    first_numbers: Floats
    last_numbers: Floats

    def interpolate_numbers(self, share: float) -> Floats:
        """Return their numbers at a share of the way from the first to the last batch."""
        numbers: Floats = self.first_numbers + (self.last_numbers - self.first_numbers) * share
        return numbers


class Kernels:
    """Kernels as columns of the distinct ones.

    Kernels of different `owners` are distinct. `last_kernels` are the same kernels at another
    batch, for `interpolate`.

    Attributes:
        distinct: the distinct kernels.
        distinct_of_kernel: for each kernel, the place of its distinct one.
        owner: the owner of each distinct kernel.
        error_classes: distinct kernels by the error of their prices.
        groups: rows of distinct kernels that differ in numbers alone, with their places;
            collectives are in none.
        batch_count: number of batches, a column each.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        last_kernels: Sequence[Kernel] = (),
        owners: Sequence[int] = (),
    ) -> None:
        # Kernels of equal priced fields (and owner) are priced once. With `last_kernels` these are
        # the same kernels at a second batch, between which numbers are interpolated.
        index_of_key: dict[object, int] = {}  # of a distinct kernel, by its priced fields
        class_of_key: dict[object, int] = {}  # error classes: kernels that differ in pages alone
        distinct_of_kernel: list[int] = []
        class_of_distinct: list[int] = []
        distinct_owners: list[int] = []
        distinct_last: list[Kernel] = []
        self.distinct: list[Kernel] = []
        for i, (kernel, last) in enumerate(zip(kernels, last_kernels or kernels, strict=True)):
            owner = owners[i] if owners else 0
            last_fields = _priced_fields_of(last) if last_kernels else ()
            key = (_priced_fields_of(kernel), last_fields, owner)
            next_index = len(self.distinct)
            distinct_index = index_of_key.setdefault((key, kernel.fresh), next_index)
            distinct_of_kernel.append(distinct_index)
            if distinct_index < next_index:  # a repeat
                continue
            self.distinct.append(kernel)
            distinct_last.append(last)
            distinct_owners.append(owner)
            class_of_distinct.append(class_of_key.setdefault(key, len(class_of_key)))
        self.owner: Ints = np.array(distinct_owners, dtype=np.intp)
        class_indices = np.array(class_of_distinct, dtype=np.intp)
        self.error_classes = ErrorClasses(class_indices, class_count=len(class_of_key))
        self.distinct_of_kernel: Ints = np.array(distinct_of_kernel, dtype=np.intp)
        self.batch_count = 1
        self._groups = _group_kernels(self.distinct, distinct_last if last_kernels else [])
        self.groups: list[tuple[Rows, Ints]] = [
            (_make_rows(group.kernel, [*group.first_numbers]), group.distinct_indices)
            for group in self._groups
        ]

    def interpolate(self, shares: Floats) -> Kernels:
        """Return the kernels between the first (0) and the last batch (1), a column a share."""
        kernels = copy(self)
        kernels.batch_count = len(shares)
        kernels.groups = []
        for group in self._groups:
            # A row of numbers that depends on the batch becomes [kernels, batches]; a constant one
            # has a single batch, to which numpy broadcasts.
            change = group.last_numbers - group.first_numbers
            columns = list(group.first_numbers[:, :, None])
            for i in np.flatnonzero(change.any(axis=1)).tolist():
                columns[i] = group.first_numbers[i, :, None] + change[i, :, None] * shares
            kernels.groups.append((_make_rows(group.kernel, columns), group.distinct_indices))
        return kernels

    def find_merging(self, length: int) -> dict[int, list[MergingPair]]:
        """Return the pairs of distinct kernels that are equal at a batch, by that batch.

        Two products of 1 and 3 rows at the first batch, of 5 and 3 at the last are so halfway.

        Args:
            length: difference of both batches; batches are counted from the first one.
        """
        pairs_by_offset: dict[int, list[MergingPair]] = {}
        for group_index, group in enumerate(self._groups):
            for meeting in _find_meetings(group):
                nearest_batch = round(meeting.share * length)
                numbers = group.interpolate_numbers(nearest_batch / length)
                # Lines that meet between two whole batches are equal at neither of them.
                if np.allclose(numbers[:, meeting.first], numbers[:, meeting.second], EQUAL, 0.0):
                    pair = MergingPair(group_index, meeting.first, meeting.second)
                    pairs_by_offset.setdefault(nearest_batch, []).append(pair)
        return pairs_by_offset

    @cached_property
    def counts(self) -> Floats:
        """The number of times each distinct kernel runs."""
        return np.bincount(self.distinct_of_kernel, minlength=len(self.distinct)).astype(float)

    @cached_property
    def passes(self) -> Ints:
        """The place of the pass of each distinct kernel."""
        return np.array([PASS_INDEX[kernel.pass_] for kernel in self.distinct], dtype=np.intp)

    def price(self, price_rows: PriceRows) -> Prices:
        """Return the prices of the distinct kernels; collectives have none (0)."""
        columns: Floats = np.zeros((len(Prices._fields), len(self.distinct)))
        for rows, distinct_indices in self.groups:
            interval = as_interval(price_rows(rows, distinct_indices))
            for column, value in zip(columns, interval, strict=True):
                column[distinct_indices] = np.nan if value is None else value
        return Prices._make(columns)

    def price_sums(
        self,
        price_rows: PriceRows,
        counts: Floats,
        merging: Mapping[int, Sequence[MergingPair]] = MappingProxyType({}),
    ) -> SumParts:
        """Return the parts of sums of prices, at each batch.

        Args:
            price_rows: the price of a group.
            counts: a row for each sum with the number of times that each distinct kernel runs; all
                runs of a kernel have one common error.
            merging: pairs of distinct kernels that are equal at a batch, by the place of the batch.
        """
        sums: Floats = np.zeros((len(SumParts._fields), len(counts), self.batch_count))
        for group_index, (rows, distinct_indices) in enumerate(self.groups):
            all_counts = counts[:, distinct_indices]
            is_used = all_counts.any(axis=1)  # whether a sum has kernels of this group
            group_counts = all_counts[is_used]
            interval = as_interval(price_rows(rows, distinct_indices))
            prices = Prices._make(_to_two_axes(interval, len(distinct_indices)))
            # Kernels that become equal at a batch have one common error there.
            pairs = [
                (batch_index, pair)
                for batch_index, batch_pairs in merging.items()
                for pair in batch_pairs
                if pair.group_index == group_index
            ]
            add_squares = partial(_add_squares, group_counts, self.batch_count, pairs)
            parts = prices.sum_parts(group_counts.__matmul__, add_squares)  # counts @ values
            for total, part in zip(sums, parts, strict=True):
                total[is_used] += part
        return SumParts._make(sums)


def _to_two_axes(interval: Interval, kernel_count: int) -> Iterator[Any]:
    """Yield the fields of a group's price as arrays: kernels by batches, NaN where unknown."""
    column = np.ones((kernel_count, 1))
    for value in interval:
        number: Any = np.nan if value is None else value
        yield number if np.ndim(number) else number * column


def _add_squares(
    counts: Floats,
    batch_count: int,
    pairs: Sequence[tuple[int, MergingPair]],
    squares: Floats,
) -> Floats:
    """Return sums of squared errors of kernels: a kernel that runs n times adds n^2 times its own.

    Two kernels that are equal at a batch are one there, which runs n + m times: `(n + m)^2` is
    `n^2 + m^2 + 2 n m`.

    Args:
        counts: a row for each sum with the number of times that each kernel runs.
        batch_count: number of batches.
        pairs: kernels that are equal at a batch, each with the index of the batch.
        squares: squared errors, kernels by batches (or by one, if all batches have the same).
    """
    sums: Floats = counts**2 @ squares
    if not pairs:
        return sums
    sums = np.repeat(sums, batch_count // sums.shape[1], axis=1)
    has_column_per_batch = squares.shape[1] > 1
    for batch_index, pair in pairs:  # n and m errors become n + m: (n + m)^2 - n^2 - m^2 = 2 n m
        square = squares[pair.first, batch_index if has_column_per_batch else 0]
        sums[:, batch_index] += 2 * counts[:, pair.first] * counts[:, pair.second] * square
    return sums


class _Meeting(NamedTuple):
    """Two kernels of a group that are equal at a `share` of the way to the last batch."""

    first: int
    second: int
    share: float


def _find_meetings(group: _Group) -> Iterator[_Meeting]:
    """Yield the pairs of a group's kernels that are equal at some share of the way."""
    number_count, kernel_count = group.first_numbers.shape
    block = 1 + MEETING_NUMBERS // (number_count * kernel_count)  # kernels whose pairs fit memory
    for start in range(0, kernel_count, block):
        in_block = slice(start, start + block)
        # Differences of all pairs at both batches: [numbers, kernels of the block, all kernels].
        initial = group.first_numbers[:, None] - group.first_numbers[:, in_block, None]
        final = group.last_numbers[:, None] - group.last_numbers[:, in_block, None]
        shares = _find_zeros(initial, final)
        for index_in_block, second in np.argwhere(~np.isnan(shares)).tolist():
            first = start + index_in_block
            if first < second:  # each pair once
                yield _Meeting(first, second, float(shares[index_in_block, second]))


def _find_zeros(initial: Floats, final: Floats) -> Floats:
    """Return, of each pair of kernels, the share of the way where they are equal; NaN without one.

    `initial` and `final` are the differences of their numbers (axis 0) at both batches, between
    which each difference is a line.
    """
    changes = initial != final
    always_differs = (~changes & (initial != 0)).any(axis=0)  # in a number, by a constant amount
    is_equal_throughout = ~changes.any(axis=0)  # if not `always_differs`: nothing merges here
    # Each line is 0 at one share. The pair is equal where these shares are the same for all lines.
    zero_share = initial / np.where(changes, initial - final, 1.0)  # no division by 0
    lowest = np.where(changes, zero_share, np.inf).min(axis=0)
    highest = np.where(changes, zero_share, -np.inf).max(axis=0)
    is_common = highest - lowest <= EQUAL_SHARES
    is_between_batches = (lowest >= 0) & (highest <= 1)
    is_meeting = is_common & is_between_batches & ~always_differs & ~is_equal_throughout
    shares: Floats = np.where(is_meeting, lowest, np.nan)
    return shares


def _group_kernels(kernels: Sequence[Kernel], last_kernels: Sequence[Kernel]) -> list[_Group]:
    """Group kernels that differ in numbers alone; collectives, priced by links, are in none."""
    indices_by_class: dict[object, list[int]] = {}
    for index, kernel in enumerate(kernels):
        if kernel.exchange is None:
            counts = len(kernel.products), len(kernel.figures), kernel.window is None
            indices_by_class.setdefault((_class_of(kernel), counts), []).append(index)
    groups = []
    for indices in indices_by_class.values():
        first_numbers = [kernel_numbers(kernels[i]) for i in indices]
        last_numbers: list[Numbers] = [()] * len(indices)
        if last_kernels:
            last_numbers = [kernel_numbers(last_kernels[i]) for i in indices]
        group = _Group(
            kernels[indices[0]],
            np.array(indices),
            _to_columns(first_numbers),
            _to_columns(last_numbers),
        )
        groups.append(group)
    return groups


def _to_columns(rows: Sequence[Numbers]) -> Floats:
    columns: Floats = np.array(rows, dtype=float).T
    return columns


def _make_rows(kernel: Kernel, columns: Sequence[Floats]) -> Rows:
    """Return a group as rows of arrays.

    Args:
        kernel: a kernel of the group, for all that is no number.
        columns: the numbers of the group, in the order of `kernel_numbers`.
    """
    # In the order of `kernel_numbers` and `Rows`: scalars, window, sizes of products, figures.
    scalars = columns[:SCALAR_NUMBERS]
    products_start = SCALAR_NUMBERS
    window: tuple[Any, ...] | None = None
    if kernel.window is not None:
        products_start += WINDOW_NUMBERS
        window = tuple(columns[SCALAR_NUMBERS:products_start])
    products_end = products_start + 4 * len(kernel.products)
    starts = range(products_start, products_end, 4)
    products: Any = tuple([tuple(columns[start : start + 4]) for start in starts])
    figures = tuple(columns[products_end:])
    return Rows._make((*_class_of(kernel), *scalars, window, products, figures))

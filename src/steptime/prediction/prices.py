"""The prices of many kernels as arrays, and their sums with bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steptime.prediction.kernel import Interval

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Adding = Callable[[Floats], Floats]


class Prices(NamedTuple):
    """The seconds of many kernels: the fields of `Interval`, as arrays with a row for each.

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
    def from_intervals(cls, times: Sequence[Interval]) -> Prices:
        """Return the seconds of kernels, one after the other."""
        return cls._make(np.array(times, dtype=float).reshape(-1, len(cls._fields)).T)

    def take(self, places: Any) -> Prices:
        """Return the seconds of the kernels at places, which may repeat."""
        return Prices._make(column[places] for column in self)

    def times(self, factor: Any) -> Prices:
        """Return the prices, their seconds multiplied by a factor."""
        return self._replace(
            value=self.value * factor,
            low=self.low * factor,
            high=self.high * factor,
            compute_s=self.compute_s * factor,
            memory_s=self.memory_s * factor,
        )

    def intervals(self) -> list[Interval]:
        """Return the seconds of each kernel."""
        # The column is 0.0 or 1.0 for a kernel; in a sum it counts the extrapolated kernels.
        is_extrapolated = self.is_extrapolated > 0
        columns = zip(  # in the order of the fields of `Interval`
            self.value.tolist(),
            _unknown_as_none(self.low),
            _unknown_as_none(self.high),
            is_extrapolated.tolist(),
            self.compute_s.tolist(),
            self.memory_s.tolist(),
            self.shared.tolist(),
            strict=True,
        )
        return [*map(Interval._make, columns)]

    def sum_correlated(self, sum_of_row: Ints, sum_count: int) -> Prices:
        """Return sums of kernels that have one common error, such as repeats of one.

        The share of the error that all kernels of a device have in common is that of the first
        kernel of each sum.
        """
        sums = Prices._make(sum_rows(column, sum_of_row, sum_count) for column in self)
        # Assigned backwards, since an index that repeats keeps the last value assigned to it: here
        # the first kernel of its sum.
        first_kernel = np.zeros(sum_count, dtype=np.intp)
        first_kernel[sum_of_row[::-1]] = np.arange(len(sum_of_row))[::-1]
        return sums._replace(shared=self.shared[first_kernel])

    def sum_groups(self, sum_of_row: Ints, sum_count: int) -> Prices:
        """Return sums of different kernels, with a bound where all of them have one.

        Errors that kernels share add up; the others are independent, and add as squares. Two
        kernels of 1 s, each off by 0.5 s shared and 0.1 s of its own, are off by 1 s shared and
        0.14 s of their own.
        """

        def add(column: Floats) -> Floats:
            return sum_rows(column, sum_of_row, sum_count)

        # Every kernel stands once, so that squares of errors are added like all else.
        return self.sum_parts(add, add_squares=add).to_prices()

    def sum_parts(self, add: Adding, add_squares: Adding) -> SumParts:
        """Return the parts of sums.

        Args:
            add: adds up a column by sums.
            add_squares: adds up a column of squared errors by sums. A kernel that runs n times with
                one common error has n^2 times the square.
        """
        below = -_offset(self.low, self.value)
        above = _offset(self.high, self.value)
        shared = self.shared
        # An error splits into `shared` of it, which adds up over kernels, and an independent rest:
        # error^2 = (shared error)^2 + independent error^2, of which squares add up.
        independent = 1 - shared**2
        return SumParts(
            value=add(self.value),
            low=add(self.low),
            high=add(self.high),
            is_extrapolated=add(self.is_extrapolated),
            compute_s=add(self.compute_s),
            memory_s=add(self.memory_s),
            shared_below=add(shared * below),
            shared_above=add(shared * above),
            squares_below=add_squares(independent * below**2),
            squares_above=add_squares(independent * above**2),
        )

    def total(self) -> Interval:
        """Return the sum of all kernels, as `sum_groups` adds them."""
        return self.sum_groups(np.zeros(len(self.value), dtype=np.intp), sum_count=1).intervals()[0]


def _unknown_as_none(bounds: Floats) -> list[float | None]:
    """Return bounds as a list, those that are NaN as None."""
    values: list[float] = bounds.tolist()
    return [None if value != value else value for value in values]  # noqa: PLR0124  # NaN


def _offset(bound: Floats, value: Floats) -> Floats:
    """Return `bound - value`; an unknown bound of all batches stays one column of NaN."""
    is_unknown_column = bound.shape != value.shape and np.isnan(bound).all()
    return bound if is_unknown_column else bound - value


class SumParts(NamedTuple):
    """The parts of sums of prices, each an array with a row for each sum.

    Attributes:
        value: seconds.
        low: seconds at the lower bounds, if errors were all equal.
        high: seconds at the upper bounds, likewise.
        is_extrapolated: number of extrapolated kernels.
        compute_s: seconds of arithmetic.
        memory_s: seconds of traffic.
        shared_below: shared errors below the value.
        shared_above: shared errors above the value.
        squares_below: squares of the independent errors below the value.
        squares_above: squares of the independent errors above the value.
    """

    value: Floats
    low: Floats
    high: Floats
    is_extrapolated: Floats
    compute_s: Floats
    memory_s: Floats
    shared_below: Floats
    shared_above: Floats
    squares_below: Floats
    squares_above: Floats

    def sum_all(self) -> SumParts:
        """Return the parts of the one sum of all sums."""
        return SumParts._make(part.sum(axis=0) for part in self)

    def to_prices(self) -> Prices:
        """Return the sums with their bounds."""
        # Common and independent errors add up as squares. Without independent ones the bounds are
        # the sums of the kernels' bounds; likewise where a kernel has none (NaN, which is not > 0).
        has_independent_errors = self.squares_below + self.squares_above > 0
        below = np.sqrt(self.shared_below**2 + self.squares_below)
        above = np.sqrt(self.shared_above**2 + self.squares_above)
        # 1, all of the error is common, where there is no independent one to divide by.
        is_divisible = has_independent_errors & (above > 0)
        shared = np.divide(self.shared_above, above, out=np.ones_like(above), where=is_divisible)
        return Prices(
            self.value,
            low=np.where(has_independent_errors, self.value - below, self.low),
            high=np.where(has_independent_errors, self.value + above, self.high),
            is_extrapolated=self.is_extrapolated,
            compute_s=self.compute_s,
            memory_s=self.memory_s,
            shared=shared,
        )


def sum_rows(column: Floats, sum_of_row: Ints, sum_count: int) -> Floats:
    """Return the sums of a column's rows, each added to the sum that it belongs to."""
    if column.ndim == 1:  # `bincount` is quicker, but adds single numbers alone
        sums: Floats = np.bincount(sum_of_row, column, sum_count).astype(float)
        return sums
    sums = np.zeros((sum_count, *column.shape[1:]))
    if len(sum_of_row):
        # Rows of one sum must be neighbours for `reduceat`.
        order = np.argsort(sum_of_row, kind="stable")
        filled_sums, starts = np.unique(sum_of_row[order], return_index=True)
        sums[filled_sums] = np.add.reduceat(column[order], starts)
    return sums

"""What PyTorch's allocator reserves at many batches, from the sizes of tensors at two of them.

The size of each tensor is a line in the batch, what it reserves is not: it rounds sizes
up, and puts them into pools by their size. So sizes are interpolated, and rounded at each batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steptime.prediction.memory import Allocation
from steptime.prediction.prices import Floats, Ints
from steptime.prediction.steps.allocator import (
    BLOCK_MULTIPLE,
    LARGE_MULTIPLE,
    LARGE_POOL,
    MAX_SHARED_BYTES,
    MAX_SMALL_BYTES,
    SEGMENT_BYTES,
    MomentSizes,
    flatten_sizes,
    peak_segment_bytes,
)

CHUNK = 1 << 18  # numbers of a column at once
MIN_CHUNK = 1 << 14  # below, calls of numpy take longer than its arithmetic
MIN_CHUNK_SHARES = 64
MAX_NARROW_CHUNKS = 256
POOL_COUNT = LARGE_POOL + 1
SIZE_STEP = 1 / 256  # of a byte: interpolated sizes are rounded to it, far above their error


class _SizesByUse(NamedTuple):
    """The tensors of a step with the moments in which they are allocated, used or freed.

    Attributes:
        allocated: tensors that live on after the moment.
        scratch: tensors that live during the moment alone.
        freed: the allocated tensors again, with the last moment in which they live.
    """

    allocated: MomentSizes
    scratch: MomentSizes
    freed: MomentSizes

    @classmethod
    def from_allocations(cls, allocations: Sequence[Allocation]) -> _SizesByUse:
        """Return the tensors of the moments of a step."""
        return cls(
            allocated=flatten_sizes([moment.allocated for moment in allocations]),
            scratch=flatten_sizes([moment.scratch for moment in allocations]),
            freed=flatten_sizes([moment.freed for moment in allocations]),
        )

    def all_sizes(self) -> NDArray[np.int64]:
        """Return the bytes of all tensors: allocated ones, scratch, freed ones."""
        return np.concatenate([use.sizes for use in self])


@dataclass(frozen=True)
class BlockLines:
    """The distinct sizes of a step's tensors at both ends of their lines, and how many live when.

    `counts` has a row for each moment of the step and a column for each size.
    """

    first_bytes: Floats
    last_bytes: Floats
    counts: Floats

    @classmethod
    def through_batches(cls, first: Sequence[Allocation], last: Sequence[Allocation]) -> BlockLines:
        """Return the lines through the allocations of the same step at two batches."""
        # Both batches have the same tensors at the same moments; only the sizes differ.
        first_sizes = _SizesByUse.from_allocations(first)
        last_sizes = _SizesByUse.from_allocations(last)
        # A row for each tensor: its bytes at both batches. Tensors of equal rows share a column of
        # the counts.
        end_sizes = np.stack([first_sizes.all_sizes(), last_sizes.all_sizes()], axis=1)
        distinct_sizes, columns = np.unique(end_sizes, axis=0, return_inverse=True)
        counts = _count_live(first_sizes, columns.reshape(-1), len(first), len(distinct_sizes))
        has_bytes = distinct_sizes.any(axis=1)  # ops without scratch allocate 0 bytes of it
        first_bytes, last_bytes = distinct_sizes[has_bytes].astype(float).T
        return cls(
            first_bytes, last_bytes, _drop_dominated_rows(counts[:, has_bytes]).astype(float)
        )

    def reserved_bytes(self, shares: Floats) -> Ints:
        """Return the most bytes that the allocator reserves, at shares of the way to the end."""
        # Shares are taken in chunks: at near batches few moments can hold the peak, and only those
        # are computed (`_can_reserve_peak`).
        moment_count = len(self.counts)
        # The shorter a chunk is, the more moments it leaves out, but it must outweigh the cost of
        # numpy's calls. Memory limits the longest: moments by shares in one array.
        worthwhile_length = max(
            MIN_CHUNK_SHARES, MIN_CHUNK // moment_count, len(shares) // MAX_NARROW_CHUNKS
        )
        max_length = max(1, CHUNK // moment_count)
        chunk_length = min(worthwhile_length, max_length)
        chunk_count = -(-len(shares) // chunk_length) or 1  # no shares make one empty chunk
        chunks = np.array_split(shares, chunk_count)
        return np.concatenate([self._reserved_bytes(chunk_shares) for chunk_shares in chunks])

    def _reserved_bytes(self, shares: Floats) -> Ints:
        """Return the most bytes that the allocator reserves at the shares of one chunk."""
        counts = self.counts[self._can_reserve_peak(shares)]
        sizes = self._interpolate_sizes(shares)
        pool_of_sizes = _pools_of(sizes)
        blocks = _round_to_blocks(sizes)
        # By moment and share: each pool's blocks, rounded up to whole segments where it has them.
        reserved: Floats = np.zeros((len(counts), len(shares)))
        for pool in range(POOL_COUNT):
            is_in_pool = pool_of_sizes == pool
            is_ever_in_pool = is_in_pool.any(axis=1)  # of each size: whether it is at some share
            pool_blocks = np.where(is_in_pool, blocks, 0.0)[is_ever_in_pool]
            pool_bytes = counts[:, is_ever_in_pool] @ pool_blocks
            has_segments = pool < len(SEGMENT_BYTES)
            if has_segments:
                pool_bytes = np.ceil(pool_bytes / SEGMENT_BYTES[pool]) * SEGMENT_BYTES[pool]
            reserved += pool_bytes
        peak_bytes: Ints = np.rint(reserved.max(axis=0)).astype(np.intp)
        return peak_bytes

    def _can_reserve_peak(self, shares: Floats) -> NDArray[np.bool_]:
        """Return, of each moment, whether most may be reserved in it at one of the shares.

        A moment reserves at least its blocks, and less than a segment of each pool beyond them.
        """
        end_sizes = self._interpolate_sizes(np.array([shares.min(), shares.max()]))
        lower_bytes = self.counts @ _round_to_blocks(end_sizes.min(axis=1))
        upper_bytes = self.counts @ _round_to_blocks(end_sizes.max(axis=1))
        # Rounding a pool up to whole segments adds less than one segment.
        rounding_bytes = sum(SEGMENT_BYTES)
        can_be_peak: NDArray[np.bool_] = upper_bytes + rounding_bytes >= lower_bytes.max()
        return can_be_peak

    def _interpolate_sizes(self, shares: Floats) -> Floats:
        """Return the bytes of each tensor at each share."""
        change = self.last_bytes - self.first_bytes
        sizes: Floats = self.first_bytes[:, None] + change[:, None] * shares
        return np.rint(sizes / SIZE_STEP) * SIZE_STEP


def _count_live(
    sizes: _SizesByUse, columns: Ints, moment_count: int, column_count: int
) -> NDArray[np.int32]:
    """Return the number of live tensors of each column in each moment, as [moments, columns].

    Args:
        sizes: the tensors of the step.
        columns: the column of each tensor, in the order of `_SizesByUse.all_sizes`.
        moment_count: number of moments.
        column_count: number of columns.
    """
    allocated_end = len(sizes.allocated.sizes)
    scratch_end = allocated_end + len(sizes.scratch.sizes)
    allocated_columns, scratch_columns, freed_columns = np.split(
        columns, [allocated_end, scratch_end]
    )
    # One row more, for tensors that are freed after the last moment.
    counts = np.zeros((moment_count + 1, column_count), np.int32)
    np.add.at(counts, (sizes.allocated.moments, allocated_columns), 1)
    # Freed tensors live until the end of their moment, so that only later ones lack them.
    np.add.at(counts, (sizes.freed.moments + 1, freed_columns), -1)
    np.cumsum(counts, axis=0, out=counts)
    np.add.at(counts, (sizes.scratch.moments, scratch_columns), 1)
    return counts[:-1]


def _pools_of(sizes: Floats) -> NDArray[np.int8]:
    """Return the pool of tensors by their size: small, middle or large."""
    return (sizes > MAX_SMALL_BYTES).astype(np.int8) + (sizes > MAX_SHARED_BYTES)


def _round_to_blocks(sizes: Floats) -> Floats:
    """Return the bytes of the blocks of tensors."""
    units = np.where(_pools_of(sizes) == LARGE_POOL, LARGE_MULTIPLE, BLOCK_MULTIPLE)
    blocks: Floats = np.ceil(sizes / units) * units
    return blocks


def block_lines_through(
    batches: tuple[int, int, int], allocations: Sequence[Sequence[Allocation]]
) -> BlockLines | None:
    """Return the lines through a step's allocations at three batches, None if they lie on none.

    The lines go through the first and the last; what they say of the batch between must be what
    its own allocations say.
    """
    low_sizes, middle_sizes, high_sizes = allocations
    has_equal_shapes = _have_equal_shape(low_sizes, middle_sizes) and _have_equal_shape(
        low_sizes, high_sizes
    )
    if not has_equal_shapes:
        return None
    # The batch in the middle was not used for the lines: it shows whether they are straight.
    lines = BlockLines.through_batches(low_sizes, high_sizes)
    low, middle, high = batches
    middle_share = (middle - low) / (high - low)
    interpolated_bytes = lines.reserved_bytes(np.array([middle_share]))
    return lines if interpolated_bytes == peak_segment_bytes(middle_sizes) else None


def _have_equal_shape(first: Sequence[Allocation], second: Sequence[Allocation]) -> bool:
    """Return whether both have equally many sizes at each moment."""
    return [[*map(len, moment)] for moment in first] == [[*map(len, moment)] for moment in second]


def _drop_dominated_rows(counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the rows of which no other row has at least as many of every size.

    At any batch the allocator reserves most in one of them.
    """
    # First a quick filter by neighbours: most moments have no more than the one before or after.
    is_dominated_by_former = (counts[:-1] >= counts[1:]).all(axis=1)  # for rows 1, 2, ...
    is_dominated_by_next = (counts[1:] >= counts[:-1]).all(axis=1)  # for rows 0, 1, ...
    is_candidate = np.ones(len(counts), dtype=bool)
    is_candidate[:-1] &= ~is_dominated_by_next
    # Equal neighbours dominate each other: the later one stays.
    are_equal = is_dominated_by_former & is_dominated_by_next
    is_candidate[1:] &= ~is_dominated_by_former | are_equal
    distinct = np.unique(counts[is_candidate], axis=0)
    # A row can only be dominated by one with a larger sum: these come first.
    ordered = distinct[np.argsort(-distinct.sum(axis=1), kind="stable")]
    largest = np.empty_like(ordered)
    row_count = 0
    for row in ordered:
        is_dominated = (largest[:row_count] >= row).all(axis=1).any()
        if not is_dominated:
            largest[row_count] = row
            row_count += 1
    return largest[:row_count]

"""What PyTorch's allocator reserves at many batches, from the sizes of tensors at two of them.

The size of each tensor is a line in the batch, what it reserves is not: it rounds sizes
up, and puts them into pools by their size. So sizes are interpolated, and rounded at each batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steptime.prediction.memory import Allocation
from steptime.prediction.prices import Floats, Ints
from steptime.prediction.steps.allocator import (
    BLOCK_MULTIPLE,
    LARGE_MULTIPLE,
    MAX_SHARED_BYTES,
    MAX_SMALL_BYTES,
    SEGMENT_BYTES,
)

CHUNK = 1 << 18  # numbers of a column at once
POOL_COUNT = 3  # small, middle and large blocks; large ones are segments themselves
SIZE_STEP = 1 / 256  # of a byte: interpolated sizes are rounded to it, far above their error


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
        # The moments below have indices of columns in place of bytes.
        columns: dict[tuple[int, int], int] = {}  # a column for each pair of sizes at both ends

        def find_columns(sizes: list[int], end_sizes: list[int]) -> list[int]:
            ends = zip(sizes, end_sizes, strict=True)
            return [columns.setdefault(pair, len(columns)) for pair in ends]

        moments = []
        for first_sizes, last_sizes in zip(first, last, strict=True):
            allocated = find_columns(first_sizes.allocated, last_sizes.allocated)
            scratch = find_columns(first_sizes.scratch, last_sizes.scratch)
            freed = find_columns(first_sizes.freed, last_sizes.freed)
            moments.append(Allocation(allocated, scratch, freed))
        live = np.zeros(len(columns))
        counts = np.zeros((len(moments), len(columns)))
        for moment_counts, moment in zip(counts, moments, strict=True):
            np.add.at(live, moment.allocated, 1.0)
            # Scratch counts during its moment alone, freed tensors until its end.
            moment_counts[:] = live
            np.add.at(moment_counts, moment.scratch, 1.0)
            np.add.at(live, moment.freed, -1.0)
        first_bytes, last_bytes = np.array([*columns], dtype=float).reshape(-1, 2).T
        return cls(first_bytes, last_bytes, _drop_dominated_rows(counts))

    def reserved_bytes(self, shares: Floats) -> Ints:
        """Return the most bytes that the allocator reserves, at shares of the way to the end."""
        chunk_count = -(-len(shares) * len(self.counts) // CHUNK) or 1  # bounds memory
        chunks = np.array_split(shares, chunk_count)
        return np.concatenate([self._reserved_bytes(chunk_shares) for chunk_shares in chunks])

    def _reserved_bytes(self, shares: Floats) -> Ints:
        """Return the most bytes that the allocator reserves at the shares of one chunk."""
        change = self.last_bytes - self.first_bytes
        is_changing = change != 0  # sizes that depend on the batch
        constant_sizes = self.first_bytes[~is_changing, None]
        interpolated_sizes = (
            self.first_bytes[is_changing, None] + change[is_changing, None] * shares
        )
        changing_sizes = np.rint(interpolated_sizes / SIZE_STEP) * SIZE_STEP
        # By moment and share: each pool's blocks, rounded up to whole segments where it has them.
        reserved: Floats = np.zeros((len(self.counts), len(shares)))
        for pool in range(POOL_COUNT):
            pool_bytes = self.counts[:, is_changing] @ _in_pool(changing_sizes, pool)
            pool_bytes += self.counts[:, ~is_changing] @ _in_pool(constant_sizes, pool)
            has_segments = pool < len(SEGMENT_BYTES)
            if has_segments:
                pool_bytes = np.ceil(pool_bytes / SEGMENT_BYTES[pool]) * SEGMENT_BYTES[pool]
            reserved += pool_bytes
        peak_bytes: Ints = np.rint(reserved.max(axis=0)).astype(np.intp)
        return peak_bytes


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
    # Lines between equal ends are constant: the exact bytes of the middle batch.
    exact_bytes = BlockLines.through_batches(middle_sizes, middle_sizes).reserved_bytes(np.zeros(1))
    return lines if interpolated_bytes == exact_bytes else None


def _have_equal_shape(first: Sequence[Allocation], second: Sequence[Allocation]) -> bool:
    """Return whether both have equally many sizes at each moment."""
    return [[*map(len, moment)] for moment in first] == [[*map(len, moment)] for moment in second]


def _in_pool(sizes: Floats, pool: int) -> Floats:
    """Return the rounded sizes of the tensors in a pool (small, middle, large), 0 for others."""
    unit = LARGE_MULTIPLE if pool == len(SEGMENT_BYTES) else BLOCK_MULTIPLE
    is_inside = ((sizes > MAX_SMALL_BYTES).astype(int) + (sizes > MAX_SHARED_BYTES)) == pool
    rounded: Floats = np.where(is_inside, np.ceil(sizes / unit) * unit, 0.0)
    return rounded


def _drop_dominated_rows(counts: Floats) -> Floats:
    """Return the rows of which no other row has at least as many of every size.

    At any batch the allocator reserves most in one of them.
    """
    distinct = np.unique(counts, axis=0)
    # A row can only be dominated by one with a larger sum: these come first.
    ordered = distinct[np.argsort(-distinct.sum(axis=1), kind="stable")]
    largest: Floats = ordered[:0]
    for row in ordered:
        is_dominated = (largest >= row).all(axis=1).any()
        if not is_dominated:
            largest = np.vstack([largest, row])
    return largest

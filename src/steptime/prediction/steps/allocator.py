"""The blocks of PyTorch's caching allocator: the bytes that it holds beyond tensors."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steptime.core.graph import Graph
from steptime.hardware.stack import Stack
from steptime.prediction.memory import MIB, Allocation, list_allocations

# c10/cuda/CUDACachingAllocator.cpp: requests are multiples of 512 bytes; those of at most 1 MiB
# share segments of 2 MiB, those below 10 MiB segments of 20 MiB, larger ones are multiples of 2 MiB
BLOCK_MULTIPLE, MAX_SMALL_BYTES, MAX_SHARED_BYTES, LARGE_MULTIPLE = 512, MIB, 10 * MIB, 2 * MIB
SEGMENT_BYTES = (2 * MIB, 20 * MIB)
SMALL_POOL, MIDDLE_POOL, LARGE_POOL = range(3)  # blocks of the last one are segments themselves


def blocks_bytes(
    graph: Graph, stack: Stack, peak_bytes: int, sizes: Mapping[str, int] | None = None
) -> int:
    """Return the most bytes that PyTorch's allocator holds beyond the `peak_bytes` of tensors.

    Three tensors of 100 bytes lie in one segment of 2 MiB; one of 11 MiB in one of 12. No gap
    between living tensors is counted. `sizes` are as those of `live_bytes`.
    """
    return peak_segment_bytes(list_allocations(graph, stack, sizes)) - peak_bytes


def peak_segment_bytes(allocations: Sequence[Allocation]) -> int:
    """Return the most bytes that PyTorch's allocator holds during a step (`blocks_bytes`)."""
    allocated = _sum_pools([allocation.allocated for allocation in allocations])
    scratch = _sum_pools([allocation.scratch for allocation in allocations])
    freed = _sum_pools([allocation.freed for allocation in allocations])
    freed_before = freed.cumsum(axis=1) - freed  # what a moment frees lives until its end
    pools = allocated.cumsum(axis=1) - freed_before + scratch
    # A large block is a segment of its own; blocks of the other pools fill whole segments.
    moment_bytes = pools[LARGE_POOL]
    for pool, segment in enumerate(SEGMENT_BYTES):
        moment_bytes = moment_bytes + -(-pools[pool] // segment) * segment
    return int(moment_bytes.max())


def _sum_pools(sizes_of_moments: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return the bytes of tensors in the pools of small, middle and large ones at each moment."""
    moments, sizes = flatten_sizes(sizes_of_moments)
    is_large = sizes > MAX_SHARED_BYTES
    multiples = np.where(is_large, LARGE_MULTIPLE, BLOCK_MULTIPLE)
    rounded_bytes = -(-sizes // multiples) * multiples
    pool_of_sizes = np.where(sizes <= MAX_SMALL_BYTES, SMALL_POOL, MIDDLE_POOL)
    pool_of_sizes[is_large] = LARGE_POOL
    pools = np.zeros((LARGE_POOL + 1, len(sizes_of_moments)), np.int64)
    np.add.at(pools, (pool_of_sizes, moments), rounded_bytes)
    return pools


class MomentSizes(NamedTuple):
    """Sizes of tensors, in bytes, and the moment of a step to which each belongs."""

    moments: NDArray[np.intp]
    sizes: NDArray[np.int64]


def flatten_sizes(sizes_of_moments: Sequence[Sequence[int]]) -> MomentSizes:
    """Return the sizes of all moments in one array, with the moment of each size.

    Sizes of 5 and 6 bytes in the first moment and of 7 in the third are `([0, 0, 2], [5, 6, 7])`.
    """
    counts = [len(sizes) for sizes in sizes_of_moments]
    moments = np.repeat(np.arange(len(counts)), counts)
    sizes = np.fromiter(chain.from_iterable(sizes_of_moments), np.int64, count=len(moments))
    return MomentSizes(moments, sizes)

"""How heads of attention, `[n, heads, length, width]`, are joined, and repeated where shared."""

import math

from steptime.core.graph import Op
from steptime.formats.elements import op, reshape, transpose
from steptime.formats.tensors import find_producer
from steptime.network.ops.builder import Builder

SWAP_LENGTH_AND_HEADS = (0, 2, 1, 3)  # [n, heads, length, width] <-> [n, length, heads, width]


def join_heads(b: Builder, x: str, name: str) -> str:
    """Return `[n, h, l, d] -> [n, l, h*d]`."""
    n, heads, length, width = b.shape(x)
    length_first = transpose(b, x, SWAP_LENGTH_AND_HEADS, f"{name}/transpose")
    return reshape(b, length_first, (n, length, heads * width), f"{name}/join")


def split_heads(b: Builder, x: str, heads: int, name: str) -> str:
    """Return `[n, l, h*d] -> [n, h, l, d]`."""
    n, length, width = b.shape(x)
    length_first = reshape(b, x, (n, length, heads, width // heads), f"{name}/heads")
    return transpose(b, length_first, SWAP_LENGTH_AND_HEADS, f"{name}/transpose")


def find_shared_heads(b: Builder, x: str, name: str) -> str:
    """Return the shared heads `[n, g, m, d]` that `x [n, h, m, d]` repeats, else `x` itself.

    Exporters repeat a head by a broadcast or a tile along a new axis, which a reshape then merges
    with the axis of heads. A transpose may follow, where heads come after the length.
    """
    swap = find_producer(b, x, "transpose")
    is_swapped = swap is not None and swap.attrs["order"] == SWAP_LENGTH_AND_HEADS
    merged = swap.inputs[0] if swap and is_swapped else x
    merge = find_producer(b, merged, "reshape")
    repeat = find_producer(b, merge.inputs[0] if merge else x, "broadcast", "tile")
    if repeat is None:
        return x
    if merge is None:
        return _find_single_head(b, x, repeat, is_swapped)
    repeat_axis = 3 if is_swapped else 2
    if not _repeats_along(b, repeat, merge, repeat_axis):
        return x
    shape = b.shape(repeat.inputs[0])
    without_axis = (*shape[:repeat_axis], *shape[repeat_axis + 1 :])
    shared = reshape(b, repeat.inputs[0], without_axis, f"{name}/shared")
    if not is_swapped:
        return shared
    return transpose(b, shared, SWAP_LENGTH_AND_HEADS, f"{name}/heads")


def _find_single_head(b: Builder, x: str, repeat: Op, is_swapped: bool) -> str:
    """Return the one head `[n, 1, m, d]` that a broadcast shows as all heads, else `x`."""
    shape = b.shape(repeat.inputs[0])
    repeated_shape = b.shape(repeat.outputs[0])
    has_single_head = shape == (*repeated_shape[:1], 1, *repeated_shape[2:])
    return repeat.inputs[0] if has_single_head and not is_swapped else x


def _repeats_along(b: Builder, repeat: Op, merge: Op, axis: int) -> bool:
    """Return whether `repeat` repeats along a new `axis` that `merge` joins to the one before."""
    shape = b.shape(repeat.inputs[0])
    repeated_shape = b.shape(repeat.outputs[0])
    if len(shape) != 5 or shape[axis] != 1:
        return False
    repeat_count = repeated_shape[axis]
    if repeated_shape != (*shape[:axis], repeat_count, *shape[axis + 1 :]):
        return False
    head_count = math.prod(repeated_shape[axis - 1 : axis + 1])
    return b.shape(merge.outputs[0]) == (*shape[: axis - 1], head_count, *shape[axis + 1 :])


def repeat_heads(b: Builder, x: str, times: int, name: str) -> str:
    """Return `[n, g, m, d] -> [n, g*times, m, d]`: each head follows itself `times` times."""
    n, groups, length, width = b.shape(x)
    upright = reshape(b, x, (n, groups, 1, length, width), f"{name}/apart")
    repeated = op(b, "tile", upright, name=f"{name}/repeat", times=(1, 1, times, 1, 1))
    return reshape(b, repeated, (n, groups * times, length, width), f"{name}/reshape")

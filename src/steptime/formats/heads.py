"""Heads of attention, `[n, heads, length, width]`: split, joined, repeated where shared (GQA)."""

from steptime.core.graph import Op
from steptime.formats.elements import append_op, reshape, transpose
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
    # backwards from `x`: a transpose, if any; a reshape that merges axes; a broadcast or tile
    transpose_op = find_producer(b, x, "transpose")
    is_swapped = transpose_op is not None and transpose_op.attrs["order"] == SWAP_LENGTH_AND_HEADS
    merged_heads = transpose_op.inputs[0] if transpose_op and is_swapped else x
    merge_op = find_producer(b, merged_heads, "reshape")
    repeated_heads = merge_op.inputs[0] if merge_op else x
    repeat_op = find_producer(b, repeated_heads, "broadcast", "tile")
    if repeat_op is None:
        return x
    if merge_op is None:
        return _find_single_head(b, x, repeat_op, is_swapped)
    # stored heads are [n, length, heads, 1, width] or [n, heads, 1, length, width]
    repeat_axis = 3 if is_swapped else 2
    if not _repeats_along(b, repeat_op, merge_op, repeat_axis):
        return x
    shared_heads = _drop_axis(b, repeat_op.inputs[0], repeat_axis, f"{name}/shared")
    if not is_swapped:
        return shared_heads
    return transpose(b, shared_heads, SWAP_LENGTH_AND_HEADS, f"{name}/heads")


def _drop_axis(b: Builder, x: str, axis: int, name: str) -> str:
    """Return `x` without an axis of size 1."""
    shape = b.shape(x)
    return reshape(b, x, (*shape[:axis], *shape[axis + 1 :]), name)


def _find_single_head(b: Builder, x: str, repeat_op: Op, is_swapped: bool) -> str:
    """Return the one head `[n, 1, m, d]` that a broadcast shows as all heads, else `x`."""
    source = repeat_op.inputs[0]
    n, _, *length_and_width = b.shape(repeat_op.outputs[0])
    has_single_head = b.shape(source) == (n, 1, *length_and_width)
    return source if has_single_head and not is_swapped else x


def _repeats_along(b: Builder, repeat_op: Op, merge_op: Op, axis: int) -> bool:
    """Return whether an op repeats along a new `axis`, which the next joins to the one before."""
    shape = b.shape(repeat_op.inputs[0])
    repeated_shape = b.shape(repeat_op.outputs[0])
    has_new_axis = len(shape) == 5 and shape[axis] == 1
    if not has_new_axis:
        return False
    axes_after = shape[axis + 1 :]
    repeat_count = repeated_shape[axis]
    repeats_axis_alone = repeated_shape == (*shape[:axis], repeat_count, *axes_after)
    head_count = repeated_shape[axis - 1] * repeat_count
    merged_shape = (*shape[: axis - 1], head_count, *axes_after)
    return repeats_axis_alone and b.shape(merge_op.outputs[0]) == merged_shape


def repeat_heads(b: Builder, x: str, times: int, name: str) -> str:
    """Return `[n, g, m, d] -> [n, g*times, m, d]`: each head follows itself `times` times."""
    n, groups, length, width = b.shape(x)
    upright = reshape(b, x, (n, groups, 1, length, width), f"{name}/apart")
    repeated = append_op(b, "tile", upright, name=f"{name}/repeat", times=(1, 1, times, 1, 1))
    return reshape(b, repeated, (n, groups * times, length, width), f"{name}/reshape")

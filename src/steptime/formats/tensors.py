"""Looks up tensors of a graph that is being built: producers, readers, types, free names."""

import math

from steptime.core.dtypes import SIZE_BYTES
from steptime.core.graph import Op
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import require

LARGEST_FLOAT = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38}
LARGEST_FLOAT64 = 1.7976931348623157e308
FIRST_SUFFIXES = 9  # suffixes of a taken name that are tried in turn, before larger steps


def is_float(b: Builder, x: str) -> bool:
    """Return whether a tensor holds floating numbers, real or complex."""
    return b.tensors[x].is_floating


def free_name(b: Builder, name: str) -> str:
    """Return `name`, or `name_1`, `name_2`, ... if it is taken in the open scopes.

    After `FIRST_SUFFIXES` the suffix grows by the number of tensors, so that the thousandth op of a
    name finds a free one in few steps.
    """
    candidate = name
    suffix = 1
    while b.full_path(candidate) in b.tensors:
        candidate = f"{name}_{suffix}"
        # larger steps later: the thousandth op of a name finds a free one soon
        suffix += 1 if suffix < FIRST_SUFFIXES else len(b.tensors)
    return candidate


def find_producer(b: Builder, x: str, *kinds: str) -> Op | None:
    """Return the op that makes a tensor, None if it is not one of `kinds` (any, without them)."""
    producer = b.made_by.get(x)
    if producer is None or (kinds and producer.kind not in kinds):
        return None
    return producer


def find_narrow_source(b: Builder, x: str, dtype: str) -> str:
    """Return the tensor of a type whose floats `x` holds in a wider type, else `x`."""
    cast = find_producer(b, x, "cast")  # which only widened floats, so that its input will do
    if cast is None or not is_float(b, x):
        return x
    source = cast.inputs[0]
    holds_its_floats = b.tensors[source].dtype == dtype and is_float(b, source)
    if not holds_its_floats:
        return x
    return source if SIZE_BYTES[b.tensors[x].dtype] > SIZE_BYTES[dtype] else x


def skip_casts(b: Builder, x: str) -> str:
    """Return the tensor that `x` is in another floating type, else `x`."""
    cast = find_producer(b, x, "cast")
    while cast is not None and is_float(b, x) and is_float(b, cast.inputs[0]):
        x = cast.inputs[0]
        cast = find_producer(b, x, "cast")
    return x


def index_readers(b: Builder) -> dict[str, list[Op]]:
    """Return the ops that read each tensor."""
    readers_by_tensor: dict[str, list[Op]] = {}
    for op in b.ops:
        for tensor in op.inputs:
            readers_by_tensor.setdefault(tensor, []).append(op)
    return readers_by_tensor


def is_weight_or_buffer(b: Builder, x: str) -> bool:
    """Return whether a tensor is a weight or a buffer, or a view of one."""
    producer = b.made_by.get(x)
    while producer and OPS[producer.kind].storage == "view":
        x = producer.inputs[0]
        producer = b.made_by.get(x)
    return producer is None and x not in b.inputs


def order_by_size(b: Builder, x: str, y: str) -> tuple[str, str]:
    """Return the larger of two tensors first; of two of one size, the computed one."""

    def sort_key(tensor: str) -> tuple[int, bool]:
        # the larger one first; of two as large, the one that is computed
        return -b.tensors[tensor].size, is_weight_or_buffer(b, tensor)

    first, second = sorted((x, y), key=sort_key)
    return first, second


def axis_of(b: Builder, x: str, axis: int) -> int:
    """Return an axis counted from the first; `ShapeError` for one that is not there."""
    rank = len(b.shape(x))
    require(-max(rank, 1) <= axis < max(rank, 1), f"axis {axis} of {list(b.shape(x))}")
    return axis % max(rank, 1)


def find_unflattened(b: Builder, x: str) -> str:
    """Return the tensor `[..., width]` that `x [rows, width]` is a view of, else `x`."""
    view = find_producer(b, x, "reshape", "flatten")
    if view is None:
        return x
    shape = b.shape(x)
    source = view.inputs[0]
    source_shape = b.shape(source)
    flattens_axes = len(shape) == 2 and len(source_shape) > 2
    has_equal_width = source_shape[-1:] == shape[-1:]
    # with as many rows as examples, one of several tokens was selected: rows are not tokens
    has_row_per_example = source_shape[:1] == shape[:1]
    if flattens_axes and has_equal_width and not has_row_per_example:
        return source
    return x


def clip_to_finite(b: Builder, value: float) -> float:
    """Return a number clipped to the finite range of the compute type (a mask may hold -inf)."""
    largest = LARGEST_FLOAT.get(b.precision.compute, LARGEST_FLOAT64)
    require(not math.isnan(value), "a constant that is not a number")
    return max(-largest, min(largest, float(value)))

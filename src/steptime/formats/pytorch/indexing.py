"""Lowers ATen indexing by tensors of indices, along one axis or several neighbouring ones."""

import math
from collections.abc import Sequence

from steptime.formats import elements
from steptime.formats.pytorch.call import Call, ProgramConstant, Result, Shape, Value
from steptime.network.ops.table import ShapeError, broadcast_shape, require


def lower_index(call: Call) -> Result:
    """Gather elements by tensors of indices along neighbouring axes."""
    indices = call["indices"]
    indexed_axes = [axis for axis, index in enumerate(indices) if index is not None]
    index_tensors = [indices[axis] for axis in indexed_axes]
    _check_indices(call, indexed_axes, index_tensors)
    x = call.tensor()
    first_axis = indexed_axes[0]
    if len(indexed_axes) == 1:
        return call.lower(elements.gather, x, call.walk.tensor(index_tensors[0]), first_axis)
    # several axes are merged into one, and their indices into one tensor
    merged_index = _join_indices(call, index_tensors, _broadcast_indices(call, index_tensors))
    merged_x = _merge_axes(call, x, first_axis, len(indexed_axes))
    return call.lower(elements.gather, merged_x, merged_index, first_axis)


def _check_indices(call: Call, indexed_axes: Sequence[int], index_tensors: Sequence[Value]) -> None:
    """Raise `ShapeError` for axes that are not neighbours, and for masks."""
    neighbouring_axes = list(range(indexed_axes[0], indexed_axes[-1] + 1))
    require(indexed_axes == neighbouring_axes, "indices of axes that do not lie together")
    has_mask = any(_dtype_of(call, index) == "bool" for index in index_tensors)
    require(not has_mask, "the places of a mask: how many there are depends on values")


def _broadcast_indices(call: Call, index_tensors: Sequence[Value]) -> Shape:
    """Return the common shape of several tensors of indices."""
    shape = broadcast_shape(*(call.walk.shape(index) for index in index_tensors))
    if shape is None:
        raise ShapeError("indices whose shapes do not broadcast")
    return shape


def _merge_axes(call: Call, x: str, first_axis: int, axis_count: int) -> str:
    """Reshape a tensor so that `axis_count` axes from `first_axis` on become one."""
    shape = call.b.shape(x)
    end = first_axis + axis_count
    merged_size = math.prod(shape[first_axis:end])
    merged_shape = (*shape[:first_axis], merged_size, *shape[end:])
    return call.lower(elements.reshape, x, merged_shape, suffix="/axes")


def _dtype_of(call: Call, value: Value) -> str:
    return value.dtype if isinstance(value, ProgramConstant) else call.b.tensors[value].dtype


def _join_indices(call: Call, indices: Sequence[Value], shape: Shape) -> str:
    """Return one tensor of indices for several: the sum of those that the network computes."""
    computed = [index for index in indices if isinstance(index, str)]
    if not computed:
        return call.walk.tensor(ProgramConstant(shape, "int64", f"{call.name}/places"))
    # only costs count here, not values: the stride that each index is multiplied by is left out
    index_sum = computed[0]
    for index in computed[1:]:
        index_sum = call.lower(elements.pointwise, "add", index_sum, index, suffix="/places")
    return call.lower(elements.expand, index_sum, shape, suffix="/places")

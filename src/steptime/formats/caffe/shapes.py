"""Layers of Caffe that join, cut and reshape blobs, lowered to op kinds; see `layers`."""

import math
from collections.abc import Sequence
from typing import Any

from steptime.formats.caffe.inputs import MAX_AXES
from steptime.formats.caffe.lowering import CaffeGraph, Tensors, resolve_axis
from steptime.formats.caffe.net import CaffeLayer
from steptime.formats.caffe.schema import enum_name
from steptime.network.ops.table import require

_ELTWISE_KINDS = {"SUM": "add", "PROD": "mul", "MAX": "maximum"}
ALL_AXES = -1  # of `num_axes` of Reshape: as many as there are from the first one on
KEEP_SIZE = 0  # in place of a size of Reshape: that of the bottom
INFER_SIZE = -1  # in place of a size of Reshape: what the elements leave


def add_concat(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append the bottoms joined along `axis`, or the older `concat_dim`."""
    settings = layer.message.concat_param
    stated_axis = settings.concat_dim if settings.HasField("concat_dim") else settings.axis
    axis = resolve_axis(stated_axis, len(graph.shape(inputs[0])))
    if len(inputs) == 1:
        return inputs
    return (graph.b.op("concat", *inputs, name=layer.name, axis=axis),)


def add_eltwise(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append sum, product or maximum of the bottoms, two at a time; a coefficient is a product."""
    settings = layer.message.eltwise_param
    kind = _ELTWISE_KINDS[enum_name(settings, "operation")]
    shape = graph.shape(inputs[0])
    for operand in inputs:
        operand_shape = graph.shape(operand)
        require(operand_shape == shape, f"shapes {list(shape)} and {list(operand_shape)} differ")
    coefficients = list(settings.coeff)
    if coefficients:
        require(kind == "add", "coeff is for sums alone")
        counts = f"{len(coefficients)} coeff for {len(inputs)} bottoms"
        require(len(coefficients) == len(inputs), counts)
    y, *further_operands = _multiply_operands(graph, layer, inputs, coefficients)
    for number, operand in enumerate(further_operands, 1):
        is_last = number == len(further_operands)
        name = layer.name if is_last else f"{layer.name}/{number}"
        y = graph.b.op(kind, y, operand, name=name)
    return (y,)


def _multiply_operands(
    graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors, coefficients: Sequence[float]
) -> list[str]:
    """Return the bottoms times their coefficients, of which those of 1 are left out."""
    operands = list(inputs)
    for number, coefficient in enumerate(coefficients):
        if coefficient != 1:
            name = f"{layer.name}/coeff{number}"
            factor = graph.add_constant(f"{name}_by")
            operands[number] = graph.b.op("mul", operands[number], factor, name=name)
    return operands


def add_flatten(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append a view with the axes from `axis` to `end_axis` as one."""
    settings = layer.message.flatten_param
    shape = graph.shape(inputs[0])
    first = resolve_axis(settings.axis, len(shape))
    last = resolve_axis(settings.end_axis, len(shape))
    require(first <= last, f"axes {first} to {last}")
    flat_size = math.prod(shape[first : last + 1])
    view_shape = (*shape[:first], flat_size, *shape[last + 1 :])
    return (graph.b.op("reshape", inputs[0], name=layer.name, shape=view_shape),)


def add_reshape(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append a view with other sizes of some axes; the file's batch becomes the graph's."""
    settings = layer.message.reshape_param
    shape = graph.shape(inputs[0])
    first, stop = _find_reshaped_axes(settings, shape)
    stated_sizes = list(settings.shape.dim)
    require(len(stated_sizes) <= MAX_AXES, f"{len(stated_sizes)} axes")
    # a stated size that is the batch of the file becomes the batch that is built
    replaces_batch = first == 0 and shape[0] == graph.batch
    if replaces_batch and stated_sizes and stated_sizes[0] == graph.file_batch:
        stated_sizes[0] = graph.batch
    element_count = math.prod(shape[first:stop])
    new_sizes = _resolve_sizes(stated_sizes, shape, first, element_count)
    view_shape = (*shape[:first], *new_sizes, *shape[stop:])
    return (graph.b.op("reshape", inputs[0], name=layer.name, shape=view_shape),)


def _find_reshaped_axes(settings: Any, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the first of the axes that Reshape replaces, and the axis behind the last one."""
    rank = len(shape)
    # an axis below 0 counts from behind the last one
    first = settings.axis if settings.axis >= 0 else rank + 1 + settings.axis
    reaches_end = settings.num_axes == ALL_AXES
    stop = rank if reaches_end else first + settings.num_axes
    require(0 <= first <= stop <= rank, f"axes {first} to {stop} of {list(shape)}")
    return first, stop


def _resolve_sizes(
    sizes: Sequence[int], shape: tuple[int, ...], first: int, element_count: int
) -> list[int]:
    """Return the sizes of Reshape without `KEEP_SIZE` and `INFER_SIZE`.

    Args:
        sizes: the sizes in the file.
        shape: the shape of the bottom.
        first: the first axis of the bottom that they replace.
        element_count: the elements of the axes that they replace.
    """
    resolved: list[int] = []
    for axis, size in enumerate(sizes, first):
        require(size >= INFER_SIZE, f"a size of {size}")
        if size == KEEP_SIZE:
            require(axis < len(shape), f"size {axis - first} of {list(shape)} is not there to keep")
        resolved.append(shape[axis] if size == KEEP_SIZE else size)
    if INFER_SIZE not in resolved:
        return resolved
    require(resolved.count(INFER_SIZE) == 1, "more than one size is -1")
    stated_count = math.prod(size for size in resolved if size != INFER_SIZE)
    require(element_count % stated_count == 0, f"{element_count} elements do not fit {resolved}")
    resolved[resolved.index(INFER_SIZE)] = element_count // stated_count
    return resolved


def add_split(_graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Return the bottom for each top."""
    return inputs * max(1, len(layer.tops))


def add_slices(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append the slices of a blob along an axis: between the slice points, or of equal size."""
    settings = layer.message.slice_param
    shape = graph.shape(inputs[0])
    stated_axis = settings.slice_dim if settings.HasField("slice_dim") else settings.axis
    axis = resolve_axis(stated_axis, len(shape))
    points = _find_slice_points(settings, shape[axis], top_count=len(layer.tops))
    if not points:
        return inputs
    starts = [0, *points]
    stops = [*points, shape[axis]]
    slices: list[str] = []
    for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        name = layer.name if number == 0 else f"{layer.name}/{number}"
        slices.append(graph.b.op("slice", inputs[0], name=name, axis=axis, start=start, stop=stop))
    return tuple(slices)


def _find_slice_points(settings: Any, size: int, top_count: int) -> list[int]:
    """Return the places at which an axis is cut, as the layer states them or in equal parts."""
    require(top_count >= 1, "no top")
    points = list(settings.slice_point)
    if not points:
        part_size, remainder = divmod(size, top_count)
        require(remainder == 0, f"{size} in {top_count} equal parts")
        points = [part_size * number for number in range(1, top_count)]
    require(len(points) == top_count - 1, f"{len(points)} slice points for {top_count} tops")
    return points


def add_crop(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append the first bottom cut to the size of the second along the axes from `axis` on."""
    settings = layer.message.crop_param
    shape = graph.shape(inputs[0])
    target_shape = graph.shape(inputs[1])
    require(len(shape) == len(target_shape), f"{list(shape)} cropped to {list(target_shape)}")
    axes = range(resolve_axis(settings.axis, len(shape)), len(shape))
    start_by_cut_axis = {
        axis: offset
        for axis, offset in zip(axes, _read_offsets(settings, len(axes)), strict=True)
        if offset or shape[axis] != target_shape[axis]
    }
    last_cut_axis = max(start_by_cut_axis, default=None)
    y = inputs[0]
    for axis, start in start_by_cut_axis.items():
        name = layer.name if axis == last_cut_axis else f"{layer.name}/{axis}"
        stop = start + target_shape[axis]
        y = graph.b.op("slice", y, name=name, axis=axis, start=start, stop=stop)
    return (y,)


def _read_offsets(settings: Any, axis_count: int) -> list[int]:
    """Return the first element along each axis of a crop; one offset holds for all axes."""
    offsets = list(settings.offset) or [0]
    require(len(offsets) in (1, axis_count), f"{len(offsets)} offsets for {axis_count} axes")
    return offsets * axis_count if len(offsets) == 1 else offsets

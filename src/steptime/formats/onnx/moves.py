"""Lowers ONNX's operators that move, join, cut and make tensors to op kinds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnx import TensorProto

from steptime.formats import elements, windows
from steptime.formats.onnx.constant import FileConstant, Shape
from steptime.formats.onnx.fold import TABLE_MAKING_OPS, Function, Value, axis_of
from steptime.formats.onnx.run import OnnxWalk
from steptime.formats.onnx.weightless import element_type
from steptime.formats.tensors import free_name
from steptime.network.ops.table import ShapeError, broadcast_shape, require

Values = Sequence[Value]
COPIED_SIZE = 0  # in the shape of a Reshape: the size of the same axis of its input
OPEN_SIZE = -1  # in the shape of a Reshape: what is left of the elements


def _lower_reshape(walk: OnnxWalk, x: Value, *_: Value) -> Value:
    """Lower Reshape; before opset 5 its shape is an attribute, of which one size may be -1."""
    # an input states the shape since opset 5, an attribute before
    if "shape" not in walk.node.attrs:
        return walk.reshape_as_in_file(x, walk.output_shape)
    old_shape = walk.shape(x)
    stated_sizes = enumerate(walk.node.attrs["shape"])
    sizes = [old_shape[axis] if size == COPIED_SIZE else size for axis, size in stated_sizes]
    stated_element_count = math.prod(size for size in sizes if size != OPEN_SIZE)
    open_size = math.prod(old_shape) // max(1, stated_element_count)
    new_shape = tuple(open_size if size == OPEN_SIZE else size for size in sizes)
    return walk.reshape_as_in_file(x, lambda: new_shape)


def _lower_reshape_by_inference(walk: OnnxWalk, x: Value, *_: Value) -> Value:
    return walk.reshape(x, walk.output_shape())


def _lower_transpose(walk: OnnxWalk, x: Value) -> Value:
    rank = len(walk.shape(x))
    return walk.transpose(x, walk.attr("perm", tuple(reversed(range(rank)))))


def _lower_split(walk: OnnxWalk, x: Value, *_: Value) -> Values:
    axis = walk.axis(x)
    part_sizes = [walk.output_shape(i)[axis] for i in range(len(walk.node.outputs))]
    return walk.lower(elements.split, x, part_sizes, axis)


def _refuse_computed(walk: OnnxWalk, *_: Value) -> Value:
    """Refuse an operator that is only worked out from constants."""
    raise ShapeError("works on numbers that depend on an input")


def _lower_slice(walk: OnnxWalk, x: Value, *limits: Value) -> Value:
    """Lower Slice; its limits are inputs since opset 10, and attributes of these names before."""
    padded_limits = (*limits, None, None, None, None)  # inputs at the end may be left out
    starts = walk.read_integers(padded_limits[0], "starts")
    ends = walk.read_integers(padded_limits[1], "ends")
    axes = walk.read_integers(padded_limits[2], "axes")
    steps = walk.read_integers(padded_limits[3], "steps")
    if starts is None or ends is None:
        raise ShapeError("a slice without starts and ends")
    rank = len(walk.shape(x))
    part = x
    for i, (start, stop) in enumerate(zip(starts, ends, strict=True)):
        stated_axis = axes[i] if axes else i  # without axes the limits are of the first ones
        step = steps[i] if steps else 1
        part = _slice_axis(walk, part, axis_of(stated_axis, rank), slice(start, stop, step))
    return part


def _slice_axis(walk: OnnxWalk, x: Value, axis: int, limits: slice) -> Value:
    """Return the elements of `x` within limits along one axis; refuses a slice of none."""
    start, stop, step = limits.start, limits.stop, limits.step
    require(step != 0, "a slice of step 0")
    size = walk.shape(x)[axis]
    is_empty = len(range(size)[limits]) == 0
    require(not is_empty, f"a slice {start}:{stop}:{step} of {size} is empty")
    return walk.lower(elements.slice_, x, axis, start, stop, step=step)


def _lower_gather(walk: OnnxWalk, x: Value, indices: Value) -> Value:
    """Lower Gather: a view, one part, or a look-up."""
    axis = walk.axis(x)
    # taking all elements in order is a view
    if isinstance(indices, FileConstant) and _takes_all_in_order(walk, x, indices):
        return walk.reshape_as_in_file(x, lambda: indices.shape)
    single_index = walk.read_number(indices)
    if single_index is not None:
        return _take_part(walk, x, int(single_index), walk.shape(indices))
    ids = walk.tensor(indices)
    ids_dtype, _ = walk.spec(ids)
    if ids_dtype not in ("int64", "int32"):
        ids = walk.lower(elements.cast, ids, "int64", suffix="/cast")
    return walk.lower(elements.gather, x, ids, axis)


def _take_part(walk: OnnxWalk, x: Value, index: int, index_shape: Shape) -> Value:
    """Lower Gather of one index, whose axes of size 1 take the place of the axis."""
    axis = walk.axis(x)
    shape = walk.shape(x)
    part = walk.lower(elements.select, x, axis, index)
    return walk.reshape(part, (*shape[:axis], *index_shape, *shape[axis + 1 :]))


def _takes_all_in_order(walk: OnnxWalk, x: Value, indices: FileConstant) -> bool:
    """Return whether indices take all elements of a vector in order, as torch's `as_strided`.

    Indices whose values are not known are taken to do so if they are as many.
    """
    is_vector = len(walk.shape(x)) == 1
    if not is_vector:
        return False
    size_in_file = math.prod(walk.file_shape(walk.node.inputs[0]) or walk.shape(x))
    index_count = math.prod(indices.shape)
    if index_count != size_in_file:
        return False
    # as many indices as elements are taken to be all of them, as of torch's `as_strided`
    if indices.values is None:
        return True
    return indices.values.ravel().tolist() == list(range(size_in_file))


def _lower_gather_nd(walk: OnnxWalk, x: Value, indices: Value) -> Value:
    """Lower GatherND: rows of indices become one index into the merged first axes of `x`."""
    shape = walk.shape(x)
    indices_shape = walk.shape(indices)
    *ids_shape, indexed_axis_count = indices_shape
    batch_axis_count = walk.attr("batch_dims", 0)
    fits = batch_axis_count + indexed_axis_count <= len(shape)
    require(fits, f"indices {list(indices_shape)} of {list(shape)}")
    require(batch_axis_count == 0, "batch_dims of GatherND other than 0")
    # one index stands for each row of indices; which one it is costs nothing
    ids_name = free_name(walk.b, f"{walk.name}/rows")
    ids = walk.b.buffer(ids_name, tuple(ids_shape), "int64")
    merged_size = math.prod(shape[:indexed_axis_count])
    merged = walk.reshape(x, (merged_size, *shape[indexed_axis_count:]))
    return walk.lower(elements.gather, merged, ids, axis=0)


def _lower_expand(walk: OnnxWalk, x: Value, shape: Value) -> Value:
    """Lower Expand: the shape of the file, its batch replaced by the one that is built."""
    input_shape = walk.shape(x)
    stated_shape = walk.read_integers(shape) or ()
    file_output = walk.file_shape(walk.node.outputs[0])
    # a file that computes the shape from its batch states another one now than at its own batch
    follows_batch = broadcast_shape(input_shape, stated_shape) != file_output
    # The batch is the first axis: a shape of fewer axes than the input does not state it.
    has_first_axis = len(stated_shape) >= len(input_shape)
    if has_first_axis:
        target_shape = walk.expanded_batch_shape(input_shape, stated_shape, follows_batch)
    else:
        target_shape = stated_shape
    # Expand broadcasts both ways: a stated size of 1 keeps the size of the input.
    new_shape = broadcast_shape(input_shape, target_shape)
    require(new_shape is not None, f"{list(input_shape)} is not {list(stated_shape)} repeated")
    return x if new_shape == input_shape else walk.lower(elements.expand, x, new_shape)


def _lower_tile(walk: OnnxWalk, x: Value, times: Value) -> Value:
    """Lower Tile: an axis of size 1 repeats to the batch that is built."""
    shape = walk.shape(x)
    file_times = walk.read_integers(times) or ()
    require(len(file_times) == len(shape), f"{list(shape)} times {list(file_times)}")
    new_times = _scale_times(walk, shape, file_times)
    repeats_nothing = all(count == 1 for count in new_times)
    if repeats_nothing:
        return x
    return walk.lower(elements.append_op, "tile", x, times=new_times)


def _scale_times(walk: OnnxWalk, shape: Shape, file_times: Sequence[int]) -> tuple[int, ...]:
    """Return the repeats of each axis by a Tile at the batch that is built."""
    file_axes = zip(shape, file_times, strict=True)
    stated_shape = tuple(size * count for size, count in file_axes)
    # a file that computes the times from its batch states others now than at its own batch
    follows_batch = stated_shape != walk.file_shape(walk.node.outputs[0])
    new_shape = walk.expanded_batch_shape(shape, stated_shape, follows_batch)
    axes = zip(shape, file_times, new_shape, strict=True)
    return tuple(new_size if size == 1 else count for size, count, new_size in axes)


def _lower_pad(
    walk: OnnxWalk, x: Value, pads: Value = None, value: Value = None, axes: Value = None
) -> Value:
    """Lower Pad; its sizes are those before all axes, then those after, or old attributes."""
    rank = len(walk.shape(x))
    # `pads` were an attribute in older opsets, in the first one under the name `paddings`
    sizes = walk.read_integers(pads, "pads") or walk.read_integers(None, "paddings") or ()
    padded_axes = [axis_of(i, rank) for i in (walk.read_integers(axes) or range(rank))]
    our_pads = _order_pads(sizes, padded_axes, rank)
    mode = walk.attr("mode", "constant")
    fill = float(walk.read_number(value) or 0.0) if mode == "constant" else 0.0
    our_mode = "circular" if mode == "wrap" else mode
    return walk.lower(elements.pad, x, our_pads, mode=our_mode, value=fill)


def _order_pads(sizes: Sequence[int], axes: Sequence[int], rank: int) -> list[int]:
    """Return the padding before and after each axis, from sizes before `axes`, then after them."""
    axis_count = len(axes)
    require(len(sizes) == 2 * axis_count, f"{len(sizes)} pads of {axis_count} axes")
    sizes_before = sizes[:axis_count]
    sizes_after = sizes[axis_count:]
    pads = [0] * (2 * rank)
    for axis, before, after in zip(axes, sizes_before, sizes_after, strict=True):
        pads[2 * axis] = before
        pads[2 * axis + 1] = after
    return pads


def _lower_shape(walk: OnnxWalk, x: Value) -> Value:
    shape = walk.shape(x)
    first_axis = walk.attr("start", 0)
    end_axis = walk.node.attrs.get("end")
    return walk.constant(shape[first_axis:end_axis], "int64", derived=True)


def _lower_constant(walk: OnnxWalk) -> Value:
    value = walk.node.attrs.get("value")
    if not isinstance(value, FileConstant):
        return walk.fold_constants()[0]
    return replace(value, name=walk.node.outputs[0] if walk.node.outputs else "")


def _lower_cast(walk: OnnxWalk, x: Value, like: Value = None) -> Value:
    """Lower Cast; a cast between floats is none, as all floats have the run's own types."""
    if like is None:
        stated_dtype = _dtype_of_cast(walk.node.attrs.get("to", TensorProto.FLOAT))
    else:
        stated_dtype, _ = walk.spec(like)
    gives_floats = "float" in stated_dtype
    is_between_floats = walk.is_float(x) and gives_floats
    if is_between_floats:
        return x
    if isinstance(x, FileConstant):
        return walk.fold_constants()[0]
    require(stated_dtype != "text", "a cast to a type that does not hold numbers")
    dtype = walk.b.precision.weights if gives_floats else stated_dtype
    return walk.lower(elements.cast, x, dtype)


def _dtype_of_cast(onnx_type: int | str) -> str:
    """Return our name of a type, which before opset 6 is a word."""
    number = onnx_type
    if isinstance(onnx_type, str):
        number = TensorProto.DataType.Value(onnx_type.upper())
    return element_type(int(number)).name


def _lower_trilu(walk: OnnxWalk, x: Value, *_: Value) -> Value:
    """Return a triangle of `x`, a product with a mask."""
    mask = walk.b.buffer(free_name(walk.b, f"{walk.name}/triangle"), walk.shape(x)[-2:])
    return walk.lower(elements.pointwise, "mul", x, mask)


def _lower_depth_to_space(walk: OnnxWalk, x: Value) -> Value:
    """Lower DepthToSpace: blocks of channels become squares of pixels.

    DCR has the block's axes before the channels, CRD after them.
    """
    n, channels, height, width = walk.shape(x)
    side = walk.attr("blocksize", 1)
    output_channels = channels // side**2
    has_channels_first = walk.attr("mode", "DCR") == "CRD"
    if has_channels_first:
        block_shape = (n, output_channels, side, side, height, width)
        order = (0, 1, 4, 2, 5, 3)  # [n, c, row, column, h, w] -> [n, c, h, row, w, column]
    else:
        block_shape = (n, side, side, output_channels, height, width)
        order = (0, 3, 4, 1, 5, 2)  # [n, row, column, c, h, w] -> [n, c, h, row, w, column]
    blocks = walk.reshape(x, block_shape)
    pixels = walk.transpose(blocks, order)
    return walk.reshape(pixels, (n, output_channels, height * side, width * side))


def _lower_space_to_depth(walk: OnnxWalk, x: Value) -> Value:
    """Lower SpaceToDepth: squares of pixels become blocks of channels."""
    n, channels, height, width = walk.shape(x)
    side = walk.attr("blocksize", 1)
    output_height = height // side
    output_width = width // side
    blocks = walk.reshape(x, (n, channels, output_height, side, output_width, side))
    order = (0, 3, 5, 1, 2, 4)  # [n, c, h, row, w, column] -> [n, row, column, c, h, w]
    block_first = walk.transpose(blocks, order)
    return walk.reshape(block_first, (n, channels * side**2, output_height, output_width))


def _lower_columns_to_image(walk: OnnxWalk, x: Value, size: Value, kernel: Value) -> Value:
    image_size = walk.read_integers(size) or ()
    kernel_size = walk.read_integers(kernel) or ()
    strides = walk.attr("strides", (1,) * len(image_size))
    require(len(image_size) == 2, f"windows over {len(image_size)} axes: there are kinds for 2")
    return walk.lower(windows.fold, x, image_size, kernel_size, strides)


def _lower_gather_elements(walk: OnnxWalk, x: Value, indices: Value) -> Value:
    return walk.lower(elements.append_op, "gather_elements", x, indices, axis=walk.axis(x))


MOVES: Mapping[str, Function] = {
    "Reshape": _lower_reshape,
    **dict.fromkeys(("Flatten", "Squeeze", "Unsqueeze"), _lower_reshape_by_inference),
    "Transpose": _lower_transpose,
    "Concat": lambda walk, *xs: walk.lower(elements.concat, [*xs], walk.axis(xs[0], 1)),
    "Split": _lower_split,
    "Slice": _lower_slice,
    "Gather": _lower_gather,
    "GatherND": _lower_gather_nd,
    "GatherElements": _lower_gather_elements,
    "Expand": _lower_expand,
    "Tile": _lower_tile,
    "Pad": _lower_pad,
    "Shape": _lower_shape,
    "Size": lambda walk, x: walk.constant(math.prod(walk.shape(x)), "int64", derived=True),
    "Constant": _lower_constant,
    "Col2Im": _lower_columns_to_image,
    "DepthToSpace": _lower_depth_to_space,
    "SpaceToDepth": _lower_space_to_depth,
    **dict.fromkeys(("ConstantOfShape", *TABLE_MAKING_OPS), _refuse_computed),
    "Trilu": _lower_trilu,
    **dict.fromkeys(("Cast", "CastLike"), _lower_cast),
}

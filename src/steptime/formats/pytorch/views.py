"""Lowers ATen ops that move, cut, join or repeat elements to op kinds."""

from collections.abc import Mapping, Sequence

from steptime.formats import elements, windows
from steptime.formats.pytorch.call import (
    Call,
    Handler,
    ProgramConstant,
    Result,
    Shape,
    as_list,
)
from steptime.formats.pytorch.indexing import lower_index
from steptime.formats.pytorch.program import LOW_DTYPES
from steptime.formats.pytorch.writes import TO_END, axis_order, write_index, write_slice
from steptime.formats.tensors import is_float
from steptime.network.ops.table import require

WIDE = "float32"
PAD_MODES = {"replicate": "edge", "replication": "edge", "reflection": "reflect"}


def _lower_cast(call: Call) -> Result:
    """Lower a cast.

    One between floating types is there only if the network switches types itself: the workload
    decides the type of the rest.
    """
    x = call.tensor()
    workload_dtype = call.b.precision.weights
    output_dtype = call.walk.graph_dtype(call.dtype)  # "" for the workload's own type
    is_cast_to_float = not is_float(call.b, x)
    if output_dtype or is_cast_to_float:
        return call.lower(elements.cast, x, output_dtype or workload_dtype)
    # The workload decides the type of floats, so that a cast between floats is dropped, except one
    # from float32, in which the network computed a part on purpose, back to 16 bits.
    network_switches_types = call.b.tensors[x].dtype == WIDE and workload_dtype in LOW_DTYPES
    return call.lower(elements.cast, x, workload_dtype) if network_switches_types else x


def _lower_detach(call: Call) -> Result:
    """Lower a detach: a view without gradient; nothing in inference or for integers."""
    x = call.first_tensor
    would_have_gradient = call.b.training and is_float(call.b, x)
    return call.lower(elements.append_op, "detach", x) if would_have_gradient else x


def _lower_view(call: Call) -> Result:
    file_input = call.walk.file_shape(call.node.args["self"])
    file_view = call.shape
    x = call.tensor()
    shape = call.walk.batches.view_shape(file_input, call.b.shape(x), file_view)
    return call.lower(elements.reshape, x, shape)


def _lower_squeeze(call: Call) -> Result:
    """Remove axes of size 1; an open batch stays even where it is 1."""
    x = call.tensor()
    shape = call.b.shape(x)
    stated_axes = call.argument("dim")
    if stated_axes is None:
        # without stated axes torch drops all of size 1 at the batch that is built
        squeezed_axes = _find_axes_of_size_1(call, shape)
    else:
        file_shape = call.walk.file_shape(call.node.args["self"])
        rank = max(1, len(shape))  # torch takes axis 0 of a scalar as none
        axes = {axis % rank for axis in as_list(stated_axes)}
        squeezed_axes = _find_axes_of_size_1(call, file_shape) & axes
    remaining_sizes = [size for axis, size in enumerate(shape) if axis not in squeezed_axes]
    return call.lower(elements.reshape, x, remaining_sizes)


def _find_axes_of_size_1(call: Call, shape: Shape) -> set[int]:
    """Return the axes of the input, with this shape, that have size 1 at any batch.

    torch exports no open size as 1: such an axis is left out, even where it has size 1 now.
    """
    file_sizes = call.walk.program.specs[call.node.args["self"]].sizes
    axes_of_size_1 = {axis for axis, size in enumerate(shape) if size == 1}
    return {axis for axis in axes_of_size_1 if isinstance(file_sizes[axis], int)}


def _lower_expand(call: Call) -> Result:
    x = call.tensor()
    return call.lower(elements.expand, x, call.expanded_shape(call.b.shape(x), call.shape))


def _lower_permute(call: Call) -> Result:
    return call.lower(elements.transpose, call.tensor(), axis_order(call))


def _lower_movedim(call: Call) -> Result:
    rank = len(call.shape)
    input_axes = [axis % rank for axis in as_list(call["source"])]
    output_axes = [axis % rank for axis in as_list(call["destination"])]
    input_axis_of = dict(zip(output_axes, input_axes, strict=True))
    unmoved_axes = [axis for axis in range(rank) if axis not in input_axes]
    order: list[int] = []
    for output_axis in range(rank):
        if output_axis in input_axis_of:
            order.append(input_axis_of[output_axis])
        else:  # axes that are not moved fill the places between, in their order
            order.append(unmoved_axes.pop(0))
    return call.lower(elements.transpose, call.tensor(), order)


def _lower_slice(call: Call) -> Result:
    axis = call.argument("dim", 0)
    start = call.argument("start", 0)
    stop = call.argument("end", TO_END)
    if call.node.op == "narrow":
        stop = start + call["length"]
    is_empty = call.shape[axis] == 0
    if is_empty:  # concatenations leave it out
        return ProgramConstant(call.shape, call.dtype, call.name)
    file_size = call.walk.file_shape(call.node.args["self"])[axis]
    takes_all = start == 0 and stop == file_size
    if call.walk.batches.differs_from_file and takes_all:  # another batch can make the axis longer
        stop = TO_END
    step = call.argument("step", 1)
    return elements.slice_(call.b, call.tensor(), axis, start, stop, call.name, step)


def _lower_split(call: Call) -> Result:
    x = call.tensor()
    axis = call.axis(call.argument("dim", 0))
    size = call.b.shape(x)[axis]
    part_sizes = [call.walk.file_shape(name)[axis] for name in call.node.outputs]
    has_grown = sum(part_sizes) != size
    if has_grown:  # with the batch: into equal parts
        part_count = len(part_sizes)
        require(size % part_count == 0, f"parts {part_sizes} of {size}")
        part_sizes = [size // part_count] * part_count
    return elements.split(call.b, x, part_sizes, axis, call.name)


def _lower_unbind(call: Call) -> Result:
    axis = call.argument("dim", 0)
    return [
        elements.select(call.b, call.tensor(), axis, i, f"{call.name}/{i}")
        for i in range(len(call.node.outputs))
    ]


def _lower_concat(call: Call) -> Result:
    """Join tensors; empty ones are left out."""
    nonempty_values = [value for value in call["tensors"] if 0 not in call.walk.shape(value)]
    tensors = [call.walk.tensor(value) for value in nonempty_values]
    return call.lower(elements.concat, tensors, call.argument("dim", 0))


def _lower_stack(call: Call) -> Result:
    tensors = [call.walk.tensor(value) for value in call["tensors"]]
    return call.lower(elements.stack, tensors, call.argument("dim", 0))


def _lower_repeat(call: Call) -> Result:
    """Repeat a tensor along its axes: a broadcast where only axes of 1 are repeated."""
    x = call.tensor()
    stated_repeats = as_list(call.argument("repeats", call.argument("dims")))
    rank = max(len(stated_repeats), len(call.b.shape(x)))
    repeats = _extend_to_rank(stated_repeats, rank)
    shape = _extend_to_rank(call.b.shape(x), rank)
    with_new_axes = call.lower(elements.reshape, x, shape, suffix="/axes")
    sizes_and_repeats = list(zip(shape, repeats, strict=True))
    is_broadcast = all(size == 1 or count == 1 for size, count in sizes_and_repeats)
    if is_broadcast:
        file_shape = [size * count for size, count in sizes_and_repeats]
        return call.lower(elements.expand, with_new_axes, call.expanded_shape(shape, file_shape))
    return call.lower(elements.append_op, "tile", with_new_axes, times=repeats)


def _extend_to_rank(numbers: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return sizes or repeats of `rank` axes: 1 for axes that are missing in front."""
    missing_count = rank - len(numbers)
    return (*[1] * missing_count, *numbers)


def _lower_repeat_interleave(call: Call) -> Result:
    """Repeat each element along an axis: a broadcast over a new axis behind it."""
    repeats = call["repeats"]
    stated_axis = call.argument("dim")
    is_along_axis = stated_axis is not None
    require(isinstance(repeats, int) and is_along_axis, "repeats that are not a number")
    x = call.tensor()
    shape = call.b.shape(x)
    axis = stated_axis % len(shape)
    through_axis, axes_after = shape[: axis + 1], shape[axis + 1 :]
    column_shape = (*through_axis, 1, *axes_after)
    column = call.lower(elements.reshape, x, column_shape, suffix="/apart")
    repeated_shape = (*through_axis, repeats, *axes_after)
    repeated = call.lower(elements.expand, column, repeated_shape, suffix="/repeat")
    output_shape = (*shape[:axis], shape[axis] * repeats, *axes_after)
    return call.lower(elements.reshape, repeated, output_shape)


def _lower_roll(call: Call) -> Result:
    """Rotate a tensor along axes: two slices joined in the other order."""
    x = call.tensor()
    axes = as_list(call.argument("dims"))
    require(bool(axes), "a roll of the flattened tensor")
    rolled = x
    for axis, shift in zip(axes, as_list(call["shifts"]), strict=True):
        size = call.b.shape(rolled)[axis]
        first_index = -shift % size  # of the element that becomes the first
        if first_index:
            sizes = [first_index, size - first_index]
            head, tail = elements.split(call.b, rolled, sizes, axis, call.name)
            rolled = call.lower(elements.concat, [tail, head], axis)
    return rolled


def _lower_pad(call: Call) -> Result:
    """Pad a tensor by a constant, its edge or its reflection."""
    x = call.tensor()
    torch_pads = as_list(call.argument("pad", call.argument("padding")))
    pads = _order_pads(torch_pads, rank=len(call.b.shape(x)))
    value = float(call.argument("value", 0.0))
    return elements.pad(call.b, x, pads, call.name, mode=_read_pad_mode(call), value=value)


def _order_pads(torch_pads: Sequence[int], rank: int) -> list[int]:
    """Return paddings before and after each axis, from the first axis on.

    torch lists the same pairs from the last axis on, and leaves out the first axes.
    """
    pads = [0] * (2 * rank)
    padded_axis_count = len(torch_pads) // 2
    for axis_from_end in range(padded_axis_count):
        before, after = torch_pads[2 * axis_from_end : 2 * axis_from_end + 2]
        axis = rank - 1 - axis_from_end
        pads[2 * axis : 2 * axis + 2] = [before, after]
    return pads


def _read_pad_mode(call: Call) -> str:
    """Return the mode of a padding, as ONNX names it."""
    has_mode_argument = call.node.op in {"pad", "constant_pad_nd"}
    if has_mode_argument:
        mode = str(call.argument("mode", "constant"))
    else:  # the mode is part of the op's name: `reflection_pad2d`
        mode = call.node.op.partition("_")[0]
    return PAD_MODES.get(mode, mode)


def _lower_pixel_shuffle(call: Call) -> Result:
    """Move elements between channels and space, by a factor in each direction."""
    factor = call.argument("upscale_factor", call.argument("downscale_factor"))
    n, channels, height, width = call.b.shape(call.tensor())
    if call.node.op == "pixel_unshuffle":
        # [n, c, h, row, w, column] -> [n, c, row, column, h, w]
        split_shape = (n, channels, height // factor, factor, width // factor, factor)
        order = (0, 1, 3, 5, 2, 4)
    else:
        # [n, c, row, column, h, w] -> [n, c, h, row, w, column]
        split_shape = (n, channels // (factor * factor), factor, factor, height, width)
        order = (0, 1, 4, 2, 5, 3)
    split = call.lower(elements.reshape, call.tensor(), split_shape, suffix="/apart")
    reordered = call.lower(elements.transpose, split, order, suffix="/order")
    return call.lower(elements.reshape, reordered, (n, *call.shape[1:]))


def _lower_unfold(call: Call) -> Result:
    """List the windows along an axis; their elements are the last axis."""
    x = call.tensor()
    rank = len(call.b.shape(x))
    axis = call.axis(call["dimension"])
    name = f"{call.name}/windows"
    cut = windows.cut_windows(call.b, x, axis, call["size"], name, call["step"])
    element_axis = axis + 1  # of the elements of a window, behind the axis of windows
    other_axes = [other_axis for other_axis in range(rank + 1) if other_axis != element_axis]
    return call.lower(elements.transpose, cut, [*other_axes, element_axis])


def _lower_image_to_columns(call: Call) -> Result:
    padding = [side for size in as_list(call["padding"]) for side in (size, size)]
    x = call.lower(elements.pad, call.tensor(), (0, 0, 0, 0, *padding), suffix="/pad")
    kernel, stride = as_list(call["kernel_size"]), as_list(call["stride"])
    return call.lower(windows.unfold, x, kernel, stride, as_list(call["dilation"]))


def _lower_columns_to_image(call: Call) -> Result:
    size, kernel = as_list(call["output_size"]), as_list(call["kernel_size"])
    return call.lower(windows.fold, call.tensor(), size, kernel, as_list(call["stride"]))


def _lower_constant(call: Call) -> Result:
    return ProgramConstant(call.shape, call.dtype, call.name)


def _lower_flip(call: Call) -> Result:
    axes = tuple(call.axis(axis) for axis in as_list(call["dims"]))
    return call.lower(elements.append_op, "flip", call.tensor(), axes=axes)


def _lower_gather_elements(call: Call) -> Result:
    axis = call.axis(call["dim"])
    return call.lower(
        elements.append_op, "gather_elements", call.tensor(), call.tensor("index"), axis=axis
    )


_COPIES = ("alias", "clone", "contiguous", "lift_fresh_copy", "lift_fresh", "lift")
_CASTS = ("to", "_to_copy", "type_as", "float", "bfloat16", "half")
_RESHAPES = (
    *("view", "reshape", "_unsafe_view", "flatten", "unflatten", "ravel", "view_as", "reshape_as"),
)
_FILLED = (
    *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "zero", "fill"),
)
VIEWS: Mapping[str, Handler] = {
    **dict.fromkeys(_COPIES, lambda call: call.first_tensor),
    "detach": _lower_detach,
    **dict.fromkeys(_CASTS, _lower_cast),
    **dict.fromkeys(_RESHAPES, _lower_view),
    **dict.fromkeys(("permute", "transpose", "swapaxes", "t", "numpy_T"), _lower_permute),
    **dict.fromkeys(("expand", "expand_as"), _lower_expand),
    **dict.fromkeys(("slice", "narrow"), _lower_slice),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split"), _lower_split),
    **dict.fromkeys(("cat", "concat", "concatenate"), _lower_concat),
    **dict.fromkeys(("repeat", "tile"), _lower_repeat),
    "squeeze": _lower_squeeze,
    "unsqueeze": lambda call: call.lower(elements.unsqueeze, call.tensor(), call["dim"]),
    "movedim": _lower_movedim,
    "select": lambda call: call.lower(
        elements.select, call.tensor(), call.argument("dim", 0), call["index"]
    ),
    "unbind": _lower_unbind,
    "stack": _lower_stack,
}
"""Ops whose result is made of the elements of their input: of a constant it is a constant."""

MOVES: Mapping[str, Handler] = {
    **dict.fromkeys(_FILLED, _lower_constant),
    **dict.fromkeys(("pad", "constant_pad_nd"), _lower_pad),
    **{f"{kind}_pad{n}d": _lower_pad for kind in ("reflection", "replication") for n in (1, 2)},
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _lower_pixel_shuffle),
    "repeat_interleave": _lower_repeat_interleave,
    "roll": _lower_roll,
    "unfold": _lower_unfold,
    "im2col": _lower_image_to_columns,
    "col2im": _lower_columns_to_image,
    "flip": _lower_flip,
    "copy": lambda call: call.lower(
        elements.expand, call.tensor("src"), call.walk.shape(call["self"])
    ),
    "slice_scatter": lambda call: write_slice(call, call["src"]),
    "select_scatter": lambda call: write_index(call, call["src"]),
    "index": lower_index,
    "index_select": lambda call: call.lower(
        elements.gather, call.tensor(), call.tensor("index"), call["dim"]
    ),
    "gather": _lower_gather_elements,
}
"""Other ops that move elements."""

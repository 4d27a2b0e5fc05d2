"""Functions that append elementwise ops, reductions and moves to a graph, for all file formats."""

import math
from collections.abc import Sequence
from functools import partial

from steptime.core.graph import Attr
from steptime.formats.composed import COMPOSED, INTEGER_FUNCTIONS, REDUCED, simplify_clamp
from steptime.formats.operands import Operand, place_operands
from steptime.formats.tensors import (
    axis_of,
    clip_to_finite,
    find_narrow_source,
    find_producer,
    find_unflattened,
    free_name,
    is_float,
    is_weight_or_buffer,
    order_by_size,
)
from steptime.network.layers.blocks import ACTIVATIONS
from steptime.network.ops.builder import Builder
from steptime.network.ops.elementwise import FUNCTIONS, function_of
from steptime.network.ops.execution import BIAS_AXES
from steptime.network.ops.table import require

FUNCTIONS_WITH_KIND = ("relu", "sigmoid", "tanh", "gelu", "silu", *ACTIVATIONS)  # not `pointwise`
UNARY = (  # functions of one operand, whatever they are counted as
    *(name for name, row in FUNCTIONS.items() if len(row.gradients) == 1),
    *FUNCTIONS_WITH_KIND,
    *(name for name in COMPOSED if name not in ("lerp", "swiglu")),
)
PRODUCTS = ("matmul", *BIAS_AXES)


def append_op(b: Builder, kind: str, *inputs: str, name: str, **attrs: Attr) -> str:
    """Append an op under a name that is free, and return its first output."""
    return b.append(b.full_path(free_name(b, name)), kind, inputs, **attrs)[0]


def reshape(b: Builder, x: str, shape: Sequence[int], name: str) -> str:
    """Return `x` seen with another shape, of which one size may be -1; views are joined."""
    size = b.tensors[x].size
    stated_size = math.prod(n for n in shape if n != -1)
    open_size = size // stated_size if stated_size else 0  # of the axis that is -1
    new_shape = tuple(open_size if n == -1 else n for n in shape)
    if b.shape(x) == new_shape:
        return x
    # a reshape of a reshape is one of the first tensor, or none where it undoes the other
    view = find_producer(b, x, "reshape", "flatten")
    source = view.inputs[0] if view else x
    if b.shape(source) == new_shape:
        return source
    return append_op(b, "reshape", source, name=name, shape=new_shape)


def squeeze(b: Builder, x: str, axes: Sequence[int], name: str) -> str:
    """Return `x` without `axes`, all of size 1."""
    shape = b.shape(x)
    removed_axes = {axis_of(b, x, axis) for axis in axes}
    fault = f"squeeze of {list(shape)} along {sorted(removed_axes)}"
    require(all(shape[i] == 1 for i in removed_axes), fault)
    return reshape(b, x, [n for i, n in enumerate(shape) if i not in removed_axes], name)


def unsqueeze(b: Builder, x: str, axis: int, name: str) -> str:
    """Return `x` with a new axis of size 1, which is `axis` then."""
    shape = list(b.shape(x))
    shape.insert(axis % (len(shape) + 1), 1)
    return reshape(b, x, shape, name)


def stack(b: Builder, tensors: Sequence[str], axis: int, name: str) -> str:
    """Return tensors joined along a new axis."""
    slices = [unsqueeze(b, x, axis, f"{name}/{i}") for i, x in enumerate(tensors)]
    return concat(b, slices, axis, name)


def transpose(b: Builder, x: str, order: Sequence[int], name: str) -> str:
    """Return `x` with its axes in `order`; two transposes that undo each other are none."""
    source = x
    source_order = tuple(axis_of(b, x, axis) for axis in order)
    # two transposes in a row become one, or none where the second undoes the first
    earlier_transpose = find_producer(b, x, "transpose")
    if earlier_transpose:
        earlier_order = earlier_transpose.attrs["order"]
        if isinstance(earlier_order, tuple):
            source = earlier_transpose.inputs[0]
            source_order = tuple(earlier_order[axis] for axis in source_order)
    keeps_order = source_order == tuple(range(len(b.shape(source))))
    if keeps_order:
        return source
    return append_op(b, "transpose", source, name=name, order=source_order)


def expand(b: Builder, x: str, shape: Sequence[int], name: str) -> str:
    """Return `x` broadcast to a shape; -1 keeps a size."""
    old_shape = b.shape(x)
    new_axis_count = len(shape) - len(old_shape)  # in front of the old axes
    new_shape = tuple(
        old_shape[axis - new_axis_count] if size == -1 else size for axis, size in enumerate(shape)
    )
    return x if old_shape == new_shape else append_op(b, "broadcast", x, name=name, shape=new_shape)


def cast(b: Builder, x: str, dtype: str, name: str) -> str:
    """Return `x` in another element type; a cast to a wider float and back is none."""
    source = find_narrow_source(b, x, dtype)
    if b.tensors[source].dtype == dtype:
        return source
    return append_op(b, "cast", x, name=name, dtype=dtype)


def slice_(b: Builder, x: str, axis: int, start: int, stop: int, name: str, step: int = 1) -> str:
    """Return `x[start:stop:step]` along `axis` by Python's rules: from the end, cut off."""
    axis = axis_of(b, x, axis)
    size = b.shape(x)[axis]
    require(step != 0, f"{name}: a slice with step 0")
    indices = range(size)[start:stop:step]
    if step < 0:  # the same elements of the reversed axis, by a positive stride
        x = append_op(b, "flip", x, name=f"{name}/flip", axes=(axis,))
        first = size - 1 - indices.start
        end = first + (len(indices) - 1) * -step + 1  # behind the last element
    else:
        first, end = indices.start, indices.stop
    takes_all = first == 0 and end == size and abs(step) == 1
    if takes_all:
        return x
    attrs = {"step": abs(step)} if abs(step) != 1 else {}
    return append_op(b, "slice", x, name=name, axis=axis, start=first, stop=end, **attrs)


def split(b: Builder, x: str, sizes: Sequence[int], axis: int, name: str) -> list[str]:
    """Return parts of `x` of these sizes along `axis`."""
    axis = axis_of(b, x, axis)
    axis_size = b.shape(x)[axis]
    require(sum(sizes) == axis_size, f"{name}: parts {list(sizes)} of {axis_size}")
    if len(sizes) == 1:
        return [x]
    op_name = b.full_path(free_name(b, name))
    return list(b.append(op_name, "split", (x,), axis=axis, sizes=tuple(sizes)))


def select(b: Builder, x: str, axis: int, index: int, name: str) -> str:
    """Return `x` at one index of `axis`, without that axis."""
    axis = axis_of(b, x, axis)
    shape = b.shape(x)
    size = shape[axis]
    require(-size <= index < size, f"{name}: index {index} of {size}")
    index_from_front = index % size
    part = slice_(b, x, axis, index_from_front, index_from_front + 1, name)
    return reshape(b, part, (*shape[:axis], *shape[axis + 1 :]), f"{name}/reshape")


def concat(b: Builder, tensors: Sequence[str], axis: int, name: str) -> str:
    """Return tensors joined along `axis`; one alone is itself."""
    require(bool(tensors), f"{name}: nothing to join")
    axis = axis_of(b, tensors[0], axis)
    if len(tensors) == 1:
        return tensors[0]
    return append_op(b, "concat", *tensors, name=name, axis=axis)


def pad(
    b: Builder, x: str, pads: Sequence[int], name: str, mode: str = "constant", value: float = 0.0
) -> str:
    """Return `x` with `pads` (before and after each axis); a negative one cuts.

    Modes but `constant` pad axes after the first two: a matrix gets axes of size 1 before its own.
    """
    if not any(pads):
        return x
    attrs: dict[str, Attr] = {"mode": mode} if mode != "constant" else {}
    if value:
        attrs["value"] = clip_to_finite(b, value)
    rank = len(b.shape(x))
    lacks_axes = mode != "constant" and rank <= 2
    if not lacks_axes:
        return append_op(b, "pad", x, name=name, pads=tuple(pads), **attrs)
    new_axis_count = 3 - rank  # of size 1, in front: they are dropped again
    image = reshape(b, x, (*(1,) * new_axis_count, *b.shape(x)), f"{name}/axes")
    image_pads = (*(0, 0) * new_axis_count, *pads)
    padded = append_op(b, "pad", image, name=name, pads=image_pads, **attrs)
    return reshape(b, padded, b.shape(padded)[new_axis_count:], f"{name}/reshape")


def pointwise(
    b: Builder,
    function: str,
    *operands: Operand,
    name: str,
    parameter: float | None = None,
    low: float = -math.inf,
    high: float = math.inf,
) -> str:
    """Return a function of single elements, by an op kind of its own where one fits.

    Args:
        b: the graph so far.
        function: a key of `FUNCTIONS`, an activation, or a key of `COMPOSED` (written in others).
        *operands: tensors or numbers, at least one tensor.
        name: the name of the op.
        parameter: that of `elu` or `leaky_relu`.
        low: the lower limit of `clamp`.
        high: the upper limit of `clamp`.
    """
    if function in COMPOSED:  # `tan` and the like: written out in functions that have a kind
        append_function = partial(pointwise, b, name=name)
        return COMPOSED[function](append_function, *operands)
    tensors = [x for x in operands if isinstance(x, str)]
    require(bool(tensors), f"{name}: {function} of numbers alone")
    function, operands = simplify_clamp(b, function, operands, low, high)  # to a max or min
    if function in FUNCTIONS_WITH_KIND:  # relu and the like: op kinds of the graph
        kind, kind_attrs = ACTIVATIONS.get(function, (function, {}))
        return append_op(b, kind, tensors[0], name=name, **kind_attrs)
    operand_count = len(function_of(function).gradients)  # a gradient for each operand
    require(len(operands) == operand_count, f"{name}: {function} of {len(operands)} operands")
    operands = _cast_integers(b, function, operands, name)
    output = _append_dedicated_kind(b, function, operands, name)
    if output:
        return output
    attrs: dict[str, Attr] = {"function": function}
    if function == "clamp":
        attrs |= {"low": clip_to_finite(b, low), "high": clip_to_finite(b, high)}
    inputs = place_operands(b, operands, attrs, name)
    if parameter is not None:
        attrs["scalar"] = clip_to_finite(b, parameter)
    return append_op(b, "pointwise", *inputs, name=name, **attrs)


def _cast_integers(
    b: Builder, function: str, operands: tuple[Operand, ...], name: str
) -> tuple[Operand, ...]:
    """Return operands, integer tensors cast to floats unless the result is of integers too."""
    tensors = [x for x in operands if isinstance(x, str)]
    numbers = [x for x in operands if not isinstance(x, str)]
    fractions = [x for x in numbers if x != int(clip_to_finite(b, x))]
    has_floats = any(is_float(b, x) for x in tensors)
    gives_integers = function in INTEGER_FUNCTIONS and not fractions  # unlike `exp`, `x + 0.5`
    if has_floats or gives_integers:
        return operands
    float_of_tensor = {x: cast(b, x, b.precision.weights, f"{name}/cast") for x in tensors}
    return tuple(float_of_tensor[x] if isinstance(x, str) else x for x in operands)


def _append_dedicated_kind(
    b: Builder, function: str, operands: tuple[Operand, ...], name: str
) -> str | None:
    """Append the op kind `add`, `sub`, `mul`, `maximum` or `bias` of two float tensors.

    Returns None, and appends nothing, where no kind fits: other functions and types, or a second
    shape that is not the end of the first, such as one of more axes.
    """
    are_float_tensors = all(isinstance(x, str) and is_float(b, x) for x in operands)
    if len(operands) != 2 or not are_float_tensors:
        return None
    x, y = str(operands[0]), str(operands[1])
    if function == "maximum" and b.shape(x) == b.shape(y):  # this kind does not broadcast
        return append_op(b, function, x, y, name=name)
    if function not in ("add", "sub", "mul"):
        return None
    can_swap = function != "sub"
    if can_swap:  # the kinds broadcast their second operand to the first, which is the larger one
        x, y = order_by_size(b, x, y)
    return _append_broadcast_kind(b, function, x, y, name)


def _append_broadcast_kind(b: Builder, function: str, x: str, y: str, name: str) -> str | None:
    """Append `add`, `sub`, `mul` or `bias`, which repeat `y` along the first axes of `x`."""
    if len(b.shape(y)) > len(b.shape(x)):
        return None
    y_is_for_all_examples = b.shape(y)[:1] == (1,) and is_weight_or_buffer(b, y)
    if y_is_for_all_examples:
        y = _squeeze_leading_axes(b, y, f"{name}/each")  # [1, n] to [n]
    if function == "add":
        total = _add_to_linear_tokens(b, x, y, name) or _append_bias(b, x, y, name)
        if total:
            return total
    x_shape, y_shape = b.shape(x), b.shape(y)
    is_end_of_x = y_shape == x_shape[len(x_shape) - len(y_shape) :]
    return append_op(b, function, x, y, name=name) if is_end_of_x else None


def _squeeze_leading_axes(b: Builder, table: str, name: str) -> str:
    """Return a weight or buffer, the same for every example, without its leading axes of size 1."""
    shape = b.shape(table)
    long_axes = [axis for axis, size in enumerate(shape) if size != 1]
    first_axis = long_axes[0] if long_axes else len(shape)
    return reshape(b, table, shape[first_axis:], name)


def _add_to_linear_tokens(b: Builder, x: str, vector: str, name: str) -> str | None:
    """Add a vector to the tokens of a linear layer, of which `x` is a matrix view; else None."""
    tokens = find_unflattened(b, x)
    views_linear = tokens != x and find_producer(b, tokens, "linear")
    if not views_linear or b.shape(vector) != b.shape(x)[-1:]:
        return None
    total = pointwise(b, "add", tokens, vector, name=name)
    return reshape(b, total, b.shape(x), f"{name}/rows")


def _append_bias(b: Builder, x: str, y: str, name: str) -> str | None:
    """Append `y` as the bias of a matrix product or convolution `x`; None if it is none."""
    product = find_producer(b, x, *PRODUCTS)
    if product is None or not is_weight_or_buffer(b, y):
        return None
    x_shape, y_shape = b.shape(x), b.shape(y)
    is_convolution = product.kind.startswith("conv")
    bias_axis = 1 if is_convolution else len(x_shape) - 1  # of channels or columns
    width = x_shape[bias_axis]
    axes_after = len(x_shape) - 1 - bias_axis
    bias_shape = (width, *(1,) * axes_after)  # [channels, 1, 1] or [columns]
    ends_as_bias = y_shape[-len(bias_shape) :] == bias_shape
    has_other_sizes = math.prod(y_shape) != width  # such as one for each example
    if not ends_as_bias or has_other_sizes:
        return None
    bias = reshape(b, y, (width,), f"{name}/vector")
    return append_op(b, "bias", x, bias, name=name, axis=bias_axis if axes_after else -1)


def select_by_mask(b: Builder, condition: str, x: Operand, y: Operand, name: str) -> str:
    """Return `x` where the condition holds, else `y`."""
    return pointwise(b, "where", condition, x, y, name=name)


def reduce(
    b: Builder, function: str, x: str, axes: Sequence[int] | None, name: str, keep: bool = False
) -> str:
    """Return `x` reduced over `axes`, or over all axes where they are None.

    Functions of `REDUCED`, such as norms, are written out in others. `keep` leaves reduced axes
    with size 1.
    """
    rank = len(b.shape(x))
    stated_axes = range(rank) if axes is None else axes
    reduced_axes = tuple(sorted({axis_of(b, x, axis) for axis in stated_axes}))
    if not reduced_axes or rank == 0:
        return x
    if function in REDUCED:
        return _compose_reduction(b, function, x, reduced_axes, name, keep)
    is_over_pixels = rank == 4 and reduced_axes == (2, 3)
    if function == "mean" and is_over_pixels:
        y = append_op(b, "global_avg_pool", x, name=name)
        return reshape(b, y, (*b.shape(x)[:2], 1, 1), f"{name}/keep") if keep else y
    is_over_all_axes = len(reduced_axes) == rank
    if function == "mean" and is_over_all_axes and not keep:
        return append_op(b, "mean", x, name=name)
    return append_op(b, "reduce", x, name=name, function=function, axes=reduced_axes, keep=keep)


def _compose_reduction(
    b: Builder, function: str, x: str, axes: tuple[int, ...], name: str, keep: bool
) -> str:
    """Append a reduction of `REDUCED`, which consists of other functions and reductions."""
    append_function = partial(pointwise, b, name=name)
    reduce_and_keep_axes = partial(reduce, b, axes=axes, name=name, keep=True)
    reduce_to_result = partial(reduce, b, axes=axes, name=name, keep=keep)
    y = REDUCED[function](append_function, reduce_and_keep_axes, reduce_to_result, x)
    has_all_axes = len(b.shape(y)) == len(b.shape(x))  # some compositions end with kept axes
    return squeeze(b, y, axes, f"{name}/reshape") if has_all_axes and not keep else y


def gather(b: Builder, x: str, indices: str, axis: int, name: str) -> str:
    """Return the parts of `x` at `indices` along `axis`; the rows of a matrix by `embedding`."""
    axis = axis_of(b, x, axis)
    takes_rows_of_matrix = len(b.shape(x)) == 2 and axis == 0
    if takes_rows_of_matrix and is_float(b, x):
        return embedding(b, indices, x, name)
    return append_op(b, "gather", x, indices, name=name, axis=axis)


def embedding(b: Builder, ids: str, table: str, name: str) -> str:
    """Return the rows of `table [rows, width]` at `ids [...]`, `-> [..., width]`.

    Positions are taken to be the first rows of the table, a slice without a look-up.
    """
    shape = b.shape(ids)
    id_count = b.tensors[ids].size
    # constant ids in one row are positions: the same first rows for each example
    are_in_single_row = shape[-1:] == (id_count,)
    are_positions = is_weight_or_buffer(b, ids) and are_in_single_row
    if are_positions and id_count <= b.shape(table)[0]:
        rows = slice_(b, table, axis=0, start=0, stop=id_count, name=f"{name}/rows")
        return reshape(b, rows, (*shape, b.shape(table)[1]), name)
    return append_op(b, "embedding", ids, table, name=name)


def softmax(b: Builder, x: str, axis: int, name: str, log: bool = False) -> str:
    """Return the softmax over an axis, or its logarithm."""
    rank = len(b.shape(x))
    axis = axis_of(b, x, axis)
    other_axes = [other_axis for other_axis in range(rank) if other_axis != axis]
    order = (*other_axes, axis)
    inverse_order = [order.index(original_axis) for original_axis in range(rank)]
    axis_last = transpose(b, x, order, f"{name}/last")
    y = append_op(b, "softmax", axis_last, name=name)
    if log:
        y = pointwise(b, "log", y, name=f"{name}/log")
    return transpose(b, y, inverse_order, f"{name}/back")

"""General ops over any axes: reductions, moves by index, padding, running sums, selection.

They stand where no dedicated kind does. Axes are counted from the first, indices are whole numbers.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from steptime.core.graph import Attr, TensorSpec
from steptime.network.ops.gradient_op import emit_single_op
from steptime.network.ops.table import (
    Backward,
    GradientOp,
    Operand,
    OpKind,
    Specs,
    broadcast_shape,
    copy_kind,
    example,
    flip_attribute,
    format_shapes,
    integers,
    no_flop,
    per_element,
    require,
    resize_axis,
    sum_to_shape,
)

REDUCTIONS = {  # function: the type that it makes, "" for that of its input
    **dict.fromkeys(("sum", "mean", "max", "min", "prod"), ""),
    **dict.fromkeys(("argmax", "argmin"), "int64"),
    **dict.fromkeys(("any", "all"), "bool"),
}
_VALUE_REDUCTIONS = ("max", "min", "prod")  # whose gradients read input and output
PADDINGS = ("constant", "reflect", "edge", "circular")


def _check_axis(x: TensorSpec, axis: int) -> None:
    require(0 <= axis < len(x.shape), f"axis {axis} of {format_shapes(x)}")


def reduce_outputs(
    x: TensorSpec, function: str, axes: tuple[int, ...], keep: bool = False
) -> Specs:
    """Return `x` reduced over `axes`, which stay as axes of length 1 with `keep`."""
    require(function in REDUCTIONS, f"reduce knows {', '.join(REDUCTIONS)}, not {function!r}")
    are_distinct = bool(axes) and len({*axes}) == len(axes)
    are_inside = all(0 <= axis < len(x.shape) for axis in axes)
    require(are_distinct and are_inside, f"reduce over axes {axes} of {format_shapes(x)}")
    needs_single_axis = function.startswith("arg")
    has_axes = len(axes) == 1 or not needs_single_axis
    require(has_axes, f"{function} over {len(axes)} axes")
    # "" in the table: a reduction keeps the type of its input
    dtype = REDUCTIONS[function] or x.dtype
    return (TensorSpec(_reduced_shape(x.shape, axes, keep), dtype),)


def _reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keep: bool) -> tuple[int, ...]:
    """Return a shape without some axes, or with their lengths 1."""
    if keep:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def reduce_gradient(b: Backward) -> tuple[str | None, ...]:
    """Spread dY over what was reduced; an extreme's goes to where it was, in equal shares."""
    function = b.attrs["function"]
    result_type = REDUCTIONS[function]  # "" for that of the input
    if result_type:  # indices and truth values have no gradient
        return (None,)
    reads = (b.op.inputs[0], b.output) if function in _VALUE_REDUCTIONS else ()
    return b.emit(
        "reduce_grad",
        (*reads, b.grad),
        "grad_input",
        function=function,
        axes=b.attrs["axes"],
        shape=b.specs[0].shape,
    )


def broadcast_outputs(x: TensorSpec, shape: tuple[int, ...]) -> Specs:
    """Return `x` seen with `shape`, to which it broadcasts by numpy's rule."""
    fits = broadcast_shape(x.shape, shape) == tuple(shape)
    require(fits, f"{format_shapes(x)} does not broadcast to {list(shape)}")
    return (TensorSpec(tuple(shape), x.dtype),)


def tile_outputs(x: TensorSpec, times: tuple[int, ...]) -> Specs:
    """Return `x` repeated so many times along each axis."""
    require(
        len(times) == len(x.shape) and min(times, default=1) >= 1,
        f"{format_shapes(x)} times {times}",
    )
    shape = tuple(size * count for size, count in zip(x.shape, times, strict=True))
    return (TensorSpec(shape, x.dtype),)


def tile_gradient(b: Backward) -> tuple[str | None, ...]:
    """Sum dY over the repetitions."""
    shape = b.specs[0].shape
    # An axis of n that was repeated t times is viewed as two axes, t and n, and summed over t.
    times_and_sizes = zip(b.attrs["times"], shape, strict=True)
    split_shape = tuple(chain.from_iterable(times_and_sizes))
    (split_gradient,) = b.emit("reshape", (b.grad,), "grad_apart", shape=split_shape)
    times_axes = tuple(range(0, len(split_shape), 2))
    return b.emit("reduce_sum", (split_gradient,), "grad_input", axes=times_axes, shape=shape)


def pad_outputs(
    x: TensorSpec, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0
) -> Specs:
    """Return `x` with `pads` (before and after each axis) around it; a negative one cuts."""
    require(mode in PADDINGS, f"pad knows {', '.join(PADDINGS)}, not {mode!r}")
    require(len(pads) == 2 * len(x.shape), f"{len(pads)} pads around {format_shapes(x)}")
    if mode != "constant":
        _check_repeating_pads(x, pads, mode)
    pads_before = pads[::2]
    pads_after = pads[1::2]
    shape = tuple(
        before + size + after
        for size, before, after in zip(x.shape, pads_before, pads_after, strict=True)
    )
    require(min(shape, default=1) >= 1, f"padding {pads} of {format_shapes(x)} leaves nothing")
    return (TensorSpec(shape, x.dtype),)


def _check_repeating_pads(x: TensorSpec, pads: tuple[int, ...], mode: str) -> None:
    """Check pads that repeat elements of `x`: they have to be there, along inner axes alone."""
    has_inner_axes = len(x.shape) in (3, 4, 5)
    pads_inner_axes_alone = not any(pads[:4])  # neither the batch nor the channels
    fits = has_inner_axes and pads_inner_axes_alone and min(pads) >= 0
    message = f"{mode} padding {pads} of {format_shapes(x)}"
    require(fits, f"{message}: of the axes from the third on only")
    for size, before, after in zip(x.shape, pads[::2], pads[1::2], strict=True):
        # an edge may be repeated any number of times, a reflected or circular axis not be passed
        max_pads = {"edge": max(pads), "reflect": size - 1, "circular": size}
        require(max(before, after) <= max_pads[mode], message)


def pad_gradient(b: Backward) -> tuple[str | None, ...]:
    """Cut dY, which is padding by the opposite; else add the repeated elements up."""
    pads = b.attrs["pads"]
    if b.attrs.get("mode", "constant") == "constant":
        opposite = tuple(-pad for pad in pads)
        return b.emit("pad", (b.grad,), "grad_input", pads=opposite)
    return b.emit("pad_grad", (b.grad,), "grad_input", pads=pads, mode=b.attrs["mode"])


def pad_grad_outputs(grad: TensorSpec, pads: tuple[int, ...], mode: str) -> Specs:
    """Return `grad` with the elements of the padding added to those that they repeat."""
    shape = tuple(n - pads[2 * i] - pads[2 * i + 1] for i, n in enumerate(grad.shape))
    require(mode in PADDINGS and min(shape) >= 1, f"{mode} padding {pads} in {format_shapes(grad)}")
    return (TensorSpec(shape, grad.dtype),)


def _check_indices(x: TensorSpec, indices: TensorSpec, axis: int) -> None:
    _check_axis(x, axis)
    require(indices.dtype in ("int64", "int32"), f"indices of {indices.dtype}")


def gather_outputs(x: TensorSpec, indices: TensorSpec, axis: int) -> Specs:
    """Return the parts of `x` at `indices [...]`, whose axes replace `axis`."""
    _check_indices(x, indices, axis)
    return (resize_axis(x, axis, *indices.shape),)


def gather_grad_outputs(indices: TensorSpec, grad: TensorSpec, axis: int, size: int) -> Specs:
    """Return zeros of `size` along `axis` with each part of `grad` added at its index."""
    rank = len(indices.shape)
    fits = grad.shape[axis : axis + rank] == indices.shape
    require(
        fits, f"gradient {format_shapes(grad)} of a gather by {format_shapes(indices)} along {axis}"
    )
    shape = (*grad.shape[:axis], size, *grad.shape[axis + rank :])
    return (TensorSpec(shape, grad.dtype),)


def gather_elements_outputs(x: TensorSpec, indices: TensorSpec, axis: int) -> Specs:
    """Return the element of `x` at each index along `axis`, at the index's place on other axes."""
    _check_indices(x, indices, axis)
    has_equal_rank = len(x.shape) == len(indices.shape)
    sizes_by_axis = enumerate(zip(indices.shape, x.shape, strict=False))
    is_inside_x = all(
        index_size <= x_size
        for index_axis, (index_size, x_size) in sizes_by_axis
        if index_axis != axis
    )
    fits = has_equal_rank and is_inside_x
    require(fits, f"elements of {format_shapes(x)} at {format_shapes(indices)} along {axis}")
    return (TensorSpec(indices.shape, x.dtype),)


def _axis_and_shape(b: Backward) -> Mapping[str, Attr]:
    return {"axis": b.attrs["axis"], "shape": b.specs[0].shape}


def topk_outputs(x: TensorSpec, k: int, axis: int, largest: bool = True) -> Specs:
    """Return the `k` largest (or smallest) along `axis` in order, and their places."""
    _check_axis(x, axis)
    require(1 <= k <= x.shape[axis], f"top {k} of {format_shapes(x)} along {axis}")
    values = resize_axis(x, axis, k)
    return (values, values._replace(dtype="int64"))


def _count_gradient(_: TensorSpec, grad: TensorSpec, **__: Any) -> int:
    return grad.size


def _gathered_bytes(x: TensorSpec, indices: TensorSpec, axis: int) -> int:
    """Return the bytes that a gather reads: the indices, and the parts that it copies."""
    (gathered,) = gather_outputs(x, indices, axis)
    return indices.size_bytes + gathered.size_bytes


def _gathered_element_bytes(x: TensorSpec, indices: TensorSpec, **_: Any) -> int:
    """Return the bytes that a gather of elements reads: each index, and an element for it."""
    element_bytes = x.size_bytes // x.size
    return indices.size_bytes + element_bytes * indices.size


def _check_axes(x: TensorSpec, *axes: int) -> Specs:
    """Return the input after a check of the axes."""
    for axis in axes:
        _check_axis(x, axis)
    return (x,)


_PADS = (0, 0, 0, 0, 1, 2, 0, 3)
_ADDED = "definition: one addition an element of dy, into zeros"

KINDS = {
    "reduce": OpKind(
        reduce_outputs,
        per_element(1),
        example((2, 5, 3), function="max", axes=(0, 2), keep=False),
        "definition: one addition, product or comparison an element read",
        gradient=reduce_gradient,
        autocast=lambda function, **_: "wide" if function in ("sum", "prod") else "",
    ),
    "reduce_grad": OpKind(
        lambda *specs, shape, **_: (TensorSpec(tuple(shape), specs[-1].dtype),),
        lambda *specs, function, **_: (
            2 * specs[0].size if len(specs) > 1 else specs[0].size * (function == "mean")
        ),
        example((5,), function="mean", axes=(0, 2), shape=(2, 5, 3)),
        "derivative of reduce: copies; a quotient an element of dy, or two FLOP an element of x",
    ),
    "broadcast": OpKind(
        broadcast_outputs,
        no_flop,
        example((3, 1), shape=(2, 3, 4)),
        "definition: a view with strides of 0",
        gradient=lambda b: (sum_to_shape(b, b.grad, b.out.shape, b.specs[0].shape, "grad_input"),),
        storage="view",
    ),
    "tile": copy_kind(tile_outputs, example((2, 3), times=(1, 2)), tile_gradient),
    "pad": copy_kind(
        pad_outputs, example((2, 3, 4, 5), pads=_PADS, mode="constant", value=0.0), pad_gradient
    ),
    "pad_grad": OpKind(
        pad_grad_outputs,
        per_element(1),
        example((2, 3, 7, 8), pads=_PADS, mode="edge"),
        "derivative of padding that repeats: one addition an element of dy",
    ),
    "gather": OpKind(
        gather_outputs,
        no_flop,
        example((2, 5, 3), integers(2, 2), axis=1),
        "definition: reads what it copies",
        read=_gathered_bytes,
        gradient_op=GradientOp(
            (Operand.SECOND_INPUT, Operand.GRADIENT),
            _count_gradient,
            _ADDED,
            attrs=lambda b: {**b.attrs, "size": b.specs[0].shape[b.attrs["axis"]]},
            outputs=gather_grad_outputs,
        ),
    ),
    "gather_elements": OpKind(
        gather_elements_outputs,
        no_flop,
        example((2, 5, 3), integers(2, 2, 3), axis=1),
        "definition: reads what it copies",
        read=_gathered_element_bytes,
        gradient_op=GradientOp(
            (Operand.SECOND_INPUT, Operand.GRADIENT),
            _count_gradient,
            _ADDED,
            attrs=_axis_and_shape,
            outputs=lambda indices, grad, shape, **_: (TensorSpec(tuple(shape), grad.dtype),),
        ),
    ),
    "topk": OpKind(
        topk_outputs,
        per_element(1),
        example((2, 5, 3), k=2, axis=1, largest=True),
        "convention: one comparison an element read; how a library sorts is its own",
        gradient=emit_single_op(
            "gather_elements_grad", (Operand.SECOND_OUTPUT, Operand.GRADIENT), attrs=_axis_and_shape
        ),
    ),
    "cumsum": OpKind(
        lambda x, axis, reverse=False: _check_axes(x, axis),
        per_element(1),
        example((2, 5, 3), axis=1, reverse=False),
        "definition: one addition an element",
        autocast="wide",
        gradient=emit_single_op("cumsum", (Operand.GRADIENT,), attrs=flip_attribute("reverse")),
    ),
    "flip": copy_kind(
        lambda x, axes: _check_axes(x, *axes),
        example((2, 5, 3), axes=(0, 1)),
        emit_single_op("flip", (Operand.GRADIENT,)),
    ),
}

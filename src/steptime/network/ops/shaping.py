"""Ops that only move or rename elements: 0 FLOP, their bytes counted.

`reshape`, `flatten` and `transpose` are views: they take no memory of their own.
"""

import math
from collections.abc import Callable, Mapping

from steptime.core.graph import Attr, TensorSpec
from steptime.network.ops.gradient_op import emit_single_op
from steptime.network.ops.table import (
    Backward,
    Example,
    Gradient,
    GradientOp,
    Operand,
    OpKind,
    Specs,
    copy_kind,
    example,
    format_shapes,
    like_first_input,
    no_flop,
    normalize_axis,
    require,
    resize_axis,
    widest,
)


def concat_outputs(*specs: TensorSpec, axis: int) -> Specs:
    """Return the inputs joined along `axis`."""
    require(bool(specs), "concat of nothing")
    positive_axis = normalize_axis(specs[0], axis, "concat ")
    shapes_without_axis = {
        (len(spec.shape), resize_axis(spec, positive_axis).shape) for spec in specs
    }
    require(
        len(shapes_without_axis) == 1,
        f"concat of {format_shapes(*specs[:8])} along axis {positive_axis}",
    )
    total_size = sum(spec.shape[positive_axis] for spec in specs)
    output = resize_axis(specs[0], positive_axis, total_size)
    return (output._replace(dtype=widest(*specs)),)


def concat_gradient(b: Backward) -> tuple[str | None, ...]:
    """Emit a slice of dY for each input."""
    axis = b.attrs["axis"]
    grads: list[str | None] = []
    start = 0
    for i, spec in enumerate(b.specs):
        stop = start + spec.shape[axis]
        grad = None
        if b.needs[i]:
            (grad,) = b.emit("slice", (b.grad,), f"grad_{i}", axis=axis, start=start, stop=stop)
        grads.append(grad)
        start = stop
    return tuple(grads)


def reshape_outputs(x: TensorSpec, shape: tuple[int, ...]) -> Specs:
    """Return `x` seen with another shape of as many elements."""
    require(math.prod(shape) == x.size, f"reshape {format_shapes(x)} to {list(shape)}")
    return (TensorSpec(tuple(shape), x.dtype),)


def flatten_outputs(x: TensorSpec) -> Specs:
    """Return `x [n, ...] -> [n, product of the further axes]`."""
    require(len(x.shape) >= 1, "flatten of a scalar")
    return (TensorSpec((x.shape[0], math.prod(x.shape[1:])), x.dtype),)


def transpose_outputs(x: TensorSpec, order: tuple[int, ...]) -> Specs:
    """Return `x` with its axes in `order`."""
    require(sorted(order) == list(range(len(x.shape))), f"transpose {format_shapes(x)} by {order}")
    return (TensorSpec(tuple(x.shape[i] for i in order), x.dtype),)


def _invert_order(b: Backward) -> Mapping[str, Attr]:
    """Return the order of axes that undoes a transpose."""
    order = b.attrs["order"]
    return {"order": tuple(order.index(i) for i in range(len(order)))}


_reshape_back = emit_single_op(
    "reshape", (Operand.GRADIENT,), attrs=lambda b: {"shape": b.specs[0].shape}
)


def slice_outputs(x: TensorSpec, axis: int, start: int, stop: int, step: int = 1) -> Specs:
    """Return `x[..., start:stop:step, ...]` along `axis`."""
    positive_axis = normalize_axis(x, axis, "slice ")
    is_inside = 0 <= start < stop <= x.shape[positive_axis]
    range_text = f"{start}:{stop}" if step == 1 else f"{start}:{stop}:{step}"
    require(
        is_inside and step >= 1, f"slice {range_text} of {format_shapes(x)}, axis {positive_axis}"
    )
    element_count = math.ceil((stop - start) / step)
    return (resize_axis(x, positive_axis, element_count),)


def split_outputs(x: TensorSpec, axis: int, sizes: tuple[int, ...]) -> Specs:
    """Return `x` cut along `axis` into parts of these sizes."""
    positive_axis = normalize_axis(x, axis, "split ")
    fits = min(sizes, default=0) > 0 and sum(sizes) == x.shape[positive_axis]
    require(fits, f"split of {format_shapes(x)} into {list(sizes)}, axis {positive_axis}")
    return tuple(resize_axis(x, positive_axis, size) for size in sizes)


def split_gradient(b: Backward) -> tuple[str | None, ...]:
    """Join the gradients of the parts; if one is missing, put each into zeros and add them up."""
    axis, sizes = b.attrs["axis"], b.attrs["sizes"]
    part_grads = [grad for grad in b.grads if grad]
    if len(part_grads) == len(sizes):
        return b.emit("concat", tuple(part_grads), "grad_input", axis=axis)
    # some parts have no gradient: pad the others with zeros to the full size, and add them
    full_size = sum(sizes)
    total = ""
    for i, grad in enumerate(b.grads):
        if not grad:
            continue
        position: dict[str, Attr] = {"axis": axis, "start": sum(sizes[:i]), "size": full_size}
        (padded,) = b.emit("slice_grad", (grad,), f"grad_{i}", **position)
        if total:
            (total,) = b.emit("add", (total, padded), f"grad_sum{i}")
        else:
            total = padded
    return (total,)


def slice_grad_outputs(grad: TensorSpec, axis: int, start: int, size: int, step: int = 1) -> Specs:
    """Return zeros of `size` along `axis` with `grad` at every `step` from `start` on."""
    positive_axis = axis % len(grad.shape)
    last = start + (grad.shape[positive_axis] - 1) * step
    require(last < size, f"{format_shapes(grad)} at {start} in {size}")
    return (resize_axis(grad, positive_axis, size),)


def _view(outputs: Callable[..., Specs], gradient: Gradient, case: Example) -> OpKind:
    """Return the row of a view."""
    return OpKind(outputs, no_flop, case, "definition: a view", gradient, storage="view")


KINDS = {
    "concat": copy_kind(concat_outputs, example((2, 3, 4), (2, 2, 4), axis=1), concat_gradient),
    "reshape": _view(reshape_outputs, _reshape_back, example((2, 6), shape=(3, 4))),
    "flatten": _view(flatten_outputs, _reshape_back, example((2, 3, 4))),
    "detach": OpKind(
        like_first_input,
        no_flop,
        example((2, 3)),
        "definition: a view through which no gradient goes back",
        storage="view",
        stops_gradient=True,
    ),
    "transpose": _view(
        transpose_outputs,
        emit_single_op("transpose", (Operand.GRADIENT,), attrs=_invert_order),
        example((2, 3, 4), order=(2, 0, 1)),
    ),
    "slice": OpKind(
        slice_outputs,
        no_flop,
        example((2, 5, 3), axis=1, start=1, stop=4),
        "definition: a view; by convention it reads what it would copy",
        storage="view",
        read=lambda x, **attrs: slice_outputs(x, **attrs)[0].size_bytes,
        gradient_op=GradientOp(
            (Operand.GRADIENT,),
            no_flop,
            "definition: copies into zeros",
            attrs=lambda b: {**b.attrs_without("stop"), "size": b.specs[0].shape[b.attrs["axis"]]},
            outputs=slice_grad_outputs,
        ),
    ),
    "split": OpKind(
        split_outputs,
        no_flop,
        example((2, 5, 3), axis=1, sizes=(2, 3)),
        "definition: views of all parts; by convention it reads what it would copy",
        gradient=split_gradient,
        storage="view",
    ),
}

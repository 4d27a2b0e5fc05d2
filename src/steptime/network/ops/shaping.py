"""Ops that only move or rename elements: 0 FLOP, their bytes counted.

`reshape`, `flatten` and `transpose` are views: they take no memory of their own.
"""

import math
from collections.abc import Callable
from typing import Any

from steptime.core.graph import Attr, TensorSpec
from steptime.network.ops.table import (
    Back,
    Backward,
    Gradient,
    OpKind,
    Specs,
    along,
    copies,
    example,
    fused,
    no_flop,
    require,
    resized,
    same_as_first,
    show,
    widest,
)


def concat_outputs(*specs: TensorSpec, axis: int) -> Specs:
    """Return the inputs joined along `axis`."""
    require(bool(specs), "concat of nothing")
    place = along(specs[0], axis, "concat ")
    rests = {(len(spec.shape), resized(spec, place).shape) for spec in specs}
    require(len(rests) == 1, f"concat of {show(*specs[:8])} along axis {place}")
    joined = resized(specs[0], place, sum(spec.shape[place] for spec in specs))
    return (joined._replace(dtype=widest(*specs)),)


def concat_gradient(b: Backward) -> tuple[str | None, ...]:
    """Slices of dY."""
    axis = b.attrs["axis"]
    grads: list[str | None] = []
    start = 0
    for i, spec in enumerate(b.specs):
        stop = start + spec.shape[axis]
        where = {"axis": axis, "start": start, "stop": stop}
        grads.append(b.emit("slice", (b.grad,), f"grad_{i}", **where)[0] if b.needs[i] else None)
        start = stop
    return tuple(grads)


def reshape_outputs(x: TensorSpec, shape: tuple[int, ...]) -> Specs:
    """Return `x` seen with another shape of as many elements."""
    require(math.prod(shape) == x.size, f"reshape {show(x)} to {list(shape)}")
    return (TensorSpec(tuple(shape), x.dtype),)


def flatten_outputs(x: TensorSpec) -> Specs:
    """Return `x [n, ...] -> [n, product of the rest]`."""
    require(len(x.shape) >= 1, "flatten of a scalar")
    return (TensorSpec((x.shape[0], math.prod(x.shape[1:])), x.dtype),)


def transpose_outputs(x: TensorSpec, order: tuple[int, ...]) -> Specs:
    """Return `x` with its axes in `order`."""
    require(sorted(order) == list(range(len(x.shape))), f"transpose {show(x)} by {order}")
    return (TensorSpec(tuple(x.shape[i] for i in order), x.dtype),)


def _inverse(b: Backward) -> dict[str, Any]:
    order = b.attrs["order"]
    return {"order": tuple(order.index(i) for i in range(len(order)))}


_RESHAPED = fused("reshape", "dy", attrs=lambda b: {"shape": b.specs[0].shape})


def slice_outputs(x: TensorSpec, axis: int, start: int, stop: int, step: int = 1) -> Specs:
    """Return `x[..., start:stop:step, ...]` along `axis`."""
    place = along(x, axis, "slice ")
    require(
        0 <= start < stop <= x.shape[place] and step >= 1,
        f"slice {start}:{stop}{f':{step}' if step != 1 else ''} of {show(x)}, axis {place}",
    )
    return (resized(x, place, -(-(stop - start) // step)),)


def split_outputs(x: TensorSpec, axis: int, sizes: tuple[int, ...]) -> Specs:
    """Return parts of these sizes that `x` is cut into along `axis`."""
    place = along(x, axis, "split ")
    fits = min(sizes, default=0) > 0 and sum(sizes) == x.shape[place]
    require(fits, f"split of {show(x)} into {list(sizes)}, axis {place}")
    return tuple(resized(x, place, size) for size in sizes)


def split_gradient(b: Backward) -> tuple[str | None, ...]:
    """Join the gradients of the parts, each in zeros where one is missing."""
    axis, sizes, whole = b.attrs["axis"], b.attrs["sizes"], ""
    given = [grad for grad in b.grads if grad]
    if len(given) == len(sizes):
        return (b.emit("concat", tuple(given), "grad_input", axis=axis)[0],)
    for i, grad in enumerate(b.grads):
        if grad:
            how = {"axis": axis, "start": sum(sizes[:i]), "size": sum(sizes)}
            part = b.emit("slice_grad", (grad,), f"grad_{i}", **how)[0]
            whole = b.emit("add", (whole, part), f"grad_sum{i}")[0] if whole else part
    return (whole,)


def slice_grad_outputs(grad: TensorSpec, axis: int, start: int, size: int, step: int = 1) -> Specs:
    """Return zeros of `size` along `axis` with `grad` at every `step` from `start` on."""
    place = axis % len(grad.shape)
    last = start + (grad.shape[place] - 1) * step
    require(last < size, f"{show(grad)} at {start} in {size}")
    return (resized(grad, place, size),)


def _view(outputs: Callable[..., Specs], gradient: Gradient, x: str, /, **attrs: Attr) -> OpKind:
    """Return the row of a view; its example has the shape `x`."""
    case = example(x, **attrs)
    return OpKind(outputs, no_flop, case, "definition: a view", gradient, storage="view")


KINDS = {
    "concat": copies(concat_outputs, example("2x3x4 2x2x4", axis=1), concat_gradient),
    "reshape": _view(reshape_outputs, _RESHAPED, "2x6", shape=(3, 4)),
    "flatten": _view(flatten_outputs, _RESHAPED, "2x3x4"),
    "detach": OpKind(
        same_as_first,
        no_flop,
        example("2x3"),
        "definition: a view through which no gradient goes back",
        storage="view",
        stops_gradient=True,
    ),
    "transpose": _view(
        transpose_outputs, fused("transpose", "dy", attrs=_inverse), "2x3x4", order=(2, 0, 1)
    ),
    "slice": OpKind(
        slice_outputs,
        no_flop,
        example("2x5x3", axis=1, start=1, stop=4),
        "definition: a view; by convention it reads what it would copy",
        storage="view",
        read=lambda x, **attrs: slice_outputs(x, **attrs)[0].size_bytes,
        back=Back(
            "dy",
            no_flop,
            "definition: copies into zeros",
            attrs=lambda b: {**b.without("stop"), "size": b.specs[0].shape[b.attrs["axis"]]},
            outputs=slice_grad_outputs,
        ),
    ),
    "split": OpKind(
        split_outputs,
        no_flop,
        example("2x5x3", axis=1, sizes=(2, 3)),
        "definition: views of all parts; by convention it reads what it would copy",
        gradient=split_gradient,
        storage="view",
    ),
}

"""Activations, sums, products, dropout, softmax, casts.

A FLOP is one addition, multiplication, comparison, division, root or transcendental function.
"""

from __future__ import annotations

from typing import Any

from steptime.core.graph import TensorSpec
from steptime.ops.table import (
    Backward,
    Example,
    Gradient,
    OpKind,
    Specs,
    no_flop,
    per_element,
    require,
    same_as_first,
    show,
    vector,
    widest,
)


def _through(kind: str, kept: str) -> Gradient:
    """Return the rule dX = kind(kept, dY), where the input or the output of the op is kept."""

    def rule(b: Backward) -> tuple[str | None, ...]:
        tensor = b.op.inputs[0] if kept == "input" else b.output
        return (b.emit(kind, (tensor, b.grad), "grad_input", **b.attrs)[0],)

    return rule


_X = vector(3, 4)
_ACTIVATIONS = {  # kind: (FLOP, FLOP of the gradient, what is kept, source)
    "relu": (1, 1, "output", "max(x, 0)"),
    "sigmoid": (4, 3, "output", "1 / (1 + exp(-x)); dx = dy y (1 - y)"),
    "tanh": (1, 3, "output", "tanh(x), one function; dx = dy (1 - y^2)"),
    "gelu": (5, 11, "input", "Hendrycks, Gimpel 2016: x/2 (1 + erf(x / sqrt 2))"),
    "silu": (5, 9, "input", "Elfwing, Uchibe, Doya 2017: x sigmoid(x)"),
}


def broadcast_outputs(a: TensorSpec, b: TensorSpec) -> Specs:
    """Return `a [...], b -> [...]`: `b` has the shape of `a`, or of its last dimensions."""
    fits = b.shape == a.shape[len(a.shape) - len(b.shape) :]
    require(fits, f"shapes {show(a, b)} do not fit elementwise")
    return (TensorSpec(a.shape, widest(a, b)),)


def _summed(b: Backward, grad: str, suffix: str) -> str:
    """Return `grad` summed to the second input's shape if that was broadcast."""
    target, rank = b.specs[1].shape, len(b.out.shape)
    if target == b.out.shape:
        return grad
    axes = tuple(range(rank - len(target)))
    return b.emit("reduce_sum", (grad,), suffix, axes=axes, shape=target)[0]


def add_gradient(b: Backward) -> tuple[str | None, ...]:
    """dA = dB = dY, dB summed where B was broadcast."""
    return (
        b.grad if b.needs[0] else None,
        _summed(b, b.grad, "grad_b") if b.needs[1] else None,
    )


def sub_gradient(b: Backward) -> tuple[str | None, ...]:
    """dA = dY, dB = -dY summed where B was broadcast."""
    if not b.needs[1]:
        return b.grad, None
    turned = b.emit("expand", (b.grad,), "grad_b", shape=b.out.shape, scale=-1.0)[0]
    return b.grad if b.needs[0] else None, _summed(b, turned, "grad_b_sum")


def mul_gradient(b: Backward) -> tuple[str | None, ...]:
    """dA = dY * B and dB = dY * A, summed where B was broadcast."""
    left, right = b.op.inputs
    da = b.emit("mul", (b.grad, right), "grad_a")[0] if b.needs[0] else None
    db = None
    if b.needs[1]:
        db = _summed(b, b.emit("mul", (b.grad, left), "grad_b")[0], "grad_b_sum")
    return da, db


def maximum_outputs(a: TensorSpec, b: TensorSpec) -> Specs:
    """Return the larger elements of two tensors of one shape."""
    require(a.shape == b.shape, f"shapes {show(a, b)} differ")
    return (TensorSpec(a.shape, widest(a, b)),)


def maximum_gradient(b: Backward) -> tuple[str | None, ...]:
    """dY where an input is the larger one."""
    return b.emit("maximum_grad", (*b.op.inputs, b.grad), "grad")


def prelu_outputs(x: TensorSpec, slope: TensorSpec) -> Specs:
    """Return `x [n, c, ...], slope [c] or [1] -> [n, c, ...]`."""
    fits = slope.shape == (1,) or slope.shape == x.shape[1:2]
    require(fits and len(x.shape) >= 2, f"PReLU of {show(x)} with slopes {show(slope)}")
    return (x,)


def prelu_gradient(b: Backward) -> tuple[str | None, ...]:
    """dX = dY or dY * slope; dslope sums dY * X where X is below 0."""
    x, slope = b.op.inputs
    return b.emit("prelu_grad", (x, slope, b.grad), "grad")


def dropout_gradient(b: Backward) -> tuple[str | None, ...]:
    """dX = dY * mask / (1 - p)."""
    return (b.emit("dropout_grad", (b.grad, b.saved[0]), "grad_input", **b.attrs)[0],)


def cast_outputs(x: TensorSpec, dtype: str) -> Specs:
    """Return `x` in another element type."""
    return (TensorSpec(x.shape, dtype),)


def cast_gradient(b: Backward) -> tuple[str | None, ...]:
    """Cast dY back to the type of X."""
    return (b.emit("cast", (b.grad,), "grad_input", dtype=b.specs[0].dtype)[0],)


def _mask(x: TensorSpec, **_: Any) -> Specs:
    return (TensorSpec(x.shape, "bool"),)


KINDS = {
    **{
        name: OpKind(
            same_as_first,
            per_element(flop),
            Example((_X,)),
            source,
            gradient=_through(f"{name}_grad", kept),
            pointwise=True,
        )
        for name, (flop, _, kept, source) in _ACTIVATIONS.items()
    },
    **{
        f"{name}_grad": OpKind(
            same_as_first,
            per_element(flop),
            Example((_X, _X)),
            f"derivative of {name}",
            pointwise=True,
        )
        for name, (_, flop, _, _) in _ACTIVATIONS.items()
    },
    "softmax": OpKind(
        same_as_first,
        per_element(5),
        Example((_X,)),
        "over the last axis: maximum, difference, exp, sum, quotient",
        gradient=_through("softmax_grad", "output"),
        autocast="wide",
    ),
    "softmax_grad": OpKind(
        same_as_first,
        per_element(4),
        Example((_X, _X)),
        "dx = y (dy - sum(y dy))",
    ),
    **{
        name: OpKind(
            broadcast_outputs,
            per_element(1),
            Example((vector(2, 3, 4), vector(3, 4))),
            "definition",
            gradient=gradient,
            pointwise=True,
        )
        for name, gradient in (("add", add_gradient), ("sub", sub_gradient), ("mul", mul_gradient))
    },
    "maximum": OpKind(
        maximum_outputs,
        per_element(1),
        Example((_X, _X)),
        "definition",
        gradient=maximum_gradient,
        pointwise=True,
    ),
    "maximum_grad": OpKind(
        lambda a, b, grad: (a, b),
        per_element(3),
        Example((_X, _X, _X)),
        "derivative of maximum: one comparison, dy to each input or 0",
        pointwise=True,
    ),
    "prelu": OpKind(
        prelu_outputs,
        per_element(2),
        Example((vector(2, 3, 4), vector(3))),
        "He et al. 2015 (PReLU), eq. 1: max(x, 0) + a min(x, 0), a comparison and a product",
        gradient=prelu_gradient,
        pointwise=True,
        autocast="low",
    ),
    "prelu_grad": OpKind(
        lambda x, slope, grad: (x, slope),
        per_element(4),
        Example((vector(2, 3, 4), vector(3), vector(2, 3, 4))),
        "derivative of prelu, eq. 3: dx a comparison and a product, da a product and a sum",
    ),
    "dropout": OpKind(
        same_as_first,
        per_element(2),
        Example((_X,), {"p": 0.5}),
        "Srivastava et al. 2014: mask and scale; drawing the mask is not counted",
        gradient=dropout_gradient,
        saved=_mask,
        pointwise=True,
    ),
    "dropout_grad": OpKind(
        same_as_first,
        per_element(2),
        Example((_X, vector(3, 4, dtype="bool")), {"p": 0.5}),
        "mask and scale",
        pointwise=True,
    ),
    "cast": OpKind(
        cast_outputs,
        no_flop,
        Example((_X,), {"dtype": "bfloat16"}),
        "definition: copies into another element type",
        gradient=cast_gradient,
        pointwise=True,
    ),
}

"""Activations, sums, products, dropout, softmax, casts.

A FLOP is one addition, multiplication, comparison, division, root or transcendental function.
"""

from functools import partial
from typing import Any

from steptime.core.graph import TensorSpec
from steptime.ops.table import (
    Backward,
    OpKind,
    Specs,
    example,
    fused,
    last_axis,
    no_flop,
    of_each,
    per_element,
    require,
    same_as_first,
    show,
    summed,
    widest,
)

_ACTIVATIONS = {  # kind: (FLOP, FLOP of the gradient, what is kept, input or output, source)
    "relu": (1, 1, "y", "max(x, 0)"),
    "sigmoid": (4, 3, "y", "1 / (1 + exp(-x)); dx = dy y (1 - y)"),
    "tanh": (1, 3, "y", "tanh(x), one function; dx = dy (1 - y^2)"),
    "gelu": (5, 11, "x", "Hendrycks, Gimpel 2016: x/2 (1 + erf(x / sqrt 2)), or with `tanh`"),
    "silu": (5, 9, "x", "Elfwing, Uchibe, Doya 2017: x sigmoid(x), or of `beta` times x"),
}


def broadcast_outputs(a: TensorSpec, b: TensorSpec) -> Specs:
    """Return `a [...], b -> [...]`: `b` has the shape of `a`, or of its last dimensions."""
    fits = b.shape == a.shape[len(a.shape) - len(b.shape) :]
    require(fits, f"shapes {show(a, b)} do not fit elementwise")
    return (TensorSpec(a.shape, widest(a, b)),)


def _summed(b: Backward, kind: str, *beside: str, **how: Any) -> str:
    """Return dY, or an op on it, summed to the second input's shape if that was broadcast."""
    grad = b.emit(kind, (b.grad, *beside), "grad_b", **how)[0] if kind else b.grad
    suffix = "grad_b_sum" if kind else "grad_b"
    return summed(b, grad, b.out.shape, b.specs[1].shape, suffix)


_GRADIENTS = {  # of the first input, and of the second
    "add": of_each(lambda b: b.grad, lambda b: _summed(b, "")),
    "sub": of_each(lambda b: b.grad, lambda b: _summed(b, "expand", shape=b.out.shape, scale=-1.0)),
    "mul": of_each(
        lambda b: b.emit("mul", (b.grad, b.op.inputs[1]), "grad_a")[0],
        lambda b: _summed(b, "mul", b.op.inputs[0]),
    ),
}


def maximum_outputs(a: TensorSpec, b: TensorSpec) -> Specs:
    """Return the larger elements of two tensors of one shape."""
    require(a.shape == b.shape, f"shapes {show(a, b)} differ")
    return (TensorSpec(a.shape, widest(a, b)),)


def prelu_outputs(x: TensorSpec, slope: TensorSpec) -> Specs:
    """Return `x [n, c, ...], slope [c] or [1] -> [n, c, ...]`."""
    fits = slope.shape == (1,) or slope.shape == x.shape[1:2]
    require(fits and len(x.shape) >= 2, f"PReLU of {show(x)} with slopes {show(slope)}")
    return (x,)


_pointwise = partial(OpKind, pointwise=True)  # runs in the kernel of another one, too

KINDS = {
    **{
        name: _pointwise(
            same_as_first,
            per_element(flop),
            example("3x4"),
            source,
            fused(f"{name}_grad", f"{kept} dy"),
        )
        for name, (flop, _, kept, source) in _ACTIVATIONS.items()
    },
    **{
        f"{name}_grad": _pointwise(
            same_as_first, per_element(flop), example("3x4 3x4"), f"derivative of {name}"
        )
        for name, (_, flop, _, _) in _ACTIVATIONS.items()
    },
    "softmax": OpKind(
        same_as_first,
        per_element(5),
        example("3x4"),
        "over the last axis: maximum, difference, exp, sum, quotient",
        fused("softmax_grad", "y dy"),
        autocast="wide",
        row=last_axis,
    ),
    "softmax_grad": OpKind(
        same_as_first, per_element(4), example("3x4 3x4"), "dx = y (dy - sum(y dy))", row=last_axis
    ),
    **{
        name: _pointwise(
            broadcast_outputs, per_element(1), example("2x3x4 3x4"), "definition", gradient
        )
        for name, gradient in _GRADIENTS.items()
    },
    "maximum": _pointwise(
        maximum_outputs,
        per_element(1),
        example("3x4 3x4"),
        "definition",
        fused("maximum_grad", "inputs dy", "grad"),
    ),
    "maximum_grad": _pointwise(
        lambda a, b, grad: (a, b),
        per_element(3),
        example("3x4 3x4 3x4"),
        "derivative of maximum: one comparison, dy to each input or 0",
    ),
    "prelu": _pointwise(
        prelu_outputs,
        per_element(2),
        example("2x3x4 3"),
        "He et al. 2015 (PReLU), eq. 1: max(x, 0) + a min(x, 0), a comparison and a product",
        fused("prelu_grad", "inputs dy", "grad"),
        autocast="low",
    ),
    "prelu_grad": OpKind(
        lambda x, slope, grad: (x, slope),
        per_element(4),
        example("2x3x4 3 2x3x4"),
        "derivative of prelu, eq. 3: dx a comparison and a product, da a product and a sum",
    ),
    "dropout": _pointwise(
        same_as_first,
        per_element(2),
        example("3x4", p=0.5),
        "Srivastava et al. 2014: mask and scale; drawing the mask is not counted",
        fused("dropout_grad", "dy saved"),
        saved=lambda x, **_: (TensorSpec(x.shape, "bool"),),
    ),
    "dropout_grad": _pointwise(
        same_as_first, per_element(2), example("3x4 3x4:bool", p=0.5), "mask and scale"
    ),
    "cast": _pointwise(
        lambda x, dtype: (TensorSpec(x.shape, dtype),),
        no_flop,
        example("3x4", dtype="bfloat16"),
        "definition: copies into another element type",
        fused("cast", "dy", attrs=lambda b: {"dtype": b.specs[0].dtype}),
    ),
}

"""Matrix products: linear layers, general products, bias."""

import math

from steptime.core.graph import TensorSpec
from steptime.network.ops.table import (
    Backward,
    OpKind,
    Products,
    Specs,
    broadcast_shape,
    example,
    fused,
    matrix_kind,
    of_each,
    per_element,
    require,
    show,
    summed,
)


def linear_outputs(x: TensorSpec, w: TensorSpec, *_: TensorSpec) -> Specs:
    """Return `x [..., fan_in], w [width, fan_in] -> [..., width]`.

    A quantised `w`, of whole numbers, has what scales it behind it.
    """
    require(len(w.shape) == 2 and len(x.shape) >= 2, f"linear of {show(x, w)}")
    require(x.shape[-1] == w.shape[1], f"linear of {show(x, w)}: {x.shape[-1]} != {w.shape[1]}")
    return (TensorSpec((*x.shape[:-1], w.shape[0]), x.dtype),)


def linear_products(x: TensorSpec, w: TensorSpec, *_: TensorSpec) -> Products:
    """Return one product: rows by width, over fan_in."""
    width, fan_in = w.shape
    return ((1, math.prod(x.shape[:-1]), width, fan_in),)


def _matrix(spec: TensorSpec, transpose: bool, fold: bool) -> tuple[int, ...]:
    shape = spec.shape
    require(len(shape) >= 2, f"matmul needs matrices, not {show(spec)}")
    if fold:
        shape = (math.prod(shape[:-1]), shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if transpose else shape


def matmul_outputs(
    a: TensorSpec,
    b: TensorSpec,
    transpose_a: bool = False,
    transpose_b: bool = False,
    fold: bool = False,
) -> Specs:
    """Return `a [..., m, k], b [..., k, n] -> [..., m, n]`; batches broadcast by numpy's rule.

    `transpose_*` swap the last two dimensions first; `fold` views both operands as
    `[product of leading, last]` before that.
    """
    left, right = _matrix(a, transpose_a, fold), _matrix(b, transpose_b, fold)
    require(left[-1] == right[-2], f"matmul of {show(a, b)}: {left[-1]} != {right[-2]}")
    batch = broadcast_shape(left[:-2], right[:-2])
    require(batch is not None, f"matmul of {show(a, b)}: batches differ")
    return (TensorSpec((*(batch or ()), left[-2], right[-1]), a.dtype),)


def matmul_products(a: TensorSpec, b: TensorSpec, **how: bool) -> Products:
    """Return one product for each matrix of the batch, or one of all rows of the batch.

    All rows make one product where the batch shares a plain matrix on the right, as in the input
    gradient of a linear layer: libraries view the left operand as a matrix of all its rows.

    Source: PyTorch, `should_fold` in aten/src/ATen/native/LinearAlgebra.cpp.
    """
    (out,) = matmul_outputs(a, b, **how)
    *batch, m, n = out.shape
    is_transposed = how.get("transpose_a", False)
    k = _matrix(a, is_transposed, how.get("fold", False))[-1]
    if len(b.shape) == 2 and not is_transposed:
        return ((1, math.prod(batch) * m, n, k),)
    return ((math.prod(batch), m, n, k),)


def matmul_gradient(b: Backward) -> tuple[str | None, ...]:
    """dA = dC B^T and dB = A^T dC, each summed over what its batch was broadcast along.

    A plain matrix that a batch shares gets one product over all of its rows.
    """
    left, right = b.op.inputs
    plain = not b.attrs.get("transpose_a") and not b.attrs.get("fold")
    require(plain, f"no gradient of matmul '{b.op.name}' with transpose_a or fold")
    turned = bool(b.attrs.get("transpose_b"))
    batch = b.out.shape[:-2]
    da = db = None
    if b.needs[0]:
        da = b.emit("matmul", (b.grad, right), "grad_a", transpose_b=not turned)[0]
        da = summed(b, da, (*batch, *b.specs[0].shape[-2:]), b.specs[0].shape, "grad_a_sum")
    if b.needs[1]:
        pair = (b.grad, left) if turned else (left, b.grad)
        shared = len(b.specs[1].shape) == 2 < len(b.out.shape) == len(b.specs[0].shape)
        fold = {"fold": True} if shared else {}
        db = b.emit("matmul", pair, "grad_b", transpose_a=True, **fold)[0]
        if not shared:
            db = summed(b, db, (*batch, *b.specs[1].shape[-2:]), b.specs[1].shape, "grad_b_sum")
    return da, db


def bias_outputs(x: TensorSpec, b: TensorSpec, axis: int = -1) -> Specs:
    """Return `x` with `b [width]` added along `axis`."""
    fits = -len(x.shape) <= axis < len(x.shape) and b.shape == (x.shape[axis],)
    require(fits, f"bias {show(b)} on axis {axis} of {show(x)}")
    return (x,)


def _of_bias(b: Backward) -> str:
    """Return dY summed over every other axis."""
    axis = b.attrs.get("axis", -1) % len(b.out.shape)
    axes = tuple(i for i in range(len(b.out.shape)) if i != axis)
    return b.emit("reduce_sum", (b.grad,), "grad_bias", axes=axes, shape=b.specs[1].shape)[0]


def reduce_sum_outputs(x: TensorSpec, axes: tuple[int, ...], shape: tuple[int, ...]) -> Specs:
    """Return `x` summed over `axes`, then seen as `shape`."""
    kept = math.prod(n for i, n in enumerate(x.shape) if i not in axes)
    require(kept == math.prod(shape), f"sum of {show(x)} over {axes} is not {list(shape)}")
    return (TensorSpec(tuple(shape), x.dtype),)


def expand_outputs(x: TensorSpec, shape: tuple[int, ...], scale: float = 1.0) -> Specs:
    """Return `x` repeated to `shape` and multiplied by `scale`; `x` has the leading dimensions."""
    require(x.shape == tuple(shape)[: len(x.shape)], f"expand {show(x)} to {list(shape)}")
    return (TensorSpec(tuple(shape), x.dtype),)


KINDS = {
    "linear": matrix_kind(
        linear_outputs,
        linear_products,
        example("4x6 5x6"),
        "definition: y = x W^T, 2mnk",
        gradient=of_each(  # dX = dY W and dW = dY^T X, leading dimensions folded into rows
            lambda b: b.emit("matmul", (b.grad, b.op.inputs[1]), "grad_input")[0],
            lambda b: b.emit(
                "matmul", (b.grad, b.op.inputs[0]), "grad_weight", transpose_a=True, fold=True
            )[0],
        ),
        work="matmul",
        logits=True,
    ),
    "matmul": matrix_kind(
        matmul_outputs,
        matmul_products,
        example("2x3x4 2x4x5"),
        "definition: 2mnk for each of a batch",
        gradient=matmul_gradient,
        work="matmul",
        logits=True,
    ),
    "bias": OpKind(
        bias_outputs,
        per_element(1),
        example("2x3x4x4 3", axis=1),
        "definition: one addition an element; in place, as libraries add it in the product",
        gradient=of_each(lambda b: b.grad, _of_bias),
        autocast="first",
        storage="in_place",
        pointwise=True,
        logits=True,
    ),
    "reduce_sum": OpKind(
        reduce_sum_outputs,
        per_element(1),
        example("2x3x4", axes=(0, 2), shape=(3,)),
        "definition: one addition an element read",
        autocast="wide",
    ),
    "mean": OpKind(
        lambda x: (TensorSpec((), x.dtype),),
        per_element(1),
        example("2x3"),
        "definition: one addition an element",
        gradient=fused(
            "expand",
            "dy",
            attrs=lambda b: {"shape": b.specs[0].shape, "scale": 1.0 / max(1, b.specs[0].size)},
        ),
    ),
    "expand": OpKind(
        expand_outputs,
        per_element(1),
        example("2", shape=(2, 3), scale=0.5),
        "definition: one product an element read, then copies",
    ),
}

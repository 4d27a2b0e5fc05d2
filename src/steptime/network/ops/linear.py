"""Matrix products: linear layers, general products, bias."""

import math

from steptime.core.graph import TensorSpec
from steptime.network.ops.gradient_op import emit_single_op
from steptime.network.ops.table import (
    Backward,
    Operand,
    OpKind,
    Products,
    Specs,
    broadcast_shape,
    emit_per_input,
    example,
    format_shapes,
    matrix_kind,
    per_element,
    require,
    sum_to_shape,
)


def linear_outputs(x: TensorSpec, w: TensorSpec, *_: TensorSpec) -> Specs:
    """Return `x [..., fan_in], w [width, fan_in] -> [..., width]`.

    A quantised `w`, of whole numbers, has what scales it behind it.
    """
    require(len(w.shape) == 2 and len(x.shape) >= 2, f"linear of {format_shapes(x, w)}")
    *leading, x_width = x.shape
    width, fan_in = w.shape
    require(x_width == fan_in, f"linear of {format_shapes(x, w)}: {x_width} != {fan_in}")
    return (TensorSpec((*leading, width), x.dtype),)


def linear_products(x: TensorSpec, w: TensorSpec, *_: TensorSpec) -> Products:
    """Return one product: rows by width, over fan_in."""
    width, fan_in = w.shape
    return ((1, math.prod(x.shape[:-1]), width, fan_in),)


def _matrix(spec: TensorSpec, transpose: bool, fold: bool) -> tuple[int, ...]:
    shape = spec.shape
    require(len(shape) >= 2, f"matmul needs matrices, not {format_shapes(spec)}")
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
    *left_batch, m, k = _matrix(a, transpose_a, fold)
    *right_batch, right_k, n = _matrix(b, transpose_b, fold)
    require(k == right_k, f"matmul of {format_shapes(a, b)}: {k} != {right_k}")
    batch = broadcast_shape(tuple(left_batch), tuple(right_batch))
    require(batch is not None, f"matmul of {format_shapes(a, b)}: batches differ")
    return (TensorSpec((*(batch or ()), m, n), a.dtype),)


def matmul_products(a: TensorSpec, b: TensorSpec, **settings: bool) -> Products:
    """Return one product for each matrix of the batch, or one of all rows of the batch.

    All rows make one product where the batch shares a plain matrix on the right, as in the input
    gradient of a linear layer: libraries view the left operand as a matrix of all its rows.

    Source: PyTorch, `should_fold` in aten/src/ATen/native/LinearAlgebra.cpp.
    """
    (out,) = matmul_outputs(a, b, **settings)
    *batch_sizes, m, n = out.shape
    batch = math.prod(batch_sizes)
    is_transposed = settings.get("transpose_a", False)
    *_, k = _matrix(a, is_transposed, settings.get("fold", False))
    # libraries view the left operand as one matrix of all rows where all share the right one
    batch_shares_right = len(b.shape) == 2
    if batch_shares_right and not is_transposed:
        return ((1, batch * m, n, k),)
    return ((batch, m, n, k),)


def matmul_gradient(b: Backward) -> tuple[str | None, ...]:
    """dA = dC B^T and dB = A^T dC, each summed over what its batch was broadcast along.

    A plain matrix that a batch shares gets one product over all of its rows.
    """
    is_plain = not b.attrs.get("transpose_a") and not b.attrs.get("fold")
    require(is_plain, f"no gradient of matmul '{b.op.name}' with transpose_a or fold")
    da = _left_gradient(b) if b.needs[0] else None
    db = _right_gradient(b) if b.needs[1] else None
    return da, db


def _left_gradient(b: Backward) -> str:
    """Return dA, summed to the shape of A."""
    _, right = b.op.inputs
    left_spec, _ = b.specs
    left_shape = left_spec.shape
    is_right_transposed = bool(b.attrs.get("transpose_b"))
    # of C = A B the gradient is dC B^T, of C = A B^T it is dC B; if A was broadcast over batches,
    # these are summed up
    (da,) = b.emit("matmul", (b.grad, right), "grad_a", transpose_b=not is_right_transposed)
    batch_shape = (*b.out.shape[:-2], *left_shape[-2:])
    return sum_to_shape(b, da, batch_shape, left_shape, "grad_a_sum")


def _right_gradient(b: Backward) -> str:
    """Return dB, summed to the shape of B; one product over all rows if the batch shares B."""
    left, _ = b.op.inputs
    left_spec, right_spec = b.specs
    right_shape = right_spec.shape
    out_shape = b.out.shape
    is_right_transposed = b.attrs.get("transpose_b")
    # of C = A B^T the gradient is dC^T A, of C = A B it is A^T dC
    factors = (b.grad, left) if is_right_transposed else (left, b.grad)
    left_has_batch = len(left_spec.shape) > 2 and len(left_spec.shape) == len(out_shape)
    batch_shares_right = left_has_batch and len(right_shape) == 2
    if batch_shares_right:  # `fold` joins the batch and the rows: one product sums over both
        (db,) = b.emit("matmul", factors, "grad_b", transpose_a=True, fold=True)
        return db
    (db,) = b.emit("matmul", factors, "grad_b", transpose_a=True)
    batch_shape = (*out_shape[:-2], *right_shape[-2:])
    return sum_to_shape(b, db, batch_shape, right_shape, "grad_b_sum")


def bias_outputs(x: TensorSpec, b: TensorSpec, axis: int = -1) -> Specs:
    """Return `x` with `b [width]` added along `axis`."""
    fits = -len(x.shape) <= axis < len(x.shape) and b.shape == (x.shape[axis],)
    require(fits, f"bias {format_shapes(b)} on axis {axis} of {format_shapes(x)}")
    return (x,)


def _sum_over_positions(b: Backward) -> str:
    """Return dY summed over all axes but that of the bias."""
    rank = len(b.out.shape)
    bias_axis = b.attrs.get("axis", -1) % rank
    summed_axes = tuple(axis for axis in range(rank) if axis != bias_axis)
    _x_spec, bias_spec = b.specs
    (grad,) = b.emit("reduce_sum", (b.grad,), "grad_bias", axes=summed_axes, shape=bias_spec.shape)
    return grad


def reduce_sum_outputs(x: TensorSpec, axes: tuple[int, ...], shape: tuple[int, ...]) -> Specs:
    """Return `x` summed over `axes`, then seen as `shape`."""
    summed_size = math.prod(n for i, n in enumerate(x.shape) if i not in axes)
    require(
        summed_size == math.prod(shape),
        f"sum of {format_shapes(x)} over {axes} is not {list(shape)}",
    )
    return (TensorSpec(tuple(shape), x.dtype),)


def expand_outputs(x: TensorSpec, shape: tuple[int, ...], scale: float = 1.0) -> Specs:
    """Return `x` repeated to `shape` and multiplied by `scale`; `x` has the leading dimensions."""
    require(x.shape == tuple(shape)[: len(x.shape)], f"expand {format_shapes(x)} to {list(shape)}")
    return (TensorSpec(tuple(shape), x.dtype),)


KINDS = {
    "linear": matrix_kind(
        linear_outputs,
        linear_products,
        example((4, 6), (5, 6)),
        "definition: y = x W^T, 2mnk",
        gradient=emit_per_input(  # dX = dY W and dW = dY^T X, leading dimensions folded into rows
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
        example((2, 3, 4), (2, 4, 5)),
        "definition: 2mnk for each of a batch",
        gradient=matmul_gradient,
        work="matmul",
        logits=True,
    ),
    "bias": OpKind(
        bias_outputs,
        per_element(1),
        example((2, 3, 4, 4), (3,), axis=1),
        "definition: one addition an element; in place, as libraries add it in the product",
        gradient=emit_per_input(lambda b: b.grad, _sum_over_positions),
        autocast="first",
        storage="in_place",
        pointwise=True,
        logits=True,
    ),
    "reduce_sum": OpKind(
        reduce_sum_outputs,
        per_element(1),
        example((2, 3, 4), axes=(0, 2), shape=(3,)),
        "definition: one addition an element read",
        autocast="wide",
    ),
    "mean": OpKind(
        lambda x: (TensorSpec((), x.dtype),),
        per_element(1),
        example((2, 3)),
        "definition: one addition an element",
        gradient=emit_single_op(
            "expand",
            (Operand.GRADIENT,),
            attrs=lambda b: {"shape": b.specs[0].shape, "scale": 1.0 / max(1, b.specs[0].size)},
        ),
    ),
    "expand": OpKind(
        expand_outputs,
        per_element(1),
        example((2,), shape=(2, 3), scale=0.5),
        "definition: one product an element read, then copies",
    ),
}

"""Lowers ATen ops of layers: products, convolutions, norms, pools, look-ups, dropout."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from steptime.formats import elements, lowering, products
from steptime.formats.pytorch.call import Call, Handler, Result, as_list
from steptime.formats.pytorch.functions import NAMES
from steptime.formats.pytorch.fused import BATCH_NORM_WEIGHTS, norm_weights
from steptime.formats.pytorch.opaque import append_opaque
from steptime.formats.tensors import is_weight_or_buffer
from steptime.network.ops.table import require

PoolKind = Literal["max", "avg"]
BAG_FUNCTIONS = ("sum", "mean", "max")  # by the `mode` of an embedding bag


def _sizes_by_axis(sizes: Any, axis_count: int) -> list[int]:
    """Return a size for each axis; a single one stands for all."""
    size_list = as_list(sizes)
    return size_list * axis_count if len(size_list) == 1 else size_list


def _padding_by_side(padding: Any, axis_count: int) -> list[int]:
    """Return the padding before and after each axis, which is the same on both sides."""
    return [size for size in _sizes_by_axis(padding, axis_count) for _ in ("before", "after")]


def _lower_linear(call: Call) -> Result:
    bias = call.optional_tensor("bias") or ""
    return call.lower(lowering.linear, call.tensor("input"), call.tensor("weight"), bias=bias)


def _lower_product(first: str, second: str, call: Call) -> Result:
    """Lower a product of the tensors in two arguments."""
    return call.lower(lowering.matmul, call.tensor(first), call.tensor(second))


def _lower_product_and_sum(first: str, second: str, call: Call) -> Result:
    """Lower a product added to `self`: a `linear` with a bias where that is what it is."""
    x = call.tensor(first)
    w = call.tensor(second)
    addend = call.tensor("self")
    is_matrix_product = first == "mat1"  # `addmm`, not the batches of `baddbmm`
    if is_matrix_product and is_weight_or_buffer(call.b, w):
        is_bias = call.b.shape(addend) == call.b.shape(w)[1:]
        if is_bias:
            w_transposed = call.lower(elements.transpose, w, (1, 0), suffix="/transpose")
            return call.lower(lowering.linear, x, w_transposed, bias=addend)
    y = call.lower(lowering.matmul, x, w)
    return call.lower(elements.pointwise, "add", y, addend, suffix="/bias")


def _lower_einsum(call: Call) -> Result:
    tensors = [call.walk.tensor(value) for value in call["tensors"]]
    letters = call["equation"].partition("->")[0].replace(".", "").replace(" ", "")
    has_diagonal = len({*letters}) < len(letters)
    if len(tensors) == 1 and has_diagonal:
        # `...ii->...i` picks elements, and no letter of a single operand makes a product
        return append_opaque(call, tensors, "diagonal")
    return call.lower(products.einsum, call["equation"], tensors)


def _lower_bilinear(call: Call) -> Result:
    factors = [call.tensor(name) for name in ("input1", "weight", "input2")]
    y = call.lower(products.einsum, "...i,kij,...j->...k", factors)
    bias = call.optional_tensor("bias")
    return call.lower(elements.pointwise, "add", y, bias, suffix="/bias") if bias else y


def _lower_experts_product(call: Call) -> Result:
    """Lower a product of groups of rows, each with the weight of its expert."""
    x = call.tensor(call.argument_name("input", "self"))
    w = call.tensor(call.argument_name("weight", "mat2"))
    return call.lower(products.multiply_experts, x, w)


def _lower_convolution(call: Call, transposed: bool = False) -> Result:
    x = call.tensor("input")
    w = call.tensor("weight")
    axis_count = len(call.b.shape(x)) - 2
    padding = call.argument("padding", 0)
    if not isinstance(padding, str):
        padding = _padding_by_side(padding, axis_count)
    return call.lower(
        lowering.convolution,
        x,
        w,
        bias=call.optional_tensor("bias") or "",
        stride=_sizes_by_axis(call.argument("stride", 1), axis_count),
        dilation=_sizes_by_axis(call.argument("dilation", 1), axis_count),
        padding=padding,
        output_padding=_sizes_by_axis(call.argument("output_padding", 0), axis_count),
        transposed=transposed or bool(call.argument("transposed", False)),
        groups=call.argument("groups", 1),
    )


def _lower_batch_norm(call: Call) -> Result:
    return call.lower(
        lowering.batch_norm, call.tensor("input"), **norm_weights(call, BATCH_NORM_WEIGHTS)
    )


def _lower_last_axes_norm(
    function: Callable[..., str], names: tuple[str, ...], call: Call
) -> Result:
    """Lower a norm over the last axes, with the weights that it has."""
    weights = norm_weights(call, names)
    axis_count = len(call["normalized_shape"])
    return call.lower(function, call.tensor("input"), **weights, axes=axis_count)


def _lower_group_norm(call: Call) -> Result:
    """Lower a norm of groups of channels; without `num_groups` it is instance norm."""
    groups = call.argument("num_groups")
    weights = norm_weights(call, ("weight", "bias"))
    return call.lower(lowering.group_norm, call.tensor("input"), groups, **weights)


def _lower_pool(kind: PoolKind, axis_count: int, call: Call) -> Result:
    is_dilated = set(as_list(call.argument("dilation", 1))) != {1}
    require(not is_dilated, "pooling with a dilation")
    kernel = _sizes_by_axis(call["kernel_size"], axis_count)
    # the second output, if the op has one, are the places of the maxima
    y = call.lower(
        lowering.pool,
        call.tensor(),
        kind,
        ceil=bool(call.argument("ceil_mode")),
        kernel=kernel,
        stride=_sizes_by_axis(call.argument("stride") or kernel, axis_count),
        padding=_padding_by_side(call.argument("padding", 0), axis_count),
    )
    return y, call.index_output(1)


def _lower_adaptive_pool(kind: PoolKind, axis_count: int, call: Call) -> Result:
    y = call.lower(lowering.adaptive_pool, call.tensor(), kind, call.shape[-axis_count:])
    return y, call.index_output(1)


def _lower_resize(mode: str, call: Call) -> Result:
    align_corners = bool(call.argument("align_corners", False))
    return call.lower(
        lowering.resize, call.first_tensor, call.shape[2:], mode, align_corners=align_corners
    )


def _lower_embedding(call: Call) -> Result:
    """Look up rows of a table; a sparse gradient is one of the rows that are read.

    If something else reads the table, too, torch adds a dense gradient to it.
    """
    asks_for_sparse = bool(call.argument("sparse")) and call.b.training
    # torch adds a sparse gradient to a dense one of another reader as a dense one
    is_sparse = asks_for_sparse and _is_read_by_sparse_lookups_alone(call)
    if asks_for_sparse and not is_sparse:
        reason = (
            "its gradient and its update are of all rows, since another op reads the table, too"
        )
        call.b.remarks.append(f"{call.name}: sparse=True; {reason}")
    if is_sparse:
        optimizers = "in PyTorch by SGD, Adagrad or SparseAdam"
        rows = "its gradient and its update are of the rows read"
        call.b.remarks.append(f"{call.name}: sparse=True; {rows}, {optimizers}")
    indices = call.tensor("indices")
    table = call.tensor("weight")
    if is_sparse:
        return call.lower(elements.append_op, "embedding", indices, table, sparse=True)
    return call.lower(elements.embedding, indices, table)


def _is_read_by_sparse_lookups_alone(call: Call) -> bool:
    """Whether only sparse look-ups read the table of an embedding."""
    table = call.node.args["weight"]
    readers = [node for node in call.walk.program.nodes if table in node.input_names]
    return all(node.op == "embedding" and bool(node.args.get("sparse")) for node in readers)


def _lower_embedding_bag(call: Call) -> Result:
    """Lower the sum, mean or maximum of each bag's rows; bags are taken to be of one length."""
    indices = call.tensor("indices")
    weights = call.optional_tensor("per_sample_weights")
    bags_shape = _find_bags_shape(call, indices)
    indices_by_bag = call.lower(elements.reshape, indices, bags_shape, suffix="/bags")
    rows = call.lower(elements.embedding, indices_by_bag, call.tensor("weight"))
    if weights:
        factors = call.lower(elements.reshape, weights, (*bags_shape, 1), suffix="/weights")
        rows = call.lower(elements.pointwise, "mul", rows, factors, suffix="/weigh")
    function = BAG_FUNCTIONS[call.argument("mode", 0)]
    axis_in_bag = 1  # of rows `[bags, rows of a bag, width]`
    bags = call.lower(elements.reduce, function, rows, (axis_in_bag,), suffix="/reduce")
    # torch returns three tensors of indices, too, for the backward pass
    index_outputs = [call.index_output(i) for i in (1, 2, 3)]
    return [bags, *index_outputs]


def _find_bags_shape(call: Call, indices: str) -> tuple[int, int]:
    """Return the number of bags and the rows of each; raises `ShapeError` if these differ."""
    offset_count = call.walk.shape(call["offsets"])[0]
    ends_with_length = bool(call.argument("include_last_offset"))
    bag_count = offset_count - 1 if ends_with_length else offset_count
    index_count = math.prod(call.b.shape(indices))
    bag_length, remainder = divmod(index_count, max(1, bag_count))
    has_equal_bags = bag_length >= 1 and not remainder
    require(has_equal_bags, f"{call.b.shape(indices)[0]} places in {bag_count} bags of one length")
    are_offsets_computed = isinstance(call["offsets"], str)
    if are_offsets_computed:  # so that the file does not say where bags start
        remark = f"{bag_count} bags, taken to be of {bag_length} rows each"
        call.b.remarks.append(f"{call.name}: {remark}")
    return bag_count, bag_length


def _lower_dropout(call: Call) -> Result:
    """Lower dropout if it was exported in training mode, or `Walk.activates_dropout` is set."""
    was_training = call.argument("train", call.argument("training", True))
    is_active = was_training or call.walk.activates_dropout
    if not is_active:
        return call.first_tensor
    return call.lower(lowering.dropout, call.first_tensor, float(call.argument("p", 0.5)))


def _lower_topk(call: Call) -> Result:
    largest = bool(call.argument("largest", True))
    axis = call.argument("dim", -1)
    return call.lower(lowering.topk, call.tensor(), call["k"], axis, largest=largest)


LAYERS: Mapping[str, Handler] = {
    "linear": _lower_linear,
    **dict.fromkeys(("matmul", "linalg_matmul"), partial(_lower_product, "self", "other")),
    **dict.fromkeys(("mm", "bmm"), partial(_lower_product, "self", "mat2")),
    "mv": partial(_lower_product, "self", "vec"),
    "dot": partial(_lower_product, "self", "tensor"),
    "addmm": partial(_lower_product_and_sum, "mat1", "mat2"),
    "baddbmm": partial(_lower_product_and_sum, "batch1", "batch2"),
    "einsum": _lower_einsum,
    "bilinear": _lower_bilinear,
    **dict.fromkeys(("_grouped_mm", "grouped_mm_fallback"), _lower_experts_product),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _lower_convolution),
    **{f"conv_transpose{n}d": partial(_lower_convolution, transposed=True) for n in (1, 2, 3)},
    "batch_norm": _lower_batch_norm,
    "layer_norm": partial(_lower_last_axes_norm, lowering.layer_norm, ("weight", "bias")),
    "rms_norm": partial(_lower_last_axes_norm, lowering.rms_norm, ("weight",)),
    **dict.fromkeys(("group_norm", "instance_norm"), _lower_group_norm),
    **{f"max_pool{n}d": partial(_lower_pool, "max", n) for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": partial(_lower_pool, "max", n) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": partial(_lower_pool, "avg", n) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": partial(_lower_adaptive_pool, "avg", n) for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": partial(_lower_adaptive_pool, "max", n) for n in (1, 2, 3)},
    **{f"upsample_{name}": partial(_lower_resize, mode) for name, mode in NAMES["resizes"].items()},
    **{
        f"_upsample_{name}_aa": partial(_lower_resize, mode)
        for name, mode in NAMES["resizes"].items()
    },
    **{f"_upsample_nearest_exact{n}d": partial(_lower_resize, "nearest") for n in (1, 2)},
    "embedding": _lower_embedding,
    "embedding_bag": _lower_embedding_bag,
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout"), _lower_dropout),
    "topk": _lower_topk,
}

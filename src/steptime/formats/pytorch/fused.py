"""ATen ops that stand for several: attention, norms with statistics, losses, distances."""

import math
from collections.abc import Mapping

from steptime.formats import elements as el
from steptime.formats import lowering as low
from steptime.formats import sequence_lowering
from steptime.formats.attention_pattern import find_learnt_bias
from steptime.formats.pytorch.call import Call, Handler, ProgramConstant, Result
from steptime.formats.pytorch.opaque import append_opaque
from steptime.formats.tensors import is_float
from steptime.network.ops.builder import Builder

BATCH_NORM_WEIGHTS = ("weight", "bias", "running_mean", "running_var")
LOWERED_NAMES = {"running_mean": "mean", "running_var": "variance"}  # as `lowering` calls them
LOSS_REDUCTIONS = ("", "mean", "sum")  # by torch's number
MEAN = 1
MAX_DIRECT_ROWS = 25  # of more rows `torch.cdist` computes distances by a product
BY_PRODUCT = 1  # `compute_mode` of `torch.cdist`
BY_ROWS = (None, 0)  # ... that chooses by the number of rows


def norm_weights(call: Call, names: tuple[str, ...]) -> dict[str, str]:
    """Return the weights of a norm as arguments of its lowering; "" for those left out."""
    return {LOWERED_NAMES.get(name, name): call.optional_tensor(name) or "" for name in names}


def _attention(call: Call) -> str:
    """Lower scaled dot-product attention; axes before the heads are one batch."""
    tensors = [call.tensor(name) for name in ("query", "key", "value")]
    shapes = [call.b.shape(x) for x in tensors]
    q, k, v = (
        call.lower(el.reshape, x, (math.prod(shape[:-3]), *shape[-3:]), suffix=f"/axes{i}")
        for i, (x, shape) in enumerate(zip(tensors, shapes, strict=True))
    )
    mask = call.argument("attn_mask")
    heads = shapes[0][-3]
    computed_mask = find_learnt_bias(call.b, mask, heads) if isinstance(mask, str) else ""
    y = call.lower(
        sequence_lowering.attention,
        q,
        k,
        v,
        causal=bool(call.argument("is_causal", False)),
        mask=computed_mask,
        scale=call.argument("scale"),
    )
    decides_places = isinstance(mask, str) and not is_float(call.b, mask)
    if decides_places and call.walk.is_computed(mask):  # an indexer: what computes it stays
        y = call.lower(el.op, "attach", y, mask, suffix="/places")
    return call.lower(el.reshape, y, (*shapes[0][:-1], shapes[2][-1]), suffix="/back")


def _device_attention(call: Call) -> Result:
    """Lower attention as a device's own op, whose other outputs its gradient reads."""
    specs = call.walk.program.specs
    saved = [
        ProgramConstant(call.walk.file_shape(name), specs[name].dtype, f"{call.name}/saved{i}")
        if name in specs
        else None
        for i, name in enumerate(call.node.outputs[1:])
    ]
    return [_attention(call), *saved]


def _cross_entropy(call: Call) -> Result:
    """Lower a cross entropy: the mean loss of classes is a kind, other forms are its terms."""
    x, target = call.tensor(), call.tensor("target")
    rank = len(call.b.shape(x))
    reduction = call.argument("reduction", MEAN)
    is_smoothed = bool(call.argument("label_smoothing"))
    is_weighted = call.argument("weight") is not None
    is_plain = reduction == MEAN and not is_smoothed and not is_weighted
    target_is_classes = not is_float(call.b, target)
    if is_plain and target_is_classes and rank > 1:
        order = [0, *range(2, rank), 1]
        classes_last = call.lower(el.transpose, x, order, suffix="/last")
        return call.lower(el.op, "cross_entropy", classes_last, target)
    axis = 1 if rank > 1 else 0
    logs = call.lower(el.softmax, x, axis, suffix="/log_softmax", log=True)
    if target_is_classes:
        indices = call.lower(el.unsqueeze, target, axis, suffix="/places")
        terms = call.lower(el.op, "gather_elements", logs, indices, axis=axis)
        terms = call.lower(el.squeeze, terms, (axis,), suffix="/squeeze")
    else:
        terms = call.lower(el.pointwise, "mul", logs, target, suffix="/weighed")
        terms = call.lower(el.reduce, "sum", terms, (axis,), suffix="/sum")
    function = LOSS_REDUCTIONS[reduction]
    return call.lower(el.reduce, function, terms, None, suffix="/loss") if function else terms


def _native_norm(call: Call) -> Result:
    """Lower a norm as decompositions call it, with the statistics that its gradient reads."""
    x = call.tensor("input")
    affine = norm_weights(call, ("weight", "bias"))
    if call.node.op == "native_layer_norm":
        y = call.lower(low.layer_norm, x, **affine, axes=len(call["normalized_shape"]))
    elif call.node.op == "native_group_norm":
        y = call.lower(low.group_norm, x, call["group"], **affine)
    else:
        y = call.lower(low.batch_norm, x, **norm_weights(call, BATCH_NORM_WEIGHTS))
    statistics = [
        ProgramConstant(call.walk.file_shape(name), "float32", f"{call.name}/statistics{i}")
        for i, name in enumerate(call.node.outputs[1:])
    ]
    return [y, *statistics]


def _native_dropout(call: Call) -> Result:
    """Lower dropout as decompositions call it, with its mask."""
    y = call.first_tensor
    if call.argument("train", True) or call.walk.drops:
        y = call.lower(el.dropout, y, float(call.argument("p", 0.5)))
    return [y, ProgramConstant(call.walk.shape(y), "bool", f"{call.name}/mask")]


def _pairwise_distances(call: Call) -> Result:
    """Lower `torch.cdist`, which computes distances of many rows by a product."""
    first = call.tensor(call.argument_name("x1", "self"))
    second = call.tensor(call.argument_name("x2", "other"))
    row_count = max(call.b.shape(first)[-2], call.b.shape(second)[-2])
    compute_mode = call.argument("compute_mode")
    is_by_product = compute_mode == BY_PRODUCT or (
        compute_mode in BY_ROWS and row_count > MAX_DIRECT_ROWS
    )
    is_euclidean = call.argument("p", 2.0) == 2.0
    if not (is_euclidean and is_by_product):
        return append_opaque(call, [first, second])
    second_transposed = _swap_last_axes(call, second, "/transpose")
    product = call.lower(low.matmul, first, second_transposed, suffix="/product")
    first_squares = _sum_squares(call, first, "/squares0")
    second_squares = _swap_last_axes(call, _sum_squares(call, second, "/squares1"), "/row")
    difference = call.lower(el.pointwise, "sub", first_squares, product, suffix="/difference")
    squares = call.lower(el.pointwise, "add", difference, second_squares, suffix="/sum")
    return call.lower(el.pointwise, "sqrt", squares)


def _sum_squares(call: Call, x: str, suffix: str) -> str:
    """Append the sum of the squares of each row, as a column."""
    last_axis = len(call.b.shape(x)) - 1
    return call.lower(el.reduce, "sum_square", x, (last_axis,), suffix=suffix, keep=True)


def _swap_last_axes(call: Call, x: str, suffix: str) -> str:
    b: Builder = call.b
    rank = len(b.shape(x))
    order = [*range(rank - 2), rank - 1, rank - 2]
    return call.lower(el.transpose, x, order, suffix=suffix)


_DEVICE_ATTENTIONS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math",
)
_NATIVE_NORMS = (
    *("native_layer_norm", "native_group_norm", "native_batch_norm"),
    *("_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
    *("_native_batch_norm_legit_no_training", "_batch_norm_impl_index"),
    *("cudnn_batch_norm", "_batch_norm_with_update", "_batch_norm_no_update"),
)
FUSED: Mapping[str, Handler] = {
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(_DEVICE_ATTENTIONS, _device_attention),
    "cross_entropy_loss": _cross_entropy,
    "cdist": _pairwise_distances,
    **dict.fromkeys(_NATIVE_NORMS, _native_norm),
    "native_dropout": _native_dropout,
}

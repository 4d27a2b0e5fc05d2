"""ATen ops that stand for several: attention, norms with statistics, losses, distances."""

import math
from collections.abc import Mapping

from steptime.formats import elements, lowering, sequence_lowering
from steptime.formats.attention_pattern import find_learnt_bias
from steptime.formats.pytorch.call import Call, Handler, ProgramConstant, Result
from steptime.formats.pytorch.opaque import append_opaque
from steptime.formats.tensors import is_float
from steptime.network.ops.builder import Builder

BATCH_NORM_WEIGHTS = ("weight", "bias", "running_mean", "running_var")
LOWERED_NAMES = {"running_mean": "mean", "running_var": "variance"}  # as `lowering` calls them
LOSS_REDUCTIONS = ("", "mean", "sum")  # by torch's number
MEAN_REDUCTION = 1
MAX_DIRECT_ROWS = 25  # of more rows `torch.cdist` computes distances by a product
MODE_BY_PRODUCT = 1  # `compute_mode` of `torch.cdist`
MODES_BY_ROW_COUNT = (None, 0)  # ... that chooses by the number of rows


def norm_weights(call: Call, names: tuple[str, ...]) -> dict[str, str]:
    """Return the weights of a norm as arguments of its lowering; "" for those left out."""
    return {LOWERED_NAMES.get(name, name): call.optional_tensor(name) or "" for name in names}


def _lower_attention(call: Call) -> str:
    """Lower scaled dot-product attention; axes before the heads are one batch."""
    query, key, value = (call.tensor(name) for name in ("query", "key", "value"))
    y = call.lower(
        sequence_lowering.attention,
        _merge_batch_axes(call, query, "/axes0"),
        _merge_batch_axes(call, key, "/axes1"),
        _merge_batch_axes(call, value, "/axes2"),
        causal=bool(call.argument("is_causal", False)),
        mask=_find_learnt_mask(call, query),
        scale=call.argument("scale"),
    )
    y = _keep_ops_of_mask(call, y)
    *query_shape, _ = call.b.shape(query)
    value_width = call.b.shape(value)[-1]
    return call.lower(elements.reshape, y, (*query_shape, value_width), suffix="/back")


def _find_learnt_mask(call: Call, query: str) -> str:
    """Return the mask if it is a learnt bias on the scores of `query`, else ""."""
    mask = call.argument("attn_mask")
    *_, heads, _, _ = call.b.shape(query)
    return find_learnt_bias(call.b, mask, heads) if isinstance(mask, str) else ""


def _keep_ops_of_mask(call: Call, y: str) -> str:
    """Return the output of attention such that ops which compute its mask stay in the graph.

    A mask costs nothing, but the ops that compute it do, such as an indexer that chooses the keys.
    """
    mask = call.argument("attn_mask")
    mask_chooses_keys = isinstance(mask, str) and not is_float(call.b, mask)
    if not (mask_chooses_keys and call.walk.depends_on_floats(mask)):
        return y
    # `attach` passes `y` on and reads the mask
    return call.lower(elements.append_op, "attach", y, mask, suffix="/places")


def _merge_batch_axes(call: Call, x: str, suffix: str) -> str:
    """Return `[..., heads, length, width]` as `[n, heads, length, width]`."""
    *batch_shape, heads, length, width = call.b.shape(x)
    merged_shape = (math.prod(batch_shape), heads, length, width)
    return call.lower(elements.reshape, x, merged_shape, suffix=suffix)


def _lower_device_attention(call: Call) -> Result:
    """Lower attention as a device's own op, whose other outputs its gradient reads."""
    specs = call.walk.program.specs
    saved_outputs: list[ProgramConstant | None] = []
    # outputs behind the first are for the gradient alone: constants without a cost
    _, *saved_names = call.node.outputs
    for i, name in enumerate(saved_names):
        saved = None
        if name in specs:
            shape = call.walk.file_shape(name)
            saved = ProgramConstant(shape, specs[name].dtype, f"{call.name}/saved{i}")
        saved_outputs.append(saved)
    return [_lower_attention(call), *saved_outputs]


def _lower_cross_entropy(call: Call) -> Result:
    """Lower a cross entropy: the mean loss of classes is a kind, other forms are its terms."""
    logits = call.tensor()
    target = call.tensor("target")
    has_batch = len(call.b.shape(logits)) > 1
    target_is_classes = not is_float(call.b, target)
    if has_batch and target_is_classes and _is_plain_mean_loss(call):
        return _lower_mean_class_loss(call, logits, target)
    class_axis = 1 if has_batch else 0
    log_probabilities = call.lower(
        elements.softmax, logits, class_axis, suffix="/log_softmax", log=True
    )
    if target_is_classes:
        terms = _gather_classes(call, log_probabilities, target, class_axis)
    else:
        terms = _weigh_classes(call, log_probabilities, target, class_axis)
    function = LOSS_REDUCTIONS[call.argument("reduction", MEAN_REDUCTION)]
    if not function:
        return terms
    return call.lower(elements.reduce, function, terms, axes=None, suffix="/loss")


def _is_plain_mean_loss(call: Call) -> bool:
    """Return whether a loss is the mean over examples, without weights of classes or smoothing."""
    is_mean = call.argument("reduction", MEAN_REDUCTION) == MEAN_REDUCTION
    is_smoothed = bool(call.argument("label_smoothing"))
    is_weighted = call.argument("weight") is not None
    return is_mean and not is_smoothed and not is_weighted


def _lower_mean_class_loss(call: Call, logits: str, target: str) -> str:
    """Append the mean cross entropy of `[n, classes, ...]` logits and a target of classes."""
    # the op kind reads classes on the last axis, torch on the second
    order = [0, *range(2, len(call.b.shape(logits))), 1]
    classes_last = call.lower(elements.transpose, logits, order, suffix="/last")
    return call.lower(elements.append_op, "cross_entropy", classes_last, target)


def _gather_classes(call: Call, log_probabilities: str, target: str, class_axis: int) -> str:
    """Append the log probability of each example's class."""
    indices = call.lower(elements.unsqueeze, target, class_axis, suffix="/places")
    column = call.lower(
        elements.append_op, "gather_elements", log_probabilities, indices, axis=class_axis
    )
    return call.lower(elements.squeeze, column, (class_axis,), suffix="/squeeze")


def _weigh_classes(call: Call, log_probabilities: str, target: str, class_axis: int) -> str:
    """Append the sum of log probabilities, weighted by a target that is probabilities."""
    products = call.lower(elements.pointwise, "mul", log_probabilities, target, suffix="/weighed")
    return call.lower(elements.reduce, "sum", products, (class_axis,), suffix="/sum")


def _lower_native_norm(call: Call) -> Result:
    """Lower a norm as decompositions call it, with the statistics that its gradient reads."""
    x = call.tensor("input")
    affine = norm_weights(call, ("weight", "bias"))
    if call.node.op == "native_layer_norm":
        y = call.lower(lowering.layer_norm, x, **affine, axes=len(call["normalized_shape"]))
    elif call.node.op == "native_group_norm":
        y = call.lower(lowering.group_norm, x, call["group"], **affine)
    else:
        y = call.lower(lowering.batch_norm, x, **norm_weights(call, BATCH_NORM_WEIGHTS))
    _, *statistics_names = call.node.outputs
    # the op's gradient reads the statistics itself: as outputs they are constants without a cost
    statistics = [
        ProgramConstant(call.walk.file_shape(name), "float32", f"{call.name}/statistics{i}")
        for i, name in enumerate(statistics_names)
    ]
    return [y, *statistics]


def _lower_native_dropout(call: Call) -> Result:
    """Lower dropout as decompositions call it, with its mask."""
    y = call.first_tensor
    is_active = call.argument("train", True) or call.walk.activates_dropout
    if is_active:
        y = call.lower(lowering.dropout, y, float(call.argument("p", 0.5)))
    return [y, ProgramConstant(call.walk.shape(y), "bool", f"{call.name}/mask")]


def _lower_pairwise_distances(call: Call) -> Result:
    """Lower `torch.cdist`, which computes distances of many rows by a product."""
    first = call.tensor(call.argument_name("x1", "self"))
    second = call.tensor(call.argument_name("x2", "other"))
    row_count = max(call.b.shape(first)[-2], call.b.shape(second)[-2])
    is_euclidean = call.argument("p", 2.0) == 2.0
    if is_euclidean and _is_by_product(call.argument("compute_mode"), row_count):
        return _lower_distances_by_product(call, first, second)
    return append_opaque(call, [first, second])


def _is_by_product(compute_mode: int | None, row_count: int) -> bool:
    """Return whether `torch.cdist` computes distances by a product of matrices."""
    if compute_mode in MODES_BY_ROW_COUNT:
        return row_count > MAX_DIRECT_ROWS
    return compute_mode == MODE_BY_PRODUCT


def _lower_distances_by_product(call: Call, first: str, second: str) -> Result:
    """Append Euclidean distances between the rows of two matrices."""
    second_transposed = _swap_last_axes(call, second, "/transpose")
    product = call.lower(lowering.matmul, first, second_transposed, suffix="/product")
    first_squares = _sum_squares(call, first, "/squares0")
    second_squares = _swap_last_axes(call, _sum_squares(call, second, "/squares1"), "/row")
    # |a - b|^2 = a^2 - 2 a b + b^2, the factor 2 not counted
    difference = call.lower(elements.pointwise, "sub", first_squares, product, suffix="/difference")
    squares = call.lower(elements.pointwise, "add", difference, second_squares, suffix="/sum")
    return call.lower(elements.pointwise, "sqrt", squares)


def _lower_affine_grid(call: Call) -> str:
    """Lower a grid of points under affine maps, by which torch multiplies the points."""
    maps = call.tensor("theta")
    n, axis_count, coordinate_count = call.b.shape(maps)
    _, *image_sizes, _ = call.shape
    points = ProgramConstant(
        (n, math.prod(image_sizes), coordinate_count), "float32", f"{call.name}/points"
    )
    maps_transposed = _swap_last_axes(call, maps, "/transpose")
    grid = call.lower(lowering.matmul, call.walk.tensor(points), maps_transposed, suffix="/product")
    return call.lower(elements.reshape, grid, (n, *image_sizes, axis_count))


def _sum_squares(call: Call, x: str, suffix: str) -> str:
    """Append the sum of the squares of each row, as a column."""
    last_axis = len(call.b.shape(x)) - 1
    return call.lower(elements.reduce, "sum_square", x, (last_axis,), suffix=suffix, keep=True)


def _swap_last_axes(call: Call, x: str, suffix: str) -> str:
    b: Builder = call.b
    rank = len(b.shape(x))
    order = [*range(rank - 2), rank - 1, rank - 2]
    return call.lower(elements.transpose, x, order, suffix=suffix)


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
    "scaled_dot_product_attention": _lower_attention,
    **dict.fromkeys(_DEVICE_ATTENTIONS, _lower_device_attention),
    "cross_entropy_loss": _lower_cross_entropy,
    "cdist": _lower_pairwise_distances,
    "affine_grid_generator": _lower_affine_grid,
    **dict.fromkeys(_NATIVE_NORMS, _lower_native_norm),
    "native_dropout": _lower_native_dropout,
}

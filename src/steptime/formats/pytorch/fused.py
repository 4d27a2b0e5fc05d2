"""ATen ops that stand for several: attention, norms, losses, as modules or decompositions call."""

import math
from collections.abc import Mapping
from typing import Any

from steptime.formats import elements as el
from steptime.formats import lowering as low
from steptime.formats import sequence_lowering
from steptime.formats.patterns import bias_of_scores
from steptime.formats.pytorch.opaque import append_opaque
from steptime.formats.pytorch.walk import Call, Const, Handler, Result

BATCH_NORM = ("weight", "bias", "running_mean", "running_var")


def weights_of(c: Call, *names: str) -> dict[str, Any]:
    """Return the tensors of arguments that may be left out, by what lowering calls them."""
    lowered = {"running_mean": "mean", "running_var": "variance"}
    return {lowered.get(name, name): c.maybe(name) or "" for name in names}


def _attention(c: Call) -> Result:
    parts = [c.x(name) for name in ("query", "key", "value")]
    shapes = [c.b.shape(x) for x in parts]
    q, k, v = (
        el.reshape(c.b, x, (math.prod(shape[:-3]), *shape[-3:]), f"{c.name}/axes{i}")
        for i, (x, shape) in enumerate(zip(parts, shapes, strict=True))
    )
    mask = c.get("attn_mask")
    learnt = bias_of_scores(c.b, mask, shapes[0][-3]) if isinstance(mask, str) else ""
    settings = {"causal": bool(c.get("is_causal", False)), "mask": learnt, "scale": c.get("scale")}
    y = c.do(sequence_lowering.attention, q, k, v, **settings)
    return c.do(el.reshape, y, (*shapes[0][:-1], shapes[2][-1]), at="/back")


def _cross_entropy(c: Call) -> Result:
    """Return the mean loss of classes, other forms by a softmax and its terms."""
    x, target = c.x(), c.walk.tensor(c["target"])
    plain = c.get("reduction", 1) == 1 and not c.get("label_smoothing") and c.get("weight") is None
    if plain and not el.is_float(c.b, target) and len(c.b.shape(x)) > 1:
        last = len(c.b.shape(x)) - 1
        order = [0, *range(2, last + 1), 1]
        return c.do(el.op, "cross_entropy", c.do(el.transpose, x, order, at="/last"), target)
    axis = 1 if len(c.b.shape(x)) > 1 else 0
    logs = c.do(el.softmax, x, axis, at="/log_softmax", log=True)
    if el.is_float(c.b, target):
        terms = c.do(el.pointwise, "mul", logs, target, at="/weighed")
        terms = c.do(el.reduce, "sum", terms, (axis,), at="/sum")
    else:
        places = c.do(el.unsqueeze, target, axis, at="/places")
        terms = c.do(el.op, "gather_elements", logs, places, axis=axis)
        terms = c.do(el.squeeze, terms, (axis,), at="/squeeze")
    reductions = ("", "mean", "sum")
    function = reductions[c.get("reduction", 1)]
    return c.do(el.reduce, function, terms, None, at="/loss") if function else terms


def _native_norm(c: Call) -> Result:
    """Return a norm as decompositions call it, and its statistics, which its gradient reads."""
    x, weight, bias = c.x("input"), c.maybe("weight") or "", c.maybe("bias") or ""
    if c.node.op == "native_layer_norm":
        axes = len(c["normalized_shape"])
        y = c.do(low.layer_norm, x, weight=weight, bias=bias, axes=axes)
    elif c.node.op == "native_group_norm":
        y = c.do(low.group_norm, x, c["group"], weight=weight, bias=bias)
    else:
        y = c.do(low.batch_norm, x, **weights_of(c, *BATCH_NORM))
    statistics = [
        Const(c.walk.told(name), "float32", f"{c.name}/statistics{i}")
        for i, name in enumerate(c.node.outputs[1:])
    ]
    return [y, *statistics]


def _native_dropout(c: Call) -> Result:
    drops = c.get("train", True) or c.walk.drops
    y = c.do(el.dropout, c.first, float(c.get("p", 0.5))) if drops else c.first
    return [y, Const(c.walk.shape(y), "bool", f"{c.name}/mask")]


def _fused_attention(c: Call) -> Result:
    """Return attention as a device's own op, whose other outputs its gradient reads."""
    y: Any = _attention(c)
    statistics = [
        Const(c.walk.told(name), c.walk.program.specs[name].dtype, f"{c.name}/saved{i}")
        if name in c.walk.program.specs
        else None
        for i, name in enumerate(c.node.outputs[1:])
    ]
    return [y, *statistics]


def _cdist(c: Call) -> Result:
    """Return distances of all pairs; of more than 25 rows torch makes them by a product."""
    first, second = c.x(c.either("x1", "self")), c.x(c.either("x2", "other"))
    rows = max(c.b.shape(first)[-2], c.b.shape(second)[-2])
    by_product = c.get("compute_mode") == 1 or (c.get("compute_mode") in {None, 0} and rows > 25)
    if c.get("p", 2.0) != 2.0 or not by_product:
        return append_opaque(c, [first, second])
    rank = len(c.b.shape(second))
    transposed = c.do(el.transpose, second, [*range(rank - 2), rank - 1, rank - 2], at="/transpose")
    y = c.do(low.matmul, first, transposed, at="/product")
    squares = [
        c.do(el.reduce, "sum_square", x, (len(c.b.shape(x)) - 1,), at=f"/squares{i}", keep=True)
        for i, x in enumerate((first, second))
    ]
    rank = len(c.b.shape(squares[1]))
    order = [*range(rank - 2), rank - 1, rank - 2]
    squares[1] = c.do(el.transpose, squares[1], order, at="/row")
    y = c.do(el.pointwise, "sub", squares[0], y, at="/difference")
    y = c.do(el.pointwise, "add", y, squares[1], at="/sum")
    return c.do(el.pointwise, "sqrt", y)


FUSED: Mapping[str, Handler] = {
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_attention_math",
        ),
        _fused_attention,
    ),
    "cross_entropy_loss": _cross_entropy,
    "cdist": _cdist,
    **dict.fromkeys(
        (
            *("native_layer_norm", "native_group_norm", "native_batch_norm"),
            *("_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
            *("_native_batch_norm_legit_no_training", "_batch_norm_impl_index"),
            *("cudnn_batch_norm", "_batch_norm_with_update", "_batch_norm_no_update"),
        ),
        _native_norm,
    ),
    "native_dropout": _native_dropout,
}

"""ATen ops: a table of small functions onto `formats/lowering.py`, read before decompositions.

A row is the op's name without its overload; its function gets the call, whose arguments have the
names of ATen's schema, and returns the tensor made, or one for each output.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from steptime.core.toml_files import packaged
from steptime.formats import elements as el
from steptime.formats import lowering as low
from steptime.formats import products
from steptime.formats.patterns import bias_of_scores
from steptime.formats.pytorch.opaque import append_opaque
from steptime.formats.pytorch.views import OTHERS, VIEWS
from steptime.formats.pytorch.walk import Call, Const, Handler, Result, listed
from steptime.network.ops.table import require

NAMES = packaged("torch_names.toml")
_BATCH_NORM = ("weight", "bias", "running_mean", "running_var")
Size = Any


def _pair(value: Size, axes: int) -> list[int]:
    """Return a size for each axis; one stands for all of them."""
    sizes = listed(value)
    return sizes * axes if len(sizes) == 1 else sizes


def _sides(value: Size, axes: int) -> list[int]:
    return [size for size in _pair(value, axes) for _ in (0, 1)]


def _weights(c: Call, *names: str) -> dict[str, Any]:
    """Return the tensors of arguments that may be left out, by what lowering calls them."""
    called = {"running_mean": "mean", "running_var": "variance"}
    return {called.get(name, name): c.maybe(name) or "" for name in names}


def _operands(c: Call, *values: Any) -> list[Any]:
    """Return numbers, and the names of tensors."""
    return [one if isinstance(one, int | float) else c.walk.tensor(one) for one in values]


def _binary(function: str, c: Call, turned: bool = False) -> Result:
    a, b = _operands(c, c["self"], c[c.either("other", "exponent")])
    alpha = c.get("alpha", 1)
    if alpha != 1:
        of_tensor = isinstance(b, str)
        b = c.do(el.pointwise, "mul", b, alpha, at="/alpha") if of_tensor else b * alpha
    done = "floor_divide" if c.get("rounding_mode") else function
    if turned or (done in {"mul", "add"} and not isinstance(a, str)):
        a, b = b, a
    return c.do(el.pointwise, done, a, b)


def _reduction(function: str, c: Call, then: str = "") -> Result:
    chosen, done = listed(c.get("dim")) or None, function
    if done == "norm":
        order = c.get(c.either("p", "ord"), 2)
        require(order in (1, 2), f"a norm of order {order}")
        done = f"l{int(order)}"
    y = el.reduce(c.b, done, c.x(), chosen, c.name, bool(c.get("keepdim", False)))
    return el.pointwise(c.b, then, y, name=c.name) if then else (y, c.places(1))


def _extreme(function: str, c: Call) -> Result:
    """Return the largest or smallest of two tensors, over all, or over an axis with places."""
    of_two = c.get("other") is not None
    return _binary(f"{function}imum", c) if of_two else _reduction(function, c)


def _clamp(c: Call) -> Result:
    low, high = (0.0, 6.0) if c.node.op == "relu6" else (-math.inf, math.inf)
    least, most = c.get("min", c.get("min_val", low)), c.get("max", c.get("max_val", high))
    x = c.x()
    limits = dict[str, Any]()
    for function, name, end in (("maximum", "low", least), ("minimum", "high", most)):
        if not isinstance(end, int | float):
            x = c.do(el.pointwise, function, x, c.walk.tensor(end))
        elif math.isfinite(end):
            limits[name] = float(end)
    return c.do(el.pointwise, "clamp", x, **limits) if limits else x


def _function(function: str, c: Call, argument: str = "", default: float = 0.0) -> Result:
    """Return a function of one operand, its parameter an argument."""
    parameter = float(c.get(argument, default)) if argument else None
    return c.do(el.pointwise, function, c.first, parameter=parameter)


def _where(c: Call) -> Result:
    if c.node.op == "masked_fill":
        condition, fill, x = _operands(c, c["mask"], c["value"], c["self"])
        return c.do(el.where, condition, fill, x)
    condition, x, y = _operands(c, c["condition"], c["self"], c["other"])
    return c.do(el.where, condition, x, y)


def _addcmul(c: Call) -> Result:
    function, x, y = c.node.op[4:], c.x("tensor1"), c.x("tensor2")
    product = c.do(el.pointwise, function, x, y, at="/product")
    if c.get("value", 1) != 1:
        product = c.do(el.pointwise, "mul", product, c["value"], at="/value")
    return c.do(el.pointwise, "add", c.x(), product)


def _threshold(c: Call) -> Result:
    above = c.do(el.pointwise, "gt", c.x(), float(c["threshold"]), at="/above")
    return c.do(el.where, above, c.x(), float(c["value"]))


def _glu(c: Call) -> Result:
    axis = c.axis(c.get("dim", -1))
    half = c.b.shape(c.x())[axis] // 2
    x, gate = c.do(el.split, c.x(), [half, half], axis, at="/halves")
    return c.do(el.pointwise, "mul", x, c.do(el.pointwise, "sigmoid", gate, at="/gate"))


def _triangle(c: Call) -> Result:
    mask = c.walk.tensor(Const(c.b.shape(c.x())[-2:], "float32", f"{c.name}/triangle"))
    return c.do(el.pointwise, "mul", c.x(), mask)


def _spread_and_mean(c: Call) -> Result:
    then = "sqrt" if c.node.op == "std_mean" else ""
    spread: Any = _reduction("variance", c, then)
    mean: Any = _reduction("mean", c)
    return [spread if then else spread[0], mean[0]]


def _product(first: str, second: str, c: Call) -> Result:
    x, w = c.x(first), c.x(second)
    bias = c.x() if first == "mat1" and el.is_kept(c.b, w) else ""
    if bias and c.b.shape(bias) == c.b.shape(w)[1:]:
        turned = c.do(el.transpose, w, (1, 0), at="/transpose")
        return low.linear(c.b, x, turned, c.name, bias)
    y = low.matmul(c.b, x, w, c.name)
    return c.do(el.pointwise, "add", y, c.x(), at="/bias") if first != "self" else y


def _convolution(c: Call, transposed: bool = False) -> Result:
    x, w, padding = c.x("input"), c.x("weight"), c.get("padding", 0)
    axes = len(c.b.shape(x)) - 2
    how: dict[str, Any] = {name: _pair(c.get(name, 1), axes) for name in ("stride", "dilation")}
    how["padding"] = padding if isinstance(padding, str) else _sides(padding, axes)
    how["output_padding"] = _pair(c.get("output_padding", 0), axes)
    how["transposed"] = transposed or bool(c.get("transposed", False))
    bias, groups = c.maybe("bias") or "", c.get("groups", 1)
    return c.do(low.convolution, x, w, bias=bias, groups=groups, **how)


def _norm(function: Callable[..., str], c: Call) -> Result:
    """Return a norm over the last axes, or over groups of channels."""
    x, names = c.x("input"), ("weight", "bias")
    if function is low.group_norm:
        groups = c.get("num_groups") or c.b.shape(x)[1]
        return low.group_norm(c.b, x, groups, c.name, **_weights(c, *names))
    weights = _weights(c, *names[: 1 + (function is low.layer_norm)])
    return function(c.b, x, c.name, **weights, axes=len(c["normalized_shape"]))


def _pool(kind: Literal["max", "avg"], axes: int, c: Call) -> Result:
    require(set(listed(c.get("dilation", 1))) == {1}, "pooling with a dilation")
    kernel = _pair(c["kernel_size"], axes)
    stride, sides = _pair(c.get("stride") or kernel, axes), _sides(c.get("padding", 0), axes)
    how: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": sides}
    return c.do(low.pool, c.x(), kind, ceil=bool(c.get("ceil_mode")), **how), c.places(1)


def _adaptive(kind: Literal["max", "avg"], axes: int) -> Handler:
    return lambda c: (c.do(low.adaptive_pool, c.x(), kind, c.shape[-axes:]), c.places(1))


def _resize(mode: str) -> Handler:
    return lambda c: c.do(
        low.resize, c.first, c.shape[2:], mode, align_corners=bool(c.get("align_corners", False))
    )


def _attention(c: Call) -> Result:
    parts = [c.x(name) for name in ("query", "key", "value")]
    shapes = [c.b.shape(x) for x in parts]
    q, k, v = (
        el.reshape(c.b, x, (math.prod(shape[:-3]), *shape[-3:]), f"{c.name}/axes{i}")
        for i, (x, shape) in enumerate(zip(parts, shapes, strict=True))
    )
    mask = c.get("attn_mask")
    learnt = bias_of_scores(c.b, mask, shapes[0][-3]) if isinstance(mask, str) else ""
    how = {"causal": bool(c.get("is_causal", False)), "mask": learnt, "scale": c.get("scale")}
    y = c.do(low.attention, q, k, v, **how)
    return c.do(el.reshape, y, (*shapes[0][:-1], shapes[2][-1]), at="/back")


def _recurrent(cell: str, c: Call) -> Result:
    first = c["hx"]
    states = first if isinstance(first, list) else [first]
    computed = [one for one in states if isinstance(one, str)]
    _refuse_grown_time(c)
    widths = [c.walk.shape(one)[-1] for one in states]
    projected = len({*widths}) > 1
    tensors = [c.walk.tensor(one) for one in c["params"]]
    each = (4 if c["has_biases"] else 2) + projected
    weights = [tensors[i : i + each] for i in range(0, len(tensors), each)]
    how: dict[str, Any] = {name: bool(c.get(name)) for name in ("bidirectional", "batch_first")}
    p = float(c.get("dropout", 0.0))
    y, state = c.do(low.recurrent, c.x("input"), cell, weights, p=p, states=computed, **how)
    wider = (0, 0, 0, 0, 0, widths[-1] - widths[0])  # the last cells: as the last output is made
    return [y, state, c.do(el.pad, state, wider, at="/cells") if projected else state]


def _refuse_grown_time(c: Call) -> None:
    """Raise `ShapeError` where another batch makes the sequence longer: time is the first axis."""
    if c.get("batch_first") or not c.walk.batches.differ:
        return
    grown = c.walk.shape(c["input"])[0] != c.walk.told(c.node.args["input"])[0]
    require(not grown, "its first axis is time: leave the batch, axis 1, open in the export")


def _cell(gates: str, c: Call) -> Result:
    """Return one step of a recurrent cell: two products, and functions of the gates."""
    x, given = c.x("input"), c["hx"]
    h, *rest = map(c.walk.tensor, given if isinstance(given, list) else [given])
    from_x = c.do(low.linear, x, c.x("w_ih"), at="/input", bias=c.maybe("b_ih") or "")
    from_h = c.do(low.linear, h, c.x("w_hh"), at="/hidden", bias=c.maybe("b_hh") or "")
    f = partial(_apply, c)
    if gates == "lstm":
        parts = _gates(c, f("add", from_x, from_h), 4, "/gates")
        i, forget, out = (f("sigmoid", parts[place]) for place in (0, 1, 3))
        cell = f("add", f("mul", forget, rest[0]), f("mul", i, f("tanh", parts[2])))
        return [f("mul", out, f("tanh", cell)), cell]
    if gates == "gru":
        ours, theirs = _gates(c, from_x, 3, "/gates_x"), _gates(c, from_h, 3, "/gates_h")
        reset, update = (f("sigmoid", f("add", ours[i], theirs[i])) for i in (0, 1))
        new = f("tanh", f("add", ours[2], f("mul", reset, theirs[2])))
        return f("add", new, f("mul", update, f("sub", h, new)))
    return f("relu" if gates == "relu" else "tanh", f("add", from_x, from_h))


def _apply(c: Call, function: str, *operands: str) -> str:
    return c.do(el.pointwise, function, *operands)


def _gates(c: Call, x: str, count: int, at: str) -> list[str]:
    width = c.b.shape(x)[-1] // count
    return c.do(el.split, x, [width] * count, len(c.b.shape(x)) - 1, at=at)


def _cross_entropy(c: Call) -> Result:
    """Return the mean loss of classes, other forms by a softmax and what is picked of it."""
    x, target = c.x(), c.walk.tensor(c["target"])
    plain = c.get("reduction", 1) == 1 and not c.get("label_smoothing") and c.get("weight") is None
    if plain and not el.is_float(c.b, target) and len(c.b.shape(x)) > 1:
        last = len(c.b.shape(x)) - 1
        order = [0, *range(2, last + 1), 1]
        return c.do(el.op, "cross_entropy", c.do(el.transpose, x, order, at="/last"), target)
    axis = 1 if len(c.b.shape(x)) > 1 else 0
    logs = c.do(el.softmax, x, axis, at="/log_softmax", log=True)
    if el.is_float(c.b, target):
        picked = c.do(el.pointwise, "mul", logs, target, at="/weighed")
        picked = c.do(el.reduce, "sum", picked, (axis,), at="/sum")
    else:
        at = c.do(el.unsqueeze, target, axis, at="/places")
        picked = c.do(el.op, "gather_elements", logs, at, axis=axis)
        picked = c.do(el.squeeze, picked, (axis,), at="/squeeze")
    reductions = ("", "mean", "sum")
    function = reductions[c.get("reduction", 1)]
    return c.do(el.reduce, function, picked, None, at="/loss") if function else picked


def _native_norm(c: Call) -> Result:
    """Return a norm as decompositions call it, and its statistics, which its gradient reads."""
    x, weight, bias = c.x("input"), c.maybe("weight") or "", c.maybe("bias") or ""
    if c.node.op == "native_layer_norm":
        axes = len(c["normalized_shape"])
        y = c.do(low.layer_norm, x, weight=weight, bias=bias, axes=axes)
    elif c.node.op == "native_group_norm":
        y = c.do(low.group_norm, x, c["group"], weight=weight, bias=bias)
    else:
        y = c.do(low.batch_norm, x, **_weights(c, *_BATCH_NORM))
    others = [
        Const(c.walk.told(name), "float32", f"{c.name}/statistics{i}")
        for i, name in enumerate(c.node.outputs[1:])
    ]
    return [y, *others]


def _native_dropout(c: Call) -> Result:
    drops = c.get("train", True) or c.walk.drops
    y = c.do(el.dropout, c.first, float(c.get("p", 0.5))) if drops else c.first
    return [y, Const(c.walk.shape(y), "bool", f"{c.name}/mask")]


def _fused_attention(c: Call) -> Result:
    """Return attention as a device's own op, whose other outputs its gradient reads."""
    y: Any = _attention(c)
    others = [
        Const(c.walk.told(name), c.walk.program.specs[name].dtype, f"{c.name}/saved{i}")
        if name in c.walk.program.specs
        else None
        for i, name in enumerate(c.node.outputs[1:])
    ]
    return [y, *others]


def _cdist(c: Call) -> Result:
    """Return distances of all pairs; of more than 25 rows torch makes them by a product."""
    first, second = c.x(c.either("x1", "self")), c.x(c.either("x2", "other"))
    rows = max(c.b.shape(first)[-2], c.b.shape(second)[-2])
    by_product = c.get("compute_mode") == 1 or (c.get("compute_mode") in {None, 0} and rows > 25)
    if c.get("p", 2.0) != 2.0 or not by_product:
        return append_opaque(c, [first, second])
    rank = len(c.b.shape(second))
    turned = c.do(el.transpose, second, [*range(rank - 2), rank - 1, rank - 2], at="/transpose")
    y = c.do(low.matmul, first, turned, at="/product")
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


def _bags(c: Call) -> Result:
    """Return the sum, mean or maximum of each bag's rows; bags are taken to be of one length."""
    ids, weights = c.x("indices"), c.maybe("per_sample_weights")
    bags = c.walk.shape(c["offsets"])[0] - bool(c.get("include_last_offset"))
    length, rest = divmod(math.prod(c.b.shape(ids)), max(1, bags))
    require(length >= 1 and not rest, f"{c.b.shape(ids)[0]} places in {bags} bags of one length")
    if isinstance(c["offsets"], str):
        c.b.remarks.append(f"{c.name}: {bags} bags, taken to be of {length} rows each")
    ids = c.do(el.reshape, ids, (bags, length), at="/bags")
    y = c.do(el.embedding, ids, c.x("weight"))
    if weights:
        each = c.do(el.reshape, weights, (bags, length, 1), at="/weights")
        y = c.do(el.pointwise, "mul", y, each, at="/weigh")
    y = c.do(el.reduce, ("sum", "mean", "max")[c.get("mode", 0)], y, (1,), at="/reduce")
    return [y, *[c.places(i) for i in (1, 2, 3)]]


def _bilinear(c: Call) -> Result:
    terms = [c.x(name) for name in ("input1", "weight", "input2")]
    y = c.do(products.einsum, "...i,kij,...j->...k", terms)
    bias = c.maybe("bias")
    return c.do(el.pointwise, "add", y, bias, at="/bias") if bias else y


def _dropout(c: Call) -> Result:
    drops = c.get("train", c.get("training", True)) or c.walk.drops
    return c.do(el.dropout, c.first, float(c.get("p", 0.5))) if drops else c.first


ATEN: Mapping[str, Handler] = {
    **VIEWS,
    **OTHERS,
    **{name: partial(_function, name) for name in el.UNARY},
    **{name: partial(_function, function) for name, function in NAMES["unary"].items()},
    **{name: partial(_binary, function) for name, function in NAMES["binary"].items()},
    **{name: partial(_reduction, function) for name, function in NAMES["reductions"].items()},
    **dict.fromkeys(("linalg_vector_norm", "norm"), partial(_reduction, "norm")),
    "var": partial(_reduction, "variance"),
    "std": partial(_reduction, "variance", then="sqrt"),
    "max": partial(_extreme, "max"),
    "min": partial(_extreme, "min"),
    "rsub": partial(_binary, "sub", turned=True),
    **dict.fromkeys(("clamp", "hardtanh", "clip", "clamp_min", "clamp_max", "relu6"), _clamp),
    "leaky_relu": partial(_function, "leaky_relu", argument="negative_slope", default=0.01),
    "elu": partial(_function, "elu", argument="alpha", default=1.0),
    "prelu": lambda c: c.do(el.op, "prelu", c.x(), c.x("weight")),
    "lerp": lambda c: c.do(el.pointwise, "lerp", *_operands(c, c["self"], c["end"], c["weight"])),
    "threshold": _threshold,
    "glu": _glu,
    **dict.fromkeys(("tril", "triu"), _triangle),
    **dict.fromkeys(("var_mean", "std_mean"), _spread_and_mean),
    **dict.fromkeys(
        ("outer", "ger"),
        lambda c: c.do(
            el.pointwise, "mul", c.do(el.reshape, c.x(), (-1, 1), at="/rows"), c.x("vec2")
        ),
    ),
    "gelu": lambda c: _function("gelu_tanh" if c.get("approximate") == "tanh" else "gelu", c),
    "where": _where,
    "masked_fill": _where,
    **dict.fromkeys(("addcmul", "addcdiv"), _addcmul),
    **dict.fromkeys(("softmax", "_softmax"), lambda c: c.do(el.softmax, c.x(), c["dim"])),
    **dict.fromkeys(
        ("log_softmax", "_log_softmax"), lambda c: c.do(el.softmax, c.x(), c["dim"], log=True)
    ),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout"), _dropout),
    "embedding": lambda c: c.do(el.embedding, c.x("indices"), c.x("weight")),
    "embedding_bag": _bags,
    "bilinear": _bilinear,
    "linear": lambda c: c.do(low.linear, c.x("input"), c.x("weight"), **_weights(c, "bias")),
    **dict.fromkeys(("matmul", "linalg_matmul"), partial(_product, "self", "other")),
    **dict.fromkeys(("mm", "bmm"), partial(_product, "self", "mat2")),
    "mv": partial(_product, "self", "vec"),
    "dot": partial(_product, "self", "tensor"),
    "addmm": partial(_product, "mat1", "mat2"),
    "baddbmm": partial(_product, "batch1", "batch2"),
    "einsum": lambda c: c.do(products.einsum, c["equation"], [*map(c.walk.tensor, c["tensors"])]),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _convolution),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        partial(_convolution, transposed=True),
    ),
    "batch_norm": lambda c: c.do(low.batch_norm, c.x("input"), **_weights(c, *_BATCH_NORM)),
    "layer_norm": partial(_norm, low.layer_norm),
    "rms_norm": partial(_norm, low.rms_norm),
    **dict.fromkeys(("group_norm", "instance_norm"), partial(_norm, low.group_norm)),
    **{f"max_pool{n}d": partial(_pool, "max", n) for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": partial(_pool, "max", n) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": partial(_pool, "avg", n) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": _adaptive("avg", n) for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": _adaptive("max", n) for n in (1, 2, 3)},
    **{f"upsample_{name}": _resize(mode) for name, mode in NAMES["resizes"].items()},
    **{f"_upsample_{name}_aa": _resize(mode) for name, mode in NAMES["resizes"].items()},
    **{f"_upsample_nearest_exact{n}d": _resize("nearest") for n in (1, 2)},
    "scaled_dot_product_attention": _attention,
    "lstm": partial(_recurrent, "lstm"),
    "gru": partial(_recurrent, "gru"),
    **dict.fromkeys(("rnn_tanh", "rnn_relu"), partial(_recurrent, "rnn")),
    "lstm_cell": partial(_cell, "lstm"),
    "gru_cell": partial(_cell, "gru"),
    "rnn_tanh_cell": partial(_cell, "rnn"),
    "rnn_relu_cell": partial(_cell, "relu"),
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
    **dict.fromkeys(
        ("_grouped_mm", "grouped_mm_fallback"),
        lambda c: c.do(
            products.of_experts, c.x(c.either("input", "self")), c.x(c.either("weight", "mat2"))
        ),
    ),
    "topk": lambda c: c.do(
        low.topk, c.x(), c["k"], c.get("dim", -1), largest=bool(c.get("largest", True))
    ),
    "cumsum": lambda c: c.do(el.op, "cumsum", c.x(), axis=c.axis(c["dim"])),
}

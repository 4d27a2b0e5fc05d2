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
from steptime.formats.pytorch.fused import BATCH_NORM, FUSED, weights_of
from steptime.formats.pytorch.recurrent import RECURRENT
from steptime.formats.pytorch.views import OTHERS, VIEWS
from steptime.formats.pytorch.walk import Call, Const, Handler, Result, listed
from steptime.formats.tensors import is_weight_or_buffer
from steptime.network.ops.table import require

NAMES = packaged("torch_names.toml")
Size = Any


def _pair(value: Size, axes: int) -> list[int]:
    """Return a size for each axis; one stands for all of them."""
    sizes = listed(value)
    return sizes * axes if len(sizes) == 1 else sizes


def _sides(value: Size, axes: int) -> list[int]:
    return [size for size in _pair(value, axes) for _ in (0, 1)]


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
        return c.do(el.select_by_mask, condition, fill, x)
    condition, x, y = _operands(c, c["condition"], c["self"], c["other"])
    return c.do(el.select_by_mask, condition, x, y)


def _addcmul(c: Call) -> Result:
    function, x, y = c.node.op[4:], c.x("tensor1"), c.x("tensor2")
    product = c.do(el.pointwise, function, x, y, at="/product")
    if c.get("value", 1) != 1:
        product = c.do(el.pointwise, "mul", product, c["value"], at="/value")
    return c.do(el.pointwise, "add", c.x(), product)


def _threshold(c: Call) -> Result:
    above = c.do(el.pointwise, "gt", c.x(), float(c["threshold"]), at="/above")
    return c.do(el.select_by_mask, above, c.x(), float(c["value"]))


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
    bias = c.x() if first == "mat1" and is_weight_or_buffer(c.b, w) else ""
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
        return low.group_norm(c.b, x, c.get("num_groups"), c.name, **weights_of(c, *names))
    weights = weights_of(c, *names[: 1 + (function is low.layer_norm)])
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


def _embedding(c: Call) -> Result:
    """Return rows of a table; a sparse gradient is counted as a dense one, with a note."""
    if c.get("sparse") and c.b.training:
        dense = "its gradient and its update are counted over all rows, as dense ones"
        c.b.remarks.append(f"{c.name}: sparse=True; {dense}")
    return c.do(el.embedding, c.x("indices"), c.x("weight"))


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
    **RECURRENT,
    **FUSED,
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
    "embedding": _embedding,
    "embedding_bag": _bags,
    "bilinear": _bilinear,
    "linear": lambda c: c.do(low.linear, c.x("input"), c.x("weight"), **weights_of(c, "bias")),
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
    "batch_norm": lambda c: c.do(low.batch_norm, c.x("input"), **weights_of(c, *BATCH_NORM)),
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
    **dict.fromkeys(
        ("_grouped_mm", "grouped_mm_fallback"),
        lambda c: c.do(
            products.multiply_experts,
            c.x(c.either("input", "self")),
            c.x(c.either("weight", "mat2")),
        ),
    ),
    "topk": lambda c: c.do(
        low.topk, c.x(), c["k"], c.get("dim", -1), largest=bool(c.get("largest", True))
    ),
    "cumsum": lambda c: c.do(el.op, "cumsum", c.x(), axis=c.axis(c["dim"])),
}

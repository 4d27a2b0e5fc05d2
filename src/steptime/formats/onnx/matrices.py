"""ONNX's products, convolutions, pools, norms, attention and recurrent layers onto the lowering."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from steptime.formats import elements, lowering, windows
from steptime.formats.onnx.fold import Function, Value
from steptime.formats.onnx.model import Static
from steptime.formats.onnx.opaque import append_stated
from steptime.formats.onnx.run import Visit
from steptime.formats.products import einsum
from steptime.network.ops.table import require

Values = Sequence[Value]


def _scaled(r: Visit, y: Value, factor: float) -> Value:
    same = factor == 1.0 or isinstance(y, Static)  # a weight times a number is one
    return y if same else r.pointwise("mul", y, r.constant(factor, "float32"))


def matmul(r: Visit, x: Value, y: Value, *_: Value) -> Value:
    """Return a product; with a weight it is a linear layer, whose rows are its outputs."""
    if isinstance(y, Static) and len(y.shape) == 2 and isinstance(x, str):
        return r.do(lowering.linear, x, y.viewed("transpose", (1, 0)))
    return r.recognise_pattern(r.do(lowering.matmul, x, y))


def _fused_matmul(r: Visit, x: Value, y: Value) -> Value:
    for name in ("transA", "transB"):
        if r.attr(name, 0):
            value = x if name == "transA" else y
            order = list(range(len(r.shape(value))))
            order[-2:] = order[-1], order[-2]
            turned = r.view(value, "transpose", order)
            x, y = (turned, y) if name == "transA" else (x, turned)
    return _scaled(r, matmul(r, x, y), float(r.attr("alpha", 1.0)))


def _gemm(r: Visit, x: Value, w: Value, c: Value = None) -> Value:
    x = r.view(x, "transpose", (1, 0)) if r.attr("transA", 0) else x
    w = w if r.attr("transB", 0) else r.view(w, "transpose", (1, 0))
    c = c if r.attr("beta", 1.0) else None
    width, alpha = r.shape(w)[0], float(r.attr("alpha", 1.0))
    if c is not None and math.prod(r.shape(c)) == width and alpha == 1.0:
        return r.do(lowering.linear, x, w, bias=r.view(c, "reshape", (width,)))
    y = _scaled(r, r.do(lowering.linear, x, w), alpha)
    return y if c is None else r.pointwise("add", y, _scaled(r, c, float(r.attr("beta", 1.0))))


def _window(r: Visit, x: Value, kernel: Sequence[int]) -> dict[str, Any]:
    """Return strides, dilations and the padding, which a file may only call SAME or VALID."""
    rank = len(kernel)
    stride, apart = r.attr("strides", (1,) * rank), r.attr("dilations", (1,) * rank)
    words = {"SAME_UPPER": "same", "SAME_LOWER": "same_lower", "VALID": "valid"}
    padding: Sequence[int] | str = words.get(r.attr("auto_pad", "NOTSET"), "")
    if not padding:
        given = r.attr("pads", (0,) * (2 * rank))
        require(len(given) == 2 * rank, f"{len(given)} pads of {rank} axes")
        padding = [n for i in range(rank) for n in (given[i], given[i + rank])]
    sides = windows.resolve_padding(padding, r.shape(x)[2:], kernel, stride, apart)
    return {"stride": stride, "dilation": apart, "padding": sides}


def convolution(r: Visit, x: Value, w: Value, bias: Value = None) -> Value:
    """Return a convolution over one to three axes."""
    how = _window(r, x, r.shape(w)[2:])
    return r.do(lowering.convolution, x, w, bias=bias, groups=r.attr("group", 1), **how)


def _transposed(r: Visit, x: Value, w: Value, bias: Value = None) -> Value:
    how = _window(r, x, r.shape(w)[2:]) | {"groups": r.attr("group", 1)}
    how["output_padding"] = r.attr("output_padding", (0,) * len(how["stride"]))
    if "output_shape" in r.node.attrs or r.attr("auto_pad", "NOTSET").startswith("SAME"):
        how["size"] = r.out()[2:]
    return r.do(lowering.convolution, x, w, bias=bias, transposed=True, **how)


def _pool(kind: Any, r: Visit, x: Value) -> Value | Values:
    kernel = r.attr("kernel_shape", ())
    how = _window(r, x, kernel)
    apart = how.pop("dilation")
    if any(gap != 1 for gap in apart):  # as many windows as it says, of as many elements
        return append_stated(r, x, flop_per_element=math.prod(kernel))
    ceil = bool(r.attr("ceil_mode", 0))
    return r.do(lowering.pool, x, kind, kernel=kernel, ceil=ceil, **how)


def _pool_of_all(function: str) -> Function:
    return lambda r, x: r.do(
        elements.reduce, function, x, tuple(range(2, len(r.shape(x)))), keep=True
    )


def _norm(norm: Callable[..., str], r: Visit, x: Value, w: Value = None, b: Value = None) -> Value:
    """Return a norm over the axes from `axis` on."""
    return r.do(norm, x, weight=w, bias=b, axes=len(r.shape(x)) - r.axis(x, -1))


layer_norm = partial(_norm, lowering.layer_norm)


def rms_norm(r: Visit, x: Value, w: Value = None) -> Value:
    """Return root-mean-square norm over the axes from `axis` on."""
    return _norm(lowering.rms_norm, r, x, w)


def _group_norm(r: Visit, x: Value, w: Value = None, b: Value = None) -> Value:
    channels = r.shape(x)[1]
    groups = r.attr("num_groups", 0) or None
    vectors = [w, b]
    for i, t in enumerate(vectors):
        if t is not None and r.shape(t) != (channels,):  # opset 18: one a group
            count = groups or channels
            column = r.do(elements.reshape, t, (count, 1), at="/group")
            wide = r.do(elements.expand, column, (count, channels // count), at="/each")
            vectors[i] = r.do(elements.reshape, wide, (channels,), at="/vector")
    return r.do(lowering.group_norm, x, groups, weight=vectors[0], bias=vectors[1])


def _local_response_norm(r: Visit, x: Value) -> Value:
    how = {"alpha": r.attr("alpha", 1e-4), "beta": r.attr("beta", 0.75), "k": r.attr("bias", 1.0)}
    return r.do(elements.op, "local_response_norm", x, size=r.attr("size", 1), **how)


def _lp_norm(r: Visit, x: Value) -> Value:
    function = "l1" if r.attr("p", 2) == 1 else "l2"
    norm = r.do(elements.reduce, function, x, (r.attr("axis", -1),), keep=True)
    return r.pointwise("div", x, norm)


MATRICES: Mapping[str, Function] = {
    "MatMul": matmul,
    "com.microsoft.FusedMatMul": _fused_matmul,
    "Gemm": _gemm,
    "Conv": convolution,
    "ConvTranspose": _transposed,
    "MaxPool": partial(_pool, "max"),
    "AveragePool": partial(_pool, "avg"),
    "LpPool": partial(_pool, "avg"),
    "GlobalAveragePool": _pool_of_all("mean"),
    "GlobalMaxPool": _pool_of_all("max"),
    "BatchNormalization": lambda r, x, w, b, *_: r.do(lowering.batch_norm, x, weight=w, bias=b),
    "LayerNormalization": layer_norm,
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), rms_norm),
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization"), _group_norm),
    "LRN": _local_response_norm,
    "LpNormalization": _lp_norm,
    "Einsum": lambda r, *xs: r.do(einsum, r.attr("equation", ""), [*xs]),
}

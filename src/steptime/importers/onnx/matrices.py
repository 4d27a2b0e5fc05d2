"""ONNX's products, convolutions, pools, norms, attention and recurrent layers onto the lowering."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from steptime.core.windows import positions, same_padding
from steptime.importers import lowering
from steptime.importers.constants import axis_of, scalar
from steptime.importers.onnx.run import Run
from steptime.importers.onnx.values import Constant, Function, Value
from steptime.importers.products import einsum
from steptime.ops.table import require

Values = Sequence[Value]


def _scaled(r: Run, y: Value, factor: float) -> Value:
    return y if factor == 1.0 else r.pointwise("mul", y, r.constant(scalar(factor, "float32")))


def matmul(r: Run, x: Value, y: Value, *_: Value) -> Value:
    """Return a product; with a weight it is a linear layer, whose rows are its outputs."""
    if isinstance(y, Constant) and len(y.array.shape) == 2 and isinstance(x, str):
        w = r.tensor(y.viewed("transpose", (1, 0)))
        return lowering.linear(r.b, x, w, r.name)
    left, right = (str(t) for t in r.stretched([r.tensor(x), r.tensor(y)]))
    return r.recognised(lowering.matmul(r.b, left, right, r.name))


def _fused_matmul(r: Run, x: Value, y: Value) -> Value:
    for name in ("transA", "transB"):
        if r.attr(name, 0):
            value = x if name == "transA" else y
            order = list(range(len(r.shape(value))))
            order[-2:] = order[-1], order[-2]
            turned = r.view(value, "transpose", order)
            x, y = (turned, y) if name == "transA" else (x, turned)
    return _scaled(r, matmul(r, x, y), float(r.attr("alpha", 1.0)))


def _gemm(r: Run, x: Value, w: Value, c: Value = None) -> Value:
    x = r.view(x, "transpose", (1, 0)) if r.attr("transA", 0) else x
    w = w if r.attr("transB", 0) else r.view(w, "transpose", (1, 0))
    c = c if r.attr("beta", 1.0) else None
    width, alpha = r.shape(w)[0], float(r.attr("alpha", 1.0))
    if c is not None and math.prod(r.shape(c)) == width and alpha == 1.0:
        bias = r.tensor(r.view(c, "reshape", (width,)))
        return lowering.linear(r.b, r.tensor(x), r.tensor(w), r.name, bias)
    y: Value = _scaled(r, lowering.linear(r.b, r.tensor(x), r.tensor(w), r.name), alpha)
    if c is None:
        return y
    return r.pointwise("add", y, _scaled(r, c, float(r.attr("beta", 1.0))))


def sides_of(
    r: Run, size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], apart: Sequence[int]
) -> list[int]:
    """Return the padding before and after each axis, which a file may only call SAME or VALID."""
    automatic, rank = r.attr("auto_pad", "NOTSET"), len(kernel)
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        sides: list[int] = []
        for n, k, s, d in zip(size, kernel, stride, apart, strict=True):
            pair = same_padding(n, (k - 1) * d + 1, s)
            sides += pair if automatic == "SAME_UPPER" else pair[::-1]
        return sides
    given = r.attr("pads", (0,) * (2 * rank)) if automatic == "NOTSET" else (0,) * (2 * rank)
    require(len(given) == 2 * rank, f"{len(given)} pads of {rank} axes")
    return [n for i in range(rank) for n in (given[i], given[i + rank])]


def _window(r: Run, x: Value, kernel: Sequence[int]) -> dict[str, Any]:
    rank = len(kernel)
    stride, apart = r.attr("strides", (1,) * rank), r.attr("dilations", (1,) * rank)
    return {
        "stride": stride,
        "dilation": apart,
        "padding": sides_of(r, r.shape(x)[2:], kernel, stride, apart),
    }


def convolution(r: Run, x: Value, w: Value, bias: Value = None) -> Value:
    """Return a convolution over one or two axes."""
    how = _window(r, x, r.shape(w)[2:])
    added = r.tensor(bias) if bias is not None else ""
    groups = r.attr("group", 1)
    return lowering.convolution(r.b, r.tensor(x), r.tensor(w), r.name, added, **how, groups=groups)


def _transposed(r: Run, x: Value, w: Value, bias: Value = None) -> Value:
    kernel, size = r.shape(w)[2:], r.shape(x)[2:]
    rank = len(kernel)
    stride, apart = r.attr("strides", (1,) * rank), r.attr("dilations", (1,) * rank)
    more = list(r.attr("output_padding", (0,) * rank))
    wanted = r.node.attrs.get("output_shape")
    if r.attr("auto_pad", "NOTSET").startswith("SAME") and wanted is None:
        wanted = [n * s for n, s in zip(size, stride, strict=True)]
    if wanted is None:
        sides = sides_of(r, size, kernel, stride, apart)
    else:
        sides = []
        for i, n in enumerate(wanted[-rank:]):
            total = stride[i] * (size[i] - 1) + more[i] + (kernel[i] - 1) * apart[i] + 1 - n
            sides += [total // 2, total - total // 2]
            if total < 0:
                sides[-2:], more[i] = [0, 0], more[i] - total
    added = r.tensor(bias) if bias is not None else ""
    return lowering.convolution(
        r.b,
        r.tensor(x),
        r.tensor(w),
        r.name,
        added,
        stride=stride,
        dilation=apart,
        padding=sides,
        groups=r.attr("group", 1),
        transposed=True,
        output_padding=more,
    )


def _pool(kind: Any) -> Function:
    def lowered(r: Run, x: Value) -> Value:
        kernel = r.attr("kernel_shape", ())
        how = _window(r, x, kernel)
        apart = how.pop("dilation")
        ceil = bool(r.attr("ceil_mode", 0))
        if any(d != 1 for d in apart):  # as many windows and elements as without gaps
            own = r.shape(x)[2:]
            for i, (n, k, d) in enumerate(zip(own, kernel, apart, strict=True)):
                before, after = how["padding"][2 * i : 2 * i + 2]
                count = positions(n, k, how["stride"][i], (before, after), d, ceil)
                alone = positions(n, k, how["stride"][i], (before, after), 1, ceil)
                require(count == alone, f"pooling with dilations {list(apart)}")
        return lowering.pool(r.b, r.tensor(x), kind, r.name, kernel=kernel, ceil=ceil, **how)

    return lowered


def _pool_of_all(function: str) -> Function:
    def lowered(r: Run, x: Value) -> Value:
        axes = tuple(range(2, len(r.shape(x))))
        return lowering.reduce(r.b, function, r.tensor(x), axes, r.name, keep=True)

    return lowered


def _batch_norm(r: Run, x: Value, w: Value, b: Value, mean: Value, variance: Value) -> Value:
    width = r.shape(mean)
    means, spread = (
        r.b.buffer(lowering.free_name(r.b, f"{r.name}/{suffix}"), width)
        for suffix in ("mean", "variance")
    )
    return lowering.batch_norm(r.b, r.tensor(x), r.name, r.tensor(w), r.tensor(b), means, spread)


def _optional(r: Run, value: Value) -> str:
    return "" if value is None else r.tensor(value)


def layer_norm(r: Run, x: Value, w: Value = None, b: Value = None) -> Value:
    """Return layer norm over the axes from `axis` on."""
    axes = len(r.shape(x)) - axis_of(r.attr("axis", -1), len(r.shape(x)))
    return lowering.layer_norm(r.b, r.tensor(x), r.name, _optional(r, w), _optional(r, b), axes)


def rms_norm(r: Run, x: Value, w: Value = None) -> Value:
    """Return root-mean-square norm over the axes from `axis` on."""
    axes = len(r.shape(x)) - axis_of(r.attr("axis", -1), len(r.shape(x)))
    return lowering.rms_norm(r.b, r.tensor(x), r.name, _optional(r, w), axes)


def _group_norm(r: Run, x: Value, w: Value = None, b: Value = None) -> Value:
    groups = r.attr("num_groups", 0) or r.shape(x)[1]
    channels = r.shape(x)[1]
    vectors = [_optional(r, t) for t in (w, b)]
    for i, t in enumerate(vectors):
        if t and r.b.shape(t) != (channels,):  # opset 18: one a group
            column = lowering.reshape(r.b, t, (groups, 1), f"{r.name}/group")
            wide = lowering.expand(r.b, column, (groups, channels // groups), f"{r.name}/each")
            vectors[i] = lowering.reshape(r.b, wide, (channels,), f"{r.name}/vector")
    return lowering.group_norm(r.b, r.tensor(x), groups, r.name, vectors[0], vectors[1])


def _local_response_norm(r: Run, x: Value) -> Value:
    how = {"alpha": r.attr("alpha", 1e-4), "beta": r.attr("beta", 0.75), "k": r.attr("bias", 1.0)}
    return lowering.op(
        r.b, "local_response_norm", r.tensor(x), name=r.name, size=r.attr("size", 1), **how
    )


def _lp_norm(r: Run, x: Value) -> Value:
    function = "l1" if r.attr("p", 2) == 1 else "l2"
    norm = lowering.reduce(r.b, function, r.tensor(x), (r.attr("axis", -1),), r.name, keep=True)
    return r.pointwise("div", x, norm)


MATRICES: Mapping[str, Function] = {
    "MatMul": matmul,
    "com.microsoft.FusedMatMul": _fused_matmul,
    "Gemm": _gemm,
    "Conv": convolution,
    "ConvTranspose": _transposed,
    "MaxPool": _pool("max"),
    "AveragePool": _pool("avg"),
    "LpPool": _pool("avg"),
    "GlobalAveragePool": _pool_of_all("mean"),
    "GlobalMaxPool": _pool_of_all("max"),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": layer_norm,
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), rms_norm),
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization"), _group_norm),
    "LRN": _local_response_norm,
    "LpNormalization": _lp_norm,
    "Einsum": lambda r, *xs: einsum(r.b, r.attr("equation", ""), [*map(r.tensor, xs)], r.name),
}

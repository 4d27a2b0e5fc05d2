"""ONNX's products, convolutions, pools, norms, attention and recurrent layers onto the lowering."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from steptime.core.errors import shorten
from steptime.core.windows import positions, same_padding
from steptime.importers import lowering
from steptime.importers.constants import Array, axis_of, scalar
from steptime.importers.onnx.run import Run
from steptime.importers.onnx.values import Constant, Function, Value
from steptime.importers.patterns import heads_shared
from steptime.ops.table import require

Values = Sequence[Value]
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _scaled(r: Run, y: Value, factor: float) -> Value:
    return y if factor == 1.0 else r.pointwise("mul", y, r.constant(scalar(factor, "float32")))


def _matmul(r: Run, x: Value, y: Value, *_: Value) -> Value:
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
    return _scaled(r, _matmul(r, x, y), float(r.attr("alpha", 1.0)))


def _gemm(r: Run, x: Value, w: Value, c: Value = None) -> Value:
    x = r.view(x, "transpose", (1, 0)) if r.attr("transA", 0) else x
    w = w if r.attr("transB", 0) else r.view(w, "transpose", (1, 0))
    y: Value = lowering.linear(r.b, r.tensor(x), r.tensor(w), r.name)
    y = _scaled(r, y, float(r.attr("alpha", 1.0)))
    if c is None or not r.attr("beta", 1.0):
        return y
    width = r.shape(y)[-1]
    if math.prod(r.shape(c)) == width:
        bias = r.tensor(r.view(c, "reshape", (width,)))
        return lowering.op(r.b, "bias", r.tensor(y), bias, name=f"{r.name}/bias", axis=-1)
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


def _convolution(r: Run, x: Value, w: Value, bias: Value = None) -> Value:
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


def _layer_norm(r: Run, x: Value, w: Value = None, b: Value = None) -> Value:
    axes = len(r.shape(x)) - axis_of(r.attr("axis", -1), len(r.shape(x)))
    return lowering.layer_norm(r.b, r.tensor(x), r.name, _optional(r, w), _optional(r, b), axes)


def _rms_norm(r: Run, x: Value, w: Value = None) -> Value:
    axes = len(r.shape(x)) - axis_of(r.attr("axis", -1), len(r.shape(x)))
    return lowering.rms_norm(r.b, r.tensor(x), r.name, _optional(r, w), axes)


def _skip_norm(norm: Function) -> Function:
    """Return a sum and the norm of it, and the sum as the last output (ONNX Runtime's fusion)."""

    def lowered(r: Run, x: Value, skip: Value, w: Value, *more: Value) -> Values:
        biased = len(more) > (norm is _layer_norm)
        total = r.pointwise("add", x, skip)
        if biased and more[-1] is not None:
            total = r.pointwise("add", total, more[-1])
        beta = more[:1] if norm is _layer_norm else ()
        return [norm(r, total, w, *beta), None, None, total]  # type: ignore[list-item]

    return lowered


def _group_norm(r: Run, x: Value, w: Value = None, b: Value = None) -> Value:
    groups = r.attr("num_groups", 0) or r.shape(x)[1]
    channels = r.shape(x)[1]
    if w is not None and r.shape(w) != (channels,):  # opset 18: one a group
        w = b = None
    return lowering.group_norm(r.b, r.tensor(x), groups, r.name, _optional(r, w), _optional(r, b))


def _local_response_norm(r: Run, x: Value) -> Value:
    how = {"alpha": r.attr("alpha", 1e-4), "beta": r.attr("beta", 0.75), "k": r.attr("bias", 1.0)}
    return lowering.op(
        r.b, "local_response_norm", r.tensor(x), name=r.name, size=r.attr("size", 1), **how
    )


def _lp_norm(r: Run, x: Value) -> Value:
    function = "l1" if r.attr("p", 2) == 1 else "l2"
    norm = lowering.reduce(r.b, function, r.tensor(x), (r.attr("axis", -1),), r.name, keep=True)
    return r.pointwise("div", x, norm)


def _heads(r: Run, x: Value, heads: int) -> str:
    """Return `[n, l, heads*d]` as `[n, heads, l, d]`, what has four axes as it is."""
    shape = r.shape(x)
    if len(shape) == 4:
        return r.tensor(x)
    require(
        len(shape) == 3 and heads >= 1 and shape[2] % heads == 0, f"{list(shape)} in {heads} heads"
    )
    apart = r.view(x, "reshape", (*shape[:2], heads, shape[2] // heads))
    return r.tensor(r.view(apart, "transpose", (0, 2, 1, 3)))


def _attention(r: Run, q: Value, k: Value, v: Value, *_: Value) -> Values:
    """Return attention; a mask is part of it and costs nothing, as in every format."""
    rank = len(r.shape(q))
    heads = r.attr("q_num_heads", 0) or r.attr("num_heads", 0)
    groups = r.attr("kv_num_heads", 0) or heads
    parts = [_heads(r, x, n) for x, n in ((q, heads), (k, groups), (v, groups))]
    causal = bool(r.attr("is_causal", 0) or r.attr("unidirectional", 0))
    q, k, v = parts[0], *heads_shared(r.b, parts[1], parts[2])
    y: Value = lowering.attention(r.b, q, k, v, r.name, causal=causal)
    if rank == 3:
        n, h, length, width = r.shape(y)
        turned = r.view(y, "transpose", (0, 2, 1, 3))
        y = r.view(turned, "reshape", (n, length, h * width))
    return [y, k, v]


def _recurrent(cell: str) -> Function:
    def lowered(r: Run, x: Value, w: Value, u: Value, bias: Value = None, *_: Value) -> Values:
        ways, rows, width = r.shape(w)
        hidden = r.shape(u)[2]
        last = bool(r.attr("layout", 0))
        weights = []
        for way in range(ways):
            own = [_part(r, w, way, (rows, width)), _part(r, u, way, (rows, hidden))]
            if bias is not None:
                own += [_part(r, bias, way, (rows,), half) for half in (0, 1)]
            weights.append(own)
        y, state = lowering.recurrent(
            r.b, r.tensor(x), cell, weights, r.name, bidirectional=ways == 2, batch_first=last
        )
        shape = r.shape(y)
        apart = r.view(y, "reshape", (*shape[:2], ways, hidden))
        state_out = r.view(state, "transpose", (1, 0, 2)) if last else state
        return [
            r.view(apart, "transpose", (0, 1, 2, 3) if last else (0, 2, 1, 3)),
            state_out,
            state_out,
        ]

    return lowered


def _part(r: Run, value: Value, way: int, shape: tuple[int, ...], half: int | None = None) -> str:
    """Return one direction's part of a weight, as a weight of its own."""
    if isinstance(value, Constant):
        name = f"{value.name}/{way}" + ("" if half is None else f"/{'wr'[half]}")
        return r.tensor(Constant(name, Array(shape, value.array.dtype)))
    own = lowering.select(r.b, r.tensor(value), 0, way, f"{r.name}/way")
    first = (half or 0) * shape[0]
    return lowering.slice_(r.b, own, 0, first, first + shape[0], f"{r.name}/half")


def _einsum(r: Run, x: Value, y: Value = None) -> Value:
    """Return a product of two tensors (or a sum of one) over letters, as a product of matrices."""
    text = r.attr("equation", "").replace(" ", "")
    require("." not in text and "->" in text, f"an equation {shorten(text)}")
    left, out = text.split("->")
    names = left.split(",")
    require(len(names) == (1 if y is None else 2), f"an equation {shorten(text)}")
    if y is None:
        axes = [i for i, c in enumerate(names[0]) if c not in out]
        kept = [c for c in names[0] if c in out]
        made: Value = lowering.reduce(r.b, "sum", r.tensor(x), axes, r.name) if axes else x
        return r.view(made, "transpose", [kept.index(c) for c in out])
    a, b = names
    size = dict(zip(a + b, (*r.shape(x), *r.shape(y)), strict=True))
    require(all(len({*t}) == len(t) for t in (a, b, out)), f"an equation {shorten(text)}")
    batch = [c for c in a if c in b and c in out]
    summed = [c for c in a if c in b and c not in out]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    require({*rows, *columns, *batch} == {*out}, f"an equation {shorten(text)}")

    def seen(value: Value, own: str, order: list[str], shape: list[int]) -> Value:
        return r.view(r.view(value, "transpose", [own.index(c) for c in order]), "reshape", shape)

    def total(letters: list[str]) -> int:
        return math.prod(size[c] for c in letters)

    lead = [total(batch)] if batch else []
    first = seen(x, a, batch + rows + summed, [*lead, total(rows), total(summed)])
    second = seen(y, b, batch + summed + columns, [*lead, total(summed), total(columns)])
    product = _matmul(r, first, second)
    order = batch + rows + columns
    apart = r.view(product, "reshape", [size[c] for c in order])
    return r.view(apart, "transpose", [order.index(c) for c in out])


def _quantized(r: Run, x: Value, *_: Value) -> Values:
    """Return `x` scaled, rounded: numbers of the run's own type stand for those of 8 bits."""
    if isinstance(x, Constant):
        return [x, None, None]
    scaled = lowering.pointwise(r.b, "mul", r.tensor(x), 0.5, name=r.name)
    rounded = lowering.pointwise(r.b, "round", scaled, name=f"{r.name}/round")
    small = r.constant(scalar(0.5, "float32"))
    return [rounded, small, small]


def _dequantized(r: Run, x: Value, *_: Value) -> Value:
    if isinstance(x, Constant):
        return Constant(x.name, Array(x.array.shape, "float32"), x.steps)
    return lowering.pointwise(r.b, "mul", _floats(r, x), 0.5, name=r.name)


def _floats(r: Run, x: Value) -> str:
    value = _dequantized(r, x) if isinstance(x, Constant) else x
    tensor = r.tensor(value)
    if lowering.is_float(r.b, tensor):
        return tensor
    return lowering.cast(r.b, tensor, r.b.precision.weights, f"{r.name}/cast")


def _of_integers(product: Function, *places: int) -> Function:
    """Return a product of 8-bit numbers, counted as one of the run's type; the rest are scales."""

    def lowered(r: Run, *values: Value) -> Any:
        chosen = [values[i] for i in places if i < len(values)]
        constants = [
            _dequantized(r, v) if isinstance(v, Constant) else _floats(r, v) for v in chosen
        ]
        return product(r, *constants)

    return lowered


MATRICES: Mapping[str, Function] = {
    "MatMul": _matmul,
    "com.microsoft.FusedMatMul": _fused_matmul,
    "Gemm": _gemm,
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "MaxPool": _pool("max"),
    "AveragePool": _pool("avg"),
    "LpPool": _pool("avg"),
    "GlobalAveragePool": _pool_of_all("mean"),
    "GlobalMaxPool": _pool_of_all("max"),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), _rms_norm),
    "com.microsoft.SkipLayerNormalization": _skip_norm(_layer_norm),
    "com.microsoft.SkipSimplifiedLayerNormalization": _skip_norm(_rms_norm),
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization"), _group_norm),
    "LRN": _local_response_norm,
    "LpNormalization": _lp_norm,
    **dict.fromkeys(("Attention", "com.microsoft.MultiHeadAttention"), _attention),
    **{name: _recurrent(name.lower()) for name in ("LSTM", "GRU", "RNN")},
    "Einsum": _einsum,
    **dict.fromkeys(("QuantizeLinear", "DynamicQuantizeLinear"), _quantized),
    "DequantizeLinear": _dequantized,
    "MatMulInteger": _of_integers(_matmul, 0, 1),
    "ConvInteger": _of_integers(_convolution, 0, 1),
    "QLinearMatMul": _of_integers(_matmul, 0, 3),
    "QLinearConv": _of_integers(_convolution, 0, 3, 8),
}

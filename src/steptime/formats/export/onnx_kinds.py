"""How ONNX says each op kind: a function `(nodes, *inputs, **attributes) -> output`.

Inputs are names of tensors; a function appends nodes and returns the name of what the last makes.
"""

import math
from collections.abc import Sequence
from typing import Any

from steptime.core.toml_files import packaged
from steptime.core.windows import reach
from steptime.formats.export import onnx_general
from steptime.formats.export.onnx_nodes import TYPES, Nodes, NoOnnxError, Write, node
from steptime.network.ops.images import OVER_VOLUMES
from steptime.network.ops.loss import IGNORED_LABEL
from steptime.network.ops.norm import EPSILON
from steptime.network.ops.sequence import GATED

Pair = tuple[int, int]
Sizes = tuple[int, ...]  # one an axis
Sides = tuple[int, ...]  # before and after each axis


def reshape(b: Nodes, x: str, shape: tuple[int, ...] = (), **_: Any) -> str:
    """Return a view; its first size is that of its input where it can be, whatever the batch."""
    old, new = b.shape(x), tuple(shape) or b.output.shape
    if new and b.output.size:
        new = (0 if old[:1] == new[:1] else -1, *new[1:])
    return b.add("Reshape", x, b.ints(*new))


def _linear(b: Nodes, x: str, w: str, bias: str | None = None) -> str:
    if len(b.shape(x)) == 2:
        return b.add("Gemm", x, w, *([bias] if bias else []), transB=1)
    y = b.add("MatMul", x, b.add("Transpose", w, perm=(1, 0)))
    return b.add("Add", y, bias) if bias else y


def matmul(
    b: Nodes,
    x: str,
    y: str,
    transpose_a: bool = False,
    transpose_b: bool = False,
    fold: bool = False,
) -> str:
    """Return the product of two (batches of) matrices."""
    sides = []
    for name, turned in ((x, transpose_a), (y, transpose_b)):
        side, rank = name, len(b.shape(name))
        if fold and rank > 2:
            side, rank = b.add("Reshape", side, b.ints(-1, b.shape(name)[-1])), 2
        if turned:
            side = b.add("Transpose", side, perm=(*range(rank - 2), rank - 1, rank - 2))
        sides.append(side)
    return b.add("MatMul", *sides)


def _along(b: Nodes, vector: str, axis: int, rank: int) -> str:
    """Return a vector as a tensor that lies along an axis."""
    after = rank - 1 - axis % rank
    return b.add("Unsqueeze", vector, b.ints(*range(1, after + 1))) if after else vector


def _bias(b: Nodes, x: str, bias: str, axis: int = -1) -> str:
    return b.add("Add", x, _along(b, bias, axis, len(b.shape(x))))


def reduce_sum(b: Nodes, x: str, axes: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """Return the sum over axes, seen as a shape."""
    summed = b.add("ReduceSum", x, b.ints(*axes), keepdims=0, noop_with_empty_axes=1)
    return b.add("Reshape", summed, b.ints(*shape))


def expand(b: Nodes, x: str, shape: tuple[int, ...], scale: float = 1.0) -> str:
    """Return `x` repeated along what follows its shape, and scaled."""
    old = b.shape(x)
    wide = b.add("Reshape", x, b.ints(*old, *[1] * (len(shape) - len(old))))
    repeated = b.add("Expand", wide, b.ints(*shape))
    return b.add("Mul", repeated, b.number(scale, b.output.dtype))


def _pads(padding: Sides, axes: int) -> Sides:
    """Return padding in the order of ONNX: what is before every axis, then what is after."""
    return (*padding[::2], *padding[1::2]) or (0,) * 2 * axes


def _windows(
    b: Nodes,
    inputs: Sequence[str],
    stride: Sizes = (),
    padding: Sides = (),
    dilation: Sizes = (),
    groups: int = 1,
) -> dict[str, Any]:
    kernel = b.shape(inputs[1])[2:]
    each = (1,) * len(kernel)
    how = {"kernel_shape": kernel, "strides": stride or each, "dilations": dilation or each}
    return {**how, "pads": _pads(padding, len(kernel)), "group": groups}


def transposed(b: Nodes, *inputs: str, output_size: Sizes, **window: Any) -> str:
    """Return the transposed convolution, what it reaches beyond its last window said."""
    how = _windows(b, inputs, **window)
    axes = zip(
        *(b.shape(inputs[0])[2:], how["kernel_shape"], how["strides"], how["dilations"]),
        strict=True,
    )
    before, after = how["pads"][: len(output_size)], how["pads"][len(output_size) :]
    beyond = [output_size[i] + before[i] + after[i] - reach(*axis) for i, axis in enumerate(axes)]
    return b.add("ConvTranspose", *inputs, **how, output_padding=tuple(beyond))


def _covered(b: Nodes, x: str, kernel: Sizes, stride: Sizes, before: Sizes) -> list[int]:
    """Return what the windows cover of each axis after the padding before them."""
    each = zip(b.output.shape[2:], kernel, stride, before, b.shape(x)[2:], strict=True)
    return [reach(*window) - pad - size for *window, pad, size in each]


def max_pool(
    b: Nodes, x: str, kernel: Sizes, stride: Sizes, padding: Sides = (), ceil: bool = False
) -> str:
    """Return the maxima of windows; a window that hangs over hangs into padding."""
    pads = _pads(padding, len(kernel))
    if ceil:
        before = pads[: len(kernel)]
        pads = (*before, *[max(0, n) for n in _covered(b, x, kernel, stride, before)])
    return b.add("MaxPool", x, kernel_shape=kernel, strides=stride, pads=pads)


def avg_pool(
    b: Nodes, x: str, kernel: Sizes, stride: Sizes, padding: Sides = (), ceil: bool = False
) -> str:
    """Return the means of windows: padding counts as zeros, what hangs over does not count."""
    how, axes = {"kernel_shape": kernel, "strides": stride}, len(kernel)
    pads = _pads(padding, axes)
    if not ceil:
        return b.add("AveragePool", x, **how, pads=pads, count_include_pad=1)
    before, after = pads[:axes], pads[axes:]
    covered = _covered(b, x, kernel, stride, before)
    zeros = [max(0, min(pair)) for pair in zip(covered, after, strict=True)]
    over = [max(0, n - zero) for n, zero in zip(covered, zeros, strict=True)]
    if any((*zeros, *before)):
        x = b.add("Pad", x, b.ints(0, 0, *before, 0, 0, *zeros))
    return b.add("AveragePool", x, **how, pads=(*[0] * axes, *over))


def _batch_norm(b: Nodes, *inputs: str, training: bool = True) -> str:
    if training:
        raise NoOnnxError(f"{b.op.name}: ONNX is written of inference; batch_norm trains here")
    return b.add("BatchNormalization", *inputs, epsilon=EPSILON)


def _silu(b: Nodes, x: str, beta: float = 1.0) -> str:
    inner = x if beta == 1 else b.add("Mul", x, b.number(beta, b.output.dtype))
    return b.add("Mul", x, b.add("Sigmoid", inner))


def _mask(b: Nodes, size: Pair, causal: bool, window: int) -> str:
    """Return what is added to scores `[l, m]`: 0, or minus infinity where a place sees no other."""
    dtype, zero, one = b.output.dtype, b.number(0, "int64"), b.number(1, "int64")
    rows, columns = (b.add("Range", zero, b.number(n, "int64"), one) for n in size)
    away = b.add("Sub", b.add("Unsqueeze", rows, b.ints(1)), columns)
    least = b.number(0 if causal else -size[1], "int64")
    seen = b.add("GreaterOrEqual", away, least)
    if window:
        near = b.add("Less", b.add("Abs", away), b.number(window, "int64"))
        seen = b.add("And", seen, near)
    return b.add("Where", seen, b.number(0.0, dtype), b.number(-math.inf, dtype))


def _attention(
    b: Nodes,
    q: str,
    k: str,
    v: str,
    *more: str,
    heads: int,
    kv_heads: int,
    causal: bool,
    window: int = 0,
) -> str:
    """Return attention as one node, with a mask where it is not plain or causal."""
    how = {"q_num_heads": heads, "kv_num_heads": kv_heads}
    if not more and not window:
        return b.add("Attention", q, k, v, **how, is_causal=causal)
    length, keys = b.shape(q)[1], b.shape(k)[1]
    mask = _mask(b, (length, keys), causal, window)
    sinks = [name for name in more if len(b.shape(name)) == 1]
    for name in more:
        if name not in sinks:
            mask = b.add("Add", mask, name)
    for sink in sinks:  # a key whose score is the sink
        k, v = (b.add("Pad", name, b.ints(0, 0, 0, 0, 1, 0)) for name in (k, v))
        column = b.add("Expand", b.add("Unsqueeze", sink, b.ints(1, 2)), b.ints(heads, length, 1))
        mask = b.add("Expand", mask, b.ints(heads, length, keys))
        mask = b.add("Concat", mask, column, axis=-1)
    return b.add("Attention", q, k, v, b.add("Unsqueeze", mask, b.ints(0)) if more else mask, **how)


def _rotary(b: Nodes, x: str, table: str, head_width: int, inverse: bool = False) -> str:
    """Return `x` with each feature of a head and that half a head further turned as a pair."""
    (batch, length, width), turned = b.shape(x), b.shape(table)[1]
    cos, sin = b.add_several("Split", 2, table, axis=-1, num_outputs=2)
    if inverse:
        sin = b.add("Neg", sin)
    tables = [b.add("Expand", one, b.ints(batch, length, turned // 2)) for one in (cos, sin)]
    part = {"rotary_embedding_dim": turned} if turned < head_width else {}
    return b.add("RotaryEmbedding", x, *tables, num_heads=width // head_width, **part)


_GATE_ORDER = {"rnn": (0,), "lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}  # ONNX's in ours: iofc, zrh


def recurrent(cell: str, **attrs: Any) -> Write:
    """Return what writes a recurrent layer, its gates in the order of ONNX."""
    order = _GATE_ORDER[cell]

    def ordered(b: Nodes, weight: str) -> str:
        if len(order) == 1:
            return weight
        gates = b.add_several("Split", len(order), weight, axis=0, num_outputs=len(order))
        return b.add("Concat", *(gates[i] for i in order), axis=0)

    def write(b: Nodes, x: str, w_ih: str, w_hh: str, b_ih: str, b_hh: str, *w_hr: str) -> str:
        if w_hr:
            raise NoOnnxError(f"{b.op.name}: ONNX has no {cell} with a projection")
        w, u, c, d = (ordered(b, name) for name in (w_ih, w_hh, b_ih, b_hh))
        first = b.ints(0)
        parts = [b.add("Unsqueeze", w, first), b.add("Unsqueeze", u, first)]
        parts.append(b.add("Unsqueeze", b.add("Concat", c, d, axis=0), first))
        steps = b.add("Transpose", x, perm=(1, 0, 2))  # layers of ONNX take the length first
        y = b.add(cell.upper(), steps, *parts, hidden_size=b.shape(w_hh)[1], **attrs)
        return b.add("Transpose", b.add("Squeeze", y, b.ints(1)), perm=(1, 0, 2))

    return write


_ACTIVATIONS: dict[str, Write] = {
    "relu": node("Relu"),
    "gelu": node("Gelu"),
    "gelu_tanh": node("Gelu", approximate="tanh"),
    "silu": _silu,
}


def experts(
    b: Nodes, x: str, logits: str, up: str, down: str, *biases: str, per_token: int, activation: str
) -> str:
    """Return what the experts of each token make of it, one expert after the other.

    How many tokens an expert gets is known when the file runs.
    """
    count, _, width = b.shape(up)
    rows = b.add("Reshape", x, b.ints(-1, width))
    scores = b.add("Reshape", logits, b.ints(-1, count))
    best, chosen = b.add_several("TopK", 2, scores, b.ints(per_token), axis=-1)
    shares = b.add("Softmax", best, axis=-1)
    total = b.add("Mul", rows, b.number(0.0, b.output.dtype))
    gate, first = GATED.get(activation), b.ints(0)
    for i in range(count):
        number = b.number(i, "int64")
        places = b.add("NonZero", b.add("Equal", chosen, number))
        at = b.add("Transpose", places, perm=(1, 0))
        token = b.add("Gather", at, first, axis=1)
        weights = [b.add("Gather", kept, number, axis=0) for kept in (up, down, *biases)]
        h = b.add("Gemm", b.add("GatherND", rows, token), *weights[::2], transB=1)
        parts = b.add_several("Split", 2, h, axis=1, num_outputs=2) if gate else (h,)
        h = _ACTIVATIONS[gate or activation](b, parts[0])  # type: ignore[assignment]
        h = b.add("Mul", h, parts[1]) if gate else h
        h = b.add("Gemm", h, *weights[1::2], transB=1)
        share = b.add("Unsqueeze", b.add("GatherND", shares, at), b.ints(1))
        total = b.add("ScatterND", total, token, b.add("Mul", h, share), reduction="add")
    return b.add("Reshape", total, b.ints(*b.shape(x)))


def _cross_entropy(b: Nodes, logits: str, labels: str) -> str:
    scores = b.add("Reshape", logits, b.ints(-1, b.shape(logits)[-1]))
    flat = b.add("Reshape", labels, b.ints(-1))
    return b.add("SoftmaxCrossEntropyLoss", scores, flat, ignore_index=IGNORED_LABEL)


KINDS: dict[str, Write] = {
    **onnx_general.KINDS,
    **{kind: node(name) for kind, name in packaged("onnx.toml")["kinds"].items()},
    "linear": _linear,
    "matmul": matmul,
    "bias": _bias,
    "reduce_sum": reduce_sum,
    "mean": node("ReduceMean", keepdims=0),
    "expand": expand,
    "conv2d": lambda b, *inputs, **how: b.add("Conv", *inputs, **_windows(b, inputs, **how)),
    "conv_transpose2d": transposed,
    "max_pool2d": max_pool,
    "avg_pool2d": avg_pool,
    "global_avg_pool": lambda b, x: b.add("Flatten", b.add("GlobalAveragePool", x)),
    "batch_norm": _batch_norm,
    "layer_norm": node("LayerNormalization", epsilon=EPSILON),
    "rms_norm": node("RMSNormalization", epsilon=EPSILON),
    "local_response_norm": lambda b, x, size, alpha, beta, k: b.add(
        "LRN", x, size=size, alpha=float(alpha), beta=float(beta), bias=float(k)
    ),
    "gelu": lambda b, x, tanh=False: b.add("Gelu", x, approximate="tanh" if tanh else "none"),
    "silu": _silu,
    "softmax": node("Softmax", axis=-1),
    "prelu": lambda b, x, slope: b.add("PRelu", x, _along(b, slope, 1, len(b.shape(x)))),
    "dropout": node("Identity"),  # in inference
    "cast": lambda b, x, dtype: b.add("Cast", x, to=TYPES[dtype]),
    "concat": lambda b, *inputs, axis: b.add("Concat", *inputs, axis=axis),
    "reshape": reshape,
    "flatten": node("Flatten"),
    "detach": node("Identity"),
    "transpose": lambda b, x, order: b.add("Transpose", x, perm=order),
    "slice": lambda b, x, axis, start, stop, step=1: b.add(
        "Slice", x, *(b.ints(n) for n in (start, stop, axis, step))
    ),
    "split": lambda b, x, axis, sizes: b.add_several(
        "Split", len(sizes), x, b.ints(*sizes), axis=axis
    ),
    "embedding": lambda b, ids, w: b.add("Gather", w, ids),
    "attention": _attention,
    "rotary": _rotary,
    "experts": experts,
    "rnn": recurrent("rnn"),
    "lstm": recurrent("lstm"),
    "gru": recurrent("gru", linear_before_reset=1),
    "cross_entropy": _cross_entropy,
}
KINDS |= {kind: KINDS[flat] for kind, flat in OVER_VOLUMES.items() if flat in KINDS}

"""Operators that do the work of several: attention, recurrent layers, ONNX Runtime's fusions.

8-bit products are multiplied in the run's own type; their weights are counted by `stored`.
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from steptime.formats import elements, lowering, sequence_lowering
from steptime.formats.heads import heads_apart, heads_joined
from steptime.formats.onnx.fold import Function, Quantised, Value
from steptime.formats.onnx.matrices import convolution, layer_norm, matmul, rms_norm
from steptime.formats.onnx.model import Static
from steptime.formats.onnx.run import Visit
from steptime.formats.patterns import bias_of_scores, turned_by_position
from steptime.network.ops.sequence import GATES
from steptime.network.ops.table import require

Values = Sequence[Value]
LIMITS_OF_8_BITS = (-128.0, 127.0)


def _skip_norm(norm: Function, r: Visit, x: Value, skip: Value, w: Value, *more: Value) -> Values:
    """Return a sum and the norm of it, and the sum as the last output (ONNX Runtime's fusion)."""
    biased = len(more) > (norm is layer_norm)
    total = r.pointwise("add", x, skip)
    if biased and more[-1] is not None:
        total = r.pointwise("add", total, more[-1])
    beta = more[:1] if norm is layer_norm else ()
    return [norm(r, total, w, *beta), None, None, total]  # type: ignore[list-item]


def _heads(r: Visit, x: Value, heads: int) -> str:
    """Return `[n, l, heads*d]` as `[n, heads, l, d]`, what has four axes as it is."""
    shape = r.shape(x)
    if len(shape) == 4:
        return r.tensor(x)
    require(
        len(shape) == 3 and heads >= 1 and shape[2] % heads == 0, f"{list(shape)} in {heads} heads"
    )
    return r.do(heads_apart, x, heads)


# where an operator has its bias, what is added to the scores, and the past keys, behind q, k, v
_PLACES = {"Attention": (-1, 0, 1), "com.microsoft.MultiHeadAttention": (0, 2, 3)}
_PLACES |= {"com.microsoft.GroupQueryAttention": (-1, -1, 0)}


def _attention(r: Visit, q: Value, k: Value, v: Value, *more: Value) -> Values:
    """Return attention; a mask is part of it and costs nothing, one that is learnt is kept."""
    rank = len(r.shape(q))
    heads = r.attr("q_num_heads", 0) or r.attr("num_heads", 0)
    groups = r.attr("kv_num_heads", 0) or heads
    places = _PLACES.get(r.node.op, (-1, -1, -1))
    bias, added, past, before = (
        more[i] if 0 <= i < len(more) else None for i in (*places, places[2] + 1)
    )
    if bias is not None:
        ends = [r.shape(x)[-1] for x in (q, k, v)]
        terms = r.do(elements.split, bias, ends, 0, at="/bias")
        q, k, v = (r.pointwise("add", x, t) for x, t in zip((q, k, v), terms, strict=True))
    parts = [_heads(r, x, n) for x, n in ((q, heads), (k, groups), (v, groups))]
    for i, kept in ((1, past), (2, before if past is not None else None)):
        if kept is not None:  # keys and values of the places before
            parts[i] = r.do(elements.concat, [kept, parts[i]], 2, at=f"/past{i}")
    causal = bool(r.attr("is_causal", 0) or r.attr("unidirectional", 0))
    mask = "" if added is None else bias_of_scores(r.b, r.tensor(added), r.shape(parts[0])[1])
    y = r.do(sequence_lowering.attention, *parts, causal=causal, mask=mask)
    return [r.do(heads_joined, y) if rank == 3 else y, parts[1], parts[2]]


def _packed_attention(r: Visit, x: Value, w: Value, bias: Value = None, *_: Value) -> Values:
    made = matmul(r, x, w)
    made = made if bias is None else r.pointwise("add", made, bias)
    width = r.shape(made)[-1] // 3
    return _attention(r, *r.do(elements.split, made, [width] * 3, -1))[:1]


def _grouped(r: Visit, q: Value, k: Value = None, v: Value = None, *more: Value) -> Values:
    """Return attention with shared keys and values, and rotary positions if it is to turn them."""
    heads, groups = r.attr("num_heads", 0), r.attr("kv_num_heads", 0)
    if k is None:
        head = r.shape(q)[-1] // max(1, heads + 2 * groups)
        sizes = [heads * head, groups * head, groups * head]
        q, k, v = r.do(elements.split, q, sizes, -1)
    if r.attr("do_rotary", 0):
        q, k = (_turned(r, x, n, r.shape(more[4])) for x, n in ((q, heads), (k, groups)))
    return _attention(r, q, k, v, *more)


def _turned(r: Visit, x: Value, heads: int, cache: Sequence[int]) -> Value:
    """Return `x` with its heads turned by position; tables hold half of the width."""
    seen = _heads(r, x, heads)
    made = turned_by_position(r.b, seen, min(2 * cache[-1], r.shape(seen)[-1]), r.name)
    return made if len(r.shape(x)) == 4 else r.do(heads_joined, made)


def _rotary(r: Visit, x: Value, *tables: Value) -> Value:
    cache = tables[1] if r.node.op.startswith("com.") else tables[0]
    shape = r.shape(x)
    heads = r.attr("num_heads", 0) or shape[-1] // max(1, 2 * r.shape(cache)[-1])
    return _turned(r, x, heads, r.shape(cache))


def _linear_of_few_bits(r: Visit, x: Value, w: Value, *scales: Value) -> Value:
    """Return `x [..., k]` times a packed weight, a parameter `[n, k]`."""
    require(isinstance(w, Static), "a packed weight that is computed")
    packed: Static = w  # type: ignore[assignment]
    _note(r, packed, f"int{r.attr('bits', 4)}", *scales[:2])
    weight = Static(packed.name, (r.attr("N", 0), r.attr("K", 0)), "float32")
    return r.do(lowering.linear, x, weight)


def _recurrent(
    cell: str, r: Visit, x: Value, w: Value, u: Value, bias: Value = None, *more: Value
) -> Values:
    require(len(more) < 4 or more[3] is None, "peepholes of an LSTM")
    first_states = [_first_state(r, value) for value in more[1:3]]
    ways, rows, width = r.shape(w)
    if r.node.op.startswith("com."):  # 8-bit weights lie the other way round
        rows, width = width, rows
    hidden = rows // GATES[cell]
    last = bool(r.attr("layout", 0))
    weights = []
    for way in range(ways):
        own = [_part(r, w, way, (rows, width)), _part(r, u, way, (rows, hidden))]
        if bias is not None:
            own += [_part(r, bias, way, (rows,), half) for half in (0, 1)]
        weights.append(own)
    how: dict[str, Any] = {"bidirectional": ways == 2, "batch_first": last}
    how["states"] = [state for state in first_states if state]
    y, state = r.do(sequence_lowering.recurrent, x, cell, weights, **how)
    apart = r.view(y, "reshape", (*r.shape(y)[:2], ways, hidden))
    if last:
        first = r.view(state, "transpose", (1, 0, 2))
        return [apart, first, first]
    return [r.view(apart, "transpose", (0, 2, 1, 3)), state, state]


def _first_state(r: Visit, value: Value) -> str:
    """Return a first state `[ways, n, hidden]` that is computed or learnt; "" for a constant."""
    if value is None or (isinstance(value, Static) and not value.is_weight):
        return ""
    if r.attr("layout", 0):
        value = r.view(value, "transpose", (1, 0, 2))
    return r.tensor(value)


def _part(r: Visit, value: Value, way: int, shape: tuple[int, ...], half: int | None = None) -> str:
    """Return one direction's part of a weight, as a weight of its own."""
    if isinstance(value, Static):
        name = f"{value.name}/{way}" + ("" if half is None else f"/{'wr'[half]}")
        return r.tensor(Static(name, shape, value.dtype))
    own = r.do(elements.select, value, 0, way, at="/way")
    first = (half or 0) * shape[0]
    return r.do(elements.slice_, own, 0, first, first + shape[0], at="/half")


def _note(r: Visit, weight: Static, dtype: str, *scales: Value) -> None:
    """Note that the file keeps a weight in a type of few bits."""
    kept = tuple(one for one in scales if isinstance(one, Static))
    r.quantised[weight.name] = Quantised(dtype, kept)


def _quantized(r: Visit, x: Value, *_: Value) -> Values:
    """Return `x` scaled, rounded: numbers of the run's own type stand for those of 8 bits.

    In training the gradient passes straight through, but for numbers beyond the limits.
    """
    if isinstance(x, Static):
        return [x, None, None]
    scaled = r.do(elements.pointwise, "mul", x, 0.5)
    small = r.constant(0.5, "float32")
    if r.b.training:
        low, high = LIMITS_OF_8_BITS
        return [r.do(elements.pointwise, "clamp", scaled, low=low, high=high), small, small]
    return [r.do(elements.pointwise, "round", scaled, at="/round"), small, small]


def _dequantized(r: Visit, x: Value, *scales: Value) -> Value:
    if isinstance(x, Static):
        _note(r, x, x.dtype, *scales)
        return replace(x, dtype="float32", values=None, derived=False)
    return r.do(elements.pointwise, "mul", _floats(r, x), 0.5)


def _floats(r: Visit, x: Value, *scales: Value) -> Value:
    if isinstance(x, Static):
        return _dequantized(r, x, *scales)
    return x if r.is_float(x) else r.do(elements.cast, x, r.b.precision.weights, at="/cast")


def _of_integers(product: Function, *places: int, scales: int = 0) -> Function:
    """Return a product of 8-bit numbers, multiplied in the run's type; `scales` follow each."""

    def of_integers(r: Visit, *values: Value) -> Value | Values:
        ends = [values[i : i + 1 + scales] for i in places if values[i:]]
        return product(r, *(_floats(r, *end) for end in ends))

    return of_integers


FUSED: Mapping[str, Function] = {
    "com.microsoft.SkipLayerNormalization": partial(_skip_norm, layer_norm),
    "com.microsoft.SkipSimplifiedLayerNormalization": partial(_skip_norm, rms_norm),
    "com.microsoft.BiasGelu": lambda r, x, b: r.pointwise("gelu", r.pointwise("add", x, b)),
    **dict.fromkeys(("Attention", "com.microsoft.MultiHeadAttention"), _attention),
    "com.microsoft.Attention": _packed_attention,
    "com.microsoft.GroupQueryAttention": _grouped,
    **dict.fromkeys(("RotaryEmbedding", "com.microsoft.RotaryEmbedding"), _rotary),
    "com.microsoft.MatMulNBits": _linear_of_few_bits,
    **{name: partial(_recurrent, name.lower()) for name in ("LSTM", "GRU", "RNN")},
    "com.microsoft.DynamicQuantizeLSTM": partial(_recurrent, "lstm"),
    **dict.fromkeys(("QuantizeLinear", "DynamicQuantizeLinear"), _quantized),
    "DequantizeLinear": _dequantized,
    "MatMulInteger": _of_integers(matmul, 0, 1),
    "ConvInteger": _of_integers(convolution, 0, 1),
    "QLinearMatMul": _of_integers(matmul, 0, 3, scales=2),
    "QLinearConv": _of_integers(convolution, 0, 3, 8, scales=2),
}

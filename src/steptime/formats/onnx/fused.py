"""Operators that do the work of several: attention, recurrent layers, ONNX Runtime's fusions.

8-bit products are multiplied in the run's own type; `stored` counts their weights.
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from steptime.formats import elements, lowering, sequence_lowering
from steptime.formats.attention_pattern import find_learnt_bias
from steptime.formats.heads import join_heads, split_heads
from steptime.formats.onnx.constant import FileConstant
from steptime.formats.onnx.fold import Function, Quantised, Value
from steptime.formats.onnx.matrices import convolution, layer_norm, matmul, rms_norm
from steptime.formats.onnx.run import OnnxWalk
from steptime.formats.patterns import apply_rotary
from steptime.network.ops.sequence import GATES
from steptime.network.ops.table import require

Values = Sequence[Value]
LIMITS_OF_8_BITS = (-128.0, 127.0)
ANY_SCALE = 0.5  # stands for the scale of quantised numbers, whose value costs nothing


def _lower_skip_norm(
    norm: Function, walk: OnnxWalk, x: Value, skip: Value, w: Value, *optional: Value
) -> Values:
    """Lower ONNX Runtime's sum and norm: the norm is the first output, the sum the last.

    A layer norm has its shift as the next input; the last one is a bias of the sum.
    """
    is_layer_norm = norm is layer_norm
    has_bias = len(optional) > int(is_layer_norm) and optional[-1] is not None
    total = walk.pointwise("add", x, skip)
    if has_bias:
        total = walk.pointwise("add", total, optional[-1])
    shift = optional[:1] if is_layer_norm else ()
    normalised: Value = norm(walk, total, w, *shift)  # type: ignore[assignment]  # one output
    return [normalised, None, None, total]


def _with_head_axis(walk: OnnxWalk, x: Value, heads: int) -> str:
    """Return `[n, l, heads*d]` as `[n, heads, l, d]`; a tensor of four axes has them already."""
    shape = walk.shape(x)
    if len(shape) == 4:
        return walk.tensor(x)
    fits = len(shape) == 3 and heads >= 1 and shape[2] % heads == 0
    require(fits, f"{list(shape)} in {heads} heads")
    return walk.lower(split_heads, x, heads)


class _AttentionInputs(NamedTuple):
    """The places of an operator's optional inputs after q, k, v; None where it has none."""

    bias: int | None = None
    mask: int | None = None
    past_keys: int | None = None

    @property
    def past_values(self) -> int | None:
        """The place after that of the past keys."""
        return None if self.past_keys is None else self.past_keys + 1


_ATTENTION_INPUTS = {
    "Attention": _AttentionInputs(mask=0, past_keys=1),
    "com.microsoft.MultiHeadAttention": _AttentionInputs(bias=0, mask=2, past_keys=3),
    "com.microsoft.GroupQueryAttention": _AttentionInputs(past_keys=0),
}


def _lower_attention(walk: OnnxWalk, q: Value, k: Value, v: Value, *optional: Value) -> Values:
    """Lower attention; its outputs are the result, and all keys and values.

    A mask is part of the op and costs nothing, but a learnt bias of the scores is read.
    """

    def optional_input(place: int | None) -> Value:
        return optional[place] if place is not None and place < len(optional) else None

    rank = len(walk.shape(q))
    heads = walk.attr("q_num_heads", 0) or walk.attr("num_heads", 0)
    kv_heads = walk.attr("kv_num_heads", 0) or heads
    places = _ATTENTION_INPUTS.get(walk.node.op, _AttentionInputs())
    bias = optional_input(places.bias)
    if bias is not None:
        q, k, v = _add_bias(walk, (q, k, v), bias)
    queries = _with_head_axis(walk, q, heads)
    keys = _with_head_axis(walk, k, kv_heads)
    values = _with_head_axis(walk, v, kv_heads)
    past_keys = optional_input(places.past_keys)
    if past_keys is not None:
        keys = walk.lower(elements.concat, [past_keys, keys], 2, suffix="/past1")
        past_values = optional_input(places.past_values)
        if past_values is not None:
            values = walk.lower(elements.concat, [past_values, values], 2, suffix="/past2")
    is_causal = bool(walk.attr("is_causal", 0) or walk.attr("unidirectional", 0))
    added = optional_input(places.mask)
    mask = ""
    if added is not None:
        mask = find_learnt_bias(walk.b, walk.tensor(added), walk.shape(queries)[1])
    y = walk.lower(sequence_lowering.attention, queries, keys, values, causal=is_causal, mask=mask)
    return [walk.lower(join_heads, y) if rank == 3 else y, keys, values]


def _add_bias(
    walk: OnnxWalk, tensors: tuple[Value, Value, Value], bias: Value
) -> tuple[Value, Value, Value]:
    """Return queries, keys and values with their part of one bias vector added."""
    q, k, v = tensors
    widths = [walk.shape(x)[-1] for x in tensors]
    q_bias, k_bias, v_bias = walk.lower(elements.split, bias, widths, 0, suffix="/bias")
    return (
        walk.pointwise("add", q, q_bias),
        walk.pointwise("add", k, k_bias),
        walk.pointwise("add", v, v_bias),
    )


def _lower_packed_attention(
    walk: OnnxWalk, x: Value, w: Value, bias: Value = None, *_: Value
) -> Values:
    """Lower ONNX Runtime's attention, which makes queries, keys and values by one product."""
    packed = matmul(walk, x, w)
    if bias is not None:
        packed = walk.pointwise("add", packed, bias)
    width = walk.shape(packed)[-1] // 3
    q, k, v = walk.lower(elements.split, packed, [width] * 3, -1)
    return _lower_attention(walk, q, k, v)[:1]


def _lower_grouped_query_attention(
    walk: OnnxWalk, q: Value, k: Value = None, v: Value = None, *optional: Value
) -> Values:
    """Lower attention whose heads share keys and values, with rotary positions if it has them."""
    heads = walk.attr("num_heads", 0)
    kv_heads = walk.attr("kv_num_heads", 0)
    if k is None:  # one tensor holds all three
        head_width = walk.shape(q)[-1] // max(1, heads + 2 * kv_heads)
        widths = [heads * head_width, kv_heads * head_width, kv_heads * head_width]
        q, k, v = walk.lower(elements.split, q, widths, -1)
    if walk.attr("do_rotary", 0):
        cosines = optional[4]
        q = _rotate(walk, q, heads, walk.shape(cosines))
        k = _rotate(walk, k, kv_heads, walk.shape(cosines))
    return _lower_attention(walk, q, k, v, *optional)


def _rotate(walk: OnnxWalk, x: Value, heads: int, table_shape: Sequence[int]) -> Value:
    """Return `x` with rotary positions; a row of the table is half as wide as what is rotated."""
    by_head = _with_head_axis(walk, x, heads)
    width = min(2 * table_shape[-1], walk.shape(by_head)[-1])
    rotated = apply_rotary(walk.b, by_head, width, walk.name)
    return rotated if len(walk.shape(x)) == 4 else walk.lower(join_heads, rotated)


def _lower_rotary(walk: OnnxWalk, x: Value, *tables: Value) -> Value:
    """Lower RotaryEmbedding; ONNX Runtime's has the positions before the tables."""
    is_runtime = walk.node.op.startswith("com.")
    table_shape = walk.shape(tables[1] if is_runtime else tables[0])
    width = walk.shape(x)[-1]
    heads = walk.attr("num_heads", 0) or width // max(1, 2 * table_shape[-1])
    return _rotate(walk, x, heads, table_shape)


def _lower_quantised_linear(walk: OnnxWalk, x: Value, w: Value, *scales: Value) -> Value:
    """Lower `x [..., k]` times a weight `[n, k]`, stored in few bits, several numbers a byte."""
    require(isinstance(w, FileConstant), "a packed weight that is computed")
    packed: FileConstant = w  # type: ignore[assignment]  # as required above
    _note_quantised(walk, packed, f"int{walk.attr('bits', 4)}", *scales[:2])
    shape = (walk.attr("N", 0), walk.attr("K", 0))
    return walk.lower(lowering.linear, x, FileConstant(packed.name, shape, "float32"))


def _lower_recurrent(
    cell: str, walk: OnnxWalk, x: Value, w: Value, u: Value, bias: Value = None, *optional: Value
) -> Values:
    """Lower a recurrent layer; its outputs are all states, and the last one (twice for an LSTM).

    The optional inputs are lengths, the first hidden and cell state, and peepholes.
    """
    require(len(optional) < 4 or optional[3] is None, "peepholes of an LSTM")
    first_states = [_first_state(walk, value) for value in optional[1:3]]
    directions, rows, width = walk.shape(w)
    if walk.node.op.startswith("com."):  # 8-bit weights are transposed
        rows, width = width, rows
    hidden = rows // GATES[cell]
    weights: list[list[str]] = []
    for direction in range(directions):
        direction_weights = [
            _direction_weight(walk, w, direction, (rows, width)),
            _direction_weight(walk, u, direction, (rows, hidden)),
        ]
        if bias is not None:
            direction_weights += [
                _direction_weight(walk, bias, direction, (rows,), half) for half in (0, 1)
            ]
        weights.append(direction_weights)
    is_batch_first = bool(walk.attr("layout", 0))
    y, state = walk.lower(
        sequence_lowering.recurrent,
        x,
        cell,
        weights,
        bidirectional=directions == 2,
        batch_first=is_batch_first,
        states=[state for state in first_states if state],
    )
    by_direction = walk.reshape(y, (*walk.shape(y)[:2], directions, hidden))
    if is_batch_first:
        batch_first_state = walk.transpose(state, (1, 0, 2))
        return [by_direction, batch_first_state, batch_first_state]
    return [walk.transpose(by_direction, (0, 2, 1, 3)), state, state]


def _first_state(walk: OnnxWalk, value: Value) -> str:
    """Return a first state `[directions, n, hidden]` that gets a gradient; "" for a constant."""
    if value is None or (isinstance(value, FileConstant) and not value.is_weight):
        return ""
    if walk.attr("layout", 0):
        value = walk.transpose(value, (1, 0, 2))
    return walk.tensor(value)


def _direction_weight(
    walk: OnnxWalk, value: Value, direction: int, shape: tuple[int, ...], half: int | None = None
) -> str:
    """Return one direction's part of a weight, as a weight of its own.

    A bias has two halves: 0 is that of the input, 1 that of the state.
    """
    if isinstance(value, FileConstant):
        suffix = "" if half is None else f"/{'wr'[half]}"
        return walk.tensor(FileConstant(f"{value.name}/{direction}{suffix}", shape, value.dtype))
    part = walk.lower(elements.select, value, 0, direction, suffix="/way")
    start = (half or 0) * shape[0]
    return walk.lower(elements.slice_, part, 0, start, start + shape[0], suffix="/half")


def _note_quantised(walk: OnnxWalk, weight: FileConstant, dtype: str, *scales: Value) -> None:
    """Note that the file stores a weight in a type of few bits."""
    constants = tuple(scale for scale in scales if isinstance(scale, FileConstant))
    walk.quantised[weight.name] = Quantised(dtype, constants)


def _lower_quantise(walk: OnnxWalk, x: Value, *_: Value) -> Values:
    """Return `x` scaled and rounded: numbers of the run's own type stand for those of 8 bits.

    In training the gradient passes straight through, except for numbers beyond the limits.
    """
    if isinstance(x, FileConstant):
        return [x, None, None]
    scaled = walk.lower(elements.pointwise, "mul", x, ANY_SCALE)
    scale = walk.constant(ANY_SCALE, "float32")
    if walk.b.training:
        low, high = LIMITS_OF_8_BITS
        clipped = walk.lower(elements.pointwise, "clamp", scaled, low=low, high=high)
        return [clipped, scale, scale]
    return [walk.lower(elements.pointwise, "round", scaled, suffix="/round"), scale, scale]


def _lower_dequantise(walk: OnnxWalk, x: Value, *scales: Value) -> Value:
    if isinstance(x, FileConstant):
        _note_quantised(walk, x, x.dtype, *scales)
        return replace(x, dtype="float32", values=None, derived=False)
    return walk.lower(elements.pointwise, "mul", _as_floats(walk, x), ANY_SCALE)


def _as_floats(walk: OnnxWalk, x: Value, *scales: Value) -> Value:
    if isinstance(x, FileConstant):
        return _lower_dequantise(walk, x, *scales)
    if walk.is_float(x):
        return x
    return walk.lower(elements.cast, x, walk.b.precision.weights, suffix="/cast")


def _with_floats(product: Function, *places: int, scale_count: int = 0) -> Function:
    """Return a function that lowers a product of 8-bit numbers in the run's own type.

    Args:
        product: it lowers the product of floats.
        *places: the inputs that are factors, or a bias.
        scale_count: the number of inputs after each of those that are its scales.
    """

    def lower_product(walk: OnnxWalk, *values: Value) -> Value | Values:
        factors = [values[place : place + 1 + scale_count] for place in places if values[place:]]
        return product(walk, *(_as_floats(walk, *factor) for factor in factors))

    return lower_product


def _lower_bias_gelu(walk: OnnxWalk, x: Value, bias: Value) -> Value:
    return walk.pointwise("gelu", walk.pointwise("add", x, bias))


FUSED: Mapping[str, Function] = {
    "com.microsoft.SkipLayerNormalization": partial(_lower_skip_norm, layer_norm),
    "com.microsoft.SkipSimplifiedLayerNormalization": partial(_lower_skip_norm, rms_norm),
    "com.microsoft.BiasGelu": _lower_bias_gelu,
    **dict.fromkeys(("Attention", "com.microsoft.MultiHeadAttention"), _lower_attention),
    "com.microsoft.Attention": _lower_packed_attention,
    "com.microsoft.GroupQueryAttention": _lower_grouped_query_attention,
    **dict.fromkeys(("RotaryEmbedding", "com.microsoft.RotaryEmbedding"), _lower_rotary),
    "com.microsoft.MatMulNBits": _lower_quantised_linear,
    **{name: partial(_lower_recurrent, name.lower()) for name in ("LSTM", "GRU", "RNN")},
    "com.microsoft.DynamicQuantizeLSTM": partial(_lower_recurrent, "lstm"),
    **dict.fromkeys(("QuantizeLinear", "DynamicQuantizeLinear"), _lower_quantise),
    "DequantizeLinear": _lower_dequantise,
    "MatMulInteger": _with_floats(matmul, 0, 1),
    "ConvInteger": _with_floats(convolution, 0, 1),
    "QLinearMatMul": _with_floats(matmul, 0, 3, scale_count=2),
    "QLinearConv": _with_floats(convolution, 0, 3, 8, scale_count=2),
}

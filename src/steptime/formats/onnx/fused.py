"""Fused ONNX operators: attention, recurrent layers, those of ONNX Runtime.

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
from steptime.network.ops.table import ShapeError, require

Values = Sequence[Value]
LIMITS_OF_8_BITS = (-128.0, 127.0)
LENGTH_AXIS = 2  # of keys and values [n, heads, length, width]
COSINES_INDEX = 4  # of the table among GroupQueryAttention's inputs after q, k, v
SWAP_FIRST_AXES = (1, 0, 2)  # order of axes: [directions, n, hidden] <-> [n, directions, hidden]
INPUT_HALF = 0  # of a recurrent layer's bias: that of the input
STATE_HALF = 1
ANY_SCALE = 0.5  # stands for the scale of quantised numbers, whose value costs nothing


def _lower_skip_norm(
    norm: Function, walk: OnnxWalk, x: Value, skip: Value, w: Value, *optional: Value
) -> Values:
    """Lower ONNX Runtime's sum and norm: the norm is the first output, the sum the last.

    A layer norm has its shift as the next input; the last one is a bias of the sum.
    """
    shift_count = 1 if norm is layer_norm else 0  # an RMS norm has no shift
    shifts = optional[:shift_count]
    sum_biases = optional[shift_count:]
    total = walk.pointwise("add", x, skip)
    # a bias of the sum is the last input
    if sum_biases and sum_biases[-1] is not None:
        total = walk.pointwise("add", total, sum_biases[-1])
    normalised: Value = norm(walk, total, w, *shifts)  # type: ignore[assignment]  # one output
    # the outputs between are statistics for training, which no node reads
    return [normalised, None, None, total]


def _with_head_axis(walk: OnnxWalk, x: Value, heads: int) -> str:
    """Return `[n, l, heads*d]` as `[n, heads, l, d]`; a tensor of four axes has them already."""
    shape = walk.shape(x)
    has_head_axis = len(shape) == 4
    if has_head_axis:
        return walk.tensor(x)
    divides_width = len(shape) == 3 and heads >= 1 and shape[2] % heads == 0
    require(divides_width, f"{list(shape)} in {heads} heads")
    return walk.lower(split_heads, x, heads)


class _InputIndices(NamedTuple):
    """The indices of an operator's optional inputs after q, k, v; None where it has none."""

    bias: int | None = None
    mask: int | None = None
    past_keys: int | None = None

    @property
    def past_values(self) -> int | None:
        """The index after that of the past keys."""
        return None if self.past_keys is None else self.past_keys + 1


_ATTENTION_INPUTS = {
    "Attention": _InputIndices(mask=0, past_keys=1),
    "com.microsoft.MultiHeadAttention": _InputIndices(bias=0, mask=2, past_keys=3),
    "com.microsoft.GroupQueryAttention": _InputIndices(past_keys=0),
}


def _lower_attention(walk: OnnxWalk, q: Value, k: Value, v: Value, *optional: Value) -> Values:
    """Lower attention; its outputs are the result, and all keys and values.

    A mask is part of the op and costs nothing, but a learnt bias of the scores is read.
    """
    lacks_head_axis = len(walk.shape(q)) == 3
    heads = walk.attr("q_num_heads", 0) or walk.attr("num_heads", 0)
    kv_heads = walk.attr("kv_num_heads", 0) or heads
    indices = _ATTENTION_INPUTS.get(walk.node.op, _InputIndices())
    bias = _optional_input(optional, indices.bias)
    if bias is not None:
        q, k, v = _add_packed_bias(walk, (q, k, v), bias)
    queries = _with_head_axis(walk, q, heads)
    keys = _with_head_axis(walk, k, kv_heads)
    values = _with_head_axis(walk, v, kv_heads)
    past_keys = _optional_input(optional, indices.past_keys)
    if past_keys is not None:
        keys = walk.lower(elements.concat, [past_keys, keys], LENGTH_AXIS, suffix="/past1")
        values = _add_past_values(walk, values, _optional_input(optional, indices.past_values))
    y = walk.lower(
        sequence_lowering.attention,
        queries,
        keys,
        values,
        causal=bool(walk.attr("is_causal", 0) or walk.attr("unidirectional", 0)),
        mask=_find_bias(walk, queries, _optional_input(optional, indices.mask)),
    )
    result = walk.lower(join_heads, y) if lacks_head_axis else y
    # the outputs behind the result are the keys and values of all tokens so far, for a cache
    return [result, keys, values]


def _add_past_values(walk: OnnxWalk, values: str, past_values: Value) -> str:
    """Return the values of earlier tokens, where the operator reads them, and the new ones."""
    if past_values is None:
        return values
    return walk.lower(elements.concat, [past_values, values], LENGTH_AXIS, suffix="/past2")


def _find_bias(walk: OnnxWalk, queries: str, mask: Value) -> str:
    """Return a mask that is a learnt bias of the scores, "" for any other or none."""
    if mask is None:
        return ""
    head_count = walk.shape(queries)[1]
    return find_learnt_bias(walk.b, walk.tensor(mask), head_count)


def _optional_input(optional: Sequence[Value], index: int | None) -> Value:
    """Return an optional input, None if the operator has none or it is left out."""
    return optional[index] if index is not None and index < len(optional) else None


def _add_packed_bias(
    walk: OnnxWalk, tensors: tuple[Value, Value, Value], bias: Value
) -> tuple[Value, Value, Value]:
    """Return queries, keys and values with their part of one bias vector added."""
    q, k, v = tensors
    widths = [walk.shape(x)[-1] for x in tensors]
    q_bias, k_bias, v_bias = walk.lower(elements.split, bias, widths, axis=0, suffix="/bias")
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
    width = walk.shape(packed)[-1] // 3  # of queries, keys and values each
    q, k, v = walk.lower(elements.split, packed, [width] * 3, axis=-1)
    return [_lower_attention(walk, q, k, v)[0]]


def _lower_grouped_query_attention(
    walk: OnnxWalk, q: Value, k: Value = None, v: Value = None, *optional: Value
) -> Values:
    """Lower attention whose heads share keys and values, with rotary positions if it has them."""
    heads = walk.attr("num_heads", 0)
    kv_heads = walk.attr("kv_num_heads", 0)
    is_packed = k is None  # one tensor holds all three
    if is_packed:
        head_width = walk.shape(q)[-1] // max(1, heads + 2 * kv_heads)
        kv_width = kv_heads * head_width
        widths = [heads * head_width, kv_width, kv_width]
        q, k, v = walk.lower(elements.split, q, widths, axis=-1)
    if walk.attr("do_rotary", 0):
        cosines_shape = walk.shape(optional[COSINES_INDEX])
        q = _rotate(walk, q, heads, cosines_shape)
        k = _rotate(walk, k, kv_heads, cosines_shape)
    return _lower_attention(walk, q, k, v, *optional)


def _rotate(walk: OnnxWalk, x: Value, heads: int, table_shape: Sequence[int]) -> Value:
    """Return `x` with rotary positions; a row of the table is half as wide as what is rotated."""
    has_head_axis = len(walk.shape(x)) == 4
    by_head = _with_head_axis(walk, x, heads)
    head_width = walk.shape(by_head)[-1]
    # a row of the table is half as wide as what is rotated
    rotated_width = min(2 * table_shape[-1], head_width)
    rotated = apply_rotary(walk.b, by_head, rotated_width, walk.name)
    return rotated if has_head_axis else walk.lower(join_heads, rotated)


def _lower_rotary(walk: OnnxWalk, x: Value, *tables: Value) -> Value:
    """Lower RotaryEmbedding; ONNX Runtime's has the positions before the tables."""
    # inputs are cosines and sines, in ONNX Runtime's operator behind the positions
    has_positions_first = walk.node.op.startswith("com.")
    table = tables[1] if has_positions_first else tables[0]
    table_shape = walk.shape(table)
    # a row of the table is half as wide as what is rotated
    rotated_width = 2 * table_shape[-1]
    width = walk.shape(x)[-1]
    heads = walk.attr("num_heads", 0) or width // max(1, rotated_width)
    return _rotate(walk, x, heads, table_shape)


def _lower_quantised_linear(walk: OnnxWalk, x: Value, w: Value, *scales: Value) -> Value:
    """Lower `x [..., k]` times a weight `[n, k]`, stored in few bits, several numbers a byte."""
    if not isinstance(w, FileConstant):
        raise ShapeError("a packed weight that is computed")
    scales_and_zero_points = scales[:2]
    _record_quantised(walk, w, f"int{walk.attr('bits', 4)}", *scales_and_zero_points)
    # the file's tensor is of bytes; N and K are the sizes of the weight that they hold
    unpacked_shape = (walk.attr("N", 0), walk.attr("K", 0))
    return walk.lower(lowering.linear, x, FileConstant(w.name, unpacked_shape, "float32"))


def _lower_recurrent(
    cell: str,
    walk: OnnxWalk,
    x: Value,
    input_weights: Value,
    state_weights: Value,
    bias: Value = None,
    *optional: Value,
) -> Values:
    """Lower a recurrent layer; its outputs are all states, and the last one (twice for an LSTM).

    The optional inputs are lengths, the first hidden and cell state, and peepholes. The last hidden
    state stands for the cell state of an LSTM as well, which is as large.
    """
    padded_inputs = (*optional, None, None, None, None)  # inputs at the end may be left out
    _lengths, first_hidden, first_cell, peepholes = padded_inputs[:4]
    require(peepholes is None, "peepholes of an LSTM")
    states = [
        _find_differentiated_state(walk, first_hidden),
        _find_differentiated_state(walk, first_cell),
    ]
    weights_by_direction = _split_directions(cell, walk, input_weights, state_weights, bias)
    direction_count = len(weights_by_direction)
    is_batch_first = bool(walk.attr("layout", 0))
    y, state = walk.lower(
        sequence_lowering.recurrent,
        x,
        cell,
        weights_by_direction,
        bidirectional=direction_count == 2,
        batch_first=is_batch_first,
        states=[state for state in states if state],
    )
    hidden = walk.shape(y)[2] // direction_count
    by_direction = walk.reshape(y, (*walk.shape(y)[:2], direction_count, hidden))
    if is_batch_first:
        batch_first_state = walk.transpose(state, SWAP_FIRST_AXES)
        return [by_direction, batch_first_state, batch_first_state]
    # [time, n, directions, hidden] -> [time, directions, n, hidden]
    direction_before_batch = walk.transpose(by_direction, (0, 2, 1, 3))
    return [direction_before_batch, state, state]


def _split_directions(
    cell: str, walk: OnnxWalk, input_weights: Value, state_weights: Value, bias: Value
) -> list[list[str]]:
    """Return the weights of each direction: of the input, of the state, and two biases if any."""
    direction_count, rows, width = walk.shape(input_weights)
    # ONNX Runtime's LSTM of 8 bits, `com.microsoft.DynamicQuantizeLSTM`, has them the other way
    has_transposed_weights = walk.node.op.startswith("com.")
    if has_transposed_weights:
        rows, width = width, rows
    hidden = rows // GATES[cell]
    weights_by_direction: list[list[str]] = []
    for direction in range(direction_count):
        weights = [
            _take_direction(walk, input_weights, direction, (rows, width)),
            _take_direction(walk, state_weights, direction, (rows, hidden)),
        ]
        if bias is not None:
            halves = (INPUT_HALF, STATE_HALF)
            weights += [_take_direction(walk, bias, direction, (rows,), half) for half in halves]
        weights_by_direction.append(weights)
    return weights_by_direction


def _find_differentiated_state(walk: OnnxWalk, state: Value) -> str:
    """Return a first state `[directions, n, hidden]` that gets a gradient; "" for a constant."""
    if state is None:
        return ""
    is_fixed = isinstance(state, FileConstant) and not state.is_weight
    if is_fixed:  # it needs no gradient and costs as much as the zeros that the op begins with
        return ""
    is_batch_first = walk.attr("layout", 0)
    return walk.tensor(walk.transpose(state, SWAP_FIRST_AXES) if is_batch_first else state)


def _take_direction(
    walk: OnnxWalk, stacked: Value, direction: int, shape: tuple[int, ...], half: int | None = None
) -> str:
    """Return one direction's part of a weight, as a weight of its own.

    A bias has two halves: 0 is that of the input, 1 that of the state.
    """
    # of stored weights each direction becomes a weight of its own
    if isinstance(stacked, FileConstant):
        suffix = ""
        if half is not None:
            suffix = "/w" if half == INPUT_HALF else "/r"  # as ONNX calls them
        name = f"{stacked.name}/{direction}{suffix}"
        return walk.tensor(FileConstant(name, shape, stacked.dtype))
    weight = walk.lower(elements.select, stacked, axis=0, index=direction, suffix="/way")
    row_count = shape[0]  # ONNX stacks the biases of the input upon those of the state
    first_row = row_count if half == STATE_HALF else 0
    end_row = first_row + row_count
    return walk.lower(
        elements.slice_, weight, axis=0, start=first_row, stop=end_row, suffix="/half"
    )


def _record_quantised(walk: OnnxWalk, weight: FileConstant, dtype: str, *scales: Value) -> None:
    """Note that the file stores a weight in a type of few bits."""
    constants = tuple(scale for scale in scales if isinstance(scale, FileConstant))
    walk.quantised_by_weight[weight.name] = Quantised(dtype, constants)


def _lower_quantise(walk: OnnxWalk, x: Value, *_: Value) -> Values:
    """Return `x` scaled and rounded: numbers of the run's own type stand for those of 8 bits.

    In training the gradient passes straight through, except for numbers beyond the limits.
    """
    if isinstance(x, FileConstant):
        # a weight counts in few bits where it is dequantised
        return [x, None, None]
    scaled = walk.lower(elements.pointwise, "mul", x, ANY_SCALE)
    scale = walk.constant(ANY_SCALE, "float32")
    # in training the gradient passes through a clamp, as if nothing were rounded
    if walk.b.training:
        low, high = LIMITS_OF_8_BITS
        quantised = walk.lower(elements.pointwise, "clamp", scaled, low=low, high=high)
    else:
        quantised = walk.lower(elements.pointwise, "round", scaled, suffix="/round")
    return [quantised, scale, scale]


def _lower_dequantise(walk: OnnxWalk, x: Value, *scales: Value) -> Value:
    if isinstance(x, FileConstant):
        _record_quantised(walk, x, x.dtype, *scales)
        return replace(x, dtype="float32", values=None, derived=False)
    return walk.lower(elements.pointwise, "mul", _as_floats(walk, x), ANY_SCALE)


def _as_floats(walk: OnnxWalk, x: Value, *scales: Value) -> Value:
    if isinstance(x, FileConstant):
        return _lower_dequantise(walk, x, *scales)
    if walk.is_float(x):
        return x
    return walk.lower(elements.cast, x, walk.b.precision.weights, suffix="/cast")


def _lower_as_floats(
    lower_product: Function, *factor_indices: int, scale_count: int = 0
) -> Function:
    """Return a function that lowers a product of 8-bit numbers in the run's own type.

    Args:
        lower_product: it lowers the product of floats.
        *factor_indices: the inputs that are factors, or a bias.
        scale_count: the number of inputs after each of those that are its scales.
    """

    def lower_operator(walk: OnnxWalk, *values: Value) -> Value | Values:
        factors: list[Value] = []
        for index in factor_indices:  # the scales of a factor are the inputs behind it
            factor_and_scales = values[index : index + 1 + scale_count]
            if factor_and_scales:
                factors.append(_as_floats(walk, *factor_and_scales))
        return lower_product(walk, *factors)

    return lower_operator


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
    "MatMulInteger": _lower_as_floats(matmul, 0, 1),
    "ConvInteger": _lower_as_floats(convolution, 0, 1),
    "QLinearMatMul": _lower_as_floats(matmul, 0, 3, scale_count=2),
    "QLinearConv": _lower_as_floats(convolution, 0, 3, 8, scale_count=2),
}

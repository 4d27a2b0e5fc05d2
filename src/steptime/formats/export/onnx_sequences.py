"""Writes the op kinds of sequences as ONNX nodes: attention, recurrent layers, experts."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from steptime.formats.export.onnx_nodes import OPEN_SIZE, Function, Nodes, NoOnnxError, Write, node
from steptime.network.ops.experts import GATED


class _GatedForm(NamedTuple):
    """The activation of an expert: a gated one multiplies one half of its input by the other."""

    function: str
    is_gated: bool


def write_silu(b: Nodes, x: str, beta: float = 1.0) -> str:
    """Write x * sigmoid(beta * x)."""
    scaled = x if beta == 1 else b.add("Mul", x, b.number(beta, b.output.dtype))
    return b.add("Mul", x, b.add("Sigmoid", scaled))


def _write_mask(b: Nodes, query_count: int, key_count: int, causal: bool, window: int) -> str:
    """Write the mask that is added to scores `[l, m]`: 0, or -inf where a token sees no other."""
    dtype = b.output.dtype
    zero = b.number(0, "int64")
    step = b.number(1, "int64")
    query_places = b.add("Range", zero, b.number(query_count, "int64"), step)
    key_places = b.add("Range", zero, b.number(key_count, "int64"), step)
    query_column = b.add("Unsqueeze", query_places, b.ints(1))
    distance = b.add("Sub", query_column, key_places)  # [l, m]: by how much a key is earlier
    smallest_distance = 0 if causal else -key_count
    is_visible = b.add("GreaterOrEqual", distance, b.number(smallest_distance, "int64"))
    if window:
        is_near = b.add("Less", b.add("Abs", distance), b.number(window, "int64"))
        is_visible = b.add("And", is_visible, is_near)
    return b.add("Where", is_visible, b.number(0.0, dtype), b.number(-math.inf, dtype))


def write_attention(
    b: Nodes,
    q: str,
    k: str,
    v: str,
    *optional: str,
    heads: int,
    kv_heads: int,
    causal: bool,
    window: int = 0,
) -> str:
    """Write attention as one node, with a mask unless it is plain or causal.

    Optional inputs are biases of the scores, and sinks: vectors with a score for each head.
    """
    head_counts = {"q_num_heads": heads, "kv_num_heads": kv_heads}
    needs_mask = optional or window
    if not needs_mask:
        return b.add("Attention", q, k, v, **head_counts, is_causal=causal)
    query_count = b.shape(q)[1]
    key_count = b.shape(k)[1]
    mask = _write_mask(b, query_count, key_count, causal, window)
    sinks = [name for name in optional if len(b.shape(name)) == 1]
    biases = [name for name in optional if name not in sinks]
    for bias in biases:
        mask = b.add("Add", mask, bias)
    for sink in sinks:  # one more key, of zeros, whose score is the sink
        key_after_last = b.ints(0, 0, 0, 0, 1, 0)  # the length is the second of three axes
        k = b.add("Pad", k, key_after_last)
        v = b.add("Pad", v, key_after_last)
        upright_sink = b.add("Unsqueeze", sink, b.ints(1, 2))
        sink_column = b.add("Expand", upright_sink, b.ints(heads, query_count, 1))
        mask_by_head = b.add("Expand", mask, b.ints(heads, query_count, key_count))
        mask = b.add("Concat", mask_by_head, sink_column, axis=-1)
    if optional:  # the mask differs by head: it gets an axis for the batch
        mask = b.add("Unsqueeze", mask, b.ints(0))
    return b.add("Attention", q, k, v, mask, **head_counts)


def write_rotary(b: Nodes, x: str, table: str, head_width: int, inverse: bool = False) -> str:
    """Write rotary positions: feature i of a head is rotated with the one half a width further."""
    batch, length, width = b.shape(x)
    rotated_width = b.shape(table)[1]
    cosines, sines = b.add_several("Split", 2, table, axis=-1, num_outputs=2)
    if inverse:
        sines = b.add("Neg", sines)
    shape = b.ints(batch, length, rotated_width // 2)
    batch_cosines = b.add("Expand", cosines, shape)
    batch_sines = b.add("Expand", sines, shape)
    heads = width // head_width
    rotates_full_width = rotated_width >= head_width
    attrs = {} if rotates_full_width else {"rotary_embedding_dim": rotated_width}
    return b.add("RotaryEmbedding", x, batch_cosines, batch_sines, num_heads=heads, **attrs)


# by cell, for each gate in ONNX's order (iofc, zrh) its place in ours
_GATE_ORDER = {"rnn": (0,), "lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}


def recurrent(cell: str, **attrs: Any) -> Write:
    """Return a function that writes a recurrent layer, its gates in the order of ONNX."""
    order = _GATE_ORDER[cell]

    def order_gates(b: Nodes, weight: str) -> str:
        if len(order) == 1:
            return weight
        gates = b.add_several("Split", len(order), weight, axis=0, num_outputs=len(order))
        return b.add("Concat", *(gates[i] for i in order), axis=0)

    def write(b: Nodes, x: str, w_ih: str, w_hh: str, b_ih: str, b_hh: str, *w_hr: str) -> str:
        if w_hr:
            raise NoOnnxError(f"{b.op.name}: ONNX has no {cell} with a projection")
        input_weights, state_weights, input_bias, state_bias = (
            order_gates(b, name) for name in (w_ih, w_hh, b_ih, b_hh)
        )
        direction_axis = b.ints(0)  # ONNX's weights have a first axis of directions
        weights = [
            b.add("Unsqueeze", input_weights, direction_axis),
            b.add("Unsqueeze", state_weights, direction_axis),
        ]
        bias = b.add("Concat", input_bias, state_bias, axis=0)
        weights.append(b.add("Unsqueeze", bias, direction_axis))
        length_first = b.add("Transpose", x, perm=(1, 0, 2))  # as layers of ONNX read it
        hidden_size = b.shape(w_hh)[1]
        y = b.add(cell.upper(), length_first, *weights, hidden_size=hidden_size, **attrs)
        without_direction = b.add("Squeeze", y, b.ints(1))
        return b.add("Transpose", without_direction, perm=(1, 0, 2))

    return write


_ACTIVATIONS: dict[str, Function] = {
    "relu": node("Relu"),
    "gelu": node("Gelu"),
    "gelu_tanh": node("Gelu", approximate="tanh"),
    "silu": write_silu,
}


def write_experts(
    b: Nodes, x: str, logits: str, up: str, down: str, *biases: str, per_token: int, activation: str
) -> str:
    """Write a mixture of experts, one expert after the other.

    Each expert gathers its tokens, whose number is known only when the file runs, and adds its
    weighted outputs to the total.
    """
    expert_count, _, width = b.shape(up)
    tokens = b.add("Reshape", x, b.ints(OPEN_SIZE, width))
    scores = b.add("Reshape", logits, b.ints(OPEN_SIZE, expert_count))
    top_scores, top_experts = b.add_several("TopK", 2, scores, b.ints(per_token), axis=-1)
    shares = b.add("Softmax", top_scores, axis=-1)
    total = b.add("Mul", tokens, b.number(0.0, b.output.dtype))
    form = _GatedForm(GATED.get(activation) or activation, activation in GATED)
    token_column = b.ints(0)
    for expert in range(expert_count):
        expert_id = b.number(expert, "int64")
        is_routed_to_expert = b.add("Equal", top_experts, expert_id)
        places = b.add("NonZero", is_routed_to_expert)
        indices = b.add("Transpose", places, perm=(1, 0))  # rows of (token, rank of the expert)
        token_ids = b.add("Gather", indices, token_column, axis=1)
        weights = [b.add("Gather", name, expert_id, axis=0) for name in (up, down, *biases)]
        expert_tokens = b.add("GatherND", tokens, token_ids)
        output = _write_expert(b, expert_tokens, weights, form)
        token_shares = b.add("Unsqueeze", b.add("GatherND", shares, indices), b.ints(1))
        weighted_output = b.add("Mul", output, token_shares)
        total = b.add("ScatterND", total, token_ids, weighted_output, reduction="add")
    return b.add("Reshape", total, b.ints(*b.shape(x)))


def _write_expert(b: Nodes, rows: str, weights: Sequence[str], form: _GatedForm) -> str:
    """Write one expert: `weights` are up and down, and the bias of each if it has biases."""
    up_weights = weights[::2]
    down_weights = weights[1::2]
    write_activation = _ACTIVATIONS[form.function]
    up_product = b.add("Gemm", rows, *up_weights, transB=1)
    if form.is_gated:
        gate, factor = b.add_several("Split", 2, up_product, axis=1, num_outputs=2)
        hidden = b.add("Mul", write_activation(b, gate), factor)
    else:
        hidden = write_activation(b, up_product)
    return b.add("Gemm", hidden, *down_weights, transB=1)

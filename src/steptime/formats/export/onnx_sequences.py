"""Writes the op kinds of sequences as ONNX nodes: attention, recurrent layers, experts."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from steptime.formats.export.onnx_nodes import (
    OPEN_SIZE,
    Function,
    Nodes,
    NoOnnxError,
    Write,
    single_node_writer,
)
from steptime.network.ops.experts import GATED


class _ExpertActivation(NamedTuple):
    """The activation of an expert: a gated one multiplies one half of its input by the other."""

    function: str
    is_gated: bool


def write_silu(nodes: Nodes, x: str, beta: float = 1.0) -> str:
    """Write x * sigmoid(beta * x)."""
    scaled = x
    if beta != 1:
        scaled = nodes.add("Mul", x, nodes.constant_number(beta, nodes.output_spec.dtype))
    return nodes.add("Mul", x, nodes.add("Sigmoid", scaled))


def _write_mask(nodes: Nodes, query_count: int, key_count: int, causal: bool, window: int) -> str:
    """Write the mask that is added to scores `[l, m]`: 0, or -inf where a token sees no other."""
    dtype = nodes.output_spec.dtype
    zero = nodes.constant_number(0, "int64")
    step = nodes.constant_number(1, "int64")
    query_positions = nodes.add("Range", zero, nodes.constant_number(query_count, "int64"), step)
    key_positions = nodes.add("Range", zero, nodes.constant_number(key_count, "int64"), step)
    query_column = nodes.add("Unsqueeze", query_positions, nodes.constant_ints(1))
    distance = nodes.add("Sub", query_column, key_positions)  # [l, m]: by how much a key is earlier
    smallest_distance = 0 if causal else -key_count
    is_visible = nodes.add(
        "GreaterOrEqual", distance, nodes.constant_number(smallest_distance, "int64")
    )
    if window:
        is_near = nodes.add(
            "Less", nodes.add("Abs", distance), nodes.constant_number(window, "int64")
        )
        is_visible = nodes.add("And", is_visible, is_near)
    return nodes.add(
        "Where",
        is_visible,
        nodes.constant_number(0.0, dtype),
        nodes.constant_number(-math.inf, dtype),
    )


def write_attention(
    nodes: Nodes,
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
        return nodes.add("Attention", q, k, v, **head_counts, is_causal=causal)
    query_count = nodes.shape(q)[1]
    key_count = nodes.shape(k)[1]
    mask = _write_mask(nodes, query_count, key_count, causal, window)
    # a sink is one more score of each head, so a vector; biases of the scores have more axes
    sinks = [name for name in optional if len(nodes.shape(name)) == 1]
    biases = [name for name in optional if name not in sinks]
    for bias in biases:
        mask = nodes.add("Add", mask, bias)
    for sink in sinks:  # one more key, of zeros, whose score is the sink
        # no padding before the three axes; after them, one more of the second: the length
        key_after_last = nodes.constant_ints(0, 0, 0, 0, 1, 0)
        k = nodes.add("Pad", k, key_after_last)
        v = nodes.add("Pad", v, key_after_last)
        upright_sink = nodes.add("Unsqueeze", sink, nodes.constant_ints(1, 2))
        sink_column = nodes.add("Expand", upright_sink, nodes.constant_ints(heads, query_count, 1))
        mask_by_head = nodes.add("Expand", mask, nodes.constant_ints(heads, query_count, key_count))
        mask = nodes.add("Concat", mask_by_head, sink_column, axis=-1)
    if optional:  # the mask differs by head: it gets an axis for the batch
        mask = nodes.add("Unsqueeze", mask, nodes.constant_ints(0))
    return nodes.add("Attention", q, k, v, mask, **head_counts)


def write_rotary(nodes: Nodes, x: str, table: str, head_width: int, inverse: bool = False) -> str:
    """Write rotary positions: feature i of a head is rotated with the one half a width further."""
    batch, length, width = nodes.shape(x)
    rotated_width = nodes.shape(table)[1]
    cosines, sines = nodes.add_with_outputs("Split", table, output_count=2, axis=-1, num_outputs=2)
    if inverse:
        sines = nodes.add("Neg", sines)
    shape = nodes.constant_ints(batch, length, rotated_width // 2)
    batch_cosines = nodes.add("Expand", cosines, shape)
    batch_sines = nodes.add("Expand", sines, shape)
    heads = width // head_width
    rotates_full_width = rotated_width >= head_width
    attrs = {} if rotates_full_width else {"rotary_embedding_dim": rotated_width}
    return nodes.add("RotaryEmbedding", x, batch_cosines, batch_sines, num_heads=heads, **attrs)


# by cell, for each gate in ONNX's order (iofc, zrh) its index in ours
_GATE_ORDER = {"rnn": (0,), "lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}


def recurrent_writer(cell: str, **attrs: Any) -> Write:
    """Return a function that writes a recurrent layer, its gates in the order of ONNX."""
    order = _GATE_ORDER[cell]  # ONNX stacks the gates of a cell in another order than PyTorch

    def order_gates(nodes: Nodes, weight: str) -> str:
        if len(order) == 1:
            return weight
        gates = nodes.add_with_outputs(
            "Split", weight, output_count=len(order), axis=0, num_outputs=len(order)
        )
        return nodes.add("Concat", *(gates[i] for i in order), axis=0)

    def write(nodes: Nodes, x: str, w_ih: str, w_hh: str, b_ih: str, b_hh: str, *w_hr: str) -> str:
        if w_hr:
            raise NoOnnxError(f"{nodes.current_op.name}: ONNX has no {cell} with a projection")
        input_weights, state_weights, input_bias, state_bias = (
            order_gates(nodes, name) for name in (w_ih, w_hh, b_ih, b_hh)
        )
        direction_axis = nodes.constant_ints(0)  # ONNX's weights have a first axis of directions
        weights = [
            nodes.add("Unsqueeze", input_weights, direction_axis),
            nodes.add("Unsqueeze", state_weights, direction_axis),
        ]
        bias = nodes.add("Concat", input_bias, state_bias, axis=0)
        weights.append(nodes.add("Unsqueeze", bias, direction_axis))
        length_first = nodes.add("Transpose", x, perm=(1, 0, 2))  # as layers of ONNX read it
        hidden_size = nodes.shape(w_hh)[1]
        y = nodes.add(cell.upper(), length_first, *weights, hidden_size=hidden_size, **attrs)
        without_direction = nodes.add("Squeeze", y, nodes.constant_ints(1))
        return nodes.add("Transpose", without_direction, perm=(1, 0, 2))

    return write


_ACTIVATIONS: dict[str, Function] = {
    "relu": single_node_writer("Relu"),
    "gelu": single_node_writer("Gelu"),
    "gelu_tanh": single_node_writer("Gelu", approximate="tanh"),
    "silu": write_silu,
}


def write_experts(
    nodes: Nodes,
    x: str,
    logits: str,
    up: str,
    down: str,
    *biases: str,
    per_token: int,
    activation: str,
) -> str:
    """Write a mixture of experts, one expert after the other.

    Each expert gathers its tokens, whose number is known only when the file runs, and adds its
    weighted outputs to the total.
    """
    expert_count, _, width = nodes.shape(up)
    tokens = nodes.add("Reshape", x, nodes.constant_ints(OPEN_SIZE, width))
    scores = nodes.add("Reshape", logits, nodes.constant_ints(OPEN_SIZE, expert_count))
    top_scores, top_experts = nodes.add_with_outputs(
        "TopK", scores, nodes.constant_ints(per_token), output_count=2, axis=-1
    )
    shares = nodes.add("Softmax", top_scores, axis=-1)
    # zeros for as many tokens as the file runs with
    total = nodes.add("Mul", tokens, nodes.constant_number(0.0, nodes.output_spec.dtype))
    expert_activation = _ExpertActivation(GATED.get(activation) or activation, activation in GATED)
    token_column = nodes.constant_ints(0)
    for expert in range(expert_count):
        expert_id = nodes.constant_number(expert, "int64")
        is_routed_to_expert = nodes.add("Equal", top_experts, expert_id)
        nonzero_indices = nodes.add("NonZero", is_routed_to_expert)
        indices = nodes.add(
            "Transpose", nonzero_indices, perm=(1, 0)
        )  # rows of (token, rank of the expert)
        token_ids = nodes.add("Gather", indices, token_column, axis=1)
        weights = [nodes.add("Gather", name, expert_id, axis=0) for name in (up, down, *biases)]
        expert_tokens = nodes.add("GatherND", tokens, token_ids)
        output = _write_expert(nodes, expert_tokens, weights, expert_activation)
        token_shares = nodes.add(
            "Unsqueeze", nodes.add("GatherND", shares, indices), nodes.constant_ints(1)
        )
        weighted_output = nodes.add("Mul", output, token_shares)
        total = nodes.add("ScatterND", total, token_ids, weighted_output, reduction="add")
    return nodes.add("Reshape", total, nodes.constant_ints(*nodes.shape(x)))


def _write_expert(
    nodes: Nodes, rows: str, weights: Sequence[str], activation: _ExpertActivation
) -> str:
    """Write one expert: `weights` are up and down, and the bias of each if it has biases."""
    # `weights` are up, down, and in the same order their biases, if there are any
    up_weights = weights[::2]
    down_weights = weights[1::2]
    write_activation = _ACTIVATIONS[activation.function]
    up_product = nodes.add("Gemm", rows, *up_weights, transB=1)
    if activation.is_gated:
        gate, factor = nodes.add_with_outputs(
            "Split", up_product, output_count=2, axis=1, num_outputs=2
        )
        hidden = nodes.add("Mul", write_activation(nodes, gate), factor)
    else:
        hidden = write_activation(nodes, up_product)
    return nodes.add("Gemm", hidden, *down_weights, transB=1)

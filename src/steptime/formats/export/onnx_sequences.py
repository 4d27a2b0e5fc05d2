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
    distance = _write_distance(nodes, query_count, key_count)
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


def _write_distance(nodes: Nodes, query_count: int, key_count: int) -> str:
    """Write the table `[queries, keys]` of how many tokens a key lies before a query."""
    zero = nodes.constant_number(0, "int64")
    step = nodes.constant_number(1, "int64")
    query_positions = nodes.add("Range", zero, nodes.constant_number(query_count, "int64"), step)
    key_positions = nodes.add("Range", zero, nodes.constant_number(key_count, "int64"), step)
    query_column = nodes.add("Unsqueeze", query_positions, nodes.constant_ints(1))
    return nodes.add("Sub", query_column, key_positions)


class _MaskedKeys(NamedTuple):
    """Keys and values of attention, and the mask that is added to the scores."""

    keys: str
    values: str
    mask: str


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
    mask = _write_mask(nodes, query_count, nodes.shape(k)[1], causal, window)
    # a sink is one more score of each head, so a vector; biases of the scores have more axes
    sinks = [name for name in optional if len(nodes.shape(name)) == 1]
    biases = [name for name in optional if name not in sinks]
    for bias in biases:
        mask = nodes.add("Add", mask, bias)
    masked = _MaskedKeys(k, v, mask)
    for sink in sinks:
        masked = _write_sink(nodes, masked, sink, (heads, query_count, nodes.shape(k)[1]))
    if optional:  # the mask differs by head: it gets an axis for the batch
        mask = nodes.add("Unsqueeze", masked.mask, nodes.constant_ints(0))
    return nodes.add("Attention", q, masked.keys, masked.values, mask, **head_counts)


def _write_sink(
    nodes: Nodes, masked: _MaskedKeys, sink: str, score_shape: tuple[int, int, int]
) -> _MaskedKeys:
    """Write a sink as one more key, of zeros, whose score in the mask is the sink.

    Args:
        nodes: the nodes of the file.
        masked: the keys before.
        sink: a vector with a score for each head.
        score_shape: heads, queries and keys before.
    """
    heads, query_count, _ = score_shape
    # no padding before the three axes; after them, one more of the second: the length
    key_after_last = nodes.constant_ints(0, 0, 0, 0, 1, 0)
    keys = nodes.add("Pad", masked.keys, key_after_last)
    values = nodes.add("Pad", masked.values, key_after_last)
    upright_sink = nodes.add("Unsqueeze", sink, nodes.constant_ints(1, 2))
    sink_column = nodes.add("Expand", upright_sink, nodes.constant_ints(heads, query_count, 1))
    mask_by_head = nodes.add("Expand", masked.mask, nodes.constant_ints(*score_shape))
    mask = nodes.add("Concat", mask_by_head, sink_column, axis=-1)
    return _MaskedKeys(keys, values, mask)


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

    def write(nodes: Nodes, x: str, w_ih: str, w_hh: str, b_ih: str, b_hh: str, *w_hr: str) -> str:
        if w_hr:
            raise NoOnnxError(f"{nodes.current_op.name}: ONNX has no {cell} with a projection")
        parameters = [_order_gates(nodes, name, cell) for name in (w_ih, w_hh, b_ih, b_hh)]
        weights = _add_direction_axis(nodes, *parameters)
        length_first = nodes.add("Transpose", x, perm=(1, 0, 2))  # as layers of ONNX read it
        hidden_size = nodes.shape(w_hh)[1]
        y = nodes.add(cell.upper(), length_first, *weights, hidden_size=hidden_size, **attrs)
        without_direction = nodes.add("Squeeze", y, nodes.constant_ints(1))
        return nodes.add("Transpose", without_direction, perm=(1, 0, 2))

    return write


def _order_gates(nodes: Nodes, weight: str, cell: str) -> str:
    """Write a weight with the gates of a cell in the order of ONNX, which is not PyTorch's."""
    order = _GATE_ORDER[cell]
    if len(order) == 1:
        return weight
    gates = nodes.add_with_outputs(
        "Split", weight, output_count=len(order), axis=0, num_outputs=len(order)
    )
    return nodes.add("Concat", *(gates[i] for i in order), axis=0)


def _add_direction_axis(
    nodes: Nodes, input_weights: str, state_weights: str, input_bias: str, state_bias: str
) -> list[str]:
    """Write the weights and the joined bias of a cell with a first axis of directions."""
    direction_axis = nodes.constant_ints(0)
    weights = [
        nodes.add("Unsqueeze", input_weights, direction_axis),
        nodes.add("Unsqueeze", state_weights, direction_axis),
    ]
    bias = nodes.add("Concat", input_bias, state_bias, axis=0)
    return [*weights, nodes.add("Unsqueeze", bias, direction_axis)]


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
    routing = _write_routing(nodes, scores, per_token)
    # zeros for as many tokens as the file runs with
    total = nodes.add("Mul", tokens, nodes.constant_number(0.0, nodes.output_spec.dtype))
    expert_activation = _ExpertActivation(GATED.get(activation) or activation, activation in GATED)
    token_column = nodes.constant_ints(0)
    for expert in range(expert_count):
        expert_id = nodes.constant_number(expert, "int64")
        rows = _write_expert_rows(nodes, routing, expert_id, token_column)
        weights = [nodes.add("Gather", name, expert_id, axis=0) for name in (up, down, *biases)]
        expert_tokens = nodes.add("GatherND", tokens, rows.token_ids)
        output = _write_expert(nodes, expert_tokens, weights, expert_activation)
        token_shares = nodes.add(
            "Unsqueeze", nodes.add("GatherND", routing.shares, rows.indices), nodes.constant_ints(1)
        )
        weighted_output = nodes.add("Mul", output, token_shares)
        total = nodes.add("ScatterND", total, rows.token_ids, weighted_output, reduction="add")
    return nodes.add("Reshape", total, nodes.constant_ints(*nodes.shape(x)))


class _Routing(NamedTuple):
    """The experts that each token chooses `[tokens, per_token]`, and the share of each."""

    experts: str
    shares: str


class _ExpertRows(NamedTuple):
    """Where the tokens of one expert lie.

    Attributes:
        indices: rows of (token, rank of the expert among those that it chooses).
        token_ids: the first column of `indices`.
    """

    indices: str
    token_ids: str


def _write_routing(nodes: Nodes, scores: str, per_token: int) -> _Routing:
    """Write the choice of the `per_token` experts with the highest scores, for each token."""
    top_scores, top_experts = nodes.add_with_outputs(
        "TopK", scores, nodes.constant_ints(per_token), output_count=2, axis=-1
    )
    return _Routing(top_experts, nodes.add("Softmax", top_scores, axis=-1))


def _write_expert_rows(
    nodes: Nodes, routing: _Routing, expert_id: str, token_column: str
) -> _ExpertRows:
    """Write where the tokens lie that choose an expert; `token_column` is a constant 0."""
    is_routed_to_expert = nodes.add("Equal", routing.experts, expert_id)
    nonzero_indices = nodes.add("NonZero", is_routed_to_expert)
    indices = nodes.add("Transpose", nonzero_indices, perm=(1, 0))
    return _ExpertRows(indices, nodes.add("Gather", indices, token_column, axis=1))


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

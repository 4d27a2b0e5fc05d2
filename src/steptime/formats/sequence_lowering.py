"""Functions that append attention and recurrent layers to a graph, for all file formats."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from steptime.core.graph import Attr
from steptime.formats import elements as el
from steptime.formats.heads import find_shared_heads, join_heads, repeat_heads, split_heads
from steptime.formats.lowering import dropout, matmul
from steptime.formats.tensors import free_name
from steptime.network.ops.builder import Builder
from steptime.network.ops.sequence import GATES
from steptime.network.ops.table import require

GATE_WEIGHT_COUNT = 4  # w_ih, w_hh, b_ih, b_hh of a layer


def attention(
    b: Builder,
    q: str,
    k: str,
    v: str,
    name: str,
    *,
    causal: bool = False,
    window: int = 0,
    mask: str = "",
    scale: float | None = None,
) -> str:
    """Attend with `q [n, h, l, d]` to `k [n, g, m, d]` and `v [n, g, m, e]`: `[n, h, l, e]`.

    It is one op, unless a computed mask differs between examples: then it is two products around a
    softmax.

    Args:
        b: the graph so far.
        q: the queries of h heads.
        k: the keys of g heads; g divides h.
        v: the values of g heads.
        name: the name of the op.
        causal: whether a position sees only those before it.
        window: how many positions back one sees; 0 for all.
        mask: a computed tensor added to the scores, `[h, l, m]` behind axes of 1, or ""; a mask of
            constants alone costs nothing and is left out by the caller.
        scale: the factor of the scores; None for `1 / sqrt(d)`.
    """
    _, heads, length, _ = b.shape(q)
    unrepeated_k = find_shared_heads(b, k, name)
    unrepeated_v = find_shared_heads(b, v, name)
    # the op has one number of heads for keys and values
    if b.shape(unrepeated_k)[1] == b.shape(unrepeated_v)[1]:
        k, v = unrepeated_k, unrepeated_v
    kv_heads, keys = b.shape(k)[1:3]
    require(heads % max(1, kv_heads) == 0, f"{name}: {heads} heads do not share {kv_heads}")
    if _examples_share_mask(b, mask, (heads, length, keys)):
        attrs: dict[str, Attr] = {"causal": causal}
        if window:
            attrs["window"] = window
        return _attention_by_op(b, (q, k, v), mask, attrs, name)
    # each query's head needs its own keys and values
    k = _repeat_shared_heads(b, k, heads, f"{name}/k")
    v = _repeat_shared_heads(b, v, heads, f"{name}/v")
    masks = [mask]
    if causal or window:
        masks.insert(0, b.buffer(free_name(b, f"{name}/causal"), (length, keys)))
    return _attention_by_products(b, (q, k, v), masks, scale, name)


def _attention_by_op(
    b: Builder, qkv: tuple[str, str, str], mask: str, attrs: dict[str, Attr], name: str
) -> str:
    """Append attention as one op, which has the heads side by side in its last axis."""
    q, k, v = qkv
    heads, length = b.shape(q)[1:3]
    kv_heads, keys = b.shape(k)[1:3]
    inputs = [join_heads(b, x, f"{name}/{letter}") for letter, x in (("q", q), ("k", k), ("v", v))]
    if mask:
        inputs.append(el.reshape(b, mask, (heads, length, keys), f"{name}/mask"))
    output = el.append_op(
        b, "attention", *inputs, name=name, heads=heads, kv_heads=kv_heads, **attrs
    )
    return split_heads(b, output, heads, name)


def _examples_share_mask(b: Builder, mask: str, score_shape: tuple[int, int, int]) -> bool:
    """Return whether there is no mask, or one of the shape `[heads, l, m]` for all examples.

    The op reads one term of the scores for all examples, and counts no scale.
    """
    if not mask:
        return True
    has_scores = b.shape(mask)[-3:] == score_shape
    return has_scores and b.tensors[mask].size == math.prod(score_shape)


def _repeat_shared_heads(b: Builder, x: str, heads: int, name: str) -> str:
    """Return keys or values with as many heads as the queries."""
    shared_heads = b.shape(x)[1]
    return x if shared_heads == heads else repeat_heads(b, x, heads // shared_heads, name)


def _attention_by_products(
    b: Builder, qkv: tuple[str, str, str], masks: Sequence[str], scale: float | None, name: str
) -> str:
    """Append attention as two products around a softmax of the scaled and masked scores."""
    q, k, v = qkv
    k_transposed = el.transpose(b, k, (0, 1, 3, 2), f"{name}/transpose_k")
    scores = matmul(b, q, k_transposed, f"{name}/scores")
    factor = scale or b.shape(q)[3] ** -0.5
    scores = el.pointwise(b, "mul", scores, factor, name=f"{name}/scale")
    for mask in masks:
        scores = el.pointwise(b, "add", scores, mask, name=f"{name}/mask")
    shares = el.softmax(b, scores, axis=-1, name=f"{name}/softmax")
    return matmul(b, shares, v, name)


def recurrent(
    b: Builder,
    x: str,
    cell: str,
    weights: Sequence[Sequence[str]],
    name: str,
    *,
    bidirectional: bool = False,
    batch_first: bool = True,
    p: float = 0.0,
    states: Sequence[str] = (),
) -> tuple[str, str]:
    """Append recurrent layers; return their outputs and the last states `[layers, n, hidden]`.

    Args:
        b: the graph so far.
        x: the input, `[n, time, features]`, or `[time, n, features]` if not `batch_first`.
        cell: the kind of cell: `lstm`, `gru` or `rnn`.
        weights: of each layer (and of its backward direction, if `bidirectional`) `w_ih, w_hh`,
            then `b_ih, b_hh` where there are biases, then an LSTM's projection of its output; gates
            in torch's order.
        name: the name of the op, or the scope of the layers where there are several.
        bidirectional: whether each layer reads the sequence in both directions.
        batch_first: whether the batch is the first axis of `x`.
        p: the share that dropout drops between layers.
        states: computed first states `[layers, n, hidden]`, which get a gradient; without them
            layers begin at zero.
    """
    require(cell in GATES, f"{name}: a cell '{cell}', not {', '.join(GATES)}")
    directions = 2 if bidirectional else 1
    has_all_directions = bool(weights) and len(weights) % directions == 0
    require(has_all_directions, f"{name}: weights of {len(weights)} layers")
    if not batch_first:
        x = el.transpose(b, x, (1, 0, 2), f"{name}/batch_first")
    layers = len(weights) // directions
    last_states: list[str] = []
    for layer in range(layers):
        layer_name = f"{name}/layer{layer + 1}" if layers > 1 else name
        state_indices = range(layer * directions, (layer + 1) * directions)
        layer_directions = [
            _LayerDirection(
                layer_name,
                is_backward=direction == 1,
                cell=cell,
                weights=weights[index],
                first_states=[(state, index) for state in states],
            )
            for direction, index in enumerate(state_indices)
        ]
        x, layer_states = _append_layer(b, x, layer_directions)
        last_states += layer_states
        is_last_layer = layer == layers - 1
        if not is_last_layer:
            x = dropout(b, x, p, f"{layer_name}/dropout")
    states_by_layer = el.concat(b, last_states, axis=1, name=f"{name}/state")
    state = el.transpose(b, states_by_layer, (1, 0, 2), f"{name}/layers_first")
    return x if batch_first else el.transpose(b, x, (1, 0, 2), f"{name}/time_first"), state


class _LayerDirection(NamedTuple):
    """One direction in which a recurrent layer reads its sequence.

    Attributes:
        layer_name: the name of the layer.
        is_backward: whether it reads from the end.
        cell: the kind of cell.
        weights: the weights of this direction, as `recurrent` takes them.
        first_states: computed first states of all layers, each with the index of this direction.
    """

    layer_name: str
    is_backward: bool
    cell: str
    weights: Sequence[str]
    first_states: Sequence[tuple[str, int]]

    @property
    def name(self) -> str:
        """The name of its op."""
        return f"{self.layer_name}/back" if self.is_backward else self.layer_name


def _append_layer(
    b: Builder, x: str, directions: Sequence[_LayerDirection]
) -> tuple[str, list[str]]:
    """Append a recurrent layer; return its outputs side by side, and a last state a direction."""
    outputs: list[str] = []
    last_states: list[str] = []
    for direction in directions:
        output, last_state = _append_direction(b, x, direction)
        outputs.append(output)
        last_states.append(last_state)
    return el.concat(b, outputs, axis=2, name=f"{directions[0].layer_name}/join"), last_states


def _append_direction(b: Builder, x: str, direction: _LayerDirection) -> tuple[str, str]:
    """Append one direction of a recurrent layer; return its outputs and its last state.

    Args:
        b: the graph so far.
        x: the input, the batch as its first axis.
        direction: the layer, its weights and first states, and whether it reads from the end.
    """
    name = direction.name
    weights = _complete_weights(b, direction)
    sequence = x
    if direction.is_backward:
        sequence = el.append_op(b, "flip", x, name=f"{name}/flip", axes=(1,))
    y = el.append_op(b, direction.cell, sequence, *weights, name=name)
    # the op begins with zeros: `attach` reads the computed states and gives them a gradient
    if direction.first_states:
        states = [
            el.slice_(b, state, axis=0, start=index, stop=index + 1, name=f"{name}/first_state")
            for state, index in direction.first_states
        ]
        y = el.append_op(b, "attach", y, *states, name=f"{name}/attach")
    length = b.shape(y)[1]
    last_state = el.slice_(b, y, axis=1, start=-1, stop=length, name=f"{name}/last")
    if direction.is_backward:
        y = el.append_op(b, "flip", y, name=f"{name}/flip_back", axes=(1,))
    return y, last_state


def _complete_weights(b: Builder, direction: _LayerDirection) -> list[str]:
    """Return the weights as the op reads them: with biases, then a projection if there is one."""
    gate_weights = list(direction.weights)
    projection: list[str] = []
    ends_with_matrix = len(b.shape(gate_weights[-1])) == 2  # biases are vectors
    if len(gate_weights) > 2 and ends_with_matrix:
        projection = [gate_weights.pop()]
    gate_rows = b.shape(gate_weights[0])[0]
    # zeros where the layer has no biases
    while len(gate_weights) < GATE_WEIGHT_COUNT:
        no_bias = free_name(b, f"{direction.layer_name}/no_bias")
        gate_weights.append(b.buffer(no_bias, (gate_rows,)))
    return gate_weights + projection

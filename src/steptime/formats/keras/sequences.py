"""Recurrent layers, attention and wrappers of Keras, as functions `(layer, *values) -> value`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from steptime.core.errors import check_choice
from steptime.formats import elements, lowering
from steptime.formats.keras import layers
from steptime.formats.keras.layer import KerasLayer, Lower, Value
from steptime.network.ops.sequence import GATES
from steptime.network.ops.table import require

CELLS = {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "rnn"}
MERGES = ("concat", "sum", "mul", "ave")


def _ran(at: KerasLayer, x: Value, cell: str) -> tuple[str, str]:
    """Return the outputs of a recurrent layer, in the order in which it made them, and the last."""
    y, units = at.last(x), at.whole("units")
    require(len(at.b.shape(y)) == 3, f"a recurrent layer of {list(at.shape(x))}")
    at.word("activation", "tanh", ("tanh",))
    at.word("recurrent_activation", "sigmoid", ("sigmoid", "hard_sigmoid"))
    if at.flag("return_state"):
        raise at.refuse("return_state: states are no outputs here")
    rows = GATES[cell] * units
    weights = [at.weight("kernel", rows, at.b.shape(y)[2])]
    weights.append(at.weight("recurrent_kernel", rows, units))
    if at.flag("use_bias", True):
        twice = cell == "gru" and at.flag("reset_after", True)
        weights += [at.weight(name, rows) for name in ("bias", "recurrent_bias")[: 1 + twice]]
    if at.flag("go_backwards"):
        y = elements.op(at.b, "flip", y, name=f"{at.name}/flip", axes=(1,))
    made, _ = lowering.recurrent(at.b, y, cell, [weights], at.name)
    return made, elements.select(at.b, made, 1, -1, f"{at.name}/last")


def _recurrent(cell: str, at: KerasLayer, x: Value, *states: Value, **how: Any) -> Value:
    if states or how:
        raise at.refuse("a first state of its own")
    every, last = _ran(at, x, cell)
    return Value(every if at.flag("return_sequences") else last)


def bidirectional(at: KerasLayer, x: Value) -> Value:
    """Return a recurrent layer run both ways, its outputs joined or added up."""
    said = at.config.get("layer")
    name = said.get("class_name") if isinstance(said, dict) else said
    check_choice("recurrent layer", name, CELLS, f"{at.place}: layer '{at.name}'")
    merge = at.word("merge_mode", "concat", MERGES)
    other = at.config.get("backward_layer") or said
    ways = [at.inner("forward", said), at.inner("backward", other)]
    made = []
    for back, way in enumerate(ways):
        way.config = {**way.config, "go_backwards": bool(back)}
        every, last = _ran(way, x, CELLS[str(name)])
        if not way.flag("return_sequences"):
            made.append(Value(last))
            continue
        if back:
            every = elements.op(at.b, "flip", every, name=f"{way.name}/flip_back", axes=(1,))
        made.append(Value(every))
    if merge == "concat":
        return at.do(elements.concat, [one.name for one in made], -1)
    if merge == "ave":
        return layers.average(at, *made)
    return layers.merge({"sum": "add", "mul": "mul"}[merge], at, *made)


def time_distributed(at: KerasLayer, x: Value) -> Value:
    """Return a layer of every step: steps are examples of it."""
    said, y = at.config.get("layer"), at.last(x)
    name = said.get("class_name") if isinstance(said, dict) else said
    check_choice("layer", name, layers.LAYERS, f"{at.place}: layer '{at.name}'")
    n, steps, *rest = at.b.shape(y)
    rows = elements.reshape(at.b, y, (n * steps, *rest), f"{at.name}/steps")
    own = at.inner("layer", said)
    made = own.last(layers.LAYERS[str(name)](own, Value(rows)))
    return at.do(elements.reshape, made, (n, steps, *at.b.shape(made)[1:]), at="/joined")


def _attention(at: KerasLayer, *values: Value, **how: Any) -> Value:
    """Return attention of several heads: query, value, and key if that is not the value."""
    causal, mask = how.pop("use_causal_mask", False), how.pop("attention_mask", None)
    if mask is not None or not isinstance(causal, bool) or at.config.get("sliding_window"):
        raise at.refuse("attention with a mask or a window of its own")
    if at.flag("use_gate") or at.config.get("attention_axes") not in (None, [1], 1):
        raise at.refuse("attention with a gate, or along other axes than the first")
    query, value, key = (at.last(x) for x in (*values, *values[-1:])[:3])
    require(len(at.b.shape(query)) == 3, f"attention of {list(at.b.shape(query))}")
    grouped = "num_query_heads" in at.config
    heads = at.whole("num_query_heads" if grouped else "num_heads")
    groups = at.whole("num_key_value_heads") if grouped else heads
    width = at.whole("head_dim" if grouped else "key_dim")
    values_width = at.whole("value_dim", width)
    bias = at.flag("use_bias", True)

    def projected(tensor: str, rows: int, name: str) -> str:
        fan_in = at.b.shape(tensor)[-1]
        w = at.weight(f"{name}/kernel", rows, fan_in)
        own = at.weight(f"{name}/bias", rows) if bias else ""
        return lowering.linear(at.b, tensor, w, f"{at.name}/{name}", own)

    rows = (heads * width, groups * width, groups * values_width)
    parts = map(projected, (query, key, value), rows, ("query", "key", "value"))
    numbers = {"heads": heads, "kv_heads": groups, "causal": causal}
    y = elements.op(at.b, "attention", *parts, name=at.name, **numbers)
    said = at.config.get("output_shape") or at.b.shape(query)[-1:]
    out = math.prod(at.sizes("output_shape", len(said)) if isinstance(said, list) else said)
    return Value(projected(y, out, "attention_output"))


def dot_attention(at: KerasLayer, *values: Value, **how: Any) -> Value:
    """Return attention of one head without weights but, perhaps, a scale of the scores."""
    at.word("score_mode", "dot", ("dot",))
    causal, mask = how.pop("use_causal_mask", False), how.pop("mask", None)
    if mask is not None or not isinstance(causal, bool):
        raise at.refuse("attention with a mask of its own")
    q, v, k = (Value(at.last(x)) for x in (*values, *values[-1:])[:3])
    if at.flag("use_scale"):
        q = at.each("mul", q, at.weight("scale"), at="/scale")
    return at.do(elements.op, "attention", q, k, v, heads=1, kv_heads=1, causal=causal)


LAYERS: dict[str, Lower] = {
    "Attention": dot_attention,
    **{name: partial(_recurrent, cell) for name, cell in CELLS.items()},
    "Bidirectional": bidirectional,
    "TimeDistributed": time_distributed,
    **dict.fromkeys(("MultiHeadAttention", "GroupQueryAttention"), _attention),
}

"""Attention of Keras, as functions `(layer, *tensors) -> tensor`."""

from __future__ import annotations

import math
from typing import NamedTuple

from steptime.formats import elements, lowering
from steptime.formats.keras.layer import KerasLayer, KerasTensor
from steptime.network.ops.table import require


class _KerasAttentionInputs(NamedTuple):
    """The tensors that attention reads, with channels last."""

    query: str
    value: str
    key: str


def _read_attention_inputs(
    layer: KerasLayer, tensors: tuple[KerasTensor, ...]
) -> _KerasAttentionInputs:
    """Return query, value and key in Keras' order; the key is the value if it is left out."""
    query, value, *keys = (layer.to_channels_last(x) for x in tensors)
    return _KerasAttentionInputs(query, value, keys[0] if keys else value)


def _check_mask(layer: KerasLayer, mask: object, use_causal_mask: object) -> bool:
    """Return whether attention is causal; raises `InputError` for a mask of another kind."""
    if mask is not None or not isinstance(use_causal_mask, bool):
        raise layer.error("attention with a mask of its own")
    return use_causal_mask


def add_multi_head_attention(
    layer: KerasLayer,
    *tensors: KerasTensor,
    use_causal_mask: object = False,
    attention_mask: object = None,
) -> KerasTensor:
    """Append attention of several heads with its projections, or of heads in groups."""
    is_causal = _check_mask(layer, attention_mask, use_causal_mask)
    if layer.config.get("sliding_window"):
        raise layer.error("attention with a window")
    if layer.read_flag("use_gate") or layer.config.get("attention_axes") not in (None, [1], 1):
        raise layer.error("attention with a gate, or along other axes than the first")
    inputs = _read_attention_inputs(layer, tensors)
    query_shape = layer.b.shape(inputs.query)
    require(len(query_shape) == 3, f"attention of {list(query_shape)}")
    heads = _read_heads(layer)
    y = elements.append_op(
        layer.b,
        "attention",
        _project(layer, inputs.query, heads.query_heads * heads.width, "query"),
        _project(layer, inputs.key, heads.kv_heads * heads.width, "key"),
        _project(layer, inputs.value, heads.kv_heads * heads.value_width, "value"),
        name=layer.name,
        heads=heads.query_heads,
        kv_heads=heads.kv_heads,
        causal=is_causal,
    )
    output_width = _read_output_width(layer, query_shape[-1])
    return KerasTensor(_project(layer, y, output_width, "attention_output"))


class _KerasHeads(NamedTuple):
    """The heads of attention.

    Attributes:
        query_heads: heads of the queries.
        kv_heads: heads of the keys and values.
        width: elements of a query and of a key.
        value_width: elements of a value.
    """

    query_heads: int
    kv_heads: int
    width: int
    value_width: int


def _read_heads(layer: KerasLayer) -> _KerasHeads:
    """Return the heads by the settings of `GroupQueryAttention` or of `MultiHeadAttention`."""
    is_grouped = "num_query_heads" in layer.config
    query_heads = layer.read_int("num_query_heads" if is_grouped else "num_heads")
    kv_heads = layer.read_int("num_key_value_heads") if is_grouped else query_heads
    width = layer.read_int("head_dim" if is_grouped else "key_dim")
    return _KerasHeads(query_heads, kv_heads, width, layer.read_int("value_dim", width))


def _project(layer: KerasLayer, x: str, width: int, name: str) -> str:
    """Append one of the linear layers of attention."""
    kernel = layer.add_weight(f"{name}/kernel", width, layer.b.shape(x)[-1])
    has_bias = layer.read_flag("use_bias", True)
    bias = layer.add_weight(f"{name}/bias", width) if has_bias else ""
    return lowering.linear(layer.b, x, kernel, f"{layer.name}/{name}", bias)


def _read_output_width(layer: KerasLayer, query_width: int) -> int:
    """Return the elements of the setting `output_shape`, by default the width of the query."""
    setting = layer.config.get("output_shape")
    if not setting:
        return query_width
    axis_count = len(setting) if isinstance(setting, list) else 1
    return math.prod(layer.read_sizes("output_shape", axis_count))


def add_dot_attention(
    layer: KerasLayer, *tensors: KerasTensor, use_causal_mask: object = False, mask: object = None
) -> KerasTensor:
    """Append attention of one head; its only weight is a scale of the scores, if asked for."""
    layer.read_choice("score_mode", "dot", ("dot",))
    is_causal = _check_mask(layer, mask, use_causal_mask)
    inputs = _read_attention_inputs(layer, tensors)
    query = KerasTensor(inputs.query)
    if layer.read_flag("use_scale"):
        query = layer.apply_elementwise("mul", query, layer.add_weight("scale"), suffix="/scale")
    y = elements.append_op(
        layer.b,
        "attention",
        query.name,
        inputs.key,
        inputs.value,
        name=layer.name,
        heads=1,
        kv_heads=1,
        causal=is_causal,
    )
    return KerasTensor(y)


def add_additive_attention(
    layer: KerasLayer, *tensors: KerasTensor, use_causal_mask: object = False, mask: object = None
) -> KerasTensor:
    """Append attention whose scores are `sum(scale tanh(query + key))` over the features.

    Source: Bahdanau et al. 2014; Keras 3, `keras/src/layers/attention/additive_attention.py`.
    """
    is_causal = _check_mask(layer, mask, use_causal_mask)
    if is_causal:
        raise layer.error("additive attention with a causal mask")
    b = layer.b
    inputs = _read_attention_inputs(layer, tensors)
    scores = _add_scores(layer, inputs.query, inputs.key)
    weights = elements.softmax(b, scores, axis=-1, name=f"{layer.name}/softmax")
    dropout_rate = layer.read_number("dropout")
    weights = lowering.dropout(b, weights, dropout_rate, f"{layer.name}/dropout")
    return layer.apply(lowering.matmul, weights, inputs.value)


def _add_scores(layer: KerasLayer, query: str, key: str) -> str:
    """Return the scores `[n, queries, keys]` of additive attention."""
    b, name = layer.b, layer.name
    batch, query_count, width = b.shape(query)
    key_count = b.shape(key)[1]
    queries = elements.reshape(b, query, (batch, query_count, 1, width), f"{name}/query")
    keys = elements.reshape(b, key, (batch, 1, key_count, width), f"{name}/key")
    total = elements.pointwise(b, "add", queries, keys, name=f"{name}/sum")
    terms = elements.pointwise(b, "tanh", total, name=f"{name}/tanh")
    if layer.read_flag("use_scale", True):
        scale = layer.add_weight("scale", width)
        terms = elements.pointwise(b, "mul", terms, scale, name=f"{name}/scaled")
    return elements.reduce(b, "sum", terms, [-1], f"{name}/scores")

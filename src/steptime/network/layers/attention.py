"""Attention: linear layers around the attention op, and the layers that choose its keys."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from steptime.network.layers.dense import linear
from steptime.network.layers.designs import Indexer, design_of
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Attributes, Builder

Parameters = Mapping[str, Any]  # of the family `transformer`, where each is documented
INDEX_VALUES = 1  # width of the values that an indexer's scores are summed with


@dataclass(frozen=True)
class Sight:
    """The tokens that an attention layer sees: its own, or a `memory [n, m, width]`.

    Attributes:
        causal: a token sees those before it alone.
        window: tokens that it sees, 0 for all.
        angles: the table that turns queries and keys, "" for none.
        relative: a tensor `[heads, l, m]` that is added to the scores, "" for none.
        memory: the tensor that keys and values are made from, "" for the layer's own input.
        keys: keys of an earlier block, "" for own ones.
        values: values of an earlier block.
    """

    causal: bool = False
    window: int = 0
    angles: str = ""
    relative: str = ""
    memory: str = ""
    keys: str = ""
    values: str = ""


def attention(b: Builder, x: str, p: Parameters, name: str, sight: Sight) -> str:
    """Return attention of `x [n, l, width]`: linear layers around the attention op."""
    heads = _RankHeads(
        queries=b.rank_share(p["heads"], "heads"),
        keys=b.rank_share(p["kv_heads"], "heads of keys and values", min_share=1),
    )
    indexer = design_of(p).indexer
    with b.scope(name):
        x = b.gather_sequence(x, "gather")
        inputs = _queries_keys_values(b, x, p, sight, heads)
        if indexer:
            _score_tokens(b, x, inputs.query_input, indexer, sight.angles)
            # attention reads the tokens that the indexer selects: it costs as much as a window
            sight = replace(sight, window=indexer.selected)
        if p["sinks"]:  # a score of each head that has no value
            inputs = inputs._replace(sinks=b.weight("sinks", (heads.queries,)))
        z = _attend_in_context(b, inputs, heads, sight)
        if p["attention_gate"]:
            z = _gate_output(b, x, z, p, heads.queries)
        z = linear(b, z, p["width"], "out", p["out_bias"])
        return b.sum_over_ranks(z, "sum")


class _RankHeads(NamedTuple):
    """The numbers of heads of which a rank has queries, and of which it has keys and values."""

    queries: int
    keys: int


class _AttentionInputs(NamedTuple):
    """The tensors that attention reads.

    Attributes:
        query_input: the tensor that the queries are made from.
        queries: `[n, l, heads*d]`.
        keys: `[n, m, kv_heads*d]`.
        values: `[n, m, kv_heads*d]`.
        sinks: a score of each head that has no value, "" for none.
    """

    query_input: str
    queries: str
    keys: str
    values: str
    sinks: str = ""


def _attend_in_context(
    b: Builder, inputs: _AttentionInputs, heads: _RankHeads, sight: Sight
) -> str:
    """Return attention whose inputs hold the tokens of one context rank, to the keys of all."""
    exchanges_heads = b.plan.context_method == "all-to-all" and b.plan.context > 1
    if exchanges_heads:
        return _attend_by_heads(b, inputs, heads, sight)
    keys = b.gather_context(inputs.keys, "gather_k")
    values = b.gather_context(inputs.values, "gather_v")
    return _append_attention(b, inputs._replace(keys=keys, values=values), heads, sight)


def _attend_by_heads(b: Builder, inputs: _AttentionInputs, heads: _RankHeads, sight: Sight) -> str:
    """Return attention before which each context rank gets all tokens of a share of the heads."""
    share = _RankHeads(
        queries=heads.queries // b.plan.context,
        keys=max(1, heads.keys // b.plan.context),
    )
    share_inputs = inputs._replace(
        queries=b.exchange_sequence_for_heads(inputs.queries, "spread_q", heads.queries),
        keys=b.exchange_sequence_for_heads(inputs.keys, "spread_k", heads.keys),
        values=b.exchange_sequence_for_heads(inputs.values, "spread_v", heads.keys),
    )
    if inputs.sinks:
        sinks = b.op("slice", inputs.sinks, name="own_sinks", axis=0, start=0, stop=share.queries)
        share_inputs = share_inputs._replace(sinks=sinks)
    z = _append_attention(b, share_inputs, share, sight)
    return b.exchange_heads_for_sequence(z, "join_y")


def _append_attention(b: Builder, inputs: _AttentionInputs, heads: _RankHeads, sight: Sight) -> str:
    """Append the attention op, and return its result."""
    attributes: Attributes = {
        "heads": heads.queries,
        "kv_heads": heads.keys,
        "causal": sight.causal,
    }
    if sight.window:
        attributes["window"] = sight.window
    score_terms = [term for term in (sight.relative, inputs.sinks) if term]
    operands = (inputs.queries, inputs.keys, inputs.values, *score_terms)
    return b.op("attention", *operands, name="attention", **attributes)


def _queries_keys_values(
    b: Builder, x: str, p: Parameters, sight: Sight, heads: _RankHeads
) -> _AttentionInputs:
    """Return the queries, keys and values that attention of `x` reads."""
    query_input = x
    if p["latent_q"]:
        query_input = linear(b, x, p["latent_q"], "q_down", p["qkv_bias"])
        query_input = norm(b, query_input, p["norm"], "q_down_norm")
    merged = None
    if p["merged_qkv"] and not sight.memory:
        merged = _split_merged(b, x, p, heads)
    q = merged.queries if merged else _project_queries(b, query_input, p, heads)
    q = _norm_queries_or_keys(b, q, p, heads.queries, "q_norm")
    if sight.keys:  # this block reuses the keys and values of an earlier one
        k, v = sight.keys, sight.values
    elif p["latent_kv"]:
        k, v = _from_latent(b, x, p, heads.queries, sight.angles)
    else:
        k, v = _keys_values(b, sight.memory or x, p, heads, merged)
    if sight.angles:
        q = _rotate(b, q, sight.angles, "rotary_q", p["head_width"])
        are_keys_rotated = p["latent_kv"] or sight.keys
        if not are_keys_rotated:
            k = _rotate(b, k, sight.angles, "rotary_k", p["head_width"])
    return _AttentionInputs(query_input, q, k, v)


class _MergedResults(NamedTuple):
    """The parts of one product that makes queries, keys and values."""

    queries: str
    keys: str
    values: str


def _project_queries(b: Builder, x: str, p: Parameters, heads: _RankHeads) -> str:
    """Return the queries of a product of their own."""
    # with latent vectors the bias belongs to the products that make these
    has_bias = p["qkv_bias"] and not p["latent_kv"]
    return linear(b, x, p["head_width"] * heads.queries, "q", has_bias)


def _rotate(b: Builder, x: str, angles: str, name: str, head_width: int) -> str:
    """Return queries or keys turned by their positions (rotary embeddings)."""
    return b.op("rotary", x, angles, name=name, head_width=head_width)


def _keys_values(
    b: Builder, x: str, p: Parameters, heads: _RankHeads, merged: _MergedResults | None
) -> tuple[str, str]:
    """Return keys and values of `x`, from one product for both and queries if there is one."""
    if merged:
        plain_k = merged.keys
    else:
        plain_k = linear(b, x, p["head_width"] * heads.keys, "k", p["key_bias"])
    k = _norm_queries_or_keys(b, plain_k, p, heads.keys, "k_norm")
    design = design_of(p)
    if design.keys_are_values:
        v = plain_k
    elif merged:
        v = merged.values
    else:
        v = linear(b, x, p["value_width"] * heads.keys, "v", p["qkv_bias"])
    if design.value_norm:
        v = norm_heads(b, v, heads.keys, "plain_rms", "v_norm")
    return k, v


def _gate_output(b: Builder, x: str, y: str, p: Parameters, heads: int) -> str:
    """Return the output `y` of attention of `x` times a gate of each number or of each head."""
    if design_of(p).gate_per_head:
        return _gate_heads(b, x, y, heads)
    gate = linear(b, x, b.shape(y)[-1], "gate", p["qkv_bias"])
    gate = b.op("sigmoid", gate, name="gate_sigmoid")
    return b.op("mul", y, gate, name="gated")


def _gate_heads(b: Builder, x: str, y: str, heads: int) -> str:
    """Return the output `y [n, l, heads*d]` of attention of `x` times a gate of each head."""
    n, length, width = b.shape(y)
    gate = linear(b, x, heads, "gate", bias=False)
    gate = b.op("sigmoid", gate, name="gate_sigmoid")
    y = b.op("reshape", y, name="gate/heads", shape=(n, length, heads, width // heads))
    gate = b.op("reshape", gate, name="gate/one", shape=(n, length, heads, 1))
    y = b.op("pointwise", y, gate, name="gated", function="mul")
    return b.op("reshape", y, name="gate/whole", shape=(n, length, width))


def _score_tokens(b: Builder, x: str, query_input: str, indexer: Indexer, angles: str) -> None:
    """Add the ops that score tokens, from which attention chooses some.

    The scores are counted as attention with one key for all heads, and values of width 1, which
    stand for their weighted sum.
    """
    if indexer.is_reused:
        return  # this block attends to the tokens that an earlier block chose
    with b.scope("indexer"):
        q = linear(b, query_input, indexer.heads * indexer.width, "q", bias=False)
        k = linear(b, x, indexer.width, "k", bias=False)
        if indexer.norms == "both":
            q = norm_heads(b, q, indexer.heads, "rms", "q_norm")
        k = norm(b, k, "rms" if indexer.norms == "both" else "layer", "k_norm")
        # an indexer rotates with attention's table, unless that is wider than its heads
        fits_angles = angles and b.shape(angles)[-1] <= indexer.width
        if fits_angles:
            q = _rotate(b, q, angles, "rotary_q", indexer.width)
            k = _rotate(b, k, angles, "rotary_k", indexer.width)
        append_index_scores(b, x, q, k, indexer, causal=True)


def append_index_scores(
    b: Builder, x: str, queries: str, keys: str, indexer: Indexer, *, causal: bool
) -> None:
    """Append the attention op that stands for an indexer's scores of the tokens of `x`."""
    if indexer.has_weights:
        # no op reads the weights of heads: the attention below counts the weighted sum of scores
        linear(b, x, indexer.heads, "weights", bias=False)
    # one feature of the keys stands for the values, whose content costs nothing
    values = b.op("slice", keys, name="one", axis=-1, start=0, stop=INDEX_VALUES)
    attributes: Attributes = {"heads": indexer.heads, "kv_heads": 1, "causal": causal}
    b.op("attention", queries, keys, values, name="scores", **attributes)


def _split_merged(b: Builder, x: str, p: Parameters, heads: _RankHeads) -> _MergedResults:
    """Return the parts of one product that makes queries, keys and values of `x`."""
    sizes = (
        p["head_width"] * heads.queries,
        p["head_width"] * heads.keys,
        p["value_width"] * heads.keys,
    )
    merged = linear(b, x, sum(sizes), "qkv", p["qkv_bias"])
    parts = b.append(b.full_path("parts"), "split", (merged,), axis=-1, sizes=sizes)
    return _MergedResults(*parts)


def norm_heads(b: Builder, x: str, heads: int, kind: str, name: str) -> str:
    """Return `x [n, l, heads*d]` with a norm of each head, whose weights all heads share."""
    n, length, width = shape = b.shape(x)
    x = b.op("reshape", x, name=f"{name}/heads", shape=(n, length, heads, width // heads))
    return b.op("reshape", norm(b, x, kind, name), name=f"{name}/whole", shape=shape)


def _norm_queries_or_keys(b: Builder, x: str, p: Parameters, heads: int, name: str) -> str:
    """Return queries or keys as the network norms them: not, by head, or all together."""
    if p["qk_norm"] == "none":
        return x
    if p["qk_norm"] == "head":
        return norm_heads(b, x, heads, p["norm"], name)
    y = norm(b, x, p["norm"], name)
    return b.op("reshape", y, name=f"{name}/whole", shape=b.shape(x))


def _from_latent(b: Builder, x: str, p: Parameters, heads: int, angles: str) -> tuple[str, str]:
    """Return keys and values made from a narrow vector (DeepSeek-AI 2024, section 2.1).

    The rotary_width part of a key is the same in all heads.
    """
    n, length, _ = b.shape(x)
    latent_width = p["latent_kv"]
    plain_width = p["head_width"] - p["rotary_width"]
    # Down to the latent vector and the rotary part of all keys.
    down_width = latent_width + p["rotary_width"]
    down = linear(b, x, down_width, "kv_down", p["qkv_bias"])
    latent = _cut_columns(b, down, "latent/part", 0, latent_width)
    latent = norm(b, latent, p["norm"], "kv_norm")
    # Up to the plain part of the keys and the values of each head.
    head_width = plain_width + p["value_width"]
    kv = linear(b, latent, heads * head_width, "kv", bias=False)
    kv = b.op("reshape", kv, name="kv/heads", shape=(n, length, heads, head_width))
    v = _cut_columns(b, kv, "values/part", plain_width, head_width)
    v = b.op("reshape", v, name="values", shape=(n, length, heads * p["value_width"]))
    plain_keys = _cut_columns(b, kv, "keys/plain", 0, plain_width)
    rotary_keys = _cut_columns(b, down, "turned/part", latent_width, down_width)
    rotary_keys = _repeat_rotary_keys(b, rotary_keys, heads, angles)
    keys = b.op("concat", rotary_keys, plain_keys, name="keys/both", axis=3)
    keys = b.op("reshape", keys, name="keys", shape=(n, length, heads * p["head_width"]))
    return keys, v


def _cut_columns(b: Builder, x: str, name: str, start: int, stop: int) -> str:
    """Return the columns from `start` to `stop` of the last axis."""
    return b.op("slice", x, name=name, axis=-1, start=start, stop=stop)


def _repeat_rotary_keys(b: Builder, rotary_keys: str, heads: int, angles: str) -> str:
    """Return the rotary part of keys, `[n, l, width]`, for all heads: `[n, l, heads, width]`."""
    n, length, width = b.shape(rotary_keys)
    if angles:
        rotary_keys = _rotate(b, rotary_keys, angles, "rotary_k", width)
    single = b.op("reshape", rotary_keys, name="turned/one", shape=(n, length, 1, width))
    return b.op("tile", single, name="turned/all", times=(1, 1, heads, 1))

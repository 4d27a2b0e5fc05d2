"""Attention: linear layers around the attention op, and the layers that choose its keys."""

from collections.abc import Mapping
from dataclasses import dataclass
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
    all_heads = heads = b.rank_share(p["heads"], "heads")
    kv_heads = b.rank_share(p["kv_heads"], "heads of keys and values", min_share=1)
    indexer = design_of(p).indexer
    window = sight.window
    with b.scope(name):
        x = b.gather_sequence(x, "gather")
        qkv = _queries_keys_values(b, x, p, sight, heads, kv_heads)
        q, k, v = qkv.queries, qkv.keys, qkv.values
        if indexer:  # attention reads the tokens that the indexer selects, as many as a window
            _score_tokens(b, x, qkv.query_input, indexer, sight.angles)
            window = indexer.selected
        sinks = b.weight("sinks", (heads,)) if p["sinks"] else ""  # a score that has no value
        # Context ranks see all keys: each has all tokens of some heads, or gathers the keys.
        exchanges_heads = b.plan.context_method == "all-to-all" and b.plan.context > 1
        if exchanges_heads:
            q = b.exchange_sequence_for_heads(q, "spread_q", heads)
            k = b.exchange_sequence_for_heads(k, "spread_k", kv_heads)
            v = b.exchange_sequence_for_heads(v, "spread_v", kv_heads)
            heads = heads // b.plan.context
            kv_heads = max(1, kv_heads // b.plan.context)
            if sinks:  # those of the rank's heads
                sinks = b.op("slice", sinks, name="own_sinks", axis=0, start=0, stop=heads)
        else:
            k = b.gather_context(k, "gather_k")
            v = b.gather_context(v, "gather_v")
        attributes: Attributes = {"heads": heads, "kv_heads": kv_heads, "causal": sight.causal}
        if window:
            attributes["window"] = window
        score_terms = [term for term in (sight.relative, sinks) if term]
        z = b.op("attention", q, k, v, *score_terms, name="attention", **attributes)
        if exchanges_heads:
            z = b.exchange_heads_for_sequence(z, "join_y")
        if p["attention_gate"]:
            z = _gate_output(b, x, z, p, all_heads)
        z = linear(b, z, p["width"], "out", p["out_bias"])
        return b.sum_over_ranks(z, "sum")


class _QueriesKeysValues(NamedTuple):
    """What attention reads, and the tensor that its queries are made from."""

    query_input: str
    queries: str
    keys: str
    values: str


def _queries_keys_values(
    b: Builder, x: str, p: Parameters, sight: Sight, heads: int, kv_heads: int
) -> _QueriesKeysValues:
    """Return the queries, keys and values that attention of `x` reads."""
    head_width = p["head_width"]
    query_input = x
    if p["latent_q"]:
        query_input = linear(b, x, p["latent_q"], "q_down", p["qkv_bias"])
        query_input = norm(b, query_input, p["norm"], "q_down_norm")
    merged_k = merged_v = ""  # of one product for all three, "" where each has its own product
    if p["merged_qkv"] and not sight.memory:
        q, merged_k, merged_v = _split_merged(b, x, p, heads, kv_heads)
    else:
        # with latent vectors the bias belongs to the products that make these
        has_bias = p["qkv_bias"] and not p["latent_kv"]
        q = linear(b, query_input, head_width * heads, "q", has_bias)
    q = _norm_queries_or_keys(b, q, p, heads, "q_norm")
    if sight.keys:  # this block reuses the keys and values of an earlier one
        k, v = sight.keys, sight.values
    elif p["latent_kv"]:
        k, v = _from_latent(b, x, p, heads, sight.angles)
    else:
        k, v = _keys_values(b, sight.memory or x, p, kv_heads, merged_k, merged_v)
    if sight.angles:
        q = b.op("rotary", q, sight.angles, name="rotary_q", head_width=head_width)
        are_keys_rotated = p["latent_kv"] or sight.keys
        if not are_keys_rotated:
            k = b.op("rotary", k, sight.angles, name="rotary_k", head_width=head_width)
    return _QueriesKeysValues(query_input, q, k, v)


def _keys_values(
    b: Builder, x: str, p: Parameters, kv_heads: int, merged_k: str, merged_v: str
) -> tuple[str, str]:
    """Return keys and values of `x`; `k` and `v` are "" if they are still to be made."""
    design = design_of(p)
    plain_k = merged_k or linear(b, x, p["head_width"] * kv_heads, "k", p["key_bias"])
    k = _norm_queries_or_keys(b, plain_k, p, kv_heads, "k_norm")
    if design.keys_are_values:
        v = plain_k
    else:
        v = merged_v or linear(b, x, p["value_width"] * kv_heads, "v", p["qkv_bias"])
    if design.value_norm:
        v = norm_heads(b, v, kv_heads, "plain_rms", "v_norm")
    return k, v


def _gate_output(b: Builder, x: str, y: str, p: Parameters, heads: int) -> str:
    """Return the output of attention times a gate of each number or of each head."""
    n, length, width = b.shape(y)
    if not design_of(p).gate_per_head:
        gate = linear(b, x, width, "gate", p["qkv_bias"])
        gate = b.op("sigmoid", gate, name="gate_sigmoid")
        return b.op("mul", y, gate, name="gated")
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
            k = norm(b, k, "rms", "k_norm")
        else:
            k = norm(b, k, "layer", "k_norm")
        # an indexer rotates with attention's table, unless that is wider than its heads
        fits_angles = angles and b.shape(angles)[-1] <= indexer.width
        if fits_angles:
            q = b.op("rotary", q, angles, name="rotary_q", head_width=indexer.width)
            k = b.op("rotary", k, angles, name="rotary_k", head_width=indexer.width)
        if indexer.has_weights:
            # no op reads the weights of heads: the attention below counts the weighted sum of
            # scores
            linear(b, x, indexer.heads, "weights", bias=False)
        # one feature of the keys stands for the values, whose content costs nothing
        v = b.op("slice", k, name="one", axis=-1, start=0, stop=INDEX_VALUES)
        attributes: Attributes = {"heads": indexer.heads, "kv_heads": 1, "causal": True}
        b.op("attention", q, k, v, name="scores", **attributes)


def _split_merged(
    b: Builder, x: str, p: Parameters, heads: int, kv_heads: int
) -> tuple[str, str, str]:
    width = p["head_width"]
    sizes = (width * heads, width * kv_heads, p["value_width"] * kv_heads)
    x = linear(b, x, sum(sizes), "qkv", p["qkv_bias"])
    q, k, v = b.append(b.full_path("parts"), "split", (x,), axis=-1, sizes=sizes)
    return q, k, v


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
    rotary_width = p["rotary_width"]
    plain_width = p["head_width"] - rotary_width
    value_width = p["value_width"]
    down_width = latent_width + rotary_width
    head_width = plain_width + value_width

    def cut_columns(y: str, name: str, start: int, stop: int) -> str:
        return b.op("slice", y, name=name, axis=-1, start=start, stop=stop)

    # Down to the latent vector and the rotary part of all keys.
    down = linear(b, x, down_width, "kv_down", p["qkv_bias"])
    latent = cut_columns(down, "latent/part", 0, latent_width)
    latent = norm(b, latent, p["norm"], "kv_norm")

    # Up to the plain part of the keys and the values of each head.
    kv = linear(b, latent, heads * head_width, "kv", bias=False)
    kv = b.op("reshape", kv, name="kv/heads", shape=(n, length, heads, head_width))
    v = cut_columns(kv, "values/part", plain_width, head_width)
    v = b.op("reshape", v, name="values", shape=(n, length, heads * value_width))
    plain_keys = cut_columns(kv, "keys/plain", 0, plain_width)

    # The rotary part is repeated for all heads.
    rotary_keys = cut_columns(down, "turned/part", latent_width, down_width)
    if angles:
        rotary_keys = b.op("rotary", rotary_keys, angles, name="rotary_k", head_width=rotary_width)
    head_shape = (n, length, 1, rotary_width)
    rotary_keys = b.op("reshape", rotary_keys, name="turned/one", shape=head_shape)
    rotary_keys = b.op("tile", rotary_keys, name="turned/all", times=(1, 1, heads, 1))
    keys = b.op("concat", rotary_keys, plain_keys, name="keys/both", axis=3)
    keys = b.op("reshape", keys, name="keys", shape=(n, length, heads * p["head_width"]))
    return keys, v

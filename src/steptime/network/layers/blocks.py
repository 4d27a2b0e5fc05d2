"""Blocks of the residual networks (He et al. 2015) and of the transformers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steptime.network.layers.dense import dropout, linear
from steptime.network.layers.image import batch_norm, conv2d
from steptime.network.ops.builder import Builder
from steptime.network.ops.sequence import GATED
from steptime.network.ops.table import ShapeError


def conv_norm(
    b: Builder, x: str, channels: int, kernel: int, name: str, *, stride: int = 1, relu: bool = True
) -> str:
    """Return convolution (padded to keep the size), batch norm, and ReLU if asked."""
    with b.scope(name):
        x = conv2d(b, x, channels, kernel, "conv", stride=stride, padding=kernel // 2)
        x = batch_norm(b, x, "norm")
        return b.op("relu", x, name="relu") if relu else x


def residual_block(
    b: Builder, x: str, layers: Sequence[tuple[int, int, int]], name: str, project: bool
) -> str:
    """Return convolutions of (channels, kernel, stride) beside a shortcut, and ReLU.

    The shortcut is a 1x1 convolution where it must `project`.
    """
    with b.scope(name):
        y = x
        for i, (channels, kernel, stride) in enumerate(layers, start=1):
            last = i == len(layers)
            y = conv_norm(b, y, channels, kernel, f"conv{i}", stride=stride, relu=not last)
        if project:
            stride = math.prod(stride for _, _, stride in layers)
            x = conv_norm(b, x, channels, 1, "shortcut", stride=stride, relu=False)
        return b.op("relu", b.op("add", y, x, name="add"), name="relu")


Parameters = Mapping[str, Any]  # of the family `transformer`, where each is documented


@dataclass(frozen=True)
class Sight:
    """What an attention layer sees: itself, or a `memory [n, m, width]`; all, or what is before.

    Of itself, that within a `window` (0: all). `angles` is the table that turns queries and keys,
    `relative [heads, l, m]` what is added to the scores ("" where there is none).
    """

    causal: bool = False
    window: int = 0
    angles: str = ""
    relative: str = ""
    memory: str = ""


def norm(b: Builder, x: str, kind: str, name: str) -> str:
    """Return layer norm (`layer`) or root-mean-square norm (`rms`) over the last axis."""
    width = (b.shape(x)[-1],)
    with b.scope(name):
        w = b.weight("w", width)
        if kind == "rms":
            return b.op("rms_norm", x, w, name="rms_norm")
        return b.op("layer_norm", x, w, b.weight("b", width), name="layer_norm")


def attention(b: Builder, x: str, p: Parameters, name: str, sight: Sight) -> str:
    """Return attention of `x [n, l, width]`: linear layers around the attention op."""
    head, heads = p["head_width"], b.share(p["heads"], "heads")
    kv_heads = b.share(p["kv_heads"], "heads of keys and values", least=1)
    with b.scope(name):
        x = b.whole(x, "gather")
        y, bias = x, p["qkv_bias"]
        if p["latent_q"]:
            y = norm(b, linear(b, x, p["latent_q"], "q_down", bias), p["norm"], "q_down_norm")
        bias = bias and not p["latent_kv"]
        merged = p["merged_qkv"] and not sight.memory
        q, k, v = _cut_from_one(b, x, p, heads, kv_heads) if merged else ("", "", "")
        q = _normed(b, q or linear(b, y, head * heads, "q", bias), p, heads, "q_norm")
        if p["latent_kv"]:
            k, v = _from_latent(b, x, p, heads, sight.angles)
        else:
            seen = sight.memory or x
            k = k or linear(b, seen, head * kv_heads, "k", p["key_bias"])
            k = _normed(b, k, p, kv_heads, "k_norm")
            v = v or linear(b, seen, p["value_width"] * kv_heads, "v", p["qkv_bias"])
        if sight.angles:
            q = b.op("rotary", q, sight.angles, name="rotary_q", head_width=head)
            if not p["latent_kv"]:
                k = b.op("rotary", k, sight.angles, name="rotary_k", head_width=head)
        more = [sight.relative] if sight.relative else []
        more += [b.weight("sinks", (heads,))] if p["sinks"] else []
        cut = b.plan.context if b.plan.context_method == "all-to-all" else 1
        if cut > 1:
            q = b.spread(q, "spread_q", heads)
            k, v = b.spread(k, "spread_k", kv_heads), b.spread(v, "spread_v", kv_heads)
            heads, kv_heads = heads // cut, max(1, kv_heads // cut)
            if p["sinks"]:
                more[-1] = b.op("slice", more[-1], name="own_sinks", axis=0, start=0, stop=heads)
        else:
            k, v = b.all_parts(k, "gather_k"), b.all_parts(v, "gather_v")
        how: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "causal": sight.causal}
        how |= {"window": sight.window} if sight.window else {}
        y = b.op("attention", q, k, v, *more, name="attention", **how)
        y = b.joined(y, "join_y") if cut > 1 else y
        if p["attention_gate"]:
            y = _gated(b, y, linear(b, x, b.shape(y)[-1], "gate", p["qkv_bias"]), "sigmoid")
        return b.summed(linear(b, y, p["width"], "out", p["out_bias"]), "sum")


def _gated(b: Builder, y: str, gate: str, kind: str) -> str:
    return b.op("mul", y, b.op(kind, gate, name=f"gate_{kind}"), name="gated")


def delta_net(b: Builder, x: str, p: Parameters, name: str) -> str:
    """Return what a state that each token changes makes of `x` (Yang et al. 2024, figure 1).

    Queries, keys and values pass a short convolution; what is made is normed, head by head.
    """
    if b.plan.context > 1:
        raise ShapeError("blocks with a state do not divide a sequence into context ranks")
    heads, keys = (b.share(p[f"linear_{one}"], f"linear {one}") for one in ("heads", "key_heads"))
    values, width = p["linear_value_width"], p["linear_width"] * keys
    sizes, kernel = (width, width, values * heads), p["linear_kernel"]
    with b.scope(name):
        x = b.whole(x, "gather")
        mixed = linear(b, x, sum(sizes), "qkv", bias=False)
        gate = linear(b, x, values * heads, "gate", bias=False)
        share = b.op("sigmoid", linear(b, x, heads, "share", bias=False), name="share_sigmoid")
        decay = b.op(
            "pointwise", linear(b, x, heads, "decay"), name="softplus", function="softplus"
        )
        rate = b.op("pointwise", b.weight("rate/w", (heads,)), name="rate_exp", function="exp")
        decay = b.op("pointwise", decay, rate, name="decay_rate", function="mul")
        mixed = b.op("transpose", mixed, name="channels", order=(0, 2, 1))
        n, channels, length = b.shape(mixed)
        mixed = b.op("reshape", mixed, name="channels/image", shape=(n, channels, length, 1))
        w = b.weight("convolution/w", (channels, 1, kernel, 1))
        how: dict[str, Any] = {
            "stride": (1, 1),
            "groups": channels,
            "padding": (kernel - 1, 0, 0, 0),
        }
        mixed = b.op("silu", b.op("conv2d", mixed, w, name="convolution", **how), name="silu")
        mixed = b.op("reshape", mixed, name="tokens/channels", shape=(n, channels, length))
        mixed = b.op("transpose", mixed, name="tokens", order=(0, 2, 1))
        parts = b.append(b.named("parts"), "split", (mixed,), axis=-1, sizes=sizes)
        y = b.op("delta_rule", *parts, decay, share, name="delta_rule", heads=heads, key_heads=keys)
        y = b.op("reshape", y, name="norm/heads", shape=(n, length, heads, values))
        y = b.op("reshape", norm(b, y, "rms", "norm"), name="norm/whole", shape=b.shape(gate))
        y = _gated(b, y, gate, "silu")
        return b.summed(linear(b, y, p["width"], "out", bias=False), "sum")


def _cut_from_one(
    b: Builder, x: str, p: Parameters, heads: int, kv_heads: int
) -> tuple[str, str, str]:
    width = p["head_width"]
    sizes = (width * heads, width * kv_heads, p["value_width"] * kv_heads)
    x = linear(b, x, sum(sizes), "qkv", p["qkv_bias"])
    q, k, v = b.append(b.named("parts"), "split", (x,), axis=-1, sizes=sizes)
    return q, k, v


def _normed(b: Builder, x: str, p: Parameters, heads: int, name: str) -> str:
    """Return queries or keys, normed where that is asked for: each head by itself, or all of it."""
    if p["qk_norm"] == "none":
        return x
    shape = b.shape(x)
    if p["qk_norm"] == "head":
        x = b.op("reshape", x, name=f"{name}/heads", shape=(*shape[:2], heads, shape[2] // heads))
    return b.op("reshape", norm(b, x, p["norm"], name), name=f"{name}/whole", shape=shape)


def _from_latent(b: Builder, x: str, p: Parameters, heads: int, angles: str) -> tuple[str, str]:
    """Return keys and values made from a narrow vector (DeepSeek-AI 2024, section 2.1).

    The turned part of a key is the same in all heads.
    """
    latent, turned, values = p["latent_kv"], p["rotary_width"], p["value_width"]
    plain, (n, length, _) = p["head_width"] - turned, b.shape(x)
    both = linear(b, x, latent + turned, "kv_down", p["qkv_bias"])

    def part(y: str, name: str, start: int, stop: int, *shape: int) -> str:
        y = b.op("slice", y, name=f"{name}/part", axis=-1, start=start, stop=stop)
        return b.op("reshape", y, name=name, shape=(n, length, *shape)) if shape else y

    kv = norm(b, part(both, "latent", 0, latent), p["norm"], "kv_norm")
    kv = linear(b, kv, heads * (plain + values), "kv", False)
    kv = b.op("reshape", kv, name="kv/heads", shape=(n, length, heads, plain + values))
    v = part(kv, "values", plain, plain + values, heads * values)
    keys = b.op("slice", kv, name="keys/plain", axis=-1, start=0, stop=plain)
    shared = part(both, "turned", latent, latent + turned)
    shared = b.op("rotary", shared, angles, name="rotary_k", head_width=turned)
    shared = b.op("reshape", shared, name="turned/one", shape=(n, length, 1, turned))
    shared = b.op("tile", shared, name="turned/all", times=(1, 1, heads, 1))
    keys = b.op("concat", shared, keys, name="keys/both", axis=3)
    return b.op("reshape", keys, name="keys", shape=(n, length, heads * p["head_width"])), v


ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # by an op and its attributes
    "gelu_tanh": ("gelu", {"tanh": True}),
    "quick_gelu": ("silu", {"beta": 1.702}),
}


def activated(b: Builder, x: str, activation: str) -> str:
    """Return an activation of `x`; `relu2` is the square of a ReLU (So et al. 2021)."""
    if activation == "relu2":
        x = b.op("relu", x, name="relu")
        return b.op("mul", x, x, name="square")
    if activation == "xielu":
        return _xielu(b, x)
    kind, how = ACTIVATIONS.get(activation, (activation, {}))
    return b.op(kind, x, name=kind, **how)


def _xielu(b: Builder, x: str) -> str:
    """Return xIELU of `x`: two learned numbers bend it (Huang, Schlag 2024, arXiv 2411.13010)."""
    rise = b.op("pointwise", b.weight("rise/w", (1,)), name="rise", function="softplus")
    fall = b.op("pointwise", b.weight("fall/w", (1,)), name="fall", function="softplus")
    fall = b.op("pointwise", fall, name="fall_from_half", function="add", scalar=0.5)
    above = b.op("mul", b.op("pointwise", x, rise, name="risen", function="mul"), x, name="above")
    low = b.op("pointwise", x, name="low", function="minimum", scalar=-1e-6)
    below = b.op("pointwise", low, name="expm1", function="expm1")
    below = b.op("pointwise", below, x, name="less", function="sub")
    below = b.op("pointwise", below, fall, name="below", function="mul")
    over = b.op("pointwise", x, name="over", function="gt", scalar=0.0)
    bent = b.op("pointwise", over, above, below, name="bent", function="where")
    straight = b.op("pointwise", x, name="straight", function="mul", scalar=0.5)
    return b.op("add", bent, straight, name="xielu")


def feed_forward(b: Builder, x: str, width: int, activation: str, bias: bool, name: str) -> str:
    """Return two linear layers with an activation between; a gated one has a third, the gate."""
    out = b.shape(x)[-1]
    width = b.share(width, "columns of the feed-forward part")
    with b.scope(name):
        x = b.whole(x, "gather")
        up = linear(b, x, width, "up", bias)
        if activation in GATED:
            gate = activated(b, linear(b, x, width, "gate", bias), GATED[activation])
            up = b.op("mul", gate, up, name="mul")
        else:
            up = activated(b, up, activation)
        return b.summed(linear(b, up, out, "down", bias), "sum")


def mixture(b: Builder, x: str, p: Parameters, name: str) -> str:
    """Return what the experts chosen for each token make of it, and a shared one for all."""
    width, ranks, chosen = p["width"], b.plan.expert, p["experts_per_token"]
    count = p["experts"] // ranks
    if p["experts"] % ranks:
        raise ShapeError(f"{p['experts']} experts do not divide into expert {ranks}")
    apart = b.plan.routes_per_rank
    inner = p["expert_ffn"] if apart else b.share(p["expert_ffn"], "columns of an expert")
    rows = inner * (2 if p["activation"] in GATED else 1)
    with b.scope(name):
        whole = x if apart else b.whole(x, "gather")
        every = p["experts"] + p["zero_experts"]
        logits = linear(b, whole, every, "router", p["router_bias"])
        if every > count:
            logits = b.op("slice", logits, name="own", axis=-1, start=0, stop=count)
        if ranks > 1:  # an own row for each of a token's experts, which go where these are
            logits = b.op("concat", *[logits] * chosen, name="chosen", axis=1)
            whole, chosen = b.routed(whole, "dispatch", copies=chosen), 1
        up, down = (count, rows, width), (count, width, inner)
        weights = [b.weight("up/w", up), b.weight("down/w", down)]
        if p["expert_bias"]:
            weights += [b.weight("up/b", (count, rows)), b.weight("down/b", (count, width))]
        how = {"per_token": chosen, "activation": p["activation"]}
        y = b.op("experts", whole, logits, *weights, name="experts", **how)
        if ranks > 1:
            y = b.routed(y, "combine", merged=p["experts_per_token"])
        y = y if apart else b.summed(y, "sum")
        if not p["shared_ffn"]:
            return y
        shared = feed_forward(b, x, p["shared_ffn"], p["activation"], p["ffn_bias"], "shared")
        if p["shared_gate"]:
            gate = b.op("sigmoid", linear(b, x, 1, "shared_gate", bias=False), name="sigmoid")
            shared = b.op("pointwise", shared, gate, name="gated", function="mul")
        return b.op("add", y, shared, name="add_shared")


Part = Callable[[str], str]


NORMS: Mapping[str, tuple[str, ...]] = {  # where a part of a block is normed
    "before": ("before",),
    "after": ("after",),
    "both": ("before", "output"),
    "output": ("output",),
    "parallel": (),
    "parallel_two": (),
}


def block(b: Builder, x: str, p: Parameters, parts: Sequence[Part]) -> str:
    """Return `x` with its parts, attention and feed-forward, added one after the other.

    The norm stands before each part, on its output, or after the sum; `parallel` parts have one
    input, and one norm or two.
    """
    if p["norms"].startswith("parallel"):
        inputs = [norm(b, x, p["norm"], "norm1")] * len(parts)
        if p["norms"] == "parallel_two":
            inputs[1:] = [norm(b, x, p["norm"], f"norm{i + 1}") for i in range(1, len(parts))]
        made = [part(y) for part, y in zip(parts, inputs, strict=True)]
        for i, branch in enumerate(made, 1):
            x = residual(b, x, branch, p["dropout"], f"add{i}")
        return x
    places = NORMS[p["norms"]]
    for i, part in enumerate(parts, 1):
        y = part(norm(b, x, p["norm"], f"norm{i}") if "before" in places else x)
        if "output" in places:
            y = norm(b, y, p["norm"], f"output_norm{i}")
        x = residual(b, x, y, p["dropout"], f"add{i}")
        if "after" in places:
            x = norm(b, x, p["norm"], f"norm{i}")
    return x


def residual(b: Builder, x: str, branch: str, p: float, name: str) -> str:
    """Return `x + dropout(branch)`."""
    branch = dropout(b, branch, p, f"{name}_dropout")
    return b.op("add", branch, x, name=name)

"""Blocks of the residual networks (He et al. 2015) and of the transformers."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from steptime.network.layers.alternating import keep_largest
from steptime.network.layers.dense import dropout, linear
from steptime.network.layers.designs import design_of
from steptime.network.layers.image import batch_norm, conv2d
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Builder
from steptime.network.ops.experts import GATED
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
        for number, (channels, kernel, stride) in enumerate(layers, start=1):
            is_last = number == len(layers)
            name = f"conv{number}"
            y = conv_norm(b, y, channels, kernel, name, stride=stride, relu=not is_last)
        # the shortcut is brought to the shape of the sum
        if project:
            total_stride = math.prod(stride for _, _, stride in layers)
            x = conv_norm(
                b, x, channels, kernel=1, name="shortcut", stride=total_stride, relu=False
            )
        return b.op("relu", b.op("add", y, x, name="add"), name="relu")


Parameters = Mapping[str, Any]  # of the family `transformer`, where each is documented


ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # by an op and its attributes
    "gelu_tanh": ("gelu", {"tanh": True}),
    "quick_gelu": ("silu", {"beta": 1.702}),
}


def append_activation(b: Builder, x: str, activation: str) -> str:
    """Return an activation of `x`; `relu2` is the square of a ReLU (So et al. 2021)."""
    if activation == "relu2":
        x = b.op("relu", x, name="relu")
        return b.op("mul", x, x, name="square")
    if activation == "xielu":
        return _xielu(b, x)
    kind, attributes = ACTIVATIONS.get(activation, (activation, {}))
    return b.op(kind, x, name=kind, **attributes)


def _xielu(b: Builder, x: str) -> str:
    """Return xIELU of `x`: two learned numbers bend it (Huang, Schlag 2024, arXiv 2411.13010).

    It is rise x^2 + x / 2 where x > 0, else fall (exp(min(x, -1e-6)) - 1 - x) + x / 2.
    """

    def append(name: str, function: str, *inputs: str, **attributes: float) -> str:
        return b.op("pointwise", *inputs, name=name, function=function, **attributes)

    rise = append("rise", "softplus", b.weight("rise/w", (1,)))
    fall = append("fall", "softplus", b.weight("fall/w", (1,)))
    fall = append("fall_from_half", "add", fall, scalar=0.5)
    above = b.op("mul", append("risen", "mul", x, rise), x, name="above")
    negative_x = append("low", "minimum", x, scalar=-1e-6)
    below = append("expm1", "expm1", negative_x)
    below = append("less", "sub", below, x)
    below = append("below", "mul", below, fall)
    is_positive = append("over", "gt", x, scalar=0.0)
    bent = append("bent", "where", is_positive, above, below)
    straight = append("straight", "mul", x, scalar=0.5)
    return b.op("add", bent, straight, name="xielu")


def feed_forward(
    b: Builder,
    x: str,
    width: int,
    activation: str,
    bias: bool,
    name: str,
    keeps_largest: bool = False,
) -> str:
    """Return two linear layers with an activation between; a gated one has a third, the gate.

    A gate that `keeps_largest` is zero for all but a few columns of a token.
    """
    out = b.shape(x)[-1]
    width = b.rank_share(width, "columns of the feed-forward part")
    with b.scope(name):
        x = b.gather_sequence(x, "gather")
        up = linear(b, x, width, "up", bias)
        if activation in GATED:
            gate = linear(b, x, width, "gate", bias)
            gate = keep_largest(b, gate) if keeps_largest else gate
            gate = append_activation(b, gate, GATED[activation])
            up = b.op("mul", gate, up, name="mul")
        else:
            up = append_activation(b, up, activation)
        return b.sum_over_ranks(linear(b, up, out, "down", bias), "sum")


def mixture(b: Builder, x: str, p: Parameters, name: str) -> str:
    """Return the sum of the experts that each token chooses, and of one that all tokens take."""
    design = design_of(p)
    with b.scope(name):
        y = _routed_experts(b, x, p)
        if design.expert_norm:
            y = norm(b, y, "rms", "latent_norm")
        if design.expert_width:
            y = linear(b, y, p["width"], "latent_up", p["ffn_bias"])
        if not p["shared_ffn"]:
            return y
        return b.op("add", y, _shared_expert(b, x, p), name="add_shared")


def _shared_expert(b: Builder, x: str, p: Parameters) -> str:
    """Return the expert that all tokens take, with a gate of each token if there is one."""
    y = feed_forward(b, x, p["shared_ffn"], p["activation"], p["ffn_bias"], "shared")
    if not p["shared_gate"]:
        return y
    gate = linear(b, x, width=1, name="shared_gate", bias=False)
    gate = b.op("sigmoid", gate, name="sigmoid")
    return b.op("pointwise", y, gate, name="gated", function="mul")


def _routed_experts(b: Builder, x: str, p: Parameters, router_input: str = "") -> str:
    """Return the sum of the chosen experts, in the width that experts read.

    The router reads `router_input`, or `x` where that is "".
    """
    ranks = b.plan.expert
    if p["experts"] % ranks:
        raise ShapeError(f"{p['experts']} experts do not divide into expert {ranks}")
    rank_experts = p["experts"] // ranks
    # With routing by rank each tensor rank has whole experts and tokens of its own.
    has_full_experts = b.plan.routes_per_rank
    tokens = x if has_full_experts else b.gather_sequence(x, "gather")
    logits = _router_logits(b, router_input or tokens, p, rank_experts)
    expert_width = design_of(p).expert_width
    if expert_width and expert_width != p["width"]:
        tokens = linear(b, tokens, expert_width, "latent_down", p["ffn_bias"])
    per_token = p["experts_per_token"]
    is_routed = ranks > 1
    if is_routed:
        # each token becomes a row for each of its experts, and the rows go to the ranks of these
        logits = b.op("concat", *[logits] * per_token, name="chosen", axis=1)
        tokens = b.route_rows(tokens, "dispatch", copies=per_token)
    weights = _expert_weights(b, p, rank_experts)
    experts_per_row = 1 if is_routed else per_token
    attributes = {"per_token": experts_per_row, "activation": p["activation"]}
    y = b.op("experts", tokens, logits, *weights, name="experts", **attributes)
    if is_routed:
        y = b.route_rows(y, "combine", merged=per_token)
    return y if has_full_experts else b.sum_over_ranks(y, "sum")


def _router_logits(b: Builder, router_input: str, p: Parameters, rank_experts: int) -> str:
    """Return the router's logits of each token for the experts of a rank."""
    # Zero experts, which a token may choose as well, pass it on and cost nothing.
    choices = p["experts"] + p["zero_experts"]
    logits = linear(b, router_input, choices, "router", p["router_bias"])
    if choices == rank_experts:
        return logits
    return b.op("slice", logits, name="own", axis=-1, start=0, stop=rank_experts)


def _expert_weights(b: Builder, p: Parameters, rank_experts: int) -> list[str]:
    """Return the weights and biases of a rank's experts, each of two products."""
    width = design_of(p).expert_width or p["width"]
    inner_width = p["expert_ffn"]
    if not b.plan.routes_per_rank:  # else each tensor rank has whole experts
        inner_width = b.rank_share(inner_width, "columns of an expert")
    # a gated activation has a gate for each column
    up_width = 2 * inner_width if p["activation"] in GATED else inner_width
    weights = [
        b.weight("up/w", (rank_experts, up_width, width)),
        b.weight("down/w", (rank_experts, width, inner_width)),
    ]
    if p["expert_bias"]:
        weights.append(b.weight("up/b", (rank_experts, up_width)))
        weights.append(b.weight("down/b", (rank_experts, width)))
    return weights


def add_dense_and_experts(b: Builder, x: str, p: Parameters) -> str:
    """Return `x` after a dense part and experts that both read it, each normed (Gemma 4)."""
    kind = p["norm"]
    dense = norm(b, x, kind, "norm2")
    dense = feed_forward(b, dense, p["ffn"], p["activation"], p["ffn_bias"], "ffn")
    dense = norm(b, dense, kind, "dense_norm")
    router_input = _scaled_router_input(b, x, p)
    routed = norm(b, x, kind, "experts_norm")
    with b.scope("experts"):
        routed = _routed_experts(b, routed, p, router_input)
    routed = norm(b, routed, kind, "experts_output_norm")
    y = norm(b, b.op("add", dense, routed, name="both"), kind, "output_norm2")
    return residual(b, x, y, p["dropout"], "add2")


def _scaled_router_input(b: Builder, x: str, p: Parameters) -> str:
    """Return `x` as the router reads it: normed without weights, each column times a scale."""
    with b.scope("choice"):
        scale = b.weight("scale/w", (p["width"],))
        normed = norm(b, x, "plain_rms", "norm")
        router_input = b.op("pointwise", normed, scale, name="x", function="mul")
        # a weight without an op: multiplying an expert's output by it costs too little to count
        b.weight("expert_scale/w", (p["experts"],))
    return router_input


Part = Callable[[str], str]


NORMS: Mapping[str, tuple[str, ...]] = {  # where a part of a block is normed
    "before": ("before",),
    "before_second": ("before_second",),
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
        return _parallel_block(b, x, p, parts)
    norm_positions = NORMS[p["norms"]]  # around a part: before it, on its output, after the sum
    for number, part in enumerate(parts, start=1):
        has_norm_before = "before" in norm_positions
        if number > 1:
            has_norm_before |= "before_second" in norm_positions
        y = part(norm(b, x, p["norm"], f"norm{number}") if has_norm_before else x)
        if "output" in norm_positions:
            y = norm(b, y, p["norm"], f"output_norm{number}")
        if p.get("layer_scale"):
            scale = b.weight(f"scale{number}/w", (b.shape(y)[-1],))
            y = b.op("pointwise", y, scale, name=f"scale{number}", function="mul")
        x = residual(b, x, y, p["dropout"], f"add{number}")
        if "after" in norm_positions:
            x = norm(b, x, p["norm"], f"norm{number}")
    return x


def _parallel_block(b: Builder, x: str, p: Parameters, parts: Sequence[Part]) -> str:
    """Return `x` with parts added that all read it, behind one norm or a norm for each part."""
    inputs = [norm(b, x, p["norm"], "norm1")] * len(parts)
    if p["norms"] == "parallel_two":
        inputs[1:] = [norm(b, x, p["norm"], f"norm{i + 1}") for i in range(1, len(parts))]
    branches = [part(part_input) for part, part_input in zip(parts, inputs, strict=True)]
    for number, branch in enumerate(branches, start=1):
        x = residual(b, x, branch, p["dropout"], f"add{number}")
    return x


def residual(b: Builder, x: str, branch: str, p: float, name: str) -> str:
    """Return `x + dropout(branch)`."""
    branch = dropout(b, branch, p, f"{name}_dropout")
    return b.op("add", branch, x, name=name)

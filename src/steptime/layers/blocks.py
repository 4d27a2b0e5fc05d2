"""Blocks of the residual networks (He et al. 2015) and of the transformers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from steptime.layers.dense import dropout, linear
from steptime.layers.image import batch_norm, conv2d
from steptime.ops.builder import Builder


def conv_norm(
    b: Builder,
    x: str,
    channels: int,
    kernel: int,
    name: str,
    *,
    stride: int = 1,
    relu: bool = True,
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


@dataclass(frozen=True)
class AttentionShape:
    """Heads of an attention layer, and what it does with them."""

    heads: int
    kv_heads: int
    causal: bool
    bias: bool


def norm(b: Builder, x: str, kind: str, name: str) -> str:
    """Return layer norm (`layer`) or root-mean-square norm (`rms`) over the last axis."""
    width = (b.shape(x)[-1],)
    with b.scope(name):
        w = b.weight("w", width)
        if kind == "rms":
            return b.op("rms_norm", x, w, name="rms_norm")
        return b.op("layer_norm", x, w, b.weight("b", width), name="layer_norm")


def attention(b: Builder, x: str, shape: AttentionShape, name: str, angles: str = "") -> str:
    """Return self-attention of `x [n, l, width]`: four linear layers around the attention op.

    `angles`, the table of rotary positions, turns queries and keys where it is given.
    """
    width = b.shape(x)[-1]
    head = width // shape.heads
    heads = b.share(shape.heads, "heads")
    kv_heads = b.share(shape.kv_heads, "heads of keys and values", least=1)
    with b.scope(name):
        x = b.whole(x, "gather")
        q = linear(b, x, head * heads, "q", shape.bias)
        k = linear(b, x, head * kv_heads, "k", shape.bias)
        v = linear(b, x, head * kv_heads, "v", shape.bias)
        if angles:
            q = b.op("rotary", q, angles, name="rotary_q", head_width=head)
            k = b.op("rotary", k, angles, name="rotary_k", head_width=head)
        k, v = b.all_parts(k, "gather_k"), b.all_parts(v, "gather_v")
        y = b.op(
            "attention",
            q,
            k,
            v,
            name="attention",
            heads=heads,
            kv_heads=kv_heads,
            causal=shape.causal,
        )
        return b.summed(linear(b, y, width, "out", shape.bias), "sum")


def feed_forward(b: Builder, x: str, width: int, activation: str, bias: bool, name: str) -> str:
    """Return two linear layers with an activation between; `swiglu` has a third, the gate."""
    out = b.shape(x)[-1]
    width = b.share(width, "columns of the feed-forward part")
    with b.scope(name):
        x = b.whole(x, "gather")
        up = linear(b, x, width, "up", bias)
        if activation == "swiglu":
            gate = linear(b, x, width, "gate", bias)
            up = b.op("mul", b.op("silu", gate, name="silu"), up, name="mul")
        else:
            up = b.op(activation, up, name=activation)
        return b.summed(linear(b, up, out, "down", bias), "sum")


def residual(b: Builder, x: str, branch: str, p: float, name: str) -> str:
    """Return `x + dropout(branch)`."""
    branch = dropout(b, branch, p, f"{name}_dropout")
    return b.op("add", branch, x, name=name)

"""Blocks of the residual networks (He et al. 2015) and of the transformers."""

from __future__ import annotations

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


def residual_block(b: Builder, x: str, width: int, stride: int, name: str, project: bool) -> str:
    """Return two 3x3 convolutions beside a shortcut, `-> [n, width, h/stride, w/stride]`."""
    with b.scope(name):
        y = conv_norm(b, x, width, 3, "conv1", stride=stride)
        y = conv_norm(b, y, width, 3, "conv2", relu=False)
        if project:
            x = conv_norm(b, x, width, 1, "shortcut", stride=stride, relu=False)
        return b.op("relu", b.op("add", y, x, name="add"), name="relu")


def bottleneck_block(
    b: Builder,
    x: str,
    width: int,
    stride: int,
    name: str,
    project: bool,
    stride_first: bool = False,
) -> str:
    """Return 1x1, 3x3, 1x1 convolutions beside a shortcut, `-> [n, 4*width, h/stride, w/stride]`.

    The stride is on the 3x3 (v1.5), or on the first 1x1 (v1) where `stride_first`.
    """
    first, second = (stride, 1) if stride_first else (1, stride)
    with b.scope(name):
        y = conv_norm(b, x, width, 1, "conv1", stride=first)
        y = conv_norm(b, y, width, 3, "conv2", stride=second)
        y = conv_norm(b, y, 4 * width, 1, "conv3", relu=False)
        if project:
            x = conv_norm(b, x, 4 * width, 1, "shortcut", stride=stride, relu=False)
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
    with b.scope(name):
        q = linear(b, x, width, "q", shape.bias)
        k = linear(b, x, head * shape.kv_heads, "k", shape.bias)
        v = linear(b, x, head * shape.kv_heads, "v", shape.bias)
        if angles:
            q = b.op("rotary", q, angles, name="rotary_q", head_width=head)
            k = b.op("rotary", k, angles, name="rotary_k", head_width=head)
        y = b.op(
            "attention",
            q,
            k,
            v,
            name="attention",
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            causal=shape.causal,
        )
        return linear(b, y, width, "out", shape.bias)


def feed_forward(b: Builder, x: str, width: int, activation: str, bias: bool, name: str) -> str:
    """Return two linear layers with an activation between; `swiglu` has a third, the gate."""
    out = b.shape(x)[-1]
    with b.scope(name):
        up = linear(b, x, width, "up", bias)
        if activation == "swiglu":
            gate = linear(b, x, width, "gate", bias)
            up = b.op("mul", b.op("silu", gate, name="silu"), up, name="mul")
        else:
            up = b.op(activation, up, name=activation)
        return linear(b, up, out, "down", bias)


def residual(b: Builder, x: str, branch: str, p: float, name: str) -> str:
    """Return `x + dropout(branch)`."""
    branch = dropout(b, branch, p, f"{name}_dropout")
    return b.op("add", branch, x, name=name)

"""Layers over images `[batch, channels, height, width]`."""

from __future__ import annotations

from steptime.ops.builder import Builder


def conv2d(
    b: Builder,
    x: str,
    channels: int,
    kernel: int,
    name: str,
    *,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    bias: bool = False,
) -> str:
    """Give a square convolution, `[n, c, h, w] -> [n, channels, oh, ow]`, with a bias if asked."""
    with b.scope(name):
        w = b.weight("w", (channels, b.shape(x)[1] // groups, kernel, kernel))
        y = b.op(
            "conv2d",
            x,
            w,
            name="conv2d",
            stride=(stride, stride),
            padding=(padding,) * 4,
            groups=groups,
        )
        if not bias:
            return y
        return b.op("bias", y, b.weight("b", (channels,)), name="bias", axis=1)


def batch_norm(b: Builder, x: str, name: str) -> str:
    """Give `x` normalised by its batch in training, by the running statistics in inference."""
    width = (b.shape(x)[1],)
    with b.scope(name):
        inputs = (
            b.weight("w", width, cast=False),
            b.weight("b", width, cast=False),
            b.buffer("running_mean", width),
            b.buffer("running_variance", width),
        )
        return b.op("batch_norm", x, *inputs, name="batch_norm", training=b.training)


def max_pool(b: Builder, x: str, kernel: int, stride: int, name: str, padding: int = 0) -> str:
    """Give the maxima of square windows."""
    return b.op(
        "max_pool2d",
        x,
        name=name,
        kernel=(kernel, kernel),
        stride=(stride, stride),
        padding=(padding,) * 4,
    )

"""Layers over images `[batch, channels, height, width]`."""

from functools import partial
from typing import Literal

from steptime.core.graph import Attr
from steptime.core.windows import tensorflow_padding
from steptime.network.ops.builder import Builder

Kernel = int | tuple[int, int]
Padding = int | Literal["same"]


def _padding_sides(
    b: Builder, x: str, kernel: tuple[int, int], stride: int, padding: Padding
) -> Attr:
    """Return (top, bottom, left, right) of `padding` around `x [n, c, h, w]`."""
    if padding != "same":
        return (padding,) * 4
    _batch, _channels, height, width = b.shape(x)
    kernel_height, kernel_width = kernel
    top_and_bottom = tensorflow_padding(height, kernel_height, stride)
    left_and_right = tensorflow_padding(width, kernel_width, stride)
    return (*top_and_bottom, *left_and_right)


def _pair(kernel: Kernel) -> tuple[int, int]:
    return (kernel, kernel) if isinstance(kernel, int) else kernel


def conv2d(
    b: Builder,
    x: str,
    channels: int,
    kernel: Kernel,
    name: str,
    *,
    stride: int = 1,
    padding: Padding = 0,
    groups: int = 1,
    bias: bool = False,
) -> str:
    """Return a convolution, `[n, c, h, w] -> [n, channels, oh, ow]`, with a bias if asked.

    `kernel` is (height, width) or one number for both; `padding` is of every side, or `same`,
    TensorFlow's rule, which keeps `ceil(h / stride)` and adds the odd one at the end.
    """
    window = _pair(kernel)
    with b.scope(name):
        w = b.weight("w", (channels, b.shape(x)[1] // groups, *window))
        y = b.op(
            "conv2d",
            x,
            w,
            name="conv2d",
            stride=(stride, stride),
            groups=groups,
            padding=_padding_sides(b, x, window, stride, padding),
        )
        return b.op("bias", y, b.weight("b", (channels,)), name="bias", axis=1) if bias else y


def batch_norm(b: Builder, x: str, name: str, op: str = "") -> str:
    """Return `x` normalised by its batch in training, by the running statistics in inference.

    Its weights lie under `name`, the op is `op`, or `batch_norm` there.
    """
    width = (b.shape(x)[1],)
    weights = [b.weight(f"{name}/{suffix}", width) for suffix in ("w", "b")]
    statistics = [b.buffer(f"{name}/running_{suffix}", width) for suffix in ("mean", "variance")]
    op = op or f"{name}/batch_norm"
    return b.op("batch_norm", x, *weights, *statistics, name=op, training=b.training)


def _pool(
    kind: str,
    b: Builder,
    x: str,
    kernel: int,
    stride: int,
    name: str,
    padding: Padding = 0,
    **attrs: Attr,
) -> str:
    """Return the maxima or means of square windows; a mean counts padding as zeros.

    `ceil=True` rounds the size up, as Caffe does.
    """
    window = (kernel, kernel)
    sides = _padding_sides(b, x, window, stride, padding)
    return b.op(kind, x, name=name, kernel=window, **attrs, stride=(stride, stride), padding=sides)


max_pool = partial(_pool, "max_pool2d")
avg_pool = partial(_pool, "avg_pool2d")

"""Small convolutional networks: SqueezeNet and MobileNet."""

from collections.abc import Mapping
from typing import Any

from steptime.layers.dense import classify, dropout, linear
from steptime.layers.image import batch_norm, conv2d, conv_relu, max_pool
from steptime.models.family import Parameter, named
from steptime.ops.builder import Builder

_IMAGE = Parameter(224, "height and width of the input")
_SQUEEZED = {2: 16, 3: 16, 4: 32, 5: 32, 6: 48, 7: 48, 8: 64, 9: 64}  # of fire2 .. fire9


@named("Iandola et al. 2016, version 1.0: 1,248,424 parameters, 0.82 GMAC an image", image=_IMAGE)
def squeezenet1_0(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return SqueezeNet as published first."""
    return _squeezenet(b, p["image"], batch, 96, 7, (4, 8))


@named("Iandola et al. 2016, version 1.1: 1,235,496 parameters, 0.35 GMAC an image", image=_IMAGE)
def squeezenet1_1(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return SqueezeNet with a smaller first convolution and earlier poolings."""
    return _squeezenet(b, p["image"], batch, 64, 3, (3, 5))


def _squeezenet(
    b: Builder, image: int, batch: int, channels: int, kernel: int, pooled: tuple[int, ...]
) -> str:
    """Return SqueezeNet (Iandola et al. 2016): a convolution, eight fire modules, a convolution.

    There is a pooling, its size rounded up as in Caffe, behind conv1 and the fire modules whose
    numbers are in `pooled`.
    """
    x = b.input("image", (batch, 3, image, image))
    x = conv_relu(b, x, channels, kernel, "conv1", stride=2)
    x = max_pool(b, x, 3, 2, "pool1", ceil=True)
    for i, squeezed in _SQUEEZED.items():
        x = _fire(b, x, squeezed, f"fire{i}")
        if i in pooled:
            x = max_pool(b, x, 3, 2, f"pool{i}", ceil=True)
    x = conv_relu(b, dropout(b, x, 0.5, "drop9"), 1000, 1, "conv10")
    return classify(b, b.op("global_avg_pool", x, name="pool10"))


def _fire(b: Builder, x: str, squeezed: int, name: str) -> str:
    """Return 1x1 filters, then four times as many of 1x1 and of 3x3 side by side."""
    with b.scope(name):
        x = conv_relu(b, x, squeezed, 1, "squeeze1x1")
        narrow = conv_relu(b, x, 4 * squeezed, 1, "expand1x1")
        wide = conv_relu(b, x, 4 * squeezed, 3, "expand3x3", padding=1)
        return b.op("concat", narrow, wide, name="concat", axis=1)


@named("Howard et al. 2017, width 1: 4,231,976 parameters, 0.569 GMAC an image", image=_IMAGE)
def mobilenet_v1(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return MobileNet (Howard et al. 2017) of width 1, with the names of TensorFlow-Slim.

    ReLU6 is counted and run as ReLU, which costs the same: one pass over the tensor.
    """
    stages = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5)
    x = b.input("image", (batch, 3, p["image"], p["image"]))
    x = conv_relu(b, x, 32, 3, "Conv2d_0", norm=True, stride=2, padding="same")
    for i, (channels, stride) in enumerate((*stages, (1024, 2), (1024, 1))):
        x = _depthwise(b, x, f"Conv2d_{i + 1}_depthwise", stride=stride, padding="same")
        x = conv_relu(b, x, channels, 1, f"Conv2d_{i + 1}_pointwise", norm=True)
    with b.scope("Logits"):
        x = b.op("global_avg_pool", x, name="AvgPool_1a")
        x = linear(b, dropout(b, x, 0.001, "Dropout_1b"), 1000, "Conv2d_1c_1x1")
    return classify(b, x)


def _depthwise(b: Builder, x: str, name: str, **sizes: Any) -> str:
    channels = b.shape(x)[1]
    return conv_relu(b, x, channels, 3, name, norm=True, groups=channels, **sizes)


@named("Sandler et al. 2018, width 1: 3,504,872 parameters, 0.30 GMAC an image", image=_IMAGE)
def mobilenet_v2(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return MobileNetV2 (Sandler et al. 2018, table 2) of width 1.

    ReLU6 is counted and run as ReLU, which costs the same: one pass over the tensor.
    """
    stages = (  # expansion, channels, blocks, stride of the first
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    x = b.input("image", (batch, 3, p["image"], p["image"]))
    x = conv_relu(b, x, 32, 3, "Conv", norm=True, stride=2, padding=1)
    blocks = 0
    for expansion, channels, repeats, first in stages:
        for i in range(repeats):
            name = f"expanded_conv_{blocks}" if blocks else "expanded_conv"
            x = _inverted(b, x, expansion, channels, first if i == 0 else 1, name)
            blocks += 1
    x = conv_relu(b, x, 1280, 1, "Conv_1", norm=True)
    with b.scope("Logits"):
        x = b.op("global_avg_pool", x, name="AvgPool")
        x = linear(b, dropout(b, x, 0.2, "Dropout"), 1000, "Conv2d_1c_1x1")
    return classify(b, x)


def _inverted(b: Builder, x: str, expansion: int, channels: int, stride: int, name: str) -> str:
    """Return a wide depthwise convolution between narrow ends, added to `x` where shapes agree."""
    with b.scope(name):
        y = x
        if expansion > 1:
            y = conv_relu(b, y, expansion * b.shape(x)[1], 1, "expand", norm=True)
        y = _depthwise(b, y, "depthwise", stride=stride, padding=1)
        y = batch_norm(b, conv2d(b, y, channels, 1, "project"), "project/norm")
        return b.op("add", x, y, name="add") if b.shape(x) == b.shape(y) else y

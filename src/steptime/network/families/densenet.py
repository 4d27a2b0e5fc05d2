"""Densely connected networks (Huang, Liu, van der Maaten, Weinberger 2016)."""

from collections.abc import Mapping
from itertools import count
from typing import Any

from steptime.network.families.family import Parameter, preset
from steptime.network.layers.dense import classify, dropout, linear
from steptime.network.layers.image import avg_pool, batch_norm, conv2d, max_pool
from steptime.network.ops.builder import Builder


def _norm_relu(b: Builder, x: str, norm: str, relu: str) -> str:
    """Return the ReLU of a batch norm of `x`, under the names of the two ops."""
    return b.op("relu", batch_norm(b, x, norm), name=relu)


@preset(
    "Huang et al. 2016, as torchvision has it: 7,978,856 parameters, 2.83 GMAC an image",
    image=Parameter(224, "height and width of the input"),
)
def densenet121(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return DenseNet-121: growth 32, bottlenecks of 128, transitions that halve the channels."""
    x = b.input("image", (batch, 3, p["image"], p["image"]))
    x = conv2d(b, x, channels=64, kernel=7, name="conv0", stride=2, padding=3)
    x = _norm_relu(b, x, "norm0", "relu0")
    x = max_pool(b, x, kernel=3, stride=2, name="pool0", padding=1)
    for block, layer_count in enumerate((6, 12, 24, 16)):
        if block > 0:
            with b.scope(f"transition{block}"):
                x = _halve_channels(b, x)
        for i in range(layer_count):
            with b.scope(f"denseblock{block + 1}/denselayer{i + 1}"):
                x = _append_dense_layer(b, x, growth=32)
    x = _norm_relu(b, x, "norm5", "relu5")
    x = b.op("global_avg_pool", x, name="pool5")
    return classify(b, linear(b, x, width=1000, name="classifier"))


def _halve_channels(b: Builder, x: str) -> str:
    """Return a transition of `x [n, c, h, w]`: half as many channels, and half the height."""
    x = _norm_relu(b, x, "norm", "relu")
    _, channels, _, _ = b.shape(x)
    x = conv2d(b, x, channels // 2, kernel=1, name="conv")
    return avg_pool(b, x, kernel=2, stride=2, name="pool")


def _append_dense_layer(b: Builder, x: str, growth: int) -> str:
    """Return `x` with the `growth` channels behind it that a layer makes of all its channels."""
    y = _norm_relu(b, x, "norm1", "relu1")
    y = conv2d(b, y, channels=4 * growth, kernel=1, name="conv1")
    y = _norm_relu(b, y, "norm2", "relu2")
    y = conv2d(b, y, channels=growth, kernel=3, name="conv2", padding=1)
    return b.op("concat", x, y, name="concat", axis=1)


@preset("Huang et al. 2016, L=40, k=12, for CIFAR-10: 1,019,722 parameters")
def densenet_cifar(b: Builder, _: Mapping[str, Any], batch: int) -> str:
    """Return the DenseNet of 40 layers for CIFAR-10, with the names of the Caffe file.

    That numbers norms and convolutions through: the layers of a block, then its transition.
    """
    block_count = 3
    layers_per_block = 12
    growth = 12  # channels that each layer adds
    numbers = count(1)
    x = b.input("image", (batch, 3, 32, 32))
    x = conv2d(b, x, channels=16, kernel=3, name="Convolution1", padding=1)
    for block in range(block_count):
        if block > 0:
            x = _dropped_convolution(b, x, next(numbers), channels=b.shape(x)[1], kernel=1)
            x = avg_pool(b, x, kernel=2, stride=2, name=f"Pooling{block}")
        for i in range(layers_per_block):
            y = _dropped_convolution(b, x, next(numbers), channels=growth, kernel=3)
            x = b.op("concat", x, y, name=f"Concat{block * layers_per_block + i + 1}", axis=1)
    last_number = next(numbers)
    x = _norm_relu(b, x, f"BatchNorm{last_number}", f"ReLU{last_number}")
    x = b.op("global_avg_pool", x, name=f"Pooling{block_count}")
    return classify(b, linear(b, x, width=10, name="InnerProduct1"))


def _dropped_convolution(b: Builder, x: str, n: int, channels: int, kernel: int) -> str:
    """Return norm number `n`, a ReLU, a convolution and its dropout."""
    x = _norm_relu(b, x, f"BatchNorm{n}", f"ReLU{n}")
    # Convolution1 is the stem, so that convolution n + 1 follows norm n; p = 0.2 is the paper's.
    x = conv2d(b, x, channels, kernel, f"Convolution{n + 1}", padding=kernel // 2)
    return dropout(b, x, p=0.2, name=f"Dropout{n}")

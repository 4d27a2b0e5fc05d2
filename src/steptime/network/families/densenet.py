"""Densely connected networks (Huang, Liu, van der Maaten, Weinberger 2016)."""

from collections.abc import Mapping
from typing import Any

from steptime.network.families.family import Parameter, preset
from steptime.network.layers.dense import classify, dropout, linear
from steptime.network.layers.image import avg_pool, batch_norm, conv2d, max_pool
from steptime.network.ops.builder import Builder


def _norm_relu(b: Builder, x: str, norm: str, relu: str) -> str:
    return b.op("relu", batch_norm(b, x, norm), name=relu)


@preset(
    "Huang et al. 2016, as torchvision has it: 7,978,856 parameters, 2.83 GMAC an image",
    image=Parameter(224, "height and width of the input"),
)
def densenet121(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return DenseNet-121: growth 32, bottlenecks of 128, transitions that halve the channels."""
    growth = 32
    x = b.input("image", (batch, 3, p["image"], p["image"]))
    x = _norm_relu(b, conv2d(b, x, 64, 7, "conv0", stride=2, padding=3), "norm0", "relu0")
    x = max_pool(b, x, 3, 2, "pool0", padding=1)
    for block, layers in enumerate((6, 12, 24, 16)):
        if block > 0:
            with b.scope(f"transition{block}"):
                x = _norm_relu(b, x, "norm", "relu")
                x = avg_pool(b, conv2d(b, x, b.shape(x)[1] // 2, 1, "conv"), 2, 2, "pool")
        for i in range(layers):
            with b.scope(f"denseblock{block + 1}/denselayer{i + 1}"):
                y = conv2d(b, _norm_relu(b, x, "norm1", "relu1"), 4 * growth, 1, "conv1")
                y = conv2d(b, _norm_relu(b, y, "norm2", "relu2"), growth, 3, "conv2", padding=1)
                x = b.op("concat", x, y, name="concat", axis=1)
    x = b.op("global_avg_pool", _norm_relu(b, x, "norm5", "relu5"), name="pool5")
    return classify(b, linear(b, x, 1000, "classifier"))


@preset("Huang et al. 2016, L=40, k=12, for CIFAR-10: 1,019,722 parameters")
def densenet_cifar(b: Builder, _: Mapping[str, Any], batch: int) -> str:
    """Return the DenseNet of 40 layers for CIFAR-10, with the names of the Caffe file."""
    blocks, layers, growth = 3, 12, 12
    x = b.input("image", (batch, 3, 32, 32))
    x = conv2d(b, x, 16, 3, "Convolution1", padding=1)
    for block in range(blocks):
        for i in range(layers):
            y = _dropped_convolution(b, x, block * (layers + 1) + i + 1, growth, 3)
            x = b.op("concat", x, y, name=f"Concat{block * layers + i + 1}", axis=1)
        if block < blocks - 1:
            n = (block + 1) * (layers + 1)
            x = _dropped_convolution(b, x, n, b.shape(x)[1], 1)
            x = avg_pool(b, x, 2, 2, f"Pooling{block + 1}")
    n = blocks * (layers + 1)
    x = _norm_relu(b, x, f"BatchNorm{n}", f"ReLU{n}")
    x = b.op("global_avg_pool", x, name=f"Pooling{blocks}")
    return classify(b, linear(b, x, 10, "InnerProduct1"))


def _dropped_convolution(b: Builder, x: str, n: int, channels: int, kernel: int) -> str:
    x = _norm_relu(b, x, f"BatchNorm{n}", f"ReLU{n}")
    x = conv2d(b, x, channels, kernel, f"Convolution{n + 1}", padding=kernel // 2)
    return dropout(b, x, 0.2, f"Dropout{n}")

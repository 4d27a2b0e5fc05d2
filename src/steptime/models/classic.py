"""Named convolutional networks without branches: AlexNet, OverFeat, Network in Network, VGG."""

from collections.abc import Mapping, Sequence
from typing import Any

from steptime.layers.dense import classify, dropout, linear
from steptime.layers.image import Padding, avg_pool, conv2d, conv_relu, max_pool
from steptime.models.family import named
from steptime.ops.builder import Builder


def _dense_relu(b: Builder, x: str, width: int, name: str) -> str:
    return b.op("relu", linear(b, x, width, name), name=f"{name}/relu")


@named("Krizhevsky 2014; torchvision: 61,100,840 parameters")
def alexnet(b: Builder, _: Mapping[str, Any], batch: int) -> str:
    """Return the one-column AlexNet of Krizhevsky 2014, as torchvision has it."""
    x = _five_convolutions(b, (batch, 3, 224, 224), (64, 192, 384, 256, 256), (2, 2, 1, 1, 1), 3)
    x = b.op("flatten", x, name="flatten")
    for i in (6, 7):
        x = _dense_relu(b, dropout(b, x, 0.5, f"dropout{i}"), 4096, f"fc{i}")
    return classify(b, linear(b, x, 1000, "fc8"))


@named("Krizhevsky 2014, as TensorFlow-Slim has it: 50,303,912 parameters")
def alexnet_v2(b: Builder, _: Mapping[str, Any], batch: int) -> str:
    """Return the one-column AlexNet as TensorFlow-Slim has it, its last layers convolutions.

    Unlike `alexnet`, the first convolution is not padded and the fourth has 384 filters.
    """
    paddings: Sequence[Padding] = (0, "same", "same", "same", "same")
    x = _five_convolutions(b, (batch, 3, 224, 224), (64, 192, 384, 384, 256), paddings, 3)
    return _dense_as_convolutions(b, x, 5, (4096, 4096))


@named("Sermanet et al. 2013, the fast one as TensorFlow-Slim has it: 145,704,424 parameters")
def overfeat(b: Builder, _: Mapping[str, Any], batch: int) -> str:
    """Return the fast OverFeat of Sermanet et al. 2013 as TensorFlow-Slim has it."""
    paddings: Sequence[Padding] = (0, 0, "same", "same", "same")
    x = _five_convolutions(b, (batch, 3, 231, 231), (64, 256, 512, 1024, 1024), paddings, 2)
    return _dense_as_convolutions(b, x, 6, (3072, 4096))


def _five_convolutions(
    b: Builder,
    image: tuple[int, ...],
    channels: Sequence[int],
    paddings: Sequence[Padding],
    pooled: int,
) -> str:
    """Return windows of 11 (stride 4), 5 and three times 3; poolings behind the 1st, 2nd, 5th."""
    x = b.input("image", image)
    for i, kernel in enumerate((11, 5, 3, 3, 3)):
        sizes: dict[str, Any] = {"stride": 1 if i else 4, "padding": paddings[i]}
        x = conv_relu(b, x, channels[i], kernel, f"conv{i + 1}", **sizes)
        if i in (0, 1, 4):
            x = max_pool(b, x, pooled, 2, f"pool{i + 1}")
    return x


def _dense_as_convolutions(b: Builder, x: str, map_size: int, widths: tuple[int, int]) -> str:
    """Return fc6 over the whole map, fc7 and the classifier fc8 as convolutions, and the loss."""
    x = conv_relu(b, x, widths[0], map_size, "fc6")
    x = conv_relu(b, dropout(b, x, 0.5, "dropout6"), widths[1], 1, "fc7")
    x = conv2d(b, dropout(b, x, 0.5, "dropout7"), 1000, 1, "fc8", bias=True)
    return classify(b, b.op("flatten", x, name="flatten"))


@named("Lin, Chen, Yan 2013, ImageNet: 7,595,176 parameters")
def nin(b: Builder, _: Mapping[str, Any], batch: int) -> str:
    """Return Network in Network for ImageNet: behind each convolution stand two of 1x1.

    As Paleo has it, on 224x224 images; poolings neither pad nor round their size up.
    """
    x = b.input("image", (batch, 3, 224, 224))
    x = _mlp_conv(b, x, 1, 11, (96, 96, 96), stride=4)
    x = _mlp_conv(b, max_pool(b, x, 3, 2, "pool0"), 2, 5, (256, 256, 256), padding="same")
    x = _mlp_conv(b, max_pool(b, x, 3, 2, "pool2"), 3, 3, (384, 384, 384), padding="same")
    x = dropout(b, max_pool(b, x, 3, 2, "pool3"), 0.5, "drop")
    x = _mlp_conv(b, x, 4, 3, (1024, 1024, 1000), padding="same")
    x = avg_pool(b, x, b.shape(x)[2], 1, "pool4")
    return classify(b, b.op("flatten", x, name="flatten"))


def _mlp_conv(
    b: Builder, x: str, i: int, kernel: int, channels: tuple[int, int, int], **sizes: Any
) -> str:
    x = conv_relu(b, x, channels[0], kernel, f"conv{i}", **sizes)
    for k in (1, 2):
        x = conv_relu(b, x, channels[k], 1, f"cccp{2 * (i - 1) + k}")
    return x


@named("Simonyan, Zisserman 2014: 138,357,544 parameters")
def vgg16(b: Builder, _: Mapping[str, Any], batch: int) -> str:
    """Return configuration D of Simonyan, Zisserman 2014."""
    x = b.input("image", (batch, 3, 224, 224))
    for group, (repeats, channels) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))):
        for i in range(repeats):
            x = conv_relu(b, x, channels, 3, f"conv{group + 1}_{i + 1}", padding=1)
        x = max_pool(b, x, 2, 2, f"pool{group + 1}")
    x = b.op("flatten", x, name="flatten")
    for i in (6, 7):
        x = dropout(b, _dense_relu(b, x, 4096, f"fc{i}"), 0.5, f"dropout{i}")
    return classify(b, linear(b, x, 1000, "fc8"))


@named("TensorFlow tutorial: 3,274,634 parameters")
def deep_mnist(b: Builder, _: Mapping[str, Any], batch: int) -> str:
    """Return the two convolutions and two dense layers of TensorFlow's Deep MNIST tutorial."""
    x = b.input("image", (batch, 1, 28, 28))
    for i, channels in enumerate((32, 64)):
        x = conv_relu(b, x, channels, 5, f"conv{i + 1}", padding=2)
        x = max_pool(b, x, 2, 2, f"pool{i + 1}")
    x = _dense_relu(b, b.op("flatten", x, name="flatten"), 1024, "fc1")
    return classify(b, linear(b, dropout(b, x, 0.5, "dropout"), 10, "fc2"))

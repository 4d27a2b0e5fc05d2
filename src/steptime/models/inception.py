"""Inception v3 (Szegedy et al. 2015), its layers named as in TensorFlow-Slim and Paleo."""

from collections.abc import Mapping
from typing import Any

from steptime.layers.dense import classify, dropout
from steptime.layers.image import avg_pool, conv2d, conv_relu, max_pool
from steptime.models.family import Parameter, named
from steptime.ops.builder import Builder

# A branch is a chain of stages; a stage is one layer, or several side by side that are joined: `+`.
# A layer is a convolution unless it says what else. Its name ends with the window, height x width;
# `:2` after it is the stride of a layer without padding; the filters of a convolution come last.
Branches = tuple[str, ...]


def _block_5(pooled: int) -> Branches:
    return (
        "0a_1x1=64",
        "0a_1x1=48 0b_5x5=64",
        "0a_1x1=64 0b_3x3=96 0c_3x3=96",
        f"AvgPool_0a_3x3 0b_1x1={pooled}",
    )


def _block_6(inner: int) -> Branches:
    return (
        "0a_1x1=192",
        f"0a_1x1={inner} 0b_1x7={inner} 0b_7x1=192",
        f"0a_1x1={inner} 0b_7x1={inner} 0c_1x7={inner} 0d_7x1={inner} 0e_1x7=192",
        "AvgPool_0a_3x3 0b_1x1=192",
    )


_BLOCK_7 = (
    "0a_1x1=320",
    "0a_1x1=384 0b_1x3=384+0b_3x1=384",
    "0a_1x1=448 0b_3x3=384 0c_1x3=384+0d_3x1=384",
    "AvgPool_0a_3x3 0b_1x1=192",
)
_BLOCKS: dict[str, Branches] = {
    "Mixed_5b": _block_5(32),
    "Mixed_5c": _block_5(64),
    "Mixed_5d": _block_5(64),
    "Mixed_6a": ("1a_3x3:2=384", "0a_1x1=64 0b_3x3:2=96", "MaxPool_1a_3x3:2"),
    "Mixed_6b": _block_6(128),
    "Mixed_6c": _block_6(160),
    "Mixed_6d": _block_6(160),
    "Mixed_6e": _block_6(192),
    "Mixed_7a": (
        "0a_1x1=192 1a_3x3:2=320",
        "0a_1x1=192 0b_1x7=192 0b_7x1=192 1a_3x3:2=192",
        "MaxPool_1a_3x3:2",
    ),
    "Mixed_7b": _BLOCK_7,
    "Mixed_7c": _BLOCK_7,
}
_MIXED_6A_PUBLISHED = ("1a_3x3:2=384", "0a_1x1=64 0b_3x3=96 1a_3x3:2=96", "MaxPool_1a_3x3:2")
_VARIANTS: dict[str, dict[str, Branches]] = {
    "paleo": _BLOCKS,
    "published": {**_BLOCKS, "Mixed_6a": _MIXED_6A_PUBLISHED},
}


@named(
    "Szegedy et al. 2015, no auxiliary head: 23,751,432 parameters as Paleo has it; "
    "variant=published 23,834,568 and 5.71 GMAC an image",
    image=Parameter(299, "height and width of the input"),
    variant=Parameter(
        "paleo",
        "as Paleo's file has it, or as published, with one more convolution in Mixed_6a",
        choices=tuple(_VARIANTS),
    ),
)
def inception_v3(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return Inception v3 without its auxiliary classifier.

    As in torchvision, batch norms have a scale, average pooling counts padding, and half is
    dropped out; Slim and Keras have no scale (17,216 parameters less) and do not count padding.
    The variant `paleo` is the network that Paleo's authors predict: it lacks a 3x3 convolution of
    96 to 96 in Mixed_6a (83,136 parameters), which the published one has.
    """
    x = b.input("image", (batch, 3, p["image"], p["image"]))
    x = conv_relu(b, x, 32, 3, "Conv2d_1a_3x3", norm=True, stride=2)
    x = conv_relu(b, x, 32, 3, "Conv2d_2a_3x3", norm=True)
    x = conv_relu(b, x, 64, 3, "Conv2d_2b_3x3", norm=True, padding="same")
    x = max_pool(b, x, 3, 2, "MaxPool_3a_3x3")
    x = conv_relu(b, x, 80, 1, "Conv2d_3b_1x1", norm=True)
    x = conv_relu(b, x, 192, 3, "Conv2d_4a_3x3", norm=True)
    x = max_pool(b, x, 3, 2, "MaxPool_5a_3x3")
    for name, branches in _VARIANTS[p["variant"]].items():
        with b.scope(name):
            ends = [_branch(b, x, branch, f"Branch_{i}") for i, branch in enumerate(branches)]
            x = b.op("concat", *ends, name="concat", axis=1)
    with b.scope("Logits"):
        x = avg_pool(b, x, b.shape(x)[2], 2, "AvgPool_1a_8x8")
        x = dropout(b, x, 0.5, "Dropout_1b")
        x = conv2d(b, x, 1000, 1, "Conv2d_1c_1x1", bias=True)
        x = b.op("flatten", x, name="flatten")
    return classify(b, x)


def _branch(b: Builder, x: str, branch: str, name: str) -> str:
    with b.scope(name):
        for stage in branch.split():
            ends = [_layer(b, x, layer) for layer in stage.split("+")]
            x = ends[0] if len(ends) == 1 else b.op("concat", *ends, name="concat", axis=1)
    return x


def _layer(b: Builder, x: str, text: str) -> str:
    layer, _, channels = text.partition("=")
    name, _, stride = layer.partition(":")
    name = name if "Pool" in name else f"Conv2d_{name}"
    kind, _, window = name.split("_")
    height, width = (int(size) for size in window.split("x"))
    sizes: dict[str, Any] = {"stride": int(stride)} if stride else {"stride": 1, "padding": "same"}
    if kind == "Conv2d":
        return conv_relu(b, x, int(channels), (height, width), name, norm=True, **sizes)
    pool = max_pool if kind == "MaxPool" else avg_pool
    return pool(b, x, height, name=name, **sizes)

"""Named real networks, built with the layers of the families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from steptime.core.workload import Value
from steptime.layers.dense import classify, dropout, linear
from steptime.layers.image import conv2d, max_pool
from steptime.models import cnn, transformer
from steptime.models.family import Family, Parameter, resolve
from steptime.ops.builder import Builder

Build = Callable[[Builder, Mapping[str, Any], int], str]


def _conv_relu(b: Builder, x: str, channels: int, kernel: int, name: str, **sizes: int) -> str:
    x = conv2d(b, x, channels, kernel, name, bias=True, **sizes)
    return b.op("relu", x, name=f"{name}/relu")


def _dense_relu(b: Builder, x: str, width: int, name: str) -> str:
    return b.op("relu", linear(b, x, width, name), name=f"{name}/relu")


def build_alexnet(b: Builder, _: Mapping[str, Any], batch: int) -> str:
    """Give the one-column AlexNet of Krizhevsky 2014, as torchvision has it."""
    x = b.input("image", (batch, 3, 224, 224))
    x = _conv_relu(b, x, 64, 11, "conv1", stride=4, padding=2)
    x = max_pool(b, x, 3, 2, "pool1")
    x = _conv_relu(b, x, 192, 5, "conv2", padding=2)
    x = max_pool(b, x, 3, 2, "pool2")
    for i, channels in enumerate((384, 256, 256)):
        x = _conv_relu(b, x, channels, 3, f"conv{i + 3}", padding=1)
    x = b.op("flatten", max_pool(b, x, 3, 2, "pool5"), name="flatten")
    for i in (6, 7):
        x = _dense_relu(b, dropout(b, x, 0.5, f"dropout{i}"), 4096, f"fc{i}")
    return classify(b, linear(b, x, 1000, "fc8"))


def build_vgg16(b: Builder, _: Mapping[str, Any], batch: int) -> str:
    """Give configuration D of Simonyan, Zisserman 2014."""
    x = b.input("image", (batch, 3, 224, 224))
    for group, (repeats, channels) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))):
        for i in range(repeats):
            x = _conv_relu(b, x, channels, 3, f"conv{group + 1}_{i + 1}", padding=1)
        x = max_pool(b, x, 2, 2, f"pool{group + 1}")
    x = b.op("flatten", x, name="flatten")
    for i in (6, 7):
        x = dropout(b, _dense_relu(b, x, 4096, f"fc{i}"), 0.5, f"dropout{i}")
    return classify(b, linear(b, x, 1000, "fc8"))


def build_deep_mnist(b: Builder, _: Mapping[str, Any], batch: int) -> str:
    """Give the two convolutions and two dense layers of TensorFlow's Deep MNIST tutorial."""
    x = b.input("image", (batch, 1, 28, 28))
    for i, channels in enumerate((32, 64)):
        x = _conv_relu(b, x, channels, 5, f"conv{i + 1}", padding=2)
        x = max_pool(b, x, 2, 2, f"pool{i + 1}")
    x = _dense_relu(b, b.op("flatten", x, name="flatten"), 1024, "fc1")
    return classify(b, linear(b, dropout(b, x, 0.5, "dropout"), 10, "fc2"))


def _fixed(name: str, build: Build, source: str) -> Family:
    return Family(name, build, {}, source, named=True)


def _setting(
    name: str, base: Family, source: str, settings: Mapping[str, Value], *free: str, **how: Any
) -> Family:
    """Give `base` under fixed `settings`, of which the `free` ones may still be chosen."""
    values = resolve(base, settings)

    def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
        return partial(base.build, **how)(b, {**values, **p}, batch)

    def check(p: Mapping[str, Any]) -> str | None:
        return base.check({**values, **p})

    parameters = {key: Parameter(values[key], base.parameters[key].meaning) for key in free}
    return Family(name, build, parameters, source, base.batch, named=True, check=check)


ALEXNET = _fixed("alexnet", build_alexnet, "Krizhevsky 2014; torchvision: 61,100,840 parameters")
VGG16 = _fixed("vgg16", build_vgg16, "Simonyan, Zisserman 2014: 138,357,544 parameters")
DEEP_MNIST = _fixed("deep_mnist", build_deep_mnist, "TensorFlow tutorial: 3,274,634 parameters")

_BOTTLENECK: dict[str, Value] = {
    "block": "bottleneck",
    "blocks": "3-4-6-3",
    "filters": 64,
    "image": 224,
}
RESNET50 = _setting(
    "resnet50",
    cnn.FAMILY,
    "He et al. 2015, stride on the 3x3 (v1.5): 25,557,032 parameters, 4.09 GMAC an image",
    _BOTTLENECK,
    "image",
)
RESNET50_V1 = _setting(
    "resnet50_v1",
    cnn.FAMILY,
    "He et al. 2015, stride on the 1x1: 25,557,032 parameters, 3.86 GMAC an image",
    _BOTTLENECK,
    "image",
    kinds=cnn.BLOCKS_V1,
)
RESNET18 = _setting(
    "resnet18",
    cnn.FAMILY,
    "He et al. 2015, as torchvision has it: 11,689,512 parameters",
    {"block": "residual", "blocks": "2", "filters": 64, "image": 224},
    "image",
    project_every_group=False,
)
BERT_BASE = _setting(
    "bert_base",
    transformer.FAMILY,
    "Devlin et al. 2018, with pooler: 109,482,240 parameters",
    {"kind": "encoder", "max_length": 512},
    "length",
)
GPT2 = _setting(
    "gpt2",
    transformer.FAMILY,
    "Radford et al. 2019, the small one: 124,439,808 parameters",
    {"kind": "decoder", "max_length": 1024},
    "length",
)
LLAMA_7B = _setting(
    "llama_7b",
    transformer.FAMILY,
    "Touvron et al. 2023, 7B: 6,738,415,616 parameters",
    {
        "kind": "decoder",
        "layers": 32,
        "width": 4096,
        "heads": 32,
        "ffn": 11008,
        "length": 2048,
        "vocabulary": 32000,
        "norm": "rms",
        "activation": "swiglu",
        "positions": "rotary",
        "bias": False,
        "tied": False,
    },
    "length",
)

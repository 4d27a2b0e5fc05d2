"""Named convolutional networks, whose layers are text in `data/convolutional_networks.toml`."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from steptime.core.toml_files import read_packaged_toml
from steptime.network.families import cnn
from steptime.network.families.family import Family, Parameter, make_setting
from steptime.network.layers.dense import classify, dropout, linear
from steptime.network.layers.image import Padding, avg_pool, batch_norm, conv2d, max_pool
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Builder

_LAYER = re.compile(
    r"(?P<name>\S+) (?P<kind>\w+)(?: (?P<width>[\d.]+|all))?(?: (?P<kernel>\d+))?"
    r"(?: /(?P<stride>\d+))?(?: (?:p(?P<padding>\d+)|same))?(?P<ceil> ceil)?"
)
VARIANT_MARK = "@"  # begins a line of one variant alone: `@paleo Mixed_6a: ...`
_WINDOW = re.compile(r"(\d+)x(\d+)$")  # that a name ends with
_POOLS = {"max": max_pool, "avg": avg_pool}
_CONVOLUTIONS = {  # whether a batch norm stands in place of the bias, and the activation
    "conv": (False, "relu"),
    "plain": (False, ""),
    "norm": (True, "relu"),
    "narrow": (True, ""),
    "swish": (True, "silu"),
}
_LINEAR = {"linear": "", "dense": "relu", "gelu": "gelu"}  # their activations


@lru_cache(maxsize=64)
def __getattr__(name: str) -> Family:
    """Return the network of a row; raises `AttributeError` for an unknown name."""
    # an attribute of this module, such as `convolutional.resnet50`, is made of a row of the table
    row = read_packaged_toml("convolutional_networks.toml").get(name)
    if row is None:
        raise AttributeError(name)
    if "settings" in row:  # a setting of the family `cnn`; other rows list their layers
        return make_setting(
            name, cnn.FAMILY, row["source"], row["settings"], ["image"], **row["build_options"]
        )
    parameters = {}
    if "image" in row:
        parameters["image"] = Parameter(row["image"], "height and width of the input")
    if "variant" in row:
        choices = tuple(row["variants"])
        parameters["variant"] = Parameter(choices[0], row["variant"], choices=choices)

    def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
        image_shape = (3, p["image"], p["image"]) if "image" in p else row["input"]
        x = b.input("image", (batch, *image_shape))
        for line in row["layers"].strip().splitlines():
            if not line.startswith(VARIANT_MARK):
                x = _block(b, x, line)
                continue
            variant, _, variant_line = line.removeprefix(VARIANT_MARK).partition(" ")
            if variant == p["variant"]:
                x = _block(b, x, variant_line)
        return classify(b, x)

    return Family(name, build, parameters, row["source"], is_preset=True)


def _block(b: Builder, x: str, line: str) -> str:
    """Append a line of layers, in the scope before its colon if there is one."""
    # The line is `scope: chain` or `scope: chain | chain`; "+" behind the scope adds the input.
    name, _, layers = line.rpartition(": ")
    if not name:
        return _chain(b, x, layers)
    has_shortcut = name.endswith("+")
    with b.scope(name.removesuffix("+")):
        branches = layers.split(" | ")
        if len(branches) == 1:
            y = _chain(b, x, layers)
            return b.op("add", x, y, name="add") if has_shortcut else y
        branch_outputs = []
        for number, branch in enumerate(branches):
            with b.scope(f"Branch_{number}"):
                branch_outputs.append(_chain(b, x, branch))
        return b.op("concat", *branch_outputs, name="concat", axis=1)


def _chain(b: Builder, x: str, layers: str) -> str:
    """Append layers one after the other; those joined by `&` have one input."""
    for stage in layers.split(", "):
        # of `a & b` both layers read x, and their results are joined
        ends = [_layer(b, x, layer) for layer in stage.split(" & ")]
        x = ends[0] if len(ends) == 1 else b.op("concat", *ends, name="concat", axis=1)
    return x


def _layer(b: Builder, x: str, text: str) -> str:
    """Append one layer, such as `conv1 conv 64 7 /2 p3`: name, kind, width, kernel, stride, pad."""
    layer: Any = _LAYER.fullmatch(text)
    name, kind, width = layer["name"], layer["kind"], layer["width"]
    if kind in _OTHER_KINDS:
        return _OTHER_KINDS[kind](b, x, name, float(width or 0))
    if kind in _LINEAR:
        return _activate(b, linear(b, x, int(width), name), name, _LINEAR[kind])
    return _pool(b, x, layer) if kind in _POOLS else _convolve(b, x, layer)


def _stride_of(layer: re.Match[str]) -> int:
    return int(layer["stride"] or 1)


def _padding_of(layer: re.Match[str]) -> Padding:
    return "same" if " same" in layer[0] else int(layer["padding"] or 0)


def _pool(b: Builder, x: str, layer: re.Match[str]) -> str:
    """Append a pool, whose width is the side of its window; "all" pools the whole image."""
    _, _, image_height, _ = b.shape(x)
    window_side = image_height if layer["width"] == "all" else int(layer["width"])
    # Not every pool can round its output up.
    ceil = {"ceil": True} if layer["ceil"] else {}
    append_pool = _POOLS[layer["kind"]]
    return append_pool(
        b, x, window_side, _stride_of(layer), layer["name"], _padding_of(layer), **ceil
    )


def _convolve(b: Builder, x: str, layer: re.Match[str]) -> str:
    """Append a convolution with its norm and activation; the width "all" is a depthwise one."""
    name = layer["name"]
    _, input_channels, _, _ = b.shape(x)
    is_depthwise = layer["width"] == "all"
    channels = input_channels if is_depthwise else int(layer["width"])
    has_norm, activation = _CONVOLUTIONS[layer["kind"]]
    x = conv2d(
        b,
        x,
        channels,
        _kernel_of(layer),
        name,
        stride=_stride_of(layer),
        padding=_padding_of(layer),
        groups=channels if is_depthwise else 1,
        bias=not has_norm,
    )
    if has_norm:
        x = batch_norm(b, x, f"{name}/norm")
    return _activate(b, x, name, activation)


def _kernel_of(layer: re.Match[str]) -> tuple[int, int]:
    """Return height and width of a kernel: as stated, or as the name ends (`3x1`), else 1."""
    if layer["kernel"]:
        return int(layer["kernel"]), int(layer["kernel"])
    window = _WINDOW.search(layer["name"])
    return (int(window[1]), int(window[2])) if window else (1, 1)


def _activate(b: Builder, x: str, name: str, activation: str) -> str:
    return b.op(activation, x, name=f"{name}/{activation}") if activation else x


def _excite(b: Builder, x: str, name: str, width: float) -> str:
    """Return channels times a learned share of each, by their means (Hu, Shen, Sun 2017)."""
    with b.scope(name):
        y = b.op("reduce", x, name="pooled", function="mean", axes=(2, 3), keep=True)
        y = b.op("silu", conv2d(b, y, int(width), kernel=1, name="down", bias=True), name="silu")
        y = b.op(
            "sigmoid", conv2d(b, y, b.shape(x)[1], kernel=1, name="up", bias=True), name="sigmoid"
        )
        return b.op("pointwise", x, y, name="gated", function="mul")


_OTHER_KINDS: Mapping[str, Callable[[Builder, str, str, float], str]] = {
    "flatten": lambda b, x, name, _: b.op("flatten", x, name=name),
    "global_avg_pool": lambda b, x, name, _: b.op("global_avg_pool", x, name=name),
    "rows": lambda b, x, name, _: b.op("transpose", x, name=name, order=(0, 2, 3, 1)),
    "images": lambda b, x, name, _: b.op("transpose", x, name=name, order=(0, 3, 1, 2)),
    "dropout": lambda b, x, name, share: dropout(b, x, share, name),
    "layer": lambda b, x, name, _: norm(b, x, "layer", name),
    "excite": _excite,
    "scale": lambda b, x, name, _: b.op(
        "pointwise", x, b.weight(f"{name}/w", b.shape(x)[-1:]), name=name, function="mul"
    ),
}

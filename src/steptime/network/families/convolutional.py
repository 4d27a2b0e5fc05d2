"""Named convolutional networks, whose layers `data/convolutional_networks.toml` says as text."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from steptime.core.toml_files import packaged
from steptime.network.families import cnn
from steptime.network.families.family import Family, Parameter, setting
from steptime.network.layers.dense import classify, dropout, linear
from steptime.network.layers.image import avg_pool, batch_norm, conv2d, max_pool
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Builder

_LAYER = re.compile(
    r"(?P<name>\S+) (?P<kind>\w+)(?: (?P<width>[\d.]+|all))?(?: (?P<kernel>\d+))?"
    r"(?: /(?P<stride>\d+))?(?: (?:p(?P<padding>\d+)|same))?(?P<ceil> ceil)?"
)
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
    """Return the network that a row says; raises `AttributeError` where there is none."""
    row = packaged("convolutional_networks.toml").get(name)
    if row is None:
        raise AttributeError(name)
    if "settings" in row:
        return setting(name, cnn.FAMILY, row["source"], row["settings"], "image", **row["how"])
    parameters = {}
    if "image" in row:
        parameters["image"] = Parameter(row["image"], "height and width of the input")
    if "variant" in row:
        choices = tuple(row["variants"])
        parameters["variant"] = Parameter(choices[0], row["variant"], choices=choices)

    def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
        image = (3, p["image"], p["image"]) if "image" in p else row["input"]
        x = b.input("image", (batch, *image))
        for line in row["layers"].strip().splitlines():
            if line[0] != "@" or line.startswith(f"@{p['variant']} "):
                x = _block(b, x, line.partition(" ")[2] if line[0] == "@" else line)
        return classify(b, x)

    return Family(name, build, parameters, row["source"], named=True)


def _block(b: Builder, x: str, line: str) -> str:
    """Return what a line of layers makes, under the name before its colon if there is one."""
    name, _, said = line.rpartition(": ")
    if not name:
        return _chain(b, x, said)
    with b.scope(name.removesuffix("+")):
        branches = said.split(" | ")
        if len(branches) == 1:
            y = _chain(b, x, said)
            return b.op("add", x, y, name="add") if name.endswith("+") else y
        ends = []
        for i, branch in enumerate(branches):
            with b.scope(f"Branch_{i}"):
                ends.append(_chain(b, x, branch))
        return b.op("concat", *ends, name="concat", axis=1)


def _chain(b: Builder, x: str, said: str) -> str:
    for stage in said.split(", "):
        ends = [_layer(b, x, layer) for layer in stage.split(" & ")]
        x = ends[0] if len(ends) == 1 else b.op("concat", *ends, name="concat", axis=1)
    return x


def _layer(b: Builder, x: str, text: str) -> str:
    said: Any = _LAYER.fullmatch(text)
    name, kind, width = said["name"], said["kind"], said["width"]
    if kind in _OTHERS:
        return _OTHERS[kind](b, x, name, float(width or 0))
    if kind in _LINEAR:
        return _active(b, linear(b, x, int(width), name), name, _LINEAR[kind])
    sizes: dict[str, Any] = {"stride": int(said["stride"] or 1)}
    sizes["padding"] = "same" if " same" in text else int(said["padding"] or 0)
    if kind in _POOLS:
        kernel = b.shape(x)[2] if width == "all" else int(width)
        sizes |= {"ceil": True} if said["ceil"] else {}
        return _POOLS[kind](b, x, kernel, name=name, **sizes)
    window = _WINDOW.search("" if said["kernel"] else name)
    height, wide = window.groups() if window else [said["kernel"] or 1] * 2
    channels = b.shape(x)[1] if width == "all" else int(width)
    sizes["groups"] = channels if width == "all" else 1
    normed, activation = _CONVOLUTIONS[kind]
    x = conv2d(b, x, channels, (int(height), int(wide)), name, bias=not normed, **sizes)
    x = batch_norm(b, x, f"{name}/norm") if normed else x
    return _active(b, x, name, activation)


def _active(b: Builder, x: str, name: str, activation: str) -> str:
    return b.op(activation, x, name=f"{name}/{activation}") if activation else x


def _excited(b: Builder, x: str, name: str, width: float) -> str:
    """Return channels times a learned share of each, by their means (Hu, Shen, Sun 2017)."""
    with b.scope(name):
        y = b.op("reduce", x, name="pooled", function="mean", axes=(2, 3), keep=True)
        y = b.op("silu", conv2d(b, y, int(width), 1, "down", bias=True), name="silu")
        y = b.op("sigmoid", conv2d(b, y, b.shape(x)[1], 1, "up", bias=True), name="sigmoid")
        return b.op("pointwise", x, y, name="gated", function="mul")


_OTHERS: Mapping[str, Callable[[Builder, str, str, float], str]] = {
    "flatten": lambda b, x, name, _: b.op("flatten", x, name=name),
    "global_avg_pool": lambda b, x, name, _: b.op("global_avg_pool", x, name=name),
    "rows": lambda b, x, name, _: b.op("transpose", x, name=name, order=(0, 2, 3, 1)),
    "images": lambda b, x, name, _: b.op("transpose", x, name=name, order=(0, 3, 1, 2)),
    "dropout": lambda b, x, name, share: dropout(b, x, share, name),
    "layer": lambda b, x, name, _: norm(b, x, "layer", name),
    "excite": _excited,
    "scale": lambda b, x, name, _: b.op(
        "pointwise", x, b.weight(f"{name}/w", b.shape(x)[-1:]), name=name, function="mul"
    ),
}

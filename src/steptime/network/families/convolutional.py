"""Named convolutional networks, whose layers `data/convolutional_networks.toml` says as text."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from steptime.core.toml_files import packaged
from steptime.network.families import cnn
from steptime.network.families.family import Family, Parameter, setting
from steptime.network.layers.dense import classify, dropout, linear
from steptime.network.layers.image import avg_pool, batch_norm, conv2d, max_pool
from steptime.network.ops.builder import Builder

_LAYER = re.compile(
    r"(?P<name>\S+) (?P<kind>\w+)(?: (?P<width>[\d.]+|all))?(?: (?P<kernel>\d+))?"
    r"(?: /(?P<stride>\d+))?(?: (?:p(?P<padding>\d+)|same))?(?P<ceil> ceil)?"
)
_WINDOW = re.compile(r"(\d+)x(\d+)$")  # that a name ends with
_POOLS = {"max": max_pool, "avg": avg_pool}


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
    if kind in ("flatten", "global_avg_pool"):
        return b.op(kind, x, name=name)
    if kind == "dropout":
        return dropout(b, x, float(width), name)
    if kind in ("linear", "dense"):
        x = linear(b, x, int(width), name)
        return b.op("relu", x, name=f"{name}/relu") if kind == "dense" else x
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
    bias = kind in ("conv", "plain")
    x = conv2d(b, x, channels, (int(height), int(wide)), name, bias=bias, **sizes)
    if kind in ("norm", "narrow"):
        x = batch_norm(b, x, f"{name}/norm")
    return x if kind in ("plain", "narrow") else b.op("relu", x, name=f"{name}/relu")

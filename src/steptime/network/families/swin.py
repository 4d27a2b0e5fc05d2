"""Transformers whose attention sees windows of an image, shifted in every second block.

Liu et al. 2021, "Swin Transformer". The mask of windows that a shift puts together is not applied.
"""

from collections.abc import Mapping
from typing import Any

from steptime.network.families import transformer
from steptime.network.families.family import Family, parameters_of, resolve
from steptime.network.layers.attention import Sight, attention
from steptime.network.layers.blocks import block, feed_forward
from steptime.network.layers.dense import classify, linear, mean_loss
from steptime.network.layers.image import conv2d
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Builder


def numbers(text: str) -> list[int]:
    """Return the numbers of a text such as `2-2-6-2`."""
    return [int(part) for part in text.split("-")]


def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return an image classified: patches, stages that each halve it, the mean of what is left."""
    side, width = p["image"] // p["patch"], p["width"]
    x = b.input("image", (batch, p["channels"], p["image"], p["image"]))
    x = conv2d(b, x, width, p["patch"], "patches", stride=p["patch"], bias=True)
    x = b.op("transpose", x, name="patches/last", order=(0, 2, 3, 1))
    x = norm(b, x, "layer", "patch_norm")
    depths = numbers(p["depths"])
    for i, (depth, heads) in enumerate(zip(depths, numbers(p["heads"]), strict=False)):
        own = {"width": width, "heads": heads, "kind": "encoder", "norms": "before"}
        own |= {"ffn": int(p["ffn_ratio"] * width), "qkv_bias": p["qkv_bias"]}
        q = resolve(transformer.FAMILY, {**own, "activation": p["activation"]})
        with b.scope(f"stage{i + 1}"):
            for j in b.repeat(depth):
                with b.scope(f"block{j + 1}"):
                    x = _block(b, x, {**q, "window": p["window"]}, side, j % 2 == 1)
            if i + 1 < len(depths):
                x, side, width = _merged(b, x), -(-side // 2), 2 * width
    x = norm(b, b.op("reshape", x, name="rows", shape=(batch, side * side, width)), "layer", "norm")
    if p["pixels"]:  # patches as they were, some of which a learned token stood for
        b.weight("mask/w", (1, 1, p["width"]))
        return mean_loss(b, linear(b, x, p["pixels"] ** 2 * p["channels"], "pixels"))
    x = b.op("reduce", x, name="pooled", function="mean", axes=(1,), keep=False)
    if not p["classes"]:
        return mean_loss(b, x)
    return classify(b, linear(b, x, p["classes"], "classifier"))


def _block(b: Builder, x: str, p: Mapping[str, Any], side: int, shifted: bool) -> str:
    """Return attention within windows of `x [n, side, side, width]`, and feed-forward."""
    window = p["window"]
    shift = window // 2 if shifted and side > window else 0

    def attends(y: str) -> str:
        n, width, wide = b.shape(x)[0], p["width"], -(-side // window) * window
        if wide > side:
            y = b.op("pad", y, name="padded", pads=(0, 0, 0, wide - side, 0, wide - side, 0, 0))
        y = _rolled(b, y, shift, "shift")
        count = wide // window
        cut = (n, count, window, count, window, width)
        y = b.op("reshape", y, name="cut", shape=cut)
        y = b.op("transpose", y, name="windows", order=(0, 1, 3, 2, 4, 5))
        y = b.op("reshape", y, name="flat", shape=(n * count**2, window**2, width))
        y = attention(b, y, p, "attention", Sight(relative=_places(b, p)))
        y = b.op("reshape", y, name="uncut", shape=(n, count, count, window, window, width))
        y = b.op("transpose", y, name="rows", order=(0, 1, 3, 2, 4, 5))
        y = b.op("reshape", y, name="whole", shape=(n, wide, wide, width))
        y = _rolled(b, y, wide - shift if shift else 0, "back")
        for axis in (1, 2) if wide > side else ():
            y = b.op("slice", y, name=f"unpadded{axis}", axis=axis, start=0, stop=side)
        return y

    def feeds(y: str) -> str:
        return feed_forward(b, y, p["ffn"], p["activation"], True, "ffn")

    return block(b, x, p, [attends, feeds])


def _places(b: Builder, p: Mapping[str, Any]) -> str:
    """Return what is added to the scores, by how far two places of a window are apart."""
    area = p["window"] ** 2
    ids = b.buffer("places", (area, area), "int64")
    table = b.weight("relative/w", ((2 * p["window"] - 1) ** 2, p["heads"]))
    found = b.op("embedding", ids, table, name="relative")
    return b.op("transpose", found, name="relative/by_head", order=(2, 0, 1))


def _rolled(b: Builder, x: str, shift: int, name: str) -> str:
    """Return `x [n, h, w, c]` with both sides turned over by `shift`."""
    for axis in (1, 2) if shift else ():
        size, at = b.shape(x)[axis], f"{name}{axis}"
        first = b.op("slice", x, name=f"{at}/first", axis=axis, start=0, stop=shift)
        rest = b.op("slice", x, name=f"{at}/rest", axis=axis, start=shift, stop=size)
        x = b.op("concat", rest, first, name=at, axis=axis)
    return x


def _merged(b: Builder, x: str) -> str:
    """Return each two by two places of `x [n, h, w, c]` as one of twice the width."""
    n, side, _, width = b.shape(x)
    if side % 2:
        x = b.op("pad", x, name="merge/padded", pads=(0, 0, 0, 1, 0, 1, 0, 0))
    half = -(-side // 2)
    x = b.op("reshape", x, name="merge/cut", shape=(n, half, 2, half, 2, width))
    x = b.op("transpose", x, name="merge/beside", order=(0, 1, 3, 4, 2, 5))
    x = b.op("reshape", x, name="merge/joined", shape=(n, half, half, 4 * width))
    return linear(b, norm(b, x, "layer", "merge/norm"), 2 * width, "merge", bias=False)


def check(p: Mapping[str, Any]) -> str | None:
    """Return what does not fit together, or None."""
    depths = numbers(p["depths"])
    heads = numbers(p["heads"])[: len(depths)]
    if len(depths) != len(heads) or not all((*depths, *heads)):
        return f"depths {p['depths']} and heads {p['heads']} are not of as many stages"
    if p["image"] % p["patch"]:
        return f"image {p['image']} does not divide into patches of {p['patch']}"
    wrong = [n for i, n in enumerate(heads) if p["width"] * 2**i % n]
    if wrong:
        return f"width {p['width']} does not divide into {wrong[0]} heads"
    side = p["image"] // p["patch"]
    for _ in depths[1:]:
        side = -(-side // 2)
    return f"window {p['window']} is larger than {side} patches" if side < p["window"] else None


FAMILY = Family(
    "swin",
    build,
    {
        **parameters_of("swin", ffn_ratio={"read": float}),
        "activation": transformer.FAMILY.parameters["activation"],
    },
    "Liu et al. 2021; the small ones: 28,288,354 parameters",
    check=check,
)

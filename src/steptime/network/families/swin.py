"""Transformers whose attention sees windows of an image, shifted in every second block.

Liu et al. 2021, "Swin Transformer". The mask of windows that a shift puts together is not applied.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any

from steptime.network.families import transformer
from steptime.network.families.family import Family, read_parameters, resolve
from steptime.network.layers.attention import Sight, attention
from steptime.network.layers.blocks import block, feed_forward
from steptime.network.layers.dense import classify, linear, mean_loss
from steptime.network.layers.image import conv2d
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Builder


def parse_numbers(text: str) -> list[int]:
    """Return the numbers of a text such as `2-2-6-2`."""
    return [int(part) for part in text.split("-")]


def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return a classified image: patches, stages that halve it, the mean of the last one."""
    x = _cut_patches(b, p, batch)
    depths = parse_numbers(p["depths"])
    # heads of further stages are left out, as the defaults have more than a short `depths`
    stage_heads = parse_numbers(p["heads"])[: len(depths)]
    for i, (depth, heads) in enumerate(zip(depths, stage_heads, strict=True)):
        with b.scope(f"stage{i + 1}"):
            x = _build_stage(b, x, p, depth, heads)
            is_last = i + 1 == len(depths)
            if not is_last:
                x = _merge_places(b, x)
    _, side, _, width = b.shape(x)
    x = b.op("reshape", x, name="rows", shape=(batch, side * side, width))
    return _append_head(b, norm(b, x, "layer", "norm"), p)


def _append_head(b: Builder, x: str, p: Mapping[str, Any]) -> str:
    """Return the loss of pixels that are restored, of the mean of all places, or of classes."""
    if p["pixels"]:  # pretraining: restores the pixels of patches that a mask token replaced
        b.weight("mask/w", (1, 1, p["width"]))
        pixel_count = p["pixels"] ** 2 * p["channels"]
        return mean_loss(b, linear(b, x, pixel_count, "pixels"))
    x = b.op("reduce", x, name="pooled", function="mean", axes=(1,), keep=False)
    if not p["classes"]:
        return mean_loss(b, x)
    return classify(b, linear(b, x, p["classes"], "classifier"))


def _cut_patches(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return the patches of an image, `[n, side, side, width]`."""
    patch = p["patch"]
    x = b.input("image", (batch, p["channels"], p["image"], p["image"]))
    x = conv2d(b, x, p["width"], patch, "patches", stride=patch, bias=True)
    x = b.op("transpose", x, name="patches/last", order=(0, 2, 3, 1))
    return norm(b, x, "layer", "patch_norm")


def _build_stage(b: Builder, x: str, p: Mapping[str, Any], depth: int, heads: int) -> str:
    """Return `x [n, side, side, width]` after the blocks of a stage, every second one shifted."""
    width = b.shape(x)[-1]
    settings = {
        "width": width,
        "heads": heads,
        "kind": "encoder",
        "norms": "before",
        "ffn": int(p["ffn_ratio"] * width),
        "qkv_bias": p["qkv_bias"],
        "activation": p["activation"],
    }
    block_settings = {**resolve(transformer.FAMILY, settings), "window": p["window"]}
    for j in b.repeat(depth):
        with b.scope(f"block{j + 1}"):
            is_shifted = j % 2 == 1
            x = _build_block(b, x, block_settings, is_shifted)
    return x


def _build_block(b: Builder, x: str, p: Mapping[str, Any], is_shifted: bool) -> str:
    """Return attention within windows of `x [n, side, side, width]`, and feed-forward."""
    _, side, _, _ = b.shape(x)
    # images of one window have none beside it to exchange places with
    has_several_windows = side > p["window"]
    shift = p["window"] // 2 if is_shifted and has_several_windows else 0

    def attend(y: str) -> str:
        return _attend_in_windows(b, y, p, shift)

    def feed(y: str) -> str:
        return feed_forward(b, y, p["ffn"], p["activation"], bias=True, name="ffn")

    return block(b, x, p, [attend, feed])


def _attend_in_windows(b: Builder, x: str, p: Mapping[str, Any], shift: int) -> str:
    """Return attention within windows of `x [n, side, side, width]`, moved by `shift` places."""
    _, side, _, _ = b.shape(x)
    window = p["window"]
    padded_side = ceil(side / window) * window
    padding = padded_side - side
    if padding:
        # pads are (before, after) of each axis
        x = b.op("pad", x, name="padded", pads=(0, 0, 0, padding, 0, padding, 0, 0))
    x = _roll_sides(b, x, shift, "shift")
    x = _cut_windows(b, x, window)
    x = attention(b, x, p, "attention", Sight(relative=_relative_scores(b, p)))
    x = _join_windows(b, x, window, padded_side)
    if shift:  # roll on by the complement, so that each place is back where it was
        x = _roll_sides(b, x, padded_side - shift, "back")
    if padding:
        for axis in (1, 2):
            x = b.op("slice", x, name=f"unpadded{axis}", axis=axis, start=0, stop=side)
    return x


def _cut_windows(b: Builder, y: str, window: int) -> str:
    """Return `[n, side, side, width]` as sequences, one for each window."""
    n, side, _, width = b.shape(y)
    windows_of_side = side // window
    cut_shape = (n, windows_of_side, window, windows_of_side, window, width)
    y = b.op("reshape", y, name="cut", shape=cut_shape)
    y = b.op("transpose", y, name="windows", order=(0, 1, 3, 2, 4, 5))
    return b.op("reshape", y, name="flat", shape=(n * windows_of_side**2, window**2, width))


def _join_windows(b: Builder, y: str, window: int, side: int) -> str:
    """Return the sequences of windows as `[n, side, side, width]`."""
    window_count, _, width = b.shape(y)
    windows_of_side = side // window
    n = window_count // windows_of_side**2
    uncut_shape = (n, windows_of_side, windows_of_side, window, window, width)
    y = b.op("reshape", y, name="uncut", shape=uncut_shape)
    y = b.op("transpose", y, name="rows", order=(0, 1, 3, 2, 4, 5))
    return b.op("reshape", y, name="whole", shape=(n, side, side, width))


def _relative_scores(b: Builder, p: Mapping[str, Any]) -> str:
    """Return the term of the scores that depends on the distance of two places of a window."""
    places = p["window"] ** 2
    distances = (2 * p["window"] - 1) ** 2
    distance_ids = b.buffer("places", (places, places), "int64")
    table = b.weight("relative/w", (distances, p["heads"]))
    scores = b.op("embedding", distance_ids, table, name="relative")
    return b.op("transpose", scores, name="relative/by_head", order=(2, 0, 1))


def _roll_sides(b: Builder, x: str, shift: int, name: str) -> str:
    """Return `x [n, h, w, c]` rolled by `shift` along both sides."""
    if not shift:
        return x
    for axis in (1, 2):
        size = b.shape(x)[axis]
        path = f"{name}{axis}"
        first = b.op("slice", x, name=f"{path}/first", axis=axis, start=0, stop=shift)
        second = b.op("slice", x, name=f"{path}/rest", axis=axis, start=shift, stop=size)
        x = b.op("concat", second, first, name=path, axis=axis)
    return x


def _merge_places(b: Builder, x: str) -> str:
    """Return two by two places of `x [n, h, w, c]` as one of twice the width."""
    n, side, _, width = b.shape(x)
    if side % 2:
        # pads are (before, after) of each axis
        x = b.op("pad", x, name="merge/padded", pads=(0, 0, 0, 1, 0, 1, 0, 0))
    half_side = ceil(side / 2)
    x = b.op("reshape", x, name="merge/cut", shape=(n, half_side, 2, half_side, 2, width))
    x = b.op("transpose", x, name="merge/beside", order=(0, 1, 3, 4, 2, 5))
    x = b.op("reshape", x, name="merge/joined", shape=(n, half_side, half_side, 4 * width))
    x = norm(b, x, "layer", "merge/norm")
    return linear(b, x, 2 * width, "merge", bias=False)


def check(p: Mapping[str, Any]) -> str | None:
    """Return the first fault of sizes that do not fit together, or None."""
    depths = parse_numbers(p["depths"])
    heads = parse_numbers(p["heads"])[: len(depths)]
    has_zero = 0 in (*depths, *heads)
    if len(depths) != len(heads) or has_zero:
        return f"depths {p['depths']} and heads {p['heads']} are not of as many stages"
    if p["image"] % p["patch"]:
        return f"image {p['image']} does not divide into patches of {p['patch']}"
    for stage, stage_heads in enumerate(heads):
        stage_width = p["width"] * 2**stage
        if stage_width % stage_heads:
            return f"width {p['width']} does not divide into {stage_heads} heads"
    last_side = _last_side(p, len(depths))
    if last_side < p["window"]:
        return f"window {p['window']} is larger than {last_side} patches"
    return None


def _last_side(p: Mapping[str, Any], stage_count: int) -> int:
    """Return the places along a side of the image in the last stage; each halves the one before."""
    side: int = p["image"] // p["patch"]
    for _ in range(stage_count - 1):
        side = ceil(side / 2)
    return side


FAMILY = Family(
    "swin",
    build,
    {
        **read_parameters("swin", ffn_ratio={"read": float}),
        "activation": transformer.FAMILY.parameters["activation"],
    },
    "Liu et al. 2021; the small ones: 28,288,354 parameters",
    check=check,
)

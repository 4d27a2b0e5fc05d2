"""Stems of encoders that a few sizes do not describe: raw sound, patches of images of any shape."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from steptime.network.layers.blocks import append_activation
from steptime.network.layers.dense import linear
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Attributes, Builder

Parameters = Mapping[str, Any]  # of the family `transformer`, where each is documented


class Stem(Protocol):
    """What makes the tokens of an encoder from its input."""

    def build(self, b: Builder, p: Parameters, batch: int) -> str:
        """Return the tokens `[n, l, width]` with their places."""


class Prefix(Protocol):
    """What stands in place of the first words of a decoder."""

    def join(self, b: Builder, words: str, p: Parameters, batch: int) -> str:
        """Return the words `[n, l, width]` with the first ones replaced."""


@dataclass(frozen=True)
class PackedPatches:
    """Patches that come in as vectors, with positions resized to each image (SigLIP 2).

    Attributes:
        patch_count: patches of an image, and rows of the table of positions.
    """

    patch_count: int

    def build(self, b: Builder, p: Parameters, batch: int) -> str:
        """Return the tokens `[n, patches, width]` with their places."""
        count = self.patch_count
        vector_width = p["channels"] * p["patch"] ** 2
        x = b.input("patch_vectors", (batch, count, vector_width))
        x = linear(b, x, p["width"], "patches")
        table = b.weight("position/w", (count, p["width"]))
        resizing_shares = b.buffer("resizing", (batch, count, count))
        positions = b.op("matmul", resizing_shares, table, name="resized_position")
        return b.op("add", x, positions, name="add_position")


@dataclass(frozen=True)
class Waveform:
    """Convolutions over raw sound, and one over frames that tells places (wav2vec 2, HuBERT).

    Attributes:
        channels: channels of each convolution.
        kernels: samples that each reads.
        strides: samples that each moves on.
        norm: `group`: the first is normed, channel by channel; `layer`: all are, over channels.
        bias: the convolutions have biases.
        activation: the activation after each.
        place_kernel: frames of the convolution that tells places.
        place_groups: groups of its channels.
        has_norm: frames are normed before they are brought to the width.
        has_mask: a learned frame may stand for a masked one.
    """

    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    norm: str
    bias: bool
    activation: str
    place_kernel: int
    place_groups: int
    has_norm: bool = True
    has_mask: bool = True

    def build(self, b: Builder, p: Parameters, batch: int) -> str:
        """Return the frames `[n, frames, width]` with their places."""
        x = b.input("sound", (batch, 1, 1, p["samples"]))
        x = _to_frames(b, self._convolve_sound(b, x))
        x = norm(b, x, "layer", "frames_norm") if self.has_norm else x
        x = linear(b, x, p["width"], "frames_in")
        if self.has_mask:
            # a parameter that no op reads: no frame is masked
            b.weight("mask/w", (p["width"],))
        with b.scope("places"):
            return b.op("add", x, self._convolve_positions(b, x), name="add")

    def _convolve_sound(self, b: Builder, x: str) -> str:
        """Return samples `[n, 1, 1, samples]` after all convolutions, `[n, c, 1, frames]`."""
        layers = zip(self.channels, self.kernels, self.strides, strict=True)
        for number, (channels, kernel, stride) in enumerate(layers, 1):
            with b.scope(f"sound{number}"):
                x = _convolve(b, x, channels, (kernel, stride), bias=self.bias)
                x = self._append_norm(b, x, is_first=number == 1)
                x = append_activation(b, x, self.activation)
        return x

    def _append_norm(self, b: Builder, x: str, is_first: bool) -> str:
        """Return the result of a convolution as `norm` says, which may skip all but the first."""
        if self.norm == "layer":
            return _norm_over_channels(b, x)
        return _norm_over_time(b, x) if is_first else x

    def _convolve_positions(self, b: Builder, x: str) -> str:
        """Return a convolution of the frames around each; its weights are normed."""
        n, length, width = b.shape(x)
        kernel, groups = self.place_kernel, self.place_groups
        w = _normed_weight(b, (width, width // groups, 1, kernel))
        x = b.op("transpose", x, name="channels", order=(0, 2, 1))
        x = b.op("reshape", x, name="image", shape=(n, width, 1, length))
        attributes: Attributes = {
            "stride": (1, 1),
            "padding": (0, 0, kernel // 2, (kernel - 1) // 2),  # top, bottom, left, right
            "groups": groups,
        }
        x = b.op("conv2d", x, w, name="conv2d", **attributes)
        x = b.op("bias", x, b.weight("b", (width,)), name="bias", axis=1)
        return _to_frames(b, append_activation(b, x, self.activation))


def _norm_over_channels(b: Builder, x: str) -> str:
    """Return `x [n, channels, 1, frames]` with the channels of each frame normed."""
    n, channels, _, length = b.shape(x)
    frames = norm(b, _to_frames(b, x), "layer", "norm")
    x = b.op("transpose", frames, name="channels", order=(0, 2, 1))
    return b.op("reshape", x, name="image", shape=(n, channels, 1, length))


def _norm_over_time(b: Builder, x: str) -> str:
    """Return `x [n, channels, 1, frames]` with each channel normed over time."""
    channels = b.shape(x)[1]
    weights = [b.weight(f"norm/{name}", (channels,)) for name in ("w", "b")]
    return b.op("group_norm", x, *weights, name="norm/group_norm", groups=channels)


def _normed_weight(b: Builder, shape: tuple[int, int, int, int]) -> str:
    """Return a weight of a convolution as size * direction / |direction| (weight norm).

    Each column of the kernel, the last axis, has a size and a direction.
    """
    kernel = shape[-1]
    direction = b.weight("direction/w", shape)
    size = b.weight("size/w", (1, 1, 1, kernel))
    square = b.op("mul", direction, direction, name="square")
    over_channels: Attributes = {"function": "sum", "axes": (0, 1), "keep": True}
    scale = b.op("reduce", square, name="sum", **over_channels)
    scale = b.op("pointwise", scale, name="rsqrt", function="rsqrt")
    scale = b.op("pointwise", scale, size, name="scale", function="mul")
    return b.op("pointwise", direction, scale, name="w", function="mul")


def _convolve(b: Builder, x: str, channels: int, window: tuple[int, int], *, bias: bool) -> str:
    """Return `x [n, c, 1, samples]` after a convolution of a (kernel, stride)."""
    kernel, stride = window
    w = b.weight("w", (channels, b.shape(x)[1], 1, kernel))
    attributes: Attributes = {
        "stride": (1, stride),
        "padding": (0,) * 4,
        "groups": 1,
    }
    x = b.op("conv2d", x, w, name="conv2d", **attributes)
    return b.op("bias", x, b.weight("b", (channels,)), name="bias", axis=1) if bias else x


def _to_frames(b: Builder, x: str) -> str:
    """Return `x [n, channels, 1, frames]` as frames, `[n, frames, channels]`."""
    n, channels, _, length = b.shape(x)
    x = b.op("reshape", x, name="frames/channels", shape=(n, channels, length))
    return b.op("transpose", x, name="frames", order=(0, 2, 1))

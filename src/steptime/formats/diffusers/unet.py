"""The UNets of Stable Diffusion 1 to XL, op by op."""

from collections.abc import Mapping
from typing import Any

from steptime.formats.diffusers.parts import Heads, attend, embed
from steptime.network.layers.blocks import feed_forward
from steptime.network.layers.dense import linear, mean_loss
from steptime.network.layers.image import conv2d
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Builder

Sizes = Mapping[str, Any]  # fields of a `config.json`, with `image` and `length`
LATENT = 8  # pixels of a side of the image that make one of a latent
ATTENDING_BLOCKS = ("CrossAttnDownBlock2D", "CrossAttnUpBlock2D", "UNetMidBlock2DCrossAttn")


def build_unet(b: Builder, sizes: Sizes, batch: int) -> str:
    """Return the denoised latents: blocks that halve the sides, and blocks that double them."""
    widths: list[int] = sizes["block_out_channels"]
    side = sizes["image"] // LATENT  # the VAE makes a latent of 8 x 8 pixels
    # `state`: the embedding of the time step and conditions, which each residual block adds.
    state_width = 4 * widths[0]
    x = b.input("latents", (batch, sizes["in_channels"], side, side))
    text = b.input("text", (batch, sizes["length"], sizes["cross_attention_dim"]))
    state = embed(b, b.input("time", (batch, widths[0])), state_width, "time_embedding")
    if sizes["condition_width"]:
        conditions = b.input("conditions", (batch, sizes["condition_width"]))
        conditions = embed(b, conditions, state_width, "condition_embedding")
        state = b.op("add", state, conditions, name="state")
    unet = _Unet(b, sizes, text, state)
    x = conv2d(b, x, widths[0], kernel=3, name="in", padding=1, bias=True)
    x, skips = unet.add_down_blocks(x)  # `skips`: outputs on the way down, read on the way up
    with b.scope("middle"):
        x = unet.add_residual(x, widths[-1], "residual1")
        x = unet.add_transformer(x, len(widths) - 1, "transformer")
        x = unet.add_residual(x, widths[-1], "residual2")
    x = unet.add_up_blocks(x, skips)
    x = b.op("silu", unet.add_group_norm(x, "last_norm"), name="last_silu")
    x = conv2d(b, x, sizes["out_channels"], kernel=3, name="out", padding=1, bias=True)
    return mean_loss(b, x)


class _Unet:
    """The parts of a UNet, which all read the text and the embedding of the time step."""

    def __init__(self, b: Builder, sizes: Sizes, text: str, state: str) -> None:
        self.b = b
        self.sizes = sizes
        self.text = text
        self.state = b.op("silu", state, name="state_silu")
        self.widths: list[int] = sizes["block_out_channels"]

    def add_down_blocks(self, x: str) -> tuple[str, list[str]]:
        """Return the output of the blocks that halve the sides, and all that is read again."""
        skips = [x]
        for level, width in enumerate(self.widths):
            has_attention = self.sizes["down_block_types"][level] in ATTENDING_BLOCKS
            is_last = level == len(self.widths) - 1
            with self.b.scope(f"down{level + 1}"):
                for i in range(1, self.sizes["layers_per_block"] + 1):
                    x = self.add_residual(x, width, f"residual{i}")
                    if has_attention:
                        x = self.add_transformer(x, level, f"transformer{i}")
                    skips.append(x)
                if not is_last:
                    x = conv2d(
                        self.b, x, width, kernel=3, name="half", stride=2, padding=1, bias=True
                    )
                    skips.append(x)
        return x, skips

    def add_up_blocks(self, x: str, skips: list[str]) -> str:
        """Return the output of the blocks that double the sides and read earlier outputs."""
        levels = list(reversed(range(len(self.widths))))  # the smallest image first
        for number, level in enumerate(levels):
            has_attention = self.sizes["up_block_types"][number] in ATTENDING_BLOCKS
            with self.b.scope(f"up{number + 1}"):
                # a layer more than on the way down, which reads the input of the level
                for i in range(1, self.sizes["layers_per_block"] + 2):
                    x = self.b.op("concat", x, skips.pop(), name=f"with_skip{i}", axis=1)
                    x = self.add_residual(x, self.widths[level], f"residual{i}")
                    if has_attention:
                        x = self.add_transformer(x, level, f"transformer{i}")
                is_last = level == 0
                if not is_last:
                    _, channels, height, width = self.b.shape(x)
                    size = (2 * height, 2 * width)
                    x = self.b.op("resize2d", x, name="doubled", size=size, mode="nearest")
                    x = conv2d(self.b, x, channels, kernel=3, name="double", padding=1, bias=True)
        return x

    def add_group_norm(self, x: str, name: str) -> str:
        """Return the norm of `x [n, c, h, w]` in groups of channels."""
        channels = self.b.shape(x)[1]
        with self.b.scope(name):
            w = self.b.weight("w", (channels,))
            bias = self.b.weight("b", (channels,))
            groups = self.sizes["norm_num_groups"]
            return self.b.op("group_norm", x, w, bias, name="group_norm", groups=groups)

    def add_residual(self, x: str, width: int, name: str) -> str:
        """Return `x` plus two convolutions, between which the time step is added."""
        b = self.b
        with b.scope(name):
            y = b.op("silu", self.add_group_norm(x, "norm1"), name="silu1")
            y = conv2d(b, y, width, kernel=3, name="conv1", padding=1, bias=True)
            state = linear(b, self.state, width, "state")
            state = b.op("reshape", state, name="state/image", shape=(*b.shape(state), 1, 1))
            y = b.op("pointwise", y, state, name="with_state", function="add")
            y = b.op("silu", self.add_group_norm(y, "norm2"), name="silu2")
            y = conv2d(b, y, width, kernel=3, name="conv2", padding=1, bias=True)
            if b.shape(x)[1] != width:
                x = conv2d(b, x, width, kernel=1, name="shortcut", bias=True)
            return b.op("add", x, y, name="add")

    def add_transformer(self, x: str, level: int, name: str) -> str:
        """Return `x [n, c, h, w]` plus blocks that attend within the image, and to the text."""
        b = self.b
        batch, channels, height, width = b.shape(x)
        pixels = height * width
        head_count = self.sizes["heads"][level]
        heads = Heads(head_count, channels // head_count)
        with b.scope(name):
            y = self.add_group_norm(x, "norm")
            y = b.op("reshape", y, name="flat", shape=(batch, channels, pixels))
            y = b.op("transpose", y, name="rows", order=(0, 2, 1))
            y = linear(b, y, channels, "in")
            for i in range(1, self.sizes["transformer_layers"][level] + 1):
                with b.scope(f"block{i}"):
                    y = self._add_block(y, heads)
            y = linear(b, y, channels, "out")
            y = b.op("transpose", y, name="columns", order=(0, 2, 1))
            y = b.op("reshape", y, name="image", shape=(batch, channels, height, width))
            return b.op("add", x, y, name="add")

    def _add_block(self, x: str, heads: Heads) -> str:
        """Return tokens after attention, attention to the text, and a feed-forward part."""
        b = self.b
        width = b.shape(x)[-1]
        for number, reads_text in ((1, False), (2, True)):
            y = norm(b, x, "layer", f"norm{number}")
            attended_tokens = self.text if reads_text else y
            with b.scope(f"attention{number}"):
                q = linear(b, y, width, "q", bias=False)
                k = linear(b, attended_tokens, width, "k", bias=False)
                v = linear(b, attended_tokens, width, "v", bias=False)
                attended = attend(b, [(q, k, v)], heads, "heads")
                y = linear(b, attended, width, "out")
            x = b.op("add", x, y, name=f"add{number}")
        y = norm(b, x, "layer", "norm3")
        y = feed_forward(b, y, 4 * width, "geglu", bias=True, name="ffn")
        return b.op("add", x, y, name="add3")

"""Images before the words of a decoder, as Qwen3-VL and Qwen3.5 read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from steptime.network.families.transformer import blocks
from steptime.network.layers.blocks import append_activation
from steptime.network.layers.dense import linear
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Attributes, Builder

Parameters = Mapping[str, Any]  # of the family `transformer`, where each is documented
CORNERS = 4  # learned positions about each patch, between which its own is interpolated


@dataclass(frozen=True)
class ImagePrefix:
    """A tower of images whose tokens stand before the words.

    Attributes:
        settings: hyperparameters of its blocks, sorted by name.
        depth: blocks.
        position_count: rows of the table of positions.
        merge: patches of a side that become one token.
        frames: frames that a patch spans; an image is repeated.
        output_width: width of the tokens.
        taps: numbers from 0 of blocks whose output is given to the decoder, too.
    """

    settings: tuple[tuple[str, Any], ...]
    depth: int
    position_count: int
    merge: int
    frames: int
    output_width: int
    taps: tuple[int, ...] = ()

    @property
    def pixels_of_token(self) -> int:
        """Pixels of a side of an image that a token stands for."""
        return int(dict(self.settings)["patch"]) * self.merge

    def token_count(self, p: Parameters) -> int:
        """Return the tokens of all images of a sequence."""
        return int(p["images"]) * (int(p["image"]) // self.pixels_of_token) ** 2

    def join(self, b: Builder, words: str, p: Parameters, batch: int) -> str:
        """Return words `[n, l, width]`, the first of which images stand in place of."""
        if not p["images"]:
            return words
        image_tokens = self.token_count(p)
        with b.scope("images"):
            image = self._tokens(b, p, batch)
        _, length, _ = b.shape(words)
        # the images take the place of the first words
        behind_images: Attributes = {"axis": 1, "start": image_tokens, "stop": length}
        text_tokens = b.op("slice", words, name="words", **behind_images)
        return b.op("concat", image, text_tokens, name="images_and_words", axis=1)

    def _tokens(self, b: Builder, p: Parameters, batch: int) -> str:
        """Return the tokens of all images, with what the tapped blocks add to them."""
        settings = {**p, **dict(self.settings)}
        # these belong to the decoder's blocks; the blocks of the tower are plain
        for name in ("stem_design", "image_prefix", "designs", "ahead_designs"):
            settings.pop(name, None)
        x = self._patches(b, settings, batch * int(p["images"]))
        x, tapped_outputs = self._run_blocks(b, x, settings)
        tokens = self._merge_patches(b, x, "merger", is_normed_after=False)
        for number, tapped_output in enumerate(tapped_outputs, start=1):
            tokens = b.op("add", tokens, tapped_output, name=f"add_tap{number}")
        shape = (batch, self.token_count(p), self.output_width)
        return b.op("reshape", tokens, name="all", shape=shape)

    def _run_blocks(self, b: Builder, x: str, settings: Parameters) -> tuple[str, list[str]]:
        """Return patches after all blocks, and the output of each tapped block as tokens.

        The blocks are built in segments: each ends behind a tapped block, the last one behind the
        last block.
        """
        tapped_outputs = []
        segment_starts = [0, *(tap + 1 for tap in self.taps)]
        segments = pairwise([*segment_starts, self.depth])
        for number, (start, end) in enumerate(segments, start=1):
            segment = {**settings, "layers": end - start}
            x = blocks(b, x, segment, causal=False, name=f"part{number}_block")
            has_tap = number <= len(self.taps)
            if has_tap:
                tokens = self._merge_patches(b, x, f"merger{number}", is_normed_after=True)
                tapped_outputs.append(tokens)
        return x, tapped_outputs

    def _patches(self, b: Builder, p: Parameters, count: int) -> str:
        """Return the patches of `count` images with their positions."""
        patch_count = (p["image"] // p["patch"]) ** 2
        vector_width = p["channels"] * self.frames * p["patch"] ** 2
        vectors = b.input("patches", (count, patch_count, vector_width))
        x = linear(b, vectors, p["width"], "patch")
        positions = self._positions(b, patch_count, p["width"])
        return b.op("add", x, positions, name="add_position")

    def _positions(self, b: Builder, patch_count: int, width: int) -> str:
        """Return the position of each patch, interpolated from a table of fixed size.

        Of the four entries around a patch (corners) each has a share.
        """
        table = b.weight("position/w", (self.position_count, width))
        corners = b.buffer("corners", (patch_count, CORNERS), "int64")
        positions = b.op("embedding", corners, table, name="position")
        shares = b.buffer("corner_shares", (patch_count, CORNERS, 1))
        positions = b.op("pointwise", positions, shares, name="position_shares", function="mul")
        sum_over_corners: Attributes = {"function": "sum", "axes": (1,), "keep": False}
        return b.op("reduce", positions, name="position_sum", **sum_over_corners)

    def _merge_patches(self, b: Builder, x: str, name: str, *, is_normed_after: bool) -> str:
        """Return patches `[n, l, width]` with each few of them made one token."""
        n, length, width = b.shape(x)
        patches_per_token = self.merge**2
        merged_width = width * patches_per_token
        merged_shape = (n, length // patches_per_token, merged_width)
        with b.scope(name):
            if not is_normed_after:
                x = norm(b, x, "layer", "norm")
            x = b.op("reshape", x, name="few", shape=merged_shape)
            if is_normed_after:
                x = norm(b, x, "layer", "norm")
            x = append_activation(b, linear(b, x, merged_width, "up"), "gelu")
            return linear(b, x, self.output_width, "down")

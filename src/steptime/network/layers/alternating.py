"""Residual streams of which one is computed and all are corrected (AltUp; Gemma 3n, 2025).

Baykal et al. 2023, Alternating Updates for Efficient Transformers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steptime.network.layers.dense import linear
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Builder

Part = Callable[[str], str]
SPARSE_DEVIATIONS = 1.6448536269514722  # above the mean: the largest 5 % of a normal distribution


@dataclass(frozen=True)
class AltUp:
    """Streams `[n, l, count*width]` of which a block computes the first.

    Attributes:
        count: streams.
        laurel_rank: rank of the learned residual beside attention.
        scales_output: the first stream is scaled before the block's own embeddings gate it.
    """

    count: int
    laurel_rank: int
    scales_output: bool

    def expand(self, b: Builder, x: str) -> str:
        """Return `x [n, l, width]` as streams: itself, and products of it as large as it is."""
        with b.scope("streams_in"):
            target = _magnitude(b, x, "target")
            side_streams = [self._project(b, x, target, i) for i in range(1, self.count)]
            return b.op("concat", x, *side_streams, name="streams", axis=2)

    def collapse(self, b: Builder, x: str) -> str:
        """Return the mean of the first stream and of products of the others."""
        with b.scope("streams_out"):
            total = _stream(b, x, self.count, number=0, name="first")
            target = _magnitude(b, total, "target")
            for i in range(1, self.count):
                stream = _stream(b, x, self.count, i, f"stream{i}")
                total = b.op("add", total, self._project(b, stream, target, i), name=f"sum{i}")
            return _scale(b, total, 1 / self.count, "mean")

    def build(
        self, b: Builder, x: str, p: Mapping[str, Any], parts: Sequence[Part], add_tokens: Part
    ) -> str:
        """Return streams after a block.

        AltUp predicts all streams, computes the first, and corrects all by the first one's error.

        Args:
            b: the graph so far.
            x: the streams.
            p: the hyperparameters of the block.
            parts: attention and the feed-forward part.
            add_tokens: makes what the block's own embeddings add to the streams but the first.
        """
        router = [
            b.weight("router/norm/w", (p["width"],)),
            b.weight("router/w", (self.count, p["width"])),
        ]
        predicted = self._predict(b, x, router)
        first = _stream(b, predicted, self.count, number=0, name="active")
        computed = self._compute_stream(b, first, p["norm"], parts)
        corrected = self._correct(b, predicted, first, computed, router)
        return self._add_tokens(b, corrected, add_tokens)

    def _compute_stream(self, b: Builder, x: str, kind: str, parts: Sequence[Part]) -> str:
        """Return one stream after attention and the feed-forward part.

        Beside attention stands a learned residual of low rank (Laurel). All norms are of one kind.
        """
        attention, feed_forward = parts
        normed = norm(b, x, kind, "norm1")
        laurel = self._laurel(b, normed, kind)
        attended = norm(b, attention(normed), kind, "output_norm1")
        y = b.op("add", b.op("add", attended, x, name="add1"), laurel, name="add_laurel")
        # two residual sums, each of the magnitude of `x`, are brought back to its magnitude
        y = _scale(b, y, 1 / math.sqrt(2), "joined")
        fed = norm(b, feed_forward(norm(b, y, kind, "norm2")), kind, "output_norm2")
        return b.op("add", fed, y, name="add2")

    def _project(self, b: Builder, x: str, target: str, number: int) -> str:
        """Return a product of `x`, brought to the target's magnitude."""
        width = b.shape(x)[-1]
        y = linear(b, x, width, f"projection{number}", bias=False)
        y_size = _magnitude(b, y, f"size{number}")
        y = b.op("pointwise", y, target, name=f"grown{number}", function="mul")
        return b.op("pointwise", y, y_size, name=f"sized{number}", function="div")

    def _laurel(self, b: Builder, x: str, kind: str) -> str:
        """Return the learned residual: `x`, and a product of low rank."""
        with b.scope("laurel"):
            y = linear(b, x, self.laurel_rank, "left", bias=False)
            y = linear(b, y, b.shape(x)[-1], "right", bias=False)
            return b.op("add", x, norm(b, y, kind, "norm"), name="add")

    def _route(self, b: Builder, x: str, router: Sequence[str], name: str) -> str:
        """Return a number of each stream for each token."""
        norm_weight, weight = router
        y = b.op("rms_norm", x, norm_weight, name=f"{name}/norm")
        y = _scale(b, y, 1 / b.shape(x)[-1], f"{name}/scaled")
        y = b.op("linear", y, weight, name=f"{name}/routed")
        return b.op("tanh", y, name=f"{name}/modalities")

    def _predict(self, b: Builder, x: str, router: Sequence[str]) -> str:
        """Return each stream with a mix of all streams added."""
        n, length, total_width = b.shape(x)
        width = total_width // self.count
        with b.scope("predict"):
            first = _stream(b, x, self.count, number=0, name="first")
            # the router gives each token a number for each stream (the paper's modalities), and
            # these give it a matrix that mixes the streams
            modalities = self._route(b, first, router, "router")
            mixing = linear(b, modalities, self.count**2, "coefficients", bias=False)
            shape = (n, length, self.count, self.count)
            mixing = b.op("reshape", mixing, name="matrix", shape=shape)
            streams = b.op("reshape", x, name="rows", shape=(n, length, self.count, width))
            mixed = b.op("matmul", mixing, streams, name="mixed")
            mixed = b.op("reshape", mixed, name="whole", shape=(n, length, total_width))
            return b.op("add", mixed, x, name="add")

    def _correct(
        self, b: Builder, predicted: str, first: str, computed: str, router: Sequence[str]
    ) -> str:
        """Return the predicted streams, each with a share of the first one's error added."""
        n, length, total_width = b.shape(predicted)
        width = total_width // self.count
        with b.scope("correct"):
            modalities = self._route(b, computed, router, "router")
            shares = linear(b, modalities, self.count, "coefficients", bias=False)
            # each stream takes its share, learned around 1, of the first stream's error
            shares = b.op("pointwise", shares, name="shares", function="add", scalar=1.0)
            shares = b.op("reshape", shares, name="column", shape=(n, length, self.count, 1))
            error = b.op("pointwise", computed, first, name="error", function="sub")
            error = b.op("reshape", error, name="row", shape=(n, length, 1, width))
            correction = b.op("pointwise", shares, error, name="spread", function="mul")
            correction = b.op("reshape", correction, name="whole", shape=(n, length, total_width))
            return b.op("add", correction, predicted, name="add")

    def _add_tokens(self, b: Builder, x: str, add_tokens: Part) -> str:
        """Return streams with the block's own embeddings, gated by the first, added to the rest."""
        width = b.shape(x)[-1] // self.count
        first = _stream(b, x, self.count, number=0, name="corrected")
        gating = first
        if self.scales_output:
            scale = b.weight("output_scale/w", (width,))
            gating = b.op("pointwise", first, scale, name="output_scale", function="mul")
        added = b.op("tile", add_tokens(gating), name="tokens", times=(1, 1, self.count - 1))
        stop = self.count * width
        side_streams = b.op("slice", x, name="side_streams", axis=-1, start=width, stop=stop)
        side_streams = b.op("add", side_streams, added, name="add_tokens")
        return b.op("concat", first, side_streams, name="block_streams", axis=2)


def keep_largest(b: Builder, x: str) -> str:
    """Return `x` less its mean and some standard deviations, zero below: few numbers stay."""
    with b.scope("sparse"):
        mean = b.op("reduce", x, name="mean", function="mean", axes=(2,), keep=True)
        centred = b.op("pointwise", x, mean, name="centred", function="sub")
        # the magnitude of what has mean 0 is its standard deviation
        deviation = _magnitude(b, centred, "deviation")
        threshold = _scale(b, deviation, SPARSE_DEVIATIONS, "cut")
        excess = b.op("pointwise", centred, threshold, name="above", function="sub")
        return b.op("relu", excess, name="relu")


def _magnitude(b: Builder, x: str, name: str) -> str:
    """Return the root of the mean square of each token, `[n, l, 1]`."""
    square = b.op("mul", x, x, name=f"{name}/square")
    mean = b.op("reduce", square, name=f"{name}/mean", function="mean", axes=(2,), keep=True)
    return b.op("pointwise", mean, name=f"{name}/root", function="sqrt")


def _scale(b: Builder, x: str, factor: float, name: str) -> str:
    """Return `x` times a constant."""
    return b.op("pointwise", x, name=name, function="mul", scalar=factor)


def _stream(b: Builder, x: str, count: int, number: int, name: str) -> str:
    """Return one of so many streams `[n, l, count*width]`, by its number from 0."""
    width = b.shape(x)[-1] // count
    start = number * width
    return b.op("slice", x, name=name, axis=-1, start=start, stop=start + width)

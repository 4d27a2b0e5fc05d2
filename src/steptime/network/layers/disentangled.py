"""Attention with scores of content and of places (DeBERTa, He et al. 2020, section 3.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from steptime.network.layers.blocks import append_activation
from steptime.network.layers.dense import linear
from steptime.network.layers.mixers import to_tokens
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Attributes, Builder

Parameters = Mapping[str, Any]  # of the family `transformer`, where each is documented


@dataclass(frozen=True)
class Disentangled:
    """Attention whose scores add products of content with embeddings of distances.

    Attributes:
        span: distances that are told apart on either side.
        reads_places: queries of content meet keys of places (`c2p`).
        is_read_by_places: queries of places meet keys of content (`p2c`).
        shares_products: places pass the products of content, not own ones.
        has_norm: the table of distances is normed.
    """

    span: int
    reads_places: bool
    is_read_by_places: bool
    shares_products: bool
    has_norm: bool

    def table(self, b: Builder, width: int, name: str) -> str:
        """Return the embeddings of distances, `[2*span, width]`, which all blocks read."""
        with b.scope(name):
            table = b.weight("w", (2 * self.span, width))
            return norm(b, table, "layer", "norm") if self.has_norm else table

    def attention(self, b: Builder, x: str, p: Parameters, name: str, table: str) -> str:
        """Return the attention of `x [n, l, width]` to itself."""
        heads = b.rank_share(p["heads"], "heads")
        inner = heads * p["head_width"]
        scale: Attributes = {"function": "mul", "scalar": self._scale(p["head_width"])}
        with b.scope(name):
            x = b.gather_sequence(x, "gather")
            q, k, v = (_heads(b, linear(b, x, inner, part), heads, part) for part in "qkv")
            scaled_k = b.op("pointwise", k, name="k_scaled", **scale)
            scores = b.op("matmul", q, scaled_k, name="scores", transpose_b=True)
            if self.reads_places:
                keys = self._of_places(b, table, heads, inner, "k")
                term = _scores_of_places(b, q, keys, "content_to_place", scale)
                scores = b.op("add", scores, term, name="with_places")
            if self.is_read_by_places:
                queries = self._of_places(b, table, heads, inner, "q")
                term = _scores_of_places(b, k, queries, "place_to_content", scale)
                term = b.op("transpose", term, name="from_places", order=(0, 1, 3, 2))
                scores = b.op("add", scores, term, name="with_content")
            y = _sum_values(b, scores, v)
            return b.sum_over_ranks(linear(b, y, p["width"], "out"), "sum")

    def _scale(self, head_width: int) -> float:
        """Return 1 / sqrt(width * terms): a sum of more terms would have larger scores."""
        terms = 1 + self.reads_places + self.is_read_by_places
        return float((head_width * terms) ** -0.5)

    def _of_places(self, b: Builder, table: str, heads: int, inner: int, part: str) -> str:
        """Return the keys or queries of places of each head, `[heads, 2*span, d]`."""
        position_part = f"place_{part}"
        if self.shares_products:
            # positions and content share the weights, which `attention` has made already
            content_path = b.full_path(part)
            y = b.op("linear", table, f"{content_path}/w", name=f"{position_part}/linear")
            y = b.op("bias", y, f"{content_path}/b", name=f"{position_part}/bias", axis=-1)
        else:
            y = linear(b, table, inner, position_part)
        # a distance lies between -span and span
        shape = (2 * self.span, heads, inner // heads)
        y = b.op("reshape", y, name=f"{position_part}/heads", shape=shape)
        return b.op("transpose", y, name=f"{position_part}/by_head", order=(1, 0, 2))


def _sum_values(b: Builder, scores: str, values: str) -> str:
    """Return values `[n, heads, l, d]` summed by the softmax of scores, as `[n, l, heads*d]`."""
    shares = b.op("softmax", scores, name="softmax")
    y = b.op("matmul", shares, values, name="attended")
    n, heads, length, head_width = b.shape(y)
    y = b.op("transpose", y, name="tokens", order=(0, 2, 1, 3))
    return b.op("reshape", y, name="whole", shape=(n, length, heads * head_width))


def _heads(b: Builder, x: str, heads: int, name: str) -> str:
    """Return `x [n, l, heads*d]` as `[n, heads, l, d]`."""
    n, length, width = b.shape(x)
    x = b.op("reshape", x, name=f"{name}/heads", shape=(n, length, heads, width // heads))
    return b.op("transpose", x, name=f"{name}/by_head", order=(0, 2, 1, 3))


def _scores_of_places(b: Builder, x: str, places: str, name: str, scale: Attributes) -> str:
    """Return for `x [n, heads, l, d]` its product with the place of each other token."""
    with b.scope(name):
        # a score for each token and distance, of which each pair of tokens takes that of its own
        by_distance = b.op("matmul", x, places, name="scores", transpose_b=True)
        n, heads, length, _ = b.shape(x)
        distances = b.buffer("distances", (1, 1, length, length), "int64")
        shape = (n, heads, length, length)
        distances = b.op("broadcast", distances, name="of_all", shape=shape)
        y = b.op("gather_elements", by_distance, distances, name="chosen", axis=3)
        return b.op("pointwise", y, name="scaled", **scale)


@dataclass(frozen=True)
class InputConvolution:
    """A convolution of a network's embeddings that is added to a block's output (DeBERTa-v2).

    Attributes:
        kernel: tokens that it reads.
        groups: groups of its channels.
        activation: the activation after it.
    """

    kernel: int
    groups: int
    activation: str

    def build(self, b: Builder, x: str, embeddings: str, kind: str) -> str:
        """Return `x` with the convolved embeddings added, normed."""
        with b.scope("input_convolution"):
            y = self._convolve(b, embeddings)
            y = append_activation(b, y, self.activation)
            return norm(b, b.op("add", x, y, name="add"), kind, "norm")

    def _convolve(self, b: Builder, embeddings: str) -> str:
        """Return embeddings `[n, l, width]` after a convolution along the tokens."""
        n, length, width = b.shape(embeddings)
        y = b.op("transpose", embeddings, name="channels", order=(0, 2, 1))
        y = b.op("reshape", y, name="image", shape=(n, width, length, 1))
        w = b.weight("w", (width, width // self.groups, self.kernel, 1))
        side = (self.kernel - 1) // 2  # as many tokens come out as go in
        attributes: Attributes = {
            "stride": (1, 1),
            "padding": (side, side, 0, 0),
            "groups": self.groups,
        }
        y = b.op("conv2d", y, w, name="conv2d", **attributes)
        y = b.op("bias", y, b.weight("b", (width,)), name="bias", axis=1)
        return to_tokens(b, y)

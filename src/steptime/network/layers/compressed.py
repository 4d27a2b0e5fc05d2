"""Attention to a window and to compressed tokens, and residual streams (DeepSeek-V4, 2026)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from steptime.network.layers.attention import append_index_scores, norm_heads
from steptime.network.layers.dense import linear
from steptime.network.layers.designs import Indexer
from steptime.network.layers.mixers import refuse_context_ranks
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Attributes, Builder


@dataclass(frozen=True)
class CompressedAttention:
    """Attention whose one key of a token is its value, too, beside compressed tokens.

    Attributes:
        heads: heads of queries; all share one key.
        head_width: width of a key.
        rotary_width: features of a key that are turned by place.
        window: tokens that are seen as they are.
        latent_q: width of a vector that queries are made from.
        groups: groups of heads whose outputs are brought to a narrow vector each.
        group_width: width of these vectors.
        ratio: tokens that make a compressed one, 0 where attention sees the window alone.
        overlaps: a compressed token reads twice as many tokens.
        indexer: chooses compressed tokens; None where all are seen.
    """

    heads: int
    head_width: int
    rotary_width: int
    window: int
    latent_q: int
    groups: int
    group_width: int
    ratio: int = 0
    overlaps: bool = False
    indexer: Indexer | None = None

    def build(self, b: Builder, x: str, width: int, name: str) -> str:
        """Return the mixed tokens of `x [n, l, width]`."""
        refuse_context_ranks(b)
        heads = b.rank_share(self.heads, "heads")
        with b.scope(name):
            x = b.gather_sequence(x, "gather")
            angles = self._angles(b, x)
            query_latent = linear(b, x, self.latent_q, "q_down", bias=False)
            query_latent = norm(b, query_latent, "rms", "q_down_norm")
            q = self._queries(b, query_latent, angles, heads)
            y = self._attend_to_window(b, x, q, angles, heads)
            if self.ratio:  # tokens beyond the window are seen compressed
                far = self._attend_to_compressed(b, x, q, query_latent, heads)
                y = b.op("add", y, far, name="both")
            # The values are the rotated keys, so their sum is rotated back.
            y = b.op(
                "rotary", y, angles, name="rotary_back", head_width=self.head_width, inverse=True
            )
            return b.sum_over_ranks(self._project(b, y, width), "sum")

    def _queries(self, b: Builder, query_latent: str, angles: str, heads: int) -> str:
        """Return the queries of a rank's heads, normed and turned by their positions."""
        q = linear(b, query_latent, heads * self.head_width, "q", bias=False)
        q = norm_heads(b, q, heads, "plain_rms", "q_norm")
        return b.op("rotary", q, angles, name="rotary_q", head_width=self.head_width)

    def _attend_to_window(self, b: Builder, x: str, q: str, angles: str, heads: int) -> str:
        """Return attention to the last tokens, with one vector as key and value for all heads."""
        kv = linear(b, x, self.head_width, "kv", bias=False)
        kv = norm(b, kv, "rms", "kv_norm")
        kv = b.op("rotary", kv, angles, name="rotary_kv", head_width=self.head_width)
        sinks = b.weight("sinks", (heads,))  # a score of each head that has no value
        attributes: Attributes = {
            "causal": True,
            "window": self.window,
            "heads": heads,
            "kv_heads": 1,
        }
        return b.op("attention", q, kv, kv, sinks, name="window", **attributes)

    def _angles(self, b: Builder, x: str) -> str:
        return b.buffer("angles", (b.shape(x)[1], self.rotary_width))

    def _attend_to_compressed(
        self, b: Builder, x: str, q: str, query_latent: str, heads: int
    ) -> str:
        """Return attention of all queries to the compressed tokens, of which some are chosen."""
        with b.scope("compressor"):
            keys = self._compress(b, x, self.head_width)
        if self.indexer:
            # scores the compressed tokens: attention reads only those of high scores
            self._score_compressed(b, x, query_latent, self.indexer)
            _, key_count, _ = b.shape(keys)
            selected = min(key_count, self.indexer.selected)
            # the first `selected` keys stand for the chosen ones: the cost is the same
            keys = b.op("slice", keys, name="chosen", axis=1, start=0, stop=selected)
        attributes: Attributes = {"heads": heads, "kv_heads": 1, "causal": False}
        return b.op("attention", q, keys, keys, name="compressed", **attributes)

    def _score_compressed(self, b: Builder, x: str, query_latent: str, indexer: Indexer) -> None:
        """Append the ops by which an indexer scores the compressed tokens."""
        with b.scope("indexer"):
            keys = self._compress(b, x, indexer.width)
            queries = linear(b, query_latent, indexer.heads * indexer.width, "q", bias=False)
            append_index_scores(b, x, queries, keys, indexer, causal=False)

    def _compress(self, b: Builder, x: str, width: int) -> str:
        """Return one token for each `ratio` tokens: a sum weighed by learned gates, normed."""
        n, length, _ = b.shape(x)
        range_size = min(self.ratio, length)
        # A compressed token sums one range of tokens, or with overlap also the range before: each
        # token then has one set of features for its own range and one for the next.
        ranges_read = 2 if self.overlaps else 1
        feature_count = ranges_read * width
        values = linear(b, x, feature_count, "kv", bias=False)
        gates = linear(b, x, feature_count, "gate", bias=False)
        positions = b.weight("places/w", (self.ratio, feature_count))
        positions = b.op("slice", positions, name="places", axis=0, start=0, stop=range_size)
        values = _cut_ranges(b, values, "values", range_size)
        gates = _cut_ranges(b, gates, "gates", range_size)
        gates = b.op("pointwise", gates, positions, name="placed", function="add")
        shares = _softmax_in_ranges(b, gates)
        y = b.op("mul", values, shares, name="weighed")
        y = b.op("reduce", y, name="summed", function="sum", axes=(2,), keep=False)
        if self.overlaps:
            shape = (n, length // range_size, ranges_read, width)
            y = b.op("reshape", y, name="sides", shape=shape)
            y = b.op("reduce", y, name="joined", function="sum", axes=(2,), keep=False)
        return norm(b, y, "rms", "kv_norm")

    def _project(self, b: Builder, y: str, width: int) -> str:
        """Return the output: each group of heads to a narrow vector, and all of these together."""
        n, length, inner = b.shape(y)
        groups = b.rank_share(self.groups, "groups of heads")
        input_width = inner // groups  # of a group
        y = b.op("reshape", y, name="groups", shape=(n * length, groups, input_width))
        # The groups are the batch of one product of matrices: they have to be the first axis.
        y = b.op("transpose", y, name="groups/first", order=(1, 0, 2))
        w = b.weight("groups/w", (groups, input_width, self.group_width))
        y = b.op("matmul", y, w, name="groups/product")
        y = b.op("transpose", y, name="groups/last", order=(1, 0, 2))
        y = b.op("reshape", y, name="groups/all", shape=(n, length, groups * self.group_width))
        return linear(b, y, width, "out", bias=False)


def _cut_ranges(b: Builder, x: str, name: str, range_size: int) -> str:
    """Return tokens `[n, l, width]` as ranges, `[n, ranges, tokens, width]`.

    The last tokens, too few for a range, are left out.
    """
    n, length, width = b.shape(x)
    range_count = length // range_size
    x = b.op("slice", x, name=name, axis=1, start=0, stop=range_count * range_size)
    shape = (n, range_count, range_size, width)
    return b.op("reshape", x, name=f"{name}/ranges", shape=shape)


def _softmax_in_ranges(b: Builder, gates: str) -> str:
    """Return the softmax of gates `[n, ranges, tokens, width]` along the tokens of a range."""
    # The op is along the last axis: move a range's tokens there and back.
    swap_last_axes = (0, 1, 3, 2)
    gates = b.op("transpose", gates, name="gates/last", order=swap_last_axes)
    shares = b.op("softmax", gates, name="shares")
    return b.op("transpose", shares, name="shares/places", order=swap_last_axes)


def expand_streams(b: Builder, x: str, count: int) -> str:
    """Return `x [n, l, width]` as so many equal residual streams, `[n, l, count*width]`."""
    return b.op("tile", x, name="embedding_streams", times=(1, 1, count))


def collapse_streams(b: Builder, x: str, count: int) -> str:
    """Return the weighed sum of residual streams, as one of `[n, l, width]`."""
    with b.scope("streams"):
        shares = _coefficients(b, x, count, scales=1)
        return _sum_of_streams(b, x, b.op("sigmoid", shares, name="shares"), count)


def through_streams(
    b: Builder, x: str, count: int, part: Callable[[str], str], name: str, kind: str
) -> str:
    """Return residual streams after a part that reads their weighed sum (hyper-connections).

    Each token has weights that sum the streams into the part's input, a matrix that mixes the
    streams, and weights that spread the part's output over them.

    Args:
        b: the builder.
        x: the streams, `[n, l, count*width]`.
        count: their number.
        part: appends the part, attention or feed-forward.
        name: "part" and the number of the part in its block.
        kind: kind of the norm before the part.
    """
    n, length, _ = b.shape(x)
    with b.scope(f"{name}_streams"):
        mix = _mix_coefficients(b, x, count)
        part_input = _sum_of_streams(b, x, mix.input_shares, count)
        mixed = _mix_streams(b, x, mix.matrix, count)
        shares = b.op("sigmoid", mix.output_shares, name="after")
        shares = b.op("reshape", shares, name="after/one", shape=(n, length, count, 1))
    part_number = name.removeprefix("part")
    y = part(norm(b, part_input, kind, f"norm{part_number}"))
    with b.scope(f"{name}_sum"):
        y = b.op("reshape", y, name="one", shape=(n, length, 1, b.shape(y)[-1]))
        y = b.op("pointwise", shares, y, name="spread", function="mul")
        y = b.op("add", mixed, y, name="add")
        return b.op("reshape", y, name="whole", shape=b.shape(x))


class _MixCoefficients(NamedTuple):
    """Coefficients of each token, made from all its streams.

    Attributes:
        input_shares: the weight of each stream in the part's input, `[n, l, count]`.
        output_shares: how much of the part's output each stream gets, before a sigmoid.
        matrix: the matrix that mixes the streams, `[n, l, count*count]`, before a softmax.
    """

    input_shares: str
    output_shares: str
    matrix: str


def _mix_coefficients(b: Builder, x: str, count: int) -> _MixCoefficients:
    """Return the coefficients by which a part reads, mixes and changes the streams."""
    sizes = (count, count, count * count)
    coefficients = _coefficients(b, x, sum(sizes), scales=len(sizes))
    input_shares, output_shares, matrix = b.append(
        b.full_path("parts"), "split", (coefficients,), axis=-1, sizes=sizes
    )
    input_shares = b.op("sigmoid", input_shares, name="before")
    return _MixCoefficients(input_shares, output_shares, matrix)


def _mix_streams(b: Builder, x: str, matrix: str, count: int) -> str:
    """Return the streams `[n, l, count, width]` that a matrix makes of the streams `x`."""
    n, length, total_width = b.shape(x)
    matrix = b.op("reshape", matrix, name="matrix", shape=(n, length, count, count))
    # one softmax stands for the iterations that make the matrix doubly stochastic
    matrix = b.op("softmax", matrix, name="stochastic")
    matrix = b.op("transpose", matrix, name="turned", order=(0, 1, 3, 2))
    shape = (n, length, count, total_width // count)
    streams = b.op("reshape", x, name="old", shape=shape)
    return b.op("matmul", matrix, streams, name="mixed")


def _coefficients(b: Builder, x: str, width: int, scales: int) -> str:
    """Return the coefficients of a mix of streams: a scaled product of all of them."""
    y = linear(b, norm(b, x, "plain_rms", "norm"), width, "coefficients")
    # one scale multiplies all coefficients, which costs as much as one for each of the kinds
    scale = b.op("slice", b.weight("scale/w", (scales,)), name="scale", axis=0, start=0, stop=1)
    return b.op("pointwise", y, scale, name="scaled", function="mul")


def _sum_of_streams(b: Builder, x: str, shares: str, count: int) -> str:
    n, length, total_width = b.shape(x)
    streams = b.op("reshape", x, name="streams", shape=(n, length, count, total_width // count))
    shares = b.op("reshape", shares, name="shares/row", shape=(n, length, 1, count))
    y = b.op("matmul", shares, streams, name="sum")
    return b.op("reshape", y, name="sum/one", shape=(n, length, total_width // count))

"""Attention to a window and to compressed tokens, and residual streams (DeepSeek-V4, 2026)."""

from collections.abc import Callable
from dataclasses import dataclass

from steptime.network.layers.attention import INDEX_VALUES, norm_heads
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
        ratio: tokens that make a compressed one, 0 for none.
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
            reduced = linear(b, x, self.latent_q, "q_down", bias=False)
            reduced = norm(b, reduced, "rms", "q_down_norm")
            q = linear(b, reduced, heads * self.head_width, "q", bias=False)
            q = norm_heads(b, q, heads, "plain_rms", "q_norm")
            q = b.op("rotary", q, angles, name="rotary_q", head_width=self.head_width)
            # One vector of a token is its key and its value for all heads.
            kv = linear(b, x, self.head_width, "kv", bias=False)
            kv = norm(b, kv, "rms", "kv_norm")
            kv = b.op("rotary", kv, angles, name="rotary_kv", head_width=self.head_width)
            attributes: Attributes = {"heads": heads, "kv_heads": 1}
            sinks = b.weight("sinks", (heads,))
            near: Attributes = {"causal": True, "window": self.window, **attributes}
            y = b.op("attention", q, kv, kv, sinks, name="window", **near)
            if self.ratio:  # tokens beyond the window are seen compressed
                far = self._attend_to_compressed(b, x, q, reduced, attributes)
                y = b.op("add", y, far, name="both")
            y = b.op(
                "rotary", y, angles, name="rotary_back", head_width=self.head_width, inverse=True
            )
            return b.sum_over_ranks(self._project(b, y, width), "sum")

    def _angles(self, b: Builder, x: str) -> str:
        return b.buffer("angles", (b.shape(x)[1], self.rotary_width))

    def _attend_to_compressed(
        self, b: Builder, x: str, q: str, reduced: str, attributes: Attributes
    ) -> str:
        """Return attention of all queries to the compressed tokens, of which some are chosen."""
        with b.scope("compressor"):
            keys = self._compress(b, x, self.head_width)
        indexer = self.indexer
        if indexer:  # scores the compressed tokens: attention reads only those of high scores
            with b.scope("indexer"):
                index_keys = self._compress(b, x, indexer.width)
                index_q = linear(b, reduced, indexer.heads * indexer.width, "q", bias=False)
                # no op reads the weights of heads: the attention below counts the weighted sum of
                # scores
                linear(b, x, indexer.heads, "weights", bias=False)
                # one feature of the keys stands for the values, whose content costs nothing
                index_values = b.op(
                    "slice", index_keys, name="one", axis=-1, start=0, stop=INDEX_VALUES
                )
                sizes: Attributes = {"heads": indexer.heads, "kv_heads": 1}
                index_inputs = (index_q, index_keys, index_values)
                b.op("attention", *index_inputs, name="scores", causal=False, **sizes)
            _, key_count, _ = b.shape(keys)
            selected = min(key_count, indexer.selected)
            # the first `selected` keys stand for the chosen ones: the cost is the same
            keys = b.op("slice", keys, name="chosen", axis=1, start=0, stop=selected)
        return b.op("attention", q, keys, keys, name="compressed", causal=False, **attributes)

    def _compress(self, b: Builder, x: str, width: int) -> str:
        """Return one token for each `ratio` tokens: a sum weighed by learned gates, normed."""
        n, length, _ = b.shape(x)
        range_size = min(self.ratio, length)
        range_count = length // range_size
        # A compressed token sums one range of tokens, or with overlap also the range before: each
        # token then has one set of features for its own range and one for the next.
        ranges_read = 2 if self.overlaps else 1
        feature_count = ranges_read * width
        values = linear(b, x, feature_count, "kv", bias=False)
        gates = linear(b, x, feature_count, "gate", bias=False)
        positions = b.weight("places/w", (self.ratio, feature_count))
        positions = b.op("slice", positions, name="places", axis=0, start=0, stop=range_size)

        def cut_ranges(tensor: str, name: str) -> str:
            """Return the tokens as ranges, `[n, ranges, tokens, width]`, without the last ones."""
            stop = range_count * range_size
            tensor = b.op("slice", tensor, name=name, axis=1, start=0, stop=stop)
            shape = (n, range_count, range_size, feature_count)
            return b.op("reshape", tensor, name=f"{name}/ranges", shape=shape)

        values = cut_ranges(values, "values")
        gates = cut_ranges(gates, "gates")
        gates = b.op("pointwise", gates, positions, name="placed", function="add")
        # Softmax is along the last axis: move a range's tokens there and back.
        swap_last_axes = (0, 1, 3, 2)
        gates = b.op("transpose", gates, name="gates/last", order=swap_last_axes)
        gates = b.op("softmax", gates, name="shares")
        gates = b.op("transpose", gates, name="shares/places", order=swap_last_axes)
        y = b.op("mul", values, gates, name="weighed")
        y = b.op("reduce", y, name="summed", function="sum", axes=(2,), keep=False)
        if ranges_read > 1:
            y = b.op("reshape", y, name="sides", shape=(n, range_count, ranges_read, width))
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

    The iterations that make the mixing matrix doubly stochastic are counted as one softmax.
    """
    n, length, total_width = b.shape(x)
    width = total_width // count
    with b.scope(f"{name}_streams"):
        # Hyper-connections. Each token has weights that sum the streams into the part's input,
        # weights that spread the part's output over the streams, and a matrix that mixes them.
        sizes = (count, count, count * count)
        coefficients = _coefficients(b, x, sum(sizes), scales=len(sizes))
        input_shares, output_shares, mixing = b.append(
            b.full_path("parts"), "split", (coefficients,), axis=-1, sizes=sizes
        )
        input_shares = b.op("sigmoid", input_shares, name="before")
        part_input = _sum_of_streams(b, x, input_shares, count)
        mixing = b.op("reshape", mixing, name="matrix", shape=(n, length, count, count))
        # one softmax stands for the iterations that make the matrix doubly stochastic
        mixing = b.op("softmax", mixing, name="stochastic")
        mixing = b.op("transpose", mixing, name="turned", order=(0, 1, 3, 2))
        streams = b.op("reshape", x, name="old", shape=(n, length, count, width))
        mixed = b.op("matmul", mixing, streams, name="mixed")
        output_shares = b.op("sigmoid", output_shares, name="after")
        shares_shape = (n, length, count, 1)
        output_shares = b.op("reshape", output_shares, name="after/one", shape=shares_shape)
    part_number = name.removeprefix("part")
    y = part(norm(b, part_input, kind, f"norm{part_number}"))
    with b.scope(f"{name}_sum"):
        y = b.op("reshape", y, name="one", shape=(n, length, 1, width))
        y = b.op("pointwise", output_shares, y, name="spread", function="mul")
        y = b.op("add", mixed, y, name="add")
        return b.op("reshape", y, name="whole", shape=(n, length, total_width))


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

"""The attention of a rank's layers: its heads, and what it keeps in the cache for each token."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from steptime.core.graph import Graph, Op
from steptime.network.layers.attention import INDEX_VALUES
from steptime.network.layers.compressed import CompressedAttention
from steptime.network.layers.designs import block_design
from steptime.network.ops.state import STATE_BYTES
from steptime.prediction.training import piece_of

STATEFUL = ("delta_rule",)
ATTENDING = ("attention", *STATEFUL)  # op kinds that are priced for each group of sequences


class AttentionShape(NamedTuple):
    """The attention of a layer, or the state that a layer has instead.

    Attributes:
        heads: heads of queries; of a state, heads of values.
        kv_heads: heads of keys.
        head_width: width of a key.
        value_width: width of a value.
        window: places seen, 0 for all.
        kind: the kind of the op; `delta_rule` keeps a state instead of keys and values.
        latent_width: numbers of a token that all heads share in the cache, 0 if each has its own.
        keeps_all: the cache keeps tokens outside of the window, too, as an indexer may choose them.
        is_cached: the layer has a cache of its own.
        rule: how tokens change a state.
        decay_width: numbers of a token by which a state decays.
        compression_ratio: tokens that lie in the cache as one.
        selected_keys: keys that a token attends to at most, 0 for no limit.
        values_are_keys: the cache keeps one vector for key and value.
    """

    heads: int
    kv_heads: int
    head_width: int
    value_width: int
    window: int
    kind: str = "attention"
    latent_width: int = 0
    keeps_all: bool = False
    is_cached: bool = True
    rule: str = "delta"
    decay_width: int = 0
    compression_ratio: int = 1
    selected_keys: int = 0
    values_are_keys: bool = False

    @property
    def state_bytes(self) -> float:
        """Bytes of the state of a sequence, which do not depend on its length."""
        if self.kind not in STATEFUL:
            return 0.0
        return float(STATE_BYTES * self.heads * self.head_width * self.value_width)

    @property
    def passing_numbers(self) -> int:
        """Numbers of a token that pass through it: queries, keys and values."""
        if self.kind in STATEFUL:
            return 2 * self.kv_heads * self.head_width + self.heads * self.value_width
        return self.heads * self.head_width + self.kv_heads * (self.head_width + self.value_width)

    @property
    def token_numbers(self) -> float:
        """Numbers of a token in the cache."""
        # A state does not grow with tokens, and keys of another layer are cached there.
        if self.kind in STATEFUL or not self.is_cached:
            return 0
        if self.latent_width:  # one vector stands for the keys and values of all heads
            return self.latent_width
        # An indexer's values are one constant number (INDEX_VALUES), which is not cached.
        has_no_values = self.values_are_keys or self.value_width == INDEX_VALUES
        cached_value_width = 0 if has_no_values else self.value_width
        return self.kv_heads * (self.head_width + cached_value_width) / self.compression_ratio

    def cached_tokens(self, tokens: int) -> int:
        """Return the tokens of a sequence that stay in the cache: a window drops old ones."""
        is_cut = self.window and not self.keeps_all
        return min(tokens, self.window) if is_cut else tokens


def find_attention_shapes(
    graph: Graph, piece: str, parameters: Mapping[str, Any]
) -> tuple[AttentionShape, ...]:
    """Return the attention of a piece of a rank's graph, with the one of its indexer.

    Args:
        graph: the graph of the rank.
        piece: the name of the piece, such as `block1`.
        parameters: the hyperparameters of the network.
    """
    latent_width = parameters["latent_kv"]
    if latent_width:
        # The part of a key that carries its position is cached beside the latent vector.
        latent_width += parameters["rotary_width"]
    layer = int(piece.removeprefix("block")) - 1  # pieces are named block1, block2, ...
    mixer = block_design(parameters, layer).mixer
    ops = [op for op in graph.ops if piece_of(op.name) == piece]
    has_indexer = any("/indexer/" in op.name for op in ops)
    shapes = []
    for op in ops:
        if op.kind not in ATTENDING:
            continue
        shape = read_attention_shape(graph, op)
        if isinstance(mixer, CompressedAttention):
            shape = _compress_attention(shape, mixer, op.name)
        # Neither states nor an indexer, which has values of width INDEX_VALUES.
        elif shape.kind not in STATEFUL and shape.value_width != INDEX_VALUES:
            _, keys, *_ = op.inputs
            is_cached = piece_of(keys) == piece  # else it reads the keys of another layer
            shape = shape._replace(
                latent_width=latent_width, keeps_all=has_indexer, is_cached=is_cached
            )
        shapes.append(shape)
    return tuple(shapes)


def _compress_attention(
    shape: AttentionShape, mixer: CompressedAttention, op_name: str
) -> AttentionShape:
    """Return a part of DeepSeek-V4's attention: the window, the scores or the compressed part."""
    # Tokens inside the window are cached as they are, not compressed.
    if op_name.endswith("/window"):
        return shape._replace(values_are_keys=True)
    shape = shape._replace(compression_ratio=mixer.ratio, values_are_keys=True)
    # Only the compressed part attends to keys that the indexer selects.
    if mixer.indexer and op_name.endswith("/compressed"):
        return shape._replace(selected_keys=mixer.indexer.selected)
    return shape


def read_attention_shape(graph: Graph, op: Op) -> AttentionShape:
    """Return the shape of an attention op of a rank's graph."""
    queries_width, _, values_width, *extra_widths = (  # of all heads
        graph.tensors[name].shape[-1] for name in op.inputs
    )
    heads = _read_int(op, "heads")
    window = _read_int(op, "window")
    if op.kind not in STATEFUL:
        kv_heads = _read_int(op, "kv_heads")
        return AttentionShape(
            heads,
            kv_heads,
            head_width=queries_width // heads,
            value_width=values_width // kv_heads,
            window=window,
            kind=op.kind,
        )
    key_heads = _read_int(op, "key_heads")
    # Inputs of such ops: queries, keys, values, then how far the state decays.
    decay_width, *_ = extra_widths
    return AttentionShape(
        heads,
        key_heads,
        head_width=queries_width // key_heads,
        value_width=values_width // heads,
        window=window,
        kind=op.kind,
        rule=str(op.attrs.get("rule", "delta")),
        decay_width=decay_width,
    )


def _read_int(op: Op, name: str) -> int:
    return int(str(op.attrs.get(name, 0)))

"""The cache of keys and values of a language model on one's own machine, layer by layer."""

from functools import lru_cache
from typing import NamedTuple

from steptime.core.dtypes import precision
from steptime.core.errors import unknown
from steptime.core.spelling import to_snake_case
from steptime.formats.gguf.types import tensor_types
from steptime.network.ops.builder import Builder
from steptime.planning.ranks.shape import Shape
from steptime.prediction.training import piece_of
from steptime.serving.attention_shape import (
    ATTENDING,
    AttentionShape,
    read_attention_shape,
)
from steptime.serving.desktop.tensors import ShapeKey

DEFAULT_TYPE = "f16"
TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
OTHER_NAMES = {  # of --kv in other stacks
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "q8_0",
    "float8": "q8_0",
    "fp8": "q8_0",
    "int4": "q4_0",
}


class LayerCache(NamedTuple):
    """What a layer keeps of a sequence.

    Args:
        token_numbers: keys and values of a token.
        window: tokens that it sees, 0 for all.
        state_bytes: bytes that it keeps however long the sequence is.
        query_numbers: numbers of the queries of a token.
        heads: heads of queries.
    """

    token_numbers: int
    window: int
    state_bytes: float
    query_numbers: int
    heads: int

    def cached_tokens(self, context: int, ubatch: int) -> int:
        """Return the tokens that it has room for; layers with a window keep a microbatch beside."""
        return min(context, self.window + ubatch) if self.window else context


def parse_cache_type(word: str | None) -> str:
    """Return the type of keys and values that `--kv` names, `f16` for None.

    Raises:
        InputError: for an unknown type.
    """
    if word is None:
        return DEFAULT_TYPE
    name = to_snake_case(word)
    name = OTHER_NAMES.get(name, name)
    if name not in TYPES:
        raise unknown("--kv", word, TYPES)
    return name


def number_bytes(cache_type: str) -> float:
    """Return the bytes of a number of a type of the cache."""
    row = tensor_types()[cache_type.upper()]
    return row.block_bytes / row.block


def layer_caches(shape: Shape) -> tuple[LayerCache, ...]:
    """Return the cache of each layer of a network."""
    by_kind = _caches_by_kind(ShapeKey(shape))
    return tuple(by_kind[kind] for kind in shape.kinds)


@lru_cache(maxsize=64)
def _caches_by_kind(key: ShapeKey) -> dict[str, LayerCache]:
    """Return the cache of a layer of each kind, from a graph of one token."""
    shape = key.shape
    builder = Builder(shape.family.name, precision("bfloat16"), training=False)
    # The heads are the same at any length and batch.
    batch = 1
    params = {**shape.kind_settings, "length": 1}
    graph = builder.graph(shape.family.build(builder, params, batch))
    return {
        piece_of(op.name): _cache_of(shape, read_attention_shape(graph, op))
        for op in graph.ops
        if op.kind in ATTENDING
    }


def _cache_of(shape: Shape, attention: AttentionShape) -> LayerCache:
    """Return the cache of a layer with such an attention; latent ones keep one key of all heads."""
    latent_width = int(shape.kind_settings["latent_kv"])
    token_numbers = int(attention.token_numbers)
    if latent_width:  # one vector for all heads, and the part of the key with positions
        token_numbers = latent_width + int(shape.kind_settings["rotary_width"])
    query_numbers = attention.heads * attention.head_width
    return LayerCache(
        token_numbers=token_numbers,
        window=attention.window,
        state_bytes=attention.state_bytes,
        query_numbers=query_numbers,
        heads=attention.heads,
    )

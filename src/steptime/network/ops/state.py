"""States over sequences that every token changes: the gated delta rule, and sums that decay.

By the rule `delta` a token brings what the state says of its key nearer to its value (Yang et al.
2024, "Gated Delta Networks"; with a decay for each feature, Kimi Delta Attention, 2025). By the
rule `sum` a token adds the product of its key and value (Dao and Gu 2024, Mamba-2; lightning
attention, whose decay is fixed). Hardware runs both fused, in chunks of tokens; their FLOP are
those of the chunks' products. The rule `scan` is `sum` with another decay of every number of the
state (Gu and Dao 2023, Mamba), which no product of a chunk can hold: its product is that of the
state and the query of each token. Of each chunk the state is written and read again.
"""

from math import ceil
from typing import NamedTuple

from steptime.core.graph import TensorSpec
from steptime.network.ops.table import (
    GradientOp,
    Operand,
    Products,
    Specs,
    example,
    format_shapes,
    gradient_products,
    matrix_kind,
    require,
)

CHUNKS = {"delta": 64, "sum": 256, "scan": 2048}  # tokens that Yang et al., Mamba-2 and Mamba read
STATE_BYTES = 4  # a number of a state is kept in float32


def delta_outputs(
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    decay: TensorSpec,
    share: TensorSpec,
    *rates: TensorSpec,
    heads: int,
    key_heads: int,
    rule: str = "delta",
) -> Specs:
    """Return `q, k [n, l, key_heads*d], v [n, l, heads*e], decay, share [n, l, heads] -> [v]`.

    Each head has a state `[d, e]`. A token forgets a part of it, `decay`, which may differ by
    feature, `[n, l, heads*d]`; then it changes the state by a `share`, as the `rule` says. By the
    rule `delta` keys and queries are brought to length 1. The rule `scan` reads `rates [heads, d]`,
    by which the decay of a head is multiplied for each feature.
    """
    require(rule in CHUNKS, f"a rule {rule}")
    require(key_heads >= 1 and heads % key_heads == 0, f"{heads} heads of {key_heads} keys")
    fits = (
        _has_keys_and_values(q, k, v, heads, key_heads)
        and share.shape == (*q.shape[:2], heads)
        and _has_decay(decay, q, heads, key_heads)
    )
    require(fits, f"a delta rule of {format_shapes(q, k, v, decay, share)} in {heads} heads")
    # only a selective scan (Mamba) has a weight of rates, its matrix A
    key_width = q.shape[-1] // key_heads
    rate_shapes = [(heads, key_width)] if rule == "scan" else []
    has_rates = [rate.shape for rate in rates] == rate_shapes
    require(has_rates, f"rates {format_shapes(*rates)} of a rule {rule} in {heads} heads")
    return (v,)


def _has_keys_and_values(
    q: TensorSpec, k: TensorSpec, v: TensorSpec, heads: int, key_heads: int
) -> bool:
    """Whether queries, keys and values are of the same tokens, and divide into heads."""
    has_keys = len(q.shape) == 3 and k.shape == q.shape and q.shape[-1] % key_heads == 0
    has_values = len(v.shape) == 3 and v.shape[:2] == q.shape[:2] and v.shape[-1] % heads == 0
    return has_keys and has_values


def _has_decay(decay: TensorSpec, q: TensorSpec, heads: int, key_heads: int) -> bool:
    """Whether each token has a decay of the state of each head, or of each feature of a key."""
    batch, length, width = q.shape
    decay_by_head = (batch, length, heads)
    decay_by_feature = (batch, length, width // key_heads * heads)
    return decay.shape in (decay_by_head, decay_by_feature)


class Chunks(NamedTuple):
    """The chunks in which a state is updated.

    Attributes:
        chunk_count: chunks of a head, of all sequences.
        tokens: tokens of a chunk.
        key_width: width of a key of a head.
        value_width: width of a value of a head.
    """

    chunk_count: int
    tokens: int
    key_width: int
    value_width: int


def _find_chunks(q: TensorSpec, v: TensorSpec, heads: int, key_heads: int, rule: str) -> Chunks:
    """Return the chunks that the tokens are read in."""
    batch, length, width = q.shape
    tokens = min(CHUNKS[rule], length)
    chunks_per_sequence = ceil(length / tokens)
    return Chunks(
        chunk_count=batch * chunks_per_sequence,
        tokens=tokens,
        key_width=width // key_heads,
        value_width=v.shape[2] // heads,
    )


def delta_products(
    q: TensorSpec,
    _k: TensorSpec,
    v: TensorSpec,
    *_: TensorSpec,
    heads: int,
    key_heads: int,
    rule: str = "delta",
) -> Products:
    """Return the products (batch, m, n, k) of chunks: keys and queries with keys, and the state."""
    chunks = _find_chunks(q, v, heads, key_heads, rule)
    if rule == "scan":  # the state times the query of each token, without chunks
        tokens = q.shape[0] * q.shape[1]
        values_per_key = heads // key_heads * chunks.value_width
        return ((tokens * key_heads, values_per_key, 1, chunks.key_width),)
    if rule == "sum":
        return _sum_products(chunks, heads, key_heads)
    return _delta_rule_products(chunks, heads)


def _sum_products(chunks: Chunks, heads: int, key_heads: int) -> Products:
    """Return the products of the rule `sum`: attention within chunks, and to the state before."""
    tokens, key_width, value_width = chunks.tokens, chunks.key_width, chunks.value_width
    head_chunks = chunks.chunk_count * heads
    # heads that share a key have one matrix of scores
    scores = (chunks.chunk_count * key_heads, tokens, tokens, key_width)
    values = (head_chunks, tokens, value_width, tokens)
    read_state = (head_chunks, tokens, value_width, key_width)
    write_state = (head_chunks, key_width, value_width, tokens)
    return (scores, values, read_state, write_state)


def _delta_rule_products(chunks: Chunks, heads: int) -> Products:
    """Return the products of the rule `delta`.

    A token first subtracts what the state already holds for its key, which corrects keys and
    values.
    """
    tokens, key_width, value_width = chunks.tokens, chunks.key_width, chunks.value_width
    head_chunks = chunks.chunk_count * heads
    scores = (head_chunks, tokens, tokens, key_width)
    keys = (head_chunks, tokens, key_width, tokens)
    values = (head_chunks, tokens, value_width, tokens)
    read_state = (head_chunks, tokens, value_width, key_width)
    write_state = (head_chunks, key_width, value_width, tokens)
    return (
        scores,  # keys by keys: by how much the tokens of a chunk correct each other
        scores,  # queries by keys
        keys,  # the keys after these corrections
        values,  # the values after these corrections
        values,  # scores of the queries by the corrected values
        read_state,  # with the corrected keys
        read_state,  # with the queries
        write_state,
    )


def _read_bytes(*specs: TensorSpec, heads: int, key_heads: int, rule: str = "delta") -> int:
    """Return the bytes read: inputs, and the state before each chunk, which is written first."""
    chunks = _find_chunks(specs[0], specs[2], heads, key_heads, rule)
    state_size = heads * chunks.key_width * chunks.value_width
    # the state is written behind each chunk and read before the next
    state_bytes = 2 * STATE_BYTES * chunks.chunk_count * state_size
    return sum(spec.size_bytes for spec in specs) + state_bytes


KINDS = {
    "delta_rule": matrix_kind(
        delta_outputs,
        delta_products,
        example((2, 3, 4), (2, 3, 4), (2, 3, 12), (2, 3, 4), (2, 3, 4), heads=4, key_heads=2),
        "Yang et al. 2024, Gated Delta Networks, eq. 10, in chunks as section 3.3; products alone",
        read=_read_bytes,
        work="attention",
        gradient_op=GradientOp(
            (Operand.INPUTS, Operand.GRADIENT),
            gradient_products(delta_products),
            "derivative of delta_rule: of each product twice its FLOP",
        ),
    )
}

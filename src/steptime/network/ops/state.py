"""The gated delta rule over sequences: each head has a state that every token changes.

Hardware runs it fused, in chunks of tokens (Yang et al. 2024, "Gated Delta Networks"); its FLOP are
those of the chunks' products. Of each chunk the state is written and read again.
"""

from steptime.core.graph import TensorSpec
from steptime.network.ops.table import (
    Back,
    Products,
    Specs,
    example,
    matrix_kind,
    require,
    show,
    twice,
)

CHUNK = 64  # tokens that Yang et al. read at once
STATE_BYTES = 4  # a number of a state is kept in float32


def delta_outputs(
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    decay: TensorSpec,
    share: TensorSpec,
    heads: int,
    key_heads: int,
) -> Specs:
    """Return `q, k [n, l, key_heads*d], v [n, l, heads*e], decay, share [n, l, heads] -> [v]`.

    Each head has a state `[d, e]`. A token forgets a part of it, `decay`, then brings what it says
    of the token's key nearer to the token's value, by a `share`.
    """
    require(key_heads >= 1 and heads % key_heads == 0, f"{heads} heads of {key_heads} keys")
    sizes = q.shape[-1] % key_heads, v.shape[-1] % heads
    fits = len(q.shape) == 3 and k.shape == q.shape and sizes == (0, 0)
    fits = fits and v.shape[:-1] == q.shape[:-1] and len(v.shape) == 3
    fits = fits and decay.shape == share.shape == (*q.shape[:2], heads)
    require(fits, f"a delta rule of {show(q, k, v, decay, share)} in {heads} heads")
    return (v,)


def _chunks(q: TensorSpec, v: TensorSpec, heads: int, key_heads: int) -> tuple[int, int, int, int]:
    """Return how many chunks all heads have, tokens of one, widths of a key and a value."""
    n, length, width = q.shape
    size = min(CHUNK, length)
    return n * heads * -(-length // size), size, width // key_heads, v.shape[2] // heads


def delta_products(
    q: TensorSpec, _k: TensorSpec, v: TensorSpec, *_: TensorSpec, heads: int, key_heads: int
) -> Products:
    """Return the products of chunks: keys and queries with keys, and with the state."""
    count, size, d, e = _chunks(q, v, heads, key_heads)
    inside = [(count, size, size, d)] * 2 + [(count, size, d, size)] + [(count, size, e, size)] * 2
    return (*inside, *[(count, size, e, d)] * 2, (count, d, e, size))


def _states(*specs: TensorSpec, heads: int, key_heads: int) -> int:
    """Return the bytes read: of each chunk also the state before it, which is written first."""
    count, _, d, e = _chunks(specs[0], specs[2], heads, key_heads)
    return sum(spec.size_bytes for spec in specs) + 2 * STATE_BYTES * count * d * e


KINDS = {
    "delta_rule": matrix_kind(
        delta_outputs,
        delta_products,
        example("2x3x4 2x3x4 2x3x12 2x3x4 2x3x4", heads=4, key_heads=2),
        "Yang et al. 2024, Gated Delta Networks, eq. 10, in chunks as section 3.3; products alone",
        read=_states,
        work="attention",
        back=Back(
            "inputs dy",
            twice(delta_products),
            "derivative of delta_rule: of each product twice its FLOP",
        ),
    )
}

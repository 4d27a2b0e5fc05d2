"""States over sequences that every token changes: the gated delta rule, and sums that decay.

By the rule `delta` a token brings what the state says of its key nearer to its value (Yang et al.
2024, "Gated Delta Networks"; with a decay for each feature, Kimi Delta Attention, 2025). By the
rule `sum` a token adds the product of its key and value (Dao and Gu 2024, Mamba-2; lightning
attention, whose decay is fixed). Hardware runs both fused, in chunks of tokens; their FLOP are
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

CHUNKS = {"delta": 64, "sum": 256}  # tokens that Yang et al., and Mamba-2 read at once
STATE_BYTES = 4  # a number of a state is kept in float32


def delta_outputs(
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    decay: TensorSpec,
    share: TensorSpec,
    heads: int,
    key_heads: int,
    rule: str = "delta",
) -> Specs:
    """Return `q, k [n, l, key_heads*d], v [n, l, heads*e], decay, share [n, l, heads] -> [v]`.

    Each head has a state `[d, e]`. A token forgets a part of it, `decay`, which may differ by
    feature, `[n, l, heads*d]`; then it changes the state by a `share`, as the `rule` says. By the
    rule `delta` keys and queries are brought to length 1.
    """
    require(rule in CHUNKS, f"a rule {rule}")
    require(key_heads >= 1 and heads % key_heads == 0, f"{heads} heads of {key_heads} keys")
    sizes = q.shape[-1] % key_heads, v.shape[-1] % heads
    fits = len(q.shape) == 3 and k.shape == q.shape and sizes == (0, 0)
    fits = fits and v.shape[:-1] == q.shape[:-1] and len(v.shape) == 3
    decays = {(*q.shape[:2], heads), (*q.shape[:2], q.shape[-1] // key_heads * heads)}
    fits = fits and share.shape == (*q.shape[:2], heads) and decay.shape in decays
    require(fits, f"a delta rule of {show(q, k, v, decay, share)} in {heads} heads")
    return (v,)


def _chunks(
    q: TensorSpec, v: TensorSpec, heads: int, key_heads: int, rule: str
) -> tuple[int, int, int, int]:
    """Return the number of chunks of a head, tokens of one, widths of a key and a value."""
    n, length, width = q.shape
    size = min(CHUNKS[rule], length)
    return n * -(-length // size), size, width // key_heads, v.shape[2] // heads


def delta_products(
    q: TensorSpec,
    _k: TensorSpec,
    v: TensorSpec,
    *_: TensorSpec,
    heads: int,
    key_heads: int,
    rule: str = "delta",
) -> Products:
    """Return the products of chunks: keys and queries with keys, and with the state."""
    chunks, size, d, e = _chunks(q, v, heads, key_heads, rule)
    count = chunks * heads
    if rule == "sum":  # heads of one key share how alike queries and keys are
        scores = (chunks * key_heads, size, size, d)
        return (scores, (count, size, e, size), (count, size, e, d), (count, d, e, size))
    inside = [(count, size, size, d)] * 2 + [(count, size, d, size)] + [(count, size, e, size)] * 2
    return (*inside, *[(count, size, e, d)] * 2, (count, d, e, size))


def _states(*specs: TensorSpec, heads: int, key_heads: int, rule: str = "delta") -> int:
    """Return the bytes read: of each chunk also the state before it, which is written first."""
    chunks, _, d, e = _chunks(specs[0], specs[2], heads, key_heads, rule)
    return sum(spec.size_bytes for spec in specs) + 2 * STATE_BYTES * chunks * heads * d * e


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

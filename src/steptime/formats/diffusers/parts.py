"""Parts of diffusion transformers: embeddings of time, modulated norms, joint attention."""

from collections.abc import Sequence
from dataclasses import dataclass

from steptime.network.layers.attention import norm_heads
from steptime.network.layers.blocks import append_activation
from steptime.network.layers.dense import linear
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Attributes, Builder

TIME_WIDTH = 256  # sines and cosines of a time step


@dataclass(frozen=True)
class Heads:
    """The heads of an attention: their number and width, and whether queries and keys are normed.

    `rotary_table` is the table that turns queries and keys by place, "" for none.
    """

    count: int
    width: int
    is_normed: bool = False
    rotary_table: str = ""


def embed(b: Builder, x: str, width: int, name: str, activation: str = "silu") -> str:
    """Return `x` through two products with an activation between."""
    with b.scope(name):
        x = append_activation(b, linear(b, x, width, "first"), activation)
        return linear(b, x, width, "second")


def embed_time(b: Builder, batch: int, width: int, name: str) -> str:
    """Return the embedding of a time step of each example, `[n, width]`."""
    return embed(b, b.input(name, (batch, TIME_WIDTH)), width, f"{name}_embedding")


def list_modulation_vectors(b: Builder, state: str, width: int, count: int, name: str) -> list[str]:
    """Return so many vectors `[n, 1, width]` of each example, made from its embedding."""
    with b.scope(name):
        activated_state = b.op("silu", state, name="silu")
        product = linear(b, activated_state, count * width, "linear")
        vectors = b.append(
            b.full_path("parts"), "split", (product,), axis=-1, sizes=(width,) * count
        )
        batch = b.shape(state)[0]
        return [
            b.op("reshape", vector, name=f"part{i}", shape=(batch, 1, width))
            for i, vector in enumerate(vectors)
        ]


def modulate(b: Builder, x: str, shift: str, scale: str, name: str) -> str:
    """Return the layer norm of `x` without weights, scaled and shifted by vectors of an example."""
    with b.scope(name):
        x = norm(b, x, "plain_layer", "norm")
        scale = b.op("pointwise", scale, name="scale", function="add", scalar=1.0)
        x = b.op("pointwise", x, scale, name="scaled", function="mul")
        return b.op("pointwise", x, shift, name="shifted", function="add")


def add_gated(b: Builder, x: str, branch: str, gate: str, name: str) -> str:
    """Return `x` plus a branch that a vector of each example weighs."""
    branch = b.op("pointwise", branch, gate, name=f"{name}/gated", function="mul")
    return b.op("add", x, branch, name=name)


def add_feed_forward(b: Builder, x: str, name: str) -> str:
    """Return a feed-forward part of four times the width, with GELU by its tanh form."""
    width = b.shape(x)[-1]
    with b.scope(name):
        x = append_activation(b, linear(b, x, 4 * width, "up"), "gelu_tanh")
        return linear(b, x, width, "down")


def project_heads(b: Builder, x: str, heads: Heads, name: str) -> tuple[str, str, str]:
    """Return queries, keys and values of `x [n, l, width]`."""
    inner = heads.count * heads.width
    with b.scope(name):
        q, k, v = (linear(b, x, inner, part) for part in ("q", "k", "v"))
        if heads.is_normed:
            q = norm_heads(b, q, heads.count, "rms", "q_norm")
            k = norm_heads(b, k, heads.count, "rms", "k_norm")
        return q, k, v


def attend(b: Builder, sequences: Sequence[tuple[str, str, str]], heads: Heads, name: str) -> str:
    """Return attention among all tokens of sequences that stand one after the other.

    Args:
        b: the graph so far.
        sequences: queries, keys and values of each sequence.
        heads: the heads.
        name: the scope of the ops.
    """
    with b.scope(name):
        q, k, v = sequences[0]
        if len(sequences) > 1:
            queries, keys, values = zip(*sequences, strict=True)
            q = b.op("concat", *queries, name="all_q", axis=1)
            k = b.op("concat", *keys, name="all_k", axis=1)
            v = b.op("concat", *values, name="all_v", axis=1)
        if heads.rotary_table:
            q = b.op("rotary", q, heads.rotary_table, name="rotary_q", head_width=heads.width)
            k = b.op("rotary", k, heads.rotary_table, name="rotary_k", head_width=heads.width)
        attributes: Attributes = {"heads": heads.count, "kv_heads": heads.count, "causal": False}
        return b.op("attention", q, k, v, name="attention", **attributes)


def split_tokens(b: Builder, x: str, first_count: int, name: str) -> tuple[str, str]:
    """Return the first tokens of `x [n, l, width]`, and those after them."""
    length = b.shape(x)[1]
    first_tokens = b.op("slice", x, name=f"{name}0", axis=1, start=0, stop=first_count)
    last_tokens = b.op("slice", x, name=f"{name}1", axis=1, start=first_count, stop=length)
    return first_tokens, last_tokens

"""Mixers of tokens in place of attention: short convolutions and states (Mamba, delta rules)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from steptime.network.layers.dense import linear
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Attributes, Builder
from steptime.network.ops.table import ShapeError

Parameters = Mapping[str, Any]  # of the family `transformer`, where each is documented


def causal_convolution(b: Builder, x: str, kernel: int, *, bias: bool = False) -> str:
    """Return `x [n, l, channels]` after a convolution of each channel along the tokens before.

    The result is `[n, channels, l, 1]`: `to_tokens` brings it back.
    """
    x = b.op("transpose", x, name="channels", order=(0, 2, 1))
    n, channels, length = b.shape(x)
    x = b.op("reshape", x, name="channels/image", shape=(n, channels, length, 1))
    w = b.weight("convolution/w", (channels, 1, kernel, 1))
    attributes: Attributes = {
        "stride": (1, 1),
        "groups": channels,
        # (top, bottom, left, right): before the first token alone, so that none sees the next
        "padding": (kernel - 1, 0, 0, 0),
    }
    x = b.op("conv2d", x, w, name="convolution", **attributes)
    if bias:
        weight = b.weight("convolution/b", (channels,))
        x = b.op("bias", x, weight, name="convolution/bias", axis=1)
    return x


def to_tokens(b: Builder, x: str) -> str:
    """Return `x [n, channels, l, 1]` as tokens, `[n, l, channels]`."""
    n, channels, length, _ = b.shape(x)
    x = b.op("reshape", x, name="tokens/channels", shape=(n, channels, length))
    return b.op("transpose", x, name="tokens", order=(0, 2, 1))


def refuse_context_ranks(b: Builder) -> None:
    """Refuse a plan that divides a sequence among ranks, which a state cannot follow."""
    if b.plan.context > 1:
        raise ShapeError("blocks with a state do not divide a sequence into context ranks")


def apply_gate(b: Builder, x: str, gate: str, kind: str) -> str:
    """Return `x` times an activation of a gate."""
    return b.op("mul", x, b.op(kind, gate, name=f"gate_{kind}"), name="gated")


def normalise_heads(b: Builder, x: str, heads: int) -> str:
    """Return `x [n, l, heads*d]` with the RMS norm of each head, whose weights all heads share."""
    n, length, width = b.shape(x)
    y = b.op("reshape", x, name="norm/heads", shape=(n, length, heads, width // heads))
    return b.op("reshape", norm(b, y, "rms", "norm"), name="norm/whole", shape=(n, length, width))


def decay_of(b: Builder, x: str, heads: int) -> str:
    """Return the decay of a state at each token: `x` times a learned rate of each head."""
    n, length, width = b.shape(x)
    # each head has a learned rate: the state decays by the exponential of rate times x
    rate = b.op("pointwise", b.weight("rate/w", (heads,)), name="rate_exp", function="exp")
    differs_by_feature = width != heads
    if not differs_by_feature:
        return b.op("pointwise", x, rate, name="decay_rate", function="mul")
    x = b.op("reshape", x, name="decay/heads", shape=(n, length, heads, width // heads))
    rate = b.op("reshape", rate, name="rate/heads", shape=(heads, 1))
    x = b.op("pointwise", x, rate, name="decay_rate", function="mul")
    return b.op("reshape", x, name="decay/whole", shape=(n, length, width))


def delta_net(b: Builder, x: str, p: Parameters, name: str) -> str:
    """Return a sequence after a state that each token changes (Yang et al. 2024, figure 1).

    Queries, keys and values pass a short convolution; the output is normed, head by head.
    """
    refuse_context_ranks(b)
    heads = b.rank_share(p["linear_heads"], "linear heads")
    key_heads = b.rank_share(p["linear_key_heads"], "linear key_heads")
    key_width = p["linear_width"] * key_heads
    value_width = p["linear_value_width"] * heads
    sizes = (key_width, key_width, value_width)  # queries, keys, values
    with b.scope(name):
        x = b.gather_sequence(x, "gather")
        mixed = linear(b, x, sum(sizes), "qkv", bias=False)
        gate = linear(b, x, value_width, "gate", bias=False)
        share = _state_share(b, x, heads)
        decay = decay_of(b, _softplus(b, linear(b, x, heads, "decay")), heads)
        mixed = _convolve_tokens(b, mixed, p["linear_kernel"])
        q, k, v = _split_columns(b, mixed, sizes)
        attributes: Attributes = {"heads": heads, "key_heads": key_heads}
        y = b.op("delta_rule", q, k, v, decay, share, name="delta_rule", **attributes)
        y = apply_gate(b, normalise_heads(b, y, heads), gate, "silu")
        return b.sum_over_ranks(linear(b, y, p["width"], "out", bias=False), "sum")


def _state_share(b: Builder, x: str, heads: int) -> str:
    """Return the share of each token's value that enters the state, head by head."""
    share = linear(b, x, heads, "share", bias=False)
    return b.op("sigmoid", share, name="share_sigmoid")


def _softplus(b: Builder, x: str) -> str:
    """Return the softplus of `x`, which is never negative."""
    return b.op("pointwise", x, name="softplus", function="softplus")


def _convolve_tokens(b: Builder, x: str, kernel: int, *, bias: bool = False) -> str:
    """Return tokens after a convolution over the last `kernel` of them and a SiLU."""
    x = causal_convolution(b, x, kernel, bias=bias)
    return to_tokens(b, b.op("silu", x, name="silu"))


def _split_columns(
    b: Builder, x: str, sizes: tuple[int, ...], name: str = "parts"
) -> tuple[str, ...]:
    """Return the columns of a product that makes several tensors at once, tensor by tensor."""
    return b.append(b.full_path(name), "split", (x,), axis=-1, sizes=sizes)


@dataclass(frozen=True)
class Mamba2:
    """A state that adds keys times values and decays (Dao and Gu 2024).

    Attributes:
        heads: heads of the state.
        head_width: width of a head's values.
        groups: groups of heads that share keys and queries.
        state: width of a key.
        kernel: tokens of the convolution before the state.
        bias: products have biases.
        convolution_bias: the convolution has one.
        is_normed: the output is normed after its gate.
    """

    heads: int
    head_width: int
    groups: int
    state: int
    kernel: int = 4
    bias: bool = False
    convolution_bias: bool = True
    is_normed: bool = True

    def build(self, b: Builder, x: str, width: int, name: str) -> str:
        """Return the mixed tokens of `x [n, l, width]`."""
        refuse_context_ranks(b)
        heads = b.rank_share(self.heads, "heads of a state")
        groups = b.rank_share(self.groups, "groups of a state", min_share=1)
        inner = heads * self.head_width
        key_width = groups * self.state
        sizes = (inner, key_width, key_width)  # values, keys, queries
        with b.scope(name):
            x = b.gather_sequence(x, "gather")
            mixed = linear(b, x, sum(sizes), "mixed", self.bias)
            gate = linear(b, x, inner, "gate", self.bias)
            step_size = self._step_sizes(b, x, heads)
            mixed = _convolve_tokens(b, mixed, self.kernel, bias=self.convolution_bias)
            values, k, q = _split_columns(b, mixed, sizes)
            # the step size of a token sets its share of the state and the decay of those before
            share = _softplus(b, step_size)
            decay = decay_of(b, share, heads)
            # the rule "sum" adds keys times values to the state, without the correction of "delta"
            attributes: Attributes = {"heads": heads, "key_heads": groups, "rule": "sum"}
            y = b.op("delta_rule", q, k, values, decay, share, name="state", **attributes)
            y = b.op("add", y, self._scale_by_head(b, values, heads), name="add_passed")
            y = apply_gate(b, y, gate, "silu")
            y = norm(b, y, "rms", "norm") if self.is_normed else y
            return b.sum_over_ranks(linear(b, y, width, "out", self.bias), "sum")

    def _step_sizes(self, b: Builder, x: str, heads: int) -> str:
        """Return the step size of each token and head, with a learned bias."""
        step_size = linear(b, x, heads, "step", self.bias)
        bias = b.weight("step_bias/w", (heads,))
        return b.op("bias", step_size, bias, name="step_bias", axis=-1)

    def _scale_by_head(self, b: Builder, values: str, heads: int) -> str:
        """Return values times a learned number of each head."""
        n, length, width = b.shape(values)
        x = b.op("reshape", values, name="passed/heads", shape=(n, length, heads, width // heads))
        share = b.op("reshape", b.weight("passed/w", (heads,)), name="passed/w_", shape=(heads, 1))
        x = b.op("pointwise", x, share, name="passed", function="mul")
        return b.op("reshape", x, name="passed/whole", shape=(n, length, width))


@dataclass(frozen=True)
class ShortConvolution:
    """A convolution over a few tokens between two gates (LFM2)."""

    kernel: int
    bias: bool = False

    def build(self, b: Builder, x: str, width: int, name: str) -> str:
        """Return the mixed tokens of `x [n, l, width]`."""
        refuse_context_ranks(b)
        inner = b.rank_share(width, "channels of a convolution")
        with b.scope(name):
            x = b.gather_sequence(x, "gather")
            both = linear(b, x, 3 * inner, "in", self.bias)
            gate_before, gate_after, x = _split_columns(b, both, (inner,) * 3)
            x = b.op("mul", gate_before, x, name="gated_before")
            x = to_tokens(b, causal_convolution(b, x, self.kernel, bias=self.bias))
            x = b.op("mul", gate_after, x, name="gated_after")
            return b.sum_over_ranks(linear(b, x, width, "out", self.bias), "sum")


@dataclass(frozen=True)
class KimiDelta:
    """A delta rule whose decay differs by feature (Kimi Delta Attention, 2025).

    Attributes:
        heads: heads of the state.
        head_width: width of a key and of a value.
        kernel: tokens of the convolution before the state.
        has_full_gate: the gate of the output is one product, not two over a narrow vector.
    """

    heads: int
    head_width: int
    kernel: int = 4
    has_full_gate: bool = False

    def build(self, b: Builder, x: str, width: int, name: str) -> str:
        """Return the mixed tokens of `x [n, l, width]`."""
        refuse_context_ranks(b)
        heads = b.rank_share(self.heads, "heads of a state")
        inner = heads * self.head_width
        with b.scope(name):
            x = b.gather_sequence(x, "gather")
            mixed = linear(b, x, 3 * inner, "qkv", bias=False)
            share = _state_share(b, x, heads)
            decay = self._decay(b, x, heads)
            gate = self._gate(b, x, inner)
            q, k, v = _split_columns(b, _convolve_tokens(b, mixed, self.kernel), (inner,) * 3)
            attributes: Attributes = {"heads": heads, "key_heads": heads}
            y = b.op("delta_rule", q, k, v, decay, share, name="delta_rule", **attributes)
            y = apply_gate(b, normalise_heads(b, y, heads), gate, "sigmoid")
            return b.sum_over_ranks(linear(b, y, width, "out", bias=False), "sum")

    def _decay(self, b: Builder, x: str, heads: int) -> str:
        """Return the decay of each feature of the state, made from a narrow vector."""
        narrow = linear(b, x, self.head_width, "decay_down", bias=False)
        rate = linear(b, narrow, heads * self.head_width, "decay")
        return decay_of(b, _softplus(b, rate), heads)

    def _gate(self, b: Builder, x: str, inner: int) -> str:
        if self.has_full_gate:
            return linear(b, x, inner, "gate", bias=False)
        narrow = linear(b, x, self.head_width, "gate_down", bias=False)
        return linear(b, narrow, inner, "gate", bias=False)


@dataclass(frozen=True)
class Mamba:
    """A state of each channel, every number of which decays at its own rate (Gu and Dao 2023).

    Attributes:
        inner: channels of the state.
        state: numbers of a channel's state.
        rank: width of the vector that step sizes are made from.
        kernel: tokens of the convolution before the state.
        bias: the first and the last product have biases.
        convolution_bias: the convolution has one.
        norm: the kind of norm of what step sizes, keys and queries are made from, "" for none.
    """

    inner: int
    state: int
    rank: int
    kernel: int = 4
    bias: bool = False
    convolution_bias: bool = True
    norm: str = ""

    def build(self, b: Builder, x: str, width: int, name: str) -> str:
        """Return the mixed tokens of `x [n, l, width]`."""
        refuse_context_ranks(b)
        inner = b.rank_share(self.inner, "channels of a state")
        with b.scope(name):
            x = b.gather_sequence(x, "gather")
            both = linear(b, x, 2 * inner, "in", self.bias)
            mixed, gate = _split_columns(b, both, (inner, inner), "halves")
            mixed = _convolve_tokens(b, mixed, self.kernel, bias=self.convolution_bias)
            y = self._scan(b, mixed)
            pass_weight = b.weight("passed/w", (inner,))
            passed = b.op("pointwise", mixed, pass_weight, name="passed", function="mul")
            y = b.op("add", y, passed, name="add_passed")
            y = apply_gate(b, y, gate, "silu")
            return b.sum_over_ranks(linear(b, y, width, "out", self.bias), "sum")

    def _scan(self, b: Builder, x: str) -> str:
        """Return the result of the queries on the state of each channel (a selective scan)."""
        channels = b.shape(x)[-1]
        narrow_step, k, q = self._steps_keys_queries(b, x)
        # the step size of a token is its share of the state and, times the rates, the state's decay
        share = decay = _softplus(b, linear(b, narrow_step, channels, "step"))
        rates = b.weight("rate/w", (channels, self.state))
        rates = b.op("pointwise", rates, name="rate_exp", function="exp")
        attributes: Attributes = {"heads": channels, "key_heads": 1, "rule": "scan"}
        return b.op("delta_rule", q, k, x, decay, share, rates, name="state", **attributes)

    def _steps_keys_queries(self, b: Builder, x: str) -> tuple[str, ...]:
        """Return the vector of step sizes, keys and queries, normed if there is a norm."""
        sizes = (self.rank, self.state, self.state)
        x = linear(b, x, sum(sizes), "steps_keys_queries", bias=False)
        x = b.sum_over_ranks(x, "parts_sum")
        parts = _split_columns(b, x, sizes)
        if not self.norm:
            return parts
        names = ("step_norm", "key_norm", "query_norm")
        return tuple(
            norm(b, part, self.norm, name) for part, name in zip(parts, names, strict=True)
        )

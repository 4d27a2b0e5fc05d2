"""The functions that run each op kind in JAX: one a kind, `(inputs..., **attributes) -> array`.

Shapes and attributes are those of the op table; gradients are left to `jax.vjp`. `RANDOM_KINDS`
take a random key after their inputs; `STATISTICS_INPUTS` are inputs with new values in the result.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

import jax
import numpy as np
from jax import lax, nn
from jax import numpy as jnp

from steptime.core.graph import TensorSpec
from steptime.measure.backends.jax.resize import resize2d
from steptime.measure.kinds import activate, align_to_axis, find_elementwise_functions, kinds
from steptime.measure.synthetic import NORM_EPSILON, RUNNING_SHARE
from steptime.network.ops.experts import GATED
from steptime.network.ops.images import OVER_VOLUMES, pool_outputs
from steptime.network.ops.loss import IGNORED_LABEL

Array = jax.Array
Sizes = tuple[int, ...]  # one an axis
Sides = tuple[int, ...]  # before and after each axis


def _widen(x: Array) -> Array:
    """Return `x` in float32, or as it is where that is wider: what sums are made in."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


FUNCTIONS = find_elementwise_functions(
    {"clamp": lambda x, low, high: jnp.clip(x, min=low, max=high), "softsign": nn.soft_sign},
    *(jnp, nn, lax),
)


def convolution(
    x: Array,
    w: Array,
    stride: Sizes = (),
    padding: Sides = (),
    dilation: Sizes = (),
    groups: int = 1,
) -> Array:
    """Return the convolution of `x [n, c, h, w]` with `w [out, c/groups, kh, kw]`."""
    axes = x.ndim - 2
    y: Array = lax.conv_general_dilated(
        x,
        w,
        stride or (1,) * axes,
        _pair_pads(padding, axes),
        rhs_dilation=dilation or None,
        feature_group_count=groups,
    )
    return y


def transposed_convolution(x: Array, w: Array, *, output_size: Sizes, **attrs: Any) -> Array:
    """Return the transpose of the convolution that leads from `output_size` to `x`."""
    output_channels = w.shape[1] * attrs.get("groups", 1)
    output_spec = jax.ShapeDtypeStruct((x.shape[0], output_channels, *output_size), x.dtype)
    transpose = jax.linear_transpose(lambda image: convolution(image, w, **attrs), output_spec)
    y: Array
    (y,) = transpose(x)
    return y


def _pair_pads(padding: Sides, axes: int) -> list[tuple[int, int]]:
    """Return the padding before and after each axis."""
    return list(zip(padding[::2], padding[1::2], strict=True)) or [(0, 0)] * axes


def _reduce_windows(
    x: Array,
    start_value: float,
    reduce: Any,
    kernel: Sizes,
    stride: Sizes,
    padding: Sides = (),
    **ceil: bool,  # whether to round the number of windows up, if the op has this attribute
) -> Array:
    """Return each window reduced by a function; with `ceil` windows may hang over the end."""
    axes = len(kernel)
    (spec,) = pool_outputs(TensorSpec(x.shape), kernel, stride, padding, **ceil)
    output_sizes = spec.shape[2:]
    pads = [(0, 0), (0, 0)]  # none for the batch and the channels
    for i, (before, after) in enumerate(_pair_pads(padding, axes)):
        reach = (output_sizes[i] - 1) * stride[i] + kernel[i]  # what all windows cover together
        missing_after = reach - before - x.shape[2 + i]
        pads.append((before, max(after, missing_after)))
    initial = x.dtype.type(start_value)
    y: Array = lax.reduce_window(x, initial, reduce, (1, 1, *kernel), (1, 1, *stride), pads)
    return y[(..., *map(slice, output_sizes))]  # padding at the end may make a window too many


def avg_pool(x: Array, kernel: Sizes, stride: Sizes, padding: Sides = (), **ceil: bool) -> Array:
    """Return the means of windows, padding counted as zeros; what lies beyond it is not counted."""
    sums = _reduce_windows(x, 0.0, lax.add, kernel, stride, padding, **ceil)
    sides = zip(x.shape[2:], _pair_pads(padding, len(kernel)), strict=True)
    unit_image = jnp.ones((1, 1, *(size + sum(pair) for size, pair in sides)), x.dtype)
    counts = _reduce_windows(unit_image, 0.0, lax.add, kernel, stride, (), **ceil)
    return sums / counts[(..., *map(slice, sums.shape[2:]))]


def batch_norm(
    x: Array, w: Array, b: Array, mean: Array, variance: Array, training: bool = True
) -> Any:
    """Return `x` normalised by channel; in training the new running statistics after it."""
    wide = _widen(x)
    axes = (0, *range(2, x.ndim))
    used_mean = wide.mean(axes) if training else mean
    used_variance = wide.var(axes) if training else variance
    inverse = lax.rsqrt(_widen(used_variance) + NORM_EPSILON)
    normal = (wide - align_to_axis(used_mean, x)) * align_to_axis(inverse, x)
    y = (normal * align_to_axis(w, x) + align_to_axis(b, x)).astype(x.dtype)
    if not training:
        return y
    count = x.size // x.shape[1]  # elements of a channel
    unbiased_variance = used_variance * (count / max(1, count - 1))
    new_mean = _update_running(mean, used_mean)
    new_variance = _update_running(variance, unbiased_variance)
    return y, new_mean.astype(mean.dtype), new_variance.astype(mean.dtype)


def _update_running(running: Array, batch: Array) -> Array:
    """Return a running statistic moved towards that of a batch, without a gradient."""
    return running + RUNNING_SHARE * (lax.stop_gradient(batch) - running)


def _normalise(x: Array, centre: bool = True) -> Array:
    """Return `x`, less its mean, over the root of its mean square, along the last axis, wide."""
    wide = _widen(x)
    wide = wide - wide.mean(-1, keepdims=True) if centre else wide
    return wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + NORM_EPSILON)


def group_norm(x: Array, w: Array, b: Array, groups: int, instance: bool = False) -> Array:
    """Return `x` normalised over groups of channels; of an `instance` norm each is a group."""
    del instance  # the same arithmetic
    normal = _normalise(x.reshape(x.shape[0], groups, -1)).reshape(x.shape)
    y: Array = normal * align_to_axis(w, x) + align_to_axis(b, x)
    return y.astype(x.dtype)


def local_response_norm(x: Array, size: int, alpha: float, beta: float, k: float) -> Array:
    """Return `x` divided by a power of the squares of neighbouring channels."""
    spatial = (1,) * (x.ndim - 2)
    sides = ((0, 0), (size // 2, (size - 1) // 2), *((0, 0) for _ in spatial))
    window = ((1, size, *spatial), (1,) * x.ndim, sides)
    sums: Array = lax.reduce_window(x * x, x.dtype.type(0), lax.add, *window)
    return x * (sums * (alpha / size) + k) ** -beta


def attention(
    q: Array,
    k: Array,
    v: Array,
    *extra_scores: Array,
    heads: int,
    kv_heads: int,
    causal: bool,
    window: int = 0,
) -> Array:
    """Return attention, `[n, l, heads*e]`; a group of heads shares a head of keys and values."""
    n, query_count, _ = q.shape
    key_count = k.shape[1]
    group_heads = heads // kv_heads
    queries = q.reshape(n, query_count, kv_heads, group_heads, -1)
    keys = k.reshape(n, key_count, kv_heads, -1)
    values = v.reshape(n, key_count, kv_heads, -1)
    # n: batch, l: query, m: key, k: key head, g: query head of that key head, d: width of a head.
    scores = _widen(jnp.einsum("nlkgd,nmkd->nkglm", queries, keys)) / sqrt(queries.shape[-1])
    distance = np.arange(query_count)[:, None] - np.arange(key_count)
    is_hidden = np.zeros(distance.shape, dtype=bool)
    if causal:
        is_hidden |= distance < 0
    if window:
        is_hidden |= abs(distance) >= window
    if is_hidden.any():
        scores = jnp.where(is_hidden, -np.inf, scores)
    biases_first = sorted(extra_scores, key=np.ndim, reverse=True)  # before a sink adds a key
    for extra in biases_first:
        is_bias = extra.ndim == 3  # of heads, queries and keys; a sink has a number a head
        extra_by_head = extra.reshape(kv_heads, group_heads, *(extra.shape[1:] or (1, 1)))
        if is_bias:
            scores = scores + extra_by_head
        else:  # a sink is the score of one more key, which has no value
            sink = jnp.broadcast_to(extra_by_head, (*scores.shape[:-1], 1)).astype(scores.dtype)
            scores = jnp.concatenate((scores, sink), -1)
    shares = nn.softmax(scores, -1)[..., :key_count].astype(values.dtype)
    return jnp.einsum("nkglm,nmkd->nlkgd", shares, values).reshape(n, query_count, -1)


def rotary(x: Array, table: Array, head_width: int, inverse: bool = False) -> Array:
    """Return `x [n, l, heads*d]`, of r features of a head i and i + r/2 turned as a pair."""
    rotary_width = table.shape[1]  # further features of a head are passed through
    cos, sin = jnp.split(table.astype(x.dtype)[:, None], 2, axis=-1)
    sin = -sin if inverse else sin
    heads = x.reshape(*x.shape[:2], -1, head_width)
    first, second = jnp.split(heads[..., :rotary_width], 2, axis=-1)  # feature i of both is a pair
    passed_through = heads[..., rotary_width:]
    rotated_first = first * cos - second * sin
    rotated_second = first * sin + second * cos
    return jnp.concatenate((rotated_first, rotated_second, passed_through), -1).reshape(x.shape)


def delta_rule(
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    share: Array,  # of the change that is written
    *rates: Array,  # none, or [heads, features] times `decay`
    heads: int,
    key_heads: int,
    rule: str = "delta",
) -> Array:
    """Return the outputs of a state that each token updates; `delta` has unit queries and keys."""
    is_delta = rule == "delta"

    def step(state: Array, token: tuple[Array, ...]) -> tuple[Array, Array]:
        query, key, change, token_retained, write_share = token
        state = state * token_retained[..., None]  # [n, head, width of a key, width of a value]
        if is_delta:  # what the state holds for this key is replaced
            change = change - jnp.einsum("nhde,nhd->nhe", state, key)
        state = state + jnp.einsum("nhd,nhe,nh->nhde", key, change, write_share)
        return state, jnp.einsum("nhde,nhd->nhe", state, query)

    def by_value_head(x: Array) -> Array:
        x = _widen(x).reshape(*x.shape[:2], key_heads, -1)
        norm = jnp.linalg.norm(x, axis=-1, keepdims=True) if is_delta else 1.0
        return jnp.repeat(x / norm, heads // key_heads, 2)

    queries = by_value_head(q)
    keys = by_value_head(k)
    values = _widen(v).reshape(*v.shape[:2], heads, -1)
    decay_by_head = _widen(decay).reshape(*v.shape[:2], heads, -1)
    forget_rate = decay_by_head * _widen(rates[0]) if rates else decay_by_head
    retained = jnp.exp(-forget_rate)
    initial_state = jnp.zeros((len(v), heads, queries.shape[-1], values.shape[-1]), values.dtype)
    tokens_first = tuple(x.swapaxes(0, 1) for x in (queries, keys, values, retained, _widen(share)))
    _, outputs = lax.scan(step, initial_state, tokens_first)
    return outputs.swapaxes(0, 1).reshape(v.shape).astype(v.dtype)


def experts(
    x: Array, logits: Array, up: Array, down: Array, *bias: Array, per_token: int, activation: str
) -> Array:
    """Return the weighted outputs of the experts of each token.

    Tokens are sorted by expert, so that each layer is one ragged product.
    """
    tokens = x.reshape(-1, x.shape[-1])
    best_logits, expert_ids = lax.top_k(logits.reshape(-1, logits.shape[-1]), per_token)
    # Rows sorted by expert: `expert` computes the row, and `token` is the token that it is for.
    order = jnp.argsort(expert_ids.ravel())
    expert = expert_ids.ravel()[order]
    token = order // per_token
    tokens_per_expert = jnp.bincount(expert, length=len(up)).astype(jnp.int32)
    up_bias, down_bias = bias or (None, None)

    def product(h: Array, weight: Array, layer_bias: Array | None) -> Array:
        y: Array = lax.ragged_dot(h, weight.mT, tokens_per_expert)
        return y if layer_bias is None else y + layer_bias[expert]

    h = product(tokens[token], up, up_bias)
    gate_activation = GATED.get(activation)
    if gate_activation:  # a half of the features is the gate of the other half
        gate, gated = jnp.split(h, 2, -1)
        h = activate(RUNS, gate_activation, gate) * gated
    else:
        h = activate(RUNS, activation, h)
    outputs = product(h, down, down_bias)
    weights = nn.softmax(best_logits, -1).ravel()[order]
    weighted_outputs = (outputs * weights[:, None]).astype(x.dtype)
    y = jnp.zeros_like(tokens).at[token].add(weighted_outputs)
    return y.reshape(x.shape)


State = tuple[Array, Array]  # output and cell state
Cell = Callable[[Array, Array, State], State]  # of both products and the state before


def _make_recurrent(cell: Cell) -> Callable[..., Array]:
    """Return a layer `[n, l, width] -> [n, l, hidden]`: the inputs' product, then step by step."""

    def layer(x: Array, w_ih: Array, w_hh: Array, b_ih: Array, b_hh: Array, *w_hr: Array) -> Array:
        def step(state: State, input_product: Array) -> tuple[State, Array]:
            previous_h, _ = state
            h, c = cell(input_product, previous_h @ w_hh.T + b_hh, state)
            for projection in w_hr:  # none or one
                h = h @ projection.T
            return (h, c), h

        hidden_width = w_hh.shape[1]
        cell_width = w_hr[0].shape[1] if w_hr else hidden_width  # a projection makes h narrower
        initial_h = jnp.zeros((len(x), hidden_width), x.dtype)
        initial_c = jnp.zeros((len(x), cell_width), x.dtype)
        input_products = x @ w_ih.T + b_ih
        _, outputs = lax.scan(step, (initial_h, initial_c), input_products.swapaxes(0, 1))
        return outputs.swapaxes(0, 1)

    return layer


def _rnn(input_product: Array, state_product: Array, state: State) -> State:
    return jnp.tanh(input_product + state_product), state[1]


def _lstm(input_product: Array, state_product: Array, state: State) -> State:
    i, f, g, o = jnp.split(input_product + state_product, 4, -1)
    c = nn.sigmoid(f) * state[1] + nn.sigmoid(i) * jnp.tanh(g)
    return nn.sigmoid(o) * jnp.tanh(c), c


def _gru(input_product: Array, state_product: Array, state: State) -> State:
    r, z, n = jnp.split(input_product, 3, -1)
    state_r, state_z, state_n = jnp.split(state_product, 3, -1)
    z = nn.sigmoid(z + state_z)
    n = jnp.tanh(n + nn.sigmoid(r + state_r) * state_n)
    return (1 - z) * n + z * state[0], state[1]


def pad(x: Array, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0) -> Array:
    """Return `x` padded, or cut where pads are negative."""
    pairs = [(pads[2 * i], pads[2 * i + 1]) for i in range(x.ndim)]
    if mode == "constant":
        return lax.pad(x, x.dtype.type(value), [(a, b, 0) for a, b in pairs])
    return jnp.pad(x, pairs, "wrap" if mode == "circular" else mode)


def gather_elements(x: Array, indices: Array, axis: int) -> Array:
    """Return the element of `x` at each index along `axis`; other places are its own."""
    region = tuple(slice(None if i == axis else n) for i, n in enumerate(indices.shape))
    return jnp.take_along_axis(x[region], indices, axis)


def topk(x: Array, k: int, axis: int, largest: bool = True) -> tuple[Array, Array]:
    """Return the largest or smallest along `axis`, in order, and their places."""
    last = jnp.moveaxis(x, axis, -1)
    best, places = lax.top_k(last if largest else -last, k)
    best = best if largest else -best
    return jnp.moveaxis(best, -1, axis), jnp.moveaxis(places, -1, axis).astype(jnp.int64)


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Return the mean over labels that are not ignored."""
    log_p = nn.log_softmax(_widen(logits), -1)
    counts = labels != IGNORED_LABEL
    indices = jnp.where(counts, labels, 0)[..., None]
    label_log_p = jnp.take_along_axis(log_p, indices, -1)[..., 0]
    return (-jnp.where(counts, label_log_p, 0).sum() / counts.sum()).astype(logits.dtype)


RUNS: dict[str, Callable[..., Any]] = {
    **kinds(jnp, nn, FUNCTIONS),
    "linear": lambda x, w: x @ w.T,
    "conv2d": convolution,
    "conv_transpose2d": transposed_convolution,
    "max_pool2d": lambda x, **window: _reduce_windows(x, -np.inf, lax.max, **window),
    "avg_pool2d": avg_pool,
    "batch_norm": batch_norm,
    "layer_norm": lambda x, w, b: (_normalise(x) * w + b).astype(x.dtype),
    "rms_norm": lambda x, w: (_normalise(x, centre=False) * w).astype(x.dtype),
    "group_norm": group_norm,
    "local_response_norm": local_response_norm,
    "relu": nn.relu,
    "sigmoid": nn.sigmoid,
    "gelu": lambda x, tanh=False: nn.gelu(x, approximate=tanh),
    "prelu": lambda x, slope: jnp.where(x > 0, x, x * align_to_axis(slope, x)),
    "dropout": lambda x, key, p: jnp.where(
        jax.random.bernoulli(key, 1 - p, x.shape), x / (1 - p), 0
    ),
    "cast": lambda x, dtype: x.astype(dtype),
    "detach": lax.stop_gradient,
    "transpose": lambda x, order: x.transpose(order),
    "slice": lambda x, axis, start, stop, step=1: lax.slice_in_dim(x, start, stop, step, axis),
    "split": lambda x, axis, sizes: tuple(lax.split(x, sizes, axis % x.ndim)),
    "embedding": lambda ids, w, **_: w[ids],
    "attention": attention,
    "delta_rule": delta_rule,
    "rotary": rotary,
    "experts": experts,
    "rnn": _make_recurrent(_rnn),
    "lstm": _make_recurrent(_lstm),
    "gru": _make_recurrent(_gru),
    "pad": pad,
    "gather": jnp.take,
    "gather_elements": gather_elements,
    "topk": topk,
    "cumsum": lambda x, axis, reverse=False: lax.cumsum(x, axis, reverse=reverse),
    "resize2d": resize2d,
    "cross_entropy": cross_entropy,
}
RUNS |= {kind: RUNS[flat] for kind, flat in OVER_VOLUMES.items() if flat in RUNS}
RANDOM_KINDS = ("dropout",)
STATISTICS_INPUTS = {"batch_norm": (3, 4)}  # running mean and variance

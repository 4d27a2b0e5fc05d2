"""How numpy runs norms, embedding, attention and rotary positions, gradients included.

Statistics are kept in float32 or wider, as the op table says.
"""

from __future__ import annotations

import math

import numpy as np

from reference.kinds import Array, Ids, Run, gelu, gelu_grad, silu, silu_grad
from steptime.measure.synthetic import NORM_EPSILON
from steptime.network.ops.experts import GATED


def _wide(x: Array) -> Array:
    """Return `x` in float32, or as it is where that is wider."""
    return x.astype(np.result_type(x.dtype, np.float32), copy=False)


def _along_channels(vector: Array, x: Array) -> Array:
    return vector.reshape(-1, *(1,) * (x.ndim - 2))


def batch_norm(
    x: Array,
    w: Array,
    b: Array,
    running_mean: Array,
    running_variance: Array,
    training: bool = True,
) -> tuple[Array, Array, Array]:
    """Return `x` normalised by channel, then mean and inverse deviation.

    The running statistics are read in inference; in training they are left as they are.
    """
    wide = _wide(x)
    axes = (0, *range(2, x.ndim))
    mean, variance = running_mean, running_variance
    if training:
        mean, variance = wide.mean(axes), wide.var(axes)
    inverse = 1 / np.sqrt(_wide(variance) + np.float32(NORM_EPSILON))
    normal = (wide - _along_channels(mean, x)) * _along_channels(inverse, x)
    y = normal * _along_channels(w, x) + _along_channels(b, x)
    return y.astype(x.dtype), _wide(mean), inverse


def batch_norm_grad(
    x: Array, grad: Array, w: Array, mean: Array, inverse: Array
) -> tuple[Array, Array, Array]:
    """Return the gradients of input, weight and bias."""
    axes = (0, *range(2, x.ndim))
    wide = _wide(grad)
    normal = (_wide(x) - _along_channels(mean, x)) * _along_channels(inverse, x)
    dw, db = (wide * normal).sum(axes), wide.sum(axes)
    share = x.shape[1] / x.size
    centred = wide - _along_channels(db, x) * share - normal * _along_channels(dw, x) * share
    dx = centred * _along_channels(inverse * w, x)
    return dx.astype(x.dtype), dw.astype(w.dtype), db.astype(w.dtype)


def group_norm(x: Array, w: Array, b: Array, groups: int) -> tuple[Array, Array, Array]:
    """Return `x` normalised by groups of channels, then mean and inverse deviation of each."""
    rows = _wide(x).reshape(x.shape[0], groups, -1)
    mean, inverse = rows.mean(-1), 1 / np.sqrt(rows.var(-1) + np.float32(NORM_EPSILON))
    normal = ((rows - mean[..., None]) * inverse[..., None]).reshape(x.shape)
    y = normal * _along_channels(w, x) + _along_channels(b, x)
    return y.astype(x.dtype), mean, inverse


def group_norm_grad(
    x: Array, grad: Array, w: Array, mean: Array, inverse: Array, groups: int
) -> tuple[Array, Array, Array]:
    """Return the gradients of input, weight and bias."""
    rows = (x.shape[0], groups, -1)
    axes = (0, *range(2, x.ndim))
    normal = (_wide(x).reshape(rows) - mean[..., None]) * inverse[..., None]
    wide = _wide(grad)
    dw, db = (wide * normal.reshape(x.shape)).sum(axes), wide.sum(axes)
    g = (wide * _along_channels(w, x)).reshape(rows)
    centred = g - g.mean(-1, keepdims=True) - normal * (g * normal).mean(-1, keepdims=True)
    dx = (centred * inverse[..., None]).reshape(x.shape)
    return dx.astype(x.dtype), dw.astype(w.dtype), db.astype(w.dtype)


def layer_norm(x: Array, w: Array, b: Array) -> tuple[Array, Array, Array]:
    """Return `x` normalised over the last axis, then mean and inverse deviation."""
    wide = _wide(x)
    mean = wide.mean(-1)
    inverse = 1 / np.sqrt(wide.var(-1) + np.float32(NORM_EPSILON))
    y = (wide - mean[..., None]) * inverse[..., None] * w + b
    return y.astype(x.dtype), mean, inverse


def layer_norm_grad(
    x: Array, grad: Array, w: Array, mean: Array, inverse: Array
) -> tuple[Array, Array, Array]:
    """Return the gradients of input, weight and bias."""
    wide = _wide(grad)
    axes = tuple(range(x.ndim - 1))
    normal = (_wide(x) - mean[..., None]) * inverse[..., None]
    g = wide * w
    dx = g - g.mean(-1, keepdims=True) - normal * (g * normal).mean(-1, keepdims=True)
    dw, db = (wide * normal).sum(axes), wide.sum(axes)
    return (dx * inverse[..., None]).astype(x.dtype), dw.astype(w.dtype), db.astype(w.dtype)


def rms_norm(x: Array, w: Array) -> tuple[Array, Array]:
    """Return `x` divided by its root mean square, and the inverse of that."""
    wide = _wide(x)
    inverse = 1 / np.sqrt((wide * wide).mean(-1) + np.float32(NORM_EPSILON))
    return (wide * inverse[..., None] * w).astype(x.dtype), inverse


def rms_norm_grad(x: Array, grad: Array, w: Array, inverse: Array) -> tuple[Array, Array]:
    """Return the gradients of input and weight."""
    wide = _wide(grad)
    normal = _wide(x) * inverse[..., None]
    g = wide * w
    dx = (g - normal * (g * normal).mean(-1, keepdims=True)) * inverse[..., None]
    dw = (wide * normal).sum(tuple(range(x.ndim - 1)))
    return dx.astype(x.dtype), dw.astype(w.dtype)


def _neighbours(x: Array, before: int, after: int) -> Array:
    """Return the sum over channels c - before .. c + after."""
    sides = ((0, 0), (before, after), *((0, 0) for _ in range(x.ndim - 2)))
    wide = np.pad(x, sides)
    sums = np.zeros_like(x)
    for shift in range(before + after + 1):
        sums += wide[:, shift : shift + x.shape[1]]
    return sums


def local_response_norm(
    x: Array, size: int, alpha: float, beta: float, k: float
) -> tuple[Array, Array]:
    """Return `x` divided by a power of its neighbours' squares, and what the power is taken of."""
    squares = _neighbours(x * x, size // 2, (size - 1) // 2)
    base = squares * x.dtype.type(alpha / size) + x.dtype.type(k)
    return x * base ** x.dtype.type(-beta), base


def local_response_norm_grad(
    x: Array,
    grad: Array,
    y: Array,
    base: Array,
    size: int,
    alpha: float,
    beta: float,
    k: float,  # an attribute of the kind: it is in the base
) -> Array:
    """Return the gradient of the input; who is my neighbour has me as one, on the other side."""
    ratios = _neighbours(grad * y / base, (size - 1) // 2, size // 2)
    factor = x.dtype.type(2 * alpha * beta / size)
    return grad * base ** x.dtype.type(-beta) - factor * x * ratios


def embedding(ids: Ids, w: Array, sparse: bool = False) -> Array:
    """Return the rows of `w` that `ids` name."""
    rows: Array = w[ids]
    return rows


def embedding_grad(ids: Ids, grad: Array, rows: int) -> Array:
    """Return zeros with each gradient added to its word's row."""
    out = np.zeros((rows, grad.shape[-1]), grad.dtype)
    np.add.at(out, ids.ravel(), grad.reshape(-1, grad.shape[-1]))
    return out


def _heads(x: Array, heads: int) -> Array:
    """Return `[n, l, heads*d] -> [n, heads, l, d]`."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _rows(x: Array) -> Array:
    """Return `[n, heads, l, d] -> [n, l, heads*d]`."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def _scores(q: Array, k: Array, causal: bool, window: int = 0) -> Array:
    """Return scaled products `[n, heads, l, m]`; if causal, a query sees no key after its place."""
    scores = _wide((q @ k.mT) * q.dtype.type(1 / math.sqrt(q.shape[-1])))
    away = np.arange(q.shape[2])[:, None] - np.arange(k.shape[2])
    unseen = (away < 0 if causal else False) | (np.abs(away) >= (window or np.inf))
    scores[..., unseen] = -np.inf
    return scores


def attention(
    q: Array,
    k: Array,
    v: Array,
    *more: Array,
    heads: int,
    kv_heads: int,
    causal: bool,
    window: int = 0,
) -> tuple[Array, Array]:
    """Return attention `[n, l, heads*e]`, and the log of each softmax's sum `[n, heads, l]`."""
    share = heads // kv_heads
    keys, values = (_heads(x, kv_heads).repeat(share, 1) for x in (k, v))
    scores = _scores(_heads(q, heads), keys, causal, window)
    for one in more:
        if one.ndim == 3:
            scores = scores + one
    sinks = [np.broadcast_to(s[:, None, None], (*scores.shape[:3], 1)) for s in more if s.ndim == 1]
    every = np.concatenate((scores, *sinks), -1)
    top = every.max(-1, keepdims=True)
    sums = np.exp(every - top).sum(-1, keepdims=True)
    y = (np.exp(scores - top) / sums).astype(v.dtype) @ values
    return _rows(y), (top + np.log(sums))[..., 0]


def attention_grad(
    q: Array,
    k: Array,
    v: Array,
    *rest: Array,
    heads: int,
    kv_heads: int,
    causal: bool,
    window: int = 0,
) -> tuple[Array, ...]:
    """Return the gradients of what attention reads, the softmax computed again."""
    *more, grad, y, log_sums = rest
    share = heads // kv_heads
    queries, g = _heads(q, heads), _heads(grad, heads)
    keys, values = (_heads(x, kv_heads).repeat(share, 1) for x in (k, v))
    scores = _scores(queries, keys, causal, window)
    for one in more:
        if one.ndim == 3:
            scores = scores + one
    p = np.exp(scores - log_sums[..., None]).astype(q.dtype)
    inner = (g * _heads(y, heads)).sum(-1, keepdims=True)
    dp = p * (g @ values.mT - inner)
    ds = dp * q.dtype.type(1 / math.sqrt(queries.shape[-1]))
    others = [
        dp.sum(0)
        if one.ndim == 3  # a sink has no value: its share times -inner
        else (-inner[..., 0] * np.exp(one[:, None] - log_sums)).sum((0, 2))
        for one in more
    ]

    def shared(x: Array) -> Array:
        parted = x.reshape(x.shape[0], kv_heads, share, *x.shape[2:])
        return _rows(parted.sum(2))

    return (_rows(ds @ keys), shared(ds.mT @ queries), shared(p.mT @ g), *others)


def rotary(x: Array, table: Array, head_width: int, inverse: bool = False) -> Array:
    """Return `x [n, l, heads*d]`, of r features of a head i and i + r/2 turned as a pair."""
    cos, sin = np.split(table[:, None, :], 2, -1)
    if inverse:
        sin = -sin
    heads = x.reshape(*x.shape[:2], -1, head_width)
    first, second = np.split(heads[..., : table.shape[1]], 2, -1)
    turned = (first * cos - second * sin, first * sin + second * cos, heads[..., table.shape[1] :])
    return np.concatenate(turned, -1).reshape(x.shape).astype(x.dtype, copy=False)


def _chosen(logits: Array, per_token: int) -> tuple[Ids, Array]:
    """Return the chosen experts `[t, k]` of each token, and their weights."""
    flat = logits.reshape(-1, logits.shape[-1])
    chosen = np.argsort(-flat, -1)[:, :per_token]
    picked = np.take_along_axis(flat, chosen, -1)
    e = np.exp(picked - picked.max(-1, keepdims=True))
    return chosen, e / e.sum(-1, keepdims=True)


_ACTIVATIONS = {  # function and gradient
    "relu": (lambda x: np.maximum(x, 0), lambda x, grad: grad * (x > 0)),
    "relu2": (
        lambda x: np.maximum(x, 0) ** 2,
        lambda x, grad: 2 * grad * np.maximum(x, 0),
    ),
    "gelu": (gelu, gelu_grad),
    "gelu_tanh": (
        lambda x: gelu(x, tanh=True),
        lambda x, grad: gelu_grad(x, grad, tanh=True),
    ),
    "silu": (silu, silu_grad),
}


def experts(
    x: Array,
    logits: Array,
    up: Array,
    down: Array,
    *bias: Array,
    per_token: int,
    activation: str,
) -> tuple[Array, Array]:
    """Return the weighed results of each token's experts, and what their first product made."""
    rows = x.reshape(-1, x.shape[-1])
    chosen, weights = _chosen(logits, per_token)
    gate = GATED.get(activation)
    run = _ACTIVATIONS[gate or activation][0]
    h = np.einsum("td,tkud->tku", rows, up[chosen]) + (bias[0][chosen] if bias else 0)
    first, *gated = np.split(h, 2, -1) if gate else (h,)
    inner = run(first) * gated[0] if gate else run(first)
    out = np.einsum("tkf,tkdf->tkd", inner, down[chosen]) + (bias[1][chosen] if bias else 0)
    y = (out * weights[..., None]).sum(1)
    return y.reshape(x.shape), h.reshape(-1, h.shape[-1])


def experts_grad(
    x: Array,
    logits: Array,
    up: Array,
    down: Array,
    *rest: Array,
    per_token: int,
    activation: str,
) -> tuple[Array, ...]:
    """Return the gradients of all that experts read."""
    *bias, grad, h = rest
    rows, dy = (a.reshape(-1, a.shape[-1]) for a in (x, grad))
    chosen, weights = _chosen(logits, per_token)
    h = h.reshape(*chosen.shape, -1)
    gate = GATED.get(activation)
    run, derive = _ACTIVATIONS[gate or activation]
    first, *gated = np.split(h, 2, -1) if gate else (h,)
    inner = run(first) * gated[0] if gate else run(first)
    out = np.einsum("tkf,tkdf->tkd", inner, down[chosen]) + (bias[1][chosen] if bias else 0)
    dw = (out * dy[:, None]).sum(-1)
    dlogits = np.zeros((len(rows), logits.shape[-1]), x.dtype)
    spread = weights * (dw - (weights * dw).sum(-1, keepdims=True))
    np.put_along_axis(dlogits, chosen, spread, -1)
    dout = dy[:, None] * weights[..., None]
    dinner = np.einsum("tkd,tkdf->tkf", dout, down[chosen])
    dh = derive(first, dinner * gated[0] if gate else dinner)
    dh = np.concatenate((dh, dinner * run(first)), -1) if gate else dh
    dx = np.einsum("tku,tkud->td", dh, up[chosen]).reshape(x.shape)
    made = [np.zeros_like(w) for w in (up, down, *bias)]
    np.add.at(made[0], chosen, np.einsum("tku,td->tkud", dh, rows))
    np.add.at(made[1], chosen, np.einsum("tkd,tkf->tkdf", dout, inner))
    for place, part in zip(made[2:], (dh, dout), strict=False):
        np.add.at(place, chosen, part)
    return (dx, dlogits.reshape(logits.shape), *made)


RUNS: dict[str, Run] = {
    "batch_norm": batch_norm,
    "batch_norm_grad": batch_norm_grad,
    "group_norm": group_norm,
    "group_norm_grad": group_norm_grad,
    "layer_norm": layer_norm,
    "layer_norm_grad": layer_norm_grad,
    "rms_norm": rms_norm,
    "rms_norm_grad": rms_norm_grad,
    "local_response_norm": local_response_norm,
    "local_response_norm_grad": local_response_norm_grad,
    "embedding": embedding,
    "embedding_grad": embedding_grad,
    "attention": attention,
    "attention_grad": attention_grad,
    "rotary": rotary,
    "experts": experts,
    "experts_grad": experts_grad,
}

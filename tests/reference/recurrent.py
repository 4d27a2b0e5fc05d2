"""How numpy runs recurrent layers and states, step by step, and their gradients, back in time.

A layer saves nothing: the gradient runs it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from reference.kinds import Array, Run, sigmoid

State = dict[str, Any]


def _rnn(given: Array, own: Array, before: State) -> State:
    return {"h": np.tanh(given + own)}


def _rnn_back(s: State, before: State, dh: Array, dc: Array) -> tuple[Array, Array, Array, Array]:
    d = dh * (1 - s["h"] ** 2)
    return d, d, np.zeros_like(dh), np.zeros_like(dh)


def _lstm(given: Array, own: Array, before: State) -> State:
    i, f, g, o = np.split(given + own, 4, -1)
    i, f, o, g = sigmoid(i), sigmoid(f), sigmoid(o), np.tanh(g)
    c = f * before["c"] + i * g
    return {"i": i, "f": f, "g": g, "o": o, "c": c, "h": o * np.tanh(c)}


def _lstm_back(s: State, before: State, dh: Array, dc: Array) -> tuple[Array, Array, Array, Array]:
    i, f, g, o, t = s["i"], s["f"], s["g"], s["o"], np.tanh(s["c"])
    dc = dc + dh * o * (1 - t * t)
    parts = (dc * g * i * (1 - i), dc * before["c"] * f * (1 - f), dc * i * (1 - g * g))
    d = np.concatenate((*parts, dh * t * o * (1 - o)), -1)
    return d, d, np.zeros_like(dh), dc * f


def _gru(given: Array, own: Array, before: State) -> State:
    (r, z, n), (own_r, own_z, own_n) = np.split(given, 3, -1), np.split(own, 3, -1)
    r, z = sigmoid(r + own_r), sigmoid(z + own_z)
    n = np.tanh(n + r * own_n)
    return {"r": r, "z": z, "n": n, "own": own_n, "h": (1 - z) * n + z * before["h"]}


def _gru_back(s: State, before: State, dh: Array, dc: Array) -> tuple[Array, Array, Array, Array]:
    r, z, n = s["r"], s["z"], s["n"]
    dn = dh * (1 - z) * (1 - n * n)
    dz = dh * (before["h"] - n) * z * (1 - z)
    dr = dn * s["own"] * r * (1 - r)
    return np.concatenate((dr, dz, dn), -1), np.concatenate((dr, dz, dn * r), -1), dh * z, dc


def _states(cell: Callable[..., State], x: Array, *w: Array) -> list[State]:
    w_ih, w_hh, b_ih, b_hh, *projection = w
    sizes = w_hh.shape[1], (*projection, w_hh)[0].shape[1]
    states = [{k: np.zeros((len(x), n), x.dtype) for k, n in zip("hc", sizes, strict=True)}]
    for t in range(x.shape[1]):
        before = states[-1]
        made = cell(x[:, t] @ w_ih.T + b_ih, before["h"] @ w_hh.T + b_hh, before)
        for w_hr in projection:
            made |= {"whole": made["h"], "h": made["h"] @ w_hr.T}
        states.append(made)
    return states


def _layer(cell: Callable[..., State]) -> Run:
    def run(x: Array, *w: Array) -> tuple[Array, Array]:
        return np.stack([s["h"] for s in _states(cell, x, *w)[1:]], 1), np.zeros(0)

    return run


def _layer_grad(cell: Callable[..., State], back: Callable[..., Any]) -> Run:
    def run(x: Array, w_ih: Array, w_hh: Array, *rest: Array) -> tuple[Array, ...]:
        b_ih, b_hh, _, _, grad, *projection = rest
        weights = (w_ih, w_hh, b_ih, b_hh, *projection)
        states = _states(cell, x, *weights)
        dx, grads = np.zeros_like(x), [np.zeros_like(w) for w in weights]
        dh, dc = (np.zeros_like(states[0][k]) for k in "hc")
        for t in reversed(range(x.shape[1])):
            before, of_output = states[t], dh + grad[:, t]
            of_state = of_output @ projection[0] if projection else of_output
            given, own, passed, dc = back(states[t + 1], before, of_state, dc)
            dx[:, t] = given @ w_ih
            dh = own @ w_hh + (0 if projection else passed)
            made = (given.T @ x[:, t], own.T @ before["h"], given.sum(0), own.sum(0))
            made += tuple(of_output.T @ states[t + 1]["whole"] for _ in projection)
            grads = [old + new for old, new in zip(grads, made, strict=True)]
        return dx, *grads

    return run


def _turned(x: Array, heads: int, key_heads: int, rule: str) -> tuple[Array, Array]:
    """Return keys or queries of each head, of length 1 by the rule `delta`, and their divisors."""
    x = x.reshape(*x.shape[:2], key_heads, -1).repeat(heads // key_heads, 2)
    size = np.sqrt((x * x).sum(-1, keepdims=True)) if rule == "delta" else np.ones(1)
    return x / size, size


def _state_of(  # of each head [d, e], of one more time than there are tokens
    k: Array, v: Array, kept: Array, share: Array, rule: str
) -> list[Array]:
    states = [np.zeros((*k.shape[:1], *k.shape[2:], v.shape[-1]), v.dtype)]
    for t in range(k.shape[1]):
        past, change = states[-1] * kept[:, t, :, :, None], v[:, t]
        if rule == "delta":
            change = change - np.einsum("nhde,nhd->nhe", past, k[:, t])
        states.append(past + np.einsum("nhd,nhe,nh->nhde", k[:, t], change, share[:, t]))
    return states


def _delta(
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    share: Array,
    *rates: Array,
    heads: int,
    key_heads: int,
    rule: str = "delta",
) -> Array:
    wide, decay = (x.reshape(*v.shape[:2], heads, -1) for x in (v, decay))
    kept = np.exp(-decay * rates[0] if rates else -decay)
    (q, _), (k, _) = (_turned(x, heads, key_heads, rule) for x in (q, k))
    states = np.stack(_state_of(k, wide, kept, share, rule)[1:], 1)
    return np.einsum("nthde,nthd->nthe", states, q).reshape(v.shape)


def _delta_grad(
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    share: Array,
    *rates_and_grad: Array,
    heads: int,
    key_heads: int,
    rule: str = "delta",
) -> tuple[Array, ...]:
    *rates, grad = rates_and_grad
    wide, dy, by_head = (x.reshape(*v.shape[:2], heads, -1) for x in (v, grad, decay))
    kept = np.exp(-by_head * rates[0] if rates else -by_head)
    (q1, q_size), (k1, k_size) = (_turned(x, heads, key_heads, rule) for x in (q, k))
    states = _state_of(k1, wide, kept, share, rule)
    dq, dk, dv = (np.zeros_like(x) for x in (q1, k1, wide))
    d_decay, d_share, ds = np.zeros_like(kept), np.zeros_like(share), np.zeros_like(states[0])
    for t in reversed(range(v.shape[1])):
        ds = ds + np.einsum("nhd,nhe->nhde", q1[:, t], dy[:, t])
        dq[:, t] = np.einsum("nhde,nhe->nhd", states[t + 1], dy[:, t])
        past, change = states[t] * kept[:, t, :, :, None], wide[:, t]
        if rule == "delta":
            change = change - np.einsum("nhde,nhd->nhe", past, k1[:, t])
        by_key = np.einsum("nhde,nhd->nhe", ds, k1[:, t])
        d_share[:, t] = (by_key * change).sum(-1)
        dv[:, t] = by_key * share[:, t, :, None]
        dk[:, t] = np.einsum("nhde,nhe,nh->nhd", ds, change, share[:, t])
        if rule == "delta":
            dk[:, t] -= np.einsum("nhde,nhe->nhd", past, dv[:, t])
            ds = ds - np.einsum("nhd,nhe->nhde", k1[:, t], dv[:, t])
        of_decay = -(ds * past).sum(-1)
        d_decay[:, t] = of_decay.sum(-1, keepdims=True) if kept.shape[-1] == 1 else of_decay
        ds = ds * kept[:, t, :, :, None]

    d_rates = [(d_decay * by_head).sum((0, 1)) for _ in rates]
    if rates:
        d_decay = (d_decay * rates[0]).sum(-1)

    def back(dx: Array, unit: Array, size: Array) -> Array:
        if rule == "delta":
            dx = (dx - unit * (dx * unit).sum(-1, keepdims=True)) / size
        n, length, _, width = dx.shape
        return dx.reshape(n, length, key_heads, -1, width).sum(3).reshape(q.shape)

    return (
        back(dq, q1, q_size),
        back(dk, k1, k_size),
        dv.reshape(v.shape),
        d_decay.reshape(decay.shape),
        d_share,
        *d_rates,
    )


_CELLS = {"rnn": (_rnn, _rnn_back), "lstm": (_lstm, _lstm_back), "gru": (_gru, _gru_back)}
RUNS: dict[str, Run] = {
    **{kind: _layer(cell) for kind, (cell, _) in _CELLS.items()},
    **{f"{kind}_grad": _layer_grad(*rules) for kind, rules in _CELLS.items()},
    "delta_rule": _delta,
    "delta_rule_grad": _delta_grad,
}

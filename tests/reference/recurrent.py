"""How numpy runs recurrent layers over `[n, l, width]`: their formulas, step by step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from reference.kinds import Array, Run


def _sigmoid(x: Array) -> Array:
    half: Array = 0.5 * (1 + np.tanh(0.5 * x))
    return half


def _rnn(x: Array, h: Array, state: Array) -> tuple[Array, Array]:
    return np.tanh(x + h), state


def _lstm(x: Array, h: Array, state: Array) -> tuple[Array, Array]:
    i, f, g, o = np.split(x + h, 4, 1)
    cell = _sigmoid(f) * state + _sigmoid(i) * np.tanh(g)
    return _sigmoid(o) * np.tanh(cell), cell


def _gru(x: Array, h: Array, state: Array) -> tuple[Array, Array]:
    r, z, n = np.split(x, 3, 1)
    r_h, z_h, n_h = np.split(h, 3, 1)
    z = _sigmoid(z + z_h)
    new = (1 - z) * np.tanh(n + _sigmoid(r + r_h) * n_h) + z * state
    return new, new


def layer(cell: Callable[[Array, Array, Array], tuple[Array, Array]]) -> Run:
    """Return the layer of a cell: from the products of input and output to the next output."""

    def run(x: Array, w: Array, u: Array, b: Array, c: Array) -> Array:
        y = state = np.zeros((x.shape[0], u.shape[1]), x.dtype)
        made = []
        for t in range(x.shape[1]):
            y, state = cell(x[:, t] @ w.T + b, y @ u.T + c, state)
            made.append(y)
        return np.stack(made, 1)

    return run


RUNS: dict[str, Run] = {"rnn": layer(_rnn), "lstm": layer(_lstm), "gru": layer(_gru)}

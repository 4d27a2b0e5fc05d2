"""A mixture of experts: every token goes through the few feed-forward layers that a router chose.

Shazeer et al. 2017, "Outrageously Large Neural Networks". Tokens are taken to be spread evenly.
"""

import math
from typing import Any

from steptime.core.graph import TensorSpec
from steptime.ops.table import Products, Specs, example, fused, matrix_kind, require, show

GATED = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "reglu": "relu"}


def experts_outputs(
    x: TensorSpec,
    logits: TensorSpec,
    up: TensorSpec,
    down: TensorSpec,
    *bias: TensorSpec,
    per_token: int,
    activation: str,
) -> Specs:
    """Return `x [..., d], logits [..., e], up [e, u, d], down [e, d, f] -> [..., d]`.

    The `per_token` largest logits of a token choose its experts and, by a softmax over them, weigh
    their results. `u` is twice `f` where the activation is gated; biases are `[e, u]` and `[e, d]`.
    """
    require(
        len(up.shape) == len(down.shape) == 3 and x.shape[:-1] == logits.shape[:-1],
        f"experts of {show(x, logits, up, down)}",
    )
    count, rows, width = up.shape
    inner = rows // 2 if activation in GATED else rows
    fits = logits.shape[-1] == count and x.shape[-1] == width and 1 <= per_token <= count
    fits = fits and down.shape == (count, width, inner) and inner >= 1
    fits = fits and [b.shape for b in bias] in ([], [(count, rows), (count, width)])
    require(fits, f"{per_token} experts a token of {show(x, logits, up, down, *bias)}")
    return (x,)


def _share(x: TensorSpec, count: int, per_token: int) -> list[tuple[int, int]]:
    """Return (experts, tokens of each) of an even spread: 7 over 3 is 1 of 3 and 2 of 2."""
    each, more = divmod(math.prod(x.shape[:-1]) * per_token, count)
    return [(n, rows) for n, rows in ((more, each + 1), (count - more, each)) if n and rows]


def experts_products(*specs: TensorSpec, per_token: int, **_: Any) -> Products:
    """Return both products of every expert that has tokens."""
    x, _logits, up, down = specs[:4]
    return tuple(
        (count, rows, w.shape[1], w.shape[2])
        for w in (up, down)
        for count, rows in _share(x, up.shape[0], per_token)
    )


def experts_grad_products(*specs: TensorSpec, **attrs: Any) -> Products:
    """Return the gradients of the inputs and of the weights of both products."""
    forward = experts_products(*specs, **attrs)
    return tuple(p for e, m, n, k in forward for p in ((e, m, k, n), (e, n, k, m)))


def _read(*specs: TensorSpec, per_token: int, **_: Any) -> int:
    """Return the bytes read: of the experts' matrices, those of experts that have tokens."""
    touched = sum(n for n, _ in _share(specs[0], specs[2].shape[0], per_token))
    whole = sum(spec.size_bytes for spec in (*specs[:2], *specs[4:]))
    return whole + sum(w.size_bytes // w.shape[0] * touched for w in specs[2:4])


def experts_saved(
    x: TensorSpec, _: TensorSpec, up: TensorSpec, *__: Any, per_token: int, **___: Any
) -> Specs:
    """Return what the first product made of every token, before the activation."""
    return (TensorSpec((math.prod(x.shape[:-1]) * per_token, up.shape[1]), x.dtype),)


_HOW: dict[str, Any] = {"per_token": 2, "activation": "swiglu"}

KINDS = {
    "experts": matrix_kind(
        experts_outputs,
        experts_products,
        example("1x2x4 1x2x5 5x12x4 5x4x6 5x12 5x4", **_HOW),
        "Shazeer et al. 2017, eq. 1, spread evenly; the products of the chosen experts alone count",
        gradient=fused("experts_grad", "inputs dy saved", "grad"),
        saved=experts_saved,
        read=_read,
        work="matmul",
    ),
    "experts_grad": matrix_kind(
        lambda *specs, **_: specs[:-2],
        experts_grad_products,
        example("1x2x4 1x2x5 5x12x4 5x4x6 5x12 5x4 1x2x4 4x12", **_HOW),
        "derivative of experts: data and weight gradients, twice forward",
        read=_read,
        work="matmul",
    ),
}

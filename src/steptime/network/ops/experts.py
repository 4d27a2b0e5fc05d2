"""Mixtures of experts: each token goes through the few feed-forward layers that a router chooses.

Shazeer et al. 2017, "Outrageously Large Neural Networks". Tokens are taken to be spread evenly.
"""

import math
from typing import Any, NamedTuple

from steptime.core.graph import Attr, TensorSpec
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

GATED = {  # activation of the gate; limits and offset of a clamped one are not run
    "swiglu": "silu",
    "clamped_swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "reglu": "relu",
}


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
        f"experts of {format_shapes(x, logits, up, down)}",
    )
    count, rows, width = up.shape
    # a gated activation multiplies two halves of the first product
    inner = rows // 2 if activation in GATED else rows
    has_logits = logits.shape[-1] == count and 1 <= per_token <= count
    has_matrices = x.shape[-1] == width and down.shape == (count, width, inner) and inner >= 1
    bias_shapes = [spec.shape for spec in bias]
    has_bias = bias_shapes in ([], [(count, rows), (count, width)])
    fits = has_logits and has_matrices and has_bias
    require(fits, f"{per_token} experts a token of {format_shapes(x, logits, up, down, *bias)}")
    return (x,)


class _LoadedExperts(NamedTuple):
    """Experts that have the same number of tokens."""

    experts: int
    tokens_per_expert: int


def _spread_tokens(x: TensorSpec, expert_count: int, per_token: int) -> list[_LoadedExperts]:
    """Return the experts of an even spread that have tokens.

    7 tokens over 3 experts are 1 expert with 3 tokens and 2 experts with 2.
    """
    token_count = math.prod(x.shape[:-1])
    tokens_per_expert, fuller_experts = divmod(token_count * per_token, expert_count)
    # 7 tokens over 3 experts: 1 expert has 3 tokens and 2 experts have 2
    spread = []
    if fuller_experts:
        spread.append(_LoadedExperts(fuller_experts, tokens_per_expert + 1))
    if tokens_per_expert:
        spread.append(_LoadedExperts(expert_count - fuller_experts, tokens_per_expert))
    return spread


def experts_products(*specs: TensorSpec, per_token: int, **_: Any) -> Products:
    """Return both products of each expert that has tokens."""
    x, _logits, up, down = specs[:4]
    expert_count = up.shape[0]
    spread = _spread_tokens(x, expert_count, per_token)
    products = []
    for weight in (up, down):
        _experts, n, k = weight.shape
        # each is (batch, m, n, k): experts with as many tokens are one batch of products
        products += [(experts, tokens, n, k) for experts, tokens in spread]
    return tuple(products)


def experts_read(experts: int, per_token: int, tokens: float) -> float:
    """Return the expected number of experts that have tokens, whose weights are read.

    Each token chooses `per_token` experts with equal chances. With 8 experts and 2 a token, one
    token reads 2 and two tokens read 8 (1 - 0.75^2) = 3.5.
    """
    return float(experts * (1 - (1 - per_token / experts) ** tokens))


def _read_bytes(*specs: TensorSpec, per_token: int, **_: Any) -> int:
    """Return the bytes read: tokens, logits, biases, and matrices of experts that have tokens."""
    x, logits, up, down, *bias = specs
    token_count = math.prod(x.shape[:-1])
    expert_count = up.shape[0]
    bytes_per_expert = (up.size_bytes + down.size_bytes) / expert_count
    expert_bytes = experts_read(expert_count, per_token, token_count) * bytes_per_expert
    input_bytes = sum(spec.size_bytes for spec in (x, logits, *bias))
    return input_bytes + round(expert_bytes)


def experts_saved(
    x: TensorSpec, _: TensorSpec, up: TensorSpec, *__: Any, per_token: int, **___: Any
) -> Specs:
    """Return the result of the first product, before the activation."""
    rows = math.prod(x.shape[:-1]) * per_token
    return (TensorSpec((rows, up.shape[1]), x.dtype),)


_ROUTING: dict[str, Attr] = {"per_token": 2, "activation": "swiglu"}

KINDS = {
    "experts": matrix_kind(
        experts_outputs,
        experts_products,
        example((1, 2, 4), (1, 2, 5), (5, 12, 4), (5, 4, 6), (5, 12), (5, 4), **_ROUTING),
        "Shazeer et al. 2017, eq. 1, spread evenly; the products of the chosen experts alone count",
        saved=experts_saved,
        read=_read_bytes,
        work="matmul",
        gradient_op=GradientOp(
            (Operand.INPUTS, Operand.GRADIENT, Operand.SAVED),
            gradient_products(experts_products),
            "derivative of experts: data and weight gradients, twice forward",
        ),
    )
}

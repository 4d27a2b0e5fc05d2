"""Mixtures of experts: each token goes through the few feed-forward layers that a router chooses.

Shazeer et al. 2017, "Outrageously Large Neural Networks". The op is that of one rank: it has
`expert` ranks' tokens and logits, and its own experts' weights (`expert_loads`).
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from steptime.core.graph import Attr, Graph, Op, TensorSpec
from steptime.network.ops.expert_loads import (
    EVEN_ROUTINGS,
    UNIFORM,
    RankLoad,
    check_spread,
    find_rank_load,
)
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
    expert: int = 1,
    routing: str = UNIFORM,
) -> Specs:
    """Return `x [..., d], logits [..., e r], up [e, u, d], down [e, d, f] -> [..., d]`.

    The `per_token` largest logits of a token choose its experts and, by a softmax over them, weigh
    their results. `u` is twice `f` where the activation is gated; biases are `[e, u]` and `[e, d]`.
    Of r ranks that share the experts (`expert`), one has `e` of them, and all tokens.
    """
    require(
        len(up.shape) == len(down.shape) == 3 and x.shape[:-1] == logits.shape[:-1],
        f"experts of {format_shapes(x, logits, up, down)}",
    )
    experts = up.shape[0] * expert  # of all ranks
    has_logits = logits.shape[-1] == experts and 1 <= per_token <= experts
    fits = has_logits and _has_matrices(x, up, down, activation) and _has_biases(bias, up)
    ranks = f" on each of {expert} ranks" if expert > 1 else ""
    shapes = format_shapes(x, logits, up, down, *bias)
    require(fits, f"{per_token} experts a token of {shapes}{ranks}")
    check_spread(experts, expert, routing)
    return (x,)


def _has_matrices(x: TensorSpec, up: TensorSpec, down: TensorSpec, activation: str) -> bool:
    """Whether both matrices of each expert fit the tokens and the activation between them."""
    count, rows, width = up.shape
    # a gated activation multiplies two halves of the first product
    inner = rows // 2 if activation in GATED else rows
    return x.shape[-1] == width and down.shape == (count, width, inner) and inner >= 1


def _has_biases(bias: Specs, up: TensorSpec) -> bool:
    """Whether the two products of each expert have no bias, or one each."""
    count, rows, width = up.shape
    return [spec.shape for spec in bias] in ([], [(count, rows), (count, width)])


class _LoadedExperts(NamedTuple):
    """Experts that have the same number of tokens."""

    experts: int
    tokens_per_expert: int


def load_of(
    token_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    per_token: int,
    expert: int = 1,
    routing: str = UNIFORM,
) -> RankLoad:
    """Return the load of the rank that runs a layer of experts.

    Args:
        token_shape: shape of the tokens of all ranks that share the experts.
        weight_shape: shape of a matrix of all experts of a rank.
        per_token: experts that a token chooses.
        expert: ranks that share the experts.
        routing: how tokens choose experts (`find_rank_load`).
    """
    tokens = math.prod(token_shape[:-1])
    return find_rank_load(tokens, weight_shape[0] * expert, per_token, expert, routing)


def load_of_op(op: Op, graph: Graph) -> RankLoad:
    """Return the load of the rank that runs a layer of experts of a graph."""
    x, _logits, up, *_ = (graph.tensors[name] for name in op.inputs)
    attrs: Mapping[str, Any] = op.attrs
    routing = attrs.get("routing", UNIFORM)
    return load_of(x.shape, up.shape, attrs["per_token"], attrs.get("expert", 1), routing)


def _spread_rows(load: RankLoad, routing: str) -> list[_LoadedExperts]:
    """Return the experts of a rank that have tokens, an even spread of its rows.

    7 rows over 3 experts are 1 expert with 3 tokens and 2 experts with 2. If routing is skewed, the
    rows are those of fewer experts.
    """
    row_count = math.ceil(load.rows)
    expert_count = load.experts if routing in EVEN_ROUTINGS else round(load.read_experts)
    tokens_per_expert, fuller_experts = divmod(row_count, expert_count)
    spread = []
    if fuller_experts:
        spread.append(_LoadedExperts(fuller_experts, tokens_per_expert + 1))
    if tokens_per_expert:
        spread.append(_LoadedExperts(expert_count - fuller_experts, tokens_per_expert))
    return spread


def experts_products(
    *specs: TensorSpec, per_token: int, expert: int = 1, routing: str = UNIFORM, **_: Any
) -> Products:
    """Return both products of each expert that has tokens."""
    x, _logits, up, down = specs[:4]
    spread = _spread_rows(load_of(x.shape, up.shape, per_token, expert, routing), routing)
    products = []
    for weight in (up, down):
        _experts, n, k = weight.shape
        # each is (batch, m, n, k): experts with as many tokens are one batch of products
        products += [(experts, tokens, n, k) for experts, tokens in spread]
    return tuple(products)


def _read_bytes(
    *specs: TensorSpec, per_token: int, expert: int = 1, routing: str = UNIFORM, **_: Any
) -> int:
    """Return the bytes read: tokens, logits, biases, and matrices of experts that have tokens."""
    x, logits, up, down, *bias = specs
    load = load_of(x.shape, up.shape, per_token, expert, routing)
    bytes_per_expert = (up.size_bytes + down.size_bytes) / load.experts
    expert_bytes = load.read_experts * bytes_per_expert
    input_bytes = sum(spec.size_bytes for spec in (x, logits, *bias))
    return input_bytes + round(expert_bytes)


def experts_saved(
    x: TensorSpec,
    _: TensorSpec,
    up: TensorSpec,
    *__: Any,
    per_token: int,
    expert: int = 1,
    routing: str = UNIFORM,
    **___: Any,
) -> Specs:
    """Return the result of the first product, before the activation."""
    rows = math.ceil(load_of(x.shape, up.shape, per_token, expert, routing).rows)
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

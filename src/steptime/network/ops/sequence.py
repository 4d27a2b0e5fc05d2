"""Ops over sequences `[batch, length, width]`: embedding, attention, rotary, recurrence, experts.

Attention and recurrent layers are single kinds because hardware runs them fused; their FLOP are
those of their matrix products alone, so that other counters can be compared exactly. In a mixture
of experts every token goes through the few feed-forward layers that a router chose (Shazeer et al.
2017, "Outrageously Large Neural Networks"). Tokens are taken to be spread evenly.
"""

import math
from typing import Any

from steptime.core.graph import TensorSpec
from steptime.network.ops.table import (
    Back,
    OpKind,
    Products,
    Specs,
    example,
    fused,
    matrix_kind,
    no_flop,
    require,
    show,
    turned,
    twice,
)

GATES = {"rnn": 1, "lstm": 4, "gru": 3}


def embedding_outputs(ids: TensorSpec, w: TensorSpec) -> Specs:
    """Return `ids [...], w [vocabulary, width] -> [..., width]`."""
    require(len(w.shape) == 2, f"an embedding table is a matrix, not {show(w)}")
    require(ids.dtype in ("int64", "int32"), f"an embedding of {ids.dtype}")
    return (TensorSpec((*ids.shape, w.shape[1]), w.dtype),)


def attention_outputs(
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    *more: TensorSpec,
    heads: int,
    kv_heads: int,
    causal: bool,
    window: int = 0,
) -> Specs:
    """Return `q [n, l, heads*d], k [n, m, kv_heads*d], v [n, m, kv_heads*e] -> [n, l, heads*e]`.

    `more` may be `[heads, l, m]`, which is added to the scores (relative positions), and `[heads]`,
    the score of a key without a value (a sink). In a `window` a place sees those that lie less than
    so many away.
    """
    require(
        min(heads, kv_heads) >= 1 and heads % kv_heads == 0 and window >= 0,
        f"{heads} heads do not share {kv_heads} key-value heads in a window of {window}",
    )
    require(len(q.shape) == 3, f"attention needs [batch, length, width], not {show(q)}")
    require(q.shape[2] % heads == 0, f"width {q.shape[2]} in {heads} heads")
    keys = (q.shape[0], *k.shape[1:2], q.shape[2] // heads * kv_heads)
    fits = k.shape == keys and v.shape[:-1] == keys[:2] and v.shape[2] % kv_heads == 0
    fits = fits and all(one.shape in ((heads, q.shape[1], keys[1]), (heads,)) for one in more)
    require(fits, f"attention of {show(q, k, v, *more)} in {heads} heads")
    return (TensorSpec((*q.shape[:2], v.shape[2] // kv_heads * heads), q.dtype),)


def attention_products(
    q: TensorSpec, k: TensorSpec, v: TensorSpec, *_: TensorSpec, heads: int, **how: Any
) -> Products:
    """Return scores and values of every head; masks and windows save nothing."""
    batch, length, keys = q.shape[0] * heads, q.shape[1], k.shape[1]
    width, values = q.shape[2] // heads, v.shape[2] // how["kv_heads"]
    return ((batch, length, keys, width), (batch, length, values, keys))


def share_in_window(q: TensorSpec, k: TensorSpec, window: int, causal: bool) -> float:
    """Return the share of an attention's scores that lie in its window, queries at the end of keys.

    Of 4 causal places that see themselves and the one before, 1 + 2 + 2 + 2 of 16.
    """
    length, keys = q.shape[1], k.shape[1]
    if keys < length:
        return 1.0

    def near(places: int, most: int) -> int:  # the sum of min(1, most) + min(2, most) + ...
        rising = min(places, most)
        return rising * (rising + 1) // 2 + (places - rising) * most

    before = near(keys, window) - near(keys - length, window)
    after = 0 if causal else near(length - 1, window - 1)
    return (before + after) / (length * keys)


def attention_grad_products(*specs: TensorSpec, **how: Any) -> Products:
    """Return dV, dP, dQ and dK of every head; recomputing the scores is not counted."""
    (batch, length, keys, width), (_, _, values, _) = attention_products(*specs, **how)
    of_values = (batch, keys, values, length), (batch, length, keys, values)
    return (*of_values, (batch, length, width, keys), (batch, keys, width, length))


def attention_saved(q: TensorSpec, *_: TensorSpec, heads: int, **__: Any) -> Specs:
    """Return the log of the softmax's sum for each query, `[n, heads, l]`."""
    dtype = "float64" if q.dtype == "float64" else "float32"
    return (TensorSpec((q.shape[0], heads, q.shape[1]), dtype),)


def rotary_outputs(
    x: TensorSpec, table: TensorSpec, head_width: int, inverse: bool = False
) -> Specs:
    """Return `x [n, l, heads*d]` rotated by the angles' `table [l, r]` (cosines, then sines).

    Of each head the first `r` features are, of the `head_width` that it has.
    """
    require(len(x.shape) == 3, f"rotary needs [batch, length, width], not {show(x)}")
    fits = head_width >= 2 and x.shape[2] % head_width == 0
    require(fits, f"rotary of width {x.shape[2]} in heads of {head_width}")
    fits = len(table.shape) == 2 and table.shape[0] == x.shape[1] and table.shape[1] % 2 == 0
    require(fits and 2 <= table.shape[1] <= head_width, f"rotary of {show(x, table)}")
    return (x,)


def recurrent_outputs(gates: int) -> Any:
    """Return the output rule of a layer with `gates` gates."""

    def outputs(x: TensorSpec, w_ih: TensorSpec, w_hh: TensorSpec, *rest: TensorSpec) -> Specs:
        require(len(x.shape) == 3, f"a recurrent layer needs [batch, length, width], not {show(x)}")
        bias, projection = rest[:2], rest[2:]
        hidden, width = (*projection, w_hh)[0].shape[-1], w_hh.shape[-1]
        rows = gates * hidden
        require(
            w_ih.shape == (rows, x.shape[2]) and w_hh.shape == (rows, width),
            f"a recurrent layer of {show(x, w_ih, w_hh, *projection)} with {gates} gates",
        )
        require(
            [b.shape for b in bias] == [(rows,)] * 2,
            f"a recurrent layer needs two bias vectors of {rows}",
        )
        fits = gates == GATES["lstm"] and width < hidden
        fits = fits and [w.shape for w in projection] == [(width, hidden)]
        require(fits or not projection, f"a projection {show(*projection)} with {gates} gates")
        return (TensorSpec((*x.shape[:2], width), x.dtype),)

    return outputs


def recurrent_products(
    x: TensorSpec, _w_ih: TensorSpec, w_hh: TensorSpec, *rest: TensorSpec
) -> Products:
    """Return the product of all inputs at once, and those of the state at every step."""
    batch, length, width = x.shape
    each = ((length, batch, w.shape[0], w.shape[1]) for w in (w_hh, *rest[2:]))
    return ((1, batch * length, w_hh.shape[0], width), *each)


def recurrent_grad_products(*specs: TensorSpec, of_data: bool = True) -> Products:
    """Return dX (if `of_data`), gradients of the state at every step, and those of the matrices."""
    forward = recurrent_products(*specs[:5], *specs[8:])
    back = tuple((times, m, k, n) for times, m, n, k in forward)
    kept = back if of_data else back[1:]
    return (*kept, *((1, n, k, times * m) for times, m, n, k in forward))


def recurrent_kinds(
    kind: str, formula: str, kept: int, dropped: int, always_saves: bool = False
) -> dict[str, OpKind]:
    """Return the two rows of a cell.

    In hidden sizes a step, `kept` are saved for the backward pass, `dropped` are made besides: as
    in torch's own layers, with inputs laid out batch first. An LSTM keeps the four gates, the cell
    state, its tanh and the output; and makes as much in inference. A library may keep more: oneDNN
    16 hidden sizes a step of an LSTM, in a workspace. What projects an LSTM's output is its sixth
    input, the last of its gradient; what it makes of it is kept as well.
    """
    gates = GATES[kind]
    rows = gates * 5
    inputs = f"2x3x4 {rows}x4 {rows}x5 {rows} {rows}"

    def keep(x: TensorSpec, w_ih: TensorSpec, w_hh: TensorSpec, *rest: TensorSpec) -> Specs:
        batch, length = x.shape[:2]
        each = kept * w_ih.shape[0] // gates + sum(w.shape[0] for w in rest[2:])
        return (TensorSpec((batch, length * each), x.dtype),)

    return {
        kind: matrix_kind(
            recurrent_outputs(gates),
            recurrent_products,
            example(inputs),
            f"{formula}; two bias vectors, as cuDNN and torch; the products alone are counted",
            gradient=lambda b: b.emit(
                f"{kind}_grad",
                (*b.op.inputs[:5], b.output, *b.saved, b.grad, *b.op.inputs[5:]),
                "grad",
                **({} if b.needs[0] else {"of_data": False}),
            ),
            saved=keep,
            always_saves=always_saves,
            work="recurrent",
            serial=lambda x, *_: x.shape[1],
            scratch=lambda x, w_ih, w_hh, *_: dropped * x.size_bytes // x.shape[2] * w_hh.shape[1],
        ),
        f"{kind}_grad": matrix_kind(
            lambda *specs, of_data=True: (*specs[:5], *specs[8:]),
            recurrent_grad_products,
            example(f"{inputs} 2x3x5 2x{3 * kept * 5} 2x3x5"),
            f"derivative of {kind}: data and weight gradients, twice forward",
            work="recurrent",
            serial=lambda x, *_, **__: x.shape[1],
        ),
    }


_HEADS: dict[str, Any] = {"heads": 4, "kv_heads": 2, "causal": True}

KINDS = {
    "embedding": OpKind(
        embedding_outputs,
        no_flop,
        example("2x3:int64 7x4"),
        "definition: reads the rows it copies, not the whole table",
        gradient=lambda b: (  # each row of dY is added to its word's row of a dense gradient
            None,
            *b.emit(
                "embedding_grad", (b.op.inputs[0], b.grad), "grad_weight", rows=b.specs[1].shape[0]
            ),
        ),
        read=lambda ids, w: ids.size_bytes + embedding_outputs(ids, w)[0].size_bytes,
    ),
    "embedding_grad": OpKind(
        lambda ids, grad, rows: (TensorSpec((rows, grad.shape[-1]), grad.dtype),),
        lambda ids, grad, rows: int(grad.size),
        example("2x3:int64 2x3x4", rows=7),
        "definition: one addition an element of dY; writes the whole table",
    ),
    "attention": matrix_kind(
        attention_outputs,
        attention_products,
        example("2x3x8 2x3x4 2x3x4", **_HEADS),
        "Vaswani et al. 2017, eq. 1; two products for each head, softmax inside not counted",
        saved=attention_saved,
        always_saves=True,
        work="attention",
        back=Back(
            "inputs dy y saved",
            attention_grad_products,
            "four products: dV, dP, dQ, dK; recomputing the scores is not counted",
        ),
    ),
    "rotary": OpKind(
        rotary_outputs,
        lambda x, table, head_width, **_: 3 * x.size // head_width * table.shape[1],
        example("2x3x8 3x2", head_width=2),
        "Su et al. 2021, eq. 34: two products and a sum an element that is turned",
        gradient=fused("rotary", "dy w", attrs=turned("inverse")),
    ),
    **recurrent_kinds("rnn", "h = tanh(W x + b + U h + c)", 1, 2),
    **recurrent_kinds("lstm", "Hochreiter, Schmidhuber 1997, with forget gate", 7, 0, True),
    **recurrent_kinds("gru", "Cho et al. 2014, reset after the product", 7, 5),
}


GATED = {  # by what activates the gate; of a clamped one, limits and an offset are not run
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


def experts_read(experts: int, per_token: int, tokens: float) -> float:
    """Return how many of a layer's experts are expected to have tokens, and are read.

    Each token chooses `per_token` of them, all alike: of 8 experts, 2 a token, one token reads 2
    and two tokens 8 (1 - 0.75^2) = 3.5.
    """
    return float(experts * (1 - (1 - per_token / experts) ** tokens))


def _read(*specs: TensorSpec, per_token: int, **_: Any) -> int:
    """Return the bytes read: of the experts' matrices, those of experts that have tokens."""
    x, _logits, up, down = specs[:4]
    touched = experts_read(up.shape[0], per_token, math.prod(x.shape[:-1]))
    whole = sum(spec.size_bytes for spec in (*specs[:2], *specs[4:]))
    return whole + round(sum(w.size_bytes / w.shape[0] * touched for w in (up, down)))


def experts_saved(
    x: TensorSpec, _: TensorSpec, up: TensorSpec, *__: Any, per_token: int, **___: Any
) -> Specs:
    """Return what the first product made of every token, before the activation."""
    return (TensorSpec((math.prod(x.shape[:-1]) * per_token, up.shape[1]), x.dtype),)


_HOW: dict[str, Any] = {"per_token": 2, "activation": "swiglu"}

KINDS |= {
    "experts": matrix_kind(
        experts_outputs,
        experts_products,
        example("1x2x4 1x2x5 5x12x4 5x4x6 5x12 5x4", **_HOW),
        "Shazeer et al. 2017, eq. 1, spread evenly; the products of the chosen experts alone count",
        saved=experts_saved,
        read=_read,
        work="matmul",
        back=Back(
            "inputs dy saved",
            twice(experts_products),
            "derivative of experts: data and weight gradients, twice forward",
        ),
    )
}

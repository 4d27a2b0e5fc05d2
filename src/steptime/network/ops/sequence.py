"""Ops over sequences `[batch, length, width]`: attention, rotary, recurrence.

Attention and recurrent layers are single kinds because hardware runs them fused; their FLOP are
those of their matrix products alone, so that other counters can be compared exactly.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from steptime.core.graph import Attr, Op, TensorSpec
from steptime.network.ops.gradient_op import emit_single_op
from steptime.network.ops.table import (
    Backward,
    GradientOp,
    Operand,
    OpKind,
    Products,
    Specs,
    example,
    flip_attribute,
    format_shapes,
    matrix_kind,
    require,
)

GATES = {"rnn": 1, "lstm": 4, "gru": 3}

MAX_HEAD_WIDTH = 256  # FlashAttention, csrc/flash_attn/src/static_switch.h; TensorRT-LLM, XQA


def attention_outputs(
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    *extra: TensorSpec,
    heads: int,
    kv_heads: int,
    causal: bool,
    window: int = 0,
) -> Specs:
    """Return `q [n, l, heads*d], k [n, m, kv_heads*d], v [n, m, kv_heads*e] -> [n, l, heads*e]`.

    `extra` may be `[heads, l, m]`, which is added to the scores (relative positions), and
    `[heads]`, the score of a key without a value (a sink). In a `window` a place sees the places at
    a smaller distance.
    """
    shares_keys = min(heads, kv_heads) >= 1 and heads % kv_heads == 0
    require(
        shares_keys and window >= 0,
        f"{heads} heads do not share {kv_heads} key-value heads in a window of {window}",
    )
    require(len(q.shape) == 3, f"attention needs [batch, length, width], not {format_shapes(q)}")
    batch, length, width = q.shape
    require(width % heads == 0, f"width {width} in {heads} heads")
    has_ranks = len(k.shape) == len(v.shape) == 3
    fits = has_ranks and _has_keys_and_values(q, k, v, heads, kv_heads)
    terms_of_scores = ((heads, length, k.shape[1]), (heads,)) if fits else ()
    has_extra = all(spec.shape in terms_of_scores for spec in extra)
    require(fits and has_extra, f"attention of {format_shapes(q, k, v, *extra)} in {heads} heads")
    output_width = v.shape[2] // kv_heads * heads
    return (TensorSpec((batch, length, output_width), q.dtype),)


def _has_keys_and_values(
    q: TensorSpec, k: TensorSpec, v: TensorSpec, heads: int, kv_heads: int
) -> bool:
    """Whether keys are as wide as queries in each head, and values are of the same tokens."""
    batch, _, width = q.shape
    _, key_count, _ = k.shape
    head_width = width // heads
    has_keys = k.shape == (batch, key_count, head_width * kv_heads)
    has_values = v.shape[:2] == (batch, key_count) and v.shape[2] % kv_heads == 0
    return has_keys and has_values


def attention_products(
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    *_: TensorSpec,
    heads: int,
    kv_heads: int,
    **__: Any,
) -> Products:
    """Return scores and values of all heads; masks and windows save nothing."""
    batch, length, q_width = q.shape
    _batch, key_count, _width = k.shape
    width = q_width // heads
    value_width = v.shape[2] // kv_heads
    # Each product is (batch, m, n, k).
    score_product = (batch * heads, length, key_count, width)
    value_product = (batch * heads, length, value_width, key_count)
    return (score_product, value_product)


def share_in_window(q: TensorSpec, k: TensorSpec, window: int, causal: bool) -> float:
    """Return the share of an attention's scores that lie in its window, queries at the end of keys.

    For example 4 causal places with a window of 2 have (1 + 2 + 2 + 2) / 16.
    """
    length = q.shape[1]
    keys = k.shape[1]
    if keys < length:
        # with more queries than keys these do not stand at the end of them: no window applies
        return 1.0

    def sum_capped(count: int, cap: int) -> int:
        """Return the sum of min(1, cap) to min(count, cap)."""
        rising = min(count, cap)
        return rising * (rising + 1) // 2 + (count - rising) * cap

    keys_before_queries = keys - length
    # A query with i keys before its own sees min(i + 1, window) keys up to its own. Without a
    # causal mask it also sees up to window - 1 keys behind its own.
    scores_back = sum_capped(keys, window) - sum_capped(keys_before_queries, window)
    scores_ahead = 0 if causal else sum_capped(length - 1, window - 1)
    all_scores = length * keys
    return (scores_back + scores_ahead) / all_scores


def describe_heads(op: Op, score_product: tuple[int, int, int, int]) -> tuple[float, ...]:
    """Return the heads of an attention that share a key, and 1 if it has a window, else 0.

    Heads wider than `MAX_HEAD_WIDTH`, as those of a latent cache, run by other kernels: () of them.
    """
    heads, kv_heads, window = (
        float(str(op.attrs.get(name, 0))) for name in ("heads", "kv_heads", "window")
    )
    _batch, _queries, _keys, head_width = score_product
    if head_width > MAX_HEAD_WIDTH:  # run by other kernels, which these figures do not describe
        return ()
    heads_per_key = heads / kv_heads
    has_window = window > 0
    return (heads_per_key, float(has_window))


def attention_grad_products(*specs: TensorSpec, **attrs: Any) -> Products:
    """Return dV, dP, dQ and dK of all heads; recomputing the scores is not counted."""
    score_product, value_product = attention_products(*specs, **attrs)
    batch, length, key_count, width = score_product
    _, _, value_width, _ = value_product
    # with scores S = Q K^T, P = softmax(S), Y = P V
    dv = (batch, key_count, value_width, length)
    dp = (batch, length, key_count, value_width)
    dq = (batch, length, width, key_count)
    dk = (batch, key_count, width, length)
    return (dv, dp, dq, dk)


def attention_saved(q: TensorSpec, *_: TensorSpec, heads: int, **__: Any) -> Specs:
    """Return the log of the softmax's sum for each query, `[n, heads, l]`."""
    dtype = "float64" if q.dtype == "float64" else "float32"
    return (TensorSpec((q.shape[0], heads, q.shape[1]), dtype),)


def rotary_outputs(
    x: TensorSpec, table: TensorSpec, head_width: int, inverse: bool = False
) -> Specs:
    """Return `x [n, l, heads*d]` rotated by the angles' `table [l, r]` (cosines, then sines).

    The first `r` of the `head_width` features of each head are rotated.
    """
    require(len(x.shape) == 3, f"rotary needs [batch, length, width], not {format_shapes(x)}")
    _, length, width = x.shape
    has_heads = head_width >= 2 and width % head_width == 0
    require(has_heads, f"rotary of width {width} in heads of {head_width}")
    message = f"rotary of {format_shapes(x, table)}"
    require(len(table.shape) == 2, message)
    # the table has cosines, then sines, of the features that are rotated
    rows, rotated = table.shape
    require(rows == length and rotated % 2 == 0, message)
    require(2 <= rotated <= head_width, message)
    return (x,)


def recurrent_outputs(gates: int) -> Callable[..., Specs]:
    """Return the output rule of a layer with `gates` gates."""

    def outputs(x: TensorSpec, w_ih: TensorSpec, w_hh: TensorSpec, *extra: TensorSpec) -> Specs:
        require(
            len(x.shape) == 3,
            f"a recurrent layer needs [batch, length, width], not {format_shapes(x)}",
        )
        batch, length, input_width = x.shape
        bias = extra[:2]
        projection = extra[2:]  # none, or one that makes the output narrower than the state
        width = w_hh.shape[-1]  # of the output
        hidden = projection[0].shape[-1] if projection else width
        rows = gates * hidden
        has_matrices = w_ih.shape == (rows, input_width) and w_hh.shape == (rows, width)
        shapes = format_shapes(x, w_ih, w_hh, *projection)
        require(has_matrices, f"a recurrent layer of {shapes} with {gates} gates")
        has_bias = [spec.shape for spec in bias] == [(rows,), (rows,)]
        require(has_bias, f"a recurrent layer needs two bias vectors of {rows}")
        if projection:
            _check_projection(projection, width, hidden, gates)
        return (TensorSpec((batch, length, width), x.dtype),)

    return outputs


def _check_projection(projection: Specs, width: int, hidden: int, gates: int) -> None:
    """Check the one matrix that makes an LSTM's output narrower than its state."""
    is_lstm = gates == GATES["lstm"]
    has_shape = [w.shape for w in projection] == [(width, hidden)]
    is_narrower = width < hidden
    message = f"a projection {format_shapes(*projection)} with {gates} gates"
    require(is_lstm and has_shape and is_narrower, message)


def recurrent_products(
    x: TensorSpec, _w_ih: TensorSpec, w_hh: TensorSpec, *extra: TensorSpec
) -> Products:
    """Return the product of all inputs together, and the products of the state, step by step."""
    batch, length, width = x.shape
    rows = w_hh.shape[0]
    input_product = (1, batch * length, rows, width)
    step_products = []
    for weight in (w_hh, *extra[2:]):  # of the state, and of a projection
        n, k = weight.shape
        step_products.append((length, batch, n, k))
    return (input_product, *step_products)


def recurrent_grad_products(*specs: TensorSpec, of_data: bool = True) -> Products:
    """Return dX (if `of_data`), gradients of the state at each step, and those of the matrices."""
    forward_products = recurrent_products(*_forward_inputs(specs))
    data_grads: list[tuple[int, int, int, int]] = []
    weight_grads: list[tuple[int, int, int, int]] = []
    for times, m, n, k in forward_products:
        data_grads.append((times, m, k, n))
        # the gradient of a weight sums over all time steps in one product
        weight_grads.append((1, n, k, times * m))
    if not of_data:
        # the first product reads x, whose gradient nothing needs
        data_grads.pop(0)
    return (*data_grads, *weight_grads)


def _recurrent_saved(gates: int, saved_sizes: int) -> Callable[..., Specs]:
    """Return the rule for the tensor that a layer saves, `saved_sizes` hidden sizes a step."""

    def saved(
        x: TensorSpec,
        w_ih: TensorSpec,
        w_hh: TensorSpec,
        b_ih: TensorSpec,
        b_hh: TensorSpec,
        *w_hr: TensorSpec,
    ) -> Specs:
        batch, length, _ = x.shape
        hidden_size = w_ih.shape[0] // gates
        # the result of an LSTM's projection is saved, too
        projected_size = sum(w.shape[0] for w in w_hr)  # of none or one
        step_size = saved_sizes * hidden_size + projected_size
        return (TensorSpec((batch, length * step_size), x.dtype),)

    return saved


def _recurrent_scratch_bytes(
    scratch_sizes: int, x: TensorSpec, w_ih: TensorSpec, w_hh: TensorSpec, *_: TensorSpec
) -> int:
    """Return the bytes that a layer makes and drops, `scratch_sizes` hidden sizes a step."""
    _batch, _length, features = x.shape
    # the bytes of one feature over all steps of the batch, times the hidden size
    column_bytes = scratch_sizes * x.size_bytes // features
    return column_bytes * w_hh.shape[1]


def _forward_inputs(specs: Specs) -> Specs:
    """Return the inputs of a layer among those of its gradient (`_emit_recurrent_gradient`)."""
    sequence_weights_and_biases = specs[:5]  # x, w_ih, w_hh, b_ih, b_hh
    projection = specs[8:]  # behind the output, the saved tensor and the output's gradient
    return (*sequence_weights_and_biases, *projection)


def _emit_recurrent_gradient(kind: str, b: Backward) -> tuple[str | None, ...]:
    """Append the gradient of a layer; that of its input is left out where nothing needs it."""
    x, w_ih, w_hh, b_ih, b_hh, *w_hr = b.op.inputs
    operands = (x, w_ih, w_hh, b_ih, b_hh, b.output, *b.saved, b.grad, *w_hr)
    if b.needs[0]:
        return b.emit(f"{kind}_grad", operands, "grad")
    return b.emit(f"{kind}_grad", operands, "grad", of_data=False)


def recurrent_kinds(
    kind: str, formula: str, saved_sizes: int, scratch_sizes: int, always_saves: bool = False
) -> dict[str, OpKind]:
    """Return the two rows of a cell.

    Args:
        kind: `rnn`, `lstm` or `gru`.
        formula: the definition of the cell, or its source.
        saved_sizes: hidden sizes that a step saves for the backward pass, as torch's own layers do
            with inputs laid out batch first: an LSTM saves four gates, the cell state, its tanh and
            the output. A library may save more: oneDNN 16 of an LSTM, in a workspace.
        scratch_sizes: further hidden sizes that a step makes and drops.
        always_saves: the tensors are made in inference, too.

    The projection of an LSTM's output is its sixth input and the last of its gradient. Its result
    is saved as well.
    """
    gates = GATES[kind]
    # The example: batch 2, length 3, 4 features of the input and 5 of the state.
    rows = gates * 5
    inputs = [(2, 3, 4), (rows, 4), (rows, 5), (rows,), (rows,)]
    output = (2, 3, 5)
    saved = (2, 3 * saved_sizes * 5)
    return {
        kind: matrix_kind(
            recurrent_outputs(gates),
            recurrent_products,
            example(*inputs),
            f"{formula}; two bias vectors, as cuDNN and torch; the products alone are counted",
            gradient=partial(_emit_recurrent_gradient, kind),
            saved=_recurrent_saved(gates, saved_sizes),
            always_saves=always_saves,
            work="recurrent",
            serial=lambda x, *_: x.shape[1],
            scratch=partial(_recurrent_scratch_bytes, scratch_sizes),
        ),
        f"{kind}_grad": matrix_kind(
            lambda *specs, of_data=True: _forward_inputs(specs),  # each has a gradient
            recurrent_grad_products,
            example(*inputs, output, saved, output),  # and the gradient of the output
            f"derivative of {kind}: data and weight gradients, twice forward",
            work="recurrent",
            serial=lambda x, *_, **__: x.shape[1],
        ),
    }


_HEADS: dict[str, Attr] = {"heads": 4, "kv_heads": 2, "causal": True}

KINDS = {
    "attention": matrix_kind(
        attention_outputs,
        attention_products,
        example((2, 3, 8), (2, 3, 4), (2, 3, 4), **_HEADS),
        "Vaswani et al. 2017, eq. 1; two products for each head, softmax inside not counted",
        saved=attention_saved,
        always_saves=True,
        work="attention",
        gradient_op=GradientOp(
            (Operand.INPUTS, Operand.GRADIENT, Operand.OUTPUT, Operand.SAVED),
            attention_grad_products,
            "four products: dV, dP, dQ, dK; recomputing the scores is not counted",
        ),
    ),
    "rotary": OpKind(
        rotary_outputs,
        lambda x, table, head_width, **_: 3 * x.size // head_width * table.shape[1],
        example((2, 3, 8), (3, 2), head_width=2),
        "Su et al. 2021, eq. 34: two products and a sum an element that is turned",
        gradient=emit_single_op(
            "rotary", (Operand.GRADIENT, Operand.SECOND_INPUT), attrs=flip_attribute("inverse")
        ),
    ),
    **recurrent_kinds("rnn", "h = tanh(W x + b + U h + c)", 1, 2),
    **recurrent_kinds("lstm", "Hochreiter, Schmidhuber 1997, with forget gate", 7, 0, True),
    **recurrent_kinds("gru", "Cho et al. 2014, reset after the product", 7, 5),
}

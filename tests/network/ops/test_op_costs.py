"""What ops cost, by hand: a multiply-add is 2 FLOP, inputs are read and outputs written once."""

from __future__ import annotations

from typing import Any

from every import every
from steptime.core.graph import TensorSpec, freeze_attrs
from steptime.network.ops import (
    OPS,
    cost_of,
    outputs_of,
    products_of,
    saved_of,
    scratch_of,
    serial_of,
)


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype)


def shape_of(kind: str, *specs: TensorSpec, **attrs: Any) -> tuple[int, ...]:
    return outputs_of(kind, specs, freeze_attrs(attrs))[0].shape


def cost(kind: str, *specs: TensorSpec, **attrs: Any) -> tuple[int, int]:
    """FLOP and bytes of one op that writes what its row says."""
    return cost_of(kind, specs, freeze_attrs(attrs), outputs_of(kind, specs, freeze_attrs(attrs)))


def flop(kind: str, *specs: TensorSpec, **attrs: Any) -> int:
    return cost(kind, *specs, **attrs)[0]


def traffic(kind: str, *specs: TensorSpec, **attrs: Any) -> int:
    return cost(kind, *specs, **attrs)[1]


def test_linear():
    x, w = spec(4, 6), spec(5, 6)
    assert shape_of("linear", x, w) == (4, 5)
    assert cost("linear", x, w) == (2 * 4 * 6 * 5, (24 + 30 + 20) * 4)  # m k n; x, w, y
    assert flop("linear", spec(2, 3, 6), w) == 2 * (2 * 3) * 6 * 5  # leading dimensions are rows


@every("turn_a", [False, True])
@every("turn_b", [False, True])
def test_matmul_with_transposes(turn_a, turn_b):
    a = spec(7, 4, 3) if turn_a else spec(7, 3, 4)
    b = spec(7, 5, 4) if turn_b else spec(7, 4, 5)
    how = {"transpose_a": turn_a, "transpose_b": turn_b}
    assert shape_of("matmul", a, b, **how) == (7, 3, 5)
    assert flop("matmul", a, b, **how) == 2 * 7 * 3 * 4 * 5  # batch m k n


def test_matmul_folds_leading_dimensions_into_rows():
    grad, x = spec(2, 3, 5), spec(2, 3, 4)
    assert shape_of("matmul", grad, x, transpose_a=True, fold=True) == (5, 4)
    assert flop("matmul", grad, x, transpose_a=True, fold=True) == 2 * 5 * (2 * 3) * 4
    assert flop("matmul", spec(2, 3, 4), spec(4, 5)) == 2 * 2 * 3 * 4 * 5  # one matrix for all


def test_products_of_matrix_kinds():
    """Each (batch, m, n, k)."""
    assert products_of("linear", (spec(2, 3, 6), spec(5, 6))) == ((1, 2 * 3, 5, 6),)
    a, b = spec(7, 4, 3), spec(7, 4, 5)
    assert products_of("matmul", (a, b), freeze_attrs({"transpose_a": True})) == ((7, 3, 5, 4),)
    folded = freeze_attrs({"transpose_a": True, "fold": True})  # 28 rows, [3, 28] [28, 5]
    assert products_of("matmul", (a, b), folded) == ((1, 3, 5, 28),)
    x, w, y = spec(2, 4, 7, 8), spec(6, 2, 3, 2), spec(2, 6, 5, 7)
    groups, window, positions = 2, (4 // 2) * 3 * 2, 2 * 5 * 7
    how = {"groups": groups}
    assert products_of("conv2d", (x, w), freeze_attrs(how)) == (
        (groups, positions, 6 // 2, window),
    )
    assert products_of("conv2d_grad_weight", (x, y), freeze_attrs({**how, "kernel": (3, 2)})) == (
        (groups, 6 // 2, window, positions),
    )
    assert products_of(
        "conv_transpose2d", (y, w), freeze_attrs({**how, "output_size": (7, 8)})
    ) == ((groups, positions, window, 6 // 2),)
    q, k = spec(2, 3, 8), spec(2, 5, 4)  # 4 heads of width 2 in 2 sequences
    heads = freeze_attrs({"heads": 4, "kv_heads": 2, "causal": True})
    scores, values = (2 * 4, 3, 5, 2), (2 * 4, 3, 2, 5)
    assert products_of("attention", (q, k, k), heads) == (scores, values)
    of_keys = (2 * 4, 5, 2, 3)  # dV and dK
    assert products_of("attention_grad", (q, k, k), heads) == (of_keys, scores, values, of_keys)
    assert products_of("relu", (spec(2, 3),)) == ()


def test_the_state_of_a_recurrent_layer_is_multiplied_at_every_step():
    cell = (spec(2, 3, 4), spec(20, 4), spec(20, 5), spec(20), spec(20))  # LSTM, length 3, hidden 5
    assert serial_of("lstm", cell) == serial_of("lstm_grad", cell) == 3
    assert products_of("lstm", cell) == ((1, 2 * 3, 20, 4), (3, 2, 20, 5))
    assert products_of("lstm_grad", cell) == (
        (1, 2 * 3, 4, 20),
        (3, 2, 5, 20),
        (1, 20, 4, 2 * 3),
        (1, 20, 5, 2 * 3),
    )
    assert serial_of("linear", (spec(2, 6), spec(5, 6))) == 1


def test_convolution_with_stride_uneven_padding_dilation_and_groups():
    x, w = spec(2, 4, 7, 8), spec(6, 2, 3, 2)
    how = {"stride": (2, 1), "padding": (1, 2, 0, 1), "dilation": (1, 3), "groups": 2}
    # height (7+1+2 - 2 - 1)//2 + 1 = 4, width (8+0+1 - 3 - 1)//1 + 1 = 6
    assert shape_of("conv2d", x, w, **how) == (2, 6, 4, 6)
    assert flop("conv2d", x, w, **how) == 2 * (3 * 2) * (4 // 2) * 6 * (4 * 6) * 2
    made = 2 * 6 * 4 * 6
    assert traffic("conv2d", x, w, **how) == (2 * 4 * 7 * 8 + 6 * 2 * 3 * 2 + made) * 4


def test_gradients_of_a_convolution_cost_what_it_costs():
    x, w, y = spec(2, 4, 7, 8), spec(6, 2, 3, 2), spec(2, 6, 4, 6)
    how: dict[str, Any] = {"stride": (2, 1), "padding": (1, 2, 0, 1), "dilation": (1, 3)}
    forward = flop("conv2d", x, w, **how, groups=2)
    back = {**how, "groups": 2}
    assert shape_of("conv_transpose2d", y, w, **back, output_size=(7, 8)) == x.shape
    assert flop("conv_transpose2d", y, w, **back, output_size=(7, 8)) == forward
    assert shape_of("conv2d_grad_weight", x, y, **back, kernel=(3, 2)) == w.shape
    assert flop("conv2d_grad_weight", x, y, **back, kernel=(3, 2)) == forward


def test_transposed_convolution():
    x, w = spec(1, 3, 4, 4), spec(3, 5, 2, 2)  # c_in 3, c_out 5
    assert shape_of("conv_transpose2d", x, w, stride=(2, 2), output_size=(8, 8)) == (1, 5, 8, 8)
    assert shape_of("conv_transpose2d", x, w, stride=(2, 2), output_size=(9, 9)) == (1, 5, 9, 9)
    assert flop("conv_transpose2d", x, w, stride=(2, 2), output_size=(8, 8)) == (
        2 * (3 * 4 * 4) * 5 * (2 * 2)  # each input element reaches every filter once
    )


@every(
    ("size", "kernel", "stride", "padding", "ceil", "out"),
    [
        (112, 3, 2, 1, False, 56),  # (112+2-3)//2 + 1
        (55, 3, 2, 0, False, 27),
        (6, 3, 2, 0, False, 2),
        (6, 3, 2, 0, True, 3),  # 1.5 rounded up, + 1
        (5, 2, 2, 1, True, 3),  # the fourth window would begin in the padding
        (2, 3, 2, 0, True, 1),  # a window that hangs over
    ],
)
def test_pooling_rounds_down_or_up(size, kernel, stride, padding, ceil, out):
    how = {"kernel": (kernel,) * 2, "stride": (stride,) * 2, "padding": (padding,) * 4}
    x = spec(2, 3, size, size)
    assert shape_of("max_pool2d", x, **how, ceil=ceil) == (2, 3, out, out)
    assert flop("avg_pool2d", x, **how, ceil=ceil) == 2 * 3 * out * out * kernel**2


def test_pooling_keeps_places_and_its_gradient_reads_those():
    how: dict[str, Any] = {"kernel": (2, 2), "stride": (2, 2)}
    x, y = spec(1, 1, 4, 4), spec(1, 1, 2, 2)
    places = spec(1, 1, 2, 2, dtype="int64")
    assert saved_of("max_pool2d", (x,), freeze_attrs(how)) == (places,)
    assert cost("max_pool2d_grad", x, y, places, **how) == (4, 4 * 4 + 4 * 8 + 16 * 4)
    assert cost("avg_pool2d_grad", x, y, **how) == (4 * 4, 4 * 4 + 16 * 4)
    assert cost("global_avg_pool", x) == (16, 16 * 4 + 4)
    assert cost("resize2d", y, size=(4, 4), mode="nearest") == (0, 4 * 4 + 16 * 4)
    assert cost("resize2d_grad", x, size=(2, 2), mode="nearest") == (16, 16 * 4 + 4 * 4)


def test_norms():
    x, c = spec(2, 3, 4, 4), spec(3)
    assert cost("batch_norm", x, c, c, c, c, training=True) == (8 * 96, (96 + 4 * 3 + 96) * 4)
    assert flop("batch_norm", x, c, c, c, c, training=False) == 4 * 96
    assert saved_of("batch_norm", (x, c, c, c, c)) == (c, c)
    assert cost("batch_norm_grad", x, x, c, c, c) == (13 * 96, (96 * 3 + 3 * 3 + 2 * 3) * 4)
    rows, w = spec(2, 5, 6), spec(6)
    assert flop("layer_norm", rows, w, w) == 8 * 60
    assert flop("rms_norm", rows, w) == 4 * 60
    assert saved_of("layer_norm", (rows, w, w)) == (spec(2, 5),) * 2
    assert saved_of("rms_norm", (rows, w)) == (spec(2, 5),)
    assert flop("local_response_norm", x, size=5, alpha=1e-4, beta=0.75, k=2.0) == (5 + 5) * 96


def test_statistics_of_a_norm_stay_float32_in_half_precision():
    x, w = spec(2, 6, dtype="bfloat16"), spec(6, dtype="bfloat16")
    assert saved_of("rms_norm", (x, w)) == (spec(2),)
    assert saved_of("rms_norm", (spec(2, 6, dtype="float64"), w)) == (spec(2, dtype="float64"),)


def test_attention_is_not_halved_when_causal_and_shares_keys():
    q, k = spec(2, 3, 8), spec(2, 5, 4)  # 4 heads of width 2 for queries, 2 for keys and values
    for causal in (False, True):
        how = {"heads": 4, "kv_heads": 2, "causal": causal}
        assert shape_of("attention", q, k, k, **how) == (2, 3, 8)
        assert flop("attention", q, k, k, **how) == 4 * 2 * 4 * 3 * 5 * 2  # batch heads l m d
        assert traffic("attention", q, k, k, **how) == (48 + 40 + 40 + 48) * 4
        lse = spec(2, 4, 3)
        assert saved_of("attention", (q, k, k), freeze_attrs(how)) == (lse,)
        back = cost("attention_grad", q, k, k, q, q, lse, **how)
        assert back[0] == 2 * (4 * 2 * 4 * 3 * 5 * 2)
        assert back[1] == (3 * 48 + 2 * 40 + 24 + 48 + 2 * 40) * 4
    assert flop("rotary", q, spec(3, 2), head_width=2) == 3 * 48


@every(
    ("cell", "gates", "kept"), [("rnn", 1, 3 * 1), ("gru", 3, 3 * 7), ("lstm", 4, 3 * 7)]
)  # hidden sizes in a sequence of 3: an LSTM keeps 4 gates, cell state, its tanh, output
def test_recurrent_layers_are_counted_by_their_products(cell, gates, kept):
    x, rows = spec(2, 3, 4), gates * 5  # batch 2, length 3, width 4, hidden 5
    weights = (spec(rows, 4), spec(rows, 5), spec(rows), spec(rows))
    assert shape_of(cell, x, *weights) == (2, 3, 5)
    forward = 2 * 2 * 3 * (gates * 5) * (4 + 5)
    assert flop(cell, x, *weights) == forward
    assert traffic(cell, x, *weights) == (24 + rows * (4 + 5 + 2) + 30) * 4
    y = spec(2, 3, 5)
    saved = saved_of(cell, (x, *weights))
    assert saved == (spec(2, kept * 5),)
    assert flop(f"{cell}_grad", x, *weights, y, *saved, y) == 2 * forward
    made = outputs_of(f"{cell}_grad", (x, *weights, y, *saved, y))
    assert made == (x, *weights)


def test_a_projection_is_one_more_product_of_every_step():
    x, y = spec(2, 3, 4), spec(2, 3, 2)  # batch 2, length 3, width 4, hidden 5, projected to 2
    weights = (spec(20, 4), spec(20, 2), spec(20), spec(20), spec(2, 5))
    assert shape_of("lstm", x, *weights) == (2, 3, 2)
    assert products_of("lstm", (x, *weights)) == ((1, 6, 20, 4), (3, 2, 20, 2), (3, 2, 2, 5))
    forward = 2 * 2 * 3 * (20 * (4 + 2) + 2 * 5)
    assert flop("lstm", x, *weights) == forward
    assert traffic("lstm", x, *weights) == (24 + 20 * (4 + 2 + 2) + 10 + 12) * 4
    saved = saved_of("lstm", (x, *weights))  # 7 hidden sizes a step, and what it is projected to
    assert saved == (spec(2, 3 * (7 * 5 + 2)),)
    given = (x, *weights[:4], y, *saved, y, weights[4])
    assert flop("lstm_grad", *given) == 2 * forward
    assert outputs_of("lstm_grad", given) == (x, *weights)


def test_embedding_reads_rows_only_and_its_gradient_writes_the_table():
    ids, table = spec(2, 3, dtype="int64"), spec(1000, 4)
    assert cost("embedding", ids, table) == (0, 6 * 8 + 24 * 4 + 24 * 4)
    assert cost("embedding_grad", ids, spec(2, 3, 4), rows=1000) == (
        24,
        6 * 8 + 24 * 4 + 1000 * 4 * 4,
    )


def test_slice_reads_what_it_copies():
    x = spec(2, 5, 3)
    assert cost("slice", x, axis=1, start=1, stop=4) == (0, 2 * (2 * 3 * 3) * 4)
    assert shape_of("slice", x, axis=-1, start=0, stop=1) == (2, 5, 1)
    assert cost("slice_grad", spec(2, 3, 3), axis=1, start=1, size=5) == (0, (18 + 30) * 4)
    assert cost("concat", spec(2, 3), spec(2, 4), axis=-1) == (0, 2 * 14 * 4)


def test_views_move_bytes_by_convention_and_do_no_arithmetic():
    x = spec(2, 3, 4)
    assert cost("flatten", x) == cost("reshape", x, shape=(6, 4)) == (0, 2 * 24 * 4)
    assert shape_of("transpose", x, order=(2, 0, 1)) == (4, 2, 3)


def test_cross_entropy_and_its_gradient():
    logits, labels, scalar = spec(3, 5), spec(3, dtype="int64"), spec()
    assert shape_of("cross_entropy", logits, labels) == ()
    assert cost("cross_entropy", logits, labels) == (5 * 15, 15 * 4 + 3 * 8 + 4)
    assert cost("pick_grad", logits, labels, scalar) == (3, 3 * 8 + 4 + 15 * 4)
    assert cost("log_softmax_grad", logits, logits) == (4 * 15, 3 * 15 * 4)


@every(
    ("optimizer", "flop_each", "states", "dropped"),
    [("sgd", 2, 0, 0), ("momentum", 4, 1, 0), ("rmsprop", 9, 1, 1), ("adam", 13, 2, 2),
     ("adamw", 14, 2, 2)],
)  # fmt: skip
def test_optimizers(optimizer, flop_each, states, dropped):
    specs = (spec(3, 4),) * (2 + states)  # weight, states, gradient
    read, written = 2 + states, 1 + states
    assert cost(optimizer, *specs) == (flop_each * 12, (read + written) * 12 * 4)
    assert scratch_of(optimizer, specs) == dropped * 12 * 4


@every(
    ("kind", "each"),
    [("relu", 1), ("sigmoid", 4), ("tanh", 1), ("gelu", 5), ("silu", 5), ("softmax", 5),
     ("relu_grad", 1), ("gelu_grad", 11), ("silu_grad", 9), ("softmax_grad", 4)],
)  # fmt: skip
def test_elementwise(kind, each):
    specs = (spec(3, 4),) * len(OPS[kind].example.specs)
    assert cost(kind, *specs) == (each * 12, (len(specs) + 1) * 12 * 4)


def test_bytes_follow_the_dtype():
    x, w = spec(4, 6, dtype="bfloat16"), spec(5, 6, dtype="bfloat16")
    assert traffic("linear", x, w) == (24 + 30 + 20) * 2
    assert traffic("cast", x, dtype="float32") == 24 * 2 + 24 * 4
    assert traffic("add", spec(3, 4), spec(4)) == (12 + 4 + 12) * 4  # the small one is read once


def test_a_function_of_elements_counts_what_it_makes():
    x, gate = spec(2, 3, 4, 4), spec(2, 3, 1, 1)
    assert shape_of("pointwise", gate, x, function="mul") == (2, 3, 4, 4)
    assert cost("pointwise", x, gate, function="mul") == (96, (96 + 6 + 96) * 4)
    assert flop("pointwise", x, function="mish") == 5 * 96
    assert flop("pointwise", x, function="pow", scalar=2.0) == 96
    half, whole = spec(3, dtype="float16"), spec(3, dtype="int64")
    (made,) = outputs_of("pointwise", (half, whole), freeze_attrs({"function": "add"}))
    assert made == half  # numbers with a point win, whatever their size
    (made,) = outputs_of("pointwise", (half,), freeze_attrs({"function": "gt", "scalar": 0.0}))
    assert made == spec(3, dtype="bool")


def test_reductions_resizes_and_moves():
    x = spec(2, 5, 3)
    assert cost("reduce", x, function="sum", axes=(1,)) == (30, (30 + 6) * 4)
    assert shape_of("reduce", x, function="argmax", axes=(1,), keep=True) == (2, 1, 3)
    assert flop("reduce_grad", spec(2, 3), function="mean", axes=(1,), shape=(2, 5, 3)) == 6
    assert cost("pad", x, pads=(0, 0, 1, -2, 0, 3)) == (0, (30 + 2 * 4 * 6) * 4)
    at = spec(4, dtype="int64")
    assert cost("gather", x, at, axis=1) == (0, 4 * 8 + 2 * 24 * 4)  # what it copies
    assert flop("gather_grad", at, spec(2, 4, 3), axis=1, size=5) == 24
    image = spec(1, 2, 4, 4)
    for mode, each in (("nearest", 0), ("bilinear", 8), ("bicubic", 32)):
        assert flop("resize2d", image, size=(6, 5), mode=mode) == each * 60
    assert shape_of("topk", x, k=2, axis=1) == (2, 2, 3)
    assert shape_of("slice", x, axis=1, start=0, stop=5, step=2) == (2, 3, 3)
    assert flop("group_norm", image, spec(2), spec(2), groups=2) == 8 * 32
    assert (
        saved_of("group_norm", (image, spec(2), spec(2)), freeze_attrs({"groups": 2}))
        == (spec(1, 2),) * 2
    )


def test_a_product_of_batches_that_broadcast():
    a, b = spec(2, 1, 3, 4), spec(5, 4, 6)
    assert shape_of("matmul", a, b) == (2, 5, 3, 6)
    assert products_of("matmul", (a, b)) == ((10, 3, 6, 4),)

"""Experts that a file writes out, token by token, are recognised as the op that they are."""

from __future__ import annotations

from every import every
from steptime.core.dtypes import precision
from steptime.formats import elements as el
from steptime.formats import lowering as low
from steptime.formats.loss import add_loss
from steptime.formats.patterns import recognise_pattern
from steptime.formats.products import multiply_experts
from steptime.formats.tensors import find_producer
from steptime.network.count import count
from steptime.network.ops.builder import Builder

TOKENS, WIDTH, INNER, EXPERTS, PER_TOKEN = 14, 8, 6, 4, 2  # 28 rows, 7 for each expert


def append_mixture(b: Builder, function: str, is_gated: bool, is_biased: bool) -> str:
    """Append a mixture of experts as transformers writes it for `torch.export`; return its sum."""
    x = low.rms_norm(b, b.input("x", (2, TOKENS // 2, WIDTH)), "norm", b.weight("n", (WIDTH,)))
    rows = el.reshape(b, x, (TOKENS, WIDTH), "rows")
    logits = low.linear(b, rows, b.weight("router", (EXPERTS, WIDTH)), "gate")
    shares, _ = low.topk(b, el.softmax(b, logits, -1, "softmax"), PER_TOKEN, -1, "best")
    row_count = TOKENS * PER_TOKEN
    y = el.embedding(b, b.buffer("sorted", (row_count,), "int64"), rows, "tokens")
    up = b.weight("up", (EXPERTS, INNER * (1 + is_gated), WIDTH))
    y = multiply_experts(b, y, el.transpose(b, up, (0, 2, 1), "up/t"), "up_product")
    if is_biased:
        table = b.weight("up/b", (EXPERTS, INNER * (1 + is_gated)))
        bias = el.embedding(b, b.buffer("of", (row_count,), "int64"), table, "up/own")
        y = el.pointwise(b, "add", y, bias, name="up/biased")
    if is_gated:
        gate, y = el.split(b, y, [INNER, INNER], -1, "parts")
        y = el.pointwise(b, "mul", el.pointwise(b, function, gate, name="act"), y, name="gated")
    else:
        y = el.pointwise(b, function, y, name="act")
    down = b.weight("down", (EXPERTS, WIDTH, INNER))
    y = multiply_experts(b, y, el.transpose(b, down, (0, 2, 1), "down/t"), "down_product")
    if is_biased:
        bias = el.embedding(
            b,
            b.buffer("of2", (row_count,), "int64"),
            b.weight("down/b", (EXPERTS, WIDTH)),
            "down/own",
        )
        y = el.pointwise(b, "add", y, bias, name="down/biased")
    share = el.reshape(b, shares, (row_count, 1), "shares")
    y = el.pointwise(b, "mul", y, share, name="weighed")
    y = el.reshape(b, y, (TOKENS, PER_TOKEN, WIDTH), "apart")
    return el.reduce(b, "sum", y, (1,), "sum")


@every("is_biased", [False, True])
@every(
    ("function", "is_gated", "activation"),
    [("silu", True, "swiglu"), ("gelu", True, "geglu"), ("relu", False, "relu")],
)
def test_a_mixture_is_one_op(function, is_gated, activation, is_biased):
    b = Builder("net", precision("float32"), training=False)
    pieces_output = append_mixture(b, function, is_gated, is_biased)
    y = recognise_pattern(b, pieces_output, "experts")
    experts = b.made_by[find_producer(b, y, "reshape").inputs[0]]  # type: ignore[union-attr]
    assert experts.kind == "experts"
    assert dict(experts.attrs) == {"per_token": PER_TOKEN, "activation": activation}
    assert b.shape(y) == b.shape(pieces_output) == (TOKENS, WIDTH)
    add_loss(b, [y])
    flop_of_kind = {op.kind: op.flop for op in count(b.graph(y)).ops}
    rows = TOKENS * PER_TOKEN
    assert flop_of_kind["experts"] == 2 * rows * WIDTH * INNER * (2 + is_gated)
    assert flop_of_kind.keys() <= {"rms_norm", "linear", "experts", "reshape"}


def test_a_sum_of_something_else_stays():
    b = Builder("net", precision("float32"), training=False)
    x = b.input("x", (4, 2, 8))
    y = el.reduce(b, "sum", x, (1,), "sum")
    assert recognise_pattern(b, y, "experts") == y

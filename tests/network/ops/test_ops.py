"""Every row of the op table keeps its contract, and refuses what does not fit it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from every import every
from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph, TensorSpec, check, freeze_attrs
from steptime.core.workload import OPTIMIZERS
from steptime.network.ops import (
    OPS,
    cost_of,
    kind_row,
    outputs_of,
    products_of,
    saved_of,
    scratch_of,
    serial_of,
)
from steptime.network.ops.builder import Builder
from steptime.network.ops.optimizers import SCRATCH, STATES
from steptime.network.ops.table import ShapeError, Specs
from steptime.network.ops.training import training_graph


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype)


@every("kind", OPS)
def test_example_gives_outputs_a_cost_and_a_source(kind):
    row = OPS[kind]
    specs, attrs = row.example.specs, freeze_attrs(row.example.attrs)
    made = outputs_of(kind, specs, attrs)
    assert made
    for out in (*made, *saved_of(kind, specs, attrs)):
        assert all(type(size) is int and size > 0 for size in out.shape)
        assert out.dtype in SIZE_BYTES
    count, moved = cost_of(kind, specs, attrs, made)
    assert type(count) is int
    assert count >= 0
    assert type(moved) is int
    assert moved >= sum(out.size_bytes for out in made)
    scratch = scratch_of(kind, specs, attrs)
    assert type(scratch) is int
    assert scratch >= 0
    assert len(row.source) > 5


WITH_STATES = {"delta_rule", "delta_rule_grad"}  # which are read beside what comes in


@every("kind", OPS)
def test_inputs_are_read_once_unless_a_row_says_what_it_reads(kind):
    row = OPS[kind]
    specs, attrs = row.example.specs, freeze_attrs(row.example.attrs)
    read = cost_of(kind, specs, attrs, ())[1]
    whole = sum(s.size_bytes for s in specs)
    assert (read > whole) == (kind in WITH_STATES)
    assert (read < whole) == (row.read is not None and kind not in WITH_STATES)


@every("kind", OPS)
def test_the_flop_of_matrix_kinds_are_those_of_their_products(kind):
    row = OPS[kind]
    specs, attrs = row.example.specs, freeze_attrs(row.example.attrs)
    products = products_of(kind, specs, attrs)
    assert bool(products) == bool(row.products) == bool(row.work)
    assert all(type(size) is int and size > 0 for product in products for size in product)
    if products:
        flop = cost_of(kind, specs, attrs, ())[0]
        assert flop == 2 * sum(b * m * n * k for b, m, n, k in products)
    serial = serial_of(kind, specs, attrs)
    assert serial == (specs[0].shape[1] if row.work == "recurrent" else 1)


@every("kind", OPS)
def test_storage_fits_the_shapes(kind):
    row = OPS[kind]
    specs, made = (
        row.example.specs,
        outputs_of(kind, row.example.specs, freeze_attrs(row.example.attrs)),
    )
    if row.storage == "view":
        other = kind in ("slice", "split", "broadcast")  # a part of it, or it again and again
        assert (made[0].size_bytes == specs[0].size_bytes) != other
        assert cost_of(kind, specs, freeze_attrs(row.example.attrs), made)[0] == 0
    if row.storage == "in_place":
        assert made == specs[: len(made)]


def example_graph(kind: str) -> Graph:
    """[weights or inputs] -> the op of the row's example -> its mean, or the op if it is a loss."""
    example = OPS[kind].example
    b = Builder(kind, precision("float32"), training=True)
    names = [
        b.weight(f"in{i}", s.shape)
        if s.dtype.startswith("float")
        else b.input(f"in{i}", s.shape, s.dtype)
        for i, s in enumerate(example.specs)
    ]
    made = b.op(kind, *names, name="op", **example.attrs)
    return b.graph(made if b.shape(made) == () else b.op("mean", made, name="loss"))


WITH_GRADIENT = [kind for kind, row in OPS.items() if row.gradient]
NOT_TRAINED = {  # inputs that are numbers but get no gradient
    "batch_norm": {"in3", "in4"},  # running statistics
    "rotary": {"in1"},  # the table of angles
}


@every("kind", WITH_GRADIENT)
def test_every_gradient_has_the_shape_of_its_input(kind):
    graph = training_graph(example_graph(kind), "sgd")
    check(graph)
    for op in graph.ops:  # no op of the gradient was given shapes that its row refuses
        specs = tuple(graph.tensors[name] for name in op.inputs)
        made = outputs_of(op.kind, specs, freeze_attrs(op.attrs))
        assert tuple(graph.tensors[name] for name in op.outputs)[: len(made)] == made
    updated = {op.inputs[0]: op.inputs[-1] for op in graph.ops if op.part == "update"}
    assert updated.keys() == {*graph.weights} - NOT_TRAINED.get(kind, set())
    for weight, grad in updated.items():
        assert graph.tensors[grad] == graph.tensors[weight]


@every("kind", WITH_GRADIENT)
@every("only", [0, 1])
def test_a_gradient_that_nobody_needs_is_not_made(kind, only):
    """Unless a fused backward kind gives all gradients at once."""
    whole = example_graph(kind)
    if only >= len(whole.weights) or whole.weights[only] in NOT_TRAINED.get(kind, ()):
        return
    weight = whole.weights[only]
    graph = training_graph(
        Graph(
            whole.name,
            whole.tensors,
            whole.ops,
            tuple(name for name in (*whole.inputs, *whole.weights) if name != weight),
            (weight,),
            whole.outputs,
        ),
        "sgd",
    )
    read = {name for op in graph.ops for name in op.inputs}
    for op in graph.ops:
        if op.part == "backward" and len(op.outputs) == 1:
            assert op.outputs[0] in read, f"{op.name} is made for nothing"


@every("kind", OPS)
def test_attributes_of_an_example_are_those_that_the_row_takes(kind):
    row = OPS[kind]
    taken = inspect.signature(row.outputs).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in taken):
        return
    assert row.example.attrs.keys() <= {p.name for p in taken}


def test_the_table_is_closed():
    assert 50 <= len(OPS) <= 115
    with pytest.raises(InputError, match=r"unknown op kind 'conv4d'; known: conv[23]d, "):
        kind_row("conv4d")
    with pytest.raises(InputError, match="unknown pointwise function 'expp'; did you mean 'exp'"):
        outputs_of("pointwise", (spec(2),), freeze_attrs({"function": "expp"}))
    assert tuple(STATES) == tuple(SCRATCH) == OPTIMIZERS


X4 = spec(2, 4, 7, 8)
WRONG: list[tuple[str, Specs, dict[str, Any], str]] = [
    ("linear", (spec(4, 6), spec(5, 7)), {}, "linear of [4, 6] and [5, 7]: 6 != 7"),
    ("linear", (spec(6), spec(5, 6)), {}, "linear of [6] and [5, 6]"),
    ("matmul", (spec(2, 3), spec(4, 5)), {}, "matmul of [2, 3] and [4, 5]: 3 != 4"),
    ("matmul", (spec(2, 3, 4), spec(3, 4, 5)), {}, "batches differ"),
    ("bias", (spec(2, 3), spec(2)), {}, "bias [2] on axis -1 of [2, 3]"),
    ("bias", (spec(2, 3), spec(3)), {"axis": 2}, "bias [3] on axis 2 of [2, 3]"),
    ("conv2d", (X4, spec(6, 3, 3, 3)), {}, "4 channels do not fit a filter [6, 3, 3, 3] in 1 gro"),
    ("conv2d", (X4, spec(5, 2, 3, 3)), {"groups": 2}, "5 filters in 2 groups"),
    ("conv2d", (X4, spec(6, 4, 9, 9)), {}, "does not fit into [2, 4, 7, 8]"),
    ("conv2d", (X4, spec(6, 4, 3, 3)), {"stride": (0, 1)}, "stride (0, 1), dilation (1, 1): below"),
    ("conv2d", (spec(4, 7, 8), spec(6, 4, 3, 3)), {}, "needs [batch, channels, h, w], not [4, 7,"),
    (
        "conv_transpose2d",
        (spec(2, 6, 4, 4), spec(6, 3, 3, 3)),
        {"output_size": (9, 6)},
        "output size [9, 6] does not lead to [2, 6, 4, 4]",
    ),
    ("max_pool2d", (X4,), {"kernel": (9, 9), "stride": (1, 1)}, "a window [9, 9] does not fit"),
    ("avg_pool2d", (X4,), {"kernel": (2, 2), "stride": (0, 2)}, "with stride [0, 2]"),
    ("resize2d", (X4,), {"size": (0, 2), "mode": "nearest"}, "resizing to [0, 2]"),
    ("batch_norm", (X4, spec(4), spec(4)), {}, "needs weight, bias, running mean, running vari"),
    ("batch_norm", (X4, *(spec(7),) * 4), {}, "batch norm of [2, 4, 7, 8] with [7]"),
    ("layer_norm", (spec(2, 6), spec(5), spec(5)), {}, "layer norm of [2, 6] with [5] and [5]"),
    ("add", (spec(2, 3), spec(2)), {}, "shapes [2, 3] and [2] do not fit elementwise"),
    ("add", (spec(3), spec(2, 3)), {}, "shapes [3] and [2, 3] do not fit elementwise"),
    ("concat", (spec(2, 3), spec(4, 3)), {"axis": 1}, "concat of [2, 3] and [4, 3] along axis 1"),
    ("reshape", (spec(2, 3),), {"shape": (5,)}, "reshape [2, 3] to [5]"),
    ("transpose", (spec(2, 3),), {"order": (0, 0)}, "transpose [2, 3] by (0, 0)"),
    ("slice", (spec(2, 3),), {"axis": 1, "start": 1, "stop": 4}, "slice 1:4 of [2, 3], axis 1"),
    ("flatten", (spec(),), {}, "flatten of a scalar"),
    ("embedding", (spec(2, 3), spec(7, 4)), {}, "an embedding of float32"),
    (
        "attention",
        (spec(2, 3, 8),) * 3,
        {"heads": 3, "kv_heads": 3, "causal": True},
        "width 8 in 3 heads",
    ),
    (
        "attention",
        (spec(2, 3, 8),) * 3,
        {"heads": 4, "kv_heads": 0, "causal": True},
        "4 heads do not share 0 key-value heads",
    ),
    (
        "attention",
        (spec(2, 3, 8), spec(5, 3, 8), spec(5, 3, 8)),
        {"heads": 2, "kv_heads": 2, "causal": False},
        "attention of [2, 3, 8] and [5, 3, 8]",
    ),
    ("rotary", (spec(2, 3, 8), spec(4, 2)), {"head_width": 2}, "rotary of [2, 3, 8] and [4, 2]"),
    ("lstm", (spec(2, 3, 4), spec(20, 4), spec(15, 5), spec(20), spec(20)), {}, "with 4 gates"),
    (
        "gru",
        (spec(2, 3, 4), spec(15, 4), spec(15, 2), spec(15), spec(15), spec(2, 5)),
        {},
        "a projection [2, 5] with 3 gates",
    ),
    ("gru", (spec(2, 3, 4), spec(15, 4), spec(15, 5), spec(15)), {}, "two bias vectors of 15"),
    (
        "pointwise",
        (spec(2, 3), spec(2)),
        {"function": "mul"},
        "mul of shapes [2, 3] and [2], which do not",
    ),
    ("pointwise", (spec(2),), {"function": "mul"}, "mul takes 2 operands, not 1"),
    (
        "pointwise",
        (spec(2),),
        {"function": "mul", "scalar": 1.0, "scalar_place": 2},
        "mul has no operand 2",
    ),
    (
        "pointwise",
        (spec(2),),
        {"function": "mul", "scalar": "a"},
        "mul has no operand -1 that could be 'a'",
    ),
    ("pointwise", (spec(2),), {"function": "clamp", "low": 0.0}, "clamp with low"),
    (
        "reduce",
        (spec(2, 3),),
        {"function": "mode", "axes": (0,)},
        "reduce knows sum, mean, max, min, prod, ",
    ),
    (
        "reduce",
        (spec(2, 3),),
        {"function": "sum", "axes": ()},
        "reduce over axes () of [2, 3]",
    ),
    (
        "reduce",
        (spec(2, 3),),
        {"function": "argmax", "axes": (0, 1)},
        "argmax over 2 axes",
    ),
    ("broadcast", (spec(2, 3),), {"shape": (2, 4)}, "[2, 3] does not broadcast to [2, 4]"),
    ("tile", (spec(2, 3),), {"times": (2,)}, "[2, 3] times (2,)"),
    (
        "pad",
        (spec(2, 3),),
        {"pads": (0, -2, 0, 0)},
        "padding (0, -2, 0, 0) of [2, 3] leaves nothin",
    ),
    (
        "pad",
        (spec(1, 1, 4),),
        {"pads": (0, 0, 0, 0, 4, 0), "mode": "reflect"},
        "reflect padding (0, 0, 0, 0, 4, 0) of [1, 1, 4]",
    ),
    ("gather", (spec(2, 3), spec(2)), {"axis": 0}, "indices of float32"),
    ("gather", (spec(2), spec(2, dtype="int64")), {"axis": 1}, "axis 1 of [2]"),
    (
        "gather_elements",
        (spec(2, 3), spec(4, 3, dtype="int64")),
        {"axis": 1},
        "elements of [2, 3] at [4, 3] along 1",
    ),
    ("split", (spec(2, 3),), {"axis": 1, "sizes": (1, 1)}, "split of [2, 3] into [1, 1], axis 1"),
    ("topk", (spec(2, 3),), {"k": 4, "axis": 1}, "top 4 of [2, 3] along 1"),
    ("group_norm", (X4, spec(4), spec(4)), {"groups": 3}, "4 channels in 3 groups"),
    (
        "resize2d",
        (X4,),
        {"size": (3, 3), "mode": "area"},
        "resizing knows nearest, bilinear, bicub",
    ),
    ("slice", (spec(2, 3),), {"axis": 1, "start": 0, "stop": 3, "step": 0}, "slice 0:3:0 of"),
    ("cross_entropy", (spec(3, 5), spec(4, dtype="int64")), {}, "cross-entropy of [3, 5] and [4]"),
]


@pytest.mark.parametrize(("kind", "specs", "attrs", "message"), WRONG, ids=[w[3] for w in WRONG])
def test_what_does_not_fit_is_refused_by_shape(kind, specs, attrs, message):
    with pytest.raises(ShapeError) as error:
        outputs_of(kind, specs, freeze_attrs(attrs))
    assert message in str(error.value)
    assert "\n" not in str(error.value)

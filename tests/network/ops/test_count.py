"""FLOP, bytes and peak memory of whole graphs, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from every import every
from steptime.build import build_step, make_workload, read_model
from steptime.core.dtypes import precision
from steptime.core.graph import Graph, freeze_attrs
from steptime.network.count import Count, OpCost, count, peak_bytes
from steptime.network.ops import OPS, saved_of, scratch_of
from steptime.network.ops.builder import Builder
from steptime.network.ops.training import training_graph


def fresh(dtype: str = "float32", training: bool = True) -> Builder:
    return Builder("net", precision(dtype), training)


def counted(
    text: str,
    batch: int,
    dtype: str = "float32",
    phase: str = "train",
    optimizer: str = "sgd",
) -> Count:
    workload = make_workload(read_model(text), batch, dtype, phase, optimizer)
    return count(build_step(workload))


def linear_net(dtype: str = "float32") -> Graph:
    """x [2, 3] times w [4, 3] to [2, 4], and its mean: 12 weights."""
    b = fresh(dtype)
    y = b.op("linear", b.input("x", (2, 3)), b.weight("w", (4, 3)), name="y")
    return b.graph(b.op("mean", y, name="loss"))


def test_every_op_reads_its_inputs_and_writes_its_outputs():
    found = count(training_graph(linear_net(), "momentum"))
    assert found.ops == (
        OpCost("y", "linear", "forward", "y", 2 * 2 * 3 * 4, (6 + 12 + 8) * 4, (2, 4)),
        OpCost("loss", "mean", "forward", "loss", 8, (8 + 1) * 4, ()),
        OpCost("loss/grad_input", "expand", "backward", "loss", 1, (1 + 8) * 4, (2, 4)),
        OpCost("y/grad_weight", "matmul", "backward", "y", 48, (8 + 6 + 12) * 4, (4, 3)),
        OpCost("w/update", "momentum", "update", "y", 4 * 12, (3 + 2) * 12 * 4, (4, 3)),
    )
    assert found.parameters == 12
    assert found.flop == 48 + 8 + 1 + 48 + 48
    assert found.traffic_bytes == sum(op.traffic_bytes for op in found.ops)
    assert found.activation_bytes == (8 + 1) * 4


def test_mixed_precision_casts_and_keeps_float32_weights():
    found = count(training_graph(linear_net("bfloat16-mixed"), "sgd"))
    assert [(op.name, op.kind, op.traffic_bytes) for op in found.ops] == [
        ("y/cast", "cast", 6 * 4 + 6 * 2),  # data arrive in float32
        ("w/cast", "cast", 12 * 4 + 12 * 2),
        ("y", "linear", (6 + 12 + 8) * 2),
        ("loss", "mean", (8 + 1) * 2),
        ("loss/grad_input", "expand", (1 + 8) * 2),
        ("y/grad_weight", "matmul", (8 + 6 + 12) * 2),
        ("w/cast/grad_input", "cast", 12 * 2 + 12 * 4),
        ("w/update", "sgd", 3 * 12 * 4),
    ]
    assert found.flop == count(training_graph(linear_net(), "sgd")).flop


def test_peak_memory_of_training_in_float32():
    """Always: x 24, w 48, the loss's gradient 4.

    y 32, loss 4; y dies; dy 32; dw 48 beside x, w, loss and dy: 24+48+4 + 4+32+48 = 160.
    """
    assert peak_bytes(training_graph(linear_net(), "sgd")) == 160
    # momentum keeps one more of 48 bytes
    assert peak_bytes(training_graph(linear_net(), "momentum")) == 160 + 48
    # adam keeps two and makes one while it updates: (x, w, seed, loss, dw) + 3 * 48
    assert peak_bytes(training_graph(linear_net(), "adam")) == 24 + 48 + 8 + 48 + 3 * 48


def test_peak_memory_of_training_in_mixed_precision():
    """Always: x 24, w 48 (both float32), the loss's gradient 2.

    At the cast of dw: the loss 2, dw in bfloat16 24 and in float32 48 are live.
    """
    graph = linear_net("bfloat16-mixed")
    assert peak_bytes(training_graph(graph, "sgd")) == 24 + 48 + 2 + 2 + 24 + 48
    adam = 24 + 48 + 2 + 2 + 48 + 3 * 48  # state and scratch of 48 bytes each: float32 too
    assert peak_bytes(training_graph(graph, "adam")) == adam


def test_peak_memory_of_inference_in_mixed_precision():
    """The product has x and w beside their copies of half the size, and y."""
    assert peak_bytes(linear_net("float16-mixed")) == (24 + 48) + (12 + 24) + 8 * 2


def test_half_precision_halves_everything():
    for optimizer in ("sgd", "adam"):
        whole, half = (
            count(training_graph(linear_net(dtype), optimizer)) for dtype in ("float32", "bfloat16")
        )
        assert half.peak_bytes * 2 == whole.peak_bytes
        assert half.traffic_bytes * 2 == whole.traffic_bytes
        assert half.flop == whole.flop


def test_a_tensor_dies_after_its_last_reader():
    """The example of the docstring, the input's byte added: a, a and b, b and c."""
    b = fresh()
    x = b.input("x", (1,), "int8")
    a = b.op("relu", x, name="a")
    last = b.op("relu", b.op("relu", a, name="b"), name="c")
    assert peak_bytes(b.graph(last)) == 1 + 2
    held = b.op("add", last, a, name="d")  # a lives on until here: a, c, d, or a, b, c
    assert peak_bytes(b.graph(held)) == 1 + 3


def test_an_output_lives_to_the_end():
    b = fresh()
    a = b.op("relu", b.input("x", (1,), "int8"), name="a")
    c = b.op("relu", b.op("relu", a, name="b"), name="c")
    assert peak_bytes(b.graph(a, c)) == 1 + 3


def test_a_result_that_nobody_reads_dies_at_once():
    b = fresh()
    x = b.input("x", (10,), "int8")
    b.op("relu", x, name="idle")
    assert peak_bytes(b.graph(b.op("relu", x, name="y"))) == 10 + 10


def test_views_take_no_memory_and_keep_alive_what_they_show():
    b = fresh()
    x = b.input("x", (2, 8), "int8")
    a = b.op("relu", x, name="a")
    flat = b.op("flatten", b.op("reshape", a, name="r", shape=(2, 2, 4)), name="f")
    y = b.op("relu", b.op("relu", x, name="other"), name="y")
    end = b.op("add", y, flat, name="end")
    # a is live to the end through its views: x, a, other and y
    assert peak_bytes(b.graph(end)) == 16 * 4
    view = b.op("transpose", x, name="t", order=(1, 0))  # of an input: nothing is added
    assert peak_bytes(b.graph(view)) == 16 * 4


def test_a_view_of_an_input_takes_nothing():
    b = fresh()
    assert peak_bytes(b.graph(b.op("flatten", b.input("x", (2, 8), "int8"), name="f"))) == 16


def test_a_bias_is_added_in_place():
    b = fresh()
    y = b.op("linear", b.input("x", (2, 3)), b.weight("w", (4, 3)), name="y")
    z = b.op("bias", y, b.weight("b", (4,)), name="z")
    assert peak_bytes(b.graph(z)) == (6 + 12 + 4 + 8) * 4


def test_what_is_saved_lives_until_its_gradient():
    """Max pooling keeps places of 8 bytes, and its input: x 64, w 64, a 64, y 16, places 32."""
    b = fresh()
    a = b.op("mul", b.input("x", (1, 1, 4, 4)), b.weight("w", (1, 1, 4, 4)), name="a")
    y = b.op("max_pool2d", a, name="y", kernel=(2, 2), stride=(2, 2))
    graph = b.graph(b.op("mean", y, name="loss"))
    assert peak_bytes(graph) == 64 + 64 + 64 + 16 + 32  # the places are made, and dropped
    # the gradient: x, w, seed 4, loss 4, a, places, dy 16, da 64
    assert peak_bytes(training_graph(graph, "sgd")) == 64 * 2 + 8 + 64 + 32 + 16 + 64


def test_buffers_and_their_types_count():
    b = fresh("bfloat16", training=False)
    x = b.input("x", (2, 3, 4, 4))
    params = [b.weight("w", (3,)), b.weight("b", (3,)), b.buffer("m", (3,)), b.buffer("v", (3,))]
    y = b.op("batch_norm", x, *params, name="y", training=False)
    assert peak_bytes(b.graph(y)) == (96 + 4 * 3 + 96) * 2
    assert b.graph(y).parameters == 6  # running statistics are not trained


def test_parameters_count_a_tied_table_once():
    tied = "transformer:layers=1,width=8,heads=1,length=4,vocabulary=11"
    assert counted(f"{tied},tied=no", 1).parameters - counted(tied, 1).parameters == 11 * 8


def test_inference_needs_less_than_training_and_sgd_less_than_adam():
    for text in ("fc:layers=4,nodes=64", "cnn:blocks=1,filters=8,image=64", "rnn:layers=2"):
        infer = counted(text, 8, phase="infer").peak_bytes
        sgd, momentum, adam = (
            counted(text, 8, optimizer=name).peak_bytes for name in ("sgd", "momentum", "adam")
        )
        assert infer < sgd < momentum < adam
        assert momentum - sgd == 4 * counted(text, 8).parameters


@given(
    st.integers(1, 6),
    st.integers(1, 40),
    st.integers(1, 64),
    st.sampled_from(["float32", "bfloat16", "float16-mixed"]),
    st.sampled_from(["train", "infer"]),
)
def test_peak_memory_grows_with_the_batch(layers, nodes, batch, dtype, phase):
    text = f"fc:layers={layers},nodes={nodes},inputs=20,outputs=10"
    one, more = (counted(text, n, dtype, phase) for n in (batch, batch + 1))
    assert one.peak_bytes < more.peak_bytes
    assert one.flop < more.flop
    assert one.parameters == more.parameters


@given(st.integers(1, 4), st.integers(1, 8), st.sampled_from(["rnn", "lstm", "gru"]))
def test_peak_memory_lies_between_what_stays_and_all_there_is(layers, batch, cell):
    text = f"rnn:cell={cell},layers={layers},embedding=6,length=4,vocabulary=9"
    graph = build_step(make_workload(read_model(text), batch, "float32", "train", "adam"))
    peak = peak_bytes(graph)
    always = {*graph.inputs, *graph.weights, *graph.buffers}
    assert sum(graph.tensors[name].size_bytes for name in always) < peak
    made = {name for op in graph.ops if op.part != "update" for name in op.outputs}
    scratch = 5 * 4 * batch * 4 * 6 + 2 * 4 * graph.parameters  # of one cell, of adam
    assert peak <= sum(graph.tensors[name].size_bytes for name in always | made) + scratch


@pytest.mark.parametrize("batch", [1, 7])
def test_flop_of_a_convolutional_network_is_proportional_to_its_batch(batch):
    text = "cnn:blocks=1,filters=8,image=64,classes=10"
    one, many = (counted(text, n, phase="infer") for n in (1, batch))
    assert many.flop == batch * one.flop


def slow_peak(graph: Graph) -> int:
    """The docstring of `peak_bytes` word for word: at every op, all that lives."""
    owner = {name: name for name in graph.tensors}
    for op in graph.ops:
        storage = OPS[op.kind].storage
        for i, name in enumerate(op.outputs):
            if (storage == "view" and i == 0) or (storage == "in_place" and i < len(op.inputs)):
                owner[name] = owner[op.inputs[i]]
    made = {name: i for i, op in reversed(list(enumerate(graph.ops))) for name in op.outputs}
    uses: dict[str, set[int]] = {name: set() for name in graph.tensors}
    for i, op in enumerate(graph.ops):
        for name in (*op.inputs, *op.outputs):
            uses[owner[name]].add(i)
    for name in graph.outputs:
        uses[owner[name]].add(len(graph.ops))
    forward = [i for i, op in enumerate(graph.ops) if op.part == "forward"]
    for op in graph.ops:
        if op.kind == "cast" and op.inputs[0] in graph.weights:
            uses[op.outputs[0]].add(forward[-1])
    always = {*graph.inputs, *graph.weights, *graph.buffers}
    stays = sum(graph.tensors[name].size_bytes for name in always)
    peak = stays
    phase_is_inference = len(forward) == len(graph.ops)
    for i, op in enumerate(graph.ops):
        own = [name for name in made if owner[name] == name]
        live = [name for name in own if made[name] <= i <= max(uses[name])]
        specs = tuple(graph.tensors[name] for name in op.inputs)
        scratch = scratch_of(op.kind, specs, freeze_attrs(op.attrs))
        if OPS[op.kind].always_saves and op.part == "forward" and phase_is_inference:
            scratch = sum(
                one.size_bytes for one in saved_of(op.kind, specs, freeze_attrs(op.attrs))
            )
        if op.kind == "adam":  # the lists of all weights are updated together, one tensor for each
            updates = [one for one in graph.ops if one.kind == "adam"]
            of_all = sum(graph.tensors[one.inputs[0]].size_bytes for one in updates)
            scratch = of_all if op is updates[0] else 0
        peak = max(peak, stays + sum(graph.tensors[name].size_bytes for name in live) + scratch)
    return peak


@every("phase", ["train", "infer"])
@every(
    "text",
    [
        "fc:layers=3,nodes=8",
        "cnn:block=residual,blocks=1,filters=4,image=40,classes=5",
        "rnn:cell=gru,layers=2,embedding=6,length=4,vocabulary=9",
        "transformer:layers=1,width=16,heads=2,length=6,vocabulary=9,max_length=8,dropout=0.1",
        "transformer:kind=encoder,layers=1,width=16,heads=2,length=6,vocabulary=9",
    ],
)
def test_peak_memory_is_what_its_words_say(text, phase):
    for dtype, optimizer in (("float32", "adam"), ("bfloat16-mixed", "sgd")):
        graph = build_step(make_workload(read_model(text), 3, dtype, phase, optimizer))
        assert peak_bytes(graph) == slow_peak(graph)

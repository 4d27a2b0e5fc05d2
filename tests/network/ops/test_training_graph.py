"""A network's gradient as ops: what is made, in which order, what belongs to what."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from every import every
from steptime.build import build, build_step, make_workload, read_model
from steptime.core.dtypes import PRECISIONS, SIZE_BYTES, Precision, precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph, GraphError, Op, TensorSpec, check, freeze_attrs
from steptime.core.workload import OPTIMIZERS
from steptime.network.count import count, op_cost
from steptime.network.families import ZOO
from steptime.network.ops import OPS, outputs_of
from steptime.network.ops.builder import Builder
from steptime.network.ops.optimizers import make_states, optimizer_rows
from steptime.network.ops.training import training_graph

SMALL = (  # every part of every family, small
    "fc:layers=2,nodes=8,inputs=6,outputs=5",
    "cnn:block=residual,blocks=1-2-1-1,filters=4,image=40,classes=5",
    "cnn:block=bottleneck,blocks=2-1-1-1,filters=4,image=40,classes=5",
    "rnn:cell=rnn,layers=2,embedding=6,length=4,vocabulary=9",
    "rnn:cell=lstm,layers=2,embedding=6,length=4,vocabulary=9",
    "rnn:cell=gru,layers=2,embedding=6,length=4,vocabulary=9",
    "transformer:kind=encoder,layers=2,width=16,heads=2,length=6,vocabulary=9,dropout=0.1",
    "transformer:kind=decoder,layers=2,width=16,heads=2,length=6,vocabulary=9,max_length=8",
    (
        "transformer:kind=decoder,layers=1,width=16,heads=4,kv_heads=2,length=6,vocabulary=9,"
        "norm=rms,activation=swiglu,positions=rotary,bias=no,tied=no"
    ),
)


def step_of(text: str, batch: int = 2, dtype: str = "float32", optimizer: str = "sgd") -> Graph:
    return build_step(make_workload(read_model(text), batch, dtype, "train", optimizer))


def fresh() -> Builder:
    return Builder("net", precision("float32"), training=True)


def names(graph: Graph, part: str) -> list[str]:
    return [op.name for op in graph.ops if op.part == part]


def check_every_shape(graph: Graph) -> None:
    """What an op makes is what its row says, besides what it saves."""
    for op in graph.ops:
        specs = tuple(graph.tensors[name] for name in op.inputs)
        made = outputs_of(op.kind, specs, freeze_attrs(op.attrs))
        assert tuple(graph.tensors[name] for name in op.outputs)[: len(made)] == made, op.name


def test_order_of_a_step():
    graph = step_of("fc:layers=1,nodes=4,inputs=3,outputs=2")
    assert names(graph, "forward") == [
        "fc1/linear", "fc1/bias", "fc1/relu", "output/linear", "output/bias", "loss",
    ]  # fmt: skip
    assert names(graph, "backward") == [
        "loss/grad_log_p",
        "loss/grad_input",
        "output/bias/grad_bias",
        "output/linear/grad_input",
        "output/linear/grad_weight",
        "fc1/relu/grad_input",
        "fc1/bias/grad_bias",
        "fc1/linear/grad_weight",  # and no fc1/linear/grad_input: nobody asks for it
    ]
    assert names(graph, "update") == [
        "fc1/w/update", "fc1/b/update", "output/w/update", "output/b/update",
    ]  # fmt: skip
    parts = [op.part for op in graph.ops]
    assert parts == sorted(parts, key=["forward", "backward", "update"].index)


def test_flop_of_a_step_is_three_times_forward_less_the_first_data_gradient():
    inputs, nodes, outputs, batch = 3, 4, 2, 5
    text = f"fc:layers=3,nodes={nodes},inputs={inputs},outputs={outputs}"
    graph = step_of(text, batch)
    products = sum(op_cost(graph, op).flop for op in graph.ops if OPS[op.kind].work)
    weights = inputs * nodes + 2 * nodes**2 + nodes * outputs
    assert products == 2 * batch * (3 * weights - inputs * nodes)


@every("text", SMALL)
def test_every_product_has_two_gradients_of_its_own_cost(text):
    """One where its data want no gradient; a recurrent or attention op gives all at once."""
    graph = step_of(text)
    made = {name: op for op in graph.ops for name in op.outputs}

    def reaches_a_weight(name: str) -> bool:
        if name in graph.weights:
            return True
        return name in made and any(reaches_a_weight(n) for n in made[name].inputs)

    backward: Counter[str] = Counter()
    for op in graph.ops:
        if op.part == "backward" and OPS[op.kind].work:
            backward[op.forward_op] += op_cost(graph, op).flop
    for op in graph.ops:
        if op.part == "forward" and OPS[op.kind].work:
            times = 2 if reaches_a_weight(op.inputs[0]) else 1
            assert backward[op.name] == times * op_cost(graph, op).flop, op.name


@pytest.mark.slow
@every("text", SMALL)
@every("dtype", PRECISIONS)
@every("optimizer", OPTIMIZERS)
def test_every_family_in_every_type_with_every_optimizer(text, dtype, optimizer):
    graph = step_of(text, 2, dtype, optimizer)
    check(graph)
    check_every_shape(graph)
    forward = set(names(graph, "forward"))
    assert all((op.forward_op == "") == (op.part == "forward") for op in graph.ops)
    assert {op.forward_op for op in graph.ops if op.part != "forward"} <= forward
    updates = [op for op in graph.ops if op.part == "update"]
    assert [op.inputs[0] for op in updates] == list(graph.weights)
    for op in updates:
        assert op.kind in (optimizer, optimizer_rows()[optimizer].other)
        weight, *states, gradient = (graph.tensors[name] for name in op.inputs)
        assert weight == gradient  # one shape, one dtype
        assert states == list(make_states(op.kind, weight))
        assert {*op.inputs[1:-1]} <= {*graph.buffers}
    assert graph.tensors[graph.outputs[0]].shape == ()
    weights = precision(dtype).weights
    assert {graph.tensors[name].dtype for name in graph.weights} == {weights}


@every("text", SMALL)
@every("dtype", PRECISIONS)
def test_arithmetic_is_in_the_type_that_was_asked_for(text, dtype):
    graph = step_of(text, 2, dtype)
    for op in graph.ops:
        types = {graph.tensors[name].dtype for name in op.inputs}
        if OPS[op.kind].products:
            assert graph.tensors[op.inputs[0]].dtype == precision(dtype).compute, op.name
            assert graph.tensors[op.inputs[1]].dtype == precision(dtype).compute, op.name
        elif op.kind in ("add", "mul"):  # two types make the wider one
            widest = max(types, key=SIZE_BYTES.__getitem__)
            assert graph.tensors[op.outputs[0]].dtype == widest


def test_a_narrower_mixture_turns_products_alone_into_its_type(monkeypatch):
    monkeypatch.setitem(SIZE_BYTES, "float8", 1)
    monkeypatch.setitem(PRECISIONS, "float8-mixed", Precision("float32", "float8"))
    text = "transformer:layers=1,width=16,heads=2,length=6,vocabulary=9"
    graph = step_of(text, 2, "float8-mixed")
    for op in graph.ops:
        dtype = graph.tensors[op.inputs[0]].dtype
        if OPS[op.kind].products:
            assert dtype == "float8", op.name
        elif op.kind in ("layer_norm", "layer_norm_grad", "cross_entropy", "sgd"):
            assert dtype == "float32", op.name
        elif op.kind == "add":
            assert graph.tensors[op.outputs[0]].dtype == "float32", op.name


def test_the_residual_stream_is_wide_under_mixed_precision():
    graph = step_of(
        "transformer:layers=1,width=16,heads=2,length=6,vocabulary=9", 2, "bfloat16-mixed"
    )
    made = {op.name: graph.tensors[op.outputs[0]].dtype for op in graph.ops}
    for name in ("embedding", "block1/add1", "block1/add2", "block1/norm1/layer_norm", "loss"):
        assert made[name] == "float32", name
    for name in ("block1/attention/q/linear", "block1/attention/q/bias", "block1/ffn/gelu"):
        assert made[name] == "bfloat16", name
    casts = [op.inputs[0] for op in graph.ops if op.kind == "cast" and op.part == "forward"]
    # a weight is cast once, what it is multiplied with for each product that reads it
    assert casts.count("embedding/w") == 1
    assert casts.count("block1/norm1/layer_norm") == 3
    grad = next(op for op in graph.ops if op.name == "block1/add1/grad_cast")
    assert (grad.kind, graph.tensors[grad.outputs[0]].dtype) == ("cast", "bfloat16")


@every("text", [*SMALL, *ZOO])
def test_inference_is_the_forward_pass_alone(text):
    for dtype in ("float32", "float16-mixed"):
        graph = build_step(make_workload(read_model(text), 1, dtype, "infer"))
        check(graph)
        check_every_shape(graph)
        assert {op.part for op in graph.ops} == {"forward"}
        assert not {"dropout", "cross_entropy", "mean"} & {op.kind for op in graph.ops}


@every("name", ZOO)
def test_named_networks_train(name):
    graph = step_of(name, 1, "bfloat16-mixed", "adam")
    check(graph)
    assert [op.inputs[0] for op in graph.ops if op.part == "update"] == list(graph.weights)


def test_tied_weights_get_the_sum_of_both_gradients_and_one_update():
    graph = step_of(SMALL[7])
    ops = {op.name: op for op in graph.ops}
    total = ops["embedding/w/grad_sum"]
    assert total.kind == "add"
    assert total.inputs == ("output/linear/grad_weight", "embedding/grad_weight")
    assert total.forward_op == "embedding"
    assert ops["embedding/w/update"].inputs == ("embedding/w", "embedding/w/grad_sum")
    rows, width = 9, 16
    assert op_cost(graph, total).flop == rows * width
    assert "output/w" not in graph.weights


def test_tied_weights_under_mixed_precision_are_summed_as_wide_as_the_weight():
    ops = {op.name: op for op in step_of(SMALL[7], dtype="bfloat16-mixed").ops}
    assert ops["embedding"].inputs == ("tokens", "embedding/w")  # rows are read uncast
    assert ops["output/linear"].inputs[1] == "embedding/w/cast"
    parts = ("embedding/w/cast/grad_input", "embedding/grad_weight")
    assert ops["embedding/w/grad_sum"].inputs == parts
    assert ops["embedding/w/update"].inputs == ("embedding/w", "embedding/w/grad_sum")
    assert ops["embedding/w/update"].forward_op == "embedding"


def test_a_tensor_read_three_times_has_two_sums():
    b = fresh()
    w = b.weight("w", (4,))
    y = b.op("add", b.op("mul", w, w, name="square"), w, name="sum")
    graph = training_graph(b.graph(b.op("mean", y, name="loss")), "sgd")
    sums = [op for op in graph.ops if op.part == "backward" and op.kind == "add"]
    assert [(op.name, op.inputs) for op in sums] == [
        ("w/grad_sum", ("loss/grad_input", "square/grad_a")),
        ("w/grad_sum_2", ("w/grad_sum", "square/grad_b")),
    ]
    update = graph.ops[-1]
    assert update.inputs == ("w", "w/grad_sum_2")


def test_a_weight_that_does_not_reach_the_loss_is_not_updated():
    b = fresh()
    used, unused = b.weight("used", (4,)), b.weight("unused", (4,))
    b.op("relu", unused, name="idle")
    graph = training_graph(b.graph(b.op("mean", used, name="loss")), "adam")
    check(graph)
    assert names(graph, "update") == ["used/update"]
    assert not any("unused" in name for name in graph.buffers)
    assert graph.parameters == 8  # it is still a parameter


def test_what_needs_no_gradient_saves_nothing():
    b = fresh()
    x = b.op("dropout", b.input("x", (2, 3)), name="drop", p=0.5)
    y = b.op("dropout", b.op("linear", x, b.weight("w", (4, 3)), name="y"), name="drop2", p=0.5)
    graph = training_graph(b.graph(b.op("mean", y, name="loss")), "sgd")
    outputs = {op.name: op.outputs for op in graph.ops}
    assert outputs["drop"] == ("drop",)
    assert outputs["drop2"] == ("drop2", "drop2/saved0")
    assert "drop/grad_input" not in outputs


def test_concat_gives_a_gradient_to_those_who_ask():
    b = fresh()
    x = b.op("concat", b.input("x", (2, 3)), b.weight("w", (2, 5)), name="both", axis=1)
    graph = training_graph(b.graph(b.op("mean", x, name="loss")), "sgd")
    assert names(graph, "backward") == ["loss/grad_input", "both/grad_1"]
    assert graph.tensors["both/grad_1"].shape == (2, 5)


def test_what_cannot_be_trained_says_why():
    b = fresh()
    y = b.op("relu", b.weight("w", (4,)), name="y")
    with pytest.raises(ValueError, match=r"'y' is no loss: \[4\]"):
        training_graph(b.graph(y), "sgd")
    loss = b.op("mean", b.op("tanh_grad", y, y, name="odd"), name="loss")
    with pytest.raises(ValueError, match="op 'odd' of kind 'tanh_grad' has no gradient"):
        training_graph(b.graph(loss), "sgd")
    with pytest.raises(InputError, match="unknown optimizer 'adma'; did you mean 'adam'"):
        training_graph(b.graph(loss), "adma")


def test_names_made_twice_are_refused():
    b = fresh()
    x = b.input("x", (2,))
    b.op("relu", x, name="a")
    for make in (lambda: b.op("relu", x, name="a"), lambda: b.weight("a", (2,))):
        with pytest.raises(ValueError, match=r"two (ops|tensors) are named 'a'"):
            make()


def two_ops() -> Graph:
    tensors = {name: TensorSpec((2,)) for name in ("x", "a", "b")}
    ops = (Op("a", "relu", ("x",), ("a",)), Op("b", "relu", ("a",), ("b",)))
    return Graph("net", tensors, ops, ("x",), (), ("b",))


@every(
    ("change", "message"),
    [
        (lambda g: replace(g, ops=g.ops[::-1]), "op 'b' reads 'a' before it is made"),
        (lambda g: replace(g, ops=(g.ops[0], replace(g.ops[1], name="a"))), "two ops are named"),
        (lambda g: replace(g, ops=(g.ops[0], replace(g.ops[1], outputs=("a",)))), "a second time"),
        (lambda g: replace(g, outputs=("c",)), "output 'c' is never made"),
        (lambda g: replace(g, tensors={"a": g.tensors["a"]}), "tensor 'x' has no shape"),
        (lambda g: replace(g, tensors={"x": g.tensors["x"]}), "output 'a' of op 'a' has no shape"),
    ],
)
def test_check_names_the_op(change, message):  # type: ignore[no-untyped-def]
    check(two_ops())
    with pytest.raises(GraphError, match=message):
        check(change(two_ops()))


def shuffled(graph: Graph, rng: random.Random) -> Iterator[Op]:
    """The ops in another order in which nothing is read before it is made.

    An update overwrites a weight that others read, so updates stay last.
    """
    waiting = [op for op in graph.ops if op.part != "update"]
    ready = {*graph.inputs, *graph.weights, *graph.buffers}
    while waiting:
        able = [op for op in waiting if ready.issuperset(op.inputs)]
        op = rng.choice(able)
        waiting.remove(op)
        ready.update(op.outputs)
        yield op
    updates = [op for op in graph.ops if op.part == "update"]
    yield from rng.sample(updates, len(updates))


@settings(max_examples=15)
@given(st.sampled_from(SMALL), st.randoms(use_true_random=False))
def test_the_order_of_independent_ops_changes_no_sum(text, rng):
    graph = step_of(text)
    other = replace(graph, ops=tuple(shuffled(graph, rng)))
    check(other)
    a, b = count(graph), count(other)
    assert (a.flop, a.traffic_bytes, a.parameters) == (b.flop, b.traffic_bytes, b.parameters)
    assert a.activation_bytes == b.activation_bytes
    assert sorted(map(repr, a.ops)) == sorted(map(repr, b.ops))


def test_a_graph_is_not_changed_by_training_it():
    workload = make_workload(read_model(SMALL[0]), 2)
    before = build(workload)
    tensors, ops = dict(before.tensors), before.ops
    training_graph(before, "adam")
    assert (dict(before.tensors), before.ops) == (tensors, ops)

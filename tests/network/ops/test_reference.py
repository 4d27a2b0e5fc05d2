"""The op table and the numpy reference agree; gradients agree with finite differences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from every import every
from reference import backend as numpy_backend
from reference.backend import RUNS, execute, initial_values, prepare
from reference.kinds import ALSO_GIVEN, element_type, gelu
from steptime.build import build, make_workload, read_model
from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph, TensorSpec, frozen
from steptime.core.workload import Plan
from steptime.measure.contract import Options, UnsupportedError
from steptime.network.layers.dense import classify
from steptime.network.ops import OPS, communication, outputs_of, saved_of
from steptime.network.ops.builder import Builder
from steptime.network.ops.loss import IGNORED_LABEL
from steptime.network.ops.sequence import GATES
from steptime.network.ops.training import training_graph

LEFT_OUT = {*communication.KINDS}  # one process has nobody to exchange with


def drawn(spec: TensorSpec, rng: np.random.Generator, most: int = 3) -> np.ndarray:
    """Positive numbers, so that roots and powers of a row's example are defined."""
    if spec.dtype.startswith("int"):
        return rng.integers(0, most, spec.shape).astype(spec.dtype)
    return rng.uniform(0.5, 1.5, spec.shape).astype(spec.dtype)


def test_every_kind_of_one_process_has_a_row():
    assert RUNS.keys() == OPS.keys() - LEFT_OUT


@every("kind", [kind for kind in OPS if kind not in {*LEFT_OUT, *GATES}])
def test_example_runs_to_the_shapes_and_types_of_its_row(kind):
    row, rng = OPS[kind], np.random.default_rng(0)
    attrs: dict[str, Any] = dict(row.example.attrs)
    if attrs.get("dtype") == "bfloat16":
        attrs["dtype"] = "float16"  # numpy has no bfloat16
    also = {name: {"rng": rng, "step": 1}[name] for name in ALSO_GIVEN.get(kind, ())}
    made = RUNS[kind](*(drawn(spec, rng) for spec in row.example.specs), **attrs, **also)
    arrays = made if isinstance(made, tuple) else (made,)
    wanted = outputs_of(kind, row.example.specs, frozen(attrs))
    if kind in GATES:  # the reference's gradient runs the layer again: it saves nothing
        arrays = arrays[:1]
    else:
        wanted += saved_of(kind, row.example.specs, frozen(attrs))
    assert [(a.shape, a.dtype.name) for a in arrays] == [(s.shape, s.dtype) for s in wanted]


def differences(
    graph: Graph, values: dict[str, np.ndarray], weight: str, step: float = 1e-6
) -> np.ndarray:
    """The gradient of the loss by central differences."""
    (loss,) = graph.outputs
    out = np.zeros(values[weight].shape)
    for place in np.ndindex(out.shape):
        ends = []
        for sign in (1, -1):
            moved = values[weight].copy()
            moved[place] += sign * step
            ends.append(float(execute(graph, {**values, weight: moved})[loss]))
        out[place] = (ends[0] - ends[1]) / (2 * step)
    return out


def _attention(b: Builder) -> str:
    q, k, v = (b.weight(n, (1, 4, 2 * heads)) for n, heads in (("q", 4), ("k", 2), ("v", 2)))
    y = b.op("attention", q, k, v, name="y", heads=4, kv_heads=2, causal=True)
    return classify(b, y)


def _delta_rule(b: Builder) -> str:
    q, k, v = (b.weight(n, (2, 5, size)) for n, size in (("q", 6), ("k", 6), ("v", 8)))
    decay, share = (b.weight(n, (2, 5, 4)) for n in ("decay", "share"))
    y = b.op("delta_rule", q, k, v, decay, share, name="y", heads=4, key_heads=2)
    return classify(b, y)


def _convolution(b: Builder) -> str:
    x, w = b.weight("x", (1, 2, 5, 6)), b.weight("w", (4, 1, 3, 2))
    sizes: dict[str, Any] = {"stride": (2, 1), "padding": (1, 2, 0, 1), "dilation": (1, 2)}
    y = b.op("conv2d", x, w, name="y", groups=2, **sizes)
    return classify(b, b.op("flatten", y, name="flat"))


def _layer_norm(b: Builder) -> str:
    x = b.weight("x", (2, 3, 5))
    return classify(b, b.op("layer_norm", x, b.weight("w", (5,)), b.weight("b", (5,)), name="y"))


def _batch_norm(b: Builder) -> str:
    weights = (b.weight("x", (3, 2, 2, 2)), b.weight("w", (2,)), b.weight("b", (2,)))
    buffers = (b.buffer("mean", (2,)), b.buffer("variance", (2,)))
    y = b.op("batch_norm", *weights, *buffers, name="y", training=True)
    return classify(b, b.op("flatten", y, name="flat"))


def _response_norm(b: Builder) -> str:
    x = b.weight("x", (1, 5, 2, 2))
    y = b.op("local_response_norm", x, name="y", size=4, alpha=0.5, beta=0.75, k=2.0)
    return classify(b, b.op("flatten", y, name="flat"))


NETWORKS = [_attention, _delta_rule, _convolution, _layer_norm, _batch_norm, _response_norm]


@every("network", NETWORKS)
def test_gradients_agree_with_finite_differences(network):
    b = Builder("small", precision("float64"), training=True)
    graph = b.graph(network(b))
    training = training_graph(graph, "sgd")
    values = initial_values(training, 1)
    rng = np.random.default_rng(2)
    values |= {name: rng.standard_normal(values[name].shape) for name in graph.weights}
    grads = {op.inputs[0]: op.inputs[1] for op in training.ops if op.part == "update"}
    made = execute(training, values, keep=grads.values())
    for weight, grad in grads.items():
        expected = differences(graph, values, weight)
        np.testing.assert_allclose(made[grad], expected, rtol=1e-5, atol=1e-8)


def test_convolution_by_hand():
    image = np.arange(9.0).reshape(1, 1, 3, 3)
    y = numpy_backend.RUNS["conv2d"](image, np.array([[[[1.0, 2.0], [3.0, 4.0]]]]))
    # top left: 0*1 + 1*2 + 3*3 + 4*4 = 27, and 1 + 2 + 3 + 4 = 10 more for each step right
    np.testing.assert_array_equal(y, [[[[27.0, 37.0], [57.0, 67.0]]]])


def test_max_pool_keeps_the_place_of_each_maximum_in_its_map():
    image = np.array([[[[1.0, 5.0, 2.0], [4.0, 3.0, 9.0], [8.0, 7.0, 6.0]]]])
    y, places = RUNS["max_pool2d"](image, kernel=(2, 2), stride=(1, 1))
    np.testing.assert_array_equal(y, [[[[5.0, 9.0], [8.0, 9.0]]]])
    np.testing.assert_array_equal(places, [[[[1, 5], [6, 5]]]])
    back = RUNS["max_pool2d_grad"](image, np.ones((1, 1, 2, 2)), places)
    np.testing.assert_array_equal(back, [[[[0, 1, 0], [0, 0, 2], [1, 0, 0]]]])  # 9 wins twice


def test_average_pool_counts_padding_as_zeros_and_not_what_hangs_over():
    y = RUNS["avg_pool2d"](
        np.ones((1, 1, 2, 2)), kernel=(2, 2), stride=(2, 2), padding=(1, 0, 1, 0), ceil=True
    )
    # rows: one padding and one element (1/2), then one element of a window that hangs over (1/1)
    np.testing.assert_array_equal(y, [[[[0.25, 0.5], [0.5, 1.0]]]])


def test_ignored_labels_count_neither_in_the_mean_nor_in_the_gradient():
    logits = np.zeros((3, 4))
    labels = np.array([1, IGNORED_LABEL, 2])
    loss, log_p = RUNS["cross_entropy"](logits, labels)
    assert loss == pytest.approx(np.log(4))
    grad = RUNS["log_softmax_grad"](log_p, RUNS["pick_grad"](log_p, labels, np.asarray(1.0)))
    np.testing.assert_allclose(grad[1], 0)
    np.testing.assert_allclose(grad[0], [0.125, -0.375, 0.125, 0.125])  # (1/4 - [label]) / 2


def test_gelu_is_exact_to_the_last_digits():
    values = np.array([-1.0, 0.0, 0.5, 2.0])
    # x Phi(x); Phi(0.5) = 0.691462461274013, Phi(2) = 0.977249868051821 (normal tables)
    expected = [-(1 - 0.841344746068543), 0, 0.5 * 0.691462461274013, 2 * 0.977249868051821]
    np.testing.assert_allclose(gelu(values), expected, rtol=2e-15)


def test_update_rules_by_hand():
    w, g = np.array([1.0]), np.array([2.0])
    zero = np.zeros(1)
    np.testing.assert_allclose(RUNS["sgd"](w, g), 1 - 1e-4 * 2)
    np.testing.assert_allclose(RUNS["momentum"](w, np.ones(1), g)[0], 1 - 1e-4 * (0.9 + 2))
    # the first step of RMSProp: s = 0.01 * 4, w -= lr * 2 / (0.2 + 1e-8)
    np.testing.assert_allclose(RUNS["rmsprop"](w, zero, g)[0], 1 - 1e-4 * 2 / (0.2 + 1e-8))
    # the first step of Adam moves by the learning rate, whatever the gradient
    np.testing.assert_allclose(RUNS["adam"](w, zero, zero, g, step=1)[0], 1 - 1e-4, atol=1e-11)
    # that of AdamW by a hundredth of it more: 1 - 1e-4 * 0.01 - 1e-4
    np.testing.assert_allclose(RUNS["adamw"](w, zero, zero, g, step=1)[0], 1 - 1.01e-4, atol=1e-11)


@given(p=st.floats(0, 0.9), seed=st.integers(0, 99))
def test_dropout_keeps_or_scales(p, seed):
    y, mask = RUNS["dropout"](np.ones((8, 8)), p=p, rng=np.random.default_rng(seed))
    np.testing.assert_allclose(y, np.where(mask, 1 / (1 - p), 0))


def test_rotary_turns_by_the_angle_and_back():
    angle = 0.3
    table = np.array([[np.cos(angle), np.sin(angle)]])
    x = np.array([[[1.0, 0.0]]])
    turned = RUNS["rotary"](x, table, head_width=2)
    np.testing.assert_allclose(turned, [[[np.cos(angle), np.sin(angle)]]])
    np.testing.assert_allclose(RUNS["rotary"](turned, table, head_width=2, inverse=True), x, atol=0)


def workload(text: str, **how: str) -> Any:
    return make_workload(read_model(text), None, **how)  # type: ignore[arg-type]


SMALL_FC = "fc:layers=2,nodes=8,inputs=6,outputs=5,batch=4"


def test_parts_in_order_make_a_step():
    work = workload(SMALL_FC, optimizer="adam")
    prepared = prepare(build(work), work, Options())
    assert list(prepared.parts) == ["forward", "backward", "update"]
    for _ in range(3):
        prepared.step()
    assert prepared.memory() == (None, "resident set, by the worker")
    inference = workload(SMALL_FC, phase="infer")
    assert list(prepare(build(inference), inference, Options()).parts) == ["forward"]


def test_losses_stay_finite_over_many_steps_in_low_precision():
    work = workload(SMALL_FC, dtype="float16", optimizer="adam")
    graph = training_graph(build(work), "adam")
    values = initial_values(graph, 0)
    updates = [op for op in graph.ops if op.part == "update"]
    losses = []
    for step in range(1, 51):
        made = execute(graph, values, [name for op in updates for name in op.outputs], step)
        for op in updates:
            values |= {old: made[new] for old, new in zip(op.inputs, op.outputs, strict=False)}
        losses.append(float(made["loss"]))
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


def test_ids_stay_below_the_table_they_index_and_labels_below_the_classes():
    work = workload("transformer:layers=1,width=8,heads=2,length=4,vocabulary=3,batch=64")
    graph = build(work)
    values = initial_values(graph, 0)
    assert set(np.unique(values["tokens"])) == {0, 1, 2}
    assert set(np.unique(values["labels"])) == {0, 1, 2}


def test_activations_stay_near_1_in_a_deep_network():
    graph = build(workload("fc:layers=64,nodes=64,inputs=64,outputs=5,batch=16", phase="infer"))
    (out,) = graph.outputs
    logits = execute(graph, initial_values(graph, 0))[out]
    assert 0.05 < float(np.sqrt((logits**2).mean())) < 20


def test_what_numpy_cannot_run_says_which():
    with pytest.raises(UnsupportedError, match="numpy has no 'float7'"):
        element_type("float7")
    work = workload(SMALL_FC)
    with pytest.raises(InputError, match="'cuda' is not available to numpy; there is: cpu"):
        prepare(build(work), work, Options(device="cuda"))
    spread = replace(work, plan=Plan(data=2))
    with pytest.raises(UnsupportedError, match="parallel plan"):
        prepare(build(work), spread, Options())

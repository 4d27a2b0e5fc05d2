"""The JAX backend: what its timing rests on, every family and phase, and what it cannot run."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from steptime.build import build
from steptime.cli.main import run
from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.workload import Plan, Workload
from steptime.measure.cell import measure_cell
from steptime.measure.contract import (
    Options,
    OutOfMemoryError,
    UnsupportedError,
    translate_backend_error,
)
from steptime.network.count import count
from steptime.network.layers.dense import classify
from steptime.network.ops.builder import Builder
from steptime.network.ops.training import training_graph
from tiny_networks import FC, TINY, workload

pytestmark = pytest.mark.jax


def prepared(work: Workload, options: Options | None = None) -> Any:
    from steptime.measure.backends.jax import backend

    return backend.prepare(build(work), work, options or Options())


def running(ready: Any) -> Any:
    """What holds the compiled step and its arrays, behind a prepared one."""
    return ready.trace.args[0]


def test_sync_waits_for_every_array_that_a_step_makes(monkeypatch):
    """Without it a step of 85 ms took 0.12 ms."""
    import jax

    waited: list[int] = []
    monkeypatch.setattr(
        jax, "block_until_ready", lambda tree: waited.extend(map(id, jax.tree.leaves(tree)))
    )
    ready = prepared(workload(FC, optimizer="adam"))
    held = running(ready)
    ready.step()
    waited.clear()
    ready.sync()
    carry = held.carry
    made = [*carry.weights.values(), *jax.tree.leaves(carry.states), carry.count]
    assert len(made) == 3 * 6 + 1  # three layers' weights and biases, and Adam's two of each
    assert {id(array) for array in (*held.results, *made)} <= set(waited)
    assert float(held.results[0]) == ready.loss()
    inference = prepared(workload(FC, phase="infer"))
    inference.step()
    inference.step()
    outputs = list(running(inference).results)
    assert len(outputs) == 2
    waited.clear()
    inference.sync()
    assert {id(array) for array in outputs} <= set(waited)


def test_a_step_gives_all_new_weights_and_so_computes_its_gradients():
    """Where only the loss was asked for, no backward pass was left: 28 ms of 85."""
    work = workload("fc:layers=2,nodes=64,inputs=32,outputs=16,batch=128", optimizer="momentum")
    graph = build(work)
    ready = prepared(work)
    compiled = running(ready).compiled
    loss, carry = compiled.out_info
    assert loss.shape == ()
    assert carry.weights.keys() == set(graph.weights)
    for name in graph.weights:
        assert carry.weights[name].shape == graph.tensors[name].shape
        assert [state.shape for state in carry.states[name]] == [graph.tensors[name].shape]
    # 2 * 128 * (32*64 + 64*64 + 64*16) forward, twice that backward but for the first layer's input
    products = 2 * 128 * (3 * (32 * 64 + 64 * 64 + 64 * 16) - 32 * 64)
    assert products <= count(training_graph(graph, "momentum")).flop < 1.1 * products
    assert 1.0 < compiled.cost_analysis()["flops"] / products < 1.1


def test_weights_and_inputs_are_arguments_not_constants():
    """Where they were closed over, a step took 2.2 ms of 85, after 128 s of compiling."""
    work = workload("fc:layers=2,nodes=64,inputs=32,outputs=16,batch=128")
    graph = build(work)
    compiled = running(prepared(work)).compiled
    text = compiled.as_text()
    entry = text[text.index("ENTRY") :]
    parameters = re.findall(r"\[([\d,]+)\].* parameter\(", entry)
    found = {tuple(map(int, dims.split(","))) for dims in parameters}
    assert {graph.tensors[name].shape for name in (*graph.weights, *graph.inputs)} <= found
    constants = re.findall(r"\[([\d,]*)\]\S* constant\(", text)
    assert max(math.prod(int(n) for n in dims.split(",") if n) for dims in constants) <= 16
    # weights are donated: their memory is that of the new ones
    size = sum(graph.tensors[name].size_bytes for name in graph.weights)
    assert compiled.memory_analysis().alias_size_in_bytes >= size


def test_types_of_64_bits_stay_so():
    ready = prepared(workload(FC, dtype="float64"))
    ready.step()
    assert ready.facts["matmul_precision"] == "highest"
    assert {w.dtype.name for w in running(ready).carry.weights.values()} == {"float64"}
    assert running(ready).inputs["labels"].dtype.name == "int64"


FAMILIES = [  # in float32, values of all are held by test_backend_values.py
    ("fc", "float32"),
    ("lstm", "float32"),
    ("encoder", "bfloat16-mixed"),
    ("cnn", "bfloat16-mixed"),
    ("decoder", "bfloat16"),
    *(
        pytest.param(network, "float32", marks=pytest.mark.rare)
        for network in ("cnn", "encoder", "decoder")
    ),
]


@pytest.mark.parametrize(("network", "dtype"), FAMILIES)
def test_jax_trains_and_infers_every_family(network, dtype):
    training = prepared(workload(TINY[network], dtype=dtype))
    training.step()
    training.sync()
    assert math.isfinite(training.loss())
    assert training.facts["compile_s"] > 0
    inference = prepared(workload(TINY[network], dtype=dtype, phase="infer"))
    inference.step()
    inference.sync()
    assert list(inference.parts) == ["forward"]


def test_the_parts_of_a_step_are_the_step():
    import numpy as np

    from steptime.measure.backends.jax import backend

    work = workload(FC, dtype="float64", optimizer="adam")  # what a step does with the graph
    b = Builder("small", precision("float64"), training=True)
    image, w = b.input("x", (3, 2, 5, 5)), b.weight("w", (4, 2, 3, 3))
    parameters = [b.weight("scale", (4,)), b.weight("shift", (4,))]
    statistics = [b.buffer("mean", (4,)), b.buffer("variance", (4,))]
    y = b.op("conv2d", image, w, name="conv")
    y = b.op("batch_norm", y, *parameters, *statistics, name="norm", training=True)
    graph = b.graph(classify(b, b.op("flatten", y, name="flat")))
    whole, apart = (backend.prepare(graph, work, Options()) for _ in range(2))
    for _ in range(2):
        whole.step()
        for part in apart.parts.values():
            part()
            apart.sync()
    assert list(apart.parts) == ["forward", "backward", "update"]
    ours, theirs = running(whole).carry, running(apart).carry
    assert int(ours.count) == int(theirs.count) == 2
    for kept in ("weights", "buffers"):
        for name, value in getattr(ours, kept).items():
            np.testing.assert_allclose(value, getattr(theirs, kept)[name], rtol=1e-9, atol=1e-12)


def test_running_statistics_follow_the_batches():
    """As torch: 0.9 of the old and 0.1 of the new, a variance over n - 1."""
    import jax
    import numpy as np

    from steptime.measure.backends.jax.kinds import RUNS

    x = np.random.default_rng(1).standard_normal((6, 2, 3, 3))
    mean, variance, ones = np.zeros(2), np.ones(2), np.ones(2)
    _, new_mean, new_variance = jax.jit(RUNS["batch_norm"])(x, ones, mean, mean, variance)
    np.testing.assert_allclose(new_mean, 0.1 * x.mean((0, 2, 3)))
    np.testing.assert_allclose(new_variance, 0.9 + 0.1 * x.var((0, 2, 3), ddof=1))


def test_dropout_draws_another_mask_in_each_step():
    import jax
    import numpy as np

    from steptime.measure.backends.jax.kinds import RUNS

    x = np.ones((50, 50))
    first, again, second = (
        np.asarray(RUNS["dropout"](x, jax.random.key(seed), 0.25)) for seed in (1, 1, 2)
    )
    assert sorted(set(first.ravel())) == [0.0, pytest.approx(4 / 3)]
    assert 0.7 < (first > 0).mean() < 0.8
    assert (first == again).all()
    assert (first != second).any()
    ready = prepared(workload(TINY["encoder"]))
    losses = []
    for _ in range(2):
        ready.step()
        losses.append(ready.loss())
    assert losses[0] != losses[1]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "rmsprop", "adam", "adamw"])
def test_jax_moves_weights_in_half_precision(optimizer):
    import jax
    import numpy as np

    ready = prepared(workload(FC, dtype="float16", optimizer=optimizer))
    for _ in range(3):
        ready.step()
    leaves = jax.tree.leaves((running(ready).carry.weights, running(ready).carry.states))
    assert {leaf.dtype.name for leaf in leaves} == {"float16"}
    assert all(np.isfinite(np.asarray(leaf, np.float32)).all() for leaf in leaves)


def test_a_trace_names_the_ops_of_the_network():
    from steptime.records.traces.trace import build_profile
    from steptime.records.traces.trace_events import read_events

    work = workload("fc:layers=2,nodes=256,inputs=256,outputs=64,batch=64")
    ready = prepared(work)
    ready.step()
    profile = build_profile(read_events(ready.trace(3)))
    assert len(profile.step_s) == 3
    passes = {(part.scope, part.pass_) for part in profile.seconds_by_part}
    assert {(f"{name}/linear", "forward") for name in ("fc1", "fc2")} <= passes
    assert {(f"{name}/linear", "backward") for name in ("fc2", "output")} <= passes
    assert ("optimizer", "update") in passes
    for step, whole in enumerate(profile.step_s):
        assert sum(seconds[step] for seconds in profile.seconds_by_part.values()) <= whole * (
            1 + 1e-6
        )


@pytest.mark.parametrize(
    ("scope", "names"),
    [
        ("jit(step)/jvp(block1/fc1)/dot_general", ("block1/fc1",)),
        ("jit(step)/transpose(jvp(fc1))/mul", ("autograd::engine::evaluate_function: fc1", "fc1")),
        ("jit(step)/transpose(jvp(rnn1))/while/body/dot", None),
        ("jit(step)/optimizer/sub", ("Optimizer.step",)),
        ("jit(network)/block1/fc1/dot_general", ("block1/fc1",)),  # inference is not differentiated
        ("jit(network)/other/mul", ()),
        ("", ()),
    ],
)
def test_the_scope_of_an_instruction_names_its_op(scope, names):
    from steptime.measure.backends.jax.profile import names_of

    found = names_of(scope, ["fc1", "block1/fc1", "rnn1"])
    assert found == names if names is not None else found[-1] == "rnn1"


def test_what_xla_plans_is_no_measured_memory():
    from steptime.measure.backends.jax import backend

    work = workload("fc:layers=2,nodes=64,inputs=32,outputs=16,batch=128")
    ready = prepared(work)
    ours = count(training_graph(build(work), "sgd")).peak_bytes
    # updates are made as gradients come; temporaries are packed
    assert 0.5 < ready.planned_bytes / ours < 1.5
    assert ready.memory() == (None, "JAX tells no peak that is this network's")
    request = {"timing": {"budget_s": 0.01}, "parts": False, "energy": False}
    found = measure_cell(backend, work, Options(threads=1), request, lambda *_, **__: None)
    assert found.quantities["planned_memory_bytes"].value == ready.planned_bytes
    assert "peak_bytes" not in found.quantities


def test_what_jax_does_not_run_is_named():
    from steptime.measure.backends.jax import backend

    with pytest.raises(InputError, match=r"'cuda' is not available to jax; there is: cpu$"):
        backend.device_facts("cuda")
    for wrong in ("gpu", "cpu:1", "mps", "cuda:x", "tpu:0"):
        with pytest.raises(InputError, match=r"is not available to jax; there is: cpu"):
            backend.device_facts(wrong)
    with pytest.raises(UnsupportedError, match="parallel plan"):
        prepared(replace(workload(FC), plan=Plan(tensor=2)))
    with pytest.raises(UnsupportedError, match="train in bfloat16-mixed"):
        prepared(workload(FC, dtype="float16-mixed"))
    with pytest.raises(UnsupportedError, match="leave out --compile"):
        prepared(workload(FC), Options(compile=True))
    assert not backend.device_facts("cpu").is_accelerator


def test_too_large_a_network_is_out_of_memory_for_jax():
    # 4 * (2e7)^2 = 1.6e15 bytes are beyond the 1.4e14 that a process can address
    from steptime.measure.backends.jax import backend

    with pytest.raises((RuntimeError, MemoryError)) as raised:
        prepared(workload("fc:layers=1,nodes=20000000,inputs=20000000,outputs=2,batch=1"))
    assert isinstance(
        translate_backend_error(backend, raised.value), OutOfMemoryError | MemoryError
    )


def test_xla_errors_are_named_as_what_they_mean():
    import jax

    from steptime.measure.backends.jax import backend

    for text, kind in (
        ("RESOURCE_EXHAUSTED: Out of memory allocating 7 bytes.", OutOfMemoryError),
        ("UNIMPLEMENTED: no such thing", UnsupportedError),
        ("INTERNAL: other", jax.errors.JaxRuntimeError),
    ):
        assert isinstance(translate_backend_error(backend, jax.errors.JaxRuntimeError(text)), kind)


def test_input_from_the_host_is_copied_before_each_step():
    ready = prepared(workload(FC), Options(input="host"))
    before = running(ready).inputs["input"]
    ready.step()
    ready.sync()
    assert running(ready).inputs["input"] is not before
    assert ready.waited is not None
    assert ready.waited() > 0


@pytest.mark.slow
def test_a_worker_profiles_a_step_by_op(capsys):
    words = "run fc:layers=2,nodes=64,batch=8 --backend jax --budget 0.2 --profile --json"
    assert run(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["method"]["name"] == "jax"
    assert found["env"]["compile_s"] > 0
    assert found["env"]["framework"].startswith("jax ")
    assert {"linear", "cross_entropy"} <= {row["name"] for row in found["breakdown"]}


@pytest.mark.slow
def test_a_worker_refuses_what_jax_does_not_run_in_one_line(capsys):
    for words, code, said in (
        ("run fc --backend jax --device tpu", 2, "'tpu' is not available to jax; there is: cpu"),
        ("run fc --backend jax --compile", 2, "--compile is for torch: jax decides by itself"),
    ):
        assert run(words.split()) == code
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1

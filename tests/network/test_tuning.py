"""Fine-tuning as a change of the graph: what is trained, what it costs, what lives."""

from __future__ import annotations

import math

import pytest

from every import every
from steptime.build import build, build_step, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.graph import Graph, check
from steptime.core.tuning import make_tuning
from steptime.core.workload import Tuning, Workload, workload_from_json, workload_to_json
from steptime.network.count import count, peak_bytes

FC = "fc:layers=1,nodes=32,inputs=16,outputs=8"  # two products: 16 -> 32 -> 8
DECODER = (
    "transformer:kind=decoder,layers=2,width=64,heads=4,ffn=128,length=32,vocabulary=96,"
    "norm=rms,activation=swiglu,positions=rotary"
)


def _workload(text: str = FC, batch: int = 4, dtype: str = "bfloat16", **how: object) -> Workload:
    tuning = Tuning(**how)  # type: ignore[arg-type]
    return make_workload(read_model(text), batch, dtype=dtype, optimizer="adam", tuning=tuning)


def test_lora_trains_two_small_matrices_beside_each_product():
    graph = build(_workload(rank=3, on="all"))
    check(graph)
    assert graph.parameters == 3 * (16 + 32) + 3 * (32 + 8)
    assert all("lora" in name for name in graph.weights)
    assert set(graph.frozen) == set(build(_workload()).weights)


def test_a_frozen_product_keeps_its_data_gradient_and_loses_that_of_its_weight():
    step = build_step(_workload(rank=3, on="all"))
    check(step)
    made = [op for op in step.ops if op.kind == "matmul" and op.part == "backward"]
    of_frozen = [op for op in made if "lora" not in op.forward_op]
    # before the first product nothing is trained
    assert [op.name for op in of_frozen] == ["output/linear/grad_input"]
    assert len(made) - 1 == 4 + 3  # of the adapters' weights; data, but before the first
    rows = {row.name: row.flop for row in count(step).ops}
    assert rows["output/linear/grad_input"] == 2 * 4 * 32 * 8
    assert rows["fc1/linear/lora_down"] == 2 * 4 * 16 * 3
    assert rows["fc1/linear/lora_up"] == 2 * 4 * 3 * 32
    updates = {op.inputs[0] for op in step.ops if op.part == "update"}
    assert updates == set(step.weights)


def test_the_adapters_of_llama_2_are_as_many_as_published():
    """LitGPT's tables, r = 8 beside queries and values."""
    for name, trained in (("llama2_7b", 4_194_304), ("llama2_13b", 6_553_600)):
        assert build(_workload(name, 1, rank=8, on="q+v")).parameters == trained


@every(
    ("on", "products"),
    [("attention", 4), ("linear", 7), ("q+v", 2), ("down", 1)],
)
def test_where_adapters_stand(on, products):
    graph = build(_workload(DECODER, 2, rank=2, on=on))
    check(graph)
    assert len(graph.weights) == 2 * 2 * products  # two layers, two matrices
    assert not any("output" in name for name in graph.weights)
    everywhere = build(_workload(DECODER, 2, rank=2, on="all"))
    assert len(everywhere.weights) == 2 * (2 * 7 + 1)  # and the head's


@pytest.mark.parametrize(
    ("weights", "bits"), [("nf4", 4 + 32 / 64), ("nf4-dq", 4 + 8 / 64 + 32 / (64 * 256))]
)
def test_frozen_weights_of_few_bits_are_held_as_such(weights, bits):
    text = DECODER.replace("layers=2", "layers=40").replace("width=64", "width=256")
    whole = build(_workload(text, 1, rank=2, on="q+v"))
    few = build(_workload(text, 1, rank=2, on="q+v", weights=weights))
    check(few)

    def held(graph: Graph) -> int:
        return sum(graph.tensors[name].size_bytes for name in (*graph.weights, *graph.frozen))

    products = sum(
        whole.tensors[name].size for name in whole.frozen if few.tensors[name].dtype == "int4"
    )
    assert products == 40 * (4 * 256 * 256 + 3 * 256 * 128)
    saved = products * (16 - bits) / 8
    assert held(whole) - held(few) == pytest.approx(saved, rel=1e-4)


def test_what_is_made_wide_is_made_again_for_the_gradient_and_does_not_live_between():
    text = DECODER.replace("layers=2", "layers=24").replace("width=64", "width=256")
    text = text.replace("length=32", "length=2")  # weights are most of what lives
    few = build_step(_workload(text, 1, rank=2, on="q+v", weights="nf4"))
    check(few)
    wide = [op for op in few.ops if op.kind == "cast" and op.inputs[0] in few.frozen]
    forward = [op for op in wide if op.part == "forward"]
    assert len(forward) == 24 * 7
    assert len(wide) - len(forward) == 24 * 7 - 3  # below the first adapters nothing is asked for
    all_wide = sum(few.tensors[op.outputs[0]].size_bytes for op in forward)
    whole = build_step(_workload(text, 1, rank=2, on="q+v"))
    assert peak_bytes(few) < peak_bytes(whole) - 0.6 * all_wide


def test_what_is_not_trained_needs_no_state():
    all_of_it, only_norms = (
        build_step(_workload(DECODER, 2, train=train)) for train in ("*", "*norm*")
    )
    assert only_norms.parameters == 5 * 64
    state = [name for name in only_norms.buffers if "adam" in name]
    assert len(state) == 2 * 5
    assert peak_bytes(only_norms) < peak_bytes(all_of_it)


def test_lora_and_norms_together():
    graph = build(_workload(DECODER, 2, rank=2, on="q+v", train="*norm*"))
    assert graph.parameters == 5 * 64 + 2 * 2 * 2 * (64 + 64)


def test_mixed_precision_keeps_adapters_wide():
    graph = build(_workload(FC, 4, "bfloat16-mixed", rank=3, on="all"))
    check(graph)
    assert {graph.tensors[name].dtype for name in graph.weights} == {"float32"}
    few = build(_workload(FC, 4, "bfloat16-mixed", rank=3, on="all", weights="int8"))
    check(few)
    read = {name for op in few.ops for name in op.inputs}
    assert not any(op.kind == "cast" and op.outputs[0] not in read for op in few.ops)


def test_a_workload_says_it_and_comes_back():
    workload = _workload(rank=4, on="linear", weights="nf4-dq", dropout=0.1)
    table = workload_to_json(workload)
    assert table["tuning"] == {"rank": 4, "on": "linear", "weights": "nf4-dq", "dropout": 0.1}
    assert workload_from_json(table) == workload
    assert "tuning" not in workload_to_json(_workload())
    assert workload.key != _workload().key


@every(
    ("how", "says"),
    [
        ({"rank": -1}, "r is at least 1"),
        ({"rank": 2, "weights": "nf5"}, "unknown weights 'nf5'; known: nf4, nf4-dq, "),
        ({"weights": "nf4"}, "of frozen weights"),
        ({"rank": 2, "dropout": 1.0}, "below 1"),
    ],
)
def test_a_fine_tuning_that_there_is_not_is_said(how, says):
    with pytest.raises(InputError, match=says.replace("?", r"\?")):
        Tuning(**how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "says"),
    [({"rank": 2, "on": "queries"}, "has no such product"), ({"train": "nothing*"}, "no weight")],
)
def test_nothing_to_train_is_said(how, says):
    with pytest.raises(InputError, match=says):
        build(_workload(DECODER, 2, **how))


@every(
    ("lora", "wanted"),
    [
        ("16", Tuning(rank=16)),
        ("r=8,on=q+v", Tuning(rank=8, on="q+v")),
        ("on=all,r=4,dropout=0.05", Tuning(rank=4, on="all", dropout=0.05)),
        ("on=linear", Tuning(rank=16, on="linear")),
    ],
)
def test_lora_as_text(lora, wanted):
    assert make_tuning(lora) == wanted


@every(
    ("lora", "says"),
    [
        ("r=0", "--lora r: must be at least 1, not 0"),
        ("rank=8", "unknown key 'rank'"),
        ("r=8,dropout=2", "at most 0.99"),
        ("r=8,r=9", "--lora 'r' is given twice"),
        ("r=", "is not of the form NAME=VALUE"),
    ],
)
def test_lora_that_is_none(lora, says):
    with pytest.raises(InputError) as error:
        make_tuning(lora)
    assert says in str(error.value)


@pytest.mark.framework
def test_torch_trains_the_adapters_alone_and_their_gradients_are_those_of_autograd():
    """The network written by hand: x W^T + 2 (x A^T) B^T, ReLU between, cross-entropy."""
    import torch
    from torch.nn import functional as f

    from steptime.core.dtypes import precision
    from steptime.measure.backends.torch.module import initial_values, module_of

    graph = build(_workload(FC, 4, "float64", rank=3, on="all"))
    values = initial_values(graph, torch.device("cpu"), 0)
    module = module_of(graph, values, precision("float64"))
    loss = module(*(values[name] for name in graph.inputs))
    loss.backward()
    by_kind = {name: values[name] for name in graph.tensors if name in values}
    assert all(by_kind[name].grad is not None for name in graph.weights)
    assert not any(getattr(by_kind[name], "grad", None) is not None for name in graph.frozen)

    def product(x: torch.Tensor, name: str) -> torch.Tensor:
        path = f"{name}/linear"
        w, a, b = (by_kind[one] for one in (f"{name}/w", f"{path}/lora_a", f"{path}/lora_b"))
        return x @ w.T + 2 * (x @ a.T) @ b.T + by_kind[f"{name}/b"]

    first, last = (name.removesuffix("/w") for name in graph.frozen if name.endswith("/w"))
    x, labels = (by_kind[name] for name in graph.inputs)
    wanted = f.cross_entropy(product(torch.relu(product(x, first)), last), labels)
    assert math.isclose(loss.item(), wanted.item(), rel_tol=1e-12)
    grads = torch.autograd.grad(wanted, [by_kind[name] for name in graph.weights])
    for name, grad in zip(graph.weights, grads, strict=True):
        assert torch.allclose(by_kind[name].grad, grad, rtol=1e-9, atol=1e-12)

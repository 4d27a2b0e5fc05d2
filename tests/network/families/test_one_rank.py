"""The graph of one rank of a transformer, whose plan the builder knows."""

import pytest

from steptime.core.dtypes import precision
from steptime.core.graph import Graph
from steptime.core.workload import Plan
from steptime.network.families import family
from steptime.network.families.family import resolve
from steptime.network.layers.designs import BlockDesign
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError
from steptime.network.ops.training import training_graph

SIZES = {"layers": 1, "width": 64, "heads": 8, "kv_heads": 2, "length": 32, "vocabulary": 1000}


def rank(plan: Plan, designs: tuple[BlockDesign, ...] = (), **more: object) -> Graph:
    of = family("transformer")
    b = Builder("rank", precision("bfloat16"), training=True, plan=plan)
    settings = {**resolve(of, {**SIZES, **more}), **({"designs": designs} if designs else {})}
    return training_graph(b.graph(of.build(b, settings, 2)), "adam")


def exchanges(graph: Graph, part: str) -> list[tuple[str, tuple[int, ...]]]:
    found = [op for op in graph.ops if op.part == part and "ranks" in op.attrs]
    return [(op.kind, graph.tensors[op.inputs[0]].shape) for op in found if "block" in op.name]


def test_a_tensor_parallel_rank_adds_up_twice_a_layer_in_both_passes():
    graph = rank(Plan(tensor=4))
    whole = ("all_reduce", (2, 32, 64))  # 2 T h bytes, T = 2 x 32
    assert exchanges(graph, "forward") == [whole, whole]
    assert exchanges(graph, "backward") == [whole, whole]
    assert graph.tensors["block1/attention/q/w"].shape == (16, 64)  # 8 / 4 heads of 8
    assert graph.tensors["block1/attention/k/w"].shape == (8, 64)  # 2 heads, copied to pairs
    assert graph.tensors["block1/ffn/up/w"].shape == (64, 64)  # 256 / 4
    assert graph.tensors["embedding/w"].shape == (256, 64)  # 1000 padded to 1024, / 4


def test_with_sequence_parallel_it_gathers_and_scatters():
    graph = rank(Plan(tensor=4, sequence=True))
    part, whole = ("all_gather", (2, 8, 64)), ("reduce_scatter", (2, 32, 64))
    assert exchanges(graph, "forward") == [part, whole] * 2
    assert exchanges(graph, "backward") == [part, whole] * 2
    assert graph.tensors["block1/norm1/layer_norm"].shape == (2, 8, 64)


def test_a_context_rank_gathers_keys_and_values():
    graph = rank(Plan(tensor=2, context=4), positions="rotary")
    gathers = [op for op in graph.ops if op.kind == "all_gather"]
    assert [(op.attrs["ranks"], op.attrs["stride"]) for op in gathers] == [(4, 2)] * 2
    assert graph.tensors["block1/attention/gather_k"].shape == (2, 32, 8)  # 2 / 2 heads of 8
    assert graph.tensors["block1/attention/attention"].shape == (2, 8, 32)


def test_a_context_rank_gates_all_heads_of_its_tokens():
    plan = Plan(context=2, context_method="all-to-all")
    graph = rank(plan, (BlockDesign(gate_per_head=True),), attention_gate=True)
    # the exchange after attention has brought back all 8 heads, of 16 of the 32 tokens
    assert graph.tensors["block1/attention/gate/w"].shape == (8, 64)
    assert graph.tensors["block1/attention/gated"].shape == (2, 16, 8, 8)


def test_a_plan_of_one_device_changes_nothing():
    assert not [op for op in rank(Plan()).ops if "ranks" in op.attrs]


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(tensor=3), "8 heads do not divide into tensor 3"),
        (Plan(context=5), "32 tokens do not divide among the ranks of a sequence"),
    ],
)
def test_what_does_not_divide_is_said(plan, said):
    with pytest.raises(ShapeError, match=said):
        rank(plan)

"""One rank's graph of a fully sharded step: exchanges as ops, priced as `scale` prices a ring."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from every import every
from steptime.build import build_step, make_workload, read_model
from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph, TensorSpec, check, freeze_attrs
from steptime.core.workload import Plan, Workload
from steptime.grids.replicas import data_parallel
from steptime.hardware import catalog
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Cluster, Device, Link
from steptime.network.count import peak_bytes
from steptime.network.families import family
from steptime.network.families.family import resolve
from steptime.network.ops import exchanged_of, outputs_of
from steptime.network.ops.builder import Builder
from steptime.network.ops.ranks import rank_graph
from steptime.network.ops.training import training_graph
from steptime.prediction.fabric import fabric_of_group
from steptime.prediction.steps.step_model import StepModel

TOY = Device(
    "toy", "gpu", Datasheet({"float32": 1e12}, 1e11, "made up for this test", launch_s=1e-6)
)
NEAR = Link("near", 1e-6, 1e10, "made up for this test")
FAR = Link("far", 1e-5, 1e9, "made up for this test")
FARTHEST = Link("farthest", 1e-4, 1e8, "made up for this test")
CLUSTERS = [
    Cluster(TOY, ((4, NEAR),)),
    Cluster(TOY, ((4, NEAR), (3, FAR, 2))),
    Cluster(TOY, ((2, NEAR), (2, FAR), (2, FARTHEST))),
]
NETS = ["fc:layers=1,nodes=4,inputs=3,outputs=2", "fc:layers=4,nodes=2048,inputs=512,outputs=1000"]


START_S = 4e-5  # of an exchange under torch-eager, beside its messages


def workload(net: str = NETS[1], optimizer: str = "adam", batch: int = 32) -> Workload:
    return make_workload(read_model(net), batch, optimizer=optimizer)


def by_ops(work: Workload, cluster: Cluster, graph: Graph, overlap: bool, **options: Any) -> Any:
    model = StepModel(work, cluster.device, cluster, graph=graph, overlap=overlap, **options)
    return model.timeline()


@every("cluster", CLUSTERS, ids=lambda cluster: f"{cluster.device_count} devices")
def test_shards_exchange_as_much_and_update_a_share(cluster):
    """Scattering gradients and gathering weights are the two halves of a ring."""
    n, work = cluster.device_count, workload()
    model = StepModel(work, TOY, fabric_of_group(cluster, range(n)))
    (plain,) = data_parallel(model, [n], 32)
    graph = rank_graph(build_step(work), n, inf)
    step = by_ops(work, cluster, graph, False)
    ring = plain.communication_s["ring"] + START_S  # each half starts by itself
    assert step.exchange_s == pytest.approx(ring, rel=1e-9)
    assert step.forward_s + step.backward_s == pytest.approx(plain.forward_s + plain.backward_s)
    assert step.update_s == pytest.approx(plain.update_s / n, rel=0.05)  # rows in whole shards
    by_hand = step.forward_s + step.backward_s + step.update_s + ring
    assert step.step_s == pytest.approx(by_hand, rel=1e-9)


def test_a_bucket_is_gathered_while_the_one_before_is_used():
    cluster, work = CLUSTERS[0], workload()
    graph = rank_graph(build_step(work), 4)
    kinds = [op.kind for op in graph.ops if op.kind in ("all_gather", "reduce_scatter")]
    assert kinds.count("all_gather") == 2 * kinds.count("reduce_scatter") == 4
    apart, beside = (by_ops(work, cluster, graph, overlap) for overlap in (False, True))
    assert beside.exchange_s == apart.exchange_s
    assert beside.exposed_s < apart.exposed_s
    size = StepModel(work, TOY).gradient_bytes  # weights gathered twice, gradients scattered once
    by_hand = 6 * START_S + 2 * 3 * 3 * 1e-6 + 3 * size * 3 / 4 / 1e10 + 3 * size * 3 / 4 / 1e11
    assert apart.exchange_s == pytest.approx(by_hand, rel=1e-9)


def states(work: Workload, graph: Graph) -> int:
    """Bytes of weights, gradients and optimizer states that live throughout the step."""
    return sum(graph.tensors[name].size_bytes for name in {*graph.weights, *graph.buffers})


def test_sharded_states_are_a_share_of_the_memory():
    """Weights, gradients and the two states of Adam: (4 + 4 + 8) P bytes in float32, over N."""
    work = workload(batch=1)
    whole = build_step(work)
    parameters = whole.parameters
    assert states(work, whole) == pytest.approx(12 * parameters, rel=1e-3)
    for n in (4, 16):
        graph = rank_graph(whole, n)
        assert states(work, graph) == pytest.approx(12 * parameters / n, rel=2e-3)
        assert peak_bytes(graph) < peak_bytes(whole) / 1.5


@every("net", [*NETS, "resnet18", "transformer:layers=1,length=16", "gpt2"])
def test_a_rank_runs_in_order_with_the_shapes_of_its_kinds(net):
    work = workload(net, "momentum", 1)
    whole = build_step(work)
    graph = rank_graph(whole, 3)
    check(graph)
    for op in graph.ops:
        specs = tuple(graph.tensors[name] for name in op.inputs)
        made = outputs_of(op.kind, specs, freeze_attrs(op.attrs))
        assert tuple(graph.tensors[name] for name in op.outputs)[: len(made)] == made
    moved = {"all_gather": 0, "reduce_scatter": 0}
    for op in graph.ops:
        if op.kind in moved:
            specs = tuple(graph.tensors[name] for name in op.inputs)
            moved[op.kind] += exchanged_of(op.kind, specs, op.settings) or 0
    size = sum(whole.tensors[op.inputs[-1]].size_bytes for op in whole.ops if op.part == "update")
    assert moved["reduce_scatter"] == size
    assert moved["all_gather"] in {size, 2 * size}
    assert work.key == workload(net, "momentum", 1).key


def test_a_group_with_a_stride_shares_the_links_of_its_node():
    """Rank 0, 4, 8, ... of nodes of 4: four groups at once over the node's links."""
    cluster, work = Cluster(TOY, ((4, NEAR), (3, FAR))), workload()
    graph = rank_graph(build_step(work), 3, inf)
    ops = tuple(
        op
        if op.kind not in ("all_gather", "reduce_scatter")
        else type(op)(
            op.name,
            op.kind,
            op.inputs,
            op.outputs,
            {**op.attrs, "stride": 4},
            op.part,
            op.forward_op,
        )
        for op in graph.ops
    )
    spread = Graph(
        graph.name, graph.tensors, ops, graph.inputs, graph.weights, graph.outputs, graph.buffers
    )
    size = StepModel(work, TOY).gradient_bytes
    step = by_ops(work, cluster, spread, False)
    ring = 2 * START_S + 4 * (1e-5 + size / 3 * 4 / 1e9) + 3 * size * 2 / 3 / 1e11
    assert step.exchange_s == pytest.approx(ring)


def test_a_weight_without_an_axis_is_refused():
    graph = build_step(workload(NETS[0]))
    weight = graph.weights[0]
    scalar = replace(graph, tensors={**graph.tensors, weight: TensorSpec((), "float32")})
    with pytest.raises(InputError, match=f"weight '{weight}' has no axis to shard"):
        rank_graph(scalar, 2)


def test_ranks_need_a_link():
    work = workload(NETS[0])
    graph = rank_graph(build_step(work), 2)
    with pytest.raises(InputError, match="2 replicas need a link"):
        StepModel(work, TOY, None, graph=graph).timeline()


def test_links_of_the_catalog():
    """64 H100 in nodes of 8, each with a link of its own between the nodes."""
    nvlink, infiniband = catalog.link("nvlink-4"), catalog.link("infiniband-ndr")
    cluster = Cluster(catalog.device("h100"), ((8, nvlink), (8, infiniband, 8)))
    work = make_workload(read_model("gpt2"), 4, "bfloat16-mixed", optimizer="adam")
    graph = rank_graph(build_step(work), 64)
    step = StepModel(work, cluster.device, cluster, graph=graph).timeline()
    assert 0 < step.exposed_s < step.exchange_s


def test_a_rank_whose_sums_are_ops_adds_them_up_by_rings():
    """Four tensor-parallel ranks: 2 x 3 messages of a quarter, three quarters read and added."""
    of, cluster = family("transformer"), CLUSTERS[0]
    builder = Builder("rank", precision("float32"), training=True, plan=Plan(tensor=4))
    sizes = resolve(of, {"layers": 1, "width": 64, "heads": 8, "length": 32, "vocabulary": 1000})
    graph = training_graph(builder.graph(of.build(builder, sizes, 2)), "sgd")
    step = by_ops(workload(), cluster, graph, False)
    sums = [graph.tensors[op.inputs[0]].size_bytes for op in graph.ops if op.kind == "all_reduce"]
    assert len(sums) >= 4
    assert {op.kind for op in graph.ops if "ranks" in op.attrs} == {"all_reduce"}
    rings = [START_S + 6 * (1e-6 + size / 4 / 1e10) + 3 * size * 3 / 4 / 1e11 for size in sums]
    assert [step.exchange_s, step.exposed_s] == pytest.approx([sum(rings)] * 2)

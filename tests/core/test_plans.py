"""Plans, clusters of several levels, and what ranks exchange as ops of a graph."""

from __future__ import annotations

import pytest

from every import every
from steptime.core.copying import replace
from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import Attr, TensorSpec, check, freeze_attrs
from steptime.core.workload import Plan, Workload, workload_from_json, workload_to_json
from steptime.hardware import catalog
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Cluster, Device, Level, Link
from steptime.network.count import count
from steptime.network.ops import OPS, exchanged_of, outputs_of
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError
from steptime.network.ops.training import training_graph
from steptime.planning.pipelines.stages import rank_groups
from steptime.prediction.collectives import COLLECTIVES, EXCHANGES
from steptime.prediction.fabric import Fabric, fabric_of_group

TOY = Device("toy", "gpu", Datasheet({"float32": 1e9}, 1e9, "made up for this test"))
NEAR = Link("near", 1e-6, 1e9, "made up for this test")
FAR = Link("far", 1e-5, 1e8, "made up for this test")
FARTHEST = Link("farthest", 1e-4, 1e7, "made up for this test")
HALL = Cluster(TOY, ((4, NEAR), (8, FAR, 2), (3, FARTHEST)))


def test_a_cluster_says_which_link_a_group_crosses():
    assert HALL.device_count == 4 * 8 * 3
    assert HALL.ladder[1] == Level(8, FAR, 2)
    for ranks, link in (
        ([5], None),
        ([0, 3], NEAR),
        ([3, 4], FAR),  # the last device of one node and the first of the next
        ([4, 5, 6, 7], NEAR),
        (range(32), FAR),
        ([31, 32], FARTHEST),
        (range(0, 96, 32), FARTHEST),
    ):
        assert HALL.link_of(ranks) == link, ranks
    assert Cluster(TOY).device_count == 1
    assert Cluster(TOY).link_of([0]) is None


def test_groups_share_the_links_of_their_node():
    """Nodes of 4 over two links each; 3 halls of 8 nodes over one."""
    assert fabric_of_group(HALL, [5]) is None
    assert fabric_of_group(HALL, range(4)) == Fabric(NEAR, per_node=1)
    whole = Fabric(FAR, NEAR, per_node=4, links_per_node=2)  # 8 nodes with all their devices
    assert fabric_of_group(HALL, range(32)) == whole
    alone = Fabric(FAR, None, per_node=1, links_per_node=2, groups=4)  # one device of each node
    assert fabric_of_group(HALL, range(1, 33, 4)) == alone
    halls = Fabric(FARTHEST, alone, per_node=8, links_per_node=1, groups=4)
    assert fabric_of_group(HALL, range(0, 96, 4)) == halls
    # four rings at once over two links: a message of 1/8 of the bytes goes at half a link's rate
    seconds = COLLECTIVES["ring"](8e6, 8, alone)
    assert seconds == pytest.approx(14 * (1e-5 + 1e6 * 4 / 2 / 1e8))


def test_wrong_clusters_and_ranks():
    with pytest.raises(InputError, match="the cluster has ranks 0 to 95, not 96"):
        HALL.link_of([0, 96])
    with pytest.raises(InputError, match="at least 1 part and link, not 0"):
        Cluster(TOY, ((4, NEAR), (0, FAR)))


def test_an_old_plan_keeps_its_key():
    old = Workload("fc", {"layers": 4}, 64, plan=Plan(data=2))
    assert workload_to_json(old)["plan"] == {"data": 2, "tensor": 1, "pipeline": 1}
    assert old.key == "e2beb66ca8237f6e"  # as 0.4 wrote it
    assert workload_from_json(workload_to_json(old)) == old
    new = replace(old, plan=Plan(data=2, zero=3, recompute="full"))
    assert workload_to_json(new)["plan"].items() >= {"zero": 3, "recompute": "full"}.items()
    assert workload_from_json(workload_to_json(new)) == new
    assert new.key != old.key


def test_groups_of_a_plan():
    assert Plan(data=3, tensor=4, pipeline=2, context=2).device_count == 48
    found = rank_groups((4, 2, 3, 2), 1, 1)  # tensor, context, data, pipeline
    assert found.tensor == range(4)
    assert found.context == range(0, 8, 4)
    assert list(found.replicas) == [0, 4, 8, 12, 16, 20]
    assert found.pipeline == range(0, 48, 24)


@every(
    ("wrong", "says"),
    [
        ({"data": 0}, "plan: data must be at least 1, not 0"),
        ({"zero": 4}, "plan: unknown zero '4'; known: 0, 1, 2, 3"),
        ({"schedule": "1f1"}, "plan: unknown schedule '1f1'; did you mean '1f1b'?"),
        ({"shard": -1}, "plan: shard, recompute_layers and stages are at least 0, not -1"),
        ({"context_method": "rings"}, "unknown context_method 'rings'; did you mean 'ring'?"),
    ],
)
def test_wrong_plans(wrong, says):
    with pytest.raises(InputError) as error:
        Plan(**wrong)  # type: ignore[arg-type]
    assert says in str(error.value)


def outputs(kind: str, shape: tuple[int, ...], **attrs: Attr) -> list[tuple[int, ...]]:
    made = outputs_of(kind, (TensorSpec(shape),), freeze_attrs(attrs))
    return [spec.shape for spec in made]


def test_shapes_and_bytes_of_exchanges_by_hand():
    assert outputs("all_gather", (2, 5), ranks=4) == [(8, 5)]
    assert outputs("all_gather", (2, 5), ranks=4, lengths=(7,)) == [(7, 5)]
    assert outputs("all_gather", (2, 5), ranks=4, axis=1) == [(2, 20)]
    assert outputs("reduce_scatter", (7, 5), ranks=4) == [(2, 5)]
    assert outputs("all_to_all", (8, 3), ranks=4, split=0, join=1) == [(2, 12)]
    spec = (TensorSpec((2, 5), "float16"),)
    assert exchanged_of("all_gather", spec, freeze_attrs({"ranks": 4})) == 2 * 40
    assert exchanged_of("all_gather", spec, freeze_attrs({"ranks": 4, "lengths": (7,)})) == 2 * 35
    assert exchanged_of("reduce_scatter", spec, freeze_attrs({"ranks": 4})) == 2 * 10
    assert exchanged_of("all_reduce", (*spec, *spec), freeze_attrs({"ranks": 4})) == 2 * 20
    assert exchanged_of("linear", spec) is None


@every(
    ("kind", "shape", "attrs", "says"),
    [
        ("all_gather", (2, 5), {"ranks": 4, "lengths": (9,)}, "9 is not shared by 4 as"),
        ("all_gather", (2, 5), {"ranks": 4, "lengths": (7, 7)}, "2 lengths of 1 tensors"),
        ("reduce_scatter", (2, 5), {"ranks": 0}, "a group of 0 ranks"),
        ("reduce_scatter", (2,), {"ranks": 2, "axis": 1}, "axis 1 of"),
        ("all_to_all", (7, 3), {"ranks": 4, "split": 0, "join": 1}, "in 4 parts"),
    ],
)
def test_exchanges_that_do_not_fit(kind, shape, attrs, says):
    with pytest.raises(ShapeError, match=says):
        outputs(kind, shape, **attrs)


def test_gathering_weights_scatters_their_gradients():
    """A layer whose weight [6, 8] lies in three shards: its gradient is scattered again."""
    b = Builder("sharded", precision("float32"), training=True)
    x, shard = b.input("x", (5, 6)), b.weight("w", (2, 8))
    whole = b.op("all_gather", shard, name="gather", ranks=3)
    graph = training_graph(
        b.graph(b.op("mean", b.op("matmul", x, whole, name="y"), name="loss")), "sgd"
    )
    check(graph)
    (scatter,) = (op for op in graph.ops if op.kind == "reduce_scatter")
    assert (scatter.part, scatter.forward_op) == ("backward", "gather")
    assert graph.tensors[scatter.outputs[0]].shape == (2, 8)
    (update,) = (op for op in graph.ops if op.part == "update")
    assert update.inputs == ("w", scatter.outputs[0])
    found = {op.name: op.flop for op in count(graph).ops}
    assert found["gather"] == found[scatter.name] == 0


def test_every_exchange_has_a_price_and_no_flop():
    kinds = {kind for kind, row in OPS.items() if row.exchanged}
    assert kinds == {"all_reduce", *EXCHANGES}
    for kind in kinds:
        example = OPS[kind].example
        assert OPS[kind].flop(*example.specs, **example.attrs) == 0
        assert OPS[kind].gradient is not None


def test_links_of_the_catalog_make_a_cluster():
    levels = ((8, catalog.link("nvlink-3")), (16, catalog.link("infiniband-hdr")))
    cluster = Cluster(catalog.device("a100 80gb"), levels)
    assert cluster.device_count == 128
    link = cluster.link_of(rank_groups((8, 1, 16, 1), 1, 1).replicas)
    assert link is not None
    assert link.name == "infiniband-hdr"

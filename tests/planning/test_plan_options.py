"""What a plan can say beyond its sizes: each option by hand arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import steptime
from every import every
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.core.workload import Plan
from steptime.network.count import op_work
from steptime.planning.faults import check_step
from steptime.planning.pass_settings import GroupCollective
from steptime.planning.pipelines.stages import Part, layout_of_plan, rank_groups
from steptime.planning.plan_cost import cost_plan
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem
from steptime.planning.ranks.language_model import read_language_model
from steptime.planning.ranks.pieces import Piece, build_rank_graph
from steptime.planning.ranks.site import LinkLevel, Site, build_cluster
from steptime.planning.request import make_problem
from steptime.planning.step import PlanTime, time_plan

SMALL = "transformer:layers=24,width=2048,heads=16,kv_heads=8,length=4096,vocabulary=50304"
ROOM = Site("h100-sxm5", 8, "nvlink-4", "infiniband-ndr")
NVLINK, NVLINK_S = 366e9, 1.9e-6  # bytes/s that collectives reach, latency
NDR = 0.9 * 50e9  # reached
EXCHANGE_S = 4e-5  # of the stacks
SEND_S = 1e-5
PCIE = 63e9


def planner(devices: int, site: Site = ROOM, model: str = SMALL, stack: str = "") -> PlanProblem:
    under = {"stack": stack or "megatron-2025"}
    return make_problem(
        read_language_model(model),
        build_cluster(site, devices),
        "bfloat16-mixed",
        "calibrated",
        under,
    )


def step(plan: Plan, batch: int, on: PlanProblem | None = None, microbatch: int = 1) -> PlanTime:
    on = on or planner(plan.device_count)
    asked = check_step(on.shape, PlanStep(plan, microbatch, batch))
    return time_plan(on, asked)


def waits(found: PlanTime, group: str) -> dict[str, GroupCollective]:
    return {one.collective: one for one in found.collectives if one.group == group}


def layer(on: PlanProblem, plan: Plan) -> Piece:
    return on.rank.pieces(plan, 1)["block1"]


def test_shard_groups_gather_inside_and_add_up_across():
    """32 replicas in groups of 8, which are nodes: 4 copies of each eighth."""
    on = planner(32, stack="fsdp-2025")
    whole, n = step(Plan(data=32, zero=3), 64, on), on.rank.parameters
    found = step(Plan(data=32, zero=3, shard=8), 64, on)
    inside, across = waits(found, "data"), waits(found, "copies")["all_reduce"]
    assert {one.link for one in inside.values()} == {"nvlink-4"}
    assert {one.link for one in waits(whole, "data").values()} == {"infiniband-ndr"}
    assert inside["all_gather"].size_bytes == 2 * 2 * 2 * n  # both passes, 2 microbatches, 16 bit
    assert inside["reduce_scatter"].size_bytes == 2 * 4 * n
    assert across.size_bytes == 4 * n / 8
    assert across.link == "infiniband-ndr"
    # all 8 devices of a node add up their eighth at once, each over its own link
    moved = 2 * 3 / 4 * across.size_bytes / NDR
    added = 3 * 3 / 4 * across.size_bytes / 3360e9
    assert across.total_s == pytest.approx(moved + added + EXCHANGE_S, rel=2e-2)
    states = [one.memory[0].states for one in (whole, found)]
    assert states == [pytest.approx(12 * n / 32), pytest.approx(12 * n / 8)]
    assert not waits(whole, "copies")


@every(("zero", "shares"), [(1, (1, 1, 4)), (2, (1, 4, 4)), (3, (4, 4, 4))])
def test_each_zero_shares_its_part_among_a_group(zero, shares):
    on = planner(16)
    n, found = on.rank.parameters, step(Plan(data=16, zero=zero, shard=4), 16, on)
    held = found.memory[0]
    weights = 2 * n if zero < 3 else 0  # of ZeRO-3 they are the states' own
    assert held.weights == weights
    assert held.gradients == pytest.approx(4 * n / shares[1])
    assert held.states == pytest.approx(12 * n / shares[2])
    assert waits(found, "copies")["all_reduce"].size_bytes == pytest.approx(4 * n / 4)


def test_zero_2_scatters_the_gradients_of_every_microbatch():
    on = planner(8)
    one, four = (step(Plan(data=8, zero=2), 8 * m, on) for m in (1, 4))
    n = on.rank.parameters
    assert waits(one, "data")["reduce_scatter"].size_bytes == 4 * n
    assert waits(four, "data")["reduce_scatter"].size_bytes == 4 * 4 * n
    assert waits(four, "data")["all_gather"].size_bytes == 2 * n  # weights, once
    first = step(Plan(data=8, zero=1), 32, on)
    assert waits(first, "data")["reduce_scatter"].size_bytes == 4 * n
    largest = max(
        on.rank.unsplit_pieces["first"].parameters, on.rank.unsplit_pieces["last"].parameters
    )
    assert four.memory[0].gathered == 4 * largest  # gradients of one piece, not yet scattered


def test_experts_have_shards_of_their_own():
    """8 replicas, experts over 4 of them: 2 hold the same experts."""
    model = f"{SMALL},experts=8,experts_per_token=2,expert_ffn=1024"
    on = planner(8, model=model)
    found = step(Plan(data=8, expert=4, zero=1), 8, on)
    pieces = on.rank.pieces(Plan(expert=4, data=4), 1)
    routed = 24 * pieces["block1"].expert_parameters
    dense = 24 * pieces["block1"].parameters - routed
    dense += pieces["first"].parameters + pieces["last"].parameters
    assert found.memory[0].states == pytest.approx(12 * (dense / 8 + routed / 2))
    assert found.memory[0].weights == 2 * (dense + routed)
    gathers = [one.size_bytes for one in found.collectives if one.collective == "all_gather"]
    assert sorted(gathers) == sorted([2 * dense, 2 * routed])


def test_groups_lie_where_the_order_puts_them():
    found = rank_groups((2, 2, 3, 4), 1, 3)
    assert found.replicas == range(0, 12, 2)
    assert (found.shard, found.copies) == (range(0, 6, 2), range(0, 12, 6))
    assert (found.pipeline, found.ends) == (range(0, 48, 12), (0, 36))
    other = rank_groups((2, 2, 3, 4), 2, 4, "tensor-context-pipeline-data")
    assert other.replicas == (0, 2, 16, 18, 32, 34)  # data is 16 apart
    assert other.shard == (0, 2, 16, 18)
    assert other.expert_replicas == (0, 16, 32)
    assert other.ends == (0, 12)
    inside_out = rank_groups((2, 2, 3, 4), 1, 6, "pipeline-data-context-tensor")
    assert inside_out.tensor == range(0, 48, 24)
    assert inside_out.shard == range(0, 24, 4)


def test_the_first_layers_of_each_stage_are_computed_again():
    on = planner(4)
    plans = [Plan(pipeline=4, recompute="full", recompute_layers=n) for n in (0, 2, 6)]
    none, every, two, six = (step(plan, 16, on) for plan in (Plan(pipeline=4), *plans))
    assert six.step_s == every.step_s  # 6 layers a stage
    assert six.memory == every.memory
    assert two.recompute_s == pytest.approx(every.recompute_s * 2 / 6)
    held = layer(on, Plan()).activations
    grown = 1 + on.rank.constant("fragmented")
    less = [a.activations - b.activations for a, b in zip(none.memory, two.memory, strict=True)]
    for d, saved in enumerate(less):  # of each microbatch in flight, in two layers
        freed = held.saved_bytes - held.input_bytes
        expected = (4 - d) * 2 * freed - held.saved_bytes  # one layer is there again
        assert saved == pytest.approx(expected * grown)
    chunks = layout_of_plan(on.shape.kinds, Plan(pipeline=2, virtual=2, recompute="full",
                                            recompute_layers=1))  # fmt: skip
    assert [dict(load).get(Part("block1", True)) for load in chunks.stages] == [1] * 4


def test_states_on_the_host():
    on = planner(8)
    on = replace(on, host_link=steptime_link("pcie-5-x16"))
    n = on.rank.parameters
    kept, moved = (step(Plan(data=8, zero=1, offload=one), 8, on) for one in ("none", "optimizer"))
    assert (kept.memory[0].states, moved.memory[0].states) == (pytest.approx(12 * n / 8), 0)
    # the host of 8 devices updates all of them: 28 bytes a parameter at 2 x 204.8 GB/s
    assert moved.update_s == pytest.approx(28 * n / (2 * 204.8e9))
    copied = waits(moved, "host")["states"]
    assert copied.size_bytes == pytest.approx((4 + 2) * n / 8)  # gradients out, weights back
    assert copied.total_s == pytest.approx(6 * n / 8 / PCIE, rel=1e-3)
    assert copied.exposed_s == 0  # beside the backward pass, and the host's own work
    assert copied.link == "pcie-5-x16"
    assert (kept.host_bytes, moved.host_bytes) == (0, pytest.approx(12 * n / 8))


def test_activations_on_the_host():
    on = planner(1)
    on = replace(on, host_link=steptime_link("pcie-5-x16"))
    plan = Plan(offload="activations")
    held = on.rank.pieces(plan, 1)["block1"].activations
    move_s = held.saved_bytes / PCIE + 2.5e-6
    forward, backward = cost_plan(on, PlanStep(plan, 1, 1)).passes(Part("block1"))
    assert forward.collectives[-1].total_s == pytest.approx(move_s)
    assert forward.collectives[-1].exposed_s == pytest.approx(move_s - forward.compute_s)
    assert backward.collectives[-1].exposed_s == pytest.approx(
        max(0.0, move_s - backward.compute_s)
    )
    there, away = step(Plan(), 4, on).memory[0], step(plan, 4, on).memory[0]
    grown = 1 + on.rank.constant("fragmented")  # 24 layers are held, of which two stay
    assert there.activations - away.activations == pytest.approx(22 * held.saved_bytes * grown)
    assert away.weights == there.weights
    assert step(plan, 4, on).host_bytes == 24 * held.saved_bytes


def test_offload_asks_for_its_link():
    with pytest.raises(InputError, match="--offload needs --host-link LINK, what joins a device"):
        steptime.plan(SMALL, "h100-sxm5", offload="both").to_dict()
    told = steptime.plan(SMALL, "h100-sxm5", offload="both", host_link="pcie-5-x16").to_dict()
    assert told["fits"]
    assert told["notes"][-1] == "a host is taken to have 410 GB/s of memory for 8 devices"


def steptime_link(name: str) -> Any:
    from steptime.hardware import catalog

    return catalog.link(name)


RACKS = ROOM._replace(levels=(LinkLevel(4, "infiniband-ndr", 8),), links_per_node=2)


def test_three_levels():
    """Nodes of 8, four to a rail of 8 links a node, rails over 2 links a node."""
    on = planner(64, RACKS)
    assert [(one.size, one.links) for one in on.cluster.ladder] == [(8, 1), (4, 8), (2, 8)]
    spine = f"{ROOM.link}, level 3"
    for group, link in (
        (range(8), "nvlink-4"),
        (range(0, 32, 8), f"{ROOM.link}, level 2"),
        (range(32), f"{ROOM.link}, level 2"),
        (range(0, 64, 8), spine),
        (range(0, 64, 32), spine),
    ):
        assert on.collective_time("all_gather", 1e9, group).link == link
    # 8 groups of one device a node: alone on its link inside the rail, four to a link beyond
    rail = on.collective_time("all_gather", 1e9, range(0, 32, 8)).seconds
    assert rail == pytest.approx(3 / 4 * 1e9 / NDR, rel=1e-2)
    beyond = on.collective_time("all_gather", 1e9, range(0, 64, 8)).seconds
    assert beyond == pytest.approx(7 / 8 * 1e9 / (NDR * 8 / 8), rel=1e-2)  # 8 links, 8 groups
    few = on.collective_time("all_to_all", 64e6, range(64)).seconds
    parts = 7 / NVLINK + 24 * 8 / 8 / NDR + 32 * 32 / 8 / NDR  # 1 MB to each: by level
    assert few == pytest.approx(1e6 * parts, rel=0.1)


def test_a_rack_of_72_is_a_node():
    site = Site("gb200", 72, "nvlink-5", "infiniband-ndr")
    found = step(Plan(tensor=8, data=18, zero=3, shard=9), 18, planner(144, site))
    links = {one.group: one.link for one in found.collectives}
    assert links == {"tensor": "nvlink-5", "data": "nvlink-5", "copies": "infiniband-ndr"}


def test_the_farthest_neighbours_set_the_pace():
    """Stages of 4 devices, two to a node: every second boundary is between nodes."""
    found = step(Plan(tensor=4, pipeline=4), 8, planner(16))
    assert waits(found, "pipeline")["send"].link == "infiniband-ndr"
    near = step(Plan(tensor=4, pipeline=2), 8, planner(8))
    assert waits(near, "pipeline")["send"].link == "nvlink-4"


def test_rings_and_all_to_alls_of_context():
    """c = 4 parts of 1,024 tokens, t = 2: of 8 key heads of 128, a rank has 4."""
    on, tokens = planner(8), 1024
    rings, gathers, turns = (
        Plan(tensor=2, context=4, context_method=way) for way in ("ring", "gather", "all-to-all")
    )
    each = 2 * 2 * tokens * 4 * 128  # keys and values of a rank, 16 bit: 4 T g d / t
    how = cost_plan(on, PlanStep(rings, 1, 1))
    forward, backward = (
        [one for one in passed.collectives if one.group == "context"]
        for passed in how.passes(Part("block1"))
    )
    assert [one.size_bytes for one in forward] == [3 * each]
    assert [one.size_bytes for one in backward] == [2 * 3 * each]
    send_s = each / (0.78 * NVLINK) + SEND_S + NVLINK_S  # two behind the switch
    attention_s = how.pieces["block1"].attention_s.forward_s / 4
    assert forward[0].total_s == pytest.approx(3 * send_s, rel=2e-2)
    expected = max(0.0, forward[0].total_s - 3 * attention_s)
    assert forward[0].exposed_s == pytest.approx(expected)
    bytes_of = {one.collective: one.size_bytes for one in step(gathers, 1, on).collectives
                if one.group == "context"}  # fmt: skip
    assert bytes_of == {"all_gather": 24 * 4 * each, "reduce_scatter": 24 * 4 * each}
    turned = [one for one in step(turns, 1, on).collectives if one.group == "context"]
    queries = 2 * tokens * 8 * 128  # 2 T a d / t; keys and values half of it each
    assert [one.size_bytes for one in turned] == [24 * 2 * (2 * queries + each)]
    kept = [
        on.rank.pieces(plan, 1)["block1"].activations.saved_bytes
        for plan in (rings, gathers, turns)
    ]
    assert kept[1] - kept[0] == 3 * each  # a ring keeps its own part
    shape, every = on.shape, (rings, gathers, turns)
    graphs = [
        build_rank_graph(shape.family, shape.kind_settings, plan, "bfloat16", 1) for plan in every
    ]
    flop = [sum(op_work(graph, op)[0] for op in graph.ops) for graph in graphs]
    assert flop[0] == flop[1] == flop[2]


def test_all_to_all_repeats_heads_that_are_fewer_than_ranks():
    model = SMALL.replace("kv_heads=8", "kv_heads=2")
    on = planner(8, model=model)
    turned = step(Plan(context=8, context_method="all-to-all"), 1, on)
    moved = waits(turned, "context")["all_to_all"].size_bytes
    tokens = 4096 / 8
    queries, keys = 2 * tokens * 16 * 128, 2 * tokens * 8 * 128  # 2 heads, each four times
    assert moved == 24 * 2 * (2 * queries + 2 * keys)


def test_layers_of_stages_that_are_chosen():
    on = planner(4)
    found = step(Plan(pipeline=4, stages=(4, 8, 8, 4)), 16, on)
    assert found.layers == (4, 8, 8, 4)
    assert found.fullest_device == 1
    slow = step(Plan(pipeline=4, stages=(21, 1, 1, 1)), 16, on)
    assert slow.step_s > 2 * found.step_s
    ends = step(Plan(pipeline=4, stages=(0, 12, 12, 0)), 16, on)
    assert ends.memory[0].weights == 2 * on.rank.unsplit_pieces["first"].parameters


def test_405b_has_126_layers_on_16_stages():
    on = planner(512, model="llama3_1_405b")
    plan = Plan(tensor=8, pipeline=16, data=4, zero=1, sequence=True)
    found = step(plan, 256, on)
    assert found.layers == (7, *[8] * 14, 7)
    assert found.fullest_device == 1  # 15 microbatches of 8 layers; the first has 16 of 7
    same = step(Plan(**{**vars(plan), "stages": found.layers, "microbatches": 1}), 256, on)
    assert same.step_s == found.step_s


def test_one_stage_has_no_bubble():
    found = time_plan(planner(8), PlanStep(Plan(tensor=8), 1, 7))
    assert (found.bubble_share, found.bubble_s) == (0.0, 0.0)


@every(
    ("words", "change"),
    [
        ("--host-link pcie-5-x16 --stack megatron-2025", "--offload optimizer"),
        (
            "--data 8 --zero 3 --shard 2 --inside nvlink-4 --stack fsdp-2025",
            "leave out --shard",
        ),
        (
            "--tensor 8 --sequence-parallel --length 98304 --inside nvlink-4 --stack megatron-2025",
            "--recompute full --recompute-layers 8",
        ),
    ],
)
def test_what_does_not_fit_is_told_the_options_that_help(words, change, capsys):
    assert run(["plan", "llama3_8b", "--device", "h100-sxm5", *words.split(), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert not told["fits"]
    assert told["nearest_fitting"]["change"] == change


def test_memory_by_part_is_that_of_hand_arithmetic():
    """The 22B model of Korthikanti and others (2022), table 3: t = 8, p = 1, b = 4, SP."""
    h, a, layers, s, words, t, b = 6144, 64, 48, 2048, 51200, 8, 4
    model = f"transformer:layers={layers},width={h},heads={a},length={s},vocabulary={words}"
    site = Site("a100-sxm4-80gb", 8, "nvlink-3")
    on = planner(8, site, f"{model},dropout=0.1", "megatron-2021")
    held = step(Plan(tensor=8, sequence=True), b, on, b).memory[0]
    a_layer = 12 * h * h / t + (3 + 4) * h / t + 2 * h + 2 * 2 * h  # products, biases, two norms
    n = layers * a_layer + words * h / t + s * h + 2 * h  # words, places, the last norm
    assert (held.weights, held.gradients, held.states) == (2 * n, 2 * n, 12 * n)
    paper = s * b * h * layers / t * (34 + 5 * a * s / h)  # equation 4, unfused attention
    moments = layers * 2 * 2 * 4 * s * b / t  # of norms, which the paper leaves out
    ends = s * b * h * (1 + 2) / t  # dropout after the embedding: its mask and its result
    working = on.rank.pieces(Plan(tensor=8, sequence=True), b)["block1"].activations.working_bytes
    assert held.activations == pytest.approx(1.04 * (paper + moments + ends + working), rel=1e-9)
    assert held.gathered == 0
    assert held.logits > s * b * words / t * (2 + 4 + 4)


def test_a_search_computes_as_few_layers_again_as_leave_a_share_of_the_memory():
    fixed: dict[str, Any] = {"tensor": 8, "context": 1, "pipeline": 1, "zero": 0, "microbatch": 1}
    how: dict[str, Any] = {"global_batch": 1, "length": 98304, "inside": "nvlink-4"}
    best = steptime.plan("llama3_8b", "h100-sxm5", device_count=8, **how, **fixed).to_dict()["best"]
    fewest = best["plan"]["recompute_layers"]
    assert best["plan"]["recompute"] == "full"
    own = {**fixed, "data": 1, "sequence_parallel": True, "recompute": "full"}
    held = [
        steptime.plan("llama3_8b", "h100-sxm5", **how, **own, recompute_layers=n).to_dict()[
            "memory"
        ]
        for n in (fewest - 1, fewest)
    ]
    assert [one["needed_bytes"] <= 0.95 * one["usable_bytes"] for one in held] == [False, True]
    chosen = {**fixed, "recompute": "full"}
    told = steptime.plan("llama3_8b", "h100-sxm5", device_count=8, **how, **chosen).to_dict()
    assert told["best"]["plan"]["recompute_layers"] == 0  # as the user chose

"""Mixtures of experts under a plan: where tokens go, what hides, and DeepSeek-V3 by its paper."""

from __future__ import annotations

import pytest

import steptime
from every import every
from steptime.core.workload import Plan
from steptime.planning.estimate import estimate_plan
from steptime.planning.faults import check_step
from steptime.planning.pipelines.pipeline import Stage
from steptime.planning.pipelines.pipeline_bound import lower_bound
from steptime.planning.pipelines.pipeline_end import PipelineTimes, end_times
from steptime.planning.pipelines.stages import Part
from steptime.planning.plan_cost import cost_plan
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem
from steptime.planning.ranks.language_model import read_language_model
from steptime.planning.ranks.site import Site, build_cluster
from steptime.planning.request import make_problem
from steptime.planning.step import PlanTime, time_plan

MIXTURE = (
    "transformer:layers=8,width=2048,heads=16,length=4096,vocabulary=50304,experts=64,"
    "experts_per_token=8,expert_ffn=1024,shared_ffn=1024,bias=no"
)
ROOM = Site("h100-sxm5", 8, "nvlink-4", "infiniband-ndr")
HOURS = 2_664_000  # of H800, DeepSeek-V3 Technical Report, table 1: pre-training


def planner(
    devices: int, stack: str = "megatron-2025", dtype: str = "bfloat16-mixed"
) -> PlanProblem:
    under = {"stack": stack}
    return make_problem(
        read_language_model(MIXTURE), build_cluster(ROOM, devices), dtype, "calibrated", under
    )


def step(on: PlanProblem, plan: Plan, batch: int = 64) -> PlanTime:
    found = time_plan(on, asked := check_step(on.shape, PlanStep(plan, 1, batch)))
    assert estimate_plan(on, asked).step_s == pytest.approx(found.step_s)
    return found


def tokens_s(found: PlanTime) -> float:
    return sum(one.total_s for one in found.collectives if one.group == "expert")


def test_tokens_are_sent_once_to_a_node():
    """Of 64 experts on 2 nodes 8 are chosen: nearly all tokens have one on the other node."""
    plan = Plan(data=16, expert=16)
    copies, once = (step(planner(16, name), plan) for name in ("megatron-2025", "megatron-2026"))
    assert 3.5 < tokens_s(copies) / tokens_s(once) < 4.5  # of 8 copies 4 cross, or 0.996


def test_what_goes_out_is_in_8_bit_where_products_are():
    on, plan = planner(16, "hai-llm-2024", "float8"), Plan(data=16, expert=16)
    cost = cost_plan(on, check_step(on.shape, PlanStep(plan, 1, 64)))
    passes = cost.passes(Part("block1"))
    sizes = [[time.size_bytes for time in pass_.collectives] for pass_ in passes]
    assert sizes == [[size := 4096 * 8 * 2048, 2 * size], [size, 2 * size]]


def test_layers_that_route_are_called_one_by_one_until_2026():
    """A pass of such a layer: 2.7 ms as layers were in 2021, and 55 us for each of 4 experts."""
    for stack, more_s in (("megatron-2025", 0.0027 + 4 * 5.5e-5), ("megatron-2026", 0.0)):
        on = planner(16, stack)
        one = cost_plan(on, check_step(on.shape, PlanStep(Plan(data=16, expert=16), 1, 64)))
        parts = {part.name: part for load in one.layout.devices for part, _ in load}
        for name in ("first", "block1"):
            for told, of_ops in zip(one.passes(parts[name]), one.pieces[name].host_s, strict=True):
                assert told.host_s - of_ops == pytest.approx(more_s * (name == "block1"), abs=1e-12)


def test_imbalance_is_in_tokens_products_and_memory():
    on = planner(8)
    even, busy = (step(on, Plan(data=8, expert=8, imbalance=x)) for x in (1.0, 1.5))
    moved = [one.collectives[0].size_bytes for one in (even, busy)]
    assert moved[1] == pytest.approx(1.5 * moved[0])
    assert 1.4 < tokens_s(busy) / tokens_s(even) < 1.5  # and what starts an exchange
    assert 1.0 < busy.compute_s / even.compute_s < 1.5
    assert busy.memory[0].activations > even.memory[0].activations


def test_whole_experts_beside_tensor_ranks():
    """Four tensor ranks route their own quarter of the tokens, to 32 ranks in place of 8."""
    on, split = planner(32), {"data": 8, "tensor": 4, "sequence": True}
    cut = step(on, Plan(**split, expert=8))
    whole = step(on, Plan(**split, expert=32, expert_tensor=1))
    assert whole.memory[0].weights == cut.memory[0].weights
    one = cost_plan(
        on, check_step(on.shape, PlanStep(Plan(**split, expert=32, expert_tensor=1), 1, 64))
    )
    assert list(one.groups.expert) == list(range(32))
    collectives = one.passes(Part("block1")).forward.collectives
    sizes = [time.size_bytes for time in collectives if time.group == "expert"]
    assert sizes == [4096 / 4 * 8 * 2048 * 2] * 2


def test_tokens_hide_behind_another_microbatch():
    on = planner(16)
    plans = [Plan(data=8, pipeline=2, expert=8, expert_overlap=beside) for beside in (False, True)]
    one, other = (cost_plan(on, check_step(on.shape, PlanStep(plan, 1, 64))) for plan in plans)
    part = next(part for part, _ in one.layout.devices[0] if not part.is_end)
    fore, back = one.passes(part)
    waits = [*fore.collectives, *back.collectives]
    wait = sum(each.exposed_s for each in waits if each.group == "expert")
    rest = fore.seconds + back.seconds - wait
    assert 0 < wait < rest  # all of it hides
    both = sum(pass_.seconds for pass_ in other.passes(part))
    assert both == pytest.approx(rest + on.rank.constant("slowed") * wait)
    assert step(on, other.plan).step_s < step(on, one.plan).step_s


@every("p", [2, 4, 16])
def test_the_bubble_of_dualpipe_is_that_of_its_paper(p):
    stages, m = (Stage(1.0, 2.0, 0.9),) * p, 4 * p
    end = m * 3.0 + (p / 2 - 1) * (1 + 2 * 2.0 - 3 * 0.9)
    assert end_times(PipelineTimes("dualpipe", stages, p, 0.0), m) == pytest.approx((end,) * p)
    bound = lower_bound(PipelineTimes("dualpipe", stages, p, 0.0), [0.5] * p)
    assert bound.end_s(m) == pytest.approx(end + 0.5)


def test_dualpipe_holds_weights_twice_and_one_microbatch_more():
    on = planner(32)
    one, both = (
        step(on, Plan(data=8, pipeline=4, expert=8, zero=1, schedule=way), 128)
        for way in ("1f1b", "dualpipe")
    )
    middle, other = one.memory[1], both.memory[1]
    ends = both.memory[0]
    assert other.weights == pytest.approx(2 * middle.weights)
    assert ends.weights == pytest.approx(one.memory[0].weights + one.memory[3].weights)
    assert other.states == pytest.approx(middle.states)
    assert both.run is None


@pytest.fixture(scope="module")
def deepseek():
    return dict(
        steptime.plan(
            "deepseek_v3", "h800-sxm5", link="infiniband-ndr", global_batch=15360, length=4096,
            dtype="float8", tokens=14.8e12, stack="hai-llm-2024", data=128, pipeline=16, expert=64,
            zero=1, schedule="dualpipe", recompute="selective",
        ).to_dict()
    )  # fmt: skip


def test_deepseek_v3_by_its_paper(deepseek):
    """2,048 H800: it fits, and the hours that its paper says lie inside the interval."""
    days, train = HOURS / 2048 / 24, deepseek["training"]
    assert deepseek["fits"]
    assert train["low_h"] / 24 < days < train["high_h"] / 24
    assert 0.78 * days < train["train_h"] / 24 < 1.2 * days  # over NVLink inside nodes
    assert "fitted to no step" in " ".join(deepseek["notes"])

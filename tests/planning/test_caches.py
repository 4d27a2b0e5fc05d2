"""Costs of plans do not depend on what was priced before: caches on and off agree."""

from dataclasses import asdict, replace
from functools import partial
from random import Random
from typing import Any

import pytest

from steptime.core.errors import InputError
from steptime.core.workload import CONTEXT_METHODS, OFFLOADS, RECOMPUTES, SCHEDULES, Plan
from steptime.hardware import catalog
from steptime.planning.caches import Caches
from steptime.planning.estimate import estimate_plan
from steptime.planning.faults import find_fault
from steptime.planning.pipelines.stages import ORDERS
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem
from steptime.planning.ranks.network import NetworkRankModel
from steptime.planning.ranks.rank_model import RankModel
from steptime.planning.ranks.site import Site
from steptime.planning.request import Request
from steptime.planning.step import time_plan

DENSE = "transformer:layers=8,width=512,heads=8,kv_heads=4,vocabulary=1000,length=512"
MODELS = (DENSE, f"{DENSE},experts=8,experts_per_token=2,expert_ffn=256", "alexnet")
SITE = Site("h100-sxm5", 4, link="infiniband-ndr")
DEVICE_COUNT = 16
MAX_DRAWS = 100_000
GRAPH_METHODS = (
    RankModel.rank_pieces,
    RankModel.full_step,
    NetworkRankModel.network_pieces,
)


def make_problem(model: str) -> PlanProblem:
    request = Request(model, SITE, device_counts=(DEVICE_COUNT,))
    problem = request.make_problem(request.shape, DEVICE_COUNT)
    return replace(problem, host_link=catalog.link("pcie-5-x16"))


def without_caches(problem: PlanProblem, keeps_pieces: bool = False) -> PlanProblem:
    """Return a problem that prices all anew, or all but the graphs of ranks and of steps."""
    rank = replace(problem.rank, caches=Caches(is_enabled=False))
    if keeps_pieces:  # they take most of the time
        for method in GRAPH_METHODS:
            rank.caches[method.__wrapped__] = partial(method, problem.rank)
    return replace(problem, rank=rank, caches=Caches(is_enabled=False))


def draw_step(random: Random) -> PlanStep:
    tensor = random.choice((1, 1, 2, 4))
    plan = Plan(
        data=random.choice((1, 2, 4, 8)),
        tensor=tensor,
        pipeline=random.choice((1, 1, 2, 4)),
        expert=random.choice((1, 1, 2, 4)),
        sequence=tensor > 1 and random.random() < 0.5,
        context=random.choice((1, 1, 1, 2)),
        schedule=random.choice(SCHEDULES),
        zero=random.randrange(4),
        recompute=random.choice(RECOMPUTES),
        offload=random.choice(("none", "none", *OFFLOADS)),
        virtual=random.choice((1, 1, 1, 2)),
        shard=random.choice((0, 0, 2, 4)),
        recompute_layers=random.choice((0, 0, 1)),
        context_method=random.choice(CONTEXT_METHODS),
        expert_tensor=random.choice((0, 0, 1)),
        imbalance=random.choice((1.0, 1.0, 1.3)),
        expert_overlap=random.random() < 0.2,
    )
    microbatch = random.choice((1, 2))
    global_batch = microbatch * plan.data * random.choice((1, 2, 3, 8, 16))
    return PlanStep(plan, microbatch, global_batch, random.choice(list(ORDERS)))


def draw_valid_steps(problem: PlanProblem, seed: int, count: int) -> list[PlanStep]:
    random = Random(seed)  # noqa: S311
    draws = (draw_step(random) for _ in range(MAX_DRAWS))
    valid = (
        step
        for step in draws
        if step.plan.device_count <= DEVICE_COUNT and find_fault(problem.shape, step) is None
    )
    return [next(valid) for _ in range(count)]


def answer_of(problem: PlanProblem, step: PlanStep) -> list[Any]:
    """Return the estimate and the step of a plan, or why there is none."""
    try:
        return [estimate_plan(problem, step)[:3], asdict(time_plan(problem, step))]
    except InputError as error:
        return [str(error)]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_costs_do_not_depend_on_what_was_priced_before(model):
    """A hundred plans of each network, in any order of ranks.

    One problem prices all of them, one after the other; another one without caches prices each
    anew.
    """
    problem = make_problem(model)
    uncached = without_caches(problem, keeps_pieces=True)
    for step in draw_valid_steps(problem, seed=45, count=100):
        assert answer_of(problem, step) == answer_of(uncached, step), step


@pytest.mark.parametrize("model", MODELS)
def test_pieces_do_not_depend_on_what_was_priced_before(model):
    """As above, for few plans whose pieces are priced anew, too."""
    problem = make_problem(model)
    uncached = without_caches(make_problem(model))
    for step in draw_valid_steps(problem, seed=46, count=5):
        assert answer_of(problem, step) == answer_of(uncached, step), step


def test_caches_keep_one_result_for_each_argument():
    problem = make_problem(DENSE)
    group = range(4)
    assert problem.collective_time("send", 1e6, group) is problem.collective_time(
        "send", 1e6, group
    )
    uncached = without_caches(problem)
    first = uncached.collective_time("send", 1e6, group)
    assert uncached.collective_time("send", 1e6, group) is not first

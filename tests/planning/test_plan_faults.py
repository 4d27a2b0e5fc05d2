"""Any plan is answered, or refused in a line that names one that is answered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from every import every
from steptime.core.errors import InputError
from steptime.core.workload import CONTEXT_METHODS, OFFLOADS, RECOMPUTES, SCHEDULES, Plan
from steptime.planning.faults import check_step
from steptime.planning.pipelines.stages import ORDERS
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem
from steptime.planning.ranks.language_model import read_language_model
from steptime.planning.ranks.shape import Shape
from steptime.planning.ranks.site import LinkLevel, Site, build_cluster
from steptime.planning.request import make_problem
from steptime.planning.step import time_plan

SITE = Site("h100-sxm5", 8, "nvlink-4", "infiniband-ndr", None, (LinkLevel(4, "infiniband-ndr"),))
EXPERTS = "experts=6,experts_per_token=2,expert_ffn=48,shared_ffn=32,dense_layers=1"
MODELS = (
    "transformer:layers=6,width=96,heads=12,kv_heads=4,length=120,vocabulary=640",
    f"transformer:layers=5,width=64,heads=8,length=96,vocabulary=640,{EXPERTS}",
    "transformer:layers=4,width=64,heads=8,kv_heads=2,length=60,vocabulary=640,window=16,sinks=yes",
)
SHAPES = [read_language_model(model) for model in MODELS]


def planner(shape: Shape, devices: int) -> PlanProblem:
    from steptime.hardware import catalog

    under = {"stack": "megatron-2025"}
    cluster = build_cluster(SITE, devices)
    link = catalog.link("pcie-5-x16")
    return make_problem(shape, cluster, "bfloat16-mixed", "calibrated", under, host_link=link)


PLANNERS = [planner(shape, 2**17) for shape in SHAPES]
FEW = st.integers(1, 9)
PLANS = st.builds(
    Plan,
    tensor=st.integers(1, 13),
    pipeline=st.integers(1, 7),
    context=FEW,
    data=FEW,
    expert=FEW,
    virtual=st.integers(1, 3),
    zero=st.integers(0, 3),
    sequence=st.booleans(),
    schedule=st.sampled_from(SCHEDULES),
    recompute=st.sampled_from(RECOMPUTES),
    recompute_layers=st.integers(0, 3),
    offload=st.sampled_from(OFFLOADS),
    shard=st.integers(0, 9),
    stages=st.one_of(st.just(()), st.lists(st.integers(0, 4), max_size=6).map(tuple)),
    context_method=st.sampled_from(CONTEXT_METHODS),
)


def changed(asked: PlanStep, words: str) -> PlanStep:
    """Return a plan under the options that a line names, read as a user does."""
    change: dict[str, Any] = {}
    told = words.replace(",--", " --").replace(", ", " ").split()
    names = {"sequence_parallel": "sequence"}
    while told:
        word = told.pop(0)
        out = word == "leave"
        if out:
            assert told.pop(0) == "out"
            word = told.pop(0)
        name = word.removeprefix("--").replace("-", "_")
        name = names.get(name, name)
        if out:
            change[name] = getattr(Plan(), name)
        elif name == "stages":
            change[name] = tuple(map(int, told.pop(0).split(",")))
        else:
            value = told.pop(0)
            change[name] = int(value) if value.isdigit() else value
    return asked.change(change)


def refused(shape: Shape, asked: PlanStep) -> str:
    """Return why a plan is refused, nothing where it is not."""
    try:
        check_step(shape, asked)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.slow
@settings(max_examples=300)
@given(
    which=st.integers(0, len(MODELS) - 1),
    plan=PLANS,
    microbatch=st.integers(1, 5),
    batch=st.integers(1, 60),
    order=st.sampled_from(sorted(ORDERS)),
)
def test_a_plan_is_answered_or_told_the_nearest(which, plan, microbatch, batch, order):
    shape, asked = SHAPES[which], PlanStep(plan, microbatch, batch, order)
    says, _, nearest = refused(shape, asked).partition("; nearest: ")
    assert "\n" not in says
    assert bool(says) == bool(nearest)
    sound = check_step(shape, changed(asked, nearest))
    found = time_plan(PLANNERS[which], sound)
    assert found.step_s > 0
    assert 0 <= found.bubble_share < 1
    assert all(part >= 0 for memory in found.memory for part in memory)
    parts = found.compute_s + found.recompute_s + found.host_s + found.update_s
    parts += found.exposed_s + found.bubble_s + found.outside_layers_s
    assert parts == pytest.approx(found.step_s)


def test_a_number_far_from_one_that_works_is_found():
    asked = PlanStep(Plan(data=7919), 1, 9007199254740881)
    with pytest.raises(InputError, match="does not divide 9007199254740881 sequences; nearest: "):
        check_step(SHAPES[0], asked)


@every(
    ("data", "batch", "near"),
    [(5, 7, 7), (5, 12, 4), (400_000, 2 * 250_007, 2 * 250_007), (8, 10**15, 8)],
)
def test_the_nearest_may_be_above_and_far(data, batch, near):
    said = refused(SHAPES[0], PlanStep(Plan(data=data), 1, batch))
    assert said.partition("; nearest: ")[2] == (f"--data {near}" if near != data else "")

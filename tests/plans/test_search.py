"""The search for plans finds what trying all of them one by one finds."""

from math import inf

import pytest

import steptime
from steptime.core.errors import InputError
from steptime.core.workload import Plan
from steptime.plans.planner import Planner
from steptime.plans.request import Asked, Limits, Request, Site, cluster_of, planner_of, shape_of
from steptime.plans.search import plans, search, searched
from steptime.plans.step import plan_time, quick

SMALL = "transformer:layers=8,width=2048,heads=16,vocabulary=32000,length=2048"
SITE = Site("a100-sxm4-40gb", 8, "nvlink-3", "infiniband-hdr")


def planner(model: str = SMALL, devices: int = 16) -> Planner:
    under = {"stack": "megatron-2025"}
    return planner_of(shape_of(model), cluster_of(SITE, devices), "bfloat16", "calibrated", under)


def every(one: Planner, devices: int = 16, batch: int = 64) -> list[Asked]:
    return list(plans(one.shape, devices, batch, 8, {}))


def test_the_quick_answer_is_that_of_the_whole_one() -> None:
    one = planner()
    some = every(one)[::23]
    assert len(some) > 20
    for asked in some:
        step_s, held, energy_j = quick(one, asked.plan, asked.micro_batch, asked.batch)
        whole = plan_time(one, asked.plan, asked.micro_batch, asked.batch, exact=False)
        assert held == pytest.approx(max(memory.total for memory in whole.memory))
        assert step_s in (inf, pytest.approx(whole.step_s))
        assert energy_j in (None, pytest.approx(whole.energy_j))


def test_the_best_is_that_of_brute_force() -> None:
    one, fresh = planner(), planner()
    found = search(one, every(one))
    room = fresh.room_bytes
    tried = []
    for asked in every(fresh):
        whole = plan_time(fresh, asked.plan, asked.micro_batch, asked.batch, exact=False)
        held = max(memory.total for memory in whole.memory)
        if held <= room:
            tried.append((whole.step_s, held))
    best = min(tried)
    assert found.fitting == len(tried)
    assert (found.front[0].step_s, found.front[0].bytes) == pytest.approx(best)
    for one_of_front in found.front:
        beaten = [
            (step_s, held)
            for step_s, held in tried
            if step_s < one_of_front.step_s * (1 - 1e-9) and held < one_of_front.bytes * (1 - 1e-9)
        ]
        assert not beaten


def test_a_search_by_what_is_chosen_and_limited() -> None:
    told = searched(Request(SMALL, SITE, 64, devices=(8, 16), split={"tensor": 2, "zero": 1}))
    assert {row["tensor"] for row in told["rows"]} == {2}
    assert {row["zero"] for row in told["rows"]} <= {0, 1}
    assert told["best"]["step_s"] == min(row["step_s"] for row in told["rows"])
    assert told["fitting"] <= told["considered"]
    few = searched(Request(SMALL, SITE, 64, devices=(8, 16), limits=Limits(watts=8 * 400)))
    assert {row["devices"] for row in few["rows"]} == {8}
    assert told["bound_by"]


def test_nothing_fits_is_said_with_what_lacks() -> None:
    huge = "transformer:layers=96,width=12288,heads=96,length=2048"
    with pytest.raises(InputError, match=r"none of \d+ splits fits; the nearest needs .* GB more"):
        searched(Request(huge, SITE, 8, devices=(8,)))


def test_python_asks_for_one_plan_or_for_the_best() -> None:
    told = steptime.plan(SMALL, "h100-sxm5", batch=32, inside="nvlink-4", tensor=4, data=2, zero=1)
    assert told["devices"] == 8
    best = steptime.plan(SMALL, "h100-sxm5", batch=32, devices=8, inside="nvlink-4")
    assert best["best"]["step_s"] <= told["step_s"] * 1.001
    with pytest.raises(InputError, match="did you mean 'tensor'"):
        steptime.plan(SMALL, "h100-sxm5", tensr=4)


def test_experts_lie_inside_the_replicas() -> None:
    model = f"{SMALL},experts=8,experts_per_token=2,expert_ffn=1024"
    one = planner(model, 8)
    spread = plan_time(one, Plan(data=8, expert=8, zero=1), 1, 8)
    alone = plan_time(one, Plan(data=8, zero=1), 1, 8)
    groups = {(move.group, move.collective) for move in spread.exposures}
    assert ("expert", "all_to_all") in groups
    assert spread.memory[0].weights < alone.memory[0].weights
    rows = [m for m in spread.exposures if m.group == "expert"]
    assert rows[0].bytes == 4 * 8 * 2048 * 2 * 2048 * 2  # out and back, both passes; k rows of 2 B

"""The search for plans finds what trying all of them one by one finds."""

import subprocess
import sys
from functools import cache
from itertools import product
from math import inf
from random import Random
from typing import Any

import pytest

import steptime
from steptime.core.errors import InputError
from steptime.core.workload import RECOMPUTES, Plan
from steptime.questions.plan.best import answer, searched, told_apart
from steptime.questions.plan.faults import Asked, checked
from steptime.questions.plan.planner import Planner
from steptime.questions.plan.request import Request, Site, cluster_of, planner_of, shape_of, sites
from steptime.questions.plan.search import MEMORY, Cap, plans, search
from steptime.questions.plan.step import plan_time, quick

SMALL = "transformer:layers=8,width=2048,heads=16,vocabulary=32000,length=2048"
MIXED = f"{SMALL},experts=8,experts_per_token=2,expert_ffn=1024"
DEEP = "transformer:layers=12,width=4096,heads=32,vocabulary=32000,length=4096"
SITE = Site("a100-sxm4-40gb", 8, "nvlink-3", "infiniband-hdr")


@cache
def planner(model: str = SMALL, devices: int = 16) -> Planner:
    under = {"stack": "megatron-2025"}
    return planner_of(
        shape_of(model), cluster_of(SITE, devices), "bfloat16-mixed", "calibrated", under
    )


@pytest.fixture
def _closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no pipeline be simulated."""
    monkeypatch.setattr("steptime.questions.plan.step.MOST_EVENTS", -1)


def every(one: Planner, devices: int = 16, batch: int = 64, **fixed: Any) -> list[Asked]:
    return list(plans(one.shape, devices, batch, 8, fixed))


@pytest.mark.usefixtures("_closed_forms")
def test_the_quick_answer_is_that_of_the_whole_one() -> None:
    one = planner()
    some = every(one)[::23]
    assert len(some) > 20
    for asked in some:
        step_s, held, energy_j, _ = quick(one, asked)
        whole = plan_time(one, asked)
        assert held == pytest.approx(max(memory.total for memory in whole.memory))
        assert step_s in (inf, pytest.approx(whole.step_s))
        assert energy_j in (None, pytest.approx(whole.energy_j))


def test_every_split_is_tried_that_a_user_may_ask_for() -> None:
    one = planner(MIXED, 8)
    powers = (1, 2, 4, 8)
    tried = set()
    for t, c, p, v, e, z, r, b in product(
        powers, powers, range(1, 9), range(1, 9), powers, (0, 1, 3), RECOMPUTES, (1, 2, 4, 8, 16)
    ):
        data, rest = divmod(8, t * c * p)
        if rest or 2048 // c < 2048 or (z and data * c == 1) or (data * c) % e:
            continue
        try:
            plan = Plan(data, t, p, e, t > 1, c, zero=z, recompute=r, virtual=v)
            checked(one.shape, Asked(plan, b, 16))
        except InputError:
            continue
        if 8 % (p * v) and v > 1:
            continue  # stages of a device are equal where there are several
        tried.add((plan, b))
    assert tried == {(asked.plan, asked.micro_batch) for asked in every(one, 8, 16)}


@pytest.mark.usefixtures("_closed_forms")
@pytest.mark.parametrize("seed", range(20))
def test_a_search_is_that_of_brute_force(seed: int) -> None:
    """Ten random spaces a seed: chosen parts of the split, limits anywhere in what there is."""
    random = Random(seed)  # noqa: S311
    for _ in range(10):
        model, devices = random.choice((SMALL, MIXED, DEEP)), random.choice((1, 4, 6, 8, 16))
        one, batch = planner(model, devices), random.choice((24, 32, 64))
        fixed = {
            name: random.choice(choices)
            for name, choices in (
                ("tensor", (1, 2, 4)), ("pipeline", (1, 2, 4)), ("zero", (0, 1, 3)),
                ("recompute", RECOMPUTES), ("micro_batch", (1, 2, 4)), ("virtual", (1, 2)),
            )
            if random.random() < 0.5
        }  # fmt: skip
        space = every(one, devices, batch, **fixed)[:: random.choice((1, 3))][:150]
        tried = []
        for asked in space:
            whole = plan_time(one, asked)
            held = max(memory.total for memory in whole.memory)
            tried.append((whole.step_s, held, whole.energy_j or 0.0))
        fit = [known for known in tried if known[1] <= one.room_bytes]
        most_s, most_w = inf, inf
        if fit:
            most_s = random.choice(fit)[0] * random.choice((0.999, 1.001, 9))
            step_s, _, energy_j = random.choice(fit)
            most_w = energy_j / step_s * random.choice((0.999, 1.001, 9))
        caps = [
            Cap("s", lambda found: found.step_s, most_s),
            Cap("w", lambda found: (found.energy_j or 0.0) / found.step_s, most_w),
        ]
        found = search(one, space, caps)
        left = [known for known in fit if known[0] <= most_s and known[2] / known[0] <= most_w]
        assert found.considered == len(space)
        assert found.refused[MEMORY] == len(space) - len(fit)
        assert found.refused["s"] == sum(known[0] > most_s for known in fit)
        assert found.refused["w"] == sum(known[2] / known[0] > most_w for known in fit)
        assert sorted(found.steps_s) == pytest.approx(sorted(known[0] for known in left))
        for step_s, held, energy_j in left:  # nobody beats the front in all by more than rounding
            assert any(
                mine.step_s <= step_s * (1 + 1e-9)
                and mine.bytes <= held * (1 + 1e-9)
                and (mine.energy_j or 0.0) <= energy_j * (1 + 1e-9)
                for mine in found.front
            )
        for mine in found.front:
            same = (mine.step_s, mine.bytes, mine.energy_j)
            assert any(known == pytest.approx(same) for known in left)
        if left:
            assert found.nearest is None
            assert found.front[0].step_s == pytest.approx(min(left)[0])
        elif space:
            assert found.nearest is not None


def test_a_search_by_what_is_chosen_and_limited() -> None:
    told = searched(Request(SMALL, SITE, 64, devices=(8, 16), split={"tensor": 2, "zero": 1}))
    assert {row["tensor"] for row in told["rows"]} == {2}
    assert {row["zero"] for row in told["rows"]} <= {0, 1}
    assert told["best"]["step_s"] == min(row["step_s"] for row in told["rows"])
    assert told["fitting"] <= told["considered"]
    few = searched(Request(SMALL, SITE, 64, devices=(8, 16), limits={"watts": 8 * 400}))
    assert few["best"]["step_s"] > told["best"]["step_s"]
    assert all(row["energy_j"] / row["step_s"] <= 8 * 400 for row in few["rows"])
    assert few["refused"]["watts"] > 0
    assert told["bound_by"]


def test_several_devices_stand_side_by_side() -> None:
    many = sites(["a100-sxm4-80gb", "h100-sxm5"], link="infiniband-ndr")
    asked = Request(SMALL, many[0], 64, devices=(8, 16), others=(many[1],), tokens=1e9)
    told = searched(asked)
    assert [(row["device"], row["devices"]) for row in told["by_devices"]] == [
        ("a100-sxm4-80gb", 8), ("a100-sxm4-80gb", 16), ("h100-sxm5", 8), ("h100-sxm5", 16),
    ]  # fmt: skip
    for at, row in enumerate(told["by_devices"]):
        alone = searched(Request(SMALL, many[at // 2], 64, devices=(row["devices"],), tokens=1e9))
        assert row["step_s"] == alone["best"]["step_s"]
        assert row["cost_per_step"] == pytest.approx(alone["best"]["cost"]["step"])
    first, second = told["by_devices"][:2]
    share = first["step_s"] * 8 / (second["step_s"] * 16)
    assert (first["efficiency"], second["efficiency"]) == (1.0, pytest.approx(share))
    fast, slow = told["by_devices"][3], told["by_devices"][1]
    assert told["best"]["device"] == "h100-sxm5"
    assert fast["alike"]
    assert slow["alike"] == (slow["low"] <= fast["high"])  # of another type: intervals overlap
    cost = told["best_by"]["cost_per_step"]["cost_per_step"]
    assert cost == min(row["cost_per_step"] for row in told["rows"])
    assert told["answer"].startswith("16 h100-sxm5: ")
    with pytest.raises(InputError, match="several devices go with --devices"):
        answer(Request(SMALL, many[0], 64, others=(many[1],)))


def test_the_link_of_a_node_is_that_of_the_device() -> None:
    near = cluster_of(Site("h100-sxm5"), 8).ladder[0].link
    assert (near.name, near.bytes_per_s) == ("nvlink-4", 450e9)
    with pytest.raises(InputError, match="2 t4 of a node need a link: --inside LINK"):
        cluster_of(Site("t4"), 2)
    with pytest.raises(InputError, match="--link: 2 links for 3 devices"):
        sites(["t4", "a10", "l4"], link=["ethernet-10", "ethernet-25"])


def test_what_is_told_apart() -> None:
    assert told_apart(planner()) == pytest.approx(1.12, abs=0.002)  # exp(sqrt(2) 0.08)


def test_nothing_fits_is_said_with_what_lacks() -> None:
    huge = "transformer:layers=96,width=12288,heads=96,length=2048"
    with pytest.raises(InputError, match=r"none of \d+ splits fits; the nearest needs .* GB more"):
        searched(Request(huge, SITE, 8, devices=(8,)))
    # 18 bytes a parameter of 174e9 are 49 GB a device of 64, and 24.5 of 128; there are 42.5
    with pytest.raises(InputError, match=r"\(32 a100-sxm4-40gb\); nearest: --devices 128$"):
        searched(Request(huge, SITE, 64, devices=(32,)))
    with pytest.raises(InputError, match=r"GB more .*; 16 devices: 2 nodes need a link: --link"):
        searched(Request(huge, SITE._replace(link=None), 8, devices=(8,)))
    slow = Request(SMALL, SITE, 64, devices=(8,), tokens=1e12, limits={"days": 1})
    with pytest.raises(InputError, match=r"take more than --days; the nearest has .* not 1 \(8 "):
        searched(slow)
    dear = Request(SMALL, SITE, 64, devices=(8,), limits={"budget_per_hour": 1})
    with pytest.raises(InputError, match="cost more than --budget-per-hour; the nearest has"):
        searched(dear)


def test_a_search_loads_nothing_heavy() -> None:
    code = (
        "import sys, steptime; "
        f"steptime.plan({SMALL!r}, 'h100-sxm5', 32, 4); "
        "print([name for name in ('scipy', 'pandas', 'torch', 'duckdb') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
    spread = plan_time(one, Asked(Plan(data=8, expert=8, zero=1), 1, 8))
    alone = plan_time(one, Asked(Plan(data=8, zero=1), 1, 8))
    groups = {(move.group, move.collective) for move in spread.exposures}
    assert ("expert", "all_to_all") in groups
    assert spread.memory[0].weights < alone.memory[0].weights
    rows = [m for m in spread.exposures if m.group == "expert"]
    assert rows[0].bytes == 4 * 8 * 2048 * 2 * 2048 * 2  # out and back, both passes; k rows of 2 B


def test_what_fills_the_memory_is_told() -> None:
    told = steptime.plan("llama2_13b", "a100-sxm4-40gb", 64, 8, length=4096)
    room, first = told["best"]["memory"]["device_bytes"], told["rows"][0]
    assert 0.95 * room < first["total_bytes"] <= room
    assert any("of the memory, which predictions miss" in note for note in told["best"]["notes"])

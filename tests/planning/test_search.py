"""The search for plans finds what trying all of them one by one finds."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from math import inf
from random import Random
from typing import Any

import pytest

import steptime
from steptime.core.errors import InputError
from steptime.core.units import format_seconds
from steptime.core.workload import RECOMPUTES, Plan
from steptime.planning.estimate import ScheduleAccuracy, estimate_plan
from steptime.planning.faults import find_fault
from steptime.planning.plan_space import PlanFamily, PlanSpace
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem
from steptime.planning.ranks.language_model import read_language_model
from steptime.planning.ranks.site import Site, build_cluster, make_sites
from steptime.planning.request import Request, make_problem
from steptime.planning.search import MEMORY, Search, SearchLimit, find_best_plans
from steptime.planning.step import time_plan
from steptime.questions.plan.device_groups import error_ratio
from steptime.questions.plan.question import answer_request
from steptime.questions.plan.search import search_plans

SMALL = "transformer:layers=8,width=2048,heads=16,vocabulary=32000,length=2048"
MIXED = f"{SMALL},experts=8,experts_per_token=2,expert_ffn=1024"
DEEP = "transformer:layers=12,width=4096,heads=32,vocabulary=32000,length=4096"
ODD = "transformer:layers={},width=2048,heads=16,vocabulary=32000,length=2048{}"
ROUTED = ",experts=8,experts_per_token=2,expert_ffn=512,dense_layers=3"
EACH = ROUTED.replace("dense_layers=3", "dense_layers=0")
SITE = Site("a100-sxm4-40gb", 8, "nvlink-3", "infiniband-hdr")


@cache
def planner(model: str = SMALL, devices: int = 16) -> PlanProblem:
    under = {"stack": "megatron-2025"}
    return make_problem(
        read_language_model(model),
        build_cluster(SITE, devices),
        "bfloat16-mixed",
        "calibrated",
        under,
    )


def counts(told: dict[str, Any]) -> dict[str, int]:
    """Return the numbers of plans that limits refuse."""
    return {row["name"]: row["plan_count"] for row in told["refused"]}


def ways(
    one: PlanProblem, devices: int = 16, batch: int = 64, per_node: int = 8, **fixed: Any
) -> list[PlanFamily]:
    return list(PlanSpace(one, devices, batch, per_node, fixed).families())


def every(some: Iterable[PlanFamily], batch: int = 64) -> list[PlanStep]:
    return [PlanStep(plan, b, batch) for plan, sizes in some for b in sizes]


@pytest.mark.parametrize(
    ("model", "devices"),
    [
        (SMALL, 16),
        (MIXED, 8),
        pytest.param(DEEP, 24, marks=pytest.mark.slow),
        pytest.param(ODD.format(61, ROUTED), 16, marks=pytest.mark.slow),
        pytest.param(ODD.format(126, ""), 32, marks=pytest.mark.slow),
    ],
)
def test_the_quick_answer_is_that_of_the_whole_one(model, devices):
    """A hundred drawn plans of each network, of those that a search may try."""
    one = planner(model, devices)
    for asked in Random(devices).sample(every(ways(one, devices, 96), 96), 100):  # noqa: S311
        told = estimate_plan(one, asked)
        whole = time_plan(one, asked)
        needed_bytes = max(memory.total for memory in whole.memory)
        assert told.needed_bytes == pytest.approx(needed_bytes, rel=1e-9)
        if told.step_s < inf:
            assert told.step_s == pytest.approx(whole.step_s, rel=1e-9)
            assert told.energy_j == pytest.approx(whole.energy_j, rel=1e-9)
            least = [
                estimate_plan(one, asked, near)
                for near in (ScheduleAccuracy.BUSIEST_DEVICE, ScheduleAccuracy.LONGEST_CHAIN)
            ]
            assert all(some.step_s <= told.step_s * (1 + 1e-12) for some in least)
            assert all((some.energy_j or 0) <= (told.energy_j or 0) * (1 + 1e-12) for some in least)
        else:
            assert told.needed_bytes > one.rank.room_bytes


def typed(one: PlanProblem, devices: int, batch: int) -> Iterator[PlanStep]:
    """Yield the plans that a person may type, within what a search says that it tries.

    That is tensor ranks inside a node of 8, each with at least 2,048 tokens of a sequence, ZeRO 0,
    1 or 3 over all or over a node, and microbatches that are, or are as many as, powers of 2.
    """
    powers = (1, 2, 4, 8)
    contexts = [c for c in powers if one.shape.length >= 2048 * c]
    for (t, c), p, v, e, (schedule, z, r, b) in product(
        product(powers, contexts), range(1, devices + 1), range(1, 9), powers,
        product(("1f1b", "zero-bubble"), (0, 1, 3), RECOMPUTES, range(1, batch + 1)),
    ):  # fmt: skip
        data, rest = divmod(devices, t * c * p)
        if rest or (z and data * c == 1) or not data or batch % (data * b):
            continue
        rounds = batch // (data * b)
        if b & (b - 1) and rounds & (rounds - 1):
            continue
        for shard in {0, 8 // t} if z and data * c > 8 // t > 1 else {0}:
            plan = Plan(
                data, t, p, e, t > 1, c, schedule=schedule, zero=z, recompute=r, virtual=v,
                shard=shard,
            )  # fmt: skip
            asked = PlanStep(plan, b, batch)
            if find_fault(one.shape, asked) is None and (p > 1 or schedule == "1f1b"):
                yield asked


@pytest.mark.slow
def test_every_split_is_tried_that_a_user_may_ask_for():
    for model, devices in ((MIXED, 8), (DEEP, 12), (ODD.format(14, ""), 16)):
        one = planner(model, devices)
        tried = every(ways(one, devices, 24), 24)
        assert len(set(tried)) == len(tried)
        assert set(typed(one, devices, 24)) == set(tried)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "more", "devices"),
    [
        (13, ROUTED, 4),
        pytest.param(62, "", 16, marks=pytest.mark.rare),
        pytest.param(126, "", 8, marks=pytest.mark.rare),
        pytest.param(61, ROUTED, 8, marks=pytest.mark.rare),
        pytest.param(94, EACH, 8, marks=pytest.mark.rare),
        pytest.param(126, "", 16, marks=pytest.mark.rare),
        pytest.param(126, "", 32, marks=pytest.mark.rare),
        pytest.param(62, "", 24, marks=pytest.mark.rare),
        pytest.param(61, ROUTED, 16, marks=pytest.mark.rare),
        pytest.param(61, ROUTED, 32, marks=pytest.mark.rare),
        pytest.param(94, EACH, 32, marks=pytest.mark.rare),
    ],
)
def test_no_single_plan_is_faster_than_the_searched_one(layers, more, devices):
    """Layers that stages do not divide: each plan that a person may type is asked for alone."""
    model, batch = ODD.format(layers, more), 32
    request = Request(model, SITE, batch, device_counts=(devices,), stack="megatron-2025")
    told = search_plans(request).to_dict()
    one = request.make_problem(request.shape, devices)
    found = [estimate_plan(one, asked) for asked in typed(one, devices, batch)]
    fit = sorted((alone for alone in found if alone.step_s < inf), key=lambda alone: alone.step_s)
    assert told["considered_count"] >= len(found) > 500  # beside them those with fewer layers again
    assert counts(told).get(MEMORY, 0) == len(found) - len(fit)
    best = told["best"]["step_s"]
    assert best <= fit[0].step_s * (1 + 1e-9)
    if not told["best"]["plan"].get("recompute_layers"):
        assert best == pytest.approx(fit[0].step_s, rel=1e-9)
    full = [alone.step for alone in fit if alone.step.plan.recompute == "full"]
    for asked in Random(layers).sample(full, min(len(full), 100)):  # noqa: S311
        stage = -(-layers // (asked.plan.pipeline * asked.plan.virtual))
        fewer = [estimate_plan(one, asked.change({"recompute_layers": n})) for n in range(1, stage)]
        assert all(best <= alone.step_s * (1 + 1e-9) for alone in fewer)
    for alone in fit[:3]:
        plan = {name: value for name, value in vars(alone.step.plan).items() if value}
        del plan["microbatches"]
        if plan.pop("sequence", False):
            plan["sequence_parallel"] = True
        single = steptime.plan(
            model, SITE.device, batch, inside=SITE.inside, link=SITE.link,
            microbatch=alone.step.microbatch, stack="megatron-2025", **plan,
        ).to_dict()  # fmt: skip
        assert single["fits"]
        assert single["step_s"] == pytest.approx(alone.step_s, rel=1e-9)
        assert single["memory"]["needed_bytes"] == pytest.approx(alone.needed_bytes, rel=1e-9)
        assert best <= single["step_s"] * (1 + 1e-9)


@pytest.mark.rare
def test_405b_is_not_slower_searched_than_by_hand():
    model = "llama3_1_405b"
    where: dict[str, Any] = {"inside": "nvlink-4", "link": "infiniband-ndr", "length": 8192}
    split: dict[str, Any] = {"tensor": 8, "context": 2, "pipeline": 16, "virtual": 8, "data": 64}
    by_hand = steptime.plan(
        model, "h100-sxm5", 2048, **where, **split, zero=1, sequence_parallel=True
    ).to_dict()
    told = steptime.plan(model, "h100-sxm5", 2048, 16384, **where).to_dict()
    assert by_hand["fits"]
    assert told["best"]["step_s"] <= by_hand["step_s"]
    assert told["best"]["plan"]["virtual"] > 1


SEEDS = (
    0,
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 3)),
    *(pytest.param(seed, marks=pytest.mark.rare) for seed in range(3, 20)),
)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_search_is_that_of_brute_force(seed):
    """Ten random spaces a seed: chosen parts of the split, limits anywhere in what there is."""
    random = Random(seed)  # noqa: S311
    for _ in range(10):
        model = random.choice((SMALL, MIXED, DEEP, ODD.format(13, "")))
        devices, batch = random.choice((1, 4, 6, 8, 16)), random.choice((24, 32, 64))
        one = planner(model, devices)
        fixed: dict[str, Any] = {
            name: random.choice(choices)
            for name, choices in (
                ("tensor", (1, 2, 4)), ("pipeline", (1, 2, 4)), ("zero", (0, 1, 3)),
                ("recompute", RECOMPUTES), ("microbatch", (1, 2, 4)), ("virtual", (1, 2)),
                ("schedule", ("1f1b", "gpipe", "zero-bubble")),
            )
            if random.random() < 0.5
        }  # fmt: skip
        some = ways(one, devices, batch, **fixed)
        some = random.sample(some, min(len(some), 40))
        tried = []
        for asked in every(some, batch):
            whole = time_plan(one, asked)
            held = max(memory.total for memory in whole.memory)
            tried.append((whole.step_s, held, whole.energy_j or 0.0))
        fit = [known for known in tried if known[1] <= one.rank.room_bytes]
        most_s, most_w = inf, inf
        if fit:
            most_s = random.choice(fit)[0] * random.choice((0.999, 1.001, 9))
            step_s, _, energy_j = random.choice(fit)
            most_w = energy_j / step_s * random.choice((0.999, 1.001, 9))
        caps = [
            SearchLimit("s", lambda found: found.step_s, most_s),
            SearchLimit("w", lambda found: (found.energy_j or 0.0) / found.step_s, most_w),
        ]
        left = [known for known in fit if known[0] <= most_s and known[2] / known[0] <= most_w]
        found = find_best_plans(one, some, batch, caps, inf)
        assert found.considered_count == len(tried)
        assert found.refused_counts[MEMORY] == len(tried) - len(fit)
        assert found.refused_counts["s"] == sum(known[0] > most_s for known in fit)
        assert found.refused_counts["w"] == sum(known[2] / known[0] > most_w for known in fit)
        assert sorted(found.steps_s) == pytest.approx(sorted(known[0] for known in left))
        if tried and not fit:
            assert found.nearest is not None
            assert found.nearest.value == pytest.approx(min(known[1] for known in tried))
        assert (found.nearest is None) == (bool(left) or not tried)
        _is_front(found, left)
        free = find_best_plans(one, some, batch)
        assert (free.considered_count, free.refused_counts[MEMORY]) == (
            len(tried),
            len(tried) - len(fit),
        )
        _is_front(free, fit)


def _is_front(found: Search, known: list[tuple[float, float, float]]) -> None:
    """Nobody beats the front in all by more than rounding, and who is in it is what it says."""
    front = [(mine.step_s, mine.needed_bytes, mine.energy_j or 0.0) for mine in found.front]
    for one in known:
        assert any(
            all(a <= b * (1 + 1e-9) for a, b in zip(mine, one, strict=True)) for mine in front
        )
    for mine in front:
        assert any(one == pytest.approx(mine, rel=1e-9) for one in known)
    if known:
        assert front[0][0] == pytest.approx(min(known)[0], rel=1e-9)


def test_offload_is_searched_where_a_host_is_joined():
    site = SITE._replace(host_link="pcie-4-x16")
    model = "transformer:layers=24,width=4096,heads=32,vocabulary=32000,length=2048"
    told = answer_request(Request(model, site, 16, device_counts=(2,))).to_dict()
    assert {row["offload"] for row in told["rows"]} - {"none"}
    assert "offload" not in told["space"]
    without = answer_request(Request(model, SITE, 16, device_counts=(4,))).to_dict()
    assert without["space"].endswith("offload without --host-link")


@pytest.mark.slow
def test_a_search_by_what_is_chosen_and_limited():
    told = search_plans(
        Request(SMALL, SITE, 64, device_counts=(8, 16), split={"tensor": 2, "zero": 1})
    ).to_dict()
    assert {row["tensor"] for row in told["rows"]} == {2}
    assert {row["zero"] for row in told["rows"]} <= {0, 1}
    assert told["best"]["step_s"] == min(row["step_s"] for row in told["rows"])
    assert told["fitting_count"] <= told["considered_count"]
    few = search_plans(
        Request(SMALL, SITE, 64, device_counts=(8, 16), limits={"watts": 8 * 400})
    ).to_dict()
    assert few["best"]["step_s"] > told["best"]["step_s"]
    assert all(row["energy_j"] / row["step_s"] <= 8 * 400 for row in few["rows"])
    assert counts(few)["watts"] > 0
    assert told["bound_by"]


@pytest.mark.rare  # test_assumed_stack.py has two devices with one stack
def test_several_devices_stand_side_by_side():
    many = make_sites(["a100-sxm4-80gb", "h100-sxm5"], link="infiniband-ndr")
    how = {"tokens": 1e9, "stack": "megatron-2025", "split": {"zero": 1}}
    asked = Request(SMALL, many[0], 64, device_counts=(8, 16), other_sites=(many[1],), **how)
    told = search_plans(asked).to_dict()
    assert [(row["device"], row["device_count"]) for row in told["by_device_count"]] == [
        ("a100-sxm4-80gb", 8), ("a100-sxm4-80gb", 16), ("h100-sxm5", 8), ("h100-sxm5", 16),
    ]  # fmt: skip
    for at, row in enumerate(told["by_device_count"]):
        alone = search_plans(
            Request(SMALL, many[at // 2], 64, device_counts=(row["device_count"],), **how)
        ).to_dict()
        assert row["step_s"] == alone["best"]["step_s"]
        assert row["cost_per_step"] == pytest.approx(alone["best"]["cost_per_step"])
    first, second = told["by_device_count"][:2]
    share = first["step_s"] * 8 / (second["step_s"] * 16)
    assert (first["efficiency"], second["efficiency"]) == (1.0, pytest.approx(share))
    fast, slow = told["by_device_count"][3], told["by_device_count"][1]
    assert told["best"]["device"] == "h100-sxm5"
    assert fast["is_as_fast"]
    assert slow["is_as_fast"] == (
        slow["any_stack_low_s"] <= fast["any_stack_high_s"]
    )  # of another type: intervals overlap
    cost = {best["name"]: best["row"] for best in told["best_by"]}["cost_per_step"]["cost_per_step"]
    assert cost == min(row["cost_per_step"] for row in told["rows"])
    assert told["headline"][0].startswith("16 h100-sxm5: ")
    with pytest.raises(InputError, match="several devices go with --device-count"):
        answer_request(Request(SMALL, many[0], 64, other_sites=(many[1],))).to_dict()


def test_the_link_of_a_node_is_that_of_the_device():
    near = build_cluster(Site("h100-sxm5"), 8).ladder[0].link
    assert (near.name, near.bytes_per_s) == ("nvlink-4", 450e9)
    for device, link in {"t4": "pcie-3-x16", "rtx-4080": "pcie-4-x16-host"}.items():
        assert build_cluster(Site(device, link="ethernet-1"), 2).ladder[0].link.name == link
    with pytest.raises(InputError, match="--link: 2 links for 3 devices"):
        make_sites(["t4", "a10", "l4"], link=["ethernet-10", "ethernet-25"])


def test_what_is_error_ratio():
    assert error_ratio(planner()) == pytest.approx(1.12, abs=0.002)  # exp(sqrt(2) 0.08)


@pytest.mark.rare
def test_nothing_fits_is_said_with_what_lacks():
    huge = "transformer:layers=96,width=12288,heads=96,length=2048"
    with pytest.raises(
        InputError, match=r"none of [\d,]+ splits fits; the nearest needs .* GB more"
    ):
        search_plans(Request(huge, SITE, 8, device_counts=(8,))).to_dict()
    # 18 bytes a parameter of 174e9 are 49 GB a device of 64, and 24.5 of 128; there are 42.5
    with pytest.raises(InputError, match=r"\(32 a100-sxm4-40gb\); nearest: --device-count 128$"):
        search_plans(Request(huge, SITE, 64, device_counts=(32,))).to_dict()
    with pytest.raises(InputError, match=r"GB more .*; 16 devices: 2 nodes need a link: --link"):
        search_plans(Request(huge, SITE._replace(link=None), 8, device_counts=(8,))).to_dict()
    slow = Request(SMALL, SITE, 64, device_counts=(8,), tokens=1e12, limits={"days": 1})
    with pytest.raises(InputError, match=r"take more than --days; the nearest has .* not 1 \(8 "):
        search_plans(slow).to_dict()
    dear = Request(SMALL, SITE, 64, device_counts=(8,), limits={"budget_per_hour": 1})
    with pytest.raises(InputError, match="cost more than --budget-per-hour; the nearest has"):
        search_plans(dear).to_dict()


def test_a_search_loads_nothing_heavy():
    code = (
        "import sys, steptime; "
        f"steptime.plan({SMALL!r}, 'h100-sxm5', 32, 4); "
        "print([name for name in ('scipy', 'pandas', 'torch', 'duckdb') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_python_asks_for_one_plan_or_for_the_best():
    told = steptime.plan(
        SMALL, "h100-sxm5", global_batch=32, inside="nvlink-4", tensor=4, data=2, zero=1
    ).to_dict()
    assert told["device_count"] == 8
    best = steptime.plan(
        SMALL, "h100-sxm5", global_batch=32, device_count=8, inside="nvlink-4"
    ).to_dict()
    assert best["best"]["step_s"] <= told["step_s"] * 1.001
    with pytest.raises(InputError, match="did you mean 'tensor'"):
        steptime.plan(SMALL, "h100-sxm5", tensr=4).to_dict()


def test_experts_lie_inside_the_replicas():
    model = f"{SMALL},experts=8,experts_per_token=2,expert_ffn=1024"
    one = planner(model, 8)
    spread = time_plan(one, PlanStep(Plan(data=8, expert=8, zero=1), 1, 8))
    alone = time_plan(one, PlanStep(Plan(data=8, zero=1), 1, 8))
    groups = {(move.group, move.collective) for move in spread.collectives}
    assert ("expert", "all_to_all") in groups
    assert spread.memory[0].weights < alone.memory[0].weights
    rows = [m for m in spread.collectives if m.group == "expert"]
    assert (
        rows[0].size_bytes == 4 * 8 * 2048 * 2 * 2048 * 2
    )  # out and back, both passes; k rows of 2 B


def test_what_fills_the_memory_is_said_with_the_fastest_plan_that_leaves_a_share():
    told = steptime.plan(
        "mpt_30b", "a100-sxm4-80gb", 64, 8, length=2048, stack="megatron-2025"
    ).to_dict()
    room, first = told["best"]["memory"]["usable_bytes"], told["rows"][0]
    assert 0.95 * room < first["needed_bytes"] <= room
    assert any("of the memory, which predictions miss" in note for note in told["best"]["notes"])
    leaves = next(row for row in told["rows"] if row["needed_bytes"] <= 0.95 * room)
    assert "; fills 98.3 % of the memory; tensor 4 x data 2" in "; ".join(told["headline"])
    assert told["headline"][-1].endswith(f"leaves 5 % and takes {format_seconds(leaves['step_s'])}")


def test_layers_computed_again_are_as_many_as_leave_a_share_of_the_memory():
    told = steptime.plan("llama2_13b", "a100-sxm4-40gb", 64, 8, length=4096).to_dict()
    room = told["best"]["memory"]["usable_bytes"]
    some = [row for row in told["rows"] if row["recompute_layers"]]
    assert some
    assert all(row["needed_bytes"] <= 0.95 * room for row in some)

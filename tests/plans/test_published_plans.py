"""How near plans come to published steps, where the project's reference data lies beside it."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, median

import pytest

from steptime.core.workload import Plan
from steptime.plans.planner import Planner
from steptime.plans.request import Asked, Site, checked, cluster_of, planner_of, shape_of
from steptime.plans.step import PlanTime, plan_time

Row = dict[str, str]
Pair = tuple[float, float]  # predicted, published

A100 = Site("a100-sxm4-80gb", 8, "nvlink-3", "infiniband-hdr", 4)  # 800 Gbit/s a node
DGX = Site("h100-sxm5", 8, "nvlink-4", "infiniband-ndr")
GB200 = Site("gb200", 72, "nvlink-5", "infiniband-ndr")
GPT = "transformer:layers={layers},width={hidden},heads={heads},vocabulary=51200,dropout=0.1"
STACKS = {"v3.0": "megatron-2023", "v3.1": "megatron-2023", "v4.0": "megatron-2024"}
NAMES = {
    "gpt3-175b": "gpt3_175b",
    "llama-3.1-405b": "llama3_1_405b",
    "LLAMA2-7B": "llama2_7b",
    "LLAMA2-70B": "llama2_70b",
    "GPT3-175B": "gpt3_175b",
}


def rows(shared: Path, name: str) -> Iterator[Row]:
    with (shared / "llm" / name).open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def whole(row: Row, name: str) -> int:
    return int(float(row[name] or 1))


def step(
    model: str, length: int, site: Site, plan: Plan, sizes: tuple[int, int], *how: str
) -> tuple[Planner, PlanTime]:
    shape, (dtype, stack) = shape_of(model, length), how
    cluster = cluster_of(site, plan.devices)
    planner = planner_of(shape, cluster, dtype, "calibrated", {"stack": stack})
    asked = checked(shape, Asked(plan, *sizes))
    return planner, plan_time(planner, asked.plan, *sizes)


def vtrain(shared: Path) -> Iterator[Pair]:
    for row in rows(shared, "vtrain_multi_dev.csv"):
        plan = Plan(
            tensor=whole(row, "tp"),
            data=whole(row, "dp"),
            pipeline=whole(row, "pp"),
            recompute="full",
        )
        sizes = whole(row, "micro_batch"), whole(row, "global_batch")
        found = step(GPT.format(**row), 2048, A100, plan, sizes, "float16", "megatron-2021")[1]
        yield found.step_s, float(row["step_s"])


def foundry(shared: Path) -> Iterator[Pair]:
    for row in rows(shared, "llm_foundry_dev.csv"):
        known = {"125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12)}
        known |= {"1b": (24, 2048, 16), "3b": (32, 2560, 20), "7b": (32, 4096, 32)}
        known |= {"13b": (40, 5120, 40), "30b": (48, 7168, 56), "70b": (80, 8192, 64)}
        layers, width, heads = known[row["model"].removeprefix("mpt-")]
        text = f"layers={layers},width={width},heads={heads},vocabulary=50368,bias=no"
        site = A100._replace(
            device=f"a100-sxm4-{row['device'][-4:]}".replace("_", ""), links_per_node=8
        )
        plan = Plan(data=whole(row, "devices"), zero=3, recompute=row["recompute"])
        sizes = whole(row, "micro_batch"), whole(row, "global_batch")
        length = whole(row, "sequence")
        model = f"transformer:{text}"
        found = step(model, length, site, plan, sizes, "bfloat16", "fsdp-2023")[1]
        yield found.step_s, float(row["step_s"])


def split(row: Row, virtual: int) -> Plan:
    tensor, pipeline, context = (whole(row, name) for name in ("tp", "pp", "cp"))
    data = whole(row, "devices") // (tensor * pipeline * context)
    return Plan(
        tensor=tensor, pipeline=pipeline, context=context, data=data, virtual=virtual, zero=1,
        sequence=tensor > 1,
    )  # fmt: skip


def mlperf(shared: Path) -> Iterator[Pair]:
    for row in rows(shared, "mlperf_steps_dev.csv"):
        if not row["tp"]:
            continue  # TPUs, whose split nobody says
        site = GB200 if row["device"] == "gb200" else DGX._replace(device=row["device"])
        plan = split(row, whole(row, "vp") if row["vp"] else 6)
        sizes = whole(row, "micro_batch"), whole(row, "global_batch")
        stack = STACKS.get(row["round"], "megatron-2025")
        length = whole(row, "sequence")
        found = step(NAMES[row["model"]], length, site, plan, sizes, "float8", stack)[1]
        yield found.step_s, float(row["step_s"])


def nemo(shared: Path) -> Iterator[Pair]:
    for row in rows(shared, "nemo_h100_dev.csv"):
        if row["task"] != "pretrain" or row["model"] not in NAMES:
            continue
        plan, length = split(row, whole(row, "vp")), whole(row, "sequence")
        sizes = whole(row, "micro_batch"), whole(row, "global_batch")
        model = NAMES[row["model"]]
        found = step(model, length, DGX, plan, sizes, "float8", "megatron-2024")[1]
        speed = float(row["tokens_per_s_per_device"]) * whole(row, "devices")
        yield found.step_s, sizes[1] * length / speed


@pytest.mark.parametrize(
    ("read", "most", "middle"),
    [(vtrain, 0.09, 0.06), (foundry, 0.055, 0.05), (mlperf, 0.08, 0.07), (nemo, 0.05, 0.05)],
)
def test_steps_come_near_to_published_ones(
    read: Callable[[Path], Iterator[Pair]], most: float, middle: float, shared: Path
) -> None:
    errors = [abs(predicted / published - 1) for predicted, published in read(shared)]
    assert len(errors) > 2
    assert mean(errors) < most
    assert median(errors) < middle


def test_parameters_are_those_of_the_models(shared: Path) -> None:
    for row in rows(shared, "models.csv"):
        name = row["model"].replace("-", "_").replace(".", "_").replace("llama_", "llama")
        shape = shape_of(name)
        one = planner_of(shape, cluster_of(DGX, 1), "bfloat16", "calibrated", {})
        assert one.parameters == int(row["parameters_by_formula"]), name
        assert one.active == pytest.approx(int(row["active_by_formula"])), name

"""Plans of networks that are no language models: their step is that of `scale`."""

from itertools import pairwise
from math import inf
from random import Random
from typing import Any

import pytest

import steptime
from every import every
from steptime.build import make_workload, read_model
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.grids.replicas import Sync, data_parallel
from steptime.hardware import catalog
from steptime.planning.answer import time_request
from steptime.planning.estimate import estimate_plan
from steptime.planning.plan_space import PlanSpace
from steptime.planning.plan_step import PlanStep
from steptime.planning.ranks.language_model import read_language_model
from steptime.planning.ranks.network import balance_stages, cut_rows
from steptime.planning.ranks.site import Site, build_cluster
from steptime.planning.request import Request, make_problem
from steptime.planning.search import find_best_plans
from steptime.planning.step import time_plan
from steptime.prediction.collectives import EXCHANGES, ring
from steptime.prediction.fabric import Fabric
from steptime.prediction.lower import Row
from steptime.prediction.steps.step_model import StepModel
from steptime.questions.plan.price import answer_plan
from steptime.questions.plan.search import search_plans

SITE = Site("v100", 8, "nvlink-2", "infiniband-edr")
NETWORKS = (
    "cnn:block=residual,blocks=1,filters=8,image=32,classes=5", "fc:layers=3,nodes=2048",
    "rnn:length=20",
)  # fmt: skip


def scaled(
    model: str, replicas: int, batch: int, overlap: bool, optimizer: str | None = None
) -> Any:
    workload = make_workload(read_model(model), str(batch), None, "train", optimizer)
    link, inside = catalog.link("infiniband-edr"), catalog.link("nvlink-2")
    fabric = Fabric(link, inside, 8, 8) if replicas > 8 else Fabric(inside)
    found = StepModel(workload, "v100", fabric)
    return data_parallel(found, [replicas], batch, "strong", Sync(overlap=overlap))[0]


@every("gradients", [0, 16])
def test_bits_of_gradients_of_another_network_are_refused_by_their_name(gradients):
    request = Request("fc:layers=3,nodes=64", SITE, gradients=gradients)
    with pytest.raises(InputError, match=r"^--gradients goes with"):
        _ = request.shape


@every("model", NETWORKS)
@every("replicas", [8, 32])
def test_replicas_alone_take_what_scale_says(model, replicas):
    told = answer_plan(Request(model, SITE, 256, split={"data": replicas})).to_dict()
    beside, after = (scaled(model, replicas, 256, overlap) for overlap in (True, False))
    assert told["step_s"] == pytest.approx(beside.step_s, rel=1e-12)
    assert (told["low_s"], told["high_s"]) == pytest.approx((beside.low_s, beside.high_s))
    (exchange,) = told["exposed_communication"] or [
        {"communication_s": 0.0, "exposed_communication_s": 0.0}
    ]
    later = told["step_s"] - exchange["exposed_communication_s"] + exchange["communication_s"]
    assert later == pytest.approx(after.step_s, rel=1e-12)


@every(("optimizer", "device"), [("sgd", "v100"), ("momentum", "h100"), ("adam", "mi300x")])
def test_one_device_needs_what_a_prediction_says(optimizer, device):
    told = answer_plan(Request("resnet50", Site(device), 64, optimizer=optimizer)).to_dict()
    workload = make_workload(read_model("resnet50"), "64", "float32", "train", optimizer)
    needs = StepModel(workload, device).needs()
    assert told["memory"]["needed_bytes"] == needs.total_bytes
    assert sum(told["memory"]["by_part"].values()) == needs.total_bytes
    assert told["memory"]["by_part"]["weights_bytes"] == 4 * 25_557_032
    assert told["usable_bytes"] == catalog.device(device).datasheet.usable_bytes


def test_states_are_those_of_the_optimizer_and_shared_out():
    shared = answer_plan(
        Request("resnet50", SITE, 512, split={"data": 8, "zero": 1}, optimizer="adam")
    ).to_dict()
    assert shared["memory"]["by_part"]["states_bytes"] == pytest.approx(8 * 25_557_032 / 8)


def test_a_graph_is_cut_where_one_tensor_alone_crosses():
    rows = [
        Row("a", "", parents=("",)), Row("b", "", parents=("a",)), Row("c", "", parents=("b",)),
        Row("sum", "", parents=("a", "c")), Row("d", "", parents=("sum",)),
        Row("loss", "", parents=("d", "")),
    ]  # fmt: skip
    pieces = [[row.name for row in piece] for piece in cut_rows(rows)]
    assert pieces == [["a"], ["b", "c", "sum"], ["d"], ["loss"]]  # a residual block stays whole


def test_stages_are_shared_out_by_seconds():
    random = Random(1)  # noqa: S311
    for _ in range(200):
        seconds = [random.choice((0.0, 1.0, random.random())) for _ in range(random.randint(1, 9))]
        stages = random.randint(1, len(seconds))
        counts = balance_stages(seconds, stages)
        assert sum(counts) == len(seconds)
        assert len(counts) == stages
        assert min(counts) > 0
        assert longest(seconds, counts) == pytest.approx(best(seconds, stages))


def longest(seconds: list[float], counts: tuple[int, ...]) -> float:
    ends = [0, *(sum(counts[: k + 1]) for k in range(len(counts)))]
    return max(sum(seconds[a:b]) for a, b in pairwise(ends))


def best(seconds: list[float], stages: int) -> float:
    if stages == 1:
        return sum(seconds)
    return min(
        max(sum(seconds[:first]), best(seconds[first:], stages - 1))
        for first in range(1, len(seconds) - stages + 2)
    )


def test_a_pipeline_has_all_of_the_network():
    problem, whole = time_request(Request("resnet50", SITE, 32, 8, split={"recompute": "full"}))
    _, found = time_request(Request("resnet50", SITE, 32, 8, split={"pipeline": 4}))
    assert sum(found.layers) == len(problem.shape.kinds) == sum(whole.layers)
    held = sum(memory.weights for memory in found.memory)
    assert held == pytest.approx(4 * 25_557_032)
    one = StepModel(problem.shape.workload, "v100").timeline(8)  # type: ignore[attr-defined]
    assert found.run is not None
    busy = [sum(e.end_s - e.start_s for e in found.run.events if e.device == d) for d in range(4)]
    assert sum(busy) == pytest.approx(4 * (one.forward_s + one.backward_s))
    assert max(busy) < 1.35 * sum(busy) / 4
    (sent,) = [move for move in found.collectives if move.collective == "send"]
    crossing = sent.size_bytes / (2 * 4) / 8 / 4  # there and back, 4 microbatches of 8, 4 bytes
    assert crossing in {56 * 56 * 256, 28 * 28 * 512, 14 * 14 * 1024}  # behind a residual block
    assert whole.recompute_s == pytest.approx(4 * one.forward_s)


@pytest.mark.parametrize(
    "model", [pytest.param("resnet50", marks=pytest.mark.slow), "rnn:length=20"]
)
def test_the_search_is_that_of_brute_force(model):
    request = Request(model, SITE, 24, device_counts=(4,), optimizer="adam")
    problem = request.make_problem(request.shape, 4)
    ways = [*PlanSpace(problem, 4, 24, 8, {}).families()]
    space = [PlanStep(plan, b, 24) for plan, sizes in ways for b in sizes]
    assert {asked.plan.zero for asked in space} == {0, 1, 3}
    assert {asked.plan.pipeline for asked in space} == {1, 2, 4}
    assert {asked.microbatch for asked in space} >= {1, 2, 3, 6}
    fastest = []
    for asked in space:
        whole = time_plan(problem, asked)
        told = estimate_plan(problem, asked)
        assert told[1:3] == pytest.approx((max(m.total for m in whole.memory), whole.energy_j))
        assert told.step_s == pytest.approx(whole.step_s)
        fastest.append(whole.step_s)
    assert find_best_plans(problem, ways, 24).front[0].step_s == pytest.approx(min(fastest))
    best_of = search_plans(request).to_dict()["best"]
    assert best_of["unit"] == "examples"
    assert {row["name"]: row["share"] for row in best_of["mfu"]}["6N"] is None


@pytest.mark.slow
@pytest.mark.onnx
def test_a_file_is_as_its_network(tmp_path):
    told = steptime.plan("resnet18", "v100", 64, 2).to_dict()
    path = tmp_path / "net.onnx"
    assert run(["convert", "resnet18", "-o", str(path)]) == 0
    filed = steptime.plan(path, "v100", 64, 2).to_dict()
    assert filed["best"]["step_s"] == pytest.approx(told["best"]["step_s"], rel=0.01)
    assert filed["best"]["parameters"] == told["best"]["parameters"]


@every("inside", ["nvlink-2", "nvlink-3", "nvlink-4", "nvlink-5"])
@every("kind", ["all_reduce", "all_gather", "send"])
def test_one_rate_of_a_link(inside, kind):
    """Exchanges of a step and of a plan take the same seconds for the same bytes."""
    cluster, size = build_cluster(Site("h100", 8, inside, "infiniband-ndr"), 16), 1e8
    fabric = StepModel("fc", "h100", cluster).fabric
    assert fabric is not None
    step_s = (ring if kind == "all_reduce" else EXCHANGES[kind])(size, 16, fabric)
    problem = make_problem(read_language_model("llama3_8b"), cluster, None, "calibrated", {})
    slow = problem.rank.constant("exchange_slow")
    later_s = problem.rank.constant("send_s" if kind == "send" else "exchange_s")
    told_s = problem.collective_time(kind, size, range(16)).seconds
    large_s = problem.rank.constant("exchange_large_s") or inf
    assert told_s == pytest.approx(min(step_s * max(1, slow) + later_s, step_s + large_s))

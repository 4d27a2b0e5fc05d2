"""Plans: what a rank keeps and exchanges, by hand arithmetic and published formulas."""

import json
from math import log
from typing import Any

import pytest

import steptime
from every import every
from steptime.cli.main import run
from steptime.core.workload import Plan
from steptime.planning.faults import check_step
from steptime.planning.pipelines.stages import split_layers
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem
from steptime.planning.ranks.language_model import read_language_model
from steptime.planning.ranks.pieces import Piece
from steptime.planning.ranks.site import Site, build_cluster
from steptime.planning.request import make_problem
from steptime.planning.step import PlanTime, time_plan

GPT = "transformer:layers=96,width=12288,heads=96,length=2048,vocabulary=51200,dropout=0.1"
SBH = 2048 * 12288  # of a microbatch of one sequence
NORMS = 2 * 2 * 4 * 2048  # mean and deviation of two norms, in float32, which the paper neglects


def planner(model: str = GPT, devices: int = 64, **options: str) -> PlanProblem:
    cluster = build_cluster(Site("a100-sxm4-80gb", 8, "nvlink-3", "infiniband-hdr"), devices)
    options = {"stack": "megatron-2025", **options}
    return make_problem(read_language_model(model), cluster, "float16-mixed", "calibrated", options)


def layer(plan: Plan, microbatch: int = 1) -> Piece:
    return planner().rank.pieces(plan, microbatch)["block1"]


def step(plan: Plan, microbatch: int, batch: int, model: str = GPT) -> PlanTime:
    found = planner(model, plan.device_count)
    asked = check_step(found.shape, PlanStep(plan, microbatch, batch))
    return time_plan(found, asked)


@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_activations_are_those_of_korthikanti(tensor):
    held = layer(Plan(tensor=tensor)).activations  # arXiv:2205.05198, equation 2, scores not kept
    sums = 4 * 2048 * 96 // tensor  # flash attention keeps a float32 of each query and head
    assert held.saved_bytes - sums - NORMS == SBH * (10 + 24 / tensor)
    assert (held.attention_bytes, held.input_bytes) == (sums, 2 * SBH)


def test_what_products_in_8_bit_alone_read_is_kept_in_8_bit():
    cluster = build_cluster(Site("h100-sxm5"), 1)
    under = {"stack": "megatron-2025"}
    one = make_problem(read_language_model(GPT), cluster, "float8", "calibrated", under)
    held = one.rank.pieces(Plan(), 1)["block1"].activations
    # both norms' results and GELU's: 12 of 34
    assert held.saved_bytes - held.attention_bytes - NORMS == SBH * (34 - 12 / 2)


def test_sequence_parallel_shares_all_of_them():
    held = layer(Plan(tensor=8, sequence=True), 2).activations  # equation 4
    assert held.saved_bytes - held.attention_bytes - 2 * NORMS / 8 == 2 * SBH * 34 / 8
    assert held.input_bytes == 2 * 2 * SBH / 8


def test_states_of_a_parameter_are_18_bytes_less_what_zero_shares_out():
    whole = step(Plan(tensor=8, pipeline=8), 1, 8).memory[1]
    model = whole.weights + whole.gradients + whole.states
    assert model == pytest.approx(18 * 12 * 12 * 12288**2 / 8, rel=4e-4)  # biases, norms left out
    shared = step(Plan(tensor=8, pipeline=8, data=4, zero=1), 1, 32).memory[1]
    assert shared.states == pytest.approx(whole.states / 4)
    assert (shared.weights, shared.gradients) == (whole.weights, whole.gradients)


def test_the_first_stage_of_1f1b_holds_a_microbatch_a_stage():
    kept = layer(Plan(tensor=8)).activations
    found = step(Plan(tensor=8, pipeline=8, recompute="full"), 1, 64).memory
    flights = [8, 7, 6, 5, 4, 3, 2, 1]
    working = kept.working_bytes + kept.saved_bytes
    for d in range(1, 8):
        expected = 1.04 * (12 * flights[d] * kept.input_bytes + working)
        assert found[d].activations == pytest.approx(expected)
    assert found[0].activations > found[1].activations
    assert [one.logits > 0 for one in found] == [False] * 7 + [True]


def test_126_layers_are_128_with_embedding_and_head():
    assert split_layers(126, 16) == (7, *[8] * 14, 7)
    assert split_layers(96, 8) == (12,) * 8
    assert split_layers(10, 4) == (2, 3, 3, 2)


def test_a_step_is_its_parts():
    found = step(Plan(tensor=8, pipeline=4, data=2, zero=1, recompute="full"), 1, 64)
    parts = found.compute_s + found.recompute_s + found.host_s + found.update_s
    parts += found.exposed_s + found.bubble_s + found.outside_layers_s
    assert parts == pytest.approx(found.step_s)
    late = 0.025 * log(1 + 63 / 1024)  # of the slowest of 64 devices
    end_s = found.step_s - found.outside_layers_s
    assert found.outside_layers_s == pytest.approx(0.01 + late * end_s)
    assert found.bubble_share == pytest.approx(3 / (32 + 3), rel=0.2)  # p - 1 of m + p - 1
    assert found.low_s < found.step_s < found.high_s
    assert found.recompute_s == pytest.approx(found.compute_s / 3, rel=0.15)
    groups = {(one.group, one.collective) for one in found.collectives}
    assert groups == {
        ("tensor", "all_reduce"),
        ("data", "reduce_scatter"),
        ("data", "all_gather"),
        ("embedding", "all_reduce"),
        ("pipeline", "send"),
    }
    links = {one.group: one.link for one in found.collectives}
    assert links["tensor"] == "nvlink-3"
    assert links["pipeline"] == "infiniband-hdr"


def test_more_of_everything_costs_what_it_must():
    one = step(Plan(tensor=8, pipeline=4), 1, 32)
    assert step(Plan(tensor=8, pipeline=4), 1, 64).step_s > 1.8 * one.step_s
    assert step(Plan(tensor=8, pipeline=4, recompute="full"), 1, 32).step_s > 1.2 * one.step_s
    more = step(Plan(tensor=8, pipeline=4, virtual=3), 1, 32)
    assert more.step_s < one.step_s  # a smaller bubble
    assert more.memory[0].activations > one.memory[0].activations


def shares(told: dict[str, Any]) -> dict[str, float | None]:
    """Return the shares of the peak by the convention of counting."""
    return {row["name"]: row["share"] for row in told["mfu"]}


def answer(words: str, capsys: pytest.CaptureFixture[str]) -> Any:
    assert run(["plan", *words.split(), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("model", ["gemma3_12b", "llama3_2_1b"])
def test_flop_of_a_plan_are_those_that_count_says(model):
    """Of unlike layers each stands for its kind alone: gemma's sixth of a window's five."""
    told = steptime.plan(model, device="h100", global_batch=1, length=2048).to_dict()
    whole = steptime.count(f"{model}:length=2048", batch=1, phase="infer").to_dict()["flop"]
    products = shares(told)["full"] * told["step_s"] * 989e12 / 3
    assert 0.999 * whole < products < whole  # norms and activations are none


def test_the_command_answers_by_documented_keys(capsys):
    words = f"{GPT} --device h100-sxm5 --inside nvlink-4 --link infiniband-ndr --tensor 8"
    told = answer(f"{words} --pipeline 8 --global-batch 16 --dtype float8 --tokens 1e12", capsys)
    assert told["device_count"] == 64
    assert told["low_s"] < told["step_s"] < told["high_s"]
    assert set(shares(told)) == {"full", "half", "6N"}
    a_token = 72 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (12 * 96 * 12288))
    flop = a_token * 16 * 2048  # Narayanan and others 2021, without recomputation
    reached = flop / told["step_s"] / 64 / 1979e12
    assert shares(told)["full"] == pytest.approx(reached, rel=1e-9)
    assert len(told["memory"]["by_stage"]) == 8
    parts = told["memory"]["by_part"]
    assert sum(parts.values()) == pytest.approx(told["memory"]["needed_bytes"])
    assert told["training"]["steps"] == pytest.approx(1e12 / 16 / 2048)


@pytest.mark.slow
def test_what_does_not_fit_says_by_how_much_and_what_would(capsys):
    told = answer(f"{GPT} --device a100-sxm4-80gb --inside nvlink-3 --tensor 8", capsys)
    assert not told["fits"]
    memory = told["memory"]
    assert memory["over_bytes"] == pytest.approx(memory["needed_bytes"] - 80 * 2**30 * 0.99)
    assert told["nearest_fitting"] is None  # 175e9 parameters on 8 devices
    small = GPT.replace("96,width=12288,heads=96", "24,width=4096,heads=32")
    words = f"{small} --device a100-sxm4-80gb --inside nvlink-3 --data 8 --global-batch 64"
    told = answer(f"{words} --microbatch 8", capsys)
    near = told["nearest_fitting"]
    assert not told["fits"]
    assert near["needed_bytes"] <= 80 * 2**30
    assert near["step_s"] < told["step_s"] * 1.5


def test_the_run_of_a_pipeline_is_a_trace(tmp_path, capsys):
    path = tmp_path / "run.json"
    words = f"{GPT} --device a100-sxm4-80gb --inside nvlink-3 --pipeline 4 --global-batch 8"
    told = answer(f"{words} --trace {path}", capsys)
    events = json.loads(path.read_text("utf-8"))["traceEvents"]
    run = [event for event in events if event["ph"] == "X"]
    assert len([event for event in run if event["cat"] == "backward"]) == 4 * 8
    waits = sum(event["dur"] for event in run if event["name"] == "bubble") / 1e6
    assert waits / 4 > told["parts"]["bubble_s"] > 0  # the busiest waits least


@every("device", ["xeon-platinum-8480-plus", "mi300x", "tpu-v5e", "gaudi2"])
@every("command", ["plan", "serve"])
def test_devices_of_every_kind_are_answered(command, device, capsys):
    words = [command, "transformer:layers=2,width=256,heads=4,length=256", "--device", device]
    assert run([*words, *(["--input", "128"] if command == "serve" else []), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    of = "tpot_" if command == "serve" else ""
    assert 0 < told[f"{of}low_s"] < told[f"{of}high_s"]


def test_a_stack_that_saw_no_step_on_a_device_is_said(capsys):
    model = "transformer:layers=2,width=256,heads=4,length=256"
    under = f"{model} --stack megatron-2025"
    said = "fitted to no step on a100-sxm4-80gb"

    def notes(words: str) -> str:
        return "; ".join(answer(words, capsys)["notes"])

    assert said in notes(f"{under} --device a100")
    assert "fitted to no step" not in notes(f"{under} --device h100")
    # one device under a stack without such constants is what `predict` says
    assert "fitted to no step" not in notes(f"{model} --device a100")
    # another network takes no constant of the stack that was fitted to steps
    assert not answer("resnet50 --device v100 --global-batch 1", capsys)["notes"]

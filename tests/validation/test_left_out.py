"""Groups of published steps left out of the constants, and what a stack knows of a device."""

import numpy as np
import pytest

from steptime.calibration.plan_rows import Question, Reply
from steptime.core.toml_files import read_packaged_toml
from steptime.core.workload import Plan
from steptime.planning.problem import PlanProblem
from steptime.planning.ranks.site import Site
from steptime.planning.request import Request
from validation.left_out import CUT, FARTHEST, parts_of, share
from validation.sets import constants_of_stack
from validation.ways import Row, Way, neutral

SMALL = "transformer:layers=2,width=4096,heads=32,vocabulary=32000"


def planner(device: str, stack: str) -> PlanProblem:
    request = Request(SMALL, Site(device), length=8192, stack=stack)
    return request.make_problem(request.shape, 1)


def test_a_constant_goes_as_far_as_the_rows_that_are_left_say():
    way = np.array([[0.2, 0.0], [0.2, 0.1], [0.1, 0.1], [0.1, 0.0]])
    found = share(way, way @ [1.0, 0.5])
    assert found == pytest.approx([1.0, 0.5], abs=0.05)  # less what the ridge holds back
    many = np.vstack([way] * 5)
    off = many @ [1.0, 0.5]
    off[0] += 10 * CUT  # a row far off moves it little
    assert share(many, off) == pytest.approx([1.0, 0.5], abs=0.25)
    assert share(many, many @ [9.0, -9.0]).tolist() == [FARTHEST, 0.0]


def test_a_constant_that_no_row_has_seen_stays_neutral():
    way = np.array([[0.2, 0.0], [0.1, 0.0]])
    assert share(way, way @ [1.0, 1.0])[1] == 0
    assert share(way[:0], np.empty(0)).tolist() == [0, 0]


def test_neutral_is_what_the_line_of_a_stack_says_without_the_rows():
    def at(stack: str, name: str) -> float | None:
        return neutral(name, constants_of_stack(stack)[name], stack)

    assert at("megatron-2024", "training.products") == 1  # torch-eager's; 2023's was told, too
    assert at("megatron-2025", "training.routed_bytes") == 26  # counted: nothing told it
    assert at("fsdp-2022", "training.stops_early") == 1
    assert at("vllm-2025", "serving.sequence_s") == 5e-6  # judged, of a stack before it
    assert at("torch-eager", "training.straggling") is None
    assert at("fsdp-2022", "training.softmax") is None


def test_a_constant_stands_on_its_way_and_what_nobody_says_from_half_of_it_on():
    moves = np.zeros(1)
    way = Way("training.products", (), moves, 1.28, {"a": 1.0, "b": None})
    assert way.at(0.5) == {"a": pytest.approx(1.14), "b": pytest.approx(1.14)}
    assert way.at(0.4)["b"] is None
    late = Way("training.straggling", (), moves, 0.025, {"a": None})
    assert late.at(1.0) == {"a": 0.025}


def test_a_serving_is_left_out_by_model_and_device_and_a_step_by_its_set():
    texts = {"device": "h100-sxm5", "model": "llama3_8b"}

    def row(**measured: float) -> Row:
        question = Question("x", "x:1", lambda *_: Reply({}), texts, {}, measured)
        return Row("mine", question, Reply({}))

    assert parts_of(row(ttft_s=1.0)) == {("device", "h100-sxm5"), ("model", "llama3_8b")}
    assert parts_of(row(step_s=1.0)) == {("set", "mine")}


def test_attention_is_slower_where_a_limit_of_power_holds_products_back():
    pieces = [
        planner(device, "torch-eager").rank.pieces(Plan(), 1)["block1"]
        for device in ("h100-sxm5", "h100-sxm5-96gb")
    ]
    free, held = (piece.attention_s.forward_s for piece in pieces)
    assert held / free == pytest.approx(
        (700 / 500) ** (1 / 1.8), rel=0.05
    )  # W; clocks fall with joules


def test_heads_of_64_take_as_long_as_of_128_before_flash_attention_2():
    def core_s(heads: int, stack: str) -> float:
        model = SMALL.replace("heads=32", f"heads={heads}")
        request = Request(model, Site("a100-sxm4-80gb"), length=8192, stack=stack)
        rank = request.make_problem(request.shape, 1).rank
        return rank.pieces(Plan(), 1)["block1"].attention_s.forward_s

    assert core_s(64, "fsdp-2023") == pytest.approx(core_s(32, "fsdp-2023"), rel=0.01)
    later = core_s(64, "torch-eager") / core_s(32, "torch-eager")
    assert later == pytest.approx((1 + 40 / 64) / (1 + 40 / 128), rel=0.03)  # beside memory


def test_the_interval_is_wider_on_a_device_that_nobody_measured():
    measured, unmeasured = (
        planner(device, "megatron-2025").rank.step_bounds for device in ("h100-sxm5", "mi300x")
    )
    scale = read_packaged_toml("intervals.toml")["scales"]["unmeasured"]
    assert np.log(unmeasured.high) == pytest.approx(scale * np.log(measured.high))

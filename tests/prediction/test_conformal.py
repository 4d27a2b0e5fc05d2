"""Intervals by kind of work: the shipped file, and how it reaches predictions."""

from dataclasses import replace
from math import exp, log

import pytest

from steptime.core.toml_files import read_packaged_toml
from steptime.hardware import catalog
from steptime.prediction import conformal
from steptime.prediction.collectives import STARTUP_SPREAD
from steptime.prediction.conformal import (
    KINDS,
    TOO_CLOSE,
    TRAININGS,
    device_scale,
    find_ends,
    find_typical_ends,
    judge_memory,
    widen,
)
from steptime.questions.fit.question import fit
from steptime.questions.plan.question import plan
from steptime.questions.serve.question import serve

MEASURED = "a100-sxm4-80gb"


def test_the_file_has_all_kinds_and_known_devices() -> None:
    table = read_packaged_toml(conformal.FILE)
    assert {*table["kinds"]} == {*KINDS}
    for name in table["devices"]:
        assert catalog.device(name).name == name
    for row in table["kinds"].values():
        assert row["below"] > 0
        assert row["above"] > 0
        assert row["campaigns"]
    close, memory = table["close_memory"], table["kinds"]["memory"]
    assert 0 < close["below"] <= memory["below"]
    assert 0 < close["above"] <= memory["above"]
    assert table["source"]
    assert table["date"]


def test_scales_grow_with_what_is_not_known() -> None:
    scales = read_packaged_toml(conformal.FILE)["scales"]
    assert 1 <= scales["family"] <= scales["unmeasured"]
    assert scales["assumed_software"] >= 1
    device = catalog.device(MEASURED)
    assert device_scale(device) == 1
    stranger = replace(device.with_figures(architecture="an unheard of one"), name="a stranger")
    assert device_scale(stranger) == scales["unmeasured"]
    assert device_scale(replace(device, name="a sibling")) == scales["family"]


def test_ends_are_those_of_the_kind_times_the_scale() -> None:
    row = read_packaged_toml(conformal.FILE)["kinds"][TRAININGS]
    device = catalog.device(MEASURED)
    interval = find_ends(TRAININGS, device).interval_around(2.0)
    assert interval.low == pytest.approx(2 * exp(-row["below"]))
    assert interval.high == pytest.approx(2 * exp(row["above"]))


def test_widening_keeps_the_value_inside_and_a_calibrated_device_as_it_is() -> None:
    device = catalog.device(MEASURED)
    low, high = widen(conformal.KERNELS, 1.0, 0.8, 1.25, device)
    row = read_packaged_toml(conformal.FILE)["kinds"][conformal.KERNELS]
    assert log(low) == pytest.approx(row["below"] * log(0.8))
    assert log(high) == pytest.approx(row["above"] * log(1.25))
    assert widen(conformal.DEVICE_STEPS, 0.0, 0.0, 0.0, device) == (0.0, 0.0)  # a step of nothing
    own = device.with_calibration({"intervals": {"product": [-0.1, 0.1]}})
    assert widen(conformal.KERNELS, 1.0, 0.8, 1.25, own) == (0.8, 1.25)


def test_work_without_a_half_width_of_its_own_has_the_usual_one() -> None:
    device = catalog.device(MEASURED)
    row = read_packaged_toml(conformal.FILE)["kinds"][conformal.DEVICE_STEPS]
    ends = find_typical_ends(conformal.DEVICE_STEPS, device)
    assert ends.above == pytest.approx(row["above"] * row["half_width"])


def test_a_collective_that_starts_slowly_is_further_off_than_one_of_many_bytes() -> None:
    answer = plan("llama3_8b", MEASURED, 8, tensor=2, data=4, stack="megatron-2024")
    widths = {
        row.group: log(row.communication_high_s / row.communication_low_s)
        for row in answer.exposed_communication
    }
    row = read_packaged_toml(conformal.FILE)["kinds"][conformal.COLLECTIVES]
    widest = (row["below"] + row["above"]) * STARTUP_SPREAD
    assert 0 < widths["data"] < 0.5 * widest
    assert widths["tensor"] < widest


def test_memory_is_judged_by_its_interval() -> None:
    device = catalog.device(MEASURED)
    row = read_packaged_toml(conformal.FILE)["close_memory"]
    needed = 1e10
    assert judge_memory(needed, needed * exp(row["above"]) * 1.01, device).verdict == "yes"
    assert judge_memory(needed, needed * exp(-row["below"]) * 0.99, device).verdict == "no"
    assert judge_memory(needed, needed, device).verdict == TOO_CLOSE
    assert judge_memory(needed, None, device).verdict == "unknown"


def test_fit_says_its_verdict_and_interval() -> None:
    answer = fit("fc:layers=2,nodes=64", "t4", 8)
    assert answer.verdict == "yes"
    assert answer.needed_low_bytes < answer.needed_bytes < answer.needed_high_bytes
    assert {row.verdict for row in answer.rows} <= {"yes", "no", TOO_CLOSE}


def test_plan_and_serve_take_the_widths_of_their_kind() -> None:
    kinds = read_packaged_toml(conformal.FILE)["kinds"]
    answer = plan("llama3_8b", MEASURED, 8, tensor=2, data=4, stack="megatron-2024")
    assert log(answer.high_s / answer.step_s) == pytest.approx(kinds[TRAININGS]["above"], abs=1e-3)
    assert answer.device_power_w is not None
    assert answer.device_power_low_w < answer.device_power_w < answer.device_power_high_w
    memory = answer.memory
    assert memory.needed_low_bytes < memory.needed_bytes < memory.needed_high_bytes
    served = serve("llama3_8b", MEASURED, stack="vllm-2025")
    assert log(served.tpot_high_s / served.tpot_s) == pytest.approx(kinds["servings"]["above"])
    assert log(served.ttft_high_s / served.ttft_s) == pytest.approx(kinds["servings"]["above"])


def test_a_first_token_behind_a_queue_has_a_wider_interval_than_a_prefill() -> None:
    kinds = read_packaged_toml(conformal.FILE)["kinds"]
    served = serve("llama3_8b", MEASURED, stack="vllm-2025", concurrency=16, output=20)
    width = log(served.ttft_high_s / served.ttft_low_s)
    assert width > kinds["servings"]["below"] + kinds["servings"]["above"]

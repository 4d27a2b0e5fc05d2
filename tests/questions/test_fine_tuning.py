"""A fine-tuning, every way: predict, a plan of one device, states on the host, sequences."""

from __future__ import annotations

from typing import Any

import pytest

import steptime
from steptime.core.tuning import make_tuning
from steptime.planning.answer import compute_mfu, time_request
from steptime.planning.ranks.site import Site
from steptime.planning.request import Request
from steptime.questions.step_options import StepOptions

MODEL = "llama3_2_1b:length=512"
LORA = "r=8,on=linear"


def predicted(**how: Any) -> Any:
    usual = {"batch": 2, "dtype": "bfloat16", "optimizer": "adam", "options": {"stack": "hf-2025"}}
    return steptime.predict(MODEL, "rtx-4090", **{**usual, **how})


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("lora", [None, LORA])
def test_a_plan_of_one_device_is_the_step(recompute, lora):
    """Recompute is arithmetic of pieces there and a change of the graph here: 0.5 % apart."""
    step = predicted(recompute=recompute, lora=lora)
    split = {"recompute": recompute}
    request = Request(
        MODEL, Site("rtx-4090"), 2, 2, split=split, dtype="bfloat16", stack="hf-2025",
        tuning=make_tuning(lora),
    )  # fmt: skip
    problem, plan = time_request(request)
    assert plan.step_s == pytest.approx(step.step_s, rel=5e-3 if recompute == "full" else 1e-9)
    assert plan.memory[0].total == pytest.approx(step.needed_bytes, rel=1e-9)
    trained = problem.rank.sum_over_pieces(lambda piece: piece.parameters)
    assert problem.rank.parameters == 1_235_814_400 + trained * bool(lora)


@pytest.mark.parametrize(
    "words",
    [
        {"adapter": "dora,r=8,on=linear", "weights": "gptq"},
        {"adapter": "ia3"},
        {"adapter": "prefix,tokens=8"},
        {"lora": LORA, "modules_to_save": "embed_tokens"},
    ],
)
def test_a_plan_of_one_device_with_any_adapter_is_the_step(words):
    """Times, memory and parameters of `plan` are those of `predict`; a copy counts once."""
    step = predicted(**words)
    request = Request(
        MODEL, Site("rtx-4090"), 2, 2, dtype="bfloat16", stack="hf-2025",
        tuning=make_tuning(**words),
    )  # fmt: skip
    problem, plan = time_request(request)
    assert plan.step_s == pytest.approx(step.step_s, rel=1e-9)
    assert plan.memory[0].total == pytest.approx(step.needed_bytes, rel=1e-9)
    saved = 128_256 * 2048 if "modules_to_save" in words else 0
    adapters = problem.rank.sum_over_pieces(lambda piece: piece.parameters) - saved
    assert problem.rank.parameters == 1_235_814_400 + adapters


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_layer_of_a_rank_is_one_that_trained_layers_precede(lora):
    """The first one of the network needs no gradient of its input, whose table is frozen."""
    request = Request(MODEL, Site("rtx-4090"), 2, 2, dtype="bfloat16", tuning=make_tuning(lora))
    problem, _ = time_request(request)
    one = problem.rank.price_unsplit_pieces(2)["block1"]
    times: dict[str, float] = {}
    for row in problem.rank.full_step(2).timeline(2).rows:
        head = row.row.name.partition("/")[0]
        times[head] = times.get(head, 0.0) + row.backward.value
    assert one.backward_s == pytest.approx(times["block2"], rel=1e-9)
    assert one.backward_s == pytest.approx(times["block16"], rel=1e-9)
    assert (times["block1"] / one.backward_s < 0.95) == bool(lora)


def test_arithmetic_of_frozen_weights_gradients_is_not_counted():
    """With LoRA both passes are about two forward ones, not three; 6N has no meaning."""
    shares = []
    for lora in (None, LORA):
        request = Request(MODEL, Site("rtx-4090"), 2, 2, dtype="bfloat16", tuning=make_tuning(lora))
        problem, plan = time_request(request)
        shares.append(compute_mfu(problem, plan)["full"] * plan.step_s)
        assert (compute_mfu(problem, plan)["6N"] is None) == bool(lora)
    assert shares[1] / shares[0] == pytest.approx(2 / 3, rel=0.03)


def test_python_and_the_options_of_commands_ask_the_same_step():
    said: dict[str, Any] = {"lora": LORA, "weights": "nf4", "recompute": "full", "packed": 128}
    how = {"dtype": "bfloat16", "optimizer": "paged_adam8bit", **said}
    options = StepOptions(options=["stack=hf-2025"], **how).build_model(MODEL, 2, "rtx-4090")
    step = predicted(**said, optimizer="paged_adam8bit")
    assert options.workload.tuning.text == step.tuning
    assert options.timeline().step_s == step.step_s


def test_what_of_paged_states_has_no_room_moves_twice_each_step():
    """Where all have room nothing moves; a card of 4 GB less holds so much less of them."""
    model = "llama3_8b:length=512"
    how: dict[str, Any] = {"batch": 1, "dtype": "bfloat16", "recompute": "full"}
    how |= {"update_early": True, "options": {"stack": "hf-2025"}}
    large, small = (
        steptime.predict(model, device, optimizer="paged_adam8bit", **how)
        for device in ("rtx-a6000", "rtx-4090")
    )
    plain = steptime.predict(model, "rtx-a6000", optimizer="adam8bit", **how)
    assert large.update_s == plain.update_s
    states = plain.peak_bytes - large.peak_bytes
    assert states == pytest.approx(2 * 8_030_261_248 * (1 + 4 / 256), rel=1e-3)
    away = small.needed_bytes + states - small.usable_bytes
    moved_s = (
        small.update_s - steptime.predict(model, "rtx-4090", optimizer="adam8bit", **how).update_s
    )
    assert moved_s == pytest.approx(2 * away / 31.5e9, rel=0.05)  # PCIe 4, 16 lanes


def test_states_on_the_host_leave_the_card_and_take_its_memory():
    here, there = predicted(), predicted(offload="optimizer")
    slower = predicted(offload="optimizer", host_link="pcie-3-x16")
    # a moment that is not the update's is the worst one
    assert there.peak_bytes <= here.peak_bytes - 2 * 2 * 1_235_814_400 * 0.99
    assert here.update_s < there.update_s < slower.update_s


def test_tokens_that_are_padding_are_not_counted():
    plain, padded = predicted(), predicted(padded=100)
    assert padded.step_s == plain.step_s
    assert padded.tokens == 200
    assert plain.tokens == 1024


@pytest.mark.parametrize(
    ("model", "device", "split", "said"),
    [
        ("llama3_8b", "rtx-4090", {}, {"lora": "r=8"}),
        ("llama3_8b", "a100-sxm4-80gb", {}, {"lora": "r=8"}),
        ("llama3_70b", "a100-sxm4-80gb", {}, {"lora": "r=16", "weights": "nf4"}),
        ("llama3_8b", "a100-sxm4-80gb", {"data": 8, "zero": 3}, {}),
    ],
)
def test_what_people_fine_tune_has_room(model, device, split, said):
    request = Request(
        model, Site(device), 8 if split else 1, 1, 2048, {**split, "recompute": "full"},
        dtype="bfloat16", tuning=make_tuning(**said),
    )  # fmt: skip
    problem, plan = time_request(request)
    assert plan.memory[plan.fullest_device].total < problem.rank.room_bytes
    assert plan.step_s > 0

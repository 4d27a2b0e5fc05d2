"""Where nobody names a stack: what is assumed, and between what a step then lies."""

from math import exp, log
from typing import Any

import pytest

from steptime import plan
from steptime.core.errors import InputError
from steptime.planning.ranks.site import Site, make_sites
from steptime.planning.request import Request
from steptime.prediction.calibrated.interval import mix_intervals
from steptime.prediction.kernel import Interval
from steptime.questions.plan.price import answer_plan

NODE = Site("h100-sxm5", 8, "nvlink-4")


def test_a_mixture_of_two_that_are_apart_ends_in_their_outer_tails():
    """Half of the weight at 1 s, half at e s, both narrow: 10 % are below the first's 20 %."""
    narrow = [(1.0, Interval(at, at * exp(-0.01), at * exp(0.01))) for at in (1.0, exp(1))]
    low, high = mix_intervals(narrow)
    assert log(low) == pytest.approx(-0.00657, abs=1e-4)  # 0.8416 of 0.01 / 1.2816 below
    assert log(high) == pytest.approx(1 + 0.00657, abs=1e-4)


def test_one_alone_keeps_its_interval_and_a_light_one_changes_little():
    alone = (1.0, Interval(2.0, 1.6, 2.5))
    assert mix_intervals([alone]) == pytest.approx((1.6, 2.5), rel=1e-3)
    low, high = mix_intervals([alone, (1e-6, Interval(9.0, 8.0, 10.0))])
    assert (low, high) == pytest.approx((1.6, 2.5), rel=1e-3)


def test_an_interval_holds_the_value_of_what_is_assumed():
    low, high = mix_intervals([(1e-3, Interval(9.0, 8.9, 9.1)), (1.0, Interval(2.0, 1.9, 2.1))])
    assert low <= 2.0
    assert high >= 9.0


def test_a_step_lies_between_what_all_take_that_could_be_meant():
    split = {"data": 8, "zero": 3}
    told = answer_plan(Request("llama3_8b", NODE, 16, split=split)).to_dict()
    assert (told["stack"], told["assumed"]["stack"], told["nearest_stack"]) == (
        "fsdp-2025", "fsdp-2025", "fsdp-compile-2025",
    )  # fmt: skip
    for one in told["other_stacks"]:
        named = answer_plan(
            Request("llama3_8b", NODE, 16, split=split, stack=one["stack"])
        ).to_dict()
        assert [named[key] for key in ("step_s", "low_s", "high_s")] == [
            one[key] for key in ("step_s", "low_s", "high_s")
        ]
        assert "stack" not in named["assumed"]
        assert named["other_stacks"] == []
    by_name = answer_plan(Request("llama3_8b", NODE, 16, split=split, stack="fsdp")).to_dict()
    assert [by_name[key] for key in ("step_s", "low_s", "high_s")] == [
        told[key] for key in ("step_s", "low_s", "high_s")
    ]
    assert told["any_stack_low_s"] <= told["step_s"] < told["high_s"]
    lows = [one["low_s"] for one in (told, *told["other_stacks"])]
    highs = [one["high_s"] for one in (told, *told["other_stacks"])]
    assert min(lows) <= told["any_stack_low_s"] < told["any_stack_high_s"] <= max(highs)
    assert by_name["any_stack_low_s"] == by_name["low_s"]
    assumed = told["headline"][1]
    near = next(one for one in told["other_stacks"] if one["stack"] == "fsdp-compile-2025")
    assert "assumed: fsdp-2025 (with --stack fsdp-compile-2025:" in assumed
    assert f"{1e3 * near['step_s']:.1f} ms" in assumed


def test_a_year_alone_is_that_of_the_family():
    told = answer_plan(
        Request("llama3_8b", NODE, 16, split={"data": 8, "zero": 3}, stack="2023")
    ).to_dict()
    assert (told["stack"], told["other_stacks"]) == ("fsdp-2023", [])
    assert told["assumed"]["stack"] == "fsdp-2023"
    assert plan("gpt2", "h100", 8, stack="2023").to_dict()["stack"] == "torch-eager"  # of no year
    for year in ("1999", "2052"):
        with pytest.raises(InputError, match=f"unknown stack '{year}'"):
            plan("gpt2", "h100", 8, data=8, stack=year).to_dict()


def test_a_search_says_the_interval_of_its_best():
    told = plan("gpt2", "h100", 32, 8).to_dict()
    best = told["best"]
    assert best["assumed"]["stack"] == best["stack"] == "fsdp-2025"
    ends = ("low_s", "high_s", "any_stack_low_s", "any_stack_high_s")
    assert [told["rows"][0][name] for name in ends] == pytest.approx([best[name] for name in ends])


@pytest.mark.slow
def test_what_stands_side_by_side_has_one_stack():
    """An A100 alone is assumed to run older software than an H100."""
    link = {"link": "infiniband-ndr"}
    alone = plan("gpt2", "a100-sxm4-80gb", 64, 16, **link).to_dict()
    both = plan("gpt2", ["a100-sxm4-80gb", "h100"], 64, 16, **link).to_dict()
    newer = plan("gpt2", "a100-sxm4-80gb", 64, 16, **link, stack=both["best"]["stack"]).to_dict()
    assert alone["best"]["stack"] < both["best"]["stack"]
    rows = {row["device"]: row["step_s"] for row in both["by_device_count"]}
    assert rows["a100-sxm4-80gb"] == newer["best"]["step_s"]


def test_one_device_is_predicted_as_by_predict():
    assert plan("gpt2", "h100", 8).to_dict()["other_stacks"] == []


@pytest.mark.rare  # several devices stand side by side in test_search.py
def test_devices_without_a_price_stay_under_a_budget():
    told = plan("gpt2", ["h100", "mi300x"], 64, 8, budget_per_hour=1000).to_dict()
    assert {row["device"] for row in told["by_device_count"]} == {"h100-sxm5", "mi300x"}
    assert any("mi300x: no price is known" in note for note in told["best"]["notes"])


def test_devices_are_joined_as_their_maker_joins_them():
    rack, v100, card, other = make_sites(["gb200", "v100-sxm2-16gb", "rtx-4090", "h200-nvl"])
    assert (rack.per_node, rack.inside) == (72, "nvlink-5")
    assert (v100.per_node, v100.inside) == (8, "nvlink-2-dgx1")
    assert card.inside == "pcie-4-x16-host"
    assert (other.per_node, other.inside) == (8, None)
    assert make_sites(["gb200"], 4, "nvlink-4")[0][1:3] == (4, "nvlink-4")


@pytest.mark.parametrize("said", [{}, {"lora": "r=16"}], ids=["whole", "LoRA"])
def test_what_others_take_is_what_they_take_by_name(said):
    """A part of the weights is fine-tuned under every stack that could be meant."""
    asked: dict[str, Any] = {
        "inside": "nvlink-4", "data": 8, "zero": 3, "length": 2048, **said
    }  # fmt: skip
    others = plan("llama3_8b", "h100-sxm5", **asked).to_dict()["other_stacks"]
    assert others
    for one in others:
        named = plan("llama3_8b", "h100-sxm5", stack=one["stack"], **asked).to_dict()
        assert one["step_s"] == pytest.approx(named["step_s"], rel=1e-12)

"""Which software is meant: by name, family and year, and where nobody says one."""

import pytest

from steptime.core.errors import InputError
from steptime.core.workload import Plan
from steptime.hardware import catalog
from steptime.hardware.software import (
    defaults_for,
    months_of_stacks,
    newest_in,
    resolve_stack,
    years_as_newest,
)
from steptime.prediction.steps.step_model import StepModel


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("megatron-2024", "megatron-2024"),  # a file of this name
        ("fsdp", "fsdp-2025"),  # a family: its newest
        ("FSDP", "fsdp-2025"),
        ("fsdp-compile", "fsdp-compile-2025"),
        ("megatron", "megatron-2026"),
        ("vllm", "vllm-2026"),
        ("sglang", "sglang-2025"),
        ("trt-llm", "trt-llm-2025"),
        ("hf", "hf-2026"),
        ("fsdp-2024", "fsdp-2025"),  # which is of 2024-06: the newest in that year
        ("trt-llm-2024", "trt-llm-2023"),
        ("torch", "torch"),
        ("mine.toml", "mine.toml"),
    ],
)
def test_what_a_text_names(text, name):
    assert resolve_stack(text) == name


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("fsdpp", "fsdp"),
        ("megatron-2019", "megatron-2021"),
        ("megatron-2052", "megatron-202"),
        ("vlm", "vllm"),
        ("2023", ""),
    ],
)
def test_what_names_none_says_the_nearest(text, near):
    with pytest.raises(InputError, match=f"unknown stack '{text}'; .*{near}"):
        resolve_stack(text)


@pytest.mark.parametrize(
    ("device", "plan", "use", "family"),
    [
        ("h100", Plan(), "training", "torch-eager"),
        ("h100", Plan(data=8), "training", "fsdp"),
        ("h100", Plan(data=64, zero=3), "training", "fsdp"),
        ("h100", Plan(data=64), "training", "megatron"),
        ("h100", Plan(data=2, pipeline=4), "training", "megatron"),
        ("tpu-v5p", Plan(data=64, zero=3), "training", "maxtext"),
        ("tpu-v5p", Plan(), "training", "maxtext"),
        ("h100", Plan(), "serving", "vllm"),
        ("mi300x", Plan(tensor=8), "serving", "vllm"),
    ],
)
def test_what_runs_a_question(device, plan, use, family):
    software = defaults_for(catalog.device(device), plan, use=use)
    assert software.stack.startswith(family)
    assert software.stack in software.years_by_stack
    assert (
        software.newest_alternative is None
        or software.newest_alternative in software.years_by_stack
    )


def test_steps_of_one_tpu_run_what_a_plan_of_it_does():
    """Steps of a language model and of another network, on a TPU, there from a GPU, and back."""
    stacks = {
        model: [
            StepModel(model, device, assumes=True, dtype="bfloat16").with_device(other).stack.name
            for device, other in (("tpu-v5p", "tpu-v5p"), ("h100", "tpu-v5p"), ("tpu-v5p", "h100"))
        ]
        for model in ("gpt2", "resnet18")
    }
    assert stacks == {
        "gpt2": ["maxtext-2025", "maxtext-2025", "torch-eager"],
        "resnet18": ["jax", "jax", "torch-eager"],
    }
    said = StepModel("gpt2", "tpu-v5p", options={"stack": "torch-eager"}, assumes=True)
    assert said.with_device("tpu-v4").stack.name == "torch-eager"


def test_a_rack_is_no_node():
    software = defaults_for(catalog.device("gb200"), Plan(data=72), per_node=72)
    assert software.stack.startswith("megatron")


def test_the_year_decides_where_it_is_said():
    h100 = catalog.device("h100")
    for year, stack in ((2021, "fsdp-2022"), (2023, "fsdp-2023"), (2026, "fsdp-2025")):
        assert defaults_for(h100, Plan(data=8), year=year).stack == stack
    assert newest_in("megatron", "2023-08") == "megatron-2023"
    assert newest_in("megatron", "2020-01") == "megatron-2021"


def test_a_stack_counts_for_the_years_that_it_was_the_newest():
    """Of 2022-10, 2023-06 and 2024-06 until the end of 2026, on chips that came in 2023."""
    years = years_as_newest("fsdp", months_of_stacks(), 2023)
    expected = {"fsdp-2022": 5 / 12, "fsdp-2023": 1.0, "fsdp-2025": 31 / 12}
    assert years == pytest.approx(expected)
    a100 = years_as_newest("fsdp", months_of_stacks(), 2020)
    assert a100["fsdp-2022"] == pytest.approx(8 / 12)


def test_servers_of_one_maker_are_meant_there_alone():
    on = {
        name: defaults_for(catalog.device(name), Plan(), use="serving")
        for name in ("h100", "mi300x")
    }
    assert {*on["h100"].years_by_stack} == {"vllm-2026", "sglang-2025", "trt-llm-2025"}
    assert {*on["mi300x"].years_by_stack} == {"vllm-2026", "sglang-2025"}

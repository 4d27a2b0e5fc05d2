"""Words of several tools for weights of few bits, in every command that takes weights."""

import pytest

import steptime
from steptime.core.errors import InputError


@pytest.mark.parametrize(
    ("word", "weights"),
    [
        ("awq", "int4"),
        ("GPTQ", "int4"),
        ("q4_k_m", "q4_k_m"),  # of llama.cpp
        ("4bit", "int4"),
        ("8bit", "int8"),
        ("fp8", "float8"),
        ("nvfp4", "float4"),
    ],
)
def test_weights_of_a_server(word, weights):
    assert steptime.serve("llama3_8b", "h100", weights=word).weights == weights


@pytest.mark.parametrize(
    ("word", "weights"),
    [("4bit", "nf4"), ("8bit", "int8"), ("fp8", "float8"), ("GPTQ", "gptq"), ("w4a16", "int4")],
)
def test_frozen_weights_of_a_training(word, weights):
    answers = [
        question("gpt2", "a100", 1, lora="r=8", weights=word).tuning
        for question in (steptime.fit, steptime.predict)
    ]
    assert all(f"{weights} weights" in tuning for tuning in answers)


def test_an_unknown_word_names_the_known_ones():
    with pytest.raises(InputError, match=r"unknown --weights 'q9'; known: .*int4"):
        steptime.serve("llama3_8b", "h100", weights="q9")

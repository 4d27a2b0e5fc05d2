"""Language models by name have the parameters that are published, or follow from their shapes."""

from __future__ import annotations

import csv

import pytest

from every import every
from places import ROOT
from steptime.build import build, make_workload, read_model
from steptime.network.families import language

TABLE = ROOT.parent / "shared/reference/llm/models.csv"


def parameters(name: str) -> int:
    return build(make_workload(read_model(name), 1, phase="infer")).parameters


@pytest.mark.slow
@every("name", language.rows())
def test_parameters_are_those_of_the_row(name):
    short = name if "stem" in language.rows()[name] else f"{name}:length=8"
    assert parameters(short) == language.rows()[name]["parameters"]


@pytest.mark.skipif(not TABLE.exists(), reason="without ../shared")
def test_every_row_of_the_reference_is_a_name_with_its_parameters():
    for row in csv.DictReader(TABLE.read_text().splitlines()):
        assert parameters(row["model"]) == int(row["parameters_by_formula"]), row["model"]


@every(
    ("said", "name"),
    [
        ("Llama-3.1-405B", "llama3_1_405b"),
        ("llama-3-8b", "llama3_8b"),
        ("GPT3-175B", "gpt3_175b"),
        ("deepseek-v3", "deepseek_v3"),
    ],
)
def test_a_model_is_found_as_it_is_said(said, name):
    assert read_model(said).model == name

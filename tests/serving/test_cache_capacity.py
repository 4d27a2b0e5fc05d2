"""The tokens that vLLM's cache has room for, beside what published runs printed."""

import csv
import re
import shlex
import tomllib
from pathlib import Path

import pytest

import steptime
from steptime.planning.ranks.site import Site
from steptime.serving.phases import Phases
from steptime.serving.service import Service

RUNS = tomllib.loads(Path(__file__).with_name("cache_capacity.toml").read_text())["run"]
CAPACITY = re.compile(r"GPU KV cache [\d,]+ tokens")


@pytest.mark.parametrize("run", RUNS, ids=[f"{run['model']}-{run['tokens']}" for run in RUNS])
def test_a_published_capacity_is_met_within_a_tenth(run):
    answer = steptime.serve(run["model"], run["device"], **run["options"])
    assert answer.cache_tokens == pytest.approx(run["tokens"], rel=0.1)


def test_published_capacities_of_the_cases_are_met_within_a_tenth(shared, monkeypatch):
    folder = shared.parent / "cases" / "llm"
    monkeypatch.chdir(folder)
    with (folder / "table_open.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if CAPACITY.search(row["statement"])]
    assert rows
    for row in rows:
        answer = _serve_line(row["command"])
        assert answer.cache_tokens == pytest.approx(float(row["measured"]), rel=0.1), row["id"]


def _serve_line(command):
    """Return the answer of a command whose options have values: `steptime serve M --tensor 4`."""
    _, _, model, *words = shlex.split(command)
    options = {words[i].removeprefix("--"): words[i + 1] for i in range(0, len(words), 2)}
    return steptime.serve(model, options.pop("device"), **options)


def phases(model, device="h100-sxm5", **split) -> Phases:
    return Service(model, Site(device), stack="vllm-2025", **split).phases()


def test_drawing_tokens_takes_more_than_layers_of_large_vocabularies():
    """50 bytes a logit: 18 of logits, sorted ones and places, 32 of the sort."""
    sampler_bytes = 1024 * 151_936 * 50
    assert phases("qwen3_235b_a22b", tensor=8).fixed_bytes["activations_bytes"] == sampler_bytes
    small = phases("qwen3_235b_a22b", "a100-sxm4-80gb", tensor=8)
    assert small.fixed_bytes["activations_bytes"] == sampler_bytes / 4


def test_experts_write_each_token_once_for_each_of_them():
    """Gate and up of 2 x 1536 / 8, then 4096 numbers of 8 experts; beside it gate times up."""
    split = phases("qwen3_235b_a22b", tensor=8)
    inner = 8 * (4096 + 1536 / 8)
    attention = 2 * (64 * 128 / 8 + 2 * 128)
    assert split.activation_bytes(1000) == 2 * 1000 * (6 * 4096 + inner + attention)


def test_a_note_says_what_drawing_tokens_takes_and_how_to_take_less():
    answer = steptime.serve("qwen3_8b", "h100", stack="vllm-2025")
    note = next(note for note in answer.notes if note.startswith("drawing tokens"))
    assert "for 1,024 sequences takes 7.779 GB of a device" in note
    fewer = steptime.serve("qwen3_8b", "h100", stack="vllm-2025", max_running_sequences=256)
    less_bytes = answer.activations_bytes - fewer.activations_bytes
    more_tokens = fewer.cache_tokens - answer.cache_tokens
    assert more_tokens * answer.cache_bytes_per_token == pytest.approx(less_bytes, rel=1e-3)

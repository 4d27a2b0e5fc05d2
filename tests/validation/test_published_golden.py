"""`python -m validation TABLE --json` gives what `evaluate` of a published table gave in 0.15.

Written by that command before it moved here, but for later changes of physics, which write it anew.
Of the same scores: how near predictions come.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from published_golden import HELD, RARE, SLOW, TABLES, WRITTEN, flat, scored

import golden
from every import every

BEFORE = json.loads(WRITTEN.read_text("utf-8"))
UNWRITTEN = ("finetune_litgpt_dev.csv",)


def check(table: Path) -> None:
    before, now = BEFORE[table.name], flat(scored(table))
    assert now.keys() == before.keys()
    assert {key: now[key] for key in now if not golden.same(now[key], before[key])} == {}


@pytest.mark.parametrize("table", HELD, ids=lambda table: table.name)
def test_a_table_that_is_here_is_scored_as_written_down(table):
    check(table)


@pytest.mark.slow
@every("name", TABLES)
def test_a_table_of_others_is_scored_as_written_down(name, shared):
    check(shared / "llm" / name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.rare) if name in RARE else name for name in SLOW]
)
def test_a_further_table_is_scored_as_written_down(name, shared):
    check(shared / "llm" / name)


def test_every_table_is_written_down():
    assert set(BEFORE) == {*(table.name for table in HELD), *TABLES, *SLOW}


@pytest.mark.slow  # the tables are those scored above, each once
@pytest.mark.parametrize(
    ("name", "quantity", "mean", "median"),
    [
        ("vTrain", "step_s", 0.09, 0.06),
        ("llm-foundry, A100", "step_s", 0.06, 0.05),
        ("MLPerf, gpt3-175b", "step_s", 0.05, 0.05),
        ("NeMo", "step_s", 0.05, 0.05),
        ("LitGPT, lora", "memory_bytes", 0.04, 0.03),
        ("LitGPT, qlora", "memory_bytes", 0.17, 0.17),
        ("Megatron-Bridge, dense", "step_s", 0.13, 0.13),
        ("Megatron-Bridge, mixtures", "step_s", 0.19, 0.125),  # no constant is told by them
        ("torchtitan", "memory_bytes", 0.1, 0.1),
        ("FasterTransformer", "request_s", 0.06, 0.05),
        ("TensorRT-LLM, static", "tokens_per_s_per_device", 0.06, 0.05),
        ("vllm (AIConfigurator)", "tpot_s", 0.05, 0.035),  # constants are those of all servers
        ("sglang (AIConfigurator)", "tpot_s", 0.1, 0.07),
        ("trt-llm (AIConfigurator)", "tpot_s", 0.1, 0.07),
        ("trt-llm (AIConfigurator)", "ttft_s", 0.35, 0.3),
        ("vllm (AIConfigurator)", "ttft_s", 0.35, 0.3),
        ("parameters", "parameters", 1e-12, 1e-12),
        ("parameters", "active", 1e-8, 1e-8),
    ],
)
def test_predictions_come_near(name, quantity, mean, median, shared):
    (row,) = (
        row
        for table in (*TABLES, *SLOW, *UNWRITTEN)
        for row in scored(shared / "llm" / table)["rows"]
        if (row["set"], row["quantity"]) == (name, quantity)
    )
    assert row["mape"] < mean
    assert row["median"] < median

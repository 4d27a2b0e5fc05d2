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

SERVERS = "aic_serving_dev.csv"
SERVER_STRIDE = 8  # a simulated server takes a fifth of a second, all 257 of them a minute

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
        pytest.param(
            "vTrain", "step_s", 0.09, 0.06, marks=pytest.mark.rare
        ),  # its table is the longest
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
        ("parameters", "parameters", 1e-12, 1e-12),
        ("parameters", "active", 1e-8, 1e-8),
    ],
)
def test_predictions_come_near(name, quantity, mean, median, shared):
    tables = [shared / "llm" / table for table in (*TABLES, *SLOW, *UNWRITTEN) if table != SERVERS]
    _check_errors(tables, name, quantity, mean, median)


SAMPLE_ROOM = 1.25  # errors of an eighth of the servers vary; rare tests hold those of all
SERVER_ERRORS = [  # constants are those of all servers
    ("vllm (AIConfigurator)", "tpot_s", 0.05, 0.035),
    ("sglang (AIConfigurator)", "tpot_s", 0.1, 0.07),
    ("trt-llm (AIConfigurator)", "tpot_s", 0.1, 0.07),
    ("trt-llm (AIConfigurator)", "ttft_s", 0.35, 0.3),
    ("vllm (AIConfigurator)", "ttft_s", 0.35, 0.3),
]


@pytest.mark.slow
def test_predictions_come_near_every_eighth_server(shared, tmp_path):
    head, *rows = (shared / "llm" / SERVERS).read_text("utf-8").splitlines()
    sample = tmp_path / SERVERS
    sample.write_text("\n".join([head, *rows[::SERVER_STRIDE], ""]), encoding="utf-8")
    for name, quantity, mean, median in SERVER_ERRORS:
        _check_errors([sample], name, quantity, SAMPLE_ROOM * mean, SAMPLE_ROOM * median)


@pytest.mark.rare
@pytest.mark.parametrize(("name", "quantity", "mean", "median"), SERVER_ERRORS)
def test_predictions_come_near_every_server(name, quantity, mean, median, shared):
    _check_errors([shared / "llm" / SERVERS], name, quantity, mean, median)


def _check_errors(tables: list[Path], name: str, quantity: str, mean: float, median: float) -> None:
    """Check the mean and the median error of a quantity of the set of this name."""
    (row,) = (
        row
        for table in tables
        for row in scored(table)["rows"]
        if (row["set"], row["quantity"]) == (name, quantity)
    )
    assert row["mape"] < mean
    assert row["median"] < median

"""Public statements of slow runs: the table that scores the order of causes."""

from __future__ import annotations

import tomllib
from pathlib import Path

RUNS = tomllib.loads(Path(__file__).with_name("slow_runs.toml").read_text(encoding="utf-8"))


def test_each_statement_has_its_source_a_question_and_a_cause():
    rows = [*RUNS["run"], *RUNS["held_out"]]
    assert len(RUNS["run"]) == 10
    assert len({row["cause"] for row in RUNS["run"]}) >= 6
    assert len({row["source"] for row in rows}) == len(rows)
    for row in rows:
        assert row["source"].startswith("https://")
        assert "--measured" in row["ask"]
        assert row["statement"].endswith(".")

"""Hostile inputs that `scripts/attack` makes: each gives an answer or one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from places import ROOT


@pytest.mark.parametrize(
    ("inputs", "records"),
    [(300, 0), pytest.param(10_000, 2_000, marks=pytest.mark.slow)],
)
def test_hostile_inputs_give_an_answer_or_one_line(inputs: int, records: int) -> None:
    """No traceback, no hang, and no process above 2 GB; a tenth of what is run before a release."""
    counts = ["--inputs", str(inputs), "--records", str(records)]
    words = [sys.executable, str(ROOT / "scripts/attack"), *counts, "--seed", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    said = f"{inputs:,} inputs, {records:,} of them records: 0 failed\n"
    assert done.stdout.endswith(said), done.stdout[-3000:] + done.stderr
    assert done.returncode == 0

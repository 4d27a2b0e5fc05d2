"""Hostile inputs that `scripts/attack` makes: each gives an answer or one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from places import ROOT

COUNT = 600


@pytest.mark.slow
def test_hostile_inputs_give_an_answer_or_one_line() -> None:
    words = [sys.executable, str(ROOT / "scripts/attack"), "--count", str(COUNT), "--seed", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.endswith(f"{COUNT} inputs, 0 failed\n"), done.stdout[-3000:] + done.stderr

"""Hostile inputs that `scripts/attack` makes: each gives an answer or one line."""

import subprocess
import sys

import pytest

import record_cases
from command_lines import command_line_name, command_lines
from places import ROOT

UNREAD = {"sweep collect", "sweep cancel"}  # they ask jobs of a cluster; records are not read


def test_every_command_that_reads_records_is_attacked(tmp_path):
    words = record_cases.commands(tmp_path / "a", tmp_path / "b", tmp_path)
    takes = {"folder", "folders", "--in"}
    reading = {
        name
        for name, options in command_lines().items()
        for option in options
        if takes & {*option.names, option.name}
    }
    assert reading - UNREAD <= {command_line_name(line) for line in words}


@pytest.mark.parametrize(
    ("inputs", "records"),
    [
        pytest.param(12, 4, marks=pytest.mark.slow),
        pytest.param(10_000, 2_000, marks=pytest.mark.rare),
    ],
)
def test_hostile_inputs_give_an_answer_or_one_line(inputs, records):
    """No traceback, no hang, and no process above 2 GB; before a release the rare case is run."""
    counts = ["--inputs", str(inputs), "--records", str(records)]
    words = [sys.executable, str(ROOT / "scripts/attack"), *counts, "--seed", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    said = f"{inputs:,} inputs, {records:,} of them records: 0 failed\n"
    assert done.stdout.endswith(said), done.stdout[-3000:] + done.stderr
    assert done.returncode == 0

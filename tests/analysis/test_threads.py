"""Every analysis and comparison gives the same bytes however many threads Polars has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import synthetic
from steptime.records import store

PROGRAM = """
import sys
from steptime.cli.main import run
for words in sys.argv[2:]:
    run([*words.split(), sys.argv[1], "--json"])
"""
COMMANDS = (
    *("compare", "compare --by layers", "compare --by batch --quantity peak_bytes"),
    *("analyse nodes", "analyse heatmap", "analyse results", "analyse errors"),
    *("analyse breakdown", "analyse sensitivity", "analyse speedup --by batch"),
    *("analyse roofline", "analyse roofline --ops", "analyse history"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("threads")
    with store.open_writer(path) as writer:
        writer.append_all(synthetic.sweep(ops=True, failures=True))
    return path


def _printed(folder: Path, threads: int) -> bytes:
    command = [sys.executable, "-c", PROGRAM, str(folder), *COMMANDS]
    env = os.environ | {"POLARS_MAX_THREADS": str(threads)}
    return subprocess.run(command, env=env, capture_output=True, check=True).stdout


@pytest.mark.slow
def test_answers_do_not_depend_on_the_number_of_threads(folder: Path) -> None:
    assert _printed(folder, 1) == _printed(folder, 8)

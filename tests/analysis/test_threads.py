"""Every analysis gives the same bytes however many threads Polars has."""

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
for kind in sys.argv[2:]:
    run(["analyse", *kind.split(), sys.argv[1], "--json"])
"""
ANALYSES = (
    *("nodes", "heatmap", "results", "breakdown", "sensitivity", "speedup --by batch"),
    *("roofline", "roofline --ops"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("threads")
    with store.open_writer(path) as writer:
        writer.append_all(synthetic.sweep(ops=True, failures=True))
    return path


def _printed(folder: Path, threads: int) -> bytes:
    command = [sys.executable, "-c", PROGRAM, str(folder), *ANALYSES]
    env = os.environ | {"POLARS_MAX_THREADS": str(threads)}
    return subprocess.run(command, env=env, capture_output=True, check=True).stdout


def test_answers_do_not_depend_on_the_number_of_threads(folder: Path) -> None:
    assert _printed(folder, 1) == _printed(folder, 8)

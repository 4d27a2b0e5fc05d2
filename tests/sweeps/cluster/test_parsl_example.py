"""The example that runs a sweep in parts by Parsl, with threads in place of a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from places import ROOT
from steptime.records import store

EXPERIMENT = {
    "name": "small",
    "backend": "null",
    "budget_s": 0.02,
    "batch": [2, 4, 8],
    "networks": [{"family": "fc", "layers": [1, 2], "nodes": 4, "inputs": 8, "outputs": 4}],
}
SCRIPT = ROOT / "examples/parsl_shards.py"
CONFIG = """
from parsl import Config, ThreadPoolExecutor

config = Config(executors=[ThreadPoolExecutor(max_threads=2)], initialize_logging=False)
"""


@pytest.mark.rare
def test_parts_end_in_one_folder_and_go_on_where_they_were(tmp_path):
    (tmp_path / "config.py").write_text(CONFIG)
    (tmp_path / "small.json").write_text(json.dumps(EXPERIMENT))
    out = tmp_path / "results"
    command = [sys.executable, str(SCRIPT), "small.json", str(out), "2", "config.py"]

    def run() -> list[str]:
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
            env={**os.environ, "STEPTIME_HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return sorted(line for line in done.stdout.splitlines() if "exit code" in line)

    assert run() == ["1-of-2: exit code 0", "2-of-2: exit code 0"]
    records = store.load(out, pytest.fail)
    assert len({record.workload.key for record in records}) == len(records) == 6
    assert run() == ["1-of-2: exit code 0", "2-of-2: exit code 0"]
    assert len(store.load(out, pytest.fail)) == 6

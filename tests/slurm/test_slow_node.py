"""A slow node on a real Slurm: each of its steps is eight times the work, and it is named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from cluster import LIMIT_S, SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.rare]

NODES = {f"n{number}": "k80" for number in range(1, 9)}
SLOW = "n5"
WORK_BYTES = 4_000_000  # hashed in each step: some milliseconds


@pytest.fixture
def slurm(tmp_path):
    with SlurmCluster(tmp_path / "own", NODES) as own:
        yield own


def test_a_node_that_takes_longer_is_named(slurm, tmp_path):
    """The nodes are one machine: a lock lets one measure at a time.

    The slow one has more to do. CPU seconds are measured, so that processes outside of the cluster
    do not slow down a node of it.
    """
    work = f'$([ "$SLURMD_NODENAME" = {SLOW} ] && echo {8 * WORK_BYTES} || echo {WORK_BYTES})'
    experiment = {
        "name": "every node",
        "backend": "null",
        "threads": 1,
        "budget_s": 0.2,
        "batch": [2, 4, 8],
        "networks": [{"family": "fc", "layers": 1, "nodes": 8, "inputs": 16, "outputs": 4}],
        "slurm": {
            "nodes": "each",
            "run_first": [
                f"exec 9> {tmp_path}/lock && flock 9",
                f"export NULL_WORK={work}",
            ],
        },
    }
    path, out = tmp_path / "experiment.json", tmp_path / "out"
    path.write_text(json.dumps(experiment))

    def steptime(*words: object) -> Any:
        command = [sys.executable, "-m", "steptime", *map(str, words), "--json"]
        done = subprocess.run(
            command, env=slurm.env, cwd=tmp_path, capture_output=True, text=True, check=False,
            timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    slurm.run("scontrol", "update", "nodename=n8", "state=drain", "reason=later")
    sweep = ["sweep", path, "--out", out, "--launcher", "slurm"]
    assert steptime(*sweep, "--dry-run")["jobs"][0]["nodes"] == 7
    sent = steptime(*sweep)
    assert (sent["submitted"], len(sent["jobs"])) == (21, 7)
    assert any(line.startswith("node n8 is left out: drained") for line in sent["notes"])
    slurm.wait(slurm.quiet, lambda: slurm.run("squeue"))
    assert steptime("sweep", "status", out)["finished"] == 21, steptime("sweep", "collect", out)
    document = steptime("compare", out, "--by", "host")["nodes"]
    assert Counter(row["cells"] for row in document["rows"]) == {3: 7}
    # what else runs here may slow another node for a moment, but by nothing like this
    assert document["summary"]["slow"][0] == SLOW, document["rows"]
    (slow,) = (row for row in document["rows"] if row["host"] == SLOW)
    assert slow["slower_fraction"] > 3
    others = (row for row in document["rows"] if row["host"] != SLOW)
    assert all(row["slower_fraction"] < slow["slower_fraction"] / 2 for row in others)

    def state() -> str:
        return slurm.run("sinfo", "--noheader", "--nodes=n8", "--format=%T").strip()

    slurm.run("scontrol", "update", "nodename=n8", "state=resume")
    slurm.wait(lambda: state() == "idle", state)
    assert steptime(*sweep)["submitted"] == 3
    slurm.wait(slurm.quiet, lambda: slurm.run("squeue"))
    assert steptime(*sweep)["submitted"] == 0

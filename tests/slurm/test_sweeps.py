"""Sweeps on a real Slurm: what crashes, runs out of time, is cancelled or loses its node."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster import LIMIT_S

import idx_folder

pytestmark = pytest.mark.slurm

EXPERIMENT: dict[str, Any] = {
    "name": "24 cells",
    "backend": "null",
    "threads": 1,
    "batch": [2, 4],
    "input": "dataset",
    "data": "images",
    "budget_s": 1.0,
    "time_limit_s": 60.0,
    "staging": ["shared", "local"],
    "networks": [{"family": "fc", "layers": [1, 2, 3], "nodes": 8, "inputs": 16, "outputs": 4}],
    "slurm": {"gpu": ["k80", "p100"], "cells_per_task": 3, "tasks_at_once": 2},
}
Steptime = Callable[..., Any]


@pytest.fixture
def steptime(slurm, tmp_path):
    """Return a function that runs a command line of steptime on the cluster and gives its JSON."""

    def call(*words: object, code: int = 0) -> Any:
        command = [sys.executable, "-m", "steptime", *map(str, words), "--json"]
        done = subprocess.run(
            command, env=slurm.env, cwd=tmp_path, capture_output=True, text=True, check=False,
            timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr

    return call


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """Return a file: while it is there, a cell that is begun stays in flight."""
    path = tmp_path / "gate"
    path.touch()
    monkeypatch.setenv("NULL_GATE", str(path))
    return path


def _file(folder: Path, **changes: Any) -> Path:
    idx_folder.write(folder / "images")
    path = folder / "experiment.json"
    path.write_text(json.dumps({**EXPERIMENT, **changes}))
    return path


def _records(out: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(out.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _task(folder: Path, number: int) -> int:
    """Return the process id of a running task."""
    wanted = f"-m\0steptime.sweeps.cluster.task\0{folder}\0{number}\0"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if wanted in path.read_text():
                return int(path.parent.name)
        except OSError:
            continue
    raise AssertionError(f"task {number} does not run")


def _worker(task: int) -> int:
    """Return the process id of the worker of a task."""
    return int(Path(f"/proc/{task}/task/{task}/children").read_text().split()[0])


def _statuses(status: dict[str, Any]) -> dict[str, int]:
    return {row["status"]: row["cells"] for row in status["cells_by_status"]}


def _begun(folder: Path, number: int) -> list[str]:
    """Return the cells that a task began when it was started first."""
    path = folder / "progress" / f"{number}.0.jsonl"
    return [line["cell"] for line in _lines(path) if "cell" in line]


def test_24_cells_of_which_some_go_wrong_end_as_24_honest_records(slurm, steptime, tmp_path, gate):
    """Tasks 0 to 3 are on k80, 4 to 7 on p100, with three cells each."""
    out = tmp_path / "out"
    sweep = ["sweep", _file(tmp_path), "--out", out, "--launcher", "slurm"]
    slurm.run("scontrol", "update", "nodename=k2,p2", "state=drain", "reason=later")
    sent = steptime(*sweep)
    assert (sent["cells"], sent["submitted"], sent["tasks"]) == (24, 24, 8)
    folder = Path(sent["folder"])
    k80, p100 = (int(job) for job in sent["jobs"])

    # two tasks of each type run, on one node, all others wait
    slurm.wait(lambda: all(_begun(folder, n) for n in (0, 1, 4, 5)), "their first cells")
    status = steptime("sweep", "status", out)
    assert (status["queued"], status["running"], status["finished"]) == (20, 4, 0)
    states = Counter(re.sub("_.*", "", job["job"]) + job["state"] for job in status["jobs"])
    assert states == {f"{job}{state}": 2 for job in (k80, p100) for state in ("RUNNING", "PENDING")}

    # one crashes, one stands still until its time limit
    crashed, stopped = (_begun(folder, n)[-1] for n in (0, 1))
    first, second = (_worker(_task(folder, n)) for n in (0, 1))
    os.kill(second, signal.SIGSTOP)
    os.kill(first, signal.SIGSEGV)

    # one task is cancelled while it waits, its three cells with it
    slurm.run("scancel", f"{k80}_3")
    cancelled = {visit["id"] for visit in _cells(folder)[9:12]}

    # one node goes down under its tasks; the scheduler starts them again on another one
    lost = {_begun(folder, n)[-1] for n in (4, 5)}
    slurm.node_down("p1", told=True)
    gate.unlink()
    slurm.run("scontrol", "update", "nodename=k2,p2", "state=resume")
    slurm.wait(slurm.quiet, lambda: slurm.run("squeue"))

    status = steptime("sweep", "status", out)
    assert (status["cells"], status["finished"], status["failed"]) == (24, 20, 4)
    causes = {row["cause"]: row["cells"] for row in status["cells_by_cause"]}
    assert causes == {"crashed": 1, "time-limit": 1, "cancelled": 3}
    assert _statuses(status) == {"ok": 19, "timeout": 1, "failed": 4}
    assert steptime("sweep", "collect", out) == {
        "out": str(out),
        "records": 3,
        "cells_by_cause": [{"cause": "cancelled", "cells": 3}],
        "headline": [f"{out}: 3 cells lost by their jobs: 3 cancelled"],
    }

    # one resume
    again = steptime(*sweep)
    assert (again["finished_before"], again["submitted"]) == (20, 4)
    slurm.wait(slurm.quiet, lambda: slurm.run("squeue"))
    status = steptime("sweep", "status", out)
    assert (status["finished"], _statuses(status)) == (24, {"ok": 23, "timeout": 1})
    assert steptime(*sweep)["submitted"] == 0

    last = _last(out)
    assert len(last) == 24
    assert _history(out, crashed) == [("failed", "crashed"), ("ok", "")]
    assert _history(out, stopped) == [("timeout", "time-limit")]
    assert {_history(out, cell)[0] for cell in cancelled} == {("failed", "cancelled")}
    for cell in lost:
        assert _history(out, cell) == [("failed", "node-fail"), ("ok", "")]
    assert Counter(r["method"]["options"]["gpu"] for r in last.values()) == {"k80": 12, "p100": 12}
    for record in last.values():
        node = record["env"]["slurm"]["node"]
        assert node[0] == record["method"]["options"]["gpu"][0], "ran where that GPU is"
        assert record["env"]["slurm"]["visible"] in {"0", "1", "2", "3"}


def _last(out: Path) -> dict[str, dict[str, Any]]:
    """Return the last record of each cell."""
    return {record["env"]["cell"]: record for record in _records(out)}


def _history(out: Path, cell: str) -> list[tuple[str, str]]:
    """Return what became of a cell, one time after the other."""
    tries = [record for record in _records(out) if record["env"]["cell"] == cell]
    for record in tries:
        if record["cause"] == "crashed":
            assert "SIGSEGV" in record["note"]
        if record["cause"] == "node-fail":
            assert record["env"]["slurm"]["node"] == "p1"
    return [(record["status"], record["cause"]) for record in tries]


def _cells(folder: Path) -> list[dict[str, Any]]:
    return _lines(folder / "cells.jsonl")


def test_a_head_node_that_goes_away_loses_nothing(slurm, steptime, tmp_path):
    out = tmp_path / "out"
    few = {"networks": [{**EXPERIMENT["networks"][0], "layers": 1}], "staging": "shared"}
    sweep = ["sweep", _file(tmp_path, **few), "--out", out, "--launcher", "slurm"]
    folder = Path(steptime(*sweep)["folder"])
    slurm.wait(lambda: bool(_begun(folder, 0)), "a task to begin")
    slurm.controller_stop()
    assert "ontact slurm controller" in steptime("sweep", "status", out, code=1)
    slurm.wait(lambda: len(_records(out)) == 4, "tasks to go on without it")
    slurm.controller_start()
    slurm.wait(slurm.quiet, lambda: slurm.run("squeue"))
    status = steptime("sweep", "status", out)
    assert (status["finished"], _statuses(status)) == (4, {"ok": 4})


@pytest.mark.rare
def test_a_node_that_fails_for_good_is_said_so(slurm, steptime, tmp_path, gate):
    out = tmp_path / "out"
    few = {
        "networks": [{**EXPERIMENT["networks"][0], "layers": 1}],
        "staging": "shared",
        "time_limit_s": 600,
        "slurm": {"gpu": "k80", "requeues": 0, "time": "30"},
    }
    sweep = ["sweep", _file(tmp_path, **few), "--out", out, "--launcher", "slurm"]
    folder = Path(steptime(*sweep)["folder"])
    slurm.wait(lambda: bool(_begun(folder, 0)), "a task to begin")
    (node,) = {job["text"] for job in steptime("sweep", "status", out)["jobs"]}
    slurm.node_down(node)
    slurm.run("scontrol", "update", f"nodename={node}", "state=down", "reason=power")
    slurm.wait(slurm.quiet, lambda: slurm.run("squeue"))
    rows = steptime("sweep", "status", out)["unsuccessful"]
    assert {(row["status"], row["cause"]) for row in rows} == {("failed", "node-fail")}
    assert [row["note"] for row in rows] == [
        f"job {row['note'].split()[1]} ended {when} (NODE_FAIL, exit code 0)"
        for row, when in zip(rows, ("while it was measured", "before it was begun"), strict=True)
    ]


def test_preemption_and_a_jobs_time_limit(slurm, steptime, tmp_path, gate):
    out = tmp_path / "out"
    few = {
        "networks": [{**EXPERIMENT["networks"][0], "layers": 1}],
        "staging": "shared",
        "time_limit_s": 600,
        "slurm": {"gpu": ["k80", "p100"], "requeues": 0, "time": "30", "exclusive": True},
    }
    sweep = ["sweep", _file(tmp_path, **few), "--out", out, "--launcher", "slurm"]
    sent = steptime(*sweep)
    folder = Path(sent["folder"])
    slurm.wait(lambda: all(_begun(folder, n) for n in (0, 1)), "two tasks to begin")
    jobs = {job["job"]: job["text"] for job in steptime("sweep", "status", out)["jobs"]}
    node = jobs[f"{sent['jobs'][0]}_0"]
    slurm.submit("true", "--partition=urgent", "--exclusive", f"--nodelist={node}")
    soon = "date -d '+1 second' +%Y-%m-%dT%H:%M:%S"
    end = subprocess.run(["bash", "-c", soon], capture_output=True, text=True, check=True).stdout
    slurm.run("scontrol", "update", f"jobid={sent['jobs'][1]}_0", f"EndTime={end.strip()}")
    slurm.wait(slurm.quiet, lambda: slurm.run("squeue"))
    rows = steptime("sweep", "status", out)["unsuccessful"]
    assert {(row["gpu"], row["status"], row["cause"]) for row in rows} == {
        ("k80", "failed", "preempted"), ("p100", "failed", "time-limit"),
    }  # fmt: skip


def test_a_request_that_the_site_does_not_meet_is_one_line(slurm, steptime, tmp_path):
    sweep = ["--out", tmp_path / "out", "--launcher", "slurm"]
    said = steptime("sweep", _file(tmp_path, slurm={"gpu": "v100"}), *sweep, code=2)
    assert said == (
        "steptime: gpu v100: sbatch: Batch job submission failed: "
        "Requested node configuration is not available\n"
    )
    said = steptime("sweep", _file(tmp_path, slurm={"partition": "nix"}), *sweep, code=2)
    assert said == (
        "steptime: partition nix: sbatch: invalid partition specified: nix; "
        "Batch job submission failed: Invalid partition name specified\n"
    )


@pytest.mark.framework
def test_a_cell_over_two_nodes_is_one_record(slurm, steptime, tmp_path):
    """The nodes of this cluster are one machine: each process is put on a CPU of its own."""
    python = tmp_path / "python"
    bind = f'exec taskset -c $SLURM_NODEID {sys.executable} "$@"'
    python.write_text(f"#!/bin/sh\nexport MASTER_ADDR=127.0.0.1\n{bind}\n")
    python.chmod(0o755)
    network = {"family": "fc", "layers": 2, "nodes": 32, "inputs": 16, "outputs": 4, "batch": 4}
    table = {
        "name": "two nodes",
        "threads": 1,
        "budget_s": 0.3,
        "replicas": [1, 2],
        "strategy": ["allreduce", "independent"],
        "networks": [network],
        "slurm": {
            "gpu": "p100",
            "replicas_per_node": 1,
            "python": str(python),
            "memory_GB": 3,
        },
    }
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(table))
    out = tmp_path / "out"
    sent = steptime("sweep", path, "--out", out, "--launcher", "slurm")
    assert (sent["cells"], sent["tasks"]) == (3, 2)
    slurm.wait(slurm.quiet, lambda: slurm.run("squeue"))
    status = steptime("sweep", "status", out)
    assert _statuses(status) == {"ok": 3}, status["unsuccessful"]
    two = [r for r in _records(out) if r["workload"]["plan"]["data"] == 2]
    assert {r["method"]["options"]["strategy"] for r in two} == {"allreduce", "independent"}
    for record in two:
        assert [one["cpus"] for one in record["env"]["ranks"]] == [[0], [1]]
        assert record["env"]["slurm"]["node"] in {"p1", "p2"}

"""One contract for every scheduler: Slurm, where there is one, and the one that tests make up.

What Slurm's commands print is captured from a real one (22.05, tests/data/slurm).
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fake_scheduler
import pytest

import steptime
from every import every
from places import TESTS
from steptime.cli.main import run
from steptime.core.causes import CAUSES
from steptime.core.errors import InputError
from steptime.measure.procfs import host_list
from steptime.measure.worker import FAILURES
from steptime.records import store
from steptime.sweeps.cluster import outcome, slurm, task
from steptime.sweeps.cluster.scheduler import (
    SCHEDULERS,
    JobArray,
    JobExit,
    Need,
    Queued,
    Scheduler,
    SchedulerError,
    scheduler_of,
)
from steptime.sweeps.resource_request import ResourceRequest

SAID = TESTS / "data" / "slurm"
LIMIT_S = 600.0
TELL = 'echo "$@" > "$0".$5; while [ -e "$0".wait ]; do sleep 0.1; done; exit $(cat "$0".exit)\n'


@dataclass
class Bed:
    """A scheduler with the ways in which a test moves it; `python` is what its tasks call."""

    scheduler: Scheduler
    python: Path
    folder: Path
    go_on: Callable[[], None]
    go_away: Callable[[], None]

    def array(self, name: str, tasks: int, after: str = "", partition: str = "") -> JobArray:
        """Return an array whose tasks tell what they are called with, and end with code 7."""
        need = Need(ResourceRequest(partition=partition, requeues=0), 1, 1)
        path = self.folder / f"{name}.sh"
        (self.folder / "logs").mkdir(exist_ok=True)
        path.write_text(self.scheduler.script(need, name, str(self.folder), str(self.python)))
        return JobArray(path, name, 10, tasks, tasks, after)

    def wait(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < end
            self.go_on()


@pytest.fixture
def python(tmp_path):
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{TELL}")
    path.chmod(0o755)
    Path(f"{path}.exit").write_text("7")
    return path


@pytest.fixture
def fake(tmp_path, python):
    state = fake_scheduler.reset()

    def go_away() -> None:
        state.away = "nobody is there"

    return Bed(scheduler_of("fake"), python, tmp_path, fake_scheduler.run, go_away)


@pytest.fixture
def real(tmp_path, python, monkeypatch):
    monkeypatch.syspath_prepend(TESTS / "slurm")
    from cluster import SlurmCluster

    with SlurmCluster(tmp_path / "own", {"k1": "k80"}) as own:
        for name, value in own.env.items():
            monkeypatch.setenv(name, value)
        folder = tmp_path / "jobs"
        folder.mkdir()
        yield Bed(
            scheduler_of("slurm"), python, folder, lambda: time.sleep(0.1), own.controller_stop
        )


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.slurm)])
def bed(request):
    found: Bed = request.getfixturevalue(request.param)
    return found


def test_a_scheduler_keeps_the_contract(bed):
    of = bed.scheduler
    assert of.limits() >= 1
    assert of.queued([]) == {}
    with pytest.raises(InputError, match="invalid partition specified: nowhere"):
        of.submit(bed.array("refused", 1, partition="nowhere"))

    first = of.submit(bed.array("first", 2))
    second = of.submit(bed.array("second", 1, after=first))
    names = {("first", 0), ("first", 1), ("second", 0)}
    held = Path(f"{bed.python}.wait")
    for (name, index), task_ in of.queued(["first", "second", "third"]).items():
        assert (name, index) in names
        assert task_.array == (first if name == "first" else second)
        assert task_.job == f"{task_.array}_{index}"
        assert task_.state
    bed.wait(lambda: not of.queued(["first", "second"]))
    exits = of.ended({(first, 0), (first, 1), (second, 0)}, "2026-01-01T00:00:00")
    assert {key: (one.state, one.exit, one.cause) for key, one in exits.items()} == {
        (first, 0): ("FAILED", 7, "crashed"),
        (first, 1): ("FAILED", 7, "crashed"),
        (second, 0): ("FAILED", 7, "crashed"),
    }
    for number in ("10", "11"):  # the script's argument and the place in the array, added
        words = Path(f"{bed.python}.{number}").read_text().split()
        assert words == ["-P", "-m", "steptime.sweeps.cluster.task", str(bed.folder), number]

    held.touch()
    waits = of.submit(bed.array("waits", 1))
    last = of.submit(bed.array("last", 1, after=waits))
    of.cancel([last])
    assert ("last", 0) not in of.queued(["last"])
    assert of.ended({(last, 0)}, "2026-01-01T00:00:00") in ({}, {(last, 0): _cancelled(last)})
    of.cancel([waits])
    bed.wait(lambda: not of.queued(["waits"]))
    held.unlink()
    assert of.ended({("99999", 0)}, "2026-01-01T00:00:00") == {}

    bed.go_away()
    for call in (of.limits, lambda: of.queued(["first"]), lambda: of.cancel([first])):
        with pytest.raises(SchedulerError):
            call()


def _cancelled(job: str) -> JobExit:
    return JobExit(f"{job}_0", "CANCELLED", 0, 0, "cancelled")


@pytest.fixture
def says(tmp_path, monkeypatch):
    """Return a function that lets a command of Slurm's print what a real one printed."""

    def stand_in(command: str, file: str | Path, code: int = 0) -> Path:
        path = tmp_path / "bin" / command
        path.parent.mkdir(exist_ok=True)
        log = path.with_suffix(".log")
        to = ">&2" if code else ""
        path.write_text(f'#!/bin/sh\necho "$@" >> {log}\ncat {SAID / file} {to}\nexit {code}\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}/usr/bin:/bin")
        return log

    return stand_in


def test_what_squeue_and_scontrol_printed_is_read(says):
    says("squeue", "squeue.txt")
    live = slurm.queued(["steptime-2fc8d85dc000-0", "steptime-2fc8d85dc000-4"])
    assert len(live) == 8
    runs = live["steptime-2fc8d85dc000-0", 1]
    assert (runs.job, runs.array, runs.text, runs.running) == ("1_1", "1", "k1", True)
    waits = live["steptime-2fc8d85dc000-4", 3]
    assert waits.text == "ReqNodeNotAvail, UnavailableNodes:k2,p[1-2]"
    assert not waits.running
    says("scontrol", "config.txt")
    assert slurm.limits() == 1001
    says("scontrol", "scontrol-ended-p100.txt")
    exits = slurm.ended({("4", i) for i in range(4)}, "")
    assert {key: (one.state, one.cause) for key, one in exits.items()} == {
        ("4", 0): ("CANCELLED", "cancelled"), ("4", 1): ("COMPLETED", ""),
    }  # fmt: skip
    says("scontrol", "scontrol-running.txt")
    assert slurm.ended({("1", 0)}, "") == {}, "it runs"
    details = (SAID / "scontrol-running.txt").read_text()
    assert slurm.cpus_of(details, "k1") != set()
    assert slurm.cpus_of(details, "k2") == set()


def test_the_controller_is_asked_only_for_what_accounting_leaves_out(says, tmp_path):
    accounting = tmp_path / "sacct.txt"
    accounting.write_text(
        "10_3|CANCELLED by 0|0:15\n10_[4-5,7%2]|CANCELLED by 12|0:0\n11|COMPLETED|0:0\n"
    )
    says("sacct", accounting)
    log = says("scontrol", "scontrol-ended-p100.txt")
    exits = slurm.ended({("10", i) for i in (3, 4, 5, 7)}, "")
    assert {key: one.state for key, one in exits.items()} == {
        ("10", i): "CANCELLED" for i in (3, 4, 5, 7)
    }
    assert not log.exists()
    assert slurm.ended({("10", 3), ("4", 0)}, "")["4", 0].state == "CANCELLED"
    assert log.read_text() == "show job --oneliner 4\n"


@pytest.mark.parametrize(
    ("command", "file", "kind", "said"),
    [
        ("squeue", "squeue-away.txt", SchedulerError,
         "squeue: Slurm does not answer: Unable to contact slurm controller (connect failure)"),
        ("squeue", "squeue-dns.txt", SchedulerError,
         "squeue: Slurm does not answer: its controller's host 'nohost-vm' has no address here"),
        ("sbatch", "sbatch-dns.txt", SchedulerError,
         "sbatch: Slurm does not answer: its controller's host 'nohost-vm' has no address here"),
        ("sbatch", "sbatch-away.txt", SchedulerError,
         "sbatch: Slurm does not answer: Unable to contact slurm controller (connect failure)"),
        ("sbatch", "sbatch-partition.txt", InputError,
         "sbatch: invalid partition specified: nix"),
        ("sbatch", "sbatch-gres.txt", InputError,
         "sbatch: Batch job submission failed: Requested node configuration is not available"),
    ],
)  # fmt: skip
def test_what_slurm_says_of_a_failure_is_one_line(says, command, file, kind, said):
    says(command, file, 1)
    array = JobArray(Path("x"), "x", 0, 1, 1)
    with pytest.raises(kind) as caught:
        slurm.submit(array) if command == "sbatch" else slurm.queued(["x"])
    assert str(caught.value) == said


def test_causes_of_exits():
    assert slurm.cause_of_exit("FAILED", 0, 9) == "killed"
    assert slurm.cause_of_exit("FAILED", 0, 11) == "crashed"
    assert slurm.cause_of_exit("FAILED", errno.ENOSPC, 0) == "no-space"


@every(
    ("state", "cause"),
    [
        ("TIMEOUT", "time-limit"), ("DEADLINE", "time-limit"), ("NODE_FAIL", "node-fail"),
        ("BOOT_FAIL", "node-fail"), ("PREEMPTED", "preempted"), ("CANCELLED", "cancelled"),
        ("REVOKED", "cancelled"), ("OUT_OF_MEMORY", "killed for memory"), ("FAILED", "crashed"),
        ("COMPLETED", ""),
    ],
)  # fmt: skip
def test_every_state_of_a_job_that_is_over_has_its_cause(monkeypatch, state, cause):
    line = f"JobId=3 ArrayJobId=1 ArrayTaskId=2 JobState={state} ExitCode=1:0"
    monkeypatch.setattr(slurm.shutil, "which", lambda _: None)
    monkeypatch.setattr(slurm, "_run", lambda _: f"{line}\n")
    assert slurm.ended({("1", 2)}, "")["1", 2].cause == cause


@every(
    ("state", "runs"),
    [
        ("PENDING", False), ("CONFIGURING", False), ("REQUEUED", False), ("REQUEUE_HOLD", False),
        ("REQUEUE_FED", False), ("SPECIAL_EXIT", False), ("RUNNING", True), ("COMPLETING", True),
        ("SUSPENDED", True),
    ],
)  # fmt: skip
def test_a_job_waits_until_its_nodes_are_up(monkeypatch, state, runs):
    monkeypatch.setattr(slurm, "_run", lambda _: f"n-0|10|1|{state}|k1|why\n")
    text = "k1" if runs else "why"
    assert slurm.queued(["n-0"]) == {("n-0", 1): Queued("10_1", "10", state, text, runs)}


def test_nodes_and_cpus_of_details():
    details = "JobId=3 Nodes=gpu[03-04] CPU_IDs=0-1,6 Mem=8 GRES= Nodes=login CPU_IDs=5 Mem=4"
    assert slurm.cpus_of(details, "gpu04") == {0, 1, 6}
    assert slurm.cpus_of(details, "login") == {5}
    assert slurm.cpus_of(details, "gpu05") == set()
    assert host_list("a[1,09-10]x,b") == ["a1x", "a09x", "a10x", "b"]
    racks = ["r1-n04", "r1-n05", "r2-n04", "r2-n05"]
    assert host_list("r[1-2]-n[04-05]") == racks
    assert slurm.cpus_of("Nodes=r[1-2]-n[04-05] CPU_IDs=2-3 Mem=1", "r2-n04") == {2, 3}


def test_every_cause_that_is_given_is_in_the_table():
    words = {cause for _, cause in (*outcome.PRINTED, *slurm.PRINTED)}
    words |= {cause for cause in slurm.OVER.values() if cause}
    words |= {cause for _, _, cause in FAILURES}
    words |= {outcome.NEVER_BEGAN, outcome.VANISHED, outcome.BAD_SCRIPT}
    words |= {task.NODE_FAIL, task.MISSING_FILE, task.BAD_CONFIG}
    assert {word.removesuffix(" for memory") for word in words} <= set(CAUSES)
    assert all(cause.meaning and cause.retry for cause in CAUSES.values())


def test_only_its_own_file_and_the_rank_reader_know_slurm():
    root = Path(steptime.__file__).parent
    own = {root / "sweeps" / "cluster" / "slurm.py", root / "measure" / "ranks.py"}
    words = re.compile(
        r"SLURM_|SLURMD_|#SBATCH|\[\s*[\"']s(?:batch|queue|acct|control|cancel|run)\b"
    )
    knowing = {path for path in root.rglob("*.py") if words.search(path.read_text("utf-8"))}
    assert {path for path in knowing if path.parent.name != "readers"} == own, "readers read logs"


def test_an_unknown_scheduler_is_refused():
    with pytest.raises(InputError, match="unknown scheduler 'slrum'; did you mean 'slurm'"):
        scheduler_of("slrum")
    assert {name: scheduler_of(name).name for name in (*SCHEDULERS, "fake")} == {
        "slurm": "slurm", "fake": "fake",
    }  # fmt: skip


def test_a_scheduler_of_one_file_and_one_row_takes_a_sweep(fake, tmp_path, capsys):
    table = {
        "name": "two", "backend": "null", "threads": 1, "budget_s": 0.01,
        "networks": [{"family": "fc", "layers": 1, "nodes": [4, 8], "inputs": 8, "outputs": 4,
                      "batch": 2}],
    }  # fmt: skip
    file, out = tmp_path / "two.json", tmp_path / "out"
    file.write_text(json.dumps(table))
    assert run(["sweep", str(file), "--out", str(out), "--launcher", "fake"]) == 0
    fake.go_on()
    capsys.readouterr()
    assert run(["sweep", "status", str(out), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["cells"], status["finished"], status["cells_by_status"]) == (
        2, 2, [{"status": "ok", "cells": 2}],
    )  # fmt: skip
    records = store.load(out, pytest.fail)
    assert all("fake" in record.env and "slurm" not in record.env for record in records)


@every(
    "line",
    [
        "",
        "a warning",
        "n-0|10|\u00b2|RUNNING|k1|why",
        "n-0|10",
        "n-0|10|99999999999|RUNNING|k1|why",
    ],
)
def test_what_is_no_line_of_a_task_is_none(line, monkeypatch):
    monkeypatch.setattr(slurm, "_run", lambda _: f"{line}\nn-0|10|1|RUNNING|k1|a|b\n")
    assert [*slurm.queued(["n-0"])] == [("n-0", 1)]


@every(
    "line", ["", "1_0|FAILED", "1_0||0:0", "1_0|FAILED|?", "1_0-|FAILED|1:0", "1_[0-|FAILED|1:0"]
)
def test_what_is_no_end_of_a_task_is_none(line, monkeypatch):
    monkeypatch.setattr(slurm.shutil, "which", lambda _: "sacct")
    monkeypatch.setattr(slurm, "_run", lambda _: f"{line}\n1_[0-1%2]|TIMEOUT|0:15\n")
    assert sorted(slurm.ended({("1", 0), ("1", 1)}, "2020")) == [("1", 0), ("1", 1)]


def test_bytes_that_are_no_text_are_read(says, tmp_path):
    (tmp_path / "odd.txt").write_bytes(b"n-0|10|1|RUNNING|k\x9d|why\n")
    says("squeue", tmp_path / "odd.txt")
    assert slurm.queued(["n-0"])["n-0", 1].text == "k\ufffd"

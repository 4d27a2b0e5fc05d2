"""One behaviour of Slurm: of a real one, where there is one, and of the one that tests make up.

What Slurm's commands print is captured from a real one (22.05, tests/data/slurm).
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fake_slurm
import pytest

import steptime
from every import every
from places import TESTS
from steptime.core.causes import CAUSES
from steptime.core.errors import InputError
from steptime.measure.procfs import host_list
from steptime.measure.worker import FAILURES
from steptime.sweeps.cluster import commands, outcome, parsing, task
from steptime.sweeps.cluster.jobs import (
    ArrayJob,
    JobArray,
    JobExit,
    Need,
    QueuedTask,
    SchedulerError,
    TaskJob,
    TaskName,
)
from steptime.sweeps.cluster.script import make_script
from steptime.sweeps.cluster.slurm import Slurm
from steptime.sweeps.resource_request import ResourceRequest

SAID = TESTS / "data" / "slurm"
LIMIT_S = 600.0
TELL = 'echo "$@" > "$0".$5; while [ -e "$0".wait ]; do sleep 0.1; done; exit $(cat "$0".exit)\n'


@dataclass
class Bed:
    """A Slurm with the ways in which a test moves it; `python` is what its tasks call."""

    python: Path
    folder: Path
    go_on: Callable[[], None]
    go_away: Callable[[], None]

    def array(self, name: str, tasks: int, after: str = "", partition: str = "") -> JobArray:
        """Return an array whose tasks tell what they are called with, and end with code 7."""
        need = Need(ResourceRequest(partition=partition, requeues=0), 1, 1)
        path = self.folder / f"{name}.sh"
        (self.folder / "logs").mkdir(exist_ok=True)
        path.write_text(make_script(need, name, str(self.folder), str(self.python)))
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
def fake(tmp_path, python, monkeypatch):
    state = fake_slurm.reset()
    monkeypatch.setattr(commands, "execute", fake_slurm.execute)

    def go_away() -> None:
        state.away = "nobody is there"

    return Bed(python, tmp_path, fake_slurm.run, go_away)


@pytest.fixture
def real(tmp_path, python, monkeypatch):
    monkeypatch.syspath_prepend(TESTS / "slurm")
    from cluster import SlurmCluster

    with SlurmCluster(tmp_path / "own", {"k1": "k80"}) as own:
        for name, value in own.env.items():
            monkeypatch.setenv(name, value)
        folder = tmp_path / "jobs"
        folder.mkdir()
        yield Bed(python, folder, lambda: time.sleep(0.1), own.controller_stop)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.slurm)])
def bed(request):
    found: Bed = request.getfixturevalue(request.param)
    return found


def test_jobs_are_sent_found_ended_and_cancelled(bed):
    slurm = Slurm()
    assert slurm.read_max_tasks() >= 1
    assert slurm.list_tasks([]) == {}
    with pytest.raises(InputError, match="invalid partition specified: nowhere"):
        slurm.submit(bed.array("refused", 1, partition="nowhere"))
    assert slurm.find_job("refused") is None

    first = slurm.submit(bed.array("first", 2))
    second = slurm.submit(bed.array("second", 1, after=first.number))
    assert slurm.find_job("first") == first
    names = {("first", 0), ("first", 1), ("second", 0)}
    held = Path(f"{bed.python}.wait")
    for name, (queued,) in slurm.list_tasks(["first", "second", "third"]).items():
        assert name in names
        assert queued.task == TaskJob(first if name.array == "first" else second, name.position)
        assert queued.state
    bed.wait(lambda: not slurm.list_tasks(["first", "second"]))
    tasks = [TaskJob(first, 0), TaskJob(first, 1), TaskJob(second, 0)]
    exits = Slurm.list_exits(tasks, "2026-01-01T00:00:00")
    assert {
        task: (one.state, one.exit_code, one.cause) for task, one in exits.items()
    } == dict.fromkeys(tasks, ("FAILED", 7, "crashed"))
    for number in ("10", "11"):  # the script's argument and the place in the array, added
        words = Path(f"{bed.python}.{number}").read_text().split()
        assert words == ["-P", "-m", "steptime.sweeps.cluster.task", str(bed.folder), number]

    held.touch()
    waits = slurm.submit(bed.array("waits", 1))
    last = slurm.submit(bed.array("last", 1, after=waits.number))
    Slurm.cancel([last])
    assert ("last", 0) not in slurm.list_tasks(["last"])
    gone = TaskJob(last, 0)
    cancelled = {gone: JobExit(gone, "CANCELLED", 0, 0, "cancelled")}
    assert Slurm.list_exits([gone], "2026-01-01T00:00:00") in ({}, cancelled)
    Slurm.cancel([waits])
    bed.wait(lambda: not slurm.list_tasks(["waits"]))
    held.unlink()
    unknown = TaskJob(ArrayJob("99999"), 0)
    assert Slurm.list_exits([unknown], "2026-01-01T00:00:00") == {}

    bed.go_away()
    calls = (
        slurm.read_max_tasks,
        lambda: slurm.list_tasks(["first"]),
        lambda: Slurm.cancel([first]),
    )
    for call in calls:
        with pytest.raises(SchedulerError):
            call()


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


def _tasks(job: str, *positions: int) -> list[TaskJob]:
    return [TaskJob(ArrayJob(job), position) for position in positions]


def test_what_squeue_and_scontrol_printed_is_read(says):
    says("squeue", "squeue.txt")
    names = ["steptime-2fc8d85dc000-0", "steptime-2fc8d85dc000-4"]
    live = Slurm().list_tasks(names)
    assert len(live) == 8
    (runs,) = live[TaskName(names[0], 1)]
    assert (runs.task.text, runs.text, runs.is_running) == ("1_1", "k1", True)
    (waits,) = live[TaskName(names[1], 3)]
    assert waits.text == "ReqNodeNotAvail, UnavailableNodes:k2,p[1-2]"
    assert not waits.is_running
    says("scontrol", "config.txt")
    assert Slurm().read_max_tasks() == 1001
    says("scontrol", "scontrol-ended-p100.txt")
    exits = Slurm.list_exits(_tasks("4", 0, 1, 2, 3), "")
    assert {task.text: (one.state, one.cause) for task, one in exits.items()} == {
        "4_0": ("CANCELLED", "cancelled"), "4_1": ("COMPLETED", ""),
    }  # fmt: skip
    says("scontrol", "scontrol-running.txt")
    assert Slurm.list_exits(_tasks("1", 0), "") == {}, "it runs"
    details = (SAID / "scontrol-running.txt").read_text()
    assert parsing.parse_cpus(details, "k1") != set()
    assert parsing.parse_cpus(details, "k2") == set()


def test_the_controller_is_asked_only_for_what_accounting_leaves_out(says, tmp_path):
    accounting = tmp_path / "sacct.txt"
    accounting.write_text(
        "10_3|CANCELLED by 0|0:15\n10_[4-5,7%2]|CANCELLED by 12|0:0\n11|COMPLETED|0:0\n"
    )
    says("sacct", accounting)
    log = says("scontrol", "scontrol-ended-p100.txt")
    exits = Slurm.list_exits(_tasks("10", 3, 4, 5, 7), "")
    assert {task: one.state for task, one in exits.items()} == dict.fromkeys(
        _tasks("10", 3, 4, 5, 7), "CANCELLED"
    )
    assert not log.exists()
    (ended,) = _tasks("4", 0)
    assert Slurm.list_exits([*_tasks("10", 3), ended], "")[ended].state == "CANCELLED"
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
         ("sbatch: invalid partition specified: nix; "
          "Batch job submission failed: Invalid partition name specified")),
        ("sbatch", "sbatch-gres.txt", InputError,
         "sbatch: Batch job submission failed: Requested node configuration is not available"),
    ],
)  # fmt: skip
def test_what_slurm_says_of_a_failure_is_one_line(says, command, file, kind, said):
    says(command, file, 1)
    array = JobArray(Path("x"), "x", 0, 1, 1)
    with pytest.raises(kind) as caught:
        Slurm().submit(array) if command == "sbatch" else Slurm().list_tasks(["x"])
    assert str(caught.value) == said


def test_causes_of_exits():
    assert parsing.cause_of_exit("FAILED", 0, 9) == "killed"
    assert parsing.cause_of_exit("FAILED", 0, 11) == "crashed"
    assert parsing.cause_of_exit("FAILED", errno.ENOSPC, 0) == "no-space"


@every(
    ("state", "cause"),
    [
        ("TIMEOUT", "time-limit"), ("DEADLINE", "time-limit"), ("NODE_FAIL", "node-fail"),
        ("BOOT_FAIL", "node-fail"), ("PREEMPTED", "preempted"), ("CANCELLED", "cancelled"),
        ("REVOKED", "cancelled"), ("OUT_OF_MEMORY", "killed for memory"), ("FAILED", "crashed"),
        ("COMPLETED", ""),
    ],
)  # fmt: skip
def test_every_state_of_a_job_that_is_over_has_its_cause(state, cause):
    line = f"JobId=3 ArrayJobId=1 ArrayTaskId=2 JobState={state} ExitCode=1:0"
    (task_job,) = _tasks("1", 2)
    assert parsing.parse_controller_jobs(f"{line}\n")[task_job].cause == cause


@every(
    ("state", "runs"),
    [
        ("PENDING", False), ("CONFIGURING", False), ("REQUEUED", False), ("REQUEUE_HOLD", False),
        ("REQUEUE_FED", False), ("SPECIAL_EXIT", False), ("RUNNING", True), ("COMPLETING", True),
        ("SUSPENDED", True),
    ],
)  # fmt: skip
def test_a_job_waits_until_its_nodes_are_up(state, runs):
    (task_job,) = _tasks("10", 1)
    queued = QueuedTask(task_job, state, "k1" if runs else "why", runs)
    text = f"n-0|10|1|{state}|k1|why\n"
    assert [*parsing.parse_queue(text, ["n-0"])] == [(TaskName("n-0", 1), queued)]


def test_nodes_and_cpus_of_details():
    details = "JobId=3 Nodes=gpu[03-04] CPU_IDs=0-1,6 Mem=8 GRES= Nodes=login CPU_IDs=5 Mem=4"
    assert parsing.parse_cpus(details, "gpu04") == {0, 1, 6}
    assert parsing.parse_cpus(details, "login") == {5}
    assert parsing.parse_cpus(details, "gpu05") == set()
    assert host_list("a[1,09-10]x,b") == ["a1x", "a09x", "a10x", "b"]
    racks = ["r1-n04", "r1-n05", "r2-n04", "r2-n05"]
    assert host_list("r[1-2]-n[04-05]") == racks
    assert parsing.parse_cpus("Nodes=r[1-2]-n[04-05] CPU_IDs=2-3 Mem=1", "r2-n04") == {2, 3}


def test_every_cause_that_is_given_is_in_the_table():
    words = {cause for _, cause in (*outcome.SCRIPT_CAUSES, *parsing.PRINTED_CAUSES)}
    words |= {cause for cause in parsing.CAUSE_OF_STATE.values() if cause}
    words |= {cause for _, _, cause in FAILURES}
    words |= {outcome.NEVER_BEGAN, outcome.VANISHED, outcome.BAD_SCRIPT}
    words |= {outcome.NODE_FAIL, task.MISSING_FILE, task.BAD_CONFIG}
    assert {word.removesuffix(" for memory") for word in words} <= set(CAUSES)
    assert all(cause.meaning and cause.retry for cause in CAUSES.values())


def test_only_its_own_folder_and_the_rank_reader_know_slurm():
    root = Path(steptime.__file__).parent
    words = re.compile(
        r"SLURM_|SLURMD_|#SBATCH|\[\s*[\"']s(?:batch|queue|acct|control|cancel|run)\b"
    )
    knowing = {path for path in root.rglob("*.py") if words.search(path.read_text("utf-8"))}
    own = root / "sweeps" / "cluster"
    known = {path for path in knowing if path.parent not in {own, root / "records" / "readers"}}
    launched = {path for path in known if root / "launch" in path.parents}  # of other people's jobs
    assert known - launched == {root / "measure" / "ranks.py"}, "readers read logs"


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
def test_what_is_no_line_of_a_task_is_none(line):
    text = f"{line}\nn-0|10|1|RUNNING|k1|a|b\n"
    assert [name for name, _ in parsing.parse_queue(text, ["n-0"])] == [("n-0", 1)]


@every(
    "line", ["", "1_0|FAILED", "1_0||0:0", "1_0|FAILED|?", "1_0-|FAILED|1:0", "1_[0-|FAILED|1:0"]
)
def test_what_is_no_end_of_a_task_is_none(line):
    exits = parsing.parse_accounting(f"{line}\n1_[0-1%2]|TIMEOUT|0:15\n")
    assert sorted(exits) == _tasks("1", 0, 1)


def test_bytes_that_are_no_text_are_read(says, tmp_path):
    (tmp_path / "odd.txt").write_bytes(b"n-0|10|1|RUNNING|k\x9d|why\n")
    says("squeue", tmp_path / "odd.txt")
    (queued,) = Slurm().list_tasks(["n-0"])[TaskName("n-0", 1)]
    assert queued.text == "k\ufffd"

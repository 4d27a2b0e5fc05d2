"""Sweeps by Slurm without one: scripts, packing, standings and causes, against made-up commands."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import fake_slurm
import paleo_net
import steptime
from steptime import store
from steptime.cli.main import run
from steptime.cluster import status as cluster
from steptime.cluster import submission as manifest
from steptime.cluster import task
from steptime.cluster.outcome import FOR_MEMORY, OUTPUT, cause_of_output
from steptime.cluster.resources import fits
from steptime.cluster.script import Need, script
from steptime.cluster.slurm import STATES, Ended, _of_accounting, _of_controller, cpus_of, nodes_of
from steptime.cluster.submission import Submission, Visit, packed
from steptime.core.causes import CAUSES
from steptime.core.errors import InputError
from steptime.core.record import STATUSES
from steptime.measure.worker import FAILURES
from steptime.sweep.cells import cells_of
from steptime.sweep.experiment import check_experiment
from steptime.sweep.resource_request import Allocation
from steptime.sweep.run import How, Request

GOLDEN = Path(__file__).parent / "golden"
EXPERIMENT: dict[str, Any] = {
    "name": "small",
    "backend": "null",
    "threads": 1,
    "budget_s": 0.02,
    "batch": [2, 4, 8],
    "networks": [{"family": "fc", "layers": [1, 2], "nodes": 4, "inputs": 8, "outputs": 4}],
    "slurm": {"gpu": ["k80", "p100"], "cells_per_task": 4, "time": "30"},
}  # 12 cells: two jobs of two tasks, of four and two cells


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder of a scheduler that only takes notes, its commands on the PATH."""
    folder = fake_slurm.install(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(EXPERIMENT))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def _ignore(_: str) -> None:
    """Take a warning that a test is not about."""


def _visits(**changes: Any) -> list[Visit]:
    experiment = check_experiment({**EXPERIMENT, **changes}, "here")
    cells, _ = cells_of(experiment, "here", on_cluster=True)
    return [Visit(cell.id(1, 0), cell, 0) for cell in cells]


def _answer(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> Any:
    assert run([*map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out)


LARGE = {"family": "fc", "layers": 4, "nodes": 49152, "inputs": 8, "outputs": 4}
SCRIPTS = {
    "job-plain": Need(Allocation(), 1, 1),
    "job-full": Need(
        Allocation(
            partition="GPU",
            account="me",
            qos="long",
            gpu="k80",
            cpus=7,
            memory_GB=60,
            time="2:00:00",
            exclusive=False,
            constraint="haswell&ib",
            modules=["cuda/12", "python 3"],
            run_first=["source $HOME/env/bin/activate", "ulimit -c 0"],
            flags=["--reservation=maintenance", "--mail-type=END"],
        ),
        4,
        7,
    ),
    "job-nodes": Need(
        Allocation(gpu="p100", replicas_per_node=2, cpus=3, exclusive=True, requeues=0), 8, 3
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_batch_script_is_a_pure_function(name: str) -> None:
    text = script(SCRIPTS[name], "steptime-001-abc", "/data/my runs/100%/slurm/001-abc", "python3")
    path = GOLDEN / f"{name}.sh"
    if os.environ.get("STEPTIME_RENEW_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "renew with STEPTIME_RENEW_GOLDEN=1"
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_cells_are_packed_by_what_they_need() -> None:
    slurm = {**EXPERIMENT["slurm"], "cpus": 2}
    ordered, jobs = packed(_visits(threads=[1, 2], slurm=slurm))
    assert [job.need.allocation.gpu for job in jobs] == [("k80",), ("p100",)]
    assert [job.first_task for job in jobs] == [0, 3]
    assert [stop - start for job in jobs for start, stop in job.slices] == [4] * 6
    assert len({visit.id for visit in ordered}) == 24
    for job in jobs:  # a worker is started once for its cells, not for every other cell
        threads = [visit.cell.options.threads for visit in ordered[job.slices[0][0] :][:12]]
        assert threads == [1] * 6 + [2] * 6


def test_a_process_gets_as_many_cores_as_threads() -> None:
    def cores(**changes: Any) -> list[tuple[int, int | None]]:
        slurm = {k: changes.pop(k) for k in ("cpus", "exclusive") if k in changes}
        ordered, jobs = packed(_visits(**{**changes, "slurm": slurm}))
        return [(job.need.cores, ordered[job.slices[0][0]].cell.options.threads) for job in jobs]

    assert cores(threads=[1, 2]) == [(1, 1), (2, 2)]
    assert cores(cpus=4) == [(4, 1)]
    without = {k: v for k, v in EXPERIMENT.items() if k != "threads"}
    for slurm, threads in (({"cpus": 4}, 4), ({}, 1), ({"exclusive": True}, None)):
        experiment = check_experiment({**without, "slurm": slurm}, "here")
        cells, _ = cells_of(experiment, "here", on_cluster=True)
        assert {cell.options.threads for cell in cells} == {threads}
    with pytest.raises(InputError, match="2 threads on cpus = 1"):
        cores(threads=2, cpus=1)


def test_a_cell_has_one_name_in_every_process_and_another_for_each_setting() -> None:
    (first, *_), (again, *_) = _visits(), _visits()
    assert first.id == again.id == "953e513a5c38b397"
    every = [*_visits(), *_visits(tf32=True), *_visits(replicas=2), *_visits(input="host")]
    assert len({visit.id for visit in every}) == 48
    assert first.cell.id(1, 0) != first.cell.id(1, 1) != first.cell.id(2, 1)


def test_two_folders_have_no_job_in_common(out: Path) -> None:
    one, other = (manifest.compose(out / name, How(), _visits(), 9) for name in ("a", "b"))
    assert one.folder.name == other.folder.name
    assert one.name != other.name


def test_tables_for_one_gpu_need_names() -> None:
    tables = [{"gpu": "k80", "partition": name} for name in ("old", "new")]
    with pytest.raises(InputError, match="two tables for gpu 'k80'; give each a name of its own"):
        _visits(slurm=tables)
    named = [table | {"name": table["partition"]} for table in tables]
    visits = _visits(slurm=named)
    assert len({visit.id for visit in visits}) == 12
    assert {visit.cell.options.allocation for visit in visits} == {"old", "new"}


def test_a_large_job_is_several_arrays_one_after_the_other() -> None:
    ordered, jobs = packed(_visits())
    submission = Submission(Path("001-aa"), "ab", How(), tuple(jobs), tuple(ordered), largest=1)
    assert [(job, first, n) for job, _, first, n in submission.arrays()] == [
        (0, 0, 1), (0, 1, 1), (1, 2, 1), (1, 3, 1),
    ]  # fmt: skip


def test_what_is_submitted_can_be_read_again(out: Path) -> None:
    submission = manifest.compose(out, How(runs=2), _visits(), 1001)
    assert manifest.submissions(out) == []
    manifest.write(submission, "python3")
    assert manifest.submissions(out) == [submission]
    follower = manifest.compose(out, How(runs=2), _visits(), 1001)
    assert follower.folder.name == submission.folder.name.replace("001", "002")


def test_submit_ask_and_submit_again(
    slurm: Path, file: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = ["sweep", file, "--out", out, "--launcher", "slurm"]
    sent = _answer(capsys, *sweep)
    assert {k: sent[k] for k in ("cells", "done_before", "in_flight", "submitted", "tasks")} == {
        "cells": 12, "done_before": 0, "in_flight": 0, "submitted": 12, "tasks": 4,
    }  # fmt: skip
    arrays = fake_slurm.jobs(slurm)
    assert [(job["first"], len(job["states"])) for job in arrays.values()] == [(0, 2), (2, 2)]
    assert [job["flags"]["array"] for job in arrays.values()] == ["0-1%8"] * 2
    status = _answer(capsys, "status", out)
    assert (status["cells"], status["queued"], status["running"]) == (12, 12, 0)
    assert {job["state"] for job in status["jobs"]} == {"PENDING"}
    again = _answer(capsys, *sweep)
    assert (again["in_flight"], again["submitted"], again["jobs"]) == (12, 0, [])
    assert len(fake_slurm.jobs(slurm)) == 2
    assert sent["remarks"] == ['12 cells ask for a GPU and run on device "cpu"']
    assert again["remarks"] == []
    assert _answer(capsys, "cancel", out)["cancelled"] == ["100", "101"]
    assert _answer(capsys, "cancel", out)["cancelled"] == []
    status = _answer(capsys, "status", out)
    assert (status["failed"], status["causes"]) == (12, {"cancelled": 12})
    assert not list(out.glob("*.jsonl")), "status writes nothing"
    assert _answer(capsys, "collect", out) == {
        "out": str(out), "written": 12, "causes": {"cancelled": 12},
    }  # fmt: skip
    assert _answer(capsys, "collect", out)["written"] == 0
    records = store.load(out, _ignore)
    assert {(r.status, r.cause, r.platform) for r in records} == {
        ("failed", "cancelled", "tesla-k80"), ("failed", "cancelled", "p100-pcie-16gb"),
    }  # fmt: skip
    assert _answer(capsys, *sweep)["submitted"] == 12


def test_an_array_that_is_refused_waits_for_the_next_time(
    slurm: Path, file: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = ["sweep", file, "--out", out, "--launcher", "slurm"]
    refuse = slurm / "refuse"
    refuse.write_text("0|invalid partition specified: GPU")
    assert run([*map(str, sweep)]) == 2
    said = "sbatch: invalid partition specified: GPU"
    assert capsys.readouterr().err == f"steptime: gpu k80: {said}; gpu p100: {said}\n"
    assert manifest.folders(out) == [], "what nobody took leaves nothing"
    refuse.write_text("1|Batch job submission failed: QOSMaxSubmitJobPerUserLimit")
    sent = _answer(capsys, *sweep, code=3)
    assert (sent["submitted"], sent["unsent"], sent["tasks"]) == (6, 6, 2)
    status = _answer(capsys, "status", out)
    assert (status["queued"], status["unsent"]) == (6, 6)
    refuse.unlink()
    rest = _answer(capsys, *sweep)
    assert (rest["in_flight"], rest["submitted"]) == (6, 6)
    assert _answer(capsys, "status", out)["queued"] == 12


def test_an_array_whose_answer_was_lost_is_found_by_its_name(
    slurm: Path, file: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = ["sweep", file, "--out", out, "--launcher", "slurm"]
    folder = Path(_answer(capsys, *sweep)["folder"])
    (folder / manifest.SUBMITTED).unlink()
    assert _answer(capsys, "status", out)["queued"] == 12
    assert _answer(capsys, *sweep)["submitted"] == 0


@pytest.fixture
def sent(slurm: Path, out: Path) -> Submission:
    """Give a submission whose four tasks run."""
    cells = [visit.cell for visit in _visits()]
    cluster.send(Request("small", cells, out, How()), _ignore)
    fake_slurm.set_state(slurm, "RUNNING")
    (submission,) = manifest.submissions(out)
    return submission


def _began(submission: Submission, number: int, cells: int = 1, restart: int = 0) -> None:
    """Write what a task writes that has begun so many of its cells."""
    visits = next(own for task_, _, own in submission.tasks() if task_ == number)
    path = submission.folder / "progress" / f"{number}.{restart}.jsonl"
    manifest.append_line(path, {"began": {"node": f"n{restart}"}})
    for visit in visits[:cells]:
        manifest.append_line(path, {"cell": visit.id})


def _printed(submission: Submission, number: int, text: str) -> None:
    line = next(
        line
        for line in manifest.submitted(submission)
        if line["first"] <= number < line["first"] + line["tasks"]
    )
    path = submission.folder / "logs" / f"{line['job']}_{number - line['first']}.out"
    path.write_text(text)


def test_what_was_torn_is_passed_over(sent: Submission, out: Path, slurm: Path) -> None:
    _began(sent, 0)
    for path in (sent.folder / manifest.SUBMITTED, sent.folder / "progress" / "0.0.jsonl"):
        text = path.read_bytes()
        path.write_bytes(text[:20] + b"\xff\n" + text + b'{"cell": "to')
    assert cluster.status(out, _ignore)["running"] == 1


def test_a_start_that_died_again_is_not_the_start_before(
    sent: Submission, slurm: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for restart in (0, 1):
        _began(sent, 0, restart=restart)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with store.open_writer(out) as writer:
        visits = next(own for number, _, own in sent.tasks() if number == 0)
        task._left(sent, 0, 1, visits, 2, writer)
    assert cluster.status(out, _ignore)["running"] == 1
    _printed(sent, 0, "steptime: begun 7\nsteptime: begun 7\nDUE TO PREEMPTION")
    fake_slurm.set_state(slurm, "PREEMPTED", 100, 0)
    assert cluster.status(out, _ignore)["causes"] == {"preempted": 4}
    assert len(cluster.collect(out, _ignore)) == 4


BEFORE = "steptime: begun 7\nls: /nix: No such file or directory\n"


@pytest.mark.parametrize(
    ("text", "state", "cause"),
    [
        (BEFORE + "steptime: ready\n", "CANCELLED", "cancelled"),
        (BEFORE + "steptime: ready\n", "FAILED", "crashed"),
        (BEFORE, "FAILED", "missing-file"),
        ("steptime: begun 7\n", "FAILED", "bad-config"),
        (
            "steptime: begun 7\nsteptime: ready\nscript: exec: x: not found",
            "FAILED",
            "missing-file",
        ),
    ],
)
def test_what_a_script_prints_before_its_task_is_not_the_tasks(
    sent: Submission, slurm: Path, out: Path, text: str, state: str, cause: str
) -> None:
    _printed(sent, 0, text)
    fake_slurm.set_state(slurm, state, 100, 0)
    assert cluster.status(out, _ignore)["causes"] == {cause: 4}


def test_a_line_with_a_comment_is_a_line(tmp_path: Path) -> None:
    need = Need(Allocation(run_first=["true # why not", "exit 3"]), 1, 1)
    text = script(need, "n", str(tmp_path), "python3")
    done = subprocess.run(["bash", "-s", "0"], input=text, text=True, check=False)
    assert done.returncode == 3


def test_a_full_disk_is_told_by_the_exit_code(
    sent: Submission, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.Writer, "append", full)
    assert task.main([str(sent.folder), "0"]) == errno.ENOSPC
    assert Ended("1_0", "FAILED", errno.ENOSPC, 0).cause == "no-space"


def test_a_signal_9_is_no_crash() -> None:
    assert Ended("1_0", "FAILED", 0, 9).cause == "killed"
    assert Ended("1_0", "FAILED", 0, 11).cause == "crashed"


def test_a_file_that_the_node_lacks(
    tmp_path: Path, slurm: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = tmp_path / "net.json"
    data = {"type": "Input", "parents": [], "tensor": [2, 8, 8, 3]}
    layers = {"data": data, "conv": paleo_net.conv("data", 3, 3, 3, 4)}
    net.write_text(json.dumps({"name": "net", "layers": layers}))
    cells = [visit.cell for visit in _visits(networks=[{"model": str(net)}], batch=2)]
    cluster.send(Request("file", cells, out, How()), _ignore)
    (submission,) = manifest.submissions(out)
    net.unlink()
    assert task.main([str(submission.folder), "0"]) == 0
    assert {(r.status, r.cause) for r in store.load(out, _ignore)} == {("failed", "missing-file")}


def test_what_runs_is_told_from_what_waits_behind_it(sent: Submission, out: Path) -> None:
    _began(sent, 0)
    _began(sent, 2)
    status = cluster.status(out, _ignore)
    assert {word: status[word] for word in cluster.WORDS} == {
        "queued": 10, "running": 2, "done": 0, "failed": 0, "unsent": 0,
    }  # fmt: skip


PRINTED = [
    ("slurmstepd: error: *** JOB 3 ON k1 CANCELLED AT 2026-11-21T10:18:21 DUE TO TIME LIMIT ***",
     "time-limit"),
    ("error: *** JOB 10 ON p1 CANCELLED AT 2026-11-21T10:15:46 DUE TO NODE FAILURE, SEE LOG ***",
     "node-fail"),
    ("error: *** JOB 44 ON p2 CANCELLED AT 2026-11-21T10:10:24 DUE TO PREEMPTION ***\nTerminated",
     "preempted"),
    ("slurmstepd: error: *** JOB 36 ON k1 CANCELLED AT 2026-11-21T10:09:34 ***", "cancelled"),
    ("error: Exceeded job memory limit\nerror: *** JOB 46 ON k1 CANCELLED AT 10:10:40 ***",
     FOR_MEMORY),
    ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.batch.", FOR_MEMORY),
    ("Lmod has detected the following error\nsteptime: cannot load module cuda/99",
     "module-conflict"),
    ("steptime: a line of run_first failed: source nothing", "bad-config"),
    ("python: /lib64/libstdc++.so.6: version `GLIBCXX_3.4.20' not found", "import-error"),
    ("ModuleNotFoundError: No module named 'steptime'", "import-error"),
    ("script: line 2: /old/python: No such file or directory", "missing-file"),
    ("script: line 9: 123 Illegal instruction (core dumped) python", "illegal-instruction"),
    ("script: line 2:  9209 Segmentation fault      python3", "crashed"),
    ("OSError: [Errno 28] No space left on device", "no-space"),
    ("all is well", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "cause"), PRINTED)
def test_the_cause_is_in_what_a_job_printed(text: str, cause: str) -> None:
    assert cause_of_output(text) == cause


def test_every_cause_is_in_the_table() -> None:
    words = {cause for _, cause in OUTPUT} | set(STATES.values())
    words |= {cause for _, _, cause in FAILURES}
    for path in ("launch/local.py", "sweep/run.py", "cluster/outcome.py", "cluster/task.py"):
        source = (Path(steptime.__file__).parent / path).read_text()
        words |= set(re.findall(r'Death\(\s*"\w+", "([\w-]+)"', source))
    assert {word.removesuffix(" for memory") for word in words} <= set(CAUSES)
    assert all(cause.meaning and cause.again for cause in CAUSES.values())


def test_a_kill_for_memory_is_oom_only_of_the_cell_in_flight(
    sent: Submission, slurm: Path, out: Path
) -> None:
    _began(sent, 0, cells=2)
    _printed(sent, 0, "steptime: begun 7\nerror: Exceeded job memory limit")
    fake_slurm.set_state(slurm, "FAILED", 100, 0)
    rows = cluster.status(out, _ignore)["unsuccessful"]
    assert Counter((row["status"], row["cause"]) for row in rows) == {
        ("oom", "killed"): 1, ("failed", "killed"): 3,
    }  # fmt: skip
    assert {row["again"] for row in rows} == {"only --retry oom", "the next sweep"}
    assert len(cluster.collect(out, _ignore)) == 4


def test_what_is_final_when_it_is_collected_is_not_sent_again(
    sent: Submission, slurm: Path, out: Path
) -> None:
    _began(sent, 0)
    _printed(sent, 0, "steptime: begun 7\nerror: Exceeded job memory limit")
    fake_slurm.set_state(slurm, "FAILED")
    cells = [visit.cell for visit in _visits()]
    again = cluster.send(Request("small", cells, out, How()), _ignore)
    assert (again["collected"], again["done_before"], again["submitted"]) == (12, 1, 11)


def test_only_the_last_start_of_a_job_says_why(sent: Submission, slurm: Path, out: Path) -> None:
    text = "steptime: begun 7\nDUE TO PREEMPTION\nsteptime: begun 7\nSegmentation fault"
    _printed(sent, 0, text)
    fake_slurm.set_state(slurm, "FAILED", 100, 0)
    assert cluster.status(out, _ignore)["causes"] == {"crashed": 4}


def test_a_job_that_nobody_remembers_has_vanished(sent: Submission, slurm: Path, out: Path) -> None:
    _printed(sent, 0, "steptime: begun 7\n")
    fake_slurm.set_state(slurm, "COMPLETED")
    (slurm / "forgotten").touch()
    causes = cluster.status(out, _ignore)["causes"]
    assert causes == {"vanished": 4, "cancelled": 8}, "what never began was cancelled"


def test_no_answer_of_slurm_is_not_an_answer(
    sent: Submission, slurm: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    (slurm / "squeue").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    for command in ("status", "collect", "cancel"):
        assert run([command, str(out)]) == 1
        assert "Unable to contact slurm controller" in capsys.readouterr().err
    assert store.load(out, _ignore, required=False) == []


def test_sites_with_and_without_accounting_say_the_same() -> None:
    accounting = "10_3|CANCELLED by 0|0:15\n10_[4-5,7%2]|CANCELLED by 12|0:0\n11|COMPLETED|0:0\n"
    assert {key: one.state for key, one in _of_accounting(accounting)} == {
        ("10", 3): "CANCELLED", ("10", 4): "CANCELLED", ("10", 5): "CANCELLED",
        ("10", 7): "CANCELLED",
    }  # fmt: skip
    controller = (
        "JobId=34 ArrayJobId=10 ArrayTaskId=14 JobName=a JobState=FAILED Reason=None ExitCode=7:0\n"
        "JobId=10 ArrayJobId=10 ArrayTaskId=4-19%4 JobState=PENDING ExitCode=0:0\n"
        "JobId=12 JobState=COMPLETED ExitCode=0:0\n"
    )
    ((key, one),) = _of_controller(controller)
    assert (key, one.state, one.exit, one.cause) == (("10", 14), "FAILED", 7, "crashed")


def test_the_cpus_of_a_job_are_read_from_its_details() -> None:
    details = "JobId=3 Nodes=gpu[03-04] CPU_IDs=0-1,6 Mem=8 GRES= Nodes=login CPU_IDs=5 Mem=4"
    assert cpus_of(details, "gpu04") == {0, 1, 6}
    assert cpus_of(details, "login") == {5}
    assert cpus_of(details, "gpu05") == set()
    assert nodes_of("a[1,09-10]x,b") == {"a1x", "a09x", "a10x", "b"}


def test_a_task_runs_its_cells_and_starts_again_where_it_stopped(
    sent: Submission, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visits = next(own for number, _, own in sent.tasks() if number == 0)
    _began(sent, 0)  # the first cell was in flight when the node went down
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert task.main([str(sent.folder), "0"]) == 0
    records = store.load(out, _ignore)
    lost, *measured = records
    assert (lost.status, lost.cause, lost.env["slurm"]) == ("failed", "node-fail", {"node": "n0"})
    assert [r.env["cell"] for r in measured] == [visit.id for visit in visits]
    assert {(r.status, r.env["slurm"]["node"]) for r in measured} == {("ok", "n1")}
    assert {r.method.options["gpu"] for r in measured} == {"k80"}
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    assert task.main([str(sent.folder), "0"]) == 0
    assert len(store.load(out, _ignore)) == len(records), "all was done"
    fake = cluster.look(out, _ignore).standings
    assert Counter(one.word for one in fake) == {"done": 4, "queued": 8}


def test_a_cell_that_takes_its_job_down_again_and_again_is_given_up(
    sent: Submission, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for restart in range(3):  # requeues = 2
        _began(sent, 1, restart=restart)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    assert task.main([str(sent.folder), "1"]) == 0
    given_up, other = store.load(out, _ignore)
    assert given_up.note == "its job ended while it was measured; given up after 3 times"
    assert (given_up.status, other.status) == ("failed", "ok")


def test_what_a_worker_refuses_is_a_record(sent: Submission, out: Path, slurm: Path) -> None:
    cells = [visit.cell for visit in _visits(device="cuda")]
    cluster.send(Request("gpu", cells, out, How()), _ignore)
    second = manifest.submissions(out)[-1]
    assert task.main([str(second.folder), "1"]) == 0
    records = store.load(out, _ignore)
    assert {(r.status, r.cause) for r in records} == {("failed", "bad-config")}
    assert "'cuda' is not available to null" in records[0].note


def test_a_job_that_cannot_load_its_module(tmp_path: Path) -> None:
    need = Need(Allocation(modules=["cuda/99"]), 1, 1)
    text = script(need, "n", str(tmp_path), "python3")
    done = subprocess.run(
        ["bash", "-s", "0"], input=text, text=True, capture_output=True, check=False,
        env={"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": "0"},
    )  # fmt: skip
    assert done.returncode == 1
    assert cause_of_output(done.stdout + done.stderr) == "module-conflict"


def test_a_dry_run_shows_script_cells_time_memory_and_what_will_not_fit(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {**EXPERIMENT, "budget_s": 10}
    large = {**LARGE, "batch": 2}
    table["networks"] = [*EXPERIMENT["networks"], large]
    file = tmp_path / "large.json"
    file.write_text(json.dumps(table))
    sweep = ["sweep", file, "--out", out, "--launcher", "slurm", "--dry-run"]
    seen = _answer(capsys, *sweep)
    assert not out.exists()
    assert (seen["cells"], len(seen["visits"])) == (14, 14)
    jobs = seen["jobs"]
    assert [(job["gpu"], job["cells"], job["tasks"]) for job in jobs] == [
        ("k80", 7, 2), ("p100", 7, 2),
    ]  # fmt: skip
    # two tasks a job: a worker's start and six cells of 10 s, for the seventh will not fit
    assert jobs[0]["node_hours"] == pytest.approx((2 * 5 + 6 * 10) / 3600)
    assert jobs[0]["longest_task_s"] == pytest.approx(5 + 4 * 10)
    assert jobs[0]["needs_bytes"] > 24e9
    assert jobs[0]["script"].startswith("#!/bin/bash\n")
    assert [(row["gpu"], row["has_bytes"]) for row in seen["not_fitting"]] == [
        ("k80", 12e9), ("p100", 16e9),
    ]  # fmt: skip
    assert [job["has_bytes"] for job in jobs] == [12e9, 16e9], "one GPU of the two of a K80"
    assert run(list(map(str, sweep))) == 0
    shown = capsys.readouterr()
    assert "would be submitted" in shown.out
    assert "#SBATCH --gres=gpu:p100:1" in shown.out
    assert "! will not fit: fc:layers=4,nodes=49152" in shown.err


def test_what_must_fit_and_is_known_not_to_is_left_out(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = {**LARGE, "batch": 2}
    for slurm, left in (
        ({"gpu": "p100"}, 0), ({"gpu": "k80"}, 0), ({"gpu": "ours"}, 1), ({"memory_GB": 8}, 0), ({}, 1),
    ):  # fmt: skip
        where = ["batch >= 1", "fits in memory"]
        table = {**EXPERIMENT, "networks": [large], "slurm": slurm, "where": where}
        file = tmp_path / "large.json"
        file.write_text(json.dumps(table))
        seen = _answer(capsys, "sweep", file, "--out", out, "--launcher", "slurm", "--dry-run")
        assert seen["cells"] == left, slurm


def test_a_node_needs_room_for_all_of_its_processes_and_none_is_counted_for_shards() -> None:
    (alone,) = _visits(batch=2, networks=[LARGE], slurm={"memory_GB": 60})
    (two,) = _visits(batch=2, networks=[LARGE], slurm={"memory_GB": 60}, replicas=2)
    apart = {"memory_GB": 60, "replicas_per_node": 1}
    (nodes,) = _visits(batch=2, networks=[LARGE], slurm=apart, replicas=2)
    (shards,) = _visits(
        batch=2, networks=[LARGE], slurm={"memory_GB": 1}, replicas=2, strategy="sharded"
    )
    assert [fits(one.cell) for one in (alone, two, nodes, shards)] == [True, False, True, True]


def test_every_status_has_a_word_for_trying_again() -> None:
    from steptime.core.causes import again

    assert {again(status, "") for status in STATUSES if status != "ok"} == {
        "the next sweep", "only --retry oom", "only --retry timeout", "only --retry unsupported",
    }  # fmt: skip

"""Sweeps by a Slurm that is made up: scripts, packing, where cells stand, causes."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import fake_slurm
import msgspec
import pytest
from fake_slurm import set_state

import idx_folder
import paleo_net
from every import every
from places import TESTS
from printed import answer
from record_cases import edited
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.core.files import append_line
from steptime.questions.sweep import jobs as sweep_jobs
from steptime.records import store
from steptime.records.record import STATUSES
from steptime.sweeps.cells import Trial, cells_of, needed_bytes, trials_of
from steptime.sweeps.cluster import commands, task
from steptime.sweeps.cluster import status as cluster
from steptime.sweeps.cluster import submission as files
from steptime.sweeps.cluster.jobs import FOR_MEMORY, Need, Placement
from steptime.sweeps.cluster.outcome import cause_of_output
from steptime.sweeps.cluster.resources import TASK_BYTES, WORKER_BYTES, fits, memories
from steptime.sweeps.cluster.script import make_script
from steptime.sweeps.cluster.submission import Submission, pack_tasks
from steptime.sweeps.cluster.submit import send
from steptime.sweeps.experiment import check_experiment
from steptime.sweeps.resource_request import ResourceRequest
from steptime.sweeps.run import Means, SweepRequest
from steptime.sweeps.workers import Workers

GOLDEN = TESTS / "golden"
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
def slurm(monkeypatch):
    """Return the state of a Slurm that is made up."""
    monkeypatch.setattr(commands, "execute", fake_slurm.execute)
    return fake_slurm.reset()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.json"
    path.write_text(json.dumps(EXPERIMENT))
    return path


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def _ignore(_: str) -> None:
    """Take a warning that a test is not about."""


def _trials(**changes: Any) -> list[Trial]:
    experiment = check_experiment({**EXPERIMENT, **changes}, "here")
    cells, *_ = cells_of(experiment, "here", on_cluster=True)
    return [*trials_of(cells, 1)]


LARGE = {"family": "fc", "layers": 4, "nodes": 49152, "inputs": 8, "outputs": 4}
SCRIPTS = {
    "job-plain": Need(ResourceRequest(), 1, 1),
    "job-full": Need(
        ResourceRequest(
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
        ResourceRequest(gpu="p100", replicas_per_node=2, cpus=3, exclusive=True, requeues=0), 8, 3
    ),
}


@every("name", SCRIPTS)
def test_the_batch_script_is_a_pure_function(name):
    text = make_script(
        SCRIPTS[name], "steptime-001-abc", "/data/my runs/100%/slurm/001-abc", "python3"
    )
    path = GOLDEN / f"{name}.sh"
    if os.environ.get("STEPTIME_RENEW_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "renew with STEPTIME_RENEW_GOLDEN=1"
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


STRANGE = "a 'b' \"c\" $(touch ran) `touch ran` ${HOME} #; touch ran & *"


def test_a_script_runs_nothing_of_what_it_names(tmp_path):
    folder = tmp_path / "here" / STRANGE
    folder.mkdir(parents=True)
    python = folder / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "${0%/*}/arguments"\n')
    python.chmod(0o755)
    bare = {"partition": STRANGE, "account": STRANGE, "qos": STRANGE, "nodelist": STRANGE}
    request = ResourceRequest(**bare, constraint=STRANGE, modules=["cuda", STRANGE])
    text = make_script(Need(request, 1, 1), "n", str(folder), str(python))
    job = tmp_path / "job.sh"
    job.write_text(text, encoding="utf-8")
    subprocess.run(["bash", "-n", job], check=True)
    said = (TESTS / "data" / "slurm" / "environment.txt").read_text("utf-8").splitlines()
    modules = tmp_path / "modules"
    variables = {"PATH": os.environ["PATH"], "BASH_ENV": str(modules)}
    variables |= dict(line.split("=", 1) for line in said)
    modules.write_text(f'module() {{ echo "$2" >> "{tmp_path}/modules.log"; }}\n')
    work = tmp_path / "work"
    work.mkdir()
    subprocess.run(["bash", str(job), "10"], cwd=work, env=variables, check=True)
    wanted = ["-P", "-m", "steptime.sweeps.cluster.task", str(folder), "11"]  # 10 and its place, 1
    assert (folder / "arguments").read_text("utf-8").splitlines() == wanted
    assert (tmp_path / "modules.log").read_text("utf-8").splitlines() == ["cuda", STRANGE]
    assert [*work.iterdir()] == []
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH --")]
    inside = STRANGE.replace('"', '\\"')  # as sbatch reads a text in double quotes
    assert f'#SBATCH --output="{tmp_path}/here/{inside}/logs/%A_%a.out"' in lines
    for key in (*bare, "constraint"):
        assert f'#SBATCH --{key}="{inside}"' in lines


@pytest.mark.parametrize("name", ["two\nlines", "a\rb", "back\\slash", "\udcff"])
def test_a_folder_that_no_script_can_name_is_refused(tmp_path, file, capsys, name, monkeypatch):
    called: list[str] = []
    monkeypatch.setattr(commands, "read_output", lambda words: called.append(words[0]) or "")
    out = tmp_path / name
    for more in (["--dry-run"], []):
        assert run(["sweep", str(file), "--out", str(out), "--launcher", "slurm", *more]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "is no folder that sbatch can write logs to" in line
        assert not out.exists()
    assert "sbatch" not in called


def test_cells_are_packed_by_what_they_need():
    slurm = {**EXPERIMENT["slurm"], "cpus": 2}
    tasks = pack_tasks(_trials(threads=[1, 2], slurm=slurm))
    assert [(task.number, task.job, *task.need.request.gpu) for task in tasks] == [
        (0, 0, "k80"), (1, 0, "k80"), (2, 0, "k80"), (3, 1, "p100"), (4, 1, "p100"), (5, 1, "p100"),
    ]  # fmt: skip
    assert [len(task.trials) for task in tasks] == [4] * 6
    assert len({trial.id for task in tasks for trial in task.trials}) == 24
    threads = [trial.cell.options.threads for task in tasks for trial in task.trials]
    assert threads == ([1] * 6 + [2] * 6) * 2, "a worker is started once for its cells"


def test_a_process_gets_as_many_cores_as_threads():
    def cores(**changes: Any) -> list[tuple[int, int | None]]:
        slurm = {k: changes.pop(k) for k in ("cpus", "exclusive") if k in changes}
        tasks = pack_tasks(_trials(**{**changes, "slurm": slurm}))
        asked = [(task.need.cores, task.trials[0].cell.options.threads) for task in tasks]
        return list(dict.fromkeys(asked))

    assert cores(threads=[1, 2]) == [(1, 1), (2, 2)]
    assert cores(cpus=4) == [(4, 1)]
    without = {k: v for k, v in EXPERIMENT.items() if k != "threads"}
    for slurm, threads in (({"cpus": 4}, 4), ({}, 1), ({"exclusive": True}, None)):
        experiment = check_experiment({**without, "slurm": slurm}, "here")
        cells, *_ = cells_of(experiment, "here", on_cluster=True)
        assert {cell.options.threads for cell in cells} == {threads}
    with pytest.raises(InputError, match="2 threads on cpus = 1"):
        cores(threads=2, cpus=1)


def test_a_cell_has_one_name_in_every_process_and_another_for_each_setting():
    (first, *_), (again, *_) = _trials(), _trials()
    assert first.id == again.id == "953e513a5c38b397"
    every = [*_trials(), *_trials(tf32=True), *_trials(replicas=2), *_trials(input="host")]
    assert len({visit.id for visit in every}) == 48
    assert first.cell.id(1, 0) != first.cell.id(1, 1) != first.cell.id(2, 1)


def test_two_folders_have_no_job_in_common(out):
    one, other = (files.compose(out / name, Means(), _trials(), 9) for name in ("a", "b"))
    assert one.folder.name != other.folder.name
    assert one.name != other.name


def test_a_request_is_made_again_of_what_it_holds():
    for request in (
        ResourceRequest(),
        SCRIPTS["job-full"].request,
        ResourceRequest(gpu=["a", "b"]),
    ):
        assert ResourceRequest(**request.model_dump(by_alias=True)) == request


def test_tables_for_one_gpu_need_names():
    tables = [{"gpu": "k80", "partition": name} for name in ("old", "new")]
    with pytest.raises(InputError, match="two tables for gpu 'k80'; give each a name of its own"):
        _trials(slurm=tables)
    named = [table | {"name": table["partition"]} for table in tables]
    visits = _trials(slurm=named)
    assert len({visit.id for visit in visits}) == 12
    assert {visit.cell.options.allocation for visit in visits} == {"old", "new"}


def test_a_large_job_is_several_arrays_one_after_the_other():
    submission = Submission(Path("001-aa"), "ab", Means(), pack_tasks(_trials()), max_tasks=1)
    assert [(one.script.name, one.first, one.tasks) for one in submission.arrays] == [
        ("job-0.sh", 0, 1), ("job-0.sh", 1, 1), ("job-1.sh", 2, 1), ("job-1.sh", 3, 1),
    ]  # fmt: skip


def test_what_is_submitted_can_be_read_again(out):
    submission = files.compose(out, Means(runs=2), _trials(), 1001)
    assert files.read_submissions(out) == []
    files.write(submission)
    assert files.read_submissions(out) == [submission]
    follower = files.compose(out, Means(runs=2), _trials(), 1001)
    assert [path.folder.name[:4] for path in (submission, follower)] == ["001-", "002-"]


def test_submit_ask_and_submit_again(slurm, file, out, capsys):
    sweep = ["sweep", file, "--out", out, "--launcher", "slurm"]
    sent = answer(capsys, *sweep)
    keys = ("cells", "finished_before", "in_flight", "submitted", "tasks")
    assert {key: sent[key] for key in keys} == {
        "cells": 12, "finished_before": 0, "in_flight": 0, "submitted": 12, "tasks": 4,
    }  # fmt: skip
    arrays = slurm.jobs
    assert [(job.first, job.tasks, job.at_once) for job in arrays.values()] == [
        (0, 2, 8),
        (2, 2, 8),
    ]
    status = answer(capsys, "sweep", "status", out)
    assert (status["cells"], status["queued"], status["running"]) == (12, 12, 0)
    assert {job["state"] for job in status["jobs"]} == {"PENDING"}
    again = answer(capsys, *sweep)
    assert (again["in_flight"], again["submitted"], again["jobs"]) == (12, 0, [])
    assert len(slurm.jobs) == 2
    assert sent["notes"] == ['12 cells ask for a GPU and run on device "cpu"']
    assert again["notes"] == []
    assert answer(capsys, "sweep", "cancel", out)["cancelled"] == ["100", "101"]
    assert answer(capsys, "sweep", "cancel", out)["cancelled"] == []
    status = answer(capsys, "sweep", "status", out)
    assert (status["failed"], _causes(status)) == (12, {"cancelled": 12})
    assert not list(out.glob("*.jsonl")), "status writes nothing"
    assert answer(capsys, "sweep", "collect", out) == {
        "out": str(out), "records": 12, "cells_by_cause": [{"cause": "cancelled", "cells": 12}],
        "headline": [f"{out}: 12 cells lost by their jobs: 12 cancelled"],
    }  # fmt: skip
    assert answer(capsys, "sweep", "collect", out)["records"] == 0
    records = store.load(out, _ignore)
    assert {(r.status, r.cause, r.platform) for r in records} == {
        ("failed", "cancelled", "tesla-k80"), ("failed", "cancelled", "p100-pcie-16gb"),
    }  # fmt: skip
    assert answer(capsys, *sweep)["submitted"] == 12


def test_an_array_that_is_refused_waits_for_the_next_time(slurm, file, out, capsys):
    file.write_text(json.dumps({**EXPERIMENT, "predict": ["p100-pcie-16gb"]}))
    sweep = ["sweep", file, "--out", out, "--launcher", "slurm"]
    slurm.refuse = (0, "invalid partition specified: GPU")
    assert run([*map(str, sweep)]) == 2
    said = "sbatch: invalid partition specified: GPU"
    assert capsys.readouterr().err == f"steptime: gpu k80: {said}; gpu p100: {said}\n"
    assert not out.exists(), "what nobody took leaves nothing"
    slurm.refuse = (1, "Batch job submission failed: QOSMaxSubmitJobPerUserLimit")
    sent = answer(capsys, *sweep, code=3)
    assert (sent["submitted"], sent["unsent"], sent["tasks"]) == (6, 6, 2)
    status = answer(capsys, "sweep", "status", out)
    assert (status["queued"], status["unsent"]) == (6, 6)
    slurm.refuse = None
    rest = answer(capsys, *sweep)
    assert (rest["in_flight"], rest["submitted"]) == (6, 6)
    assert answer(capsys, "sweep", "status", out)["queued"] == 12


def test_an_array_whose_answer_was_lost_is_found_by_its_name(slurm, file, out, capsys):
    sweep = ["sweep", file, "--out", out, "--launcher", "slurm"]
    folder = Path(answer(capsys, *sweep)["folder"])
    (folder / files.SUBMITTED).unlink()
    assert answer(capsys, "sweep", "status", out)["queued"] == 12
    assert answer(capsys, *sweep)["submitted"] == 0


@pytest.fixture
def sent(slurm, out):
    """Return a submission whose four tasks run."""
    cells = [visit.cell for visit in _trials()]
    send(SweepRequest("small", cells, out, Means()), _ignore)
    set_state("RUNNING")
    (submission,) = files.read_submissions(out)
    return submission


def _began(submission: Submission, number: int, cells: int = 1, restart: int = 0) -> None:
    """Write what a task writes that has begun so many of its cells."""
    visits = submission.tasks[number].trials
    path = submission.folder / "progress" / f"{number}.{restart}.jsonl"
    append_line(path, {"began": {"node": f"n{restart}"}})
    for visit in visits[:cells]:
        append_line(path, {"cell": visit.id})


def _causes(status: dict[str, Any]) -> dict[str, int]:
    return {row["cause"]: row["cells"] for row in status["cells_by_cause"]}


def _printed(submission: Submission, number: int, text: str) -> None:
    text_name = submission.task_jobs[number].text
    (submission.folder / "logs" / f"{text_name}.out").write_text(text)


def test_what_was_torn_is_passed_over(sent, out, slurm):
    _began(sent, 0)
    for path in (sent.folder / files.SUBMITTED, sent.folder / "progress" / "0.0.jsonl"):
        text = path.read_bytes()
        path.write_bytes(text[:20] + b"\xff\n" + text + b'{"cell": "to')
    assert sweep_jobs.status(out).running == 1


def test_a_start_that_died_again_is_not_the_start_before(sent, slurm, out):
    for restart in (0, 1):
        _began(sent, 0, restart=restart)
    with store.open_writer(out) as writer:
        placement = Placement(1, {"restart": "1"})
        task.list_remaining(task.Start(sent, sent.tasks[0], placement, Workers()), writer)
    assert sweep_jobs.status(out).running == 1
    _printed(sent, 0, "steptime: begun 7\nsteptime: begun 7\nDUE TO PREEMPTION")
    set_state("PREEMPTED", "100", 0)
    assert _causes(sweep_jobs.status(out).to_dict()) == {"preempted": 4}
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
    sent, slurm, out, text, state, cause
):
    _printed(sent, 0, text)
    set_state(state, "100", 0)
    assert _causes(sweep_jobs.status(out).to_dict()) == {cause: 4}


def test_a_line_with_a_comment_is_a_line(tmp_path):
    need = Need(ResourceRequest(run_first=["true # why not", "exit 3"]), 1, 1)
    text = make_script(need, "n", str(tmp_path), "python3")
    done = subprocess.run(["bash", "-s", "0"], input=text, text=True, check=False)
    assert done.returncode == 3


def test_a_full_disk_is_told_by_the_exit_code(sent, out, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.Writer, "append", full)
    assert task.main([str(sent.folder), "0"]) == errno.ENOSPC


def test_a_file_that_the_node_lacks(tmp_path, slurm, out, monkeypatch):
    net = tmp_path / "net.json"
    data = {"type": "Input", "parents": [], "tensor": [2, 8, 8, 3]}
    layers = {"data": data, "conv": paleo_net.conv("data", 3, 3, 3, 4)}
    net.write_text(json.dumps({"name": "net", "layers": layers}))
    cells = [visit.cell for visit in _trials(networks=[{"model": str(net)}], batch=2)]
    send(SweepRequest("file", cells, out, Means()), _ignore)
    (submission,) = files.read_submissions(out)
    net.unlink()
    assert task.main([str(submission.folder), "0"]) == 0
    assert {(r.status, r.cause) for r in store.load(out, _ignore)} == {("failed", "missing-file")}


def test_what_runs_is_told_from_what_waits_behind_it(sent, out):
    _began(sent, 0)
    _began(sent, 2)
    status = sweep_jobs.status(out)
    assert {word: getattr(status, word) for word in cluster.STATES} == {
        "queued": 10, "running": 2, "finished": 0, "failed": 0, "unsent": 0,
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


@every(("text", "cause"), PRINTED)
def test_the_cause_is_in_what_a_job_printed(text, cause):
    assert cause_of_output(text) == cause


def test_a_kill_for_memory_is_oom_only_of_the_cell_in_flight(sent, slurm, out):
    _began(sent, 0, cells=2)
    _printed(sent, 0, "steptime: begun 7\nerror: Exceeded job memory limit")
    set_state("FAILED", "100", 0)
    rows = sweep_jobs.status(out).unsuccessful
    assert Counter((row.status, row.cause) for row in rows) == {
        ("oom", "killed"): 1, ("failed", "killed"): 3,
    }  # fmt: skip
    assert {row.retried_by for row in rows} == {"only --retry oom", "the next sweep"}
    assert len(cluster.collect(out, _ignore)) == 4


def test_a_note_of_one_long_word_is_cut_and_not_left_out(sent, slurm, out, capsys, monkeypatch):
    path = f"/{'x' * 150}"
    set_state("FAILED")
    status = sweep_jobs.status(out)
    cell = msgspec.structs.replace(status.unsuccessful[0], note=f"OSError: {path}")
    (table,) = msgspec.structs.replace(status, unsuccessful=(cell,)).tables()
    assert table.rows[0]["note"] == f"OSError: {path[:91]}..."


def test_what_is_final_when_it_is_collected_is_not_sent_again(sent, slurm, out):
    _began(sent, 0)
    _printed(sent, 0, "steptime: begun 7\nerror: Exceeded job memory limit")
    set_state("FAILED")
    cells = [visit.cell for visit in _trials()]
    again = send(SweepRequest("small", cells, out, Means()), _ignore)
    assert (again.collected, again.finished_before, again.submitted) == (12, 1, 11)


def test_only_the_last_start_of_a_job_says_why(sent, slurm, out):
    text = "steptime: begun 7\nDUE TO PREEMPTION\nsteptime: begun 7\nSegmentation fault"
    _printed(sent, 0, text)
    set_state("FAILED", "100", 0)
    assert _causes(sweep_jobs.status(out).to_dict()) == {"crashed": 4}


def test_a_job_that_nobody_remembers_has_vanished(sent, slurm, out):
    _printed(sent, 0, "steptime: begun 7\n")
    set_state("COMPLETED")
    slurm.forgotten = True
    causes = _causes(sweep_jobs.status(out).to_dict())
    assert causes == {"vanished": 4, "cancelled": 8}, "what never began was cancelled"


def test_no_answer_of_a_scheduler_is_not_an_answer(sent, slurm, file, out, capsys):
    slurm.away = "nobody answers"
    new = out.parent / "new"
    sweep = ["sweep", str(file), "--out", str(new), "--launcher", "slurm"]
    for command in (
        ["sweep", "status", str(out)],
        ["sweep", "collect", str(out)],
        ["sweep", "cancel", str(out)],
        sweep,
    ):
        assert run(command) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "Slurm does not answer: Unable to contact slurm controller (nobody answers)" in said
    assert store.load(out, _ignore, required=False) == []
    assert not new.exists(), "what nobody took leaves nothing"


def test_a_task_runs_its_cells_and_starts_again_where_it_stopped(sent, out, monkeypatch):
    trials = sent.tasks[0].trials
    _began(sent, 0)  # the first cell was in flight when the node went down
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert task.main([str(sent.folder), "0"]) == 0
    records = store.load(out, _ignore)
    lost, *measured = records
    assert (lost.status, lost.cause, lost.env["slurm"]) == ("failed", "node-fail", {"node": "n0"})
    assert [r.env["cell"] for r in measured] == [trial.id for trial in trials]
    assert {(r.status, r.env["slurm"]["node"]) for r in measured} == {("ok", "n1")}
    assert {r.method.options["gpu"] for r in measured} == {"k80"}
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    before = signal.getsignal(signal.SIGTERM)
    assert task.main([str(sent.folder), "0"]) == 0
    assert signal.getsignal(signal.SIGTERM) is before, "what ends it when all is done is no error"
    assert len(store.load(out, _ignore)) == len(records), "all was done"
    states = cluster.take_snapshot(out, _ignore).states
    assert Counter(one.state for one in states) == {"finished": 4, "queued": 8}


def test_a_cell_that_takes_its_job_down_again_and_again_is_given_up(sent, out, monkeypatch):
    for restart in range(3):  # requeues = 2
        _began(sent, 1, restart=restart)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    assert task.main([str(sent.folder), "1"]) == 0
    given_up, other = store.load(out, _ignore)
    assert given_up.note == "its job ended while it was measured; given up after 3 times"
    assert (given_up.status, other.status) == ("failed", "ok")


def test_what_a_worker_refuses_is_a_record(sent, out, slurm):
    cells = [visit.cell for visit in _trials(device="cuda")]
    send(SweepRequest("gpu", cells, out, Means()), _ignore)
    second = files.read_submissions(out)[-1]
    assert task.main([str(second.folder), "1"]) == 0
    records = store.load(out, _ignore)
    assert {(r.status, r.cause) for r in records} == {("failed", "bad-config")}
    assert "'cuda' is not available to null" in records[0].note


def test_a_job_that_cannot_load_its_module(tmp_path):
    need = Need(ResourceRequest(modules=["cuda/99"]), 1, 1)
    text = make_script(need, "n", str(tmp_path), "python3")
    done = subprocess.run(
        ["bash", "-s", "0"], input=text, text=True, capture_output=True, check=False,
        env={"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": "0"},
    )  # fmt: skip
    assert done.returncode == 1
    assert cause_of_output(done.stdout + done.stderr) == "module-conflict"


def test_a_dry_run_shows_script_cells_time_memory_and_what_will_not_fit(tmp_path, out, capsys):
    table = {**EXPERIMENT, "budget_s": 10, "device": "cuda"}
    large = {**LARGE, "batch": 2}
    table["networks"] = [*EXPERIMENT["networks"], large]
    file = tmp_path / "large.json"
    file.write_text(json.dumps(table))
    sweep = ["sweep", file, "--out", out, "--launcher", "slurm", "--dry-run"]
    seen = answer(capsys, *sweep)
    assert not out.exists()
    assert (seen["cells"], len(seen["rows"])) == (14, 14)
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
        ("k80", pytest.approx(0.98 * 12 * 2**30)), ("p100", pytest.approx(0.99 * 16 * 2**30)),
    ]  # fmt: skip
    has = [0.98 * 12 * 2**30, 0.99 * 16 * 2**30]  # one GPU of the two of a K80
    assert [job["has_bytes"] for job in jobs] == pytest.approx(has)
    assert run(list(map(str, sweep))) == 0
    shown = capsys.readouterr()
    assert "would be submitted" in shown.out
    assert "#SBATCH --gres=gpu:p100:1" in shown.out
    assert "note: will not fit: fc:layers=4,nodes=49152" in shown.err


def test_what_must_fit_and_is_known_not_to_is_left_out(tmp_path, out, capsys):
    large = {**LARGE, "batch": 2}
    for slurm, left in (
        ({"gpu": "p100"}, 0), ({"gpu": "k80"}, 0), ({"gpu": "ours"}, 1), ({"memory_GB": 8}, 0),
        ({}, 1),
    ):  # fmt: skip
        where = ["batch >= 1", "fits in memory"]
        table = {**EXPERIMENT, "networks": [large], "slurm": slurm, "where": where}
        table["device"] = "cuda" if "gpu" in slurm else "cpu"
        file = tmp_path / "large.json"
        file.write_text(json.dumps(table))
        seen = answer(capsys, "sweep", file, "--out", out, "--launcher", "slurm", "--dry-run")
        assert seen["cells"] == left, slurm


def test_a_step_on_the_cpu_beside_a_gpu_needs_memory_of_the_node_alone(tmp_path, out, capsys):
    table = {**EXPERIMENT, "networks": [LARGE], "batch": 2, "where": ["fits in memory"]}
    table["slurm"] = {"gpu": "p100", "memory_GB": 60}  # 16 GB of the GPU would be too few
    (trial,) = _trials(**table)
    (node,) = memories(trial.cell)
    assert node.needs_bytes > needed_bytes(trial.cell, 1) > 16 * 2**30
    file = tmp_path / "beside.json"
    file.write_text(json.dumps(table))
    (job,) = answer(capsys, "sweep", file, "--out", out, "--launcher", "slurm", "--dry-run")["jobs"]
    assert (job["cells"], job["has_bytes"], job["predicted_on"]) == (1, 60e9, None)
    assert job["needs_bytes"] == job["node_needs_bytes"] == node.needs_bytes


def test_a_node_needs_room_for_all_of_its_processes():
    (alone,) = _trials(batch=2, networks=[LARGE], slurm={"memory_GB": 60})
    (two,) = _trials(batch=2, networks=[LARGE], slurm={"memory_GB": 60}, replicas=2)
    apart = {"memory_GB": 60, "replicas_per_node": 1}
    (nodes,) = _trials(batch=2, networks=[LARGE], slurm=apart, replicas=2)
    assert [fits(one.cell) for one in (alone, two, nodes)] == [True, False, True]


def test_shards_need_their_share():
    # 49152 x 49152 weights in float32 are 9.66 GB in each of three layers, and as much in gradients
    asked = {"batch": 2, "networks": [LARGE], "replicas": 4, "slurm": {"replicas_per_node": 1}}
    (whole,) = _trials(**asked)
    (shards,) = _trials(**asked, strategy="sharded")
    (at_once,) = _trials(**asked, strategy="sharded", overlap=False)
    layers = 3 * 4 * 49152**2
    needs = [needed_bytes(one.cell, 1) / layers for one in (whole, shards, at_once)]
    # a fourth of the weights; of three units two that are whole, gradients of two scattered; or all
    assert needs == pytest.approx([2, 1 / 4 + 2 / 3 + 2 / 3 / 4, 1 / 4 + 1 + 1 / 4], rel=0.001)
    asked["slurm"]["memory_GB"] = 20
    (short,) = _trials(**asked, strategy="sharded")
    assert not fits(short.cell)


def test_a_node_of_gpus_holds_what_cuda_takes_and_a_data_set_once(tmp_path):
    idx_folder.write(tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    slurm = {"gpu": "p100", "memory_GB": 5}
    asked = {"slurm": slurm, "networks": [{"model": "deep_mnist"}], "batch": 1, "device": "cuda"}
    asked |= {"input": "dataset", "data": str(tmp_path)}
    (two,) = _trials(**asked, replicas=2)
    gpu, node = memories(two.cell)
    assert node.needs_bytes == 35_000_000 + 2 * (310_000_000 + 1_262_000_000) + size
    # context of CUDA, two workspaces of cuBLAS
    assert gpu.needs_bytes - needed_bytes(two.cell, 2) == 400_000_000 + 2 * 8_519_680


def test_every_status_has_a_word_for_trying_again():
    from steptime.core.causes import retry_of

    assert {retry_of(status, "") for status in STATUSES if status != "ok"} == {
        "the next sweep", "only --retry oom", "only --retry timeout", "only --retry unsupported",
    }  # fmt: skip


def test_a_plan_of_another_version_is_refused(sent, out, capsys):
    plan = sent.folder / "plan.json"
    table = json.loads(plan.read_text())
    plan.write_text(json.dumps({**table, "version": table["version"] + 1}))
    assert run(["sweep", "status", str(out)]) == 2
    said = f"{plan}: has version '4', this steptime reads version 3 only"
    assert capsys.readouterr().err == f"steptime: {said}\n"


def test_the_cells_of_an_experiment_before_it_was_mended_are_counted_apart(
    slurm, file, out, capsys
):
    sweep = ["sweep", file, "--out", out, "--launcher", "slurm"]
    answer(capsys, *sweep)
    set_state("FAILED")
    dtypes = Counter(row["dtype"] for row in answer(capsys, "sweep", "status", out)["unsuccessful"])
    assert dtypes == {"float32": 12}, "rows say what tells them apart"
    file.write_text(json.dumps({**EXPERIMENT, "dtype": "float64"}))
    assert answer(capsys, *sweep)["submitted"] == 12
    status = answer(capsys, "sweep", "status", out)
    assert {key: status[key] for key in ("cells", "queued", "failed", "older")} == {
        "cells": 12, "queued": 12, "failed": 0, "older": 12,
    }  # fmt: skip
    assert _causes(status) == {}


def test_the_parts_of_an_experiment_are_counted_together(slurm, file, out, capsys):
    sweep = ["sweep", file, "--out", out, "--launcher", "slurm"]
    for part in ("1/2", "2/2"):
        sent = answer(capsys, *sweep, "--shard", part)
        assert (sent["submitted"], len(sent["notes"])) == (6, 1)
    status = answer(capsys, "sweep", "status", out)
    assert (status["cells"], status["queued"], status["older"]) == (12, 12, 0)
    file.write_text(json.dumps({**EXPERIMENT, "dtype": "float64"}))
    said = "12 cells of the experiment as it was before still wait or run"
    assert answer(capsys, *sweep)["notes"][1:] == [said]


def test_a_data_set_that_is_not_here_is_said_before_jobs_are_sent(slurm, file, out, capsys):
    table = {**EXPERIMENT, "input": "dataset", "data": "nowhere"}
    file.write_text(json.dumps(table))
    sweep = ["sweep", file, "--out", out, "--launcher", "slurm"]
    said = (
        "data 'nowhere': no such folder on this machine, for 12 cells; where the nodes have it, "
        "say so: data_on_nodes = true in [slurm]"
    )
    assert answer(capsys, *sweep, "--dry-run")["notes"][0] == said
    assert run(list(map(str, sweep))) == 2
    assert capsys.readouterr().err == f"steptime: {said}\n"
    assert (slurm.jobs, out.exists()) == ({}, False)
    file.write_text(json.dumps({**table, "slurm": {**EXPERIMENT["slurm"], "data_on_nodes": True}}))
    assert answer(capsys, *sweep)["submitted"] == 12


def test_a_dry_run_counts_python_the_framework_and_the_data_and_shows_what_differs(
    slurm, file, out, tmp_path, capsys
):
    idx_folder.write(tmp_path / "images")
    data_bytes = sum(path.stat().st_size for path in (tmp_path / "images").iterdir())
    table = {
        **EXPERIMENT, "dtype": ["float32", "float64"], "replicas": 2, "backend": "torch",
        "input": "dataset", "data": str(tmp_path / "images"), "slurm": {"memory_GB": 0.5},
    }  # fmt: skip
    file.write_text(json.dumps(table))
    seen = answer(capsys, "sweep", file, "--out", out, "--launcher", "slurm", "--dry-run")
    (job,) = seen["jobs"]
    step = job["needs_bytes"] - TASK_BYTES - 2 * (WORKER_BYTES + data_bytes)
    assert 0 < step < 1e6, "two processes, each with a few kB of its own"
    assert (job["node_needs_bytes"], job["has_bytes"]) == (job["needs_bytes"], 0.5e9)
    assert len(seen["not_fitting"]) == seen["cells"], "655 MB of 500"
    assert len({tuple(sorted(row.items())) for row in seen["rows"]}) == len(seen["rows"])
    without_id = [json.dumps({k: v for k, v in row.items() if k != "id"}) for row in seen["rows"]]
    assert len(set(without_id)) == len(without_id), "every column that differs is shown"


@pytest.mark.slow
def test_a_submission_that_was_edited_is_one_line(sent, out, capsys):
    """Those alone whose plan means the same go on: a limit, an id."""
    capsys.readouterr()
    (sent.folder / "progress" / "a.b.jsonl").write_text("{}\n")  # what no task wrote
    (out / "slurm" / "current").write_bytes(b"\xff\n")
    for name in ("plan.json", "cells.jsonl", "submitted.jsonl"):
        path = sent.folder / name
        whole = path.read_text()
        lines = [json.loads(line) for line in whole.splitlines()] if "jsonl" in name else [
            json.loads(whole)
        ]  # fmt: skip
        for tables in edited(lines):
            path.write_text("\n".join(map(json.dumps, tables)))
            code = run(["sweep", "status", str(out)])
            said = capsys.readouterr().err
            assert (code, said.count("\n")) == (2, 1) or code == 0, said
        path.write_text(whole)


def test_a_submission_that_lost_a_cell_is_refused(sent, out, capsys):
    cells = sent.folder / "cells.jsonl"
    cells.write_text("".join(cells.read_text().splitlines(keepends=True)[:-1]))
    assert run(["sweep", "status", str(out)]) == 2
    said = f"steptime: {sent.folder}: is no submission: cells.jsonl has 11 lines\n"
    assert capsys.readouterr().err == said


def test_the_batch_script_alone_says_which_code_a_task_may_run(tmp_path):
    need = Need(ResourceRequest(), 1, 1, "/my nets/net.py:Net")
    text = make_script(need, "n", str(tmp_path), "python3")
    assert text.endswith("""SLURM_ARRAY_TASK_ID))" '/my nets/net.py:Net'\n""")

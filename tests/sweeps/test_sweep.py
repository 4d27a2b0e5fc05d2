"""A sweep measures each cell once, whatever ends it: kills, full disks, limits, dead workers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.measure.launch import Worker
from steptime.records import store
from steptime.records.record import Record
from steptime.sweeps import run as sweep_run

pytestmark = pytest.mark.slow

TINY = """
name = "tiny"
backend = "null"
budget_s = 0.02
{top}
[[networks]]
family = "fc"
layers = {layers}
nodes = {nodes}
inputs = 8
outputs = 4
batch = {batch}
"""
PROC = Path("/proc")
needs_proc = pytest.mark.skipif(not (PROC / "self/stat").exists(), reason="needs /proc")

Write = Callable[..., Path]


@pytest.fixture
def experiment(tmp_path):
    """Return a function that writes a file of tiny cells: `layers` by `nodes` by `batch`."""

    def write(top: str = "", layers: str = "[1, 2]", nodes: str = "4", batch: str = "2") -> Path:
        path = tmp_path / "tiny.toml"
        path.write_text(TINY.format(top=top, layers=layers, nodes=nodes, batch=batch))
        return path

    return write


def records_in(folder: Path) -> list[Record]:
    """Return the records; two sweeps of the same second have no order."""
    return store.load(folder, lambda _: None, required=False)


def statuses(folder: Path) -> Counter[str]:
    return Counter(record.status for record in records_in(folder))


def command(file: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "steptime", "sweep", str(file), "--out", str(out), *more]


@contextmanager
def running(file: Path, out: Path) -> Iterator[subprocess.Popen[str]]:
    """Return a sweep in a process of its own, which is gone afterwards."""
    with subprocess.Popen(
        command(file, out), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def progress(process: subprocess.Popen[str]) -> str:
    """Return the next line that the sweep says."""
    assert process.stderr is not None
    return process.stderr.readline()


def parent_and_state(pid: int) -> tuple[int, str]:
    """Return a process's parent and state; a process that is gone is a zombie of nobody."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0, "Z"
    state, parent = stat.rpartition(")")[2].split()[:2]
    return int(parent), state


def children(pid: int) -> list[int]:
    pids = [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]
    return [one for one in pids if parent_and_state(one)[0] == pid]


def wait_for_end(pids: list[int], limit_s: float = 600.0) -> None:
    deadline = time.monotonic() + limit_s
    while alive := [pid for pid in pids if parent_and_state(pid)[1] != "Z"]:
        assert time.monotonic() < deadline, f"workers {alive} outlive their parent"
        time.sleep(0.01)


@needs_proc
def test_an_interrupted_sweep_says_so_and_keeps_what_is_finished(experiment, tmp_path):
    out = tmp_path / "records"
    more_than_a_pipe_holds = str([*range(4, 1004)])  # so it cannot end before it is interrupted
    with running(experiment(nodes=more_than_a_pipe_holds), out) as process:
        lines = [progress(process) for _ in range(3)]
        workers = children(process.pid)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.stderr is not None
        lines += process.stderr.readlines()
        assert process.wait() == 130
    wait_for_end(workers)
    *reported, last = lines
    kept = len(records_in(out))
    assert last == f"steptime: interrupted; {kept} records kept in {out}\n"
    told = r"\[\d+/2000,|cells: |\S+: 2,000 cells: "  # a busy machine also says what it has read
    assert all(re.match(told, line) for line in reported)
    assert kept in {sum(line.startswith("[") for line in reported) + more for more in (0, 1)}


def sweep(file: Path, out: Path, *more: str) -> int:
    return run(["sweep", str(file), "--out", str(out), *more])


def rounds_and_nodes(records: list[Record]) -> list[tuple[int, int]]:
    return [(one.env["round"], dict(one.workload.params)["nodes"]) for one in records]


def test_a_second_sweep_does_what_is_missing(experiment, tmp_path, capsys):
    assert sweep(experiment(), tmp_path / "out") == 0
    assert "2 cells, 0 done before, now 2 ok" in capsys.readouterr().out
    file = experiment(nodes="[4, 8]")
    assert sweep(file, tmp_path / "out", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["cells"], document["finished_before"], document["measured"]) == (4, 2, 2)
    assert sweep(file, tmp_path / "out") == 0
    assert "4 done before, now none" in capsys.readouterr().out
    assert len(records_in(tmp_path / "out")) == 4
    assert sweep(file, tmp_path / "out", "--force") == 0
    assert len(records_in(tmp_path / "out")) == 8


def test_what_a_kill_left_of_the_ops_of_a_step_is_not_predicted_again(experiment, tmp_path):
    file, out = experiment('predict = ["T4"]\nby_op = true'), tmp_path / "out"
    assert sweep(file, out) == 0
    (path,) = out.glob("*.jsonl")
    lines = path.read_text().splitlines()
    predicted = [line for line in lines if '"origin":"predicted"' in line]
    path.write_text("\n".join(predicted[:-1]) + "\n")  # the last is the step of its ops
    assert sweep(file, out) == 0
    parts = [(store.final_key(one), one.scope) for one in records_in(out)]
    assert len(parts) == len({*parts}) == len(lines)


def test_a_worker_starts_only_for_what_is_missing(experiment, tmp_path, monkeypatch):
    started = []
    start = Worker.__init__
    monkeypatch.setattr(Worker, "__init__", lambda *args: started.append(1) or start(*args))
    file, out = experiment("threads = [1, 2]"), tmp_path / "out"
    assert sweep(file, out) == 0
    assert len(started) == 2, "one for each place"
    assert sweep(file, out) == 0
    assert len(started) == 2, "none where all is done"
    assert len(records_in(out)) == 4


def test_rounds_visit_all_cells_again(experiment, tmp_path):
    file = experiment("rounds = 2", layers="1", nodes="[4, 8]")
    assert sweep(file, tmp_path / "out") == 0
    found = rounds_and_nodes(records_in(tmp_path / "out"))
    assert found == [(0, 4), (0, 8), (1, 4), (1, 8)]
    assert sweep(file, tmp_path / "out", "--rounds", "3") == 0
    found = rounds_and_nodes(records_in(tmp_path / "out"))
    assert sorted(found) == [(0, 4), (0, 8), (1, 4), (1, 8), (2, 4), (2, 8)]


def test_runs_are_fresh_processes(experiment, tmp_path, monkeypatch):
    from steptime.analysis.measurement import measurement

    pids = []
    asked = Worker.ask
    monkeypatch.setattr(
        Worker, "ask", lambda self, *args: pids.append(self.pids[0]) or asked(self, *args)
    )
    assert sweep(experiment(layers="1"), tmp_path / "out", "--runs", "3") == 0
    assert len(set(pids)) == 3
    (record,) = records_in(tmp_path / "out")
    step = record.quantities["step_s"]
    assert {len(column) for column in step.columns.values()} == {len(step.samples)}
    assert set(step.columns["run"]) == {0, 1, 2}
    assert list(step.columns["run"]) == sorted(step.columns["run"])
    assert record.method.options["runs"] == 3
    assert len(record.env["steady_of_run"]) == 3
    assert measurement(record, 1, {})["step_s"]["interval"] == "between-runs"


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return text


def test_two_sweeps_in_one_folder_are_refused(experiment, tmp_path, capsys):
    with store.exclusive(tmp_path / "out"):
        assert sweep(experiment(), tmp_path / "out") == 2
    assert f"a sweep is running here (process {os.getpid()} on" in one_line(capsys)


def test_a_file_is_no_folder_for_records(experiment, tmp_path, capsys):
    file = experiment()
    assert sweep(file, file) == 2
    assert "is a file, not a folder of records" in one_line(capsys)


def test_a_torn_last_line_is_a_warning_and_its_cell_is_measured_again(experiment, tmp_path, capsys):
    file, out = experiment(), tmp_path / "out"
    assert sweep(file, out) == 0
    (path,) = out.glob("*.jsonl")
    torn = path.read_bytes()[:-100]
    path.write_bytes(torn)
    capsys.readouterr()
    assert sweep(file, out) == 0
    shown = capsys.readouterr()
    assert f"{path}, line 2: skipped a torn last line" in shown.err
    assert "2 cells, 1 done before, now 1 ok" in shown.out
    assert path.read_bytes() == torn


def test_a_folder_that_is_no_store_is_refused_unchanged(experiment, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.jsonl").write_text("{}\n{}\n")
    assert sweep(experiment(), out) == 2
    said = f"{out / 'notes.jsonl'}: 2 lines are no records, left out: line 1: is no record"
    assert said in one_line(capsys)
    assert [path.name for path in out.glob("*.jsonl")] == ["notes.jsonl"]


def test_a_full_disk_ends_a_sweep_with_earlier_records_intact(experiment, tmp_path):
    file, out = experiment(nodes="[4, 8]"), tmp_path / "out"
    limited = 'ulimit -f 8; exec "$@"'  # blocks of 512 or 1,024 bytes; a record takes about 2,600
    full = subprocess.run(
        ["sh", "-c", limited, "sh", *command(file, out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert full.returncode == 1
    title, *reported, last = full.stderr.splitlines()
    assert title.startswith("tiny: 4 cells")
    assert re.fullmatch(r"steptime: .*: cannot write a record: File too large", last)
    assert 0 < len(reported) < 4
    (path,) = out.glob("*.jsonl")
    whole = path.read_bytes()
    assert whole.count(b"\n") == len(reported)
    assert whole.endswith(b"\n")
    assert sweep(file, out) == 0
    assert path.read_bytes() == whole
    assert len({record.workload.key for record in records_in(out)}) == len(records_in(out)) == 4


HUGE = 10**14  # nodes: 13 weights and gradients each, and 2 activations, of 4 bytes: 11.2 PB


def test_what_cannot_fit_is_recorded_and_not_tried(experiment, tmp_path, capsys):
    file, out = experiment(layers="1", nodes=f"[{HUGE}, 4]"), tmp_path / "out"
    assert sweep(file, out) == 3
    too_large, fine = records_in(out)
    assert (too_large.status, too_large.cause) == ("oom", "predicted-not-to-fit")
    assert re.fullmatch(r"needs 11.2 PB, \S+ has .*B; not tried", too_large.note)
    assert fine.status == "ok"
    assert f"  oom (predicted-not-to-fit): fc:layers=1,nodes={HUGE}" in capsys.readouterr().out
    assert sweep(file, out) == 0
    assert len(records_in(out)) == 2
    assert sweep(file, out, "--retry", "oom,timeout") == 3
    assert statuses(out) == {"oom": 2, "ok": 1}


def test_try_all_hands_it_to_the_worker(experiment, tmp_path):
    file, out = experiment(layers="1", nodes=str(HUGE)), tmp_path / "out"
    assert sweep(file, out, "--try-all") == 3
    (record,) = records_in(out)  # more than there are addresses
    assert (record.status, record.cause) == ("oom", "out-of-memory")


@pytest.mark.parametrize(
    ("condition", "nodes"),
    [
        ("fits in memory", [4, 8]),
        ("parameters < 100", [4]),  # 8 x 4 + 4 + 4 x 4 + 4 = 56; with 8 nodes 108
        ("nodes > 4", [8]),
    ],
)
def test_filters_leave_cells_out(condition, nodes, experiment, tmp_path):
    sizes = f"[4, 8, {HUGE}]" if condition == "fits in memory" else "[4, 8]"
    file = experiment(f'where = "{condition}"', layers="1", nodes=sizes)
    assert sweep(file, tmp_path / "out") == 0
    assert rounds_and_nodes(records_in(tmp_path / "out")) == [(0, n) for n in nodes]


def test_what_the_backend_cannot_run_is_unsupported_for_good(experiment, tmp_path):
    file, out = experiment('dtype = ["bfloat16", "float32"]', layers="1"), tmp_path / "out"
    assert sweep(file, out) == 3
    assert [(one.workload.dtype, one.status) for one in records_in(out)] == [
        ("bfloat16", "unsupported"),
        ("float32", "ok"),
    ]
    assert "null has no 'bfloat16'" in records_in(out)[0].note
    assert sweep(file, out) == 0
    assert len(records_in(out)) == 2


def test_cells_that_other_work_disturbed_are_counted(experiment, tmp_path, monkeypatch, capsys):
    measure = sweep_run.attempt
    disturbed_shares = iter((1.0, 0.1))

    def attempt(*arguments: Any) -> Record:
        record = measure(*arguments)
        step = record.quantities["step_s"]
        count = round(next(disturbed_shares) * len(step.samples))
        marks = tuple(index < count for index in range(len(step.samples)))
        step = replace(step, columns={**step.columns, "disturbed": marks})
        return replace(record, quantities={**record.quantities, "step_s": step})

    monkeypatch.setattr(sweep_run, "attempt", attempt)
    assert sweep(experiment(), tmp_path / "out", "--json") == 0
    (line,) = json.loads(capsys.readouterr().out)["notes"]
    assert line.startswith("over a quarter of the samples of 1 of 2 cells were disturbed")


def test_a_cell_over_the_time_limit_ends_alone(experiment, tmp_path, monkeypatch):
    asked = Worker.ask
    requests = []

    def ask(self: Worker, request: dict[str, Any], limit_s: float, *more: Any) -> dict[str, Any]:
        if request["do"] == "measure":
            requests.append((self.pids[0], limit_s))
            if len(requests) == 1:
                os.kill(self.pids[0], signal.SIGSTOP)
                return asked(self, request, limit_s, *more)
        return asked(self, request, 600.0, *more)  # those that run have all the time they need

    monkeypatch.setattr(Worker, "ask", ask)
    file, out = experiment("time_limit_s = 0.8"), tmp_path / "out"
    assert sweep(file, out) == 3
    slow, fine = records_in(out)
    assert (slow.status, slow.cause) == ("timeout", "time-limit")
    assert slow.note == "no answer within the time limit of 0.8 s"
    assert fine.status == "ok"
    (ended, limit_s), (fresh, _) = requests
    assert limit_s == 0.8
    assert ended != fresh
    wait_for_end([ended, fresh])
    assert sweep(file, out) == 0
    assert sweep(file, out, "--retry", "timeout") == 0
    assert statuses(out) == {"timeout": 1, "ok": 2}


def test_a_worker_that_is_killed_takes_one_cell_which_is_tried_again(
    experiment, tmp_path, monkeypatch
):
    asked = Worker.ask
    victims: list[int] = []

    def ask(self: Worker, request: dict[str, Any], limit_s: float, *more: Any) -> dict[str, Any]:
        if request["do"] == "measure" and not victims:
            victims.append(self.pids[0])
            os.kill(self.pids[0], signal.SIGSTOP)  # it does not answer before it is killed
            threading.Timer(0.05, os.kill, (self.pids[0], signal.SIGKILL)).start()
        return asked(self, request, limit_s, *more)

    monkeypatch.setattr(Worker, "ask", ask)
    file, out = experiment(nodes="[4, 8]"), tmp_path / "out"
    assert sweep(file, out) == 3
    killed, *others = records_in(out)
    assert (killed.status, killed.cause) == ("failed", "killed")
    assert killed.note == "the worker ended by SIGKILL; it said nothing"
    assert [one.status for one in others] == ["ok"] * 3
    assert sweep(file, out) == 0
    assert statuses(out) == {"failed": 1, "ok": 4}
    again = [one for one in records_in(out) if one.workload.key == killed.workload.key]
    assert {one.status for one in again} == {"failed", "ok"}

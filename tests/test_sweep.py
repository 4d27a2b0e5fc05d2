"""A sweep measures each cell once, whatever ends it: kills, full disks, limits, dead workers."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from steptime import store
from steptime.core.record import Record

TINY = """
name = "tiny"
backend = "numpy"
budget_s = 0.02
{top}
[[networks]]
family = "fc"
layers = [1, 2]
nodes = {nodes}
inputs = 8
outputs = 4
batch = {batch}
"""
KILLS = 20
PROC = Path("/proc")
needs_proc = pytest.mark.skipif(not (PROC / "self/stat").exists(), reason="needs /proc")

Write = Callable[..., Path]


@pytest.fixture
def experiment(tmp_path: Path) -> Write:
    """Give a function that writes a file of tiny cells: two depths by `nodes` by `batch`."""

    def write(top: str = "", nodes: str = "[4]", batch: str = "2") -> Path:
        path = tmp_path / "tiny.toml"
        path.write_text(TINY.format(top=top, nodes=nodes, batch=batch))
        return path

    return write


def records_in(folder: Path) -> list[Record]:
    return store.load(folder, lambda _: None, required=False)


def command(file: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "steptime", "sweep", str(file), "--out", str(out), *more]


@contextmanager
def running(file: Path, out: Path) -> Iterator[subprocess.Popen[str]]:
    """Give a sweep in a process of its own, which is gone afterwards."""
    with subprocess.Popen(command(file, out), stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def progress(process: subprocess.Popen[str]) -> str:
    """Give the next line that the sweep says."""
    assert process.stderr is not None
    return process.stderr.readline()


def parent_and_state(pid: int) -> tuple[int, str]:
    """Give a process's parent and state; a process that is gone is a zombie of nobody."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0, "Z"
    state, parent = stat.rpartition(")")[2].split()[:2]
    return int(parent), state


def children(pid: int) -> list[int]:
    pids = [int(path.name) for path in PROC.iterdir() if path.name.isdigit()]
    return [one for one in pids if parent_and_state(one)[0] == pid]


def wait_for_end(pids: list[int], limit_s: float = 5.0) -> None:
    deadline = time.monotonic() + limit_s
    while alive := [pid for pid in pids if parent_and_state(pid)[1] != "Z"]:
        assert time.monotonic() < deadline, f"workers {alive} outlive their parent"
        time.sleep(0.01)


def kill(process: subprocess.Popen[str]) -> list[int]:
    """Kill a sweep and give its workers of that moment: a stopped parent starts no others."""
    process.send_signal(signal.SIGSTOP)
    workers = children(process.pid)
    process.kill()
    return workers


@needs_proc
def test_a_sweep_killed_at_twenty_moments_has_each_cell_once(
    experiment: Write, tmp_path: Path
) -> None:
    file = experiment(nodes="[4, 8, 12, 16]", batch="[2, 3]")
    began = time.monotonic()
    with running(file, tmp_path / "first") as process:
        assert progress(process).startswith("[1/16")
        start_s = time.monotonic() - began

    out = tmp_path / "records"
    moments = random.Random(8)
    acknowledged = 0
    for _ in range(KILLS):
        with running(file, out) as process:
            time.sleep(start_s * moments.uniform(0.3, 1.2))
            workers = kill(process)
            assert process.stderr is not None
            said = process.stderr.read()
        wait_for_end(workers)
        acknowledged += len(re.findall(r"^\[\d+/\d+", said, re.MULTILINE))
        assert len(records_in(out)) >= acknowledged

    ended = subprocess.run(command(file, out), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found = Counter(record.workload.key for record in records_in(out))
    assert len(found) == 16
    assert set(found.values()) == {1}
    assert {record.status for record in records_in(out)} == {"ok"}


@needs_proc
def test_an_interrupted_sweep_says_so_and_keeps_what_is_finished(
    experiment: Write, tmp_path: Path
) -> None:
    out = tmp_path / "records"
    with running(experiment(nodes="[4, 8, 12, 16]"), out) as process:
        lines = [progress(process) for _ in range(3)]
        workers = children(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        lines += process.stderr.readlines()
        assert process.wait() == 1
    wait_for_end(workers)
    *reported, last = lines
    assert last == "steptime: interrupted; everything finished so far is kept\n"
    assert all(re.match(r"\[\d/8,", line) for line in reported)
    assert len(records_in(out)) in {len(reported), len(reported) + 1}

"""A worker answers line by line, keeps stdout for answers, and ends when its parent does."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from steptime.build import make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.workload import workload_to_json
from steptime.measure import launch as local
from steptime.measure.contract import HOST_CLOCK, Options
from steptime.measure.launch import Worker, WorkerDiedError
from steptime.records.reading import record_from_json
from steptime.sweeps.workers import worker_key

pytestmark = pytest.mark.slow

WORKER = [sys.executable, "-m", "steptime.measure.worker"]
START = {"do": "start", "backend": "null", "options": asdict(Options(threads=1))}
SMALL = "fc:layers=1,nodes=4,inputs=8,outputs=4"


def request(model: str = SMALL, batch: int = 2, **changes: object) -> dict[str, Any]:
    return {
        "do": "measure",
        "workload": workload_to_json(make_workload(read_model(model), batch, "float32")),
        "platform": "cpu-of-the-test",
        "timing": {"budget_s": 0.02},
        "parts": False,
        "energy": False,
        "options": asdict(Options(threads=1)),
        "runs": 1,
        "env": {"cell": "", "round": 0},
        **changes,
    }


@contextmanager
def process() -> Iterator[subprocess.Popen[str]]:
    """Return a worker's process as its parent sees it: lines in, lines out."""
    pipe = subprocess.PIPE
    with subprocess.Popen(WORKER, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def ask(worker: subprocess.Popen[str], question: object) -> dict[str, Any]:
    tell(worker, question)
    while "event" in (answer := heard(worker)):
        pass
    return answer


def heard(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next line of a worker: an event, or the answer."""
    assert worker.stdout is not None
    line: dict[str, Any] = json.loads(worker.stdout.readline())
    return line


def tell(worker: subprocess.Popen[str], question: object) -> None:
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(question) + "\n")
    worker.stdin.flush()


def end(worker: subprocess.Popen[str]) -> None:
    """Close a worker's input and wait for its end; the limit is only against waiting for ever."""
    assert worker.stdin is not None
    worker.stdin.close()
    worker.wait(600)


def test_the_greeting_says_what_the_worker_is():
    with process() as worker:
        greeting = ask(worker, START)
        assert set(greeting) == {"version", "platform", "memory_bytes", "threads", "product"}
        assert greeting["version"] == "1.0"
        assert greeting["threads"] == 1
        assert greeting["platform"].startswith("cpu-")
        assert greeting["platform"].endswith("-1t")
        assert greeting["memory_bytes"] > 0


@pytest.mark.parametrize(
    ("backend", "threads"),
    [
        ("null", None),
        ("null", 1),
        pytest.param("torch", None, marks=[pytest.mark.framework, pytest.mark.rare]),
        pytest.param("torch", 1, marks=[pytest.mark.framework, pytest.mark.rare]),
    ],
)
def test_what_tells_records_apart_is_known_before_the_worker_starts(backend, threads):
    options = Options(threads=threads)
    known = worker_key(backend, options)
    assert known is not None
    with Worker(backend, options) as worker:
        for name in ("platform", "version", "threads"):
            assert worker.greeting[name] == getattr(known, name)
    assert worker_key(backend, Options(device="cuda")) is None  # only the worker can tell


def test_a_measurement_is_answered_by_one_record():
    with process() as worker:
        version = ask(worker, START)["version"]
        known = {"cell": "it", "round": 3, "budget_s": 0.02}
        question = request(env=known, runs=2, parts=True)
        record = record_from_json(ask(worker, question))
        copied = asdict(Options(threads=1, input="host"))
        answer = ask(worker, request(batch=3, options=copied))
    assert (record.origin, record.status, record.scope) == ("measured", "ok", "")
    assert workload_to_json(record.workload) == question["workload"]
    assert record.platform == "cpu-of-the-test"
    assert known.items() <= record.env.items()
    assert record.method.name == "null"
    assert record.method.version == version
    assert dict(record.method.options) == {
        "compile": False,
        "threads": 1,
        "tf32": False,
        "runs": 2,
    }
    assert len(record.quantities["step_s"].samples) >= 3
    assert set(record.quantities) == {
        "step_s",
        "first_step_s",
        "peak_bytes",
        "forward_s",
        "backward_s",
        "update_s",
    }
    assert answer["workload"]["batch_per_replica"] == 3
    assert "forward_s" not in answer["quantities"]
    assert answer["env"]["input_clock"] == HOST_CLOCK
    assert "input_clock" not in record.env


def test_one_thread_is_bound_to_one_core():
    with Worker("null", Options(threads=1)) as worker:
        record = record_from_json(worker.ask(request(), 600.0))
        assert record.env["threads"] == 1
        (cpu,) = record.env["cpus"]
        if hasattr(os, "sched_getaffinity"):
            assert os.sched_getaffinity(worker.pids[0]) == {cpu}


@pytest.mark.parametrize(
    ("backend", "options", "message"),
    [
        ("nunpy", Options(), "unknown backend 'nunpy'"),
        ("null", Options(device="cuda"), "'cuda' is not available to null; there is: cpu"),
    ],
)
def test_a_backend_or_device_that_is_not_there_is_refused(backend, options, message):
    with pytest.raises(InputError, match=message):
        Worker(backend, options)


def test_a_worker_that_refuses_ends():
    with process() as worker:
        answer = ask(worker, {**START, "backend": "nunpy"})
        assert set(answer) == {"refused", "cause"}
        assert "\n" not in answer["refused"]
        assert worker.wait(600) == 0


def test_a_network_that_fails_is_a_record_and_the_worker_goes_on():
    with Worker("null", Options(threads=1)) as worker:
        broken = request()
        broken["workload"]["dtype"] = "bfloat16"
        answer = worker.ask(broken, 600.0)
        assert (answer["status"], answer["quantities"]) == ("unsupported", {})
        answer = worker.ask(request(timing={"budget_s": "long"}), 600.0)
        assert (answer["status"], answer["cause"]) == ("failed", "exception")
        assert answer["note"].startswith("TypeError: ")
        assert worker.ask(request(), 600.0)["status"] == "ok"


NOISY = """
import os
from steptime.measure import cell, worker
quiet = worker.build

def build(workload):
    print("stray print", flush=True)
    os.system("echo stray child")
    os.write(1, b"stray bytes\\n")
    return quiet(workload)

cell.build = worker.build = build
worker.main()
"""


def test_what_a_library_prints_goes_to_stderr(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "WORKER", [sys.executable, "-c", NOISY])
    with process() as worker:
        assert ask(worker, START)["threads"] == 1
        assert ask(worker, request())["status"] == "ok"
        worker.kill()
        assert worker.stderr is not None
        said = worker.stderr.read()
    for stray in ("stray print", "stray child", "stray bytes"):
        assert said.count(stray) == 2  # the worker's first step and the measured network


def test_a_worker_ends_when_its_input_does():
    with process() as worker:
        ask(worker, START)
        end(worker)
        assert worker.returncode == 0


def test_a_worker_ends_in_the_midst_of_its_steps():
    with process() as worker:
        ask(worker, START)
        tell(worker, request(timing={"budget_s": 600.0}))
        event = heard(worker)
        assert event["event"] == "stepping"
        assert 0 < event["rest_s"] <= 600
        end(worker)  # long before it would have an answer
        assert worker.returncode == 0


def test_each_network_has_a_fresh_memory_meter():
    with Worker("null", Options(threads=1)) as worker:
        small, large, after = (
            record_from_json(worker.ask(request(model, batch=1), 600.0))
            for model in (SMALL, "fc:layers=1,nodes=2000,inputs=4000,outputs=8", SMALL)
        )
    weights_bytes = 4 * 2000 * 4000
    peaks = [one.quantities["peak_bytes"].value or 0.0 for one in (small, large, after)]
    assert peaks[1] >= 2 * weights_bytes - (1 << 20)  # with gradients; Linux counts in batches
    assert peaks[2] < weights_bytes / 4
    assert small.env["memory_meter"] == large.env["memory_meter"]


def test_a_worker_that_crashes_says_how():
    with Worker("null", Options(threads=1)) as worker:
        with pytest.raises(WorkerDiedError) as died:
            worker.ask({"do": "measure"}, 600.0)
        failure = died.value.failure
    assert (failure.status, failure.cause) == ("failed", "crashed")
    assert failure.note == "the worker ended with exit code 1; KeyError: 'workload'"


def stand_in(folder: Path, script: str) -> str:
    """Return an executable that is started in the place of Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_worker_that_does_not_start_is_said_and_leaves_nothing_open(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, "echo no such library >&2; exit 7"))
    with pytest.raises(InputError) as refused:
        Worker("null", Options())
    assert str(refused.value) == (
        "the null worker did not start: the worker ended with exit code 7; no such library"
    )
    del refused
    gc.collect()  # a pipe that is left open is a warning, and so an error


def test_a_worker_that_hangs_after_its_last_word_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_GRACE_S", 0.1)
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, "exec >&-; exec sleep 60"))
    with pytest.raises(InputError, match="closed its output but did not end"):
        Worker("null", Options())


@pytest.mark.parametrize("name", ["null", "torch", "steptime"])
def test_a_file_in_the_current_directory_is_not_the_library_of_its_name(
    name, tmp_path, monkeypatch
):
    """A worker and those that it starts must not run what lies where a person happens to be."""
    canary = tmp_path / "ran"
    (tmp_path / f"{name}.py").write_text(f"open({str(canary)!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    with Worker("null", Options(threads=1)) as worker:
        assert worker.ask(request(), 600.0)["status"] == "ok"
    assert not canary.exists()


def test_what_a_worker_writes_to_tmpdir_goes_with_it_and_with_a_killed_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with process() as worker:
        ask(worker, START)
        (own,) = tmp_path.iterdir()
        (own / "torchinductor_root").mkdir()
        worker.kill()
    while own.exists():  # a small process removes it when the worker is gone
        time.sleep(0.01)
    # all processes of a job were ended at once: nobody holds what they left
    (tmp_path / "steptime-worker-left/torchinductor_root").mkdir(parents=True)
    (tmp_path / "steptime-worker-left/in-use").touch()
    with process() as worker:
        ask(worker, START)
        (own,) = tmp_path.iterdir()
        assert own.name != "steptime-worker-left"

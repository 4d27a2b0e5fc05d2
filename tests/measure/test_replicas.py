"""Several processes measured as one step: records, kills, launchers. Real processes, gloo."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import steptime
from replica_request import SMALL, request
from steptime.cli.main import run
from steptime.core.workload import STRATEGIES
from steptime.measure.contract import Options
from steptime.measure.launch import Worker, WorkerDiedError
from steptime.measure.ranks import free_port, local_variables
from steptime.records import store
from steptime.records.reading import record_from_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.framework,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes need two CPUs")
    if hasattr(os, "sched_getaffinity")
    else pytest.mark.skip(reason="this system has no affinity"),
]

PROC = Path("/proc")


@pytest.fixture(scope="module")
def pair():
    """Return two processes that answer as one."""
    with Worker("torch", Options(threads=1), 2) as worker:
        yield worker


def test_each_process_has_a_core_of_its_own(pair):
    record = record_from_json(pair.ask(request("allreduce"), 600))
    first, second = (os.sched_getaffinity(pid) for pid in pair.pids)
    assert len(first) == len(second) == 1
    assert first != second
    assert [set(one["cpus"]) for one in record.env["ranks"]] == [first, second]
    assert [one["rank"] for one in record.env["ranks"]] == [0, 1]


def _meets() -> None:
    """Join a group of this process alone, print where it listens and what it can tell others."""
    import torch

    from steptime.measure.backends.torch.parallel import join
    from steptime.measure.ranks import LOOPBACK, Rank

    port = free_port()
    group = join(Rank(0, 1, 0, 1, LOOPBACK, port), torch.device("cpu"))
    lines = [line.split() for name in ("tcp", "tcp6")
             for line in (PROC / "net" / name).read_text("ascii").splitlines()[1:]]  # fmt: skip
    places = [one[1].split(":") for one in lines if one[3] == "0A"]  # that listen
    at = [host for host, number in places if int(number, 16) == port]
    try:
        group.gather(Path("an object"))
    except TypeError as error:
        refused = str(error)
    print(json.dumps([group.gather({"s": (0.1, None, "ß")}), at, refused]))


@pytest.mark.skipif(not (PROC / "net" / "tcp").exists(), reason="no /proc/net/tcp here")
def test_processes_of_one_machine_meet_where_no_other_reaches_and_exchange_json():
    code = "import test_replicas; test_replicas._meets()"
    here = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": here},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    gathered, at, refused = json.loads(done.stdout)
    assert gathered == [{"s": [0.1, None, "ß"]}]
    assert at == ["0100007F"]  # 127.0.0.1
    assert "not JSON serializable" in refused


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("overlap", [True, False])
def test_every_strategy_is_one_record(pair, strategy, overlap):
    record = record_from_json(
        pair.ask(request(strategy, parts=True, options={"overlap": overlap}), 600)
    )
    assert record.status == "ok", record.note
    assert record.workload.plan.data == 2
    assert record.method.options["strategy"] == strategy
    hidden = overlap and strategy in {"allreduce", "sharded"}
    env = record.env
    assert env["overlap"] is hidden
    assert env["comm_backend"] == "gloo"
    assert env["sample_ends"] == "with the slowest rank"
    peaks = env["peak_memory_bytes_of_ranks"]
    assert len(peaks) == 2
    assert record.quantities["peak_bytes"].value == max(peaks)
    step, comm = (record.quantities[name].samples for name in ("step_s", "communication_s"))
    assert {"forward_s", "backward_s", "update_s"} < set(record.quantities)
    if strategy == "independent":
        assert set(comm) == {0.0}
    elif strategy == "sharded" or hidden:
        assert env["comm_meter"].startswith("exposed: step ")
        assert len(comm) >= 3
    else:
        assert env["comm_meter"].startswith("host clock around every exchange")
        assert len(comm) == len(step)
        assert all(0 < c < s for c, s in zip(comm, step, strict=True))


def test_what_exchanges_more_waits_longer(pair):
    small, large = (
        record_from_json(pair.ask(request("allreduce", model, options={"overlap": False}), 600))
        for model in (SMALL, "fc:layers=1,nodes=1000,inputs=2000,outputs=10")
    )
    times = [min(one.quantities["communication_s"].samples) for one in (small, large)]
    assert times[1] > 2 * times[0]  # 8 MB against 31 kB, where nobody is in the way


def test_gpus_are_joined_by_nccl(monkeypatch):
    """There is no GPU here: what PyTorch is told, not what it does."""
    import torch
    import torch.distributed as dist

    from steptime.measure.backends.torch import parallel as torch_parallel
    from steptime.measure.ranks import Rank

    told: dict[str, Any] = {}
    monkeypatch.setattr(dist, "TCPStore", lambda *args, **named: told.update(server=(args, named)))
    monkeypatch.setattr(dist, "PrefixStore", lambda prefix, _: told.update(prefix=prefix))
    monkeypatch.setattr(
        dist, "init_process_group", lambda *args, **named: told.update(named, by=args)
    )
    monkeypatch.setattr(dist, "new_group", lambda backend: told.update(control=backend))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: told.update(device=device))
    monkeypatch.setattr(torch_parallel, "_GROUPS", {})
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    device = torch.device("cuda:1")
    joined = torch_parallel.join(Rank(1, 4, 1, 2, "node1", 29500, attempt=3), device)
    assert told["by"] == ("nccl",)
    assert (told["rank"], told["world_size"], told["device_id"]) == (1, 4, device)
    assert told["device"] == device
    assert told["prefix"] == "steptime/3"
    assert told["server"] == (
        ("node1", 29500, 4),
        {"is_master": False, "master_listen_fd": None},
    )
    assert (joined.backend, told["control"]) == ("nccl", "gloo")


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"energy": True}, {}, "energy is metered on one device, not on replicas"),
    ({}, {"phase": "infer"}, "inference exchanges nothing: its strategy is independent"),
    ({}, {"dtype": "float16-mixed"}, "float16-mixed scales the loss of one replica"),
    ({"options": {"compile": True}}, {}, "torch.compile is not run on a sharded network here"),
    ({}, {}, "2 replicas are as many processes, not 1"),
]


def test_what_is_not_run_says_so():
    with Worker("torch", Options(threads=1)) as worker:  # one process refuses as well
        for changes, fields, note in REFUSED:
            asked = request("sharded", **changes)
            asked["workload"] |= fields
            answer = worker.ask(asked, 600)
            assert answer["status"] == "unsupported"
            assert note in answer["note"]


def test_replicas_of_inference_are_independent(pair):
    asked = request("independent")
    asked["workload"] |= {"phase": "infer", "optimizer": "none"}
    record = record_from_json(pair.ask(asked, 600))
    assert record.status == "ok"
    assert set(record.quantities["communication_s"].samples) == {0.0}


def test_a_backend_of_one_device_has_no_replicas(capsys):
    words = ["run", SMALL, "--backend", "null", "--replicas", "2", "--threads", "1"]
    assert run(words) == 3
    assert "unsupported): null runs on one device" in capsys.readouterr().out


def test_too_many_processes_are_one_line(capsys):
    cpus = len(os.sched_getaffinity(0))
    assert run(["run", SMALL, "--replicas", str(cpus + 1), "--threads", "1"]) == 2
    needed = f"{cpus + 1} processes x 1 threads need {cpus + 1} CPUs"
    assert capsys.readouterr().err == f"steptime: {needed}; {cpus} are allowed here\n"


@pytest.mark.rare  # test_jax_replicas.py has the same counts, the sweep the same run
def test_run_counts_all_replicas(tmp_path, capsys):
    answer = steptime.run(
        SMALL, batch=8, replicas=2, threads=1, no_overlap=True, budget=0.1, out=tmp_path / "out"
    )
    document = answer.to_dict()
    counts = [document[name] for name in ("batch", "replicas", "global_batch", "strategy")]
    assert counts == [8, 2, 16, "allreduce"]
    assert document["method"]["options"]["overlap"] is False
    assert 0 < document["communication_s"] < document["step_s"]["median"]
    assert document["speed"]["mean"] == pytest.approx(16 / document["step_s"]["mean"])
    (record,) = store.load(tmp_path / "out", print)
    assert record.workload.plan.data == 2
    answer.print()
    printed = capsys.readouterr().out
    assert "2 replicas, allreduce" in printed
    assert "communication" in printed


EXPERIMENT = f"""
name = "replicas"
threads = 1
replicas = [2, 1000]
overlap = [false]
batch = 8
budget_s = 0.1
[[networks]]
model = "{SMALL}"
"""


def test_a_sweep_over_replicas(tmp_path):
    file, out = tmp_path / "replicas.toml", tmp_path / "out"
    file.write_text(EXPERIMENT)
    assert run(["sweep", str(file), "--out", str(out)]) == 3
    found = [(one.workload.plan.data, one.status, one.cause) for one in store.load(out, print)]
    assert found == [(2, "ok", ""), (1000, "unsupported", "too-few-cpus")]
    assert run(["sweep", str(file), "--out", str(out)]) == 0  # nothing is tried again
    assert len(store.load(out, print)) == 2


def state(pid: int) -> str:
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def children(pid: int) -> list[int]:
    return [int(one) for one in (PROC / f"{pid}/task/{pid}/children").read_text().split()]


def gone(pids: list[int], limit_s: float = 600.0) -> bool:
    deadline = time.monotonic() + limit_s
    while any(state(pid) != "Z" for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    return all(state(pid) == "Z" for pid in pids)


LONG = ["run", SMALL, "--replicas", "2", "--threads", "1", "--budget", "600"]


def await_steps(process: subprocess.Popen[str]) -> None:
    """Return when the command says that its steps run; their exchange needs all ranks."""
    assert process.stderr is not None
    said = process.stderr.readline()
    assert "the first step took" in said


@contextmanager
def long_run() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Return a run in the midst of its steps, and its two workers."""
    command = [sys.executable, "-m", "steptime", *LONG]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            await_steps(process)
            yield process, workers_of(process)
        finally:
            process.kill()


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the workers of a command: those of its children that run Python."""
    return [pid for pid in children(process.pid) if "steptime" in command_line(pid)]


def command_line(pid: int) -> str:
    return (PROC / f"{pid}/cmdline").read_text()


def test_no_worker_outlives_a_parent_that_is_killed():
    with long_run() as (process, workers):
        process.kill()
        assert gone(workers)


@pytest.mark.rare
def test_no_worker_outlives_ctrl_c():
    with long_run() as (process, workers):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, said = process.communicate(timeout=600)
        assert process.returncode == 130
        assert said.endswith("steptime: interrupted\n")
        assert gone(workers)


@pytest.mark.rare
@pytest.mark.parametrize("rank", [0, 1])
def test_the_death_of_one_rank_ends_the_run_and_is_told(rank):
    with long_run() as (process, workers):
        os.kill(workers[rank], signal.SIGKILL)
        said = "".join(process.communicate(timeout=600))
        assert process.returncode == 3
        assert gone(workers)
    assert f"failed (killed): rank {rank} of 2 ended by SIGKILL" in said


@pytest.mark.rare  # test_worker.py: the limit; the death of a rank ends the other
def test_a_rank_that_hangs_meets_the_time_limit(pair):
    del pair  # its CPUs are free while nothing is asked
    with Worker("torch", Options(threads=1), 2) as worker:
        os.kill(worker.pids[1], signal.SIGSTOP)
        with pytest.raises(WorkerDiedError, match=r"no answer within the time limit of 0\.5 s"):
            worker.ask(request("allreduce"), 0.5)
        assert gone(list(worker.pids))


@pytest.mark.rare
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_waits_for_the_others_ends_with_its_parent(rank):
    with socket.socket() as meeting:
        meeting.bind(("127.0.0.1", 0))
        port = meeting.getsockname()[1]
        if rank == 0:  # it is where the others would come
            meeting.close()
        else:
            meeting.listen()
            meeting.settimeout(600)
        variables = local_variables(2, port)[rank]
        command = [sys.executable, "-m", "steptime", "run", SMALL, "--threads", "1"]
        with subprocess.Popen(command, env={**os.environ, **variables}) as process:
            try:
                if rank == 0:
                    await_server(port, process)
                else:
                    meeting.accept()[0].close()
                workers = workers_of(process)
                assert workers
            finally:
                process.kill()
            assert gone(workers)


def await_server(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return when somebody listens on a port; the process that should is to stay alive."""
    while True:
        assert process.poll() is None
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.01)


@pytest.mark.rare
@pytest.mark.parametrize("victim", ["worker", "command"])
def test_the_death_of_a_rank_of_a_launcher_ends_the_other(victim):
    words = [word for word in LONG if word not in {"--replicas", "2"}]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "steptime", *words],
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for own in local_variables(2, free_port())
    ]
    try:
        await_steps(running[0])
        workers = [pid for one in running for pid in workers_of(one)]
        os.kill(running[1].pid if victim == "command" else workers[1], signal.SIGKILL)
        said = [one.communicate(timeout=600) for one in running]
        assert gone(workers)
    finally:
        for one in running:
            one.kill()
    assert running[0].returncode == 3
    assert "failed (exception): RuntimeError: " in "".join(said[0])
    if victim == "worker":
        assert said[1][1] == "rank 1: failed: the worker ended by SIGKILL; it said nothing\n"


def launched(
    variables: Sequence[dict[str, str]], out: Path, *more: str
) -> list[tuple[int, str, str]]:
    """Run one command for each rank, as a launcher does; give exit code, stdout and stderr."""
    words = ["run", SMALL, "--threads", "1", "--budget", "0.1", "--json", "--out", str(out), *more]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "steptime", *words],
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for own in variables
    ]
    ended = [one.communicate(timeout=600) for one in running]
    return [(one.returncode, *said) for one, said in zip(running, ended, strict=True)]


def srun_variables(port: int) -> list[dict[str, str]]:
    """Return what srun sets for two tasks of one node."""
    common = {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_NODEID": "0",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "MASTER_PORT": str(port),
    }
    return [{**common, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)} for i in range(2)]


def is_one_record(printed: str, out: Path, run_count: int) -> None:
    """Hold that two ranks made one answer of all their runs, and one record of both."""
    document = json.loads(printed)
    assert (document["replicas"], document["status"]) == (2, "ok")
    assert set(document["step_s"]["run_of_sample"]) == {*range(run_count)}
    (record,) = store.load(out, print)
    assert [one["rank"] for one in record.env["ranks"]] == [0, 1]
    assert record.env["ranks"][0]["cpus"] != record.env["ranks"][1]["cpus"]


@pytest.mark.rare  # test_ranks.py reads what srun sets, `pair` has two ranks
@pytest.mark.parametrize("run_count", [1, 2])
def test_ranks_of_srun_make_one_record(run_count, tmp_path):
    variables = srun_variables(free_port())
    first, second = launched(variables, tmp_path / "out", "--runs", str(run_count))
    assert (first[0], second) == (0, (0, "", ""))
    is_one_record(first[1], tmp_path / "out", run_count)


@pytest.mark.rare
def test_a_failure_of_ranks_of_a_launcher_ends_all(tmp_path):
    variables = local_variables(2, free_port())
    first, second = launched(variables, tmp_path / "out", "--dtype", "float16-mixed")
    assert (first[0], second[0]) == (3, 3)
    assert json.loads(first[1])["status"] == "unsupported"
    assert second[1] == ""
    assert second[2].startswith("rank 1: unsupported: float16-mixed scales")


@pytest.mark.rare
@pytest.mark.parametrize("run_count", [1, 2])
def test_torchrun_itself(run_count, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(free_port()), "-m", "steptime", "run", SMALL]
    command += ["--threads", "1", "--budget", "0.1", "--json", "--out", str(tmp_path)]
    command += ["--runs", str(run_count)]  # all workers of a rank meet at torchrun's store
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    is_one_record(done.stdout, tmp_path, run_count)

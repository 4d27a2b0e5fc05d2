"""Which process this is, and workers that are several: without a framework."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from every import every
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.measure import cpus, ranks
from steptime.measure import launch as local
from steptime.measure.contract import Options
from steptime.measure.launch import Worker, WorkerDiedError
from steptime.measure.process_group import check_separate_cpus
from steptime.measure.ranks import Rank, find_rank, first_host, local_variables
from steptime.measure.worker import device_of_rank

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "70",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "4",
    "SLURM_NTASKS": "5",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[03-05]",
    "SLURM_JOB_NODELIST": "gpu[01-05]",
}


def test_without_a_launcher_a_process_is_alone():
    assert find_rank({}) == Rank()
    assert find_rank({"MASTER_ADDR": "a", "MASTER_PORT": "1"}) == Rank()


def test_a_batch_script_is_no_task_of_srun():
    assert find_rank({k: v for k, v in SRUN.items() if k != "SLURM_STEP_ID"}) == Rank()


def test_variables_of_torchrun():
    assert find_rank(TORCHRUN) == Rank(3, 4, 1, 2, "node1", 29500)
    one = {name: TORCHRUN[name] for name in TORCHRUN if name != "LOCAL_WORLD_SIZE"}
    assert find_rank(one).local_size == 4  # so many, as far as is known
    assert find_rank({**TORCHRUN, ranks.ATTEMPT: "2"}).attempt == 2


def test_variables_of_srun():
    found = find_rank(SRUN)
    assert found == Rank(4, 5, 0, 1, "gpu03", 10_000 + 31 * 70 + 2)
    assert find_rank({**SRUN, "SLURM_NODEID": "1", "SLURM_PROCID": "2"}).local_size == 2
    assert find_rank({**SRUN, ranks.ATTEMPT: "2"}).port == found.port + 2
    assert find_rank({**SRUN, "SLURM_CPU_BIND_TYPE": "mask_cpu:"}).has_bound_cpus
    assert find_rank({**SRUN, "MASTER_ADDR": "here", "MASTER_PORT": "5"}).port == 5
    one_node = {**SRUN, "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "5"}
    assert find_rank(one_node).address == "127.0.0.1", "no other machine can reach where they meet"
    assert find_rank({**one_node, "MASTER_ADDR": "here"}).address == "here"
    alone = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    assert find_rank(alone) == Rank()


def test_processes_meet_at_a_host_that_is_there():
    ranks.check_address(Rank(1, 2, 1, 2, "localhost", 1234))
    with pytest.raises(InputError, match=r"rank 1: host 'no-such-host\.invalid', where the 2 proc"):
        ranks.check_address(Rank(1, 2, 1, 2, "no-such-host.invalid", 1234))


def test_processes_of_our_own_come_before_those_of_srun():
    first, second = local_variables(2, 1234)
    assert find_rank({**SRUN, **second}) == Rank(1, 2, 1, 2, "127.0.0.1", 1234)
    assert find_rank(first).is_rank_zero
    assert not find_rank(second).is_rank_zero


@every(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("a,b", "a"),
        ("gpu[03-05,9],login", "gpu03"),
        ("gpu[7,9-12]", "gpu7"),
        ("rack[1-2]-node[04-05]", "rack1-node04"),
        ("n1.example.org", "n1.example.org"),
    ],
)
def test_the_first_host_of_a_list(nodes, first):
    assert first_host(nodes) == first


@every("nodes", [",a", "[", "a b"])
def test_what_is_no_list_of_nodes(nodes):
    with pytest.raises(InputError, match="is no list of nodes"):
        first_host(nodes)


WRONG = [
    (TORCHRUN, {"RANK": None}, "RANK is not set, but other variables of the launcher are"),
    (TORCHRUN, {"WORLD_SIZE": None}, "WORLD_SIZE is not set"),
    (TORCHRUN, {"LOCAL_RANK": ""}, "LOCAL_RANK is not set"),
    (TORCHRUN, {"MASTER_PORT": None}, "MASTER_PORT is not set"),
    (TORCHRUN, {"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
    (TORCHRUN, {"RANK": "first"}, "RANK must be a whole number, not 'first'"),
    (SRUN, {"SLURM_PROCID": None}, "SLURM_PROCID is not set"),
    (SRUN, {"SLURM_NTASKS": "-1"}, "SLURM_NTASKS must be a whole number, not '-1'"),
    (SRUN, {"SLURM_STEP_TASKS_PER_NODE": "two"}, "srun: 'two' tasks a node have no node"),
    (SRUN, {"SLURM_NODEID": "9"}, "have no node of SLURM_NODEID"),
]


@every(("variables", "changes", "message"), WRONG)
def test_half_set_and_wrong_variables_are_one_line(
    variables, changes, message, monkeypatch, capsys
):
    merged = {**variables, **changes}
    for name, value in merged.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    assert run(["run", "fc:layers=1,nodes=4,inputs=8,outputs=4"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert message in line


def test_another_number_of_replicas_than_the_launchers(monkeypatch, capsys, tmp_path):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert run(["run", "fc", "--replicas", "2"]) == 2
    assert capsys.readouterr().err == (
        "steptime: --replicas 2: the launcher started 4 processes; leave it out\n"
    )
    file = tmp_path / "e.toml"
    file.write_text('name = "e"\nbackend = "null"\n[[networks]]\nfamily = "fc"\nlayers = 4\n')
    assert run(["sweep", str(file), "--out", str(tmp_path / "out")]) == 2
    assert "a sweep starts its processes itself" in capsys.readouterr().err
    assert run(["calibrate", "--only", "ceilings", "--backend", "null"]) == 2
    assert "calibrate measures one process" in capsys.readouterr().err


def tree(root: Path, cpus: int) -> Path:
    """Return a tree of a machine with two threads a core: CPUs 0 and 2 are one core, as 1 and 3."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text(f"Cpus_allowed_list:\t0-{cpus - 1}\n")
    for cpu in range(cpus):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        pair = (cpu % (cpus // 2), cpu % (cpus // 2) + cpus // 2)
        (folder / "thread_siblings_list").write_text(",".join(map(str, pair)))
        (folder / "physical_package_id").write_text("0")
    return root


def test_processes_of_a_machine_share_no_cpu(tmp_path):
    root = tree(tmp_path, 8)
    chosen = [cpus.choose_cpus(2, root, process, 4) for process in range(4)]
    assert chosen == [(0, 1), (2, 3), (4, 5), (6, 7)]  # cores first, their second threads last
    assert cpus.choose_cpus(3, root, 1, 2) == (3, 4, 5)
    assert cpus.default_threads(root) == 4
    assert cpus.default_threads(root, 2) == 2
    assert cpus.default_threads(root, 9) == 1
    with pytest.raises(InputError, match="3 processes x 3 threads need 9 CPUs; 8 are allowed"):
        cpus.choose_cpus(3, root, 0, 3)


def rank_of(rank: int, host: str, cpus: list[int]) -> dict[str, object]:
    return {"rank": rank, "host": host, "cpus": cpus}


def test_ranks_that_share_something_are_refused():
    check_separate_cpus([rank_of(0, "a", [0]), rank_of(1, "a", [1]), rank_of(2, "b", [0])])
    with pytest.raises(InputError, match="ranks 0 and 1 share CPU 1 of a: each needs its own"):
        check_separate_cpus([rank_of(0, "a", [0, 1]), rank_of(1, "a", [1])])


@every(
    ("device", "rank", "visible", "own"),
    [
        ("cuda:1", Rank(), "", "cuda:1"),
        ("cpu", Rank(1, 2, 1, 2), "", "cpu"),
        ("cuda", Rank(5, 8, 1, 4), "", "cuda:1"),
        ("cuda", Rank(5, 8, 1, 4), "4,5,6,7", "cuda:1"),
        ("cuda", Rank(5, 8, 1, 4), "3", "cuda:0"),  # a scheduler shows each task its own
    ],
)
def test_each_replica_has_a_gpu(device, rank, visible, own, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device_of_rank(device, rank) == own


def test_one_gpu_is_not_for_several_replicas():
    with pytest.raises(InputError, match="cuda:1 is one device; replicas run on 'cuda'"):
        device_of_rank("cuda:1", Rank(1, 2, 1, 2))


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put an executable in the place of Python; it knows its rank, and how to answer."""
    path = folder / "python"
    answer = """answer() { read request; echo "$1"; }"""
    path.write_text(f"#!/bin/sh\n{answer}\nanswer '{{}}'\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def gone(pids: tuple[int, ...]) -> bool:
    def alive(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    deadline = time.monotonic() + 600  # against waiting for ever
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(alive, pids))


def test_rank_0_answers_for_all(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, 'answer "{\\"rank\\": $RANK}"; cat')
    with Worker("torch", Options(), 3) as worker:
        assert len(set(worker.pids)) == 3
        assert worker.ask({}, 600) == {"rank": 0}
        pids = worker.pids
    assert gone(pids)


def test_a_dead_rank_ends_the_group_and_is_named(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, "read x; [ $RANK = 1 ] && kill -9 $$; sleep 60")
    with Worker("torch", Options(), 2) as worker:
        with pytest.raises(WorkerDiedError) as died:
            worker.ask({}, 600)
        assert gone(worker.pids)
    failure = died.value.failure
    assert (failure.status, failure.cause) == ("failed", "killed")
    assert failure.note == "rank 1 of 2 ended by SIGKILL; it said nothing"


def test_a_death_comes_before_what_others_make_of_it(tmp_path, monkeypatch):
    failed = '{"status": "failed", "note": "Connection closed by peer"}'
    # its connections are closed some time before it is gone: the others may be the first to answer
    script = f"read x; [ $RANK = 1 ] && sleep 0.3 && exit 7; echo '{failed}'; sleep 60"
    monkeypatch.setattr(local, "_DEATH_WAIT_S", 60.0)
    stand_in(tmp_path, monkeypatch, script)
    with (
        Worker("torch", Options(), 2) as worker,
        pytest.raises(WorkerDiedError, match="rank 1 of 2 ended with exit code 7"),
    ):
        worker.ask({}, 600)


def test_the_first_failure_is_the_answer_while_others_wait(tmp_path, monkeypatch):
    failed = '{"status": "oom", "note": "no memory left"}'
    stand_in(tmp_path, monkeypatch, f"read x; [ $RANK = 1 ] && echo '{failed}'; sleep 60")
    with Worker("torch", Options(), 2) as worker:
        assert worker.ask({}, 600) == {"status": "oom", "note": "rank 1: no memory left"}
        assert gone(worker.pids)


def test_a_time_limit_ends_all(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, "[ $RANK = 0 ] && answer '{}'; sleep 60")
    with Worker("torch", Options(), 2) as worker:
        with pytest.raises(WorkerDiedError, match=r"no answer within the time limit of 0\.3 s"):
            worker.ask({}, 0.3)
        assert gone(worker.pids)


def test_a_rank_that_refuses_is_named(tmp_path, monkeypatch):
    path = tmp_path / "python"
    refused = '{"refused": "no such device", "cause": "bad-config"}'
    path.write_text(f"#!/bin/sh\nread x; [ $RANK = 1 ] && echo '{refused}'; sleep 60\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    with pytest.raises(InputError, match=r"^rank 1: no such device$"):
        Worker("torch", Options(), 2)

"""The bed of the launcher's tests: what a real Slurm does, each as the launcher relies on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import LIMIT_S, SlurmCluster

from steptime.sweeps.cluster.jobs import Need
from steptime.sweeps.cluster.script import make_script
from steptime.sweeps.resource_request import ResourceRequest

pytestmark = pytest.mark.slurm

MIND_TERM = "trap 'echo got TERM; exit 3' TERM; echo ready; sleep 900 & wait"
ENDED = {"0:15", "143:0"}  # by the signal, or as Bash says that its child was
ONCE = "echo restart ${SLURM_RESTART_COUNT:-none}; [ $SLURM_RESTART_COUNT ] || sleep 900"


def test_sbatch_reads_values_as_scripts_quote_them(slurm, tmp_path):
    folder = tmp_path / "a 'b' \"c\" $(touch ran) `touch ran` ${HOME} # 100% & *"
    (folder / "logs").mkdir(parents=True)
    python = folder / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    request = ResourceRequest(account='my $home\'s "lab" # 1', requeues=0)
    path = tmp_path / "job.sh"
    path.write_text(make_script(Need(request, 1, 1), "strange", str(folder), str(python)))
    job = slurm.run("sbatch", "--parsable", "--array=0-0", "--hold", str(path), "3")
    shown = slurm.run("scontrol", "show", "job", "-o", job)
    assert ' Account=my $home\'s "lab" # 1 QOS=' in shown
    slurm.run("scontrol", "release", job)
    slurm.wait_state(f"{job}_0", "COMPLETED")
    lines = (folder / "logs" / f"{job}_0.out").read_text().splitlines()
    wanted = ["-P", "-m", "steptime.sweeps.cluster.task", str(folder), "3"]
    assert lines == [f"steptime: begun {job}", "steptime: ready", *wanted]


def test_a_limit_above_the_partitions_waits_for_ever(slurm):
    job = slurm.submit("true", "--time=2:00:00")
    slurm.wait(lambda: slurm.job(job)["Reason"] != "None", "a reason")
    assert slurm.job(job)["Reason"] in {"PartitionTimeLimit", "PartitionConfig"}
    assert slurm.job(job)["JobState"] == "PENDING"


def test_a_crash_is_told_by_state_and_exit_code(slurm):
    error = slurm.submit("exit 7")
    fault = slurm.submit("kill -SEGV $$")
    child = slurm.submit(f"{sys.executable} -c 'import os; os.kill(os.getpid(), 11)'; exit $?")
    for job, reason, code in (
        (error, "NonZeroExitCode", "7:0"),
        (fault, "JobLaunchFailure", "0:11"),  # the script itself
        (child, "NonZeroExitCode", "139:0"),  # 128 + 11, as Bash says it
    ):
        fields = slurm.wait_state(job, "FAILED")
        assert (fields["Reason"], fields["ExitCode"]) == (reason, code)


def test_a_cancelled_job_gets_a_signal_and_a_line(slurm):
    plain, minds = slurm.submit("sleep 900"), slurm.submit(MIND_TERM)
    for job in (plain, minds):
        slurm.wait_state(job, "RUNNING")
    slurm.wait(lambda: slurm.output(minds) == "ready\n", "the trap")
    slurm.run("scancel", str(plain), str(minds))
    assert slurm.wait_state(plain, "CANCELLED")["ExitCode"] in ENDED
    slurm.wait_state(minds, "CANCELLED")
    assert f"error: *** JOB {plain} ON k" in slurm.output(plain)
    assert "got TERM" in slurm.output(minds)


def test_what_is_over_and_what_never_was(slurm):
    job = slurm.submit("true")
    slurm.wait_state(job, "COMPLETED")
    array = slurm.submit("sleep 9", "--array=0-3", "--hold")
    slurm.run("scancel", f"{array}_2")
    assert slurm.run("squeue", "-h", "-j", str(job)) == ""
    for unknown, said in (
        ("99999", "Invalid job id specified"),
        (f"{array}_2", f"Job {array}_2 not found"),  # cancelled while it waited: no trace
        (f"{array}_7", f"Job {array}_7 not found"),  # never was
    ):
        with pytest.raises(AssertionError, match=said):
            slurm.job(unknown)
    with pytest.raises(AssertionError, match="Invalid job id specified"):
        slurm.run("squeue", "-h", "-j", "99999")
    slurm.run("scancel", "99999")  # exit 0, and says nothing


def test_more_memory_than_asked_for_is_killed_and_said_on_stderr(slurm):
    eat = "x = b'1' * 400_000_000; import time; time.sleep(900)"
    job = slurm.submit(f'{sys.executable} -c "{eat}"', "--mem=100")
    fields = slurm.wait_state(job, "FAILED", "OUT_OF_MEMORY")
    assert fields["JobState"] == "FAILED"  # without cgroups
    assert fields["ExitCode"] in {"0:9", "137:0"}
    assert "error: Exceeded job memory limit" in slurm.output(job)


@pytest.mark.rare
def test_a_job_put_back_keeps_its_id_and_loses_its_output(slurm):
    cut, kept = slurm.submit(ONCE), slurm.submit(ONCE, "--open-mode=append")
    for job in (cut, kept):
        slurm.wait_state(job, "RUNNING")
        slurm.wait(lambda job=job: "none" in slurm.output(job), "the first output")
        slurm.run("scontrol", "requeue", str(job))
    for job in (cut, kept):
        fields = slurm.wait_state(job, "PENDING", "COMPLETED")
        assert fields["JobState"] == "COMPLETED" or fields["Reason"] in {"None", "BeginTime"}
    for job in (cut, kept):
        assert slurm.wait_state(job, "COMPLETED")["Restarts"] == "1"
    assert slurm.output(cut) == "restart 1\n"
    assert slurm.output(kept).startswith("restart none\n")
    assert slurm.output(kept).endswith("restart 1\n")


@pytest.mark.rare
def test_a_node_without_power_is_noticed(tmp_path):
    with SlurmCluster(tmp_path / "own", {"k1": "k80"}, notice_s=5) as own:
        lost = own.submit("sleep 900", "--no-requeue")
        own.wait_state(lost, "RUNNING")
        own.node_down("k1")
        own.wait_state(lost, "NODE_FAIL")
        assert own.run("sinfo", "-h", "-n", "k1", "-p", "main", "-o", "%T") == "down*"


STRAYS = "setsid sleep 901 & (trap '' TERM; sleep 902) & env -i sleep 903"
LEAST = 3 + 3 + 2 + 3  # minders; munged, slurmctld and slurmd; the step and its script; strays


def gone(pids: set[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_nothing_is_left_when_a_test_fails(tmp_path):
    pids: set[int] = set()

    def failing_test() -> None:
        with SlurmCluster(tmp_path / "own", {"k1": "k80"}) as own:
            own.wait_state(own.submit(STRAYS), "RUNNING")
            own.wait(lambda: len(own.pids()) >= LEAST, "all processes")
            pids.update(own.pids())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_test()
    assert len(pids) >= LEAST
    assert gone(pids)


def test_nothing_is_left_when_the_tests_are_killed(tmp_path):
    script = (
        "import pathlib, time\nfrom cluster import SlurmCluster\n"
        f"with SlurmCluster(pathlib.Path({str(tmp_path / 'own')!r}), {{'k1': 'k80'}}) as own:\n"
        f"    own.wait_state(own.submit({STRAYS!r}), 'RUNNING')\n"
        f"    own.wait(lambda: len(own.pids()) >= {LEAST}, 'all processes')\n"
        "    print(*own.pids(), flush=True)\n    time.sleep(900)\n"
    )
    here = str(Path(__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": here},
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        assert tests.stdout is not None
        pids = {int(pid) for pid in tests.stdout.readline().split()}
        assert len(pids) >= LEAST
        tests.send_signal(signal.SIGKILL)
    end = time.monotonic() + LIMIT_S
    while not gone(pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert gone(pids)

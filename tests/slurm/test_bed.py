"""The bed of the launcher's tests: what a real Slurm does, each as the launcher relies on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cluster import LIMIT_S, SlurmCluster

from steptime.sweeps.cluster.scheduler import Need
from steptime.sweeps.cluster.slurm import script
from steptime.sweeps.resource_request import ResourceRequest

MIND_TERM = "trap 'echo got TERM; exit 3' TERM; echo ready; sleep 900 & wait"
ENDED = {"0:15", "143:0"}  # by the signal, or as Bash says that its child was
ONCE = "echo restart ${SLURM_RESTART_COUNT:-none}; [ $SLURM_RESTART_COUNT ] || sleep 900"


def test_a_job_sees_the_gpus_that_it_asked_for(slurm):
    job = slurm.submit("echo $CUDA_VISIBLE_DEVICES on $SLURMD_NODENAME", "--gres=gpu:k80:2")
    assert slurm.wait_state(job, "COMPLETED")["ExitCode"] == "0:0"
    assert slurm.output(job) in {"0,1 on k1\n", "0,1 on k2\n"}


def test_sbatch_reads_values_as_scripts_quote_them(slurm, tmp_path):
    folder = tmp_path / "a 'b' \"c\" $(touch ran) `touch ran` ${HOME} # 100% & *"
    (folder / "logs").mkdir(parents=True)
    python = folder / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    request = ResourceRequest(account='my $home\'s "lab" # 1', requeues=0)
    path = tmp_path / "job.sh"
    path.write_text(script(Need(request, 1, 1), "strange", str(folder), str(python)))
    job = slurm.run("sbatch", "--parsable", "--array=0-0", "--hold", str(path), "3")
    shown = slurm.run("scontrol", "show", "job", "-o", job)
    assert ' Account=my $home\'s "lab" # 1 QOS=' in shown
    slurm.run("scontrol", "release", job)
    slurm.wait_state(f"{job}_0", "COMPLETED")
    lines = (folder / "logs" / f"{job}_0.out").read_text().splitlines()
    wanted = ["-P", "-m", "steptime.sweeps.cluster.task", str(folder), "3"]
    assert lines == [f"steptime: begun {job}", "steptime: ready", *wanted]


def test_what_no_node_has_is_refused_at_once(slurm):
    said = "Batch job submission failed: Requested node configuration is not available"
    for impossible in ("--gres=gpu:k80:5", "--gres=gpu:v100:1", "--cpus-per-task=9", "--mem=1T"):
        with pytest.raises(AssertionError, match=said):
            slurm.submit("true", impossible)
    with pytest.raises(AssertionError, match="Invalid partition name specified"):
        slurm.submit("true", "--partition=nowhere")


def test_a_limit_above_the_partitions_waits_for_ever(slurm):
    job = slurm.submit("true", "--time=2:00:00")
    slurm.wait(lambda: slurm.job(job)["Reason"] != "None", "a reason")
    assert slurm.job(job)["Reason"] in {"PartitionTimeLimit", "PartitionConfig"}
    assert slurm.job(job)["JobState"] == "PENDING"


def test_an_array_runs_every_task_and_no_more_than_its_share_at_once(slurm):
    array = slurm.submit("date +%s.%N; sleep 0.3; date +%s.%N", "--array=0-19%4", "--hold")
    lines = slurm.run("squeue", "-h", "-r", "-j", str(array), "-o", "%F|%K|%T").splitlines()
    assert len(lines) == 20  # one line a task, also of those that wait
    assert {line.split("|")[0] for line in lines} == {str(array)}
    slurm.run("scontrol", "release", str(array))
    slurm.wait(slurm.quiet, "the end of the array")
    spans = [[float(when) for when in slurm.output(f"{array}_{i}").split()] for i in range(20)]
    together = max(sum(begin <= start < end for begin, end in spans) for start, _ in spans)
    assert together <= 4
    shown = slurm.run("scontrol", "show", "job", "-o", str(array)).splitlines()
    assert len(shown) == 20
    assert all(f" ArrayJobId={array} " in line for line in shown)  # JobId is each one's own


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


def test_a_more_urgent_job_takes_the_place(slurm):
    job = slurm.submit("sleep 900", "--gres=gpu:p100:4", "--no-requeue", "--nodelist=p1")
    slurm.wait_state(job, "RUNNING")
    urgent = slurm.submit("true", "--gres=gpu:p100:4", "--nodelist=p1", "--partition=urgent")
    assert slurm.wait_state(job, "PREEMPTED")["ExitCode"] in ENDED
    slurm.wait_state(urgent, "COMPLETED")
    assert "DUE TO PREEMPTION ***" in slurm.output(job)


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


def test_time_limits_are_looked_at_every_half_minute(slurm):
    # so it warns as much too early
    warned = slurm.submit(
        "trap 'echo warned; exit 0' USR1; sleep 900 & wait", "--time=1", "--signal=B:USR1@60"
    )
    late = slurm.submit("sleep 900")
    slurm.wait_state(late, "RUNNING")
    end = (datetime.now().astimezone() + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%S")
    slurm.run("scontrol", "update", f"jobid={late}", f"EndTime={end}")
    fields = slurm.wait_state(late, "TIMEOUT")
    assert fields["Reason"] == "TimeLimit"
    assert fields["ExitCode"] in ENDED
    assert "DUE TO TIME LIMIT ***" in slurm.output(late)
    slurm.wait_state(warned, "COMPLETED")
    assert "warned\n" in slurm.output(warned)


def test_a_node_without_power_is_noticed(tmp_path):
    with SlurmCluster(tmp_path / "own", {"k1": "k80"}, notice_s=5) as own:
        lost = own.submit("sleep 900", "--no-requeue")
        own.wait_state(lost, "RUNNING")
        own.node_down("k1")
        own.wait_state(lost, "NODE_FAIL")
        assert own.run("sinfo", "-h", "-n", "k1", "-p", "main", "-o", "%T") == "down*"


def test_jobs_of_a_dead_node_run_again_elsewhere_or_fail(slurm):
    again = slurm.submit(ONCE, "--gres=gpu:k80:3", "--open-mode=append")
    node = slurm.wait_state(again, "RUNNING")["NodeList"]
    never = slurm.submit("sleep 900", "--no-requeue", f"--nodelist={node}")
    slurm.wait_state(never, "RUNNING")
    slurm.node_down(node, told=True)
    fields = slurm.wait_state(never, "NODE_FAIL")
    assert (fields["Reason"], fields["ExitCode"]) == ("NodeDown", "0:0")
    assert slurm.output(never) == ""
    fields = slurm.wait_state(again, "COMPLETED")
    assert (fields["Restarts"], slurm.output(again)) == ("1", "restart none\nrestart 1\n")
    assert fields["NodeList"] != node
    slurm.node_up(node)
    slurm.wait(slurm.idle, "the node to be back")


def test_jobs_run_on_while_the_controller_is_away(slurm):
    job = slurm.submit("sleep 2; echo end")
    slurm.wait_state(job, "RUNNING")
    slurm.controller_stop()
    with pytest.raises(AssertionError, match=r"exit 1: .*Unable to contact slurm controller"):
        slurm.run("squeue", "-h")
    slurm.wait(lambda: slurm.output(job) == "end\n", "the job's end")
    slurm.controller_start()
    slurm.wait_state(job, "COMPLETED")


def test_a_stand_in_answers_for_a_command(slurm):
    assert "accounting storage is disabled" in slurm.run("sacct", check=False)
    slurm.stand_in("sacct", "12|COMPLETED|0:0")
    assert slurm.run("sacct", "-j", "12") == "12|COMPLETED|0:0"


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

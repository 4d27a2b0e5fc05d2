"""Sites with wrappers, plugins, lost answers, variables: each cell has one job, one record."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import fake_slurm
import pytest
from fake_slurm import set_state

from every import every
from printed import answer
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.records import store
from steptime.sweeps.cluster import commands, task
from steptime.sweeps.cluster import submission as files
from steptime.sweeps.cluster.commands import CommandOutput, clean_environment, error_of
from steptime.sweeps.cluster.jobs import ArrayJob, Node, SchedulerError
from steptime.sweeps.cluster.outcome import cause_of_restart, judge_cause
from steptime.sweeps.cluster.parsing import (
    parse_accounting,
    parse_gpu_types,
    parse_job_ids,
    parse_nodes,
)
from steptime.sweeps.cluster.script import find_clusters
from steptime.sweeps.experiment import check_experiment
from steptime.sweeps.resource_request import ResourceRequest

EXPERIMENT: dict[str, Any] = {
    "name": "small",
    "backend": "null",
    "threads": 1,
    "budget_s": 0.02,
    "batch": [2, 4],
    "networks": [{"family": "fc", "layers": [1, 2], "nodes": 4, "inputs": 8, "outputs": 4}],
    "slurm": {"cells_per_task": 4, "time": "30"},
}  # 4 cells: a job of one task


@pytest.fixture
def slurm(monkeypatch):
    """Return the state of a Slurm that is made up, in an environment without its variables."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(commands, "execute", fake_slurm.execute)
    return fake_slurm.reset()


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def sweep(tmp_path, out):
    path = tmp_path / "small.json"
    path.write_text(json.dumps(EXPERIMENT))
    return ["sweep", path, "--out", out, "--launcher", "slurm"]


def _run_jobs(state: fake_slurm.State, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all tasks that wait, in this process."""
    for number, job in state.jobs.items():
        monkeypatch.setenv("SLURM_ARRAY_JOB_ID", number)
        for index in range(job.tasks):
            assert task.main([str(Path(job.script).parent), str(job.first + index)]) == 0
            job.states[index] = ("COMPLETED", 0, 0)


def _with(tmp_path: Path, **changes: Any) -> None:
    table = {**EXPERIMENT, "slurm": {**EXPERIMENT["slurm"], **changes}}
    (tmp_path / "small.json").write_text(json.dumps(table))


BANNERS = [
    ("Welcome to the cluster\n", ""),
    ("", "Your project has 12 hours left\n"),
    ("*** 2 jobs ***\n\n", "see https://site/jobs\n1 of 1 sent\n"),
    ("2026\n", ""),  # a line that could be an id
    ("", "42\n"),
]


@pytest.mark.parametrize("banner", BANNERS)
def test_a_banner_around_the_id_changes_nothing(slurm, sweep, out, capsys, banner):
    slurm.banner = banner
    sent = answer(capsys, *sweep)
    assert (sent["jobs"], sent["submitted"]) == (["100"], 4)
    assert answer(capsys, "sweep", "status", out)["queued"] == 4
    assert answer(capsys, *sweep)["submitted"] == 0
    assert answer(capsys, "sweep", "cancel", out)["cancelled"] == ["100"]


@every(
    ("text", "jobs"),
    [
        ("1000\n", ["1000"]),
        ("1000;c1\n", ["1000 c1"]),
        ("hello\n 1000 \nbye 7\n", ["1000"]),
        ("Submitted batch job 17\n", ["17"]),
        ("Submitted batch job 17 on cluster c2\n", ["17 c2"]),
        ("3\n17\n17\n", ["3", "17"]),
        ("no id\n", []),
        ("", []),
    ],
)
def test_the_lines_that_name_a_job(text, jobs):
    assert [" ".join(filter(None, job)) for job in parse_job_ids(text)] == jobs


def test_an_answer_without_an_id_is_looked_up_by_name(slurm, sweep, out, capsys, monkeypatch):
    def swallow(command: list[str]) -> CommandOutput:
        output = fake_slurm.execute(command)
        return CommandOutput(0, "thanks\n", "") if command[0] == "sbatch" else output

    monkeypatch.setattr(commands, "execute", swallow)
    assert answer(capsys, *sweep)["jobs"] == ["100"]


def test_a_job_that_was_taken_though_the_socket_timed_out_is_found(slurm, sweep, out, capsys):
    slurm.unanswered = 1
    sent = answer(capsys, *sweep)
    assert (sent["jobs"], sent["submitted"]) == (["100"], 4)
    again = answer(capsys, *sweep)
    assert (again["in_flight"], again["submitted"], len(slurm.jobs)) == (4, 0, 1)


def test_a_job_that_is_taken_late_measures_nothing_once_its_cells_were_sent_again(
    slurm, sweep, out, capsys, monkeypatch
):
    """sbatch gives up, squeue shows nothing: the job comes when the cells were sent again."""

    def lose(command: list[str]) -> CommandOutput:
        if command[0] == "sbatch":
            return CommandOutput(1, "", f"{fake_slurm.TIMED_OUT}\n")
        return fake_slurm.execute(command)

    monkeypatch.setattr(commands, "execute", lose)
    assert run([*map(str, sweep)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "Socket timed out on send/recv operation; run the same sweep again" in line
    (first,) = files.read_submissions(out)
    assert answer(capsys, "sweep", "status", out)["unsent"] == 4

    monkeypatch.setattr(commands, "execute", fake_slurm.execute)
    assert answer(capsys, *sweep)["submitted"] == 4
    for array in first.arrays:  # now it is there after all
        words = ["sbatch", f"--job-name={array.name}", f"--array=0-{array.tasks - 1}%8"]
        assert fake_slurm.execute([*words, str(array.script), "0"]).exit_code == 0
    assert len(slurm.jobs) == 2
    _run_jobs(slurm, monkeypatch)
    records = store.load(out, pytest.fail)
    assert Counter(record.status for record in records) == {"ok": 4}
    assert len({record.env["cell"] for record in records}) == 4
    assert answer(capsys, "sweep", "status", out)["finished"] == 4
    assert answer(capsys, *sweep)["submitted"] == 0


def test_a_job_that_comes_between_two_looks_is_in_flight(slurm, sweep, out, capsys, monkeypatch):
    slurm.unanswered = 1
    hidden = [True]

    def late(command: list[str]) -> CommandOutput:
        output = fake_slurm.execute(command)
        is_looking = command[0] in {"squeue", "sacct"}
        return CommandOutput(0, "", "") if is_looking and hidden[0] else output

    monkeypatch.setattr(commands, "execute", late)
    assert run([*map(str, sweep)]) == 1

    def second_look(command: list[str]) -> CommandOutput:
        output = late(command)
        hidden[0] = hidden[0] and command[0] != "squeue"
        return output

    monkeypatch.setattr(commands, "execute", second_look)
    capsys.readouterr()
    again = answer(capsys, *sweep)
    assert (again["in_flight"], again["submitted"], len(slurm.jobs)) == (4, 0, 1)
    (submission,) = files.read_submissions(out)
    assert submission.read_withdrawn() == set()
    assert submission.task_jobs[0].job == ArrayJob("100")
    _run_jobs(slurm, monkeypatch)
    assert answer(capsys, "sweep", "status", out)["finished"] == 4


def test_of_two_jobs_of_one_array_one_measures(slurm, sweep, out, capsys, monkeypatch):
    """A site's wrapper that tries again has sent the array twice."""
    answer(capsys, *sweep)
    slurm.jobs["101"] = replace(slurm.jobs["100"], states=[("PENDING", 0, 0)])
    assert answer(capsys, "sweep", "status", out)["queued"] == 4
    _run_jobs(slurm, monkeypatch)
    records = store.load(out, pytest.fail)
    assert sorted(record.env["slurm"]["array"] for record in records) == ["100"] * 4
    set_state("PENDING")
    assert answer(capsys, "sweep", "cancel", out)["cancelled"] == ["100", "101"]


def test_a_task_that_starts_again_keeps_its_claim(slurm, sweep, out, tmp_path, capsys, monkeypatch):
    _with(tmp_path, cells_per_task=2)
    folder = answer(capsys, *sweep)["folder"]
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "100")
    assert task.main([folder, "0"]) == 0
    assert len(store.load(out, pytest.fail)) == 2
    (submission,) = files.read_submissions(out)
    submission.write_withdrawn([0])
    assert submission.claim_task(0, "100")
    assert not submission.claim_task(0, "101")
    assert not submission.claim_task(1, "100"), "it has not begun"


PLUGIN = """\
sbatch: Checking job limits...
sbatch: Setting account: abc123
sbatch: error: Batch job submission failed: Invalid account
sbatch: bye
"""
FILTER = """\
sbatch: error: ----------
sbatch: error: You must name an account
sbatch: error: ----------
sbatch: error: Batch job submission failed: Unspecified error
"""
OPTION = """\
sbatch: unrecognized option '--x'
Try "sbatch --help" for more information
"""


@every(
    ("stderr", "reason"),
    [
        (PLUGIN, "Batch job submission failed: Invalid account"),
        (FILTER, "You must name an account; Batch job submission failed: Unspecified error"),
        ("sbatch: fatal: no such thing", "no such thing"),
        (OPTION, "unrecognized option '--x'"),
        ("", "exit 1"),
    ],
)
def test_the_reason_is_in_the_lines_with_error(stderr, reason):
    error = error_of("sbatch", CommandOutput(1, "", stderr))
    assert isinstance(error, InputError)
    assert str(error) == f"sbatch: {reason}"


@every(
    "stderr",
    [
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
        "sbatch: error: Batch job submission failed: Unexpected message received",
        "squeue: error: Slurm backup controller in standby mode",
        "squeue: fatal: Could not establish a configuration source",
    ],
)
def test_silence_is_no_refusal(stderr):
    assert isinstance(error_of("sbatch", CommandOutput(1, "", f"{stderr}\n")), SchedulerError)


def test_a_refused_array_that_slurm_remembers_as_failed_is_refused(
    slurm, sweep, out, capsys, monkeypatch
):
    """A real controller keeps a job record, state FAILED, of an array that it refused."""

    def refuse(command: list[str]) -> CommandOutput:
        if command[0] == "sbatch":
            return CommandOutput(1, "", "sbatch: error: Batch job submission failed: No such node")
        if command[0] == "squeue":
            name = next(word for word in command if word.startswith("--name="))[7:]
            return CommandOutput(0, f"{name}|100|0|FAILED||BadConstraints\n", "")
        return fake_slurm.execute(command)

    monkeypatch.setattr(commands, "execute", refuse)
    assert run([*map(str, sweep)]) == 2
    assert "Batch job submission failed: No such node" in capsys.readouterr().err
    assert not out.exists()


def test_plugins_lines_are_not_the_reason(slurm, sweep, out, capsys):
    slurm.plugin = "sbatch: Checking job limits...\n"
    slurm.refuse = (0, "Batch job submission failed: Invalid account")
    assert run([*map(str, sweep)]) == 2
    said = "the job: sbatch: Batch job submission failed: Invalid account"
    assert capsys.readouterr().err == f"steptime: {said}\n"
    assert not out.exists()


FLAGS = [
    ("--clusters=c1", ("c1",)),
    ("--clusters c1", ("c1",)),
    ("--cluster=c1", ("c1",)),
    ("-M c1", ("c1",)),
    ("-Mc1", ("c1",)),
    ("-t 30 -M c1,c2 --mem=4G", ("c1", "c2")),
    ('--clusters="c1"', ("c1",)),
    ("--mail-type=END", ("",)),
    ("--cluster-constraint=big", ("",)),
]


@every(("flag", "clusters"), FLAGS)
def test_clusters_in_flags(flag, clusters):
    assert find_clusters(ResourceRequest(flags=[flag])) == clusters


def test_every_command_asks_the_cluster_of_the_job(slurm, sweep, out, tmp_path, capsys):
    _with(tmp_path, flags=["--clusters=c1"])
    assert answer(capsys, *sweep)["jobs"] == ["100"]
    assert answer(capsys, "sweep", "status", out)["queued"] == 4
    assert answer(capsys, *sweep)["submitted"] == 0
    assert answer(capsys, "sweep", "cancel", out)["cancelled"] == ["100"]
    assert answer(capsys, "sweep", "status", out)["failed"] == 4
    assert {words[0] for words in slurm.asked} >= {"sbatch", "squeue", "scancel", "scontrol"}
    for words in slurm.asked:
        assert ("--clusters=c1" in words) == (words[0] != "sbatch"), words


def test_a_cluster_of_the_environment_is_written_into_the_script(
    slurm, sweep, out, capsys, monkeypatch
):
    monkeypatch.setenv("SLURM_CLUSTERS", "c7")
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "5")  # the file says 30
    sent = answer(capsys, *sweep)
    assert "account = 'mine' is from SBATCH_ACCOUNT in the environment" in sent["notes"]
    script = (Path(sent["folder"]) / "job-0.sh").read_text()
    flags = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert {"#SBATCH --clusters=c7", "#SBATCH --account=mine", "#SBATCH --time=30"} <= {*flags}
    monkeypatch.delenv("SLURM_CLUSTERS")
    assert answer(capsys, "sweep", "status", out)["queued"] == 4
    monkeypatch.setenv("SLURM_CLUSTERS", "elsewhere")
    assert answer(capsys, "sweep", "status", out)["queued"] == 4


CHANGING = [
    *("SQUEUE_STATES", "SQUEUE_FORMAT", "SQUEUE_PARTITION", "SINFO_FORMAT", "SACCT_FORMAT"),
    *("SBATCH_ARRAY_INX", "SBATCH_WAIT", "SCANCEL_STATE", "SCONTROL_FUTURE"),
    *("SLURM_CLUSTERS", "SLURM_BITSTR_LEN", "SLURM_TIME_FORMAT"),
]


def test_variables_do_not_change_what_is_read(monkeypatch, tmp_path):
    changing = dict.fromkeys(CHANGING, "x")
    kept = {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SLURM_JWT": "t", "HOME": "/h"}
    assert clean_environment({**changing, **kept}) == kept
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nenv\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    assert "SQUEUE_" not in commands.read_output(["squeue"])


SINFO = """\
CLUSTER: c1
n01|gpu*|idle|gpu:a100:4(S:0-1)|x|none
n02|gpu*|inval|gpu:a100:3(S:0)|x|gres/gpu count reported lower than configured (3 < 4)
n03|gpu*|future|gpu:a100:4|x|none
n04|gpu*|mixed|gpu:a100-80gb:4|x|none
n05|gpu*|idle|gpu:4|x|none
n06|gpu*|idle~|gpu:v100:2,gpu:a100:2(S:1)|x|none
n07|gpu*|drained*|gpu:a100:4|x|fan
n08|gpu*|perfctrs|gpu:a100:4|x|none
n09|gpu*|idle$|gpu:a100:4|x|none
n10|gpu*|planned|gpu:a100:4|x|none
n11|gpu*|reserved|gpu:a100:4|x|none
n12|gpu*|allocated+drain|gpu:a100:4|x|disk
n13|gpu*|idle|(null)|x|none
n14|gpu*|idle|gpu:A100:4|x|none
n15|gpu*|idle+cloud+powered_down|gpu:a100:no_consume:4|x|none
n16|gpu*|idle+invalid_reg|gpu:a100:4|x|none
"""


def test_nodes_on_which_no_job_starts_are_left_out_with_the_reason():
    request = ResourceRequest(nodes="each", gpu="a100")
    node_list = parse_nodes(SINFO, request)
    assert node_list.nodes == (
        Node("n01"),
        Node("n02", "inval (gres/gpu count reported lower than configured (3 < 4))"),
        Node("n03", "future"),
        Node("n06"),
        Node("n07", "drained* (fan)"),
        Node("n08", "perfctrs"),
        Node("n09", "idle$"),
        Node("n10"),
        Node("n11"),
        Node("n12", "allocated+drain (disk)"),
        Node("n15"),
        Node("n16", "idle+invalid_reg"),
    )
    assert node_list.unfit == {
        "a100-80gb": ("n04",),
        "without a type": ("n05",),
        "no GPU": ("n13",),
        "A100": ("n14",),
    }


def test_another_type_of_gpu_is_said(slurm, sweep, out, tmp_path, capsys):
    _with(tmp_path, nodes="each", gpu="a100")
    slurm.nodes = {
        "n1": "idle|gpu:a100:4|x|none",
        "n2": "idle|gpu:a100-80gb:4|x|none",
        "n3": "inval|gpu:a100:3|x|a GPU is gone",
    }
    preview = answer(capsys, *sweep, "--dry-run")
    assert {row["node"] for row in preview["rows"]} == {"n1"}
    assert "gpu a100: node n2 is left out: it has a100-80gb" in preview["notes"]
    back = "the same command takes it in once it is back"
    assert f"node n3 is left out: inval (a GPU is gone); {back}" in preview["notes"]


@every(
    "time",
    [
        "30",
        "1440",
        "100000",
        "90:00",
        "2:00:00",
        "100:0:0",
        "1-12",
        "1-12:30",
        "1-12:00:00",
        "0-0",
        "UNLIMITED",
        "unlimited",
        "INFINITE",
        "",
        1440,
    ],
)
def test_all_forms_of_a_time_limit(time):
    assert ResourceRequest(time=time).time == str(time)


@every("time", ["soon", "1:2:3:4", "1-", "-1", "1-2:3:4:5", "1h", "30 ", "1:", 1.5, True])
def test_a_text_that_is_no_time_limit(time):
    with pytest.raises(InputError, match=r"slurm\.time: "):
        check_experiment({**EXPERIMENT, "slurm": {"time": time}}, "e.toml")


READY = "steptime: begun 7\nsteptime: ready\n"
HARMLESS = f"{READY}ls: /nix: No such file or directory\n"


@every(
    ("state", "output", "cause"),
    [
        ("NODE_FAIL", HARMLESS, "node-fail"),
        ("BOOT_FAIL", HARMLESS, "node-fail"),
        ("NODE_FAIL", f"{READY}CUDA out of memory\n", "node-fail"),
        ("PREEMPTED", HARMLESS, "preempted"),
        ("TIMEOUT", f"{READY}Traceback (most recent call last)\n", "time-limit"),
        ("CANCELLED", HARMLESS, "cancelled"),
        ("CANCELLED", f"{READY}error: Exceeded job memory limit\n", "killed for memory"),
        ("FAILED", HARMLESS, "missing-file"),
        ("FAILED", READY, "crashed"),
        ("COMPLETED", HARMLESS, "missing-file"),
        ("COMPLETED", READY, "vanished"),
    ],
)
def test_what_slurm_decided_counts_before_a_line_of_the_output(state, output, cause):
    exits = parse_accounting(f"welcome\n5_0|{state}|0:0\n")
    (job_exit,) = exits.values()
    assert judge_cause(job_exit, [output], has_begun=True) == cause


def test_a_job_that_completed_without_a_trace_was_not_cancelled():
    (job_exit,) = parse_accounting("5_0|COMPLETED|0:0\n").values()
    assert judge_cause(job_exit, [], has_begun=False) == "vanished"


def test_without_an_answer_the_output_tells():
    assert judge_cause(None, [HARMLESS], has_begun=True) == "missing-file"
    assert judge_cause(None, [], has_begun=True) == "vanished"
    assert judge_cause(None, [], has_begun=False) == "cancelled"


@every(
    ("output", "cause"),
    [
        (HARMLESS, "node-fail"),
        ("", "node-fail"),
        (f"{HARMLESS}*** JOB 4 ON n1 CANCELLED AT x DUE TO PREEMPTION ***", "preempted"),
        (f"{READY}Out of memory\n", "node-fail"),
    ],
)
def test_a_job_that_slurm_started_again_lost_its_node(output, cause):
    assert cause_of_restart(output) == cause


def test_a_cell_whose_node_failed_says_so_by_accounting(slurm, sweep, out, capsys):
    folder = Path(answer(capsys, *sweep)["folder"])
    for index in (0, 1):
        (folder / "logs" / f"100_{index}.out").write_text(HARMLESS)
    set_state("NODE_FAIL")
    rows = answer(capsys, "sweep", "status", out)["unsuccessful"]
    assert {row["cause"] for row in rows} == {"node-fail"}


@every(
    ("gres", "types"),
    [
        ("gpu:a100:4(S:0-1)", ["a100"]),
        ("gpu:a100:2(S:0),gpu:a100:2(S:1)", ["a100"]),
        ("gpu:a100-80gb:4,mps:400", ["a100-80gb"]),
        ("gpu:nvidia_a100_3g.20gb:2,gpu:3g.20gb:1", ["nvidia_a100_3g.20gb", "3g.20gb"]),
        ("gpu:4", ["without a type"]),
        ("gpu:no_consume:4", ["without a type"]),
        ("craynetwork:4", []),
        ("(null)", []),
    ],
)
def test_types_of_gpu_are_whole_names(gres, types):
    assert parse_gpu_types(gres) == types


class _Terminal:
    """Standard output that is a terminal."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", ["40", "200"])
def test_a_script_is_printed_as_it_is_at_any_width(
    slurm, sweep, tmp_path, capsys, monkeypatch, columns
):
    line = "export LONG='failed " + "a word " * 30 + "'"
    _with(tmp_path, run_first=[line], gpu="v100")
    (job,) = answer(capsys, *sweep, "--dry-run")["jobs"]
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", _Terminal(sys.stdout))
    assert run([*map(str, sweep), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    script = printed[printed.index("#!/bin/bash") :]
    assert line in script
    assert _without_token(script) == _without_token(job["script"])


def _without_token(script: str) -> str:
    """Return a script without the token that is drawn for each submission."""
    (token,) = set(re.findall(r"# steptime: steptime-(\w+)", script))
    return script.replace(token, "TOKEN")

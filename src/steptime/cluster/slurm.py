"""Slurm's commands: submit an array, see where tasks are, ask how they ended, cancel.

A task is known by its array's name and its place in it, so that arrays are found again though the
answer of sbatch was lost. Sites without accounting answer from the controller's own memory, which
forgets a job some minutes after its end.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from steptime.core.errors import InputError, OutsideError, shorten
from steptime.measure.procfs import number_list


class SlurmError(OutsideError):
    """Slurm does not answer: nothing is known, and nothing was changed. Exits with 1."""


LIMIT_S = 120.0
_AWAY = re.compile(r"[Uu]nable to contact|connect failure|Connection (?:refused|timed out)")
MOST_NAMES = 500  # arrays that one squeue is asked for
DEFAULT_LARGEST = 1001  # Slurm's MaxArraySize where the site does not say

WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "CONFIGURING"}
OVER = {
    "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY",
    "BOOT_FAIL", "DEADLINE", "REVOKED",
}  # fmt: skip
STATES = {  # state of a job that is over: the cause of what it left undone
    "TIMEOUT": "time-limit",
    "DEADLINE": "time-limit",
    "NODE_FAIL": "node-fail",
    "BOOT_FAIL": "node-fail",
    "PREEMPTED": "preempted",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "OUT_OF_MEMORY": "killed for memory",
    "FAILED": "crashed",
}
Task = tuple[str, int]  # name of the array, place in it


@dataclass(frozen=True)
class Queued:
    """A task that is waiting or running: its job, state, and why it waits or where it runs."""

    job: str
    state: str
    text: str

    @property
    def array(self) -> str:
        """The id of its array."""
        return self.job.partition("_")[0]

    @property
    def running(self) -> bool:
        """Whether it is on a node."""
        return self.state not in WAITING


@dataclass(frozen=True)
class Ended:
    """How a task's job ended: its state in Slurm's words, exit code and signal."""

    job: str
    state: str
    exit: int
    signal: int

    @property
    def cause(self) -> str:
        """The cause of what it left undone, "" where the state does not tell."""
        if self.state == "FAILED" and self.signal == signal.SIGKILL:
            return "killed"
        if self.state == "FAILED" and self.exit == errno.ENOSPC:
            return "no-space"
        return STATES.get(self.state, "")

    @property
    def text(self) -> str:
        """A line for people."""
        by = f", signal {self.signal}" if self.signal else ""
        return f"{self.state}, exit code {self.exit}{by}"


@dataclass(frozen=True)
class Array:
    """An array to submit: the script's argument is `first`, the number of its first task.

    At most `at_once` of its `tasks` run at a time, and none before the job `after` is over.
    """

    script: Path
    name: str
    first: int
    tasks: int
    at_once: int
    after: str = ""


def submit(array: Array) -> str:
    """Submit an array and give its job id; raises `InputError` where Slurm refuses it."""
    flags = [f"--job-name={array.name}", f"--array=0-{array.tasks - 1}%{array.at_once}"]
    if array.after:
        flags.append(f"--dependency=afterany:{array.after}")
    answer = _run(["sbatch", "--parsable", *flags, str(array.script), str(array.first)])
    found = re.match(r"(\d+)", answer.strip())
    if not found:
        raise InputError(f"sbatch: its answer is no job id: {shorten(answer)}")
    return found[1]


def largest_array() -> int:
    """Give how many tasks one array may have here."""
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", _run(["scontrol", "show", "config"]))
    return max(1, int(found[1]) if found else DEFAULT_LARGEST)


def queued(names: Collection[str]) -> dict[Task, Queued]:
    """Give the tasks of these arrays that are waiting or running."""
    found = {}
    wanted = sorted(names)
    for some in (wanted[i : i + MOST_NAMES] for i in range(0, len(wanted), MOST_NAMES)):
        which = f"--name={','.join(some)}"
        text = _run(["squeue", "--noheader", "--array", which, "--format=%j|%F|%K|%T|%N|%r"])
        for line in filter(None, text.splitlines()):
            name, job, index, state, nodes, reason = (x.strip() for x in line.split("|", 5))
            if state not in OVER and index.isdigit():
                where = nodes if nodes and state not in WAITING else reason
                found[name, int(index)] = Queued(f"{job}_{index}", state, where)
    return found


def ended(jobs: Collection[str], since: str) -> dict[tuple[str, int], Ended]:
    """Give how tasks of these arrays ended, by job id and place, as far as Slurm remembers.

    `since`, the time of the first submission, keeps accounting from answering with older jobs
    whose numbers have come round again.
    """
    found: dict[tuple[str, int], Ended] = {}
    if not jobs:
        return found
    if shutil.which("sacct"):
        wanted = [
            "--format=JobID,State,ExitCode",
            f"--starttime={since}",
            f"--jobs={','.join(jobs)}",
        ]
        answer = _tried(["sacct", "--noheader", "--allocations", "--parsable2", *wanted])
        found |= dict(_of_accounting(answer))
    for job in jobs:
        for key, one in _of_controller(_tried(["scontrol", "show", "job", "--oneliner", job])):
            found.setdefault(key, one)
    return found


def _of_accounting(text: str) -> Iterator[tuple[tuple[str, int], Ended]]:
    for line in text.splitlines():
        name, state, code = line.split("|")
        yield from _ended(name, state.split()[0], code)


def _of_controller(text: str) -> Iterator[tuple[tuple[str, int], Ended]]:
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if "ArrayTaskId" in fields and "JobState" in fields:
            name = f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}"
            yield from _ended(name, fields["JobState"], fields.get("ExitCode", "0:0"))


def _ended(name: str, state: str, code: str) -> Iterator[tuple[tuple[str, int], Ended]]:
    """Give the tasks of `12_3` or of a range that never ran, `12_[3-5,7%2]`."""
    found = re.fullmatch(r"(\d+)_\[?([\d,-]+)(?:%\d+)?\]?", name)
    if not found or state not in OVER:
        return
    exit_code, number = (int(part) for part in code.split(":"))
    for index in number_list(found[2]):
        yield (found[1], index), Ended(f"{found[1]}_{index}", state, exit_code, number)


def cancel(jobs: Sequence[str]) -> None:
    """Cancel arrays by their job ids."""
    _run(["scancel", *jobs])


def confine() -> None:
    """Bind this process to the CPUs of its job, where Slurm has given them and binds nobody.

    Without this, tasks of one node would bind their workers to the same cores. Where Slurm does not
    tell, or its numbers are none of this machine's, nothing is changed.
    """
    job, node, count = (
        os.environ.get(name, "")
        for name in ("SLURM_JOB_ID", "SLURMD_NODENAME", "SLURM_CPUS_ON_NODE")
    )
    if not (job and node and count.isdigit()) or not hasattr(os, "sched_getaffinity"):
        return
    allowed = os.sched_getaffinity(0)
    if len(allowed) <= int(count):
        return
    given = cpus_of(_tried(["scontrol", "show", "job", "--details", "--oneliner", job]), node)
    if given and given <= allowed:
        os.sched_setaffinity(0, given)


def cpus_of(details: str, node: str) -> set[int]:
    """Give the CPUs that `scontrol show job --details` says a job has on a node."""
    for nodes, cpus in re.findall(r"\bNodes=(\S+) CPU_IDs=([\d,-]+)", details):
        if node in nodes_of(nodes):
            return set(number_list(cpus))
    return set()


def nodes_of(text: str) -> set[str]:
    """Give the names of a list of nodes: `gpu[03-05,9],login` is gpu03 to gpu05, gpu9, login."""
    found = set()
    for prefix, ranges, suffix in re.findall(r"([^,\[\]]+)(?:\[([\d,-]+)\])?([^,\[\]]*)", text):
        if not ranges:
            found.add(prefix)
        for part in filter(None, ranges.split(",")):
            width = len(part.partition("-")[0])
            found |= {f"{prefix}{number:0{width}}{suffix}" for number in number_list(part)}
    return found


def _tried(command: Sequence[str]) -> str:
    """Give what a command says, "" where the scheduler has forgotten or keeps no accounts."""
    with suppress(InputError, SlurmError):
        return _run(command)
    return ""


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except FileNotFoundError:
        raise InputError(
            f"{command[0]} is not here: Slurm's commands must be on the PATH"
        ) from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]}: Slurm did not answer within {LIMIT_S:g} s") from None
    if done.returncode == 0:
        return done.stdout
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    text = re.sub(r"^(\w+: )?(error: )?", "", said[0]) if said else f"exit {done.returncode}"
    kind = SlurmError if any(map(_AWAY.search, said)) else InputError
    raise kind(f"{command[0]}: {text}")

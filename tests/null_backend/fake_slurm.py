"""Slurm's commands, made up: their jobs wait until a test moves them.

They behave as a real Slurm was seen to (tests/sweeps/cluster/test_slurm.py holds both to the same).
In a test `execute` stands for `steptime.sweeps.cluster.commands.execute`, with its state in memory.
As programs (`install_commands`) they keep their state in a file: `fake_slurm.py FILE sbatch ...`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

FIRST_JOB = 100
GONE = "GONE"  # cancelled while it waited: no trace
LIVE = ("PENDING", "RUNNING")
COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "sinfo", "scancel")
IDLE = "idle|(null)|(null)|none"
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
ENDED = [
    "COMPLETED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "CANCELLED",
    "OUT_OF_MEMORY",
    "DEADLINE",
]
HEADERS = (" ", "some site: welcome", "|")  # lines that a site's wrapper prints


class Answer(NamedTuple):
    """The answer of a command: its exit code and both its outputs."""

    code: int
    out: str = ""
    error: str = ""


@dataclass
class Job:
    """The job of an array, with the state, exit code and signal of each of its tasks."""

    name: str
    script: str
    first: int
    tasks: int
    at_once: int
    after: str
    cluster: str
    states: list[tuple[str, int, int]]


@dataclass
class State:
    """What Slurm knows, and how it answers.

    `refuse` is the answer to every array after the first so many, `forgotten` a Slurm that
    remembers no job that is over, `away` one that does not answer. `banner` stands around the
    answer of sbatch, `plugin` before its errors. Every `unanswered`-th array is taken, and the
    command says that its socket timed out.
    """

    jobs: dict[str, Job] = field(default_factory=dict)
    refuse: tuple[int, str] | None = None
    forgotten: bool = False
    away: str = ""
    banner: tuple[str, str] = ("", "")
    plugin: str = ""
    unanswered: int = 0
    nodes: dict[str, str] = field(default_factory=lambda: {"n1": IDLE, "n2": IDLE, "n3": IDLE})
    asked: list[list[str]] = field(default_factory=list)

    def answer(self, words: Sequence[str]) -> Answer:
        """Return the answer to a command."""
        self.asked.append(list(words))
        if self.away:
            error = f"Unable to contact slurm controller ({self.away})"
            return Answer(1, "", f"{words[0]}: error: {error}\n")
        answer: Answer = getattr(self, f"_{words[0]}")(_options(words), list(words[1:]))
        return answer

    def _sbatch(self, options: dict[str, str], words: list[str]) -> Answer:
        script = Path(words[-2])
        text = script.read_text()
        error = ""
        if "partition=nowhere" in text:
            error = "invalid partition specified: nowhere"
        if self.refuse and len(self.jobs) >= self.refuse[0]:
            error = self.refuse[1]
        if error:
            return Answer(1, "", f"{self.plugin}sbatch: error: {error}\n")
        size, _, at_once = options["array"].removeprefix("0-").partition("%")
        cluster = re.search(r"^#SBATCH --clusters=(\S+)", text, re.MULTILINE)
        tasks = int(size) + 1
        number = str(FIRST_JOB + len(self.jobs))
        self.jobs[number] = Job(
            name=options["job-name"],
            script=str(script),
            first=int(words[-1]),
            tasks=tasks,
            at_once=int(at_once),
            after=options.get("dependency", "").rpartition(":")[2],
            cluster=cluster[1] if cluster else "",
            states=[("PENDING", 0, 0)] * tasks,
        )
        if self.unanswered and len(self.jobs) % self.unanswered == 0:
            return Answer(1, "", f"{TIMED_OUT}\n")
        identity = number + (f";{cluster[1]}" if cluster else "")
        return Answer(0, f"{self.banner[0]}{identity}\n{self.banner[1]}")

    def _squeue(self, options: dict[str, str], _: list[str]) -> Answer:
        lines = []
        for number, job in self._named(options):
            for index, task in enumerate(job.states):
                state = task[0]
                node = "n1" if state == "RUNNING" else ""
                row = [job.name, number, str(index), state, node, "Resources"]
                if state != GONE and not (self.forgotten and state not in LIVE):
                    lines.append("|".join(row))
        return Answer(0, "".join(f"{line}\n" for line in [*HEADERS, *lines]))

    def _sacct(self, options: dict[str, str], _: list[str]) -> Answer:
        numbers = options["jobs"].split(",")
        lines = []
        for number, job in self._of(options):
            for index, (state, code, signal_number) in enumerate(job.states):
                if number in numbers and state in ENDED and not self.forgotten:
                    lines.append(f"{number}_{index}|{state}|{code}:{signal_number}")
        return Answer(0, "".join(f"{line}\n" for line in [*HEADERS, *lines]))

    def _scontrol(self, _: dict[str, str], words: list[str]) -> Answer:
        if "config" in words:
            return Answer(0, "welcome\nMaxArraySize            = 1001\n")
        lines = []
        job = self.jobs.get(words[-1])
        if job is None or self.forgotten:
            return Answer(1, "", "slurm_load_jobs error: Invalid job id specified\n")
        for index, (state, code, number) in enumerate(job.states):
            if state != GONE:
                place = f"ArrayJobId={words[-1]} ArrayTaskId={index}"
                lines.append(f"JobId=9 {place} JobState={state} ExitCode={code}:{number}\n")
        return Answer(0, "".join(lines))

    def _sinfo(self, options: dict[str, str], _: list[str]) -> Answer:
        wanted = options.get("nodes", "")
        names = wanted.split(",") if wanted else list(self.nodes)
        rows = [f"{name}|main*|{self.nodes[name]}\n" for name in names if name in self.nodes]
        return Answer(0, "".join(rows))

    def _scancel(self, options: dict[str, str], words: list[str]) -> Answer:
        for number in words:
            job = self.jobs.get(number)
            if job is None or job.cluster != options.get("clusters", ""):
                continue
            for index, (state, *_) in enumerate(job.states):
                if state in LIVE:
                    cancelled = ("CANCELLED", 0, int(signal.SIGTERM))
                    job.states[index] = cancelled if state == "RUNNING" else (GONE, 0, 0)
        return Answer(0)

    def _of(self, options: dict[str, str]) -> list[tuple[str, Job]]:
        """Return the jobs of the cluster that is asked."""
        cluster = options.get("clusters", "")
        return [(number, job) for number, job in self.jobs.items() if job.cluster == cluster]

    def _named(self, options: dict[str, str]) -> list[tuple[str, Job]]:
        names = options.get("name", "").split(",")
        return [(number, job) for number, job in self._of(options) if job.name in names]


def _options(words: Sequence[str]) -> dict[str, str]:
    pairs = (word[2:].partition("=") for word in words if word.startswith("--"))
    return {name: value for name, _, value in pairs}


STATE = State()


def reset() -> State:
    """Forget everything, and return the state of a new Slurm."""
    STATE.__init__()  # type: ignore[misc]
    return STATE


def execute(command: Sequence[str]) -> Any:
    """Return the output of a command, as `steptime.sweeps.cluster.commands.execute` does."""
    from steptime.sweeps.cluster.commands import CommandOutput

    return CommandOutput(*STATE.answer(command))


def set_state(state: str, job: str | None = None, task: int | None = None, code: int = 0) -> None:
    """Bring tasks into a state: all, those of one array, or one of them."""
    for number, table in STATE.jobs.items():
        if job in {None, number}:
            for index in range(table.tasks) if task is None else [task]:
                table.states[index] = (state, code, 0)


def run() -> None:
    """Run what waits and waits for nothing, one task after the other."""
    for number, job in STATE.jobs.items():
        for index, (state, *_) in enumerate(job.states):
            if state == "PENDING":
                code = run_task(number, job, index)
                job.states[index] = ("FAILED" if code else "COMPLETED", code, 0)


def run_task(number: str, job: Job, index: int) -> int:
    """Run the batch script of a task as Slurm would, and return its exit code."""
    script = Path(job.script)
    node = re.search(r"--nodelist=(\w+)", script.read_text())
    env = {
        **os.environ,
        "SLURM_JOB_ID": number,
        "SLURM_ARRAY_JOB_ID": number,
        "SLURM_ARRAY_TASK_ID": str(index),
    }
    env |= {"SLURMD_NODENAME": node[1]} if node else {}
    log = script.parent / "logs" / f"{number}_{index}.out"
    with log.open("ab") as output:
        words = ["bash", str(script), str(job.first)]
        return subprocess.run(words, env=env, stdout=output, stderr=output, check=False).returncode


def load(file: Path) -> State:
    """Return the state that programs keep in a file."""
    table = json.loads(file.read_text()) if file.exists() and file.stat().st_size else {}
    jobs = {
        number: Job(**{**job, "states": [tuple(state) for state in job["states"]]})
        for number, job in table.pop("jobs", {}).items()
    }
    return State(jobs=jobs, **table)


def save(state: State, file: Path) -> None:
    """Replace the file of a state, whole or not at all."""
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(asdict(state)))
    part.replace(file)


def install_commands(folder: Path, state: State) -> Path:
    """Write programs that answer as `state` does; return their state's file."""
    file = folder / "state.json"
    (folder / "bin").mkdir(parents=True)
    save(state, file)
    for name in COMMANDS:
        path = folder / "bin" / name
        line = f'exec {sys.executable} -ISs {Path(__file__).resolve()} {file} {name} "$@"'
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    return file


def main(arguments: Sequence[str]) -> int:
    """Answer as one of the programs."""
    file, *words = arguments
    with Path(file).with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = load(Path(file))
        answer = state.answer(words)
        save(state, Path(file))
    sys.stdout.write(answer.out)
    sys.stderr.write(answer.error)
    return answer.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The contract of schedulers: what a sweep asks of one, in words that none of them owns.

A scheduler is a file with a `Scheduler`, and a row of `SCHEDULERS`. A task is known by its array's
name and its place in it, so that arrays are found again though the answer to a submission was lost.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from steptime.core import registry
from steptime.core.errors import OutsideError

if TYPE_CHECKING:  # the command line imports this file, and must not wait for pydantic
    from steptime.sweeps.resource_request import ResourceRequest

TaskName = tuple[str, int]  # name of the array, place in it
TaskJob = tuple[str, int]  # id of the array's job, place in it
FOR_MEMORY = "killed for memory"  # a cause that is oom for the cell in flight alone
BEGUN = "steptime: begun"
READY = "steptime: ready"
NO_MODULE = "steptime: cannot load module"
RUN_FIRST_FAILED = "steptime: a line of run_first failed"


class SchedulerError(OutsideError):
    """The scheduler does not answer: nothing is known, nothing was changed. Exits with 1."""


@dataclass(frozen=True)
class Need:
    """What all cells of a job need alike: resources, the processes of a cell, cores of each.

    On several nodes the scheduler's own launcher starts the processes, else the first the others.
    `code` is what its native networks run, which the batch script says and no file of cells.
    """

    request: ResourceRequest
    replicas: int
    cores: int
    code: str = ""

    @property
    def nodes(self) -> int:
        """Nodes of one cell."""
        return -(-self.replicas // (self.request.replicas_per_node or self.replicas))

    @property
    def processes_per_node(self) -> int:
        """Processes of one cell on one node, a GPU each where there are GPUs."""
        return -(-self.replicas // self.nodes)

    @property
    def text(self) -> str:
        """What tells this job from the others, for people."""
        of = self.request
        words = {"name": of.name, "gpu": of.gpu[0], "partition": of.partition}
        return ", ".join(f"{key} {value}" for key, value in words.items() if value) or "the job"


@dataclass(frozen=True)
class JobArray:
    """An array to submit: the script's argument is `first`, the number of its first task.

    At most `at_once` of its `tasks` run at a time, and none before the job `after` is over.
    """

    script: Path
    name: str
    first: int
    tasks: int
    at_once: int
    after: str = ""


@dataclass(frozen=True)
class Queued:
    """A task that waits or runs: its job and array, its state, why it waits or where it runs."""

    job: str
    array: str
    state: str
    text: str
    running: bool


@dataclass(frozen=True)
class Node:
    """A node that has what a request asks for; `trouble` says why no job starts there now."""

    name: str
    trouble: str = ""


@dataclass(frozen=True)
class JobExit:
    """How a task's job ended: its state in the scheduler's words, exit code and signal.

    `cause` is that of what it left undone, "" where the scheduler does not tell.
    """

    job: str
    state: str
    exit: int
    signal: int
    cause: str

    @property
    def text(self) -> str:
        """A line for people."""
        by = f", signal {self.signal}" if self.signal else ""
        return f"{self.state}, exit code {self.exit}{by}"


@dataclass(frozen=True)
class Placement:
    """Where a scheduler put this process, and how often it started the job again before."""

    restarts: int
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Scheduler:
    """One scheduler.

    `submit` sends an array and returns its job's id; it raises `InputError` where the array is
    refused. `queued` tells which tasks of some arrays wait or run; `ended` how tasks ended, as far
    as is remembered, asked with the local time of the first submission; `cancel` ends jobs.
    `limits` is how many tasks one array may have. All but `ended` raise `SchedulerError` where
    nobody answers. `script` is the text of a job: need, name, folder, interpreter. Tasks call
    `placement` and `confine` (to the CPUs of the job). `nodes` are those that have what a request
    asks for. `printed` are patterns of what is printed
    into the output of a job that the scheduler ends, each with its cause.
    """

    name: str
    submit: Callable[[JobArray], str]
    queued: Callable[[Collection[str]], dict[TaskName, Queued]]
    ended: Callable[[Collection[TaskJob], str], dict[TaskJob, JobExit]]
    cancel: Callable[[Sequence[str]], None]
    script: Callable[[Need, str, str, str], str]
    limits: Callable[[], int]
    placement: Callable[[], Placement]
    confine: Callable[[], None]
    nodes: Callable[[ResourceRequest], Sequence[Node]]
    printed: tuple[tuple[str, str], ...] = ()


def script_text(
    need: Need,
    name: str,
    folder: str,
    python: str,
    flags: Iterable[str],
    job: str,
    index: str,
    launcher: str,
) -> str:
    """Return the text of the batch script of array `name`.

    Its argument is the number of the array's first task. `folder` holds what was submitted. What a
    scheduler says of itself: the lines of its `flags`, its variables for the job's id and for the
    place in the array, and the launcher that starts the processes of a cell on several nodes.
    """
    task = shlex.join((python, "-P", "-m", "steptime.sweeps.cluster.task", folder))
    request = need.request
    lines = [
        "#!/bin/bash",
        f"# steptime: {name}",
        *flags,
        f'echo "{BEGUN} ${job}"',
        *(
            _or_end(f"module load {shlex.quote(module)}", f"{NO_MODULE} {module}")
            for module in request.modules
        ),
        *(_or_end(f"{{ {line}\n}}", f"{RUN_FIRST_FAILED}: {line}") for line in request.run_first),
        f'echo "{READY}"',
        f'exec {f"{launcher} " if need.nodes > 1 else ""}{task} "$(($1 + {index}))"'
        + (f" {shlex.quote(need.code)}" if need.code else ""),
    ]
    return "\n".join(lines) + "\n"


def _or_end(line: str, otherwise: str) -> str:
    return f"{line} || {{ echo {shlex.quote(otherwise)} >&2; exit 1; }}"


SCHEDULERS = {
    "slurm": "steptime.sweeps.cluster.slurm:SCHEDULER",
}
ROOM = "schedulers"  # of entry points, by which other packages add rows


def scheduler_of(name: str) -> Scheduler:
    """Return the scheduler of a row of `SCHEDULERS`; raises `InputError` for another name."""
    row: Scheduler = registry.resolve(SCHEDULERS, ROOM, "scheduler", name)
    return row

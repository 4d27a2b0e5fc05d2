"""Jobs of a cluster: what a job needs, what is submitted, and what Slurm says of it.

A task is known by the name of its array and its place in it, so that an array is found again
although the answer to its submission was lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from steptime.core.errors import OutsideError

if TYPE_CHECKING:  # the command line imports this file, and must not wait for pydantic
    from steptime.sweeps.resource_request import ResourceRequest

FOR_MEMORY = "killed for memory"  # a cause that is oom for the cell in flight alone
BEGUN = "steptime: begun"
READY = "steptime: ready"
NO_MODULE = "steptime: cannot load module"
RUN_FIRST_FAILED = "steptime: a line of run_first failed"
LOCAL_CLUSTER: tuple[str, ...] = ("",)  # the cluster that Slurm's commands ask where none is named


class SchedulerError(OutsideError):
    """Slurm does not answer: nothing is known, nothing was changed. Exits with 1."""


class TaskName(NamedTuple):
    """A task by the name of its array and its place in it."""

    array: str
    position: int


class ArrayJob(NamedTuple):
    """The job of an array: its number, and its cluster ("" for the one of this machine)."""

    number: str
    cluster: str = ""


class TaskJob(NamedTuple):
    """A task by the job of its array and its place in it."""

    job: ArrayJob
    position: int

    @property
    def text(self) -> str:
        """The name of the task in Slurm's words, such as `12_3`."""
        return f"{self.job.number}_{self.position}"


@dataclass(frozen=True)
class Need:
    """What all cells of a job need alike: resources, the processes of a cell, cores of each.

    On several nodes `srun` starts the processes, else the first process starts the others. `code`
    is the source of native networks, which the batch script names and no file of cells.
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
        """The words that tell this job from others: `gpu v100, partition gpu`."""
        request = self.request
        words = {"name": request.name, "gpu": request.gpu[0], "partition": request.partition}
        return ", ".join(f"{key} {value}" for key, value in words.items() if value) or "the job"


@dataclass(frozen=True)
class JobArray:
    """An array to submit: the script's argument is `first`, the number of its first task.

    At most `max_running` of its `tasks` run at a time, and none before the job `after` is over.
    """

    script: Path
    name: str
    first: int
    tasks: int
    max_running: int
    after: str = ""


@dataclass(frozen=True)
class QueuedTask:
    """A task that waits or runs: its job, its state, and why it waits or where it runs."""

    task: TaskJob
    state: str
    text: str
    is_running: bool


@dataclass(frozen=True)
class Node:
    """A node that has what a request asks for; `trouble` says why no job starts there now."""

    name: str
    trouble: str = ""


@dataclass(frozen=True)
class NodeList:
    """The nodes of a request, and by type of GPU the nodes that have another type only."""

    nodes: tuple[Node, ...]
    unfit: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class JobExit:
    """How a task's job ended: its state in Slurm's words, exit code and signal.

    `cause` is the cause of its missing records, "" where Slurm does not tell.
    """

    task: TaskJob
    state: str
    exit_code: int
    signal: int
    cause: str

    @property
    def text(self) -> str:
        """A line for people: `FAILED, exit code 0, signal 9`."""
        signal = f", signal {self.signal}" if self.signal else ""
        return f"{self.state}, exit code {self.exit_code}{signal}"


@dataclass(frozen=True)
class Placement:
    """Where Slurm put this process, and how often it started the job again before."""

    restarts: int
    facts: Mapping[str, str]

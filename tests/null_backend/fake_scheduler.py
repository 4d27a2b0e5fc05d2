"""A scheduler that is made up: a row of `SCHEDULERS` whose jobs wait until a test moves them.

It behaves as Slurm was seen to (tests/sweeps/cluster/test_scheduler.py holds both to one contract).
`run` starts what waits, as batch scripts in Bash; `set_state` only says so. `refuse` is what every
array after the first so many is answered, `forgotten` a controller that remembers no job, `away`
none at all.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from steptime.core.errors import InputError
from steptime.sweeps.cluster.scheduler import (
    JobArray,
    JobExit,
    Need,
    Node,
    Placement,
    Queued,
    Scheduler,
    SchedulerError,
    TaskJob,
    TaskName,
    script_text,
)
from steptime.sweeps.cluster.slurm import OVER, PRINTED, cause_of_exit
from steptime.sweeps.resource_request import ResourceRequest

FIRST_JOB = 100
GONE = "GONE"  # cancelled while it waited: no trace


@dataclass
class State:
    """What the scheduler knows: every array by its job's id, and how it answers."""

    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    refuse: tuple[int, str] | None = None
    forgotten: bool = False
    away: str = ""
    nodes: dict[str, str] = field(default_factory=lambda: {"n1": "", "n2": "", "n3": ""})
    asked: list[str] = field(default_factory=list)


STATE = State()


def reset() -> State:
    """Forget everything, and return the state of a new scheduler."""
    STATE.__init__()  # type: ignore[misc]
    return STATE


def set_state(state: str, job: str | None = None, task: int | None = None, code: int = 0) -> None:
    """Bring tasks into a state: all, those of one array, or one of them."""
    for number, table in STATE.jobs.items():
        if job in {None, number}:
            states = table["states"]
            for index in range(len(states)) if task is None else [task]:
                states[index] = (state, code, 0)


def run() -> None:
    """Run what waits and waits for nothing, one task after the other."""
    for job, table in STATE.jobs.items():
        for index, (state, *_) in enumerate(table["states"]):
            if state == "PENDING":
                node = re.search(r" node=(\w+)", table["array"].script.read_text())
                env = {**os.environ, "FAKE_JOB": job, "FAKE_INDEX": str(index)}
                env |= {"FAKE_NODE": node[1]} if node else {}
                words = ["bash", str(table["array"].script), str(table["array"].first)]
                code = subprocess.run(words, env=env, check=False).returncode
                table["states"][index] = ("FAILED" if code else "COMPLETED", code, 0)


def _ask(what: str) -> None:
    STATE.asked.append(what)
    if STATE.away:
        raise SchedulerError(f"fake: {STATE.away}")


def submit(array: JobArray) -> str:
    _ask("submit")
    if "partition=nowhere" in array.script.read_text():
        raise InputError("fake: invalid partition specified: nowhere")
    if STATE.refuse and len(STATE.jobs) >= STATE.refuse[0]:
        raise InputError(f"fake: {STATE.refuse[1]}")
    job = str(FIRST_JOB + len(STATE.jobs))
    STATE.jobs[job] = {"array": array, "states": [("PENDING", 0, 0)] * array.tasks}
    return job


def queued(names: Collection[str]) -> dict[TaskName, Queued]:
    _ask("queued")
    return {
        (table["array"].name, i): Queued(
            f"{job}_{i}",
            job,
            state,
            "n1" if state == "RUNNING" else "Resources",
            state == "RUNNING",
        )
        for job, table in STATE.jobs.items()
        for i, (state, *_) in enumerate(table["states"])
        if table["array"].name in names and state in {"PENDING", "RUNNING"}
    }


def ended(tasks: Collection[TaskJob], since: str) -> dict[TaskJob, JobExit]:
    STATE.asked.append(f"ended {since}")
    return {
        (job, i): JobExit(f"{job}_{i}", state, code, number, cause_of_exit(state, code, number))
        for job, table in STATE.jobs.items()
        for i, (state, code, number) in enumerate(table["states"])
        if (job, i) in tasks and state in OVER and not STATE.forgotten
    }


def cancel(jobs: Sequence[str]) -> None:
    _ask("cancel")
    for job in jobs:
        states = STATE.jobs[job]["states"]
        for i, (state, *_) in enumerate(states):
            if state in {"PENDING", "RUNNING"}:
                cancelled = ("CANCELLED", 0, int(signal.SIGTERM))
                states[i] = cancelled if state == "RUNNING" else (GONE, 0, 0)


def script(need: Need, name: str, folder: str, python: str) -> str:
    request = need.request
    flags = [f"#FAKE nodes={need.nodes} partition={request.partition} node={request.node}"]
    return script_text(need, name, folder, python, flags, "FAKE_JOB", "FAKE_INDEX", "fakerun")


def limits() -> int:
    _ask("limits")
    return 1001


def placement() -> Placement:
    names = {"node": "FAKE_NODE", "restart": "FAKE_RESTARTS"}
    facts = {key: os.environ[name] for key, name in names.items() if name in os.environ}
    return Placement(int(facts.get("restart", "0")), facts)


def confine() -> None:
    """Leave this process where it is."""


def nodes(request: ResourceRequest) -> list[Node]:
    names = request.nodelist.split(",") if request.nodelist else list(STATE.nodes)
    return [Node(name, STATE.nodes[name]) for name in names if name in STATE.nodes]


SCHEDULER = Scheduler(
    "fake", submit, queued, ended, cancel, script, limits, placement, confine, nodes, PRINTED
)

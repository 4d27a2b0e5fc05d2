"""Where the cells of a folder stand, what became of them, and why; collect and cancel.

Everything is found again from the folder and the scheduler, so the process that submitted may end,
and another may ask, resume or cancel.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steptime.core.causes import again
from steptime.core.table import picked
from steptime.measure.launch import Failure
from steptime.records import store
from steptime.records.record import DONE, Record
from steptime.sweeps.cells import Trial
from steptime.sweeps.cluster import submission as files
from steptime.sweeps.cluster.outcome import failure_record, failures_of
from steptime.sweeps.cluster.scheduler import JobExit, Queued, TaskJob, TaskName, scheduler_of
from steptime.sweeps.cluster.submission import Submission, Task

NODE_FAIL = "node-fail"
WORDS = ("queued", "running", "done", "failed", "unsent")
Warn = Callable[[str], None]


@dataclass(frozen=True)
class CellState:
    """Where one trial stands: one of `WORDS`, and what is known of it.

    `failed` without a record means that its job is over; `unsent` that no scheduler took it.
    """

    trial: Trial
    submission: Submission
    task: Task
    word: str
    record: Record | None = None
    queued: Queued | None = None


@dataclass(frozen=True)
class Snapshot:
    """What one look at a folder and at the scheduler shows: where trials stand, and all records."""

    states: tuple[CellState, ...]
    records: tuple[Record, ...]

    @property
    def lost(self) -> list[CellState]:
        """The trials whose job is over and that have no record."""
        return [one for one in self.states if one.word == "failed" and one.record is None]


def snapshot(out: Path, warn: Warn) -> Snapshot:
    """Return where every trial stands that was ever submitted from `out`, its last time."""
    every = files.submissions(out)
    live = _queued(every)  # before the records: a task that ends meanwhile has them
    records = store.load(out, warn, required=False)
    own = {
        (record.env["submission"], record.env["cell"]): record
        for record in records
        if "submission" in record.env and not record.env.get("again")  # else a later start decides
    }
    states: dict[str, CellState] = {}
    for submission in every:
        for task in submission.tasks:
            queued = live.get(submission.names[task.number])
            began = submission.begun(task.number) if queued and queued.running else []
            for trial in task.trials:
                record = own.get((submission.folder.name, trial.id))
                if record:
                    word = "done" if record.status in DONE else "failed"
                elif queued:
                    word = "running" if began[-1:] == [trial.id] else "queued"
                else:
                    word = "failed" if task.number in submission.sent else "unsent"
                states[trial.id] = CellState(trial, submission, task, word, record, queued)
    return Snapshot(tuple(states.values()), tuple(records))


def _queued(every: Sequence[Submission]) -> dict[TaskName, Queued]:
    """Return the tasks of these submissions that wait or run, asking once."""
    if not every:
        return {}
    names = [array.name for one in every for array in one.arrays]
    return scheduler_of(every[0].scheduler).queued(names)


def collect(out: Path, warn: Warn, seen: Snapshot | None = None) -> list[Record]:
    """Write a record of every trial whose job is over without one, and return these records."""
    seen = seen or snapshot(out, warn)
    why = _failures(seen.lost)
    made = []
    for one in seen.lost:
        record = failure_record(one.trial, one.submission.how, why[one.trial.id])
        made.append(replace(record, env={**record.env, "submission": one.submission.folder.name}))
    with store.open_writer(out) as writer:
        writer.append_all(made)
    return made


def _failures(states: Iterable[CellState]) -> dict[str, Failure]:
    """Return why each lost trial has no record, by its id, asking the scheduler once."""
    lost = list(states)
    tasks = {(one.submission.folder, one.task.number): one.submission for one in lost}
    exits: Mapping[TaskJob, JobExit] = {}
    if tasks:
        every = list(tasks.values())
        jobs = [one.sent[number] for (_, number), one in tasks.items()]
        since = min(one.sent_at for one in every).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
        exits = scheduler_of(every[0].scheduler).ended(jobs, since)
    ends = {
        (folder, number): failures_of(one, number, exits.get(one.sent[number]))
        for (folder, number), one in tasks.items()
    }
    return {one.trial.id: ends[one.submission.folder, one.task.number](one.trial) for one in lost}


def cancel(out: Path) -> list[str]:
    """Cancel every array of this folder that waits or runs, and return the job ids."""
    every = files.submissions(out)
    jobs = list(dict.fromkeys(one.array for one in _queued(every).values()))
    if jobs:
        scheduler_of(every[0].scheduler).cancel(jobs)
    return jobs


def status(out: Path, warn: Warn) -> dict[str, Any]:
    """Return how many cells of this folder stand where, and why those that failed did, as JSON.

    Counted are the cells of the experiment as it was submitted last; `older` is how many more there
    are of what it was before.
    """
    seen = snapshot(out, warn)
    wanted = files.wanted(out)
    states = [one for one in seen.states if wanted is None or one.trial.id in wanted]
    lost = _failures(one for one in seen.lost if wanted is None or one.trial.id in wanted)
    over = []
    for one in states:
        if one.word in {"done", "failed"}:
            end = one.record or lost[one.trial.id]
            why = picked(end, "status cause note") | {"again": again(end.status, end.cause)}
            over.append(files.row_of(one.trial) | why)
    troubles = [row for row in over if row["status"] != "ok"]
    words = Counter(one.word for one in states)
    left: Counter[tuple[str, str, str]] = Counter()  # cells of the tasks that wait or run
    for one in seen.states:
        if one.queued:
            key = one.queued.job, one.queued.state, one.queued.text
            left[key] += one.word in {"queued", "running"}
    return {
        "out": str(out),
        "cells": len(states),
        **{word: words[word] for word in WORDS},
        "older": len(seen.states) - len(states),
        "status": dict(Counter(row["status"] for row in over)),
        "causes": dict(Counter(row["cause"] for row in troubles)),
        "jobs": [
            {"job": job, "state": state, "text": text, "cells_left": cells}
            for (job, state, text), cells in left.items()
        ],
        "unsuccessful": troubles,
    }

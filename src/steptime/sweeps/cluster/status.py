"""Where the cells of a folder stand, what became of them, and why; collect and cancel.

Everything is found again from the folder and the scheduler, so the process that submitted may end,
and another may ask, resume or cancel.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from steptime.measure.launch import Failure
from steptime.records import store
from steptime.records.record import DONE, Record
from steptime.sweeps.cells import Trial
from steptime.sweeps.cluster import submission as files
from steptime.sweeps.cluster.outcome import failure_record, failures_of
from steptime.sweeps.cluster.scheduler import JobExit, Queued, TaskJob, TaskName, scheduler_of
from steptime.sweeps.cluster.submission import Submission, Task

NODE_FAIL = "node-fail"
WORDS = ("queued", "running", "finished", "failed", "unsent")
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
                    word = "finished" if record.status in DONE else "failed"
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
    why = failures_of_lost(seen.lost)
    made = []
    for one in seen.lost:
        record = failure_record(one.trial, one.submission.how, why[one.trial.id])
        made.append(replace(record, env={**record.env, "submission": one.submission.folder.name}))
    with store.open_writer(out) as writer:
        writer.append_all(made)
    return made


def failures_of_lost(states: Iterable[CellState]) -> dict[str, Failure]:
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

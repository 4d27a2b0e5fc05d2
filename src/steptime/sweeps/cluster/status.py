"""Where the cells of a folder stand, and why; collect and cancel.

Everything is found again from the folder and from Slurm, so the process that submitted may end,
and another process may ask, resume or cancel.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from steptime.core.copying import replace
from steptime.measure.launch import Failure
from steptime.records import store
from steptime.records.record import FINAL_STATUSES, Record
from steptime.sweeps.cells import Trial
from steptime.sweeps.cluster import submission as files
from steptime.sweeps.cluster.jobs import JobExit, QueuedTask, TaskJob, TaskName
from steptime.sweeps.cluster.outcome import explain_failures, make_failure_record
from steptime.sweeps.cluster.slurm import Slurm
from steptime.sweeps.cluster.submission import Submission, Task

STATES = ("queued", "running", "finished", "failed", "unsent")
LIVE_STATES = {"queued", "running"}
Warn = Callable[[str], None]
QueuedTasks = Mapping[TaskName, list[QueuedTask]]


@dataclass(frozen=True)
class CellState:
    """Where one trial stands: one of `STATES`, and what is known of it.

    `failed` without a record means that its job is over; `unsent` that Slurm did not take it.
    """

    trial: Trial
    submission: Submission
    task: Task
    state: str
    record: Record | None = None
    queued: QueuedTask | None = None


@dataclass(frozen=True)
class Snapshot:
    """One look at a folder and at Slurm: where trials stand, all records, and the live tasks."""

    states: tuple[CellState, ...]
    records: tuple[Record, ...]
    submissions: tuple[Submission, ...]
    queued: QueuedTasks

    @property
    def lost_trials(self) -> list[CellState]:
        """The trials whose job is over and that have no record."""
        return [cell for cell in self.states if cell.state == "failed" and cell.record is None]


def take_snapshot(out: Path, warn: Warn) -> Snapshot:
    """Return the state of every trial that was ever submitted from `out`, of its last time."""
    submissions = files.read_submissions(out)
    queued_tasks = list_queued(submissions)  # before the records: a task that ends now has them
    records = store.load(out, warn, required=False)
    record_of_cell = {
        (record.env["submission"], record.env["cell"]): record
        for record in records
        # "again": the job was interrupted, and a later start of it measures the cell once more.
        if "submission" in record.env and not record.env.get("again")
    }
    states: dict[str, CellState] = {}
    for submission in submissions:
        for task in submission.tasks:
            queued = _first_running(queued_tasks.get(submission.task_names[task.number], ()))
            running_id = _find_running_cell(submission, task, queued)
            for trial in task.trials:
                record = record_of_cell.get((submission.folder.name, trial.id))
                if record:
                    state = "finished" if record.status in FINAL_STATUSES else "failed"
                elif queued:
                    state = "running" if trial.id == running_id else "queued"
                elif task.number in submission.task_jobs:
                    state = "failed"  # its job is over, and left no record
                else:
                    state = "unsent"
                states[trial.id] = CellState(trial, submission, task, state, record, queued)
    return Snapshot(tuple(states.values()), tuple(records), tuple(submissions), queued_tasks)


def _first_running(tasks: Sequence[QueuedTask]) -> QueuedTask | None:
    """Return the running one of the tasks of one name, else the first; None for no task."""
    running = (task for task in tasks if task.is_running)
    return next(running, next(iter(tasks), None))


def _find_running_cell(submission: Submission, task: Task, queued: QueuedTask | None) -> str | None:
    """Return the id of the cell that a running task began last; None for other tasks."""
    if queued is None or not queued.is_running:
        return None
    started_ids = submission.list_begun(task.number)
    return started_ids[-1] if started_ids else None


def list_queued(submissions: Sequence[Submission]) -> QueuedTasks:
    """Return the tasks of submissions that wait or run, asking each cluster once."""
    array_names_by_cluster = defaultdict[str, list[str]](list)
    for submission in submissions:
        for array_name, clusters in submission.array_clusters.items():
            for cluster in clusters:
                array_names_by_cluster[cluster].append(array_name)
    queued_tasks: dict[TaskName, list[QueuedTask]] = {}
    for cluster, array_names in array_names_by_cluster.items():
        for task_name, queued in Slurm((cluster,)).list_tasks(array_names).items():
            queued_tasks.setdefault(task_name, []).extend(queued)
    return queued_tasks


def adopt_jobs(snapshot: Snapshot) -> None:
    """Write down the jobs of live arrays whose submission was not answered."""
    for submission in snapshot.submissions:
        for array in submission.open_arrays:
            queued = _find_array(snapshot.queued, array.name)
            if queued:
                submission.note_job(array, queued.task.job)


def _find_array(tasks: QueuedTasks, name: str) -> QueuedTask | None:
    """Return a live task of an array; None if none waits or runs."""
    return next((queued[0] for task, queued in tasks.items() if task.array == name), None)


def collect(out: Path, warn: Warn, snapshot: Snapshot | None = None) -> list[Record]:
    """Write a record of every trial whose job is over without one, and return these records."""
    snapshot = snapshot or take_snapshot(out, warn)
    adopt_jobs(snapshot)
    failures = explain_lost(snapshot.lost_trials)
    records = []
    for cell in snapshot.lost_trials:
        record = make_failure_record(cell.trial, cell.submission.means, failures[cell.trial.id])
        env = {**record.env, "submission": cell.submission.folder.name}
        records.append(replace(record, env=env))
    with store.open_writer(out) as writer:
        writer.append_all(records)
    return records


def explain_lost(states: Iterable[CellState]) -> dict[str, Failure]:
    """Return why each lost trial has no record, by its id, asking Slurm once."""
    cells = list(states)
    submission_of_task = {
        (cell.submission.folder, cell.task.number): cell.submission for cell in cells
    }
    exits: Mapping[TaskJob, JobExit] = {}
    if submission_of_task:
        task_jobs = [
            submission.task_jobs[task] for (_, task), submission in submission_of_task.items()
        ]
        first_time = min(submission.submission_time for submission in submission_of_task.values())
        since = first_time.astimezone().strftime("%Y-%m-%dT%H:%M:%S")
        exits = Slurm.list_exits(task_jobs, since)
    # What a task wrote is read once; the function that comes of it explains each of its trials.
    explanations = {}
    for (folder, task), submission in submission_of_task.items():
        job_exit = exits.get(submission.task_jobs[task])
        explanations[folder, task] = explain_failures(submission, task, job_exit)
    failures = {}
    for cell in cells:
        explain = explanations[cell.submission.folder, cell.task.number]
        failures[cell.trial.id] = explain(cell.trial)
    return failures


def cancel(out: Path) -> list[str]:
    """Cancel every array of this folder that waits or runs, and return the job numbers."""
    tasks = list_queued(files.read_submissions(out))
    jobs = dict.fromkeys(queued.task.job for group in tasks.values() for queued in group)
    if jobs:
        Slurm.cancel(jobs)
    return [job.number for job in jobs]

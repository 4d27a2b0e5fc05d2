"""The cells that an experiment lacks of a folder, submitted.

An experiment lacks its cells less those with a final record and less those that wait or run.
"""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from steptime.core.errors import InputError
from steptime.records import store
from steptime.sweeps.answers import SubmissionAnswer, describe_progress
from steptime.sweeps.cells import Trial, list_final_marks, trials_of
from steptime.sweeps.cluster import submission as files
from steptime.sweeps.cluster.jobs import ArrayJob, SchedulerError
from steptime.sweeps.cluster.resources import fits, need_of, unseen_data
from steptime.sweeps.cluster.script import find_clusters
from steptime.sweeps.cluster.slurm import Slurm
from steptime.sweeps.cluster.status import (
    LIVE_STATES,
    Snapshot,
    Warn,
    collect,
    take_snapshot,
)
from steptime.sweeps.cluster.submission import Submission
from steptime.sweeps.run import SweepRequest, predict


@dataclass(frozen=True)
class MissingCells:
    """The cells of an experiment that a folder lacks.

    Attributes:
        ids: the cells of the experiment.
        finished: number of cells with a final record.
        in_flight: number of cells that wait or run.
        older: number of cells in flight that the experiment has no more.
        trials: the trials to submit.
    """

    ids: tuple[str, ...]
    finished: int
    in_flight: int
    older: int
    trials: tuple[Trial, ...]


def find_missing(request: SweepRequest, snapshot: Snapshot) -> MissingCells:
    """Return the cells of an experiment that a folder lacks: not final, and not in flight."""
    live_ids = {cell.trial.id for cell in snapshot.states if cell.state in LIVE_STATES}
    marks = list_final_marks(snapshot.records, request.retry, request.force)
    final_ids = {trial_id for trial_id, _platform, _version in marks}
    cells = request.cells
    if request.must_fit:
        cells = [cell for cell in cells if fits(cell)]
    trials = list(trials_of(cells, request.means.runs, request.rounds))
    ids = [trial.id for trial in trials]
    in_flight = [trial for trial in trials if trial.id in live_ids]
    # A cell in flight may have a final record of an earlier try: it counts as in flight.
    idle = [trial for trial in trials if trial.id not in live_ids]
    missing = [trial for trial in idle if trial.id not in final_ids]
    # A shard knows only its part of the cells, so it cannot tell which cells are gone.
    older = 0 if request.is_shard else len(live_ids.difference(ids))
    return MissingCells(
        ids=tuple(ids),
        finished=len(idle) - len(missing),
        in_flight=len(in_flight),
        older=older,
        trials=tuple(missing),
    )


def send(request: SweepRequest, warn: Warn) -> SubmissionAnswer:
    """Submit the cells that a folder lacks.

    Args:
        request: the sweep.
        warn: gets the lines for people.

    Raises:
        InputError: where all is refused, and for a data set that this machine does not see.
        SchedulerError: where Slurm does not answer. Nothing is left of the submission if Slurm was
            silent from the beginning; else the folder stays, since Slurm may have taken a job.
    """
    out = request.out
    with store.exclusive(out):
        # First of all: where nobody answers, nothing is written.
        max_tasks = _read_max_tasks(request)
        snapshot = take_snapshot(out, warn)
        # Arrays of which Slurm has no job are forbidden to begin, since their cells are sent again
        # now; those whose job came in the meantime may begin after all.
        if _withdraw_arrays(snapshot):
            snapshot = take_snapshot(out, warn)
            _restore_live_arrays(snapshot)
        collected = collect(out, warn, snapshot)
        records = (*snapshot.records, *collected)
        missing = find_missing(request, replace(snapshot, records=records))
        if unseen := "; ".join(unseen_data(trial.cell for trial in missing.trials)):
            raise InputError(unseen)
        submission = None
        with store.open_writer(out) as writer:
            predict(request.cells, request, writer, records, warn)
            if missing.trials:
                submission = files.compose(out, request.means, missing.trials, max_tasks)
                _submit(submission, request, missing, writer, warn)
        files.write_current_ids(out, missing.ids, request.is_shard)
    return _make_answer(request, missing, submission, len(collected))


def _read_max_tasks(request: SweepRequest) -> int:
    """Return the number of tasks that an array may have on all clusters that a request names."""
    needs = {need_of(cell).request for cell in request.cells}
    clusters = dict.fromkeys(cluster for need in needs for cluster in find_clusters(need))
    return Slurm(tuple(clusters)).read_max_tasks()


def _withdraw_arrays(snapshot: Snapshot) -> bool:
    """Forbid the arrays to begin of which Slurm may have, and knows, no job; tell if there are any.

    An array whose submission was not answered may become a job later. Its cells are sent again now,
    so that its tasks must not measure them.
    """
    live_names = {task.array for task in snapshot.queued}
    is_changed = False
    for submission in snapshot.submissions:
        jobless_arrays = [array for array in submission.open_arrays if array.name not in live_names]
        # Their cells are sent again: a job that Slurm makes of them late must not run them, too.
        # The list of withdrawn arrays names an array by the number of its first task.
        withdrawn_first_tasks = submission.read_withdrawn()
        jobless_first_tasks = {array.first for array in jobless_arrays}
        if not jobless_first_tasks <= withdrawn_first_tasks:
            submission.write_withdrawn(withdrawn_first_tasks | jobless_first_tasks)
            is_changed = True
    return is_changed


def _restore_live_arrays(snapshot: Snapshot) -> None:
    """Allow withdrawn arrays that wait or run after all."""
    live_names = {task.array for task in snapshot.queued}
    for submission in snapshot.submissions:
        live_arrays = [array for array in submission.arrays if array.name in live_names]
        live_first_tasks = {array.first for array in live_arrays}
        withdrawn_first_tasks = submission.read_withdrawn()
        # Their jobs came before the list was written: these run the cells after all.
        if withdrawn_first_tasks & live_first_tasks:
            submission.write_withdrawn(withdrawn_first_tasks - live_first_tasks)


def _submit(
    submission: Submission,
    request: SweepRequest,
    missing: MissingCells,
    writer: store.Writer,
    warn: Warn,
) -> None:
    """Send a submission; predictions of one that is refused are not kept either."""
    try:
        send_arrays(submission, warn)
    except SchedulerError as error:
        # Slurm gave no answer: it may have taken some arrays, so cells and predictions stay.
        files.write_current_ids(request.out, missing.ids, request.is_shard)
        hint = "run the same sweep again: it finds the jobs that were taken, and sends the others"
        raise SchedulerError(f"{error}; {hint}") from None
    except InputError:
        # Slurm refused all of them: their predictions are not kept either.
        writer.discard()
        raise


def send_arrays(submission: Submission, warn: Warn) -> None:
    """Write the submission and send its arrays.

    The arrays of one job wait for one another, so that no more than `tasks_at_once` run. An array
    that is refused (its resources are not there, or the site limits how much may wait) is reported
    to `warn`, and stays for the next time.

    Raises:
        InputError: where all arrays are refused; then the folder goes.
        SchedulerError: where Slurm does not answer; the folder stays, for a job may come of it.
    """
    files.write(submission)
    last_jobs: dict[int, ArrayJob] = {}
    refusals: dict[int, str] = {}
    for array in submission.arrays:
        task = submission.tasks[array.first]
        if task.job in refusals:  # its other arrays ask for the same resources
            continue
        slurm = Slurm(find_clusters(task.need.request))
        # The arrays of a job wait for one another, or more tasks would run than its limit says.
        previous = last_jobs.get(task.job)
        try:
            job = slurm.submit(replace(array, after=previous.number if previous else ""))
        except InputError as error:
            refusals[task.job] = f"{task.need.text}: {error}"
        else:
            last_jobs[task.job] = job
            submission.note_job(array, job)
    if not last_jobs:
        _remove_submission(submission)
        raise InputError("; ".join(refusals.values()))
    for text in refusals.values():
        warn(f"refused: {text}")


def _remove_submission(submission: Submission) -> None:
    """Remove the folder of a submission, and the folder of all if it was the only one."""
    (submission.folder / files.PLAN).unlink()  # first: without it the rest means nothing
    shutil.rmtree(submission.folder)
    with suppress(OSError):  # it holds earlier ones
        submission.folder.parent.rmdir()


def _make_answer(
    request: SweepRequest, missing: MissingCells, submission: Submission | None, collected: int
) -> SubmissionAnswer:
    """Return the answer that says what was submitted; `submission` is None for nothing."""
    task_jobs = submission.task_jobs if submission else {}
    tasks = submission.tasks if submission else ()
    submitted = sum(len(task.trials) for task in tasks if task.number in task_jobs)
    jobs = tuple(dict.fromkeys(task.job.number for task in task_jobs.values()))
    unsent = len(missing.trials) - submitted
    notes = describe_cells(request, missing)
    if unsent:
        notes.append(f"{unsent} cells wait here: run the same command again later")
    counts = f"{submitted} submitted now in {len(task_jobs)} tasks"
    return SubmissionAnswer(
        name=request.name,
        out=str(request.out),
        cells=len(missing.ids),
        finished_before=missing.finished,
        in_flight=missing.in_flight,
        collected=collected,
        submitted=submitted,
        unsent=unsent,
        tasks=len(task_jobs),
        jobs=jobs,
        folder=str(submission.folder) if submission else None,
        headline=tuple(_list_headline(request, missing, counts, jobs)),
        notes=tuple(notes),
    )


def _list_headline(
    request: SweepRequest, missing: MissingCells, counts: str, jobs: Sequence[str]
) -> list[str]:
    """Return the lines on a submission: how far the sweep is, its jobs, and the next command."""
    progress = describe_progress(request.name, len(missing.ids), missing.finished)
    lines = [
        f"{request.name}: {request.text}",
        f"{progress}, {missing.in_flight} waiting or running, {counts}",
    ]
    if jobs:
        lines.append(f"jobs:  {', '.join(jobs)}")
        lines.append(f"next:  steptime sweep status {request.out}")
    return lines


def describe_cells(request: SweepRequest, missing: MissingCells) -> list[str]:
    """Return remarks on the cells that are to be submitted, and on those in flight."""
    cells = [trial.cell for trial in missing.trials]
    remarks = [*request.remarks, *unseen_data(cells)]
    idle = sum(cell.options.gpu != "" and cell.options.device == "cpu" for cell in cells)
    if idle:
        remarks.append(f'{idle} cells ask for a GPU and run on device "cpu"')
    if missing.older:
        older = "cells of the experiment as it was before"
        remarks.append(f"{missing.older} {older} still wait or run")
    return remarks

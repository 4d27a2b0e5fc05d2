"""What an experiment lacks of a folder, submitted.

The cells that a folder lacks are those of the experiment less those with a final record and less
those that wait or run.
"""

import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from steptime.core.errors import InputError
from steptime.core.files import append_line
from steptime.records import store
from steptime.records.record import now
from steptime.sweeps.answers import SubmissionAnswer, describe_progress
from steptime.sweeps.cells import Trial, done_marks, trials_of
from steptime.sweeps.cluster import submission as files
from steptime.sweeps.cluster.resources import fits, unseen_data
from steptime.sweeps.cluster.scheduler import scheduler_of
from steptime.sweeps.cluster.status import Snapshot, Warn, collect, snapshot
from steptime.sweeps.cluster.submission import Submission
from steptime.sweeps.run import SweepRequest, predict


@dataclass(frozen=True)
class Missing:
    """What an experiment wants of a folder, in all and now; `older` in flight it wants no more."""

    wanted: tuple[str, ...]
    done: int
    in_flight: int
    older: int
    trials: tuple[Trial, ...]


def missing(request: SweepRequest, seen: Snapshot) -> Missing:
    """Return what to submit: what is wanted, and may fit, less what is done, waits or runs."""
    live = {one.trial.id for one in seen.states if one.word in {"queued", "running"}}
    done = {mark[0] for mark in done_marks(seen.records, request.retry, request.force)}
    cells = [cell for cell in request.cells if fits(cell)] if request.must_fit else request.cells
    wanted = list[str]()
    runs = request.how.runs
    trials = list[Trial]()
    where = Counter[str]()
    for trial in trials_of(cells, runs, request.rounds):
        name = trial.id
        if name not in live and name not in done and (live or done):
            name = trial.cell.id(runs, trial.round, as_written=True)
        word = "in flight" if name in live else "done" if name in done else "missing"
        wanted.append(trial.id if word == "missing" else name)
        where[word] += 1
        if word == "missing":
            trials.append(trial)
    older = len(live.difference(wanted)) if request.whole else 0
    return Missing(tuple(wanted), where["done"], where["in flight"], older, tuple(trials))


def send(request: SweepRequest, warn: Warn, scheduler: str = "slurm") -> SubmissionAnswer:
    """Submit what a folder lacks, and return what was submitted.

    Raises:
        InputError: where all is refused, and for a data set that this machine does not see.
        SchedulerError: where nobody answers; then nothing is left of the submission.
    """
    out = request.out
    with store.exclusive(out):
        # First of all: where nobody answers, nothing is written.
        max_tasks = scheduler_of(scheduler).limits()
        snapshot_before = snapshot(out, warn)
        collected = collect(out, warn, snapshot_before)
        _check_scheduler(snapshot_before, scheduler, out)
        records = (*snapshot_before.records, *collected)
        lacks = missing(request, replace(snapshot_before, records=records))
        if unseen := "; ".join(unseen_data(trial.cell for trial in lacks.trials)):
            raise InputError(unseen)
        submission = None
        with store.open_writer(out) as writer:
            predict(request.cells, request, writer, records, warn)
            if lacks.trials:
                try:
                    submission = files.compose(out, request.how, lacks.trials, max_tasks, scheduler)
                    submit(submission, warn)
                except InputError:
                    writer.discard()
                    raise
        files.note_wanted(out, lacks.wanted, request.whole)
    return _submission_answer(request, lacks, submission, len(collected))


def _check_scheduler(snapshot_before: Snapshot, scheduler: str, out: Path) -> None:
    """Raise `InputError` for a folder that another scheduler's jobs write into."""
    foreign = {state.submission.scheduler for state in snapshot_before.states} - {scheduler}
    if foreign:
        raise InputError(f"{out}: belongs to the scheduler {foreign.pop()}; use another folder")


def _submission_answer(
    request: SweepRequest, lacks: Missing, submission: Submission | None, collected: int
) -> SubmissionAnswer:
    """Return the answer that says what was submitted; `submission` is None for nothing."""
    numbers = submission.sent if submission else {}
    tasks = submission.tasks if submission else ()
    submitted = sum(len(task.trials) for task in tasks if task.number in numbers)
    jobs = tuple(dict.fromkeys(job for job, _ in numbers.values()))
    unsent = len(lacks.trials) - submitted
    cells = len(lacks.wanted)
    progress = describe_progress(request.name, cells, lacks.done)
    counts = f"{submitted} submitted now in {len(numbers)} tasks"
    headline = [
        f"{request.name}: {request.text}",
        f"{progress}, {lacks.in_flight} waiting or running, {counts}",
    ]
    if jobs:
        headline.append(f"jobs:  {', '.join(jobs)}")
        headline.append(f"next:  steptime sweep status {request.out}")
    notes = describe_cells(request, lacks)
    if unsent:
        notes.append(f"{unsent} cells wait here: run the same command again later")
    return SubmissionAnswer(
        name=request.name,
        out=str(request.out),
        cells=cells,
        finished_before=lacks.done,
        in_flight=lacks.in_flight,
        collected=collected,
        submitted=submitted,
        unsent=unsent,
        tasks=len(numbers),
        jobs=jobs,
        folder=str(submission.folder) if submission else None,
        headline=tuple(headline),
        notes=tuple(notes),
    )


def describe_cells(request: SweepRequest, lacks: Missing) -> list[str]:
    """Return remarks on the cells that are to be submitted, and on those in flight."""
    cells = [trial.cell for trial in lacks.trials]
    remarks = [*request.remarks, *unseen_data(cells)]
    idle = sum(cell.options.gpu != "" and cell.options.device == "cpu" for cell in cells)
    if idle:
        remarks.append(f'{idle} cells ask for a GPU and run on device "cpu"')
    if lacks.older:
        older = "cells of the experiment as it was before"
        remarks.append(f"{lacks.older} {older} still wait or run")
    return remarks


def submit(submission: Submission, warn: Warn) -> None:
    """Write the submission and send its arrays.

    The arrays of one job wait for one another, so that no more than `tasks_at_once` run. One that
    is refused (what it asks for is not there, or the site limits how much may wait) is told to
    `warn`, and stays for the next time. Raises `InputError` where all are refused.
    """
    files.write(submission)
    before: dict[int, str] = {}
    refused: dict[int, str] = {}
    for array in submission.arrays:
        task = submission.tasks[array.first]
        if task.job in refused:
            continue
        try:
            after = replace(array, after=before.get(task.job, ""))
            before[task.job] = job = scheduler_of(submission.scheduler).submit(after)
            line = {"first": array.first, "tasks": array.tasks, "job": job, "at": now()}
            append_line(submission.folder / files.SUBMITTED, line)
        except InputError as error:
            refused[task.job] = f"{task.need.text}: {error}"
    if not before:
        shutil.rmtree(submission.folder)
        with suppress(OSError):  # it holds earlier ones
            submission.folder.parent.rmdir()
        raise InputError("; ".join(refused.values()))
    for text in refused.values():
        warn(f"refused: {text}")

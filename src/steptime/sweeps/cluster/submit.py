"""What an experiment lacks of a folder, submitted.

The cells that a folder lacks are those of the experiment less those with a final record and less
those that wait or run.
"""

import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from steptime.core.errors import InputError
from steptime.core.files import append_line
from steptime.core.table import picked
from steptime.records import store
from steptime.records.record import now
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


def send(request: SweepRequest, warn: Warn, scheduler: str = "slurm") -> dict[str, Any]:
    """Submit what a folder lacks, and return what happened as JSON values.

    Raises `InputError` where all is refused, and for a data set that this machine does not see,
    `SchedulerError` where nobody answers; then nothing is left of it.
    """
    out = request.out
    with store.exclusive(out):
        largest = scheduler_of(
            scheduler
        ).limits()  # first: where nobody answers, nothing is written
        seen = snapshot(out, warn)
        lost = collect(out, warn, seen)
        if other := {one.submission.scheduler for one in seen.states} - {scheduler}:
            raise InputError(f"{out}: belongs to the scheduler {other.pop()}; use another folder")
        lacks = missing(request, replace(seen, records=(*seen.records, *lost)))
        if unseen := "; ".join(unseen_data(one.cell for one in lacks.trials)):
            raise InputError(unseen)
        with store.open_writer(out) as writer:
            predict(request.cells, request, writer, (*seen.records, *lost), warn)
            document = counts(request, lacks) | {"collected": len(lost)}
            nothing = {"submitted": 0, "unsent": 0, "tasks": 0, "jobs": [], "folder": None}
            if not lacks.trials:
                files.note_wanted(out, lacks.wanted, request.whole)
                return document | nothing
            try:
                submission = files.compose(out, request.how, lacks.trials, largest, scheduler)
                submit(submission, warn)
            except InputError:
                writer.discard()
                raise
        files.note_wanted(out, lacks.wanted, request.whole)
    submitted = sum(len(one.trials) for one in submission.tasks if one.number in submission.sent)
    return document | {
        "submitted": submitted,
        "unsent": len(lacks.trials) - submitted,
        "tasks": len(submission.sent),
        "jobs": list(dict.fromkeys(job for job, _ in submission.sent.values())),
        "folder": str(submission.folder),
    }


def counts(request: SweepRequest, lacks: Missing) -> dict[str, Any]:
    """Return how many cells are wanted, done and in flight, and what to mind, as JSON values."""
    cells = [trial.cell for trial in lacks.trials]
    remarks = [*request.remarks, *unseen_data(cells)]
    if idle := sum(one.options.gpu != "" and one.options.device == "cpu" for one in cells):
        remarks.append(f'{idle} cells ask for a GPU and run on device "cpu"')
    if lacks.older:
        was = "cells of the experiment as it was before"
        remarks.append(f"{lacks.older} {was} still wait or run")
    return {
        "name": request.name,
        "out": str(request.out),
        "cells": len(lacks.wanted),
        "done_before": lacks.done,
        "in_flight": lacks.in_flight,
        "remarks": remarks,
    }


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
            line = {**picked(array, "first tasks"), "job": job, "at": now()}
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

"""Sweeps by a scheduler: what to submit, where it is, what became of it.

The cells that a folder lacks are those of the experiment less those with a final record and less
those that wait or run. Everything is found again from the folder and the scheduler, so the process
that submitted may end, and another may ask, resume or cancel.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from steptime import store
from steptime.cluster import slurm
from steptime.cluster import submission as manifest
from steptime.cluster.outcome import End, end_of, lost_record, progress_of
from steptime.cluster.resources import fits
from steptime.cluster.submission import Submission, Visit, array_name
from steptime.core.causes import again
from steptime.core.errors import InputError
from steptime.core.record import DONE, Record
from steptime.sweep.run import Request, predict

WORDS = ("queued", "running", "done", "failed", "unsent")
Warn = Callable[[str], None]
Ends = Mapping[tuple[Path, int], End]  # by the folder of a submission and the task


@dataclass(frozen=True)
class Standing:
    """Where one visit stands: one of `WORDS`, and what is known of it.

    `failed` without a record means that its job is over; `unsent` that no scheduler took it.
    """

    visit: Visit
    submission: Submission
    task: int
    word: str
    record: Record | None = None
    queued: slurm.Queued | None = None


@dataclass(frozen=True)
class Look:
    """What one look at a folder and at Slurm shows: where every visit stands, and all records."""

    standings: tuple[Standing, ...]
    records: tuple[Record, ...]

    @property
    def lost(self) -> list[Standing]:
        """The visits whose job is over and that have no record."""
        return [one for one in self.standings if one.word == "failed" and one.record is None]


def look(out: Path, warn: Warn) -> Look:
    """Give where every visit stands that was ever submitted from `out`, its last time."""
    every = manifest.submissions(out)
    live = slurm.queued(_names(every))  # before the records: a task that ends meanwhile has them
    records = store.load(out, warn, required=False)
    own = _own_records(records)
    found: dict[str, Standing] = {}
    for submission in every:
        taken = manifest.taken(submission)
        names = {
            first + i: (array_name(submission, first), i)
            for _, _, first, tasks in submission.arrays()
            for i in range(tasks)
        }
        for task, _, visits in submission.tasks():
            queued = live.get(names[task])
            began = _in_flight(submission, task) if queued and queued.running else ""
            for visit in visits:
                record = own.get((submission.folder.name, visit.id))
                if record and record.env.get("again"):
                    record = None  # its job was started again: that start decides
                word = _word(record, queued, task in taken, visit.id == began)
                found[visit.id] = Standing(visit, submission, task, word, record, queued)
    return Look(tuple(found.values()), tuple(records))


def _word(record: Record | None, queued: slurm.Queued | None, sent: bool, began: bool) -> str:
    if record:
        return "done" if record.status in DONE else "failed"
    if queued:
        return "running" if began else "queued"
    return "failed" if sent else "unsent"


def _own_records(records: Iterable[Record]) -> dict[tuple[str, str], Record]:
    """Give the last record of each visit in each submission."""
    return {
        (record.env["submission"], record.env["cell"]): record
        for record in records
        if "submission" in record.env
    }


def _names(every: Iterable[Submission]) -> list[str]:
    """Give the names of all arrays."""
    return [array_name(one, first) for one in every for _, _, first, _ in one.arrays()]


def _in_flight(submission: Submission, task: int) -> str:
    """Give the id of the cell that a running task began last."""
    return (manifest.begun(progress_of(submission, task)) or [""])[-1]


def collect(out: Path, warn: Warn) -> list[Record]:
    """Write a record of every visit whose job is over without one, and give these records."""
    return _collected(out, look(out, warn))


def _collected(out: Path, seen: Look) -> list[Record]:
    if not seen.lost:
        return []
    ends = _ends(seen.lost)
    written = []
    for one in seen.lost:
        death = ends[one.submission.folder, one.task].death(one.visit)
        record = lost_record(one.visit, one.submission.how, death)
        env = {**record.env, "submission": one.submission.folder.name}
        written.append(replace(record, env=env))
    with store.open_writer(out) as writer:
        writer.append_all(written)
    return written


def _ends(lost: Iterable[Standing]) -> Ends:
    """Give how the tasks of lost visits ended, asking the scheduler once."""
    tasks = {(one.submission.folder, one.task): one.submission for one in lost}
    submissions = {submission.folder: submission for submission in tasks.values()}
    lines = [line for one in submissions.values() for line in manifest.submitted(one)]
    known: Mapping[tuple[str, int], slurm.Ended] = {}
    if lines:
        began = min(datetime.fromisoformat(line["at"]) for line in lines)
        since = began.astimezone().strftime("%Y-%m-%dT%H:%M:%S")
        known = slurm.ended([line["job"] for line in lines], since)
    jobs = {folder: manifest.taken(one) for folder, one in submissions.items()}
    return {
        (folder, task): end_of(submission, task, known.get(jobs[folder].get(task, ("", 0))))
        for (folder, task), submission in tasks.items()
    }


@dataclass(frozen=True)
class Missing:
    """What an experiment wants of a folder: all visits, and those to be submitted now."""

    wanted: int
    done: int
    in_flight: int
    visits: tuple[Visit, ...]


def missing(request: Request, seen: Look) -> Missing:
    """Give what to submit: the wanted less what has a final record and what waits or runs.

    What must fit and is known not to is not wanted.
    """
    final = set() if request.force else set(DONE) - set(request.retry)
    live = {one.visit.id for one in seen.standings if one.word in {"queued", "running"}}
    known = {one.env["cell"]: one.status for one in seen.records if "cell" in one.env}
    visits, done, in_flight = [], 0, 0
    cells = [cell for cell in request.cells if fits(cell)] if request.must_fit else request.cells
    for round_ in range(request.rounds):
        for cell in cells:
            visit = Visit(cell.id(request.how.runs, round_), cell, round_)
            if visit.id in live:
                in_flight += 1
            elif known.get(visit.id) in final:
                done += 1
            else:
                visits.append(visit)
    return Missing(done + in_flight + len(visits), done, in_flight, tuple(visits))


def send(request: Request, warn: Warn) -> dict[str, Any]:
    """Submit what a folder lacks, and give what happened as JSON values."""
    out = request.out
    with store.exclusive(out):
        seen = look(out, warn)
        lost = _collected(out, seen)
        seen = replace(seen, records=(*seen.records, *lost))
        found = missing(request, seen)
        with store.open_writer(out) as writer:
            predict(request.cells, request, writer, seen.records, warn)
        document = counts(request, found) | {"collected": len(lost)}
        if not found.visits:
            return document | {"submitted": 0, "unsent": 0, "tasks": 0, "jobs": [], "folder": None}
        submission = submit(request, found.visits, warn)
    tasks = manifest.taken(submission)
    submitted = sum(len(visits) for task, _, visits in submission.tasks() if task in tasks)
    return document | {
        "submitted": submitted,
        "unsent": len(found.visits) - submitted,
        "tasks": len(tasks),
        "jobs": list(dict.fromkeys(job for job, _ in tasks.values())),
        "folder": str(submission.folder),
    }


def counts(request: Request, found: Missing) -> dict[str, Any]:
    """Give how many cells are wanted, done and in flight, as JSON values."""
    return {
        "name": request.name,
        "out": str(request.out),
        "cells": found.wanted,
        "done_before": found.done,
        "in_flight": found.in_flight,
        "remarks": remarks(found),
    }


def remarks(found: Missing) -> list[str]:
    """Give what a user should mind of cells that are to be submitted."""
    idle = sum(
        one.cell.options.gpu != "" and one.cell.options.device == "cpu" for one in found.visits
    )
    what = 'cells ask for a GPU and run on device "cpu"'
    return [f"{idle} {what}"] if idle else []


def submit(request: Request, visits: Iterable[Visit], warn: Warn) -> Submission:
    """Write the submission and send its arrays.

    The arrays of one job wait for one another, so that no more than `tasks_at_once` run. One that
    is refused (what it asks for is not there, or the site limits how much may wait) is told to
    `warn`, and stays for the next time. Raises `InputError` where all are refused.
    """
    submission = manifest.compose(request.out, request.how, visits, slurm.largest_array())
    manifest.write(submission, sys.executable)
    before: dict[int, str] = {}
    refused: dict[int, str] = {}
    for number, job, first, tasks in submission.arrays():
        if number in refused:
            continue
        array = slurm.Array(
            submission.folder / manifest.script_name(number),
            array_name(submission, first),
            first,
            tasks,
            job.need.allocation.tasks_at_once,
            before.get(number, ""),
        )
        try:
            before[number] = slurm.submit(array)
        except InputError as error:
            refused[number] = f"{job.need.text}: {error}"
            continue
        manifest.note_submitted(submission, first, tasks, before[number])
    if not before:
        shutil.rmtree(submission.folder)
        raise InputError("; ".join(refused.values()))
    for text in refused.values():
        warn(f"refused: {text}")
    return submission


def cancel(out: Path) -> list[str]:
    """Cancel every array of this folder that waits or runs, and give the job ids."""
    live = slurm.queued(_names(manifest.submissions(out)))
    jobs = list(dict.fromkeys(one.array for one in live.values()))
    if jobs:
        slurm.cancel(jobs)
    return jobs


def status(out: Path, warn: Warn) -> dict[str, Any]:
    """Give how many cells of this folder stand where, and why those that failed did, as JSON."""
    seen = look(out, warn)
    found, ends = seen.standings, _ends(seen.lost)
    counts = {word: sum(one.word == word for one in found) for word in WORDS}
    statuses: dict[str, int] = {}
    causes: dict[str, int] = {}
    troubles = []
    for one in found:
        if one.word not in {"done", "failed"}:
            continue
        row = _trouble(one, ends)
        statuses[row["status"]] = statuses.get(row["status"], 0) + 1
        if row["status"] != "ok":
            causes[row["cause"]] = causes.get(row["cause"], 0) + 1
            troubles.append(row)
    return {
        "out": str(out),
        "cells": len(found),
        **counts,
        "status": statuses,
        "causes": causes,
        "jobs": list(_jobs(found)),
        "unsuccessful": troubles,
    }


def _trouble(one: Standing, ends: Ends) -> dict[str, Any]:
    if one.record:
        status_, cause, note = one.record.status, one.record.cause, one.record.note
    else:
        death = ends[one.submission.folder, one.task].death(one.visit)
        status_, cause, note = death.status, death.cause, death.note
    options = one.visit.cell.options
    return {
        "model": one.visit.cell.workload.label,
        "batch": one.visit.cell.workload.batch_per_replica,
        "gpu": options.gpu,
        "staging": options.staging,
        "status": status_,
        "cause": cause,
        "note": note,
        "again": again(status_, cause),
    }


def _jobs(found: Iterable[Standing]) -> Iterator[dict[str, Any]]:
    """Give the tasks that wait or run: job, state, why or where, and how many cells."""
    tasks: dict[tuple[str, str, str], list[Standing]] = {}
    for one in found:
        if one.queued:
            key = one.queued.job, one.queued.state, one.queued.text
            tasks.setdefault(key, []).append(one)
    for (job, state, text), cells in tasks.items():
        left = sum(one.word in {"queued", "running"} for one in cells)
        yield {"job": job, "state": state, "text": text, "cells_left": left}

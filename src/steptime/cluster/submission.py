"""What was submitted to a scheduler, as files: which cells, in which tasks, under which job names.

A submission is a folder `slurm/NNN-HASH` beside the records, named by the hash of what it holds:

* `cells.jsonl`: a line a cell, in the order in which tasks take them,
* `plan.json`: how cells are measured, the scheduler, the jobs, and the cells of each task,
* `job-K.sh`: the batch script of job K,
* `submitted.jsonl`: a line for each array that the scheduler took,
* `progress/TASK.RESTART.jsonl`: what a task began and ended, written by the task,
* `logs/`: what the jobs printed.

Beside them, `slurm/wanted` has the ids of all cells that were asked for last.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from steptime.cluster.resources import need_of
from steptime.cluster.scheduler import Array, Need, Scheduler, TaskJob, scheduler_of
from steptime.core.errors import InputError, shorten
from steptime.core.workload import workload_from_json, workload_to_json
from steptime.measure.contract import Options
from steptime.sweep.cells import Cell
from steptime.sweep.resource_request import ResourceRequest
from steptime.sweep.run import How

FOLDER = "slurm"  # whatever the scheduler: older folders are found
PLAN = "plan.json"
SUBMITTED = "submitted.jsonl"
WANTED = "wanted"
VERSION = 2  # of plan.json; the first, of steptime 0.4, has no number
_NAME = re.compile(r"\d{3,}-[0-9a-f]{8}")


@dataclass(frozen=True)
class Trial:
    """One visit of a cell: `id` is the content hash of cell and round."""

    id: str
    cell: Cell
    round: int


@dataclass(frozen=True)
class Task:
    """One task of an array: its number in the submission, its place in the array, its trials."""

    number: int
    array: str
    index: int
    need: Need
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Job:
    """Tasks with one need: the first of them, and where the cells of each begin and end."""

    need: Need
    first_task: int
    slices: tuple[tuple[int, int], ...]

    @property
    def cells(self) -> slice:
        """Where its trials are among those of the submission."""
        return slice(self.slices[0][0], self.slices[-1][1])


@dataclass(frozen=True)
class Submission:
    """A folder of what was submitted; no array has more than `largest` tasks.

    `token` is drawn, so that no two folders have jobs of one name.
    """

    folder: Path
    token: str
    how: How
    jobs: tuple[Job, ...]
    trials: tuple[Trial, ...]
    largest: int
    scheduler: str = "slurm"

    @property
    def out(self) -> Path:
        """The folder of the records, which it lies in."""
        return self.folder.parent.parent

    @cached_property
    def arrays(self) -> tuple[tuple[int, Array], ...]:
        """The arrays to submit, each with the number of its job; its name is how it is found."""
        return tuple(
            (
                number,
                Array(
                    self.folder / script_name(number),
                    f"{self.name}-{job.first_task + start}",
                    job.first_task + start,
                    min(self.largest, len(job.slices) - start),
                    job.need.request.tasks_at_once,
                ),
            )
            for number, job in enumerate(self.jobs)
            for start in range(0, len(job.slices), self.largest)
        )

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """Every task, by its number."""
        slices = [(job.need, *limits) for job in self.jobs for limits in job.slices]
        return tuple(
            Task(number, array.name, number - array.first, need, self.trials[start:stop])
            for _, array in self.arrays
            for number, (need, start, stop) in enumerate(
                slices[array.first : array.first + array.tasks], array.first
            )
        )

    @cached_property
    def sent(self) -> Mapping[int, TaskJob]:
        """Tasks of arrays that the scheduler is known to have taken: the job, the place in it."""
        return {
            line["first"] + i: (line["job"], i)
            for line in read_lines(self.folder / SUBMITTED)
            for i in range(line["tasks"])
        }

    @cached_property
    def began_at(self) -> datetime | None:
        """When the first array was sent."""
        times = [line["at"] for line in read_lines(self.folder / SUBMITTED)]
        return datetime.fromisoformat(min(times)) if times else None

    @cached_property
    def starts(self) -> Mapping[int, list[Path]]:
        """The files that tasks wrote of themselves: of each, one for each time it was started."""
        files: dict[int, list[Path]] = {}
        for path in sorted(
            (self.folder / "progress").glob("*.*.jsonl"),
            key=lambda path: int(path.name.split(".")[1]),
        ):
            files.setdefault(int(path.name.split(".")[0]), []).append(path)
        return files

    @property
    def name(self) -> str:
        """The name that its arrays begin with."""
        return f"steptime-{self.token}"

    def script(self, job: Job, scheduler: Scheduler, python: str) -> str:
        """Return the batch script of one of the jobs."""
        interpreter = job.need.request.python or python
        return scheduler.script(job.need, self.name, str(self.folder), interpreter)

    def progress(self, task: int, restart: int) -> Path:
        """Return the file that one start of a task writes."""
        return self.folder / "progress" / f"{task}.{restart}.jsonl"


def packed(trials: Iterable[Trial]) -> tuple[tuple[Trial, ...], tuple[Job, ...]]:
    """Return the trials in the order of tasks, and the jobs: those with one need in one array.

    Within a need cells of one worker stand together, so that it is started once a task.
    """
    by_need: dict[Need, list[Trial]] = {}
    for trial in trials:
        by_need.setdefault(need_of(trial.cell), []).append(trial)
    ordered: list[Trial] = []
    jobs: list[Job] = []
    first_task = 0
    for need, group in by_need.items():
        places = {
            place: i for i, place in enumerate(dict.fromkeys(t.cell.worker_key for t in group))
        }
        group.sort(key=lambda trial: (trial.round, places[trial.cell.worker_key]))
        starts = range(len(ordered), len(ordered) + len(group), need.request.cells_per_task)
        ordered += group
        slices = tuple((start, min(start + starts.step, len(ordered))) for start in starts)
        jobs.append(Job(need, first_task, slices))
        first_task += len(slices)
    return tuple(ordered), tuple(jobs)


def compose(
    out: Path, how: How, trials: Iterable[Trial], largest: int, scheduler: str = "slurm"
) -> Submission:
    """Return the next submission beside the records in `out`; nothing is written yet."""
    ordered, jobs = packed(trials)
    plain = Submission(Path(), "", how, jobs, ordered, largest, scheduler)
    content = _plan(plain) + "".join(trial.id for trial in ordered)  # an id is a hash of its cell
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    number = 1 + max((int(path.name.partition("-")[0]) for path in folders(out)), default=0)
    folder = (out / FOLDER / f"{number:03}-{digest}").absolute()
    return replace(plain, folder=folder, token=secrets.token_hex(6))


def write(submission: Submission, scheduler: Scheduler, python: str) -> None:
    """Write the folder of a submission."""
    folder = submission.folder
    for part in ("logs", "progress"):
        (folder / part).mkdir(parents=True)
    cells = "".join(json.dumps(_trial_to_json(trial)) + "\n" for trial in submission.trials)
    (folder / "cells.jsonl").write_text(cells, encoding="utf-8")
    for number, job in enumerate(submission.jobs):
        text = submission.script(job, scheduler, python)
        (folder / script_name(number)).write_text(text, encoding="utf-8")
    (folder / PLAN).write_text(_plan(submission), encoding="utf-8")  # last: now it is whole


def _plan(submission: Submission) -> str:
    """Return the text of all but the cells."""
    plan = {
        "version": VERSION,
        "scheduler": submission.scheduler,
        "token": submission.token,
        "how": asdict(submission.how),
        "largest": submission.largest,
        "jobs": [
            {
                "allocation": job.need.request.model_dump(),
                "replicas": job.need.replicas,
                "cores": job.need.cores,
                "first_task": job.first_task,
                "slices": job.slices,
            }
            for job in submission.jobs
        ],
    }
    return json.dumps(plan, indent=1)


def script_name(job: int) -> str:
    """Return the name of the batch script of job number `job`."""
    return f"job-{job}.sh"


def note_sent(submission: Submission, array: Array, job: str) -> None:
    """Write down that the scheduler took an array, under this job id."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    line = {"first": array.first, "tasks": array.tasks, "job": job, "at": at}
    append_line(submission.folder / SUBMITTED, line)


def note_wanted(out: Path, ids: Iterable[str]) -> None:
    """Write down which cells an experiment, as it is now, asks of a folder."""
    path = out / FOLDER / WANTED
    path.parent.mkdir(parents=True, exist_ok=True)
    soon = path.with_name(f"{WANTED}-soon")
    soon.write_text("".join(f"{one}\n" for one in ids), encoding="ascii")
    soon.replace(path)


def wanted(out: Path) -> Collection[str] | None:
    """Return the ids of the cells that were asked for last; None where nobody wrote them down."""
    try:
        return set((out / FOLDER / WANTED).read_text(encoding="ascii").split())
    except FileNotFoundError:
        return None


def folders(out: Path) -> list[Path]:
    """Return the folders of submissions, the first one first."""
    paths = [path for path in (out / FOLDER).glob("*") if _NAME.fullmatch(path.name)]
    return sorted(paths, key=lambda path: int(path.name.partition("-")[0]))


def submissions(out: Path) -> list[Submission]:
    """Return what was submitted beside the records in `out`; without a plan it was never sent."""
    return [read(path) for path in folders(out) if (path / PLAN).exists()]


def read(folder: Path) -> Submission:
    """Return the submission of a folder; raises `InputError` for one that is damaged or newer."""
    try:
        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        version = plan.get("version", 1)
        if version not in range(1, VERSION + 1):
            raise InputError(
                f"{folder / PLAN}: has version {shorten(version)}, this steptime knows up to "
                f"{VERSION}; upgrade steptime"
            )
        lines = (folder / "cells.jsonl").read_text(encoding="utf-8").splitlines()
        jobs = tuple(_job_from_json(table) for table in plan["jobs"])
        requests = [job.need.request for job in jobs for a, b in job.slices for _ in range(a, b)]
        trials = tuple(_trial_from_json(*pair) for pair in zip(lines, requests, strict=True))
        scheduler = plan.get("scheduler", "slurm")
        scheduler_of(scheduler)
        how = How(**plan["how"])
        return Submission(folder, plan["token"], how, jobs, trials, plan["largest"], scheduler)
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder}: is no submission: {error}") from None


def append_line(path: Path, table: Mapping[str, Any]) -> None:
    """Add one line to a file that only this process writes."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(table) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of such a file; an absent file has none.

    A line that cannot be read is passed over: what it told, a job's name or a record tells again.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    tables = []
    for line in lines:
        with suppress(ValueError):
            tables.append(json.loads(line))
    return [table for table in tables if isinstance(table, dict)]


def progress_of(submission: Submission, task: int) -> list[dict[str, Any]]:
    """Return what a task wrote of itself, over all its starts."""
    return [line for path in submission.starts.get(task, ()) for line in read_lines(path)]


def begun(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the ids of the cells that a task began, as its progress tells them."""
    return [line["cell"] for line in lines if "cell" in line]


def _trial_to_json(trial: Trial) -> dict[str, Any]:
    return {
        "id": trial.id,
        "workload": workload_to_json(trial.cell.workload),
        "backend": trial.cell.backend,
        "options": asdict(trial.cell.options),
        "round": trial.round,
    }


def _trial_from_json(line: str, request: ResourceRequest) -> Trial:
    table = json.loads(line)
    workload = workload_from_json(table["workload"])
    cell = Cell(workload, table["backend"], Options(**table["options"]), request)
    return Trial(table["id"], cell, table["round"])


def _job_from_json(table: dict[str, Any]) -> Job:
    need = Need(ResourceRequest(**table["allocation"]), table["replicas"], table["cores"])
    return Job(need, table["first_task"], tuple((start, stop) for start, stop in table["slices"]))

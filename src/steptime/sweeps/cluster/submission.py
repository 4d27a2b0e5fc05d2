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

import hashlib
import json
import re
import secrets
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import accumulate, groupby, islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec

from steptime.core.errors import InputError, shorten
from steptime.core.files import read_lines, write_whole
from steptime.core.workload import workload_from_json, workload_to_json
from steptime.measure.contract import Options
from steptime.records.row import grouped
from steptime.sweeps.cells import Cell, Trial
from steptime.sweeps.cluster.resources import need_of
from steptime.sweeps.cluster.scheduler import JobArray, Need, TaskJob, TaskName, scheduler_of
from steptime.sweeps.resource_request import ResourceRequest
from steptime.sweeps.run import Means

FOLDER = "slurm"  # whatever the scheduler: older folders are found
PLAN, CELLS, SUBMITTED, WANTED = "plan.json", "cells.jsonl", "submitted.jsonl", "wanted"
VERSION = 2  # of plan.json; the first, of steptime 0.4, has no number
_NAME = re.compile(r"\d{3,}-[0-9a-f]{8}")
_START = re.compile(r"(?P<task>\d{1,9})\.(?P<restart>\d{1,9})\.jsonl", re.ASCII)


class _Job(msgspec.Struct):
    allocation: dict[str, Any]
    replicas: int
    cores: int
    slices: list[tuple[int, int]]


class _Plan(msgspec.Struct):
    """A `plan.json`, types checked."""

    token: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]+$")]
    how: Means
    jobs: list[_Job]
    largest: Annotated[int, msgspec.Meta(ge=1)]
    version: int = 1
    scheduler: str = "slurm"


class _Visit(msgspec.Struct):
    """A line of `cells.jsonl`."""

    id: str
    workload: dict[str, Any]
    backend: str
    options: Options
    round: int


class _Sent(msgspec.Struct):
    """A line of `submitted.jsonl`; `job` is a word that is no option of a scheduler's command."""

    first: int
    tasks: int
    job: Annotated[str, msgspec.Meta(pattern=r"^\w[\w.-]*$")]
    at: datetime


@dataclass(frozen=True)
class Task:
    """Trials that one task of an array measures: its number, and the job (by need) it is of."""

    number: int
    job: int
    need: Need
    trials: tuple[Trial, ...]


Job = tuple[Task, ...]  # tasks with one need, sent as one array or several


@dataclass(frozen=True)
class Submission:
    """A folder of what was submitted; no array has more than `largest` tasks.

    `token` is drawn, so that no two folders have jobs of one name.
    """

    folder: Path
    token: str
    how: Means
    tasks: tuple[Task, ...]
    largest: int
    scheduler: str = "slurm"

    @property
    def out(self) -> Path:
        """The folder of the records, which it lies in."""
        return self.folder.parent.parent

    @property
    def name(self) -> str:
        """The name that its arrays begin with."""
        return f"steptime-{self.token}"

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """The tasks of each job."""
        return tuple(tuple(tasks) for _, tasks in groupby(self.tasks, lambda task: task.job))

    @cached_property
    def arrays(self) -> tuple[JobArray, ...]:
        """The arrays to submit, several of a job where it is too large for one."""
        return tuple(
            JobArray(
                self.folder / f"job-{job[0].job}.sh",
                f"{self.name}-{part[0].number}",
                part[0].number,
                len(part),
                1 if part[0].need.request.node else part[0].need.request.tasks_at_once,
            )
            for job in self.jobs
            for part in (job[i : i + self.largest] for i in range(0, len(job), self.largest))
        )

    @cached_property
    def names(self) -> Mapping[int, TaskName]:
        """How the scheduler knows each task: its array, by name, and its place in it."""
        return {one.first + i: (one.name, i) for one in self.arrays for i in range(one.tasks)}

    @property
    def _taken(self) -> list[_Sent]:
        """The arrays that the scheduler took; raises `InputError` for lines of other types."""
        path = self.folder / SUBMITTED
        try:
            return msgspec.convert(read_lines(path), list[_Sent])
        except msgspec.ValidationError as error:
            raise InputError(f"{path}: is no list of what was sent: {error}") from None

    @cached_property
    def sent(self) -> Mapping[int, TaskJob]:
        """Tasks of arrays that the scheduler is known to have taken: the job, the place in it."""
        return {
            one.first + i: (one.job, i)
            for one in self._taken
            for i in range(min(one.tasks, len(self.tasks)))
        }

    @property
    def sent_at(self) -> datetime:
        """When the first array was sent."""
        return min((one.at for one in self._taken), key=datetime.timestamp)

    def script(self, need: Need) -> str:
        """Return the batch script of the job with a need."""
        python = need.request.python or sys.executable
        return scheduler_of(self.scheduler).script(need, self.name, str(self.folder), python)

    def progress_file(self, task: int, restart: int) -> Path:
        """Return the file in which one start of a task tells of itself."""
        return self.folder / "progress" / f"{task}.{restart}.jsonl"

    @cached_property
    def restarts(self) -> Mapping[int, list[int]]:
        """Which starts of each task wrote of themselves, in their order."""
        paths = (self.folder / "progress").glob("*.*.jsonl")
        names = filter(None, (_START.fullmatch(path.name) for path in paths))
        starts = sorted((int(one["task"]), int(one["restart"])) for one in names)
        by_task = grouped(starts, itemgetter(0))
        return {task: [restart for _, restart in own] for task, own in by_task.items()}

    def begun(self, task: int) -> list[str]:
        """Return the ids of the cells that a task began, over all its starts."""
        files = (self.progress_file(task, restart) for restart in self.restarts.get(task, ()))
        return begun(line for file in files for line in read_lines(file))


def begun(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the ids of the cells that a task began, as its progress tells them."""
    return [line["cell"] for line in lines if "cell" in line]


def packed(trials: Iterable[Trial]) -> tuple[Task, ...]:
    """Return the tasks for trials, those with one need together, as many in a task as it says.

    Within a need cells of one worker stand together, so that it is started once a task.
    """
    tasks: list[Task] = []
    by_need = grouped(trials, lambda trial: need_of(trial.cell))
    for job, (need, group) in enumerate(by_need.items()):
        order = {cell: i for i, cell in enumerate(dict.fromkeys(t.cell.process for t in group))}
        group.sort(key=lambda trial: (trial.round, order[trial.cell.process]))
        for start in range(0, len(group), need.request.cells_per_task):
            some = group[start : start + need.request.cells_per_task]
            tasks.append(Task(len(tasks), job, need, tuple(some)))
    return tuple(tasks)


def compose(
    out: Path, how: Means, trials: Iterable[Trial], largest: int, scheduler: str = "slurm"
) -> Submission:
    """Return the next submission beside the records in `out`; nothing is written yet."""
    plain = Submission(Path(), "", how, packed(trials), largest, scheduler)
    content = _plan(plain) + "".join(trial.id for task in plain.tasks for trial in task.trials)
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    number = 1 + max((int(path.name.partition("-")[0]) for path in folders(out)), default=0)
    folder = (out / FOLDER / f"{number:03}-{digest}").absolute()
    return replace(plain, folder=folder, token=secrets.token_hex(6))


def write(submission: Submission) -> None:
    """Write the folder of a submission."""
    folder = submission.folder
    scripts = {first.job: submission.script(first.need) for first, *_ in submission.jobs}
    for part in ("logs", "progress"):
        (folder / part).mkdir(parents=True)
    cells = ((one, one.cell) for task in submission.tasks for one in task.trials)
    visits = [
        _Visit(one.id, workload_to_json(cell.workload), cell.backend, cell.options, one.round)
        for one, cell in cells
    ]
    (folder / CELLS).write_bytes(msgspec.json.Encoder().encode_lines(visits))
    for job, text in scripts.items():
        (folder / f"job-{job}.sh").write_text(text, encoding="utf-8")
    (folder / PLAN).write_text(_plan(submission), encoding="utf-8")  # last: now it is whole


def _plan(submission: Submission) -> str:
    """Return the text of all but the cells."""
    ends = pairwise(accumulate((len(task.trials) for task in submission.tasks), initial=0))
    jobs = []
    for first, *rest in submission.jobs:
        need = first.need
        slices = [*islice(ends, 1 + len(rest))]
        jobs.append(_Job(need.request.model_dump(), need.replicas, need.cores, slices))
    plan = _Plan(
        jobs=jobs,
        version=VERSION,
        token=submission.token,
        how=submission.how,
        largest=submission.largest,
        scheduler=submission.scheduler,
    )
    return msgspec.json.format(msgspec.json.encode(plan), indent=1).decode()


def read(folder: Path, code: str = "") -> Submission:
    """Return the submission of a folder, whose native networks may run the `code`.

    Raises `InputError` for one that is damaged or newer.
    """
    try:
        table = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        version = table.get("version", 1)
        if version not in range(1, VERSION + 1):
            knows = f"this steptime knows up to {VERSION}; upgrade steptime"
            raise InputError(f"{folder / PLAN}: has version {shorten(version)}, {knows}")
        plan = msgspec.convert(table, _Plan)
        tasks = _tasks(plan.jobs, (folder / CELLS).read_text(encoding="utf-8").splitlines(), code)
        scheduler_of(plan.scheduler)  # raises for one that is not here
        return Submission(folder, plan.token, plan.how, tasks, plan.largest, plan.scheduler)
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder}: is no submission: {error}") from None


def _tasks(jobs: Sequence[_Job], lines: Sequence[str], code: str) -> tuple[Task, ...]:
    """Return the tasks of a plan's jobs, whose cells are lines; raises `ValueError` for others."""
    tasks: list[Task] = []
    for number, job in enumerate(jobs):
        request = ResourceRequest(**job.allocation)
        need = Need(request, job.replicas, job.cores)
        for start, stop in job.slices:
            trials = []
            for line in lines[start:stop]:
                one = msgspec.json.decode(line, type=_Visit)
                workload = replace(workload_from_json(one.workload), code=code)
                cell = Cell(workload, one.backend, one.options, request)
                trials.append(Trial(one.id, cell, one.round))
            tasks.append(Task(len(tasks), number, need, tuple(trials)))
    if max((stop for job in jobs for _, stop in job.slices), default=0) != len(lines):
        raise ValueError(f"{CELLS} has {len(lines)} lines")
    return tuple(tasks)


def note_wanted(out: Path, ids: Iterable[str], whole: bool) -> None:
    """Write down which cells an experiment, as it is now, asks of a folder, or a part of it."""
    path = out / FOLDER / WANTED
    if not whole:
        ids = dict.fromkeys([*(wanted(out) or ()), *ids])
    write_whole(path, "".join(f"{one}\n" for one in ids), makes_folder=True)


def wanted(out: Path) -> Collection[str] | None:
    """Return the ids of the cells that were asked for last; None where nobody wrote them down."""
    try:
        return set((out / FOLDER / WANTED).read_text(encoding="ascii", errors="replace").split())
    except FileNotFoundError:
        return None


def folders(out: Path) -> list[Path]:
    """Return the folders of submissions, the first one first."""
    paths = [path for path in (out / FOLDER).glob("*") if _NAME.fullmatch(path.name)]
    return sorted(paths, key=lambda path: int(path.name.partition("-")[0]))


def submissions(out: Path) -> list[Submission]:
    """Return what was submitted beside the records in `out`; what has no plan was never sent."""
    return [read(path) for path in folders(out) if (path / PLAN).exists()]

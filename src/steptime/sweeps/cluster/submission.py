"""What was submitted to Slurm, as files: the cells, the tasks, and the names of their jobs.

A submission is a folder `slurm/NNN-TOKEN` beside the records:

* `cells.jsonl`: a line a cell, in the order in which tasks take them,
* `plan.json`: how cells are measured, the jobs, and the cells of each task,
* `job-K.sh`: the batch script of job K,
* `submitted.jsonl`: a line for each array that Slurm took,
* `withdrawn`: the first tasks of the arrays that must not begin any more, though Slurm may have
  taken them without an answer,
* `progress/TASK.RESTART.jsonl`: the cells that a task began, written by the task,
* `progress/TASK.job`: a link that names the job which runs the task; no other job runs it,
* `logs/`: the output of the jobs.

Beside them, `slurm/current` has the ids of the cells of the experiment as it was submitted last.
"""

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
from steptime.core.files import FULL, append_line, read_lines, write_atomically
from steptime.core.workload import workload_from_json, workload_to_json
from steptime.measure.contract import Options
from steptime.records.record import current_time
from steptime.records.row import group_by
from steptime.sweeps.cells import Cell, Trial
from steptime.sweeps.cluster.jobs import ArrayJob, JobArray, Need, TaskJob, TaskName
from steptime.sweeps.cluster.resources import need_of
from steptime.sweeps.cluster.script import find_clusters, make_script
from steptime.sweeps.resource_request import ResourceRequest
from steptime.sweeps.run import Means

FOLDER = "slurm"
PLAN, CELLS, CURRENT = "plan.json", "cells.jsonl", "current"
SUBMITTED, WITHDRAWN = "submitted.jsonl", "withdrawn"
VERSION = 3  # of plan.json
TOKEN_BYTES = 6
_FOLDER_NAME = re.compile(r"\d{3,}-[0-9a-f]+")
_START_NAME = re.compile(r"(?P<task>\d{1,9})\.(?P<restart>\d{1,9})\.jsonl", re.ASCII)


class _Job(msgspec.Struct):
    allocation: Mapping[str, Any]
    replicas: int
    cores: int
    slices: list[tuple[int, int]]


class _Plan(msgspec.Struct):
    """A `plan.json`, types checked."""

    token: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]+$")]
    means: Means
    jobs: list[_Job]
    max_tasks: Annotated[int, msgspec.Meta(ge=1)]
    version: int = VERSION


class _Visit(msgspec.Struct):
    """A line of `cells.jsonl`."""

    id: str
    workload: Mapping[str, Any]
    backend: str
    options: Options
    round: int


class _SubmittedArray(msgspec.Struct):
    """A line of `submitted.jsonl`; names that are no option of a command."""

    first: int
    tasks: int
    job: Annotated[str, msgspec.Meta(pattern=r"^\w[\w.-]*$")]
    time: datetime
    cluster: Annotated[str, msgspec.Meta(pattern=r"^(\w[\w.-]*)?$")] = ""


@dataclass(frozen=True)
class Task:
    """Trials that one task of an array measures: its number, its job and the need of that job."""

    number: int
    job: int
    need: Need
    trials: tuple[Trial, ...]


Job = tuple[Task, ...]  # tasks with one need, sent as one array or several


@dataclass(frozen=True)
class Submission:
    """A folder of what was submitted; no array has more than `max_tasks` tasks.

    `token` is drawn, so that no two folders have a name in common, nor their jobs.
    """

    folder: Path
    token: str
    means: Means
    tasks: tuple[Task, ...]
    max_tasks: int

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
        size = self.max_tasks
        parts = (job[i : i + size] for job in self.jobs for i in range(0, len(job), size))
        return tuple(self._make_array(array_tasks) for array_tasks in parts)

    def _make_array(self, tasks: Job) -> JobArray:
        first = tasks[0]
        request = first.need.request
        return JobArray(
            script=self.folder / f"job-{first.job}.sh",
            name=f"{self.name}-{first.number}",
            first=first.number,
            tasks=len(tasks),
            max_running=1 if request.node else request.max_running_tasks,  # one at a time on a node
        )

    @cached_property
    def task_names(self) -> Mapping[int, TaskName]:
        """The name of each task in Slurm: its array, and its place in it."""
        return {
            array.first + index: TaskName(array.name, index)
            for array in self.arrays
            for index in range(array.tasks)
        }

    @property
    def _submitted_arrays(self) -> list[_SubmittedArray]:
        """The arrays that Slurm took; raises `InputError` for lines of other types."""
        path = self.folder / SUBMITTED
        try:
            return msgspec.convert(read_lines(path), list[_SubmittedArray])
        except msgspec.ValidationError as error:
            raise InputError(f"{path}: is no list of what was sent: {error}") from None

    @cached_property
    def task_jobs(self) -> Mapping[int, TaskJob]:
        """The tasks of arrays that Slurm is known to have taken, with their jobs."""
        return {
            array.first + index: TaskJob(ArrayJob(array.job, array.cluster), index)
            for array in self._submitted_arrays
            for index in range(min(array.tasks, len(self.tasks)))
        }

    @property
    def submission_time(self) -> datetime:
        """When the first array was sent."""
        times = (array.time for array in self._submitted_arrays)
        return min(times, key=datetime.timestamp)

    @property
    def open_arrays(self) -> list[JobArray]:
        """The arrays of which it is not known that Slurm took them."""
        return [array for array in self.arrays if array.first not in self.task_jobs]

    @property
    def array_clusters(self) -> Mapping[str, tuple[str, ...]]:
        """The clusters on which each array, by its name, may be."""
        jobs = {number: task.job for number, task in self.task_jobs.items()}
        clusters = {}
        for array in self.arrays:
            job = jobs.get(array.first)  # None: Slurm gave no answer, so any cluster may have it
            request = self.tasks[array.first].need.request
            clusters[array.name] = (job.cluster,) if job else find_clusters(request)
        return clusters

    def make_script(self, need: Need) -> str:
        """Return the batch script of the job with a need."""
        python = need.request.python or sys.executable
        return make_script(need, self.name, str(self.folder), python)

    def note_job(self, array: JobArray, job: ArrayJob) -> None:
        """Append the job of an array to the list of what Slurm took."""
        line = {
            "first": array.first,
            "tasks": array.tasks,
            "job": job.number,
            "time": current_time(),
        }
        if job.cluster:
            line["cluster"] = job.cluster
        append_line(self.folder / SUBMITTED, line)

    def read_withdrawn(self) -> set[int]:
        """Return the first tasks of the arrays that were withdrawn."""
        try:
            text = (self.folder / WITHDRAWN).read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return set()
        return {int(word) for word in text.split() if word.isdecimal()}

    def write_withdrawn(self, first_tasks: Iterable[int]) -> None:
        """Replace the list of the arrays that were withdrawn."""
        lines = (f"{number}\n" for number in sorted(first_tasks))
        write_atomically(self.folder / WITHDRAWN, "".join(lines))

    def claim_task(self, task: int, job: str) -> bool:
        """Return whether a job may run a task: the first job that asks may, and no other.

        A task of a withdrawn array is claimed by no job any more.
        """
        link = self.folder / "progress" / f"{task}.job"
        claimant = job or "0"  # a link needs a target where no job is known
        # The array of a task is the last one that begins at or before it.
        array = next(array for array in reversed(self.arrays) if array.first <= task)
        is_withdrawn = array.first in self.read_withdrawn()
        if is_withdrawn and not link.is_symlink():  # unclaimed, and its cells were sent again
            return False
        try:  # to make a link is atomic: of several jobs, one succeeds
            link.symlink_to(claimant)
        except FileExistsError:
            return str(link.readlink()) == claimant
        except OSError as error:
            if error.errno in FULL:
                raise
            return True  # a file system without links cannot tell jobs apart
        return True

    def progress_file(self, task: int, restart: int) -> Path:
        """Return the file in which one start of a task writes its progress."""
        return self.folder / "progress" / f"{task}.{restart}.jsonl"

    @cached_property
    def restarts(self) -> Mapping[int, list[int]]:
        """The starts of each task that wrote a progress file, in their order."""
        paths = (self.folder / "progress").glob("*.*.jsonl")
        matches = filter(None, (_START_NAME.fullmatch(path.name) for path in paths))
        starts = sorted((int(match["task"]), int(match["restart"])) for match in matches)
        by_task = group_by(starts, itemgetter(0))
        return {task: [restart for _, restart in pairs] for task, pairs in by_task.items()}

    def list_begun(self, task: int) -> list[str]:
        """Return the ids of the cells that a task began, over all its starts."""
        files = (self.progress_file(task, restart) for restart in self.restarts.get(task, ()))
        return list_begun(line for file in files for line in read_lines(file))


def list_begun(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the ids of the cells that a task began, of the lines of its progress."""
    return [line["cell"] for line in lines if "cell" in line]


def pack_tasks(trials: Iterable[Trial]) -> tuple[Task, ...]:
    """Return tasks of trials with the same need, as many trials in a task as it says."""
    tasks: list[Task] = []
    trials_by_need = group_by(trials, lambda trial: need_of(trial.cell))
    for job_number, (need, job_trials) in enumerate(trials_by_need.items()):
        # Round by round; in a round worker by worker, since a change of worker costs a start.
        workers = dict.fromkeys(trial.cell.process for trial in job_trials)
        worker_order = {worker: position for position, worker in enumerate(workers)}
        job_trials.sort(key=lambda trial: (trial.round, worker_order[trial.cell.process]))
        task_size = need.request.cells_per_task
        for i in range(0, len(job_trials), task_size):
            trials_of_task = tuple(job_trials[i : i + task_size])
            tasks.append(Task(len(tasks), job_number, need, trials_of_task))
    return tuple(tasks)


def compose(out: Path, means: Means, trials: Iterable[Trial], max_tasks: int) -> Submission:
    """Return the next submission beside the records in `out`; nothing is written yet."""
    number = 1 + max((int(path.name.partition("-")[0]) for path in list_folders(out)), default=0)
    token = secrets.token_hex(TOKEN_BYTES)
    folder = (out / FOLDER / f"{number:03}-{token}").absolute()
    return Submission(folder, token, means, pack_tasks(trials), max_tasks)


def write(submission: Submission) -> None:
    """Write the folder of a submission."""
    folder = submission.folder
    scripts = {first.job: submission.make_script(first.need) for first, *_ in submission.jobs}
    for part in ("logs", "progress"):
        (folder / part).mkdir(parents=True)
    visits = [_make_visit(trial) for task in submission.tasks for trial in task.trials]
    (folder / CELLS).write_bytes(msgspec.json.Encoder().encode_lines(visits))
    for job, text in scripts.items():
        (folder / f"job-{job}.sh").write_text(text, encoding="utf-8")
    write_atomically(folder / PLAN, _plan_text(submission))  # last: now it is whole


def _make_visit(trial: Trial) -> _Visit:
    cell = trial.cell
    workload = workload_to_json(cell.workload)
    return _Visit(trial.id, workload, cell.backend, cell.options, trial.round)


def _plan_text(submission: Submission) -> str:
    """Return the text of all but the cells."""
    sizes = (len(task.trials) for task in submission.tasks)
    cell_slices = pairwise(accumulate(sizes, initial=0))  # of `cells.jsonl`; an iterator
    jobs = []
    for tasks in submission.jobs:
        need = tasks[0].need
        allocation = need.request.model_dump(by_alias=True)
        job_slices = list(islice(cell_slices, len(tasks)))
        jobs.append(_Job(allocation, need.replicas, need.cores, job_slices))
    plan = _Plan(submission.token, submission.means, jobs, submission.max_tasks)
    return msgspec.json.format(msgspec.json.encode(plan), indent=1).decode()


def read(folder: Path, code: str = "") -> Submission:
    """Return the submission of a folder, whose native networks may run the `code`.

    Raises:
        InputError: for a folder that is damaged, or of another version.
    """
    try:
        table = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        version = table.get("version", 1)
        if version != VERSION:
            knows = f"this steptime reads version {VERSION} only"
            raise InputError(f"{folder / PLAN}: has version {shorten(version)}, {knows}")
        plan = msgspec.convert(table, _Plan)
        lines = (folder / CELLS).read_text(encoding="utf-8").splitlines()
        tasks = _make_tasks(plan.jobs, lines, code)
        return Submission(folder, plan.token, plan.means, tasks, plan.max_tasks)
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder}: is no submission: {error}") from None


def _make_tasks(jobs: Sequence[_Job], lines: Sequence[str], code: str) -> tuple[Task, ...]:
    """Return the tasks of a plan's jobs, whose cells are lines; raises `ValueError` for others."""
    tasks: list[Task] = []
    line_count = max((stop for job in jobs for _start, stop in job.slices), default=0)
    for number, job in enumerate(jobs):
        request = ResourceRequest(**job.allocation)
        need = Need(request, job.replicas, job.cores)
        for start, stop in job.slices:
            trials = tuple(_make_trial(line, request, code) for line in lines[start:stop])
            tasks.append(Task(len(tasks), number, need, trials))
    if line_count != len(lines):
        raise ValueError(f"{CELLS} has {len(lines)} lines")
    return tuple(tasks)


def _make_trial(line: str, request: ResourceRequest, code: str) -> Trial:
    visit = msgspec.json.decode(line, type=_Visit)
    workload = replace(workload_from_json(dict(visit.workload)), code=code)
    return Trial(visit.id, Cell(workload, visit.backend, visit.options, request), visit.round)


def write_current_ids(out: Path, ids: Iterable[str], is_shard: bool) -> None:
    """Write down the cells of an experiment as it is now; those of a shard are added."""
    path = out / FOLDER / CURRENT
    if is_shard:
        ids = dict.fromkeys([*(read_current_ids(out) or ()), *ids])
    write_atomically(path, "".join(f"{cell}\n" for cell in ids), makes_folder=True)


def read_current_ids(out: Path) -> Collection[str] | None:
    """Return the ids of the cells as submitted last; None where nobody wrote them down."""
    try:
        return set((out / FOLDER / CURRENT).read_text(encoding="ascii", errors="replace").split())
    except FileNotFoundError:
        return None


def list_folders(out: Path) -> list[Path]:
    """Return the folders of submissions, the first one first."""
    paths = [path for path in (out / FOLDER).glob("*") if _FOLDER_NAME.fullmatch(path.name)]
    return sorted(paths, key=lambda path: int(path.name.partition("-")[0]))


def read_submissions(out: Path) -> list[Submission]:
    """Return the submissions beside the records; a folder without a plan was never sent."""
    return [read(path) for path in list_folders(out) if (path / PLAN).exists()]

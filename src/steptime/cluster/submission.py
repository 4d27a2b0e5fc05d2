"""What was submitted to a scheduler, as files: which cells, in which tasks, under which job names.

A submission is a folder `slurm/NNN-HASH` beside the records, named by the hash of what it holds:

* `cells.jsonl`: a line a cell, in the order in which tasks take them,
* `plan.json`: how cells are measured, the jobs, and the cells of each task,
* `job-K.sh`: the batch script of job K,
* `submitted.jsonl`: a line for each array that the scheduler took,
* `progress/TASK.RESTART.jsonl`: what a task began and ended, written by the task,
* `logs/`: what the jobs printed.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from steptime.cluster.resources import need_of
from steptime.cluster.script import Need, script
from steptime.core.errors import InputError
from steptime.core.workload import workload_from_json, workload_to_json
from steptime.measure.contract import Options
from steptime.sweep.cells import Cell
from steptime.sweep.resource_request import Allocation
from steptime.sweep.run import How

FOLDER = "slurm"
SUBMITTED = "submitted.jsonl"
_NAME = re.compile(r"\d{3,}-[0-9a-f]{8}")


@dataclass(frozen=True)
class Visit:
    """One visit of a cell: `id` is the content hash of cell and round."""

    id: str
    cell: Cell
    round: int


@dataclass(frozen=True)
class Job:
    """Tasks with one need: the first of them, and where the cells of each begin and end."""

    need: Need
    first_task: int
    slices: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Submission:
    """A folder of what was submitted; no array has more than `largest` tasks.

    `token` is drawn, so that no two folders have jobs of one name.
    """

    folder: Path
    token: str
    how: How
    jobs: tuple[Job, ...]
    visits: tuple[Visit, ...]
    largest: int

    @property
    def out(self) -> Path:
        """The folder of the records, which it lies in."""
        return self.folder.parent.parent

    @property
    def name(self) -> str:
        """The name that its arrays begin with."""
        return f"steptime-{self.token}"

    def tasks(self) -> Iterator[tuple[int, Job, tuple[Visit, ...]]]:
        """Give every task: its number, its job, its visits."""
        for job in self.jobs:
            for i, (start, stop) in enumerate(job.slices):
                yield job.first_task + i, job, self.visits[start:stop]

    def arrays(self) -> Iterator[tuple[int, Job, int, int]]:
        """Give the arrays to submit: number of the job, job, first task, how many."""
        for number, job in enumerate(self.jobs):
            for start in range(0, len(job.slices), self.largest):
                tasks = min(self.largest, len(job.slices) - start)
                yield number, job, job.first_task + start, tasks


def array_name(submission: Submission, first_task: int) -> str:
    """Give the name of the array whose first task has this number: how it is found again."""
    return f"{submission.name}-{first_task}"


def packed(visits: Iterable[Visit]) -> tuple[list[Visit], list[Job]]:
    """Give the visits in the order of tasks, and the jobs: those with one need in one array.

    Within a need cells of one worker stand together, so that it is started once a task.
    """
    by_need: dict[Need, list[Visit]] = {}
    for visit in visits:
        by_need.setdefault(need_of(visit.cell), []).append(visit)
    ordered: list[Visit] = []
    jobs: list[Job] = []
    first_task = 0
    for need, group in by_need.items():
        places = {place: i for i, place in enumerate(dict.fromkeys(v.cell.place for v in group))}
        group.sort(key=lambda visit: (visit.round, places[visit.cell.place]))
        begin = len(ordered)
        ordered += group
        each = need.allocation.cells_per_task
        slices = tuple(
            (start, min(start + each, len(ordered))) for start in range(begin, len(ordered), each)
        )
        jobs.append(Job(need, first_task, slices))
        first_task += len(slices)
    return ordered, jobs


def compose(out: Path, how: How, visits: Iterable[Visit], largest: int) -> Submission:
    """Give the next submission beside the records in `out`; nothing is written yet."""
    ordered, jobs = packed(visits)
    plain = Submission(Path(), "", how, tuple(jobs), tuple(ordered), largest)
    content = _plan(plain) + "".join(visit.id for visit in ordered)  # an id is a hash of its cell
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    number = 1 + max((int(path.name.partition("-")[0]) for path in folders(out)), default=0)
    folder = (out / FOLDER / f"{number:03}-{digest}").absolute()
    return replace(plain, folder=folder, token=secrets.token_hex(6))


def write(submission: Submission, python: str) -> None:
    """Write the folder of a submission."""
    folder = submission.folder
    for part in ("logs", "progress"):
        (folder / part).mkdir(parents=True)
    cells = "".join(json.dumps(_visit_to_json(visit)) + "\n" for visit in submission.visits)
    (folder / "cells.jsonl").write_text(cells, encoding="utf-8")
    for i, job in enumerate(submission.jobs):
        (folder / script_name(i)).write_text(job_script(submission, job, python), encoding="utf-8")
    plan = _plan(submission)
    (folder / "plan.json").write_text(plan, encoding="utf-8")  # last: now the folder is whole


def _plan(submission: Submission) -> str:
    """Give the text of all but the cells."""
    jobs = [_job_to_json(job) for job in submission.jobs]
    plan = {
        "token": submission.token,
        "how": asdict(submission.how),
        "largest": submission.largest,
        "jobs": jobs,
    }
    return json.dumps(plan, indent=1)


def job_script(submission: Submission, job: Job, python: str) -> str:
    """Give the batch script of one of the jobs."""
    interpreter = job.need.allocation.python or python
    return script(job.need, submission.name, str(submission.folder), interpreter)


def script_name(job: int) -> str:
    """Give the name of the batch script of job number `job`."""
    return f"job-{job}.sh"


def note_submitted(submission: Submission, first: int, tasks: int, job: str) -> None:
    """Write down that the scheduler took an array, under this job id."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    line = {"first": first, "tasks": tasks, "job": job, "at": at}
    append_line(submission.folder / SUBMITTED, line)


def submitted(submission: Submission) -> list[dict[str, Any]]:
    """Give the arrays that the scheduler is known to have taken: job, first task, how many."""
    return read_lines(submission.folder / SUBMITTED)


def taken(submission: Submission) -> dict[int, tuple[str, int]]:
    """Give the tasks of these arrays: the id of the job, and the place in it."""
    return {
        line["first"] + i: (line["job"], i)
        for line in submitted(submission)
        for i in range(line["tasks"])
    }


def begun(lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Give the ids of the cells that a task began, as its progress tells them."""
    return [line["cell"] for line in lines if "cell" in line]


def folders(out: Path) -> list[Path]:
    """Give the folders of submissions, the first one first."""
    found = [path for path in (out / FOLDER).glob("*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.partition("-")[0]))


def submissions(out: Path) -> list[Submission]:
    """Give what was submitted beside the records in `out`; one without a plan was never sent."""
    return [read(path) for path in folders(out) if (path / "plan.json").exists()]


def read(folder: Path) -> Submission:
    """Give the submission of a folder; raises `InputError` for one that is damaged."""
    try:
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        lines = (folder / "cells.jsonl").read_text(encoding="utf-8").splitlines()
        jobs = tuple(_job_from_json(table) for table in plan["jobs"])
        allocations = [
            job.need.allocation
            for job in jobs
            for start, stop in job.slices
            for _ in range(start, stop)
        ]
        visits = tuple(
            _visit_from_json(json.loads(line), allocation)
            for line, allocation in zip(lines, allocations, strict=True)
        )
        return Submission(folder, plan["token"], How(**plan["how"]), jobs, visits, plan["largest"])
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: is no submission: {error}") from None


def append_line(path: Path, table: dict[str, Any]) -> None:
    """Add one line to a file that only this process writes."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(table) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Give the lines of such a file; an absent file has none.

    A line that cannot be read is passed over: what it told, a job's name or a record tells again.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with suppress(ValueError):
            table = json.loads(line)
            if isinstance(table, dict):
                found.append(table)
    return found


def _visit_to_json(visit: Visit) -> dict[str, Any]:
    cell = visit.cell
    return {
        "id": visit.id,
        "workload": workload_to_json(cell.workload),
        "backend": cell.backend,
        "options": asdict(cell.options),
        "round": visit.round,
    }


def _visit_from_json(table: dict[str, Any], allocation: Allocation) -> Visit:
    cell = Cell(
        workload_from_json(table["workload"]),
        table["backend"],
        Options(**table["options"]),
        allocation,
    )
    return Visit(table["id"], cell, table["round"])


def _job_to_json(job: Job) -> dict[str, Any]:
    return {
        "allocation": job.need.allocation.model_dump(),
        "replicas": job.need.replicas,
        "cores": job.need.cores,
        "first_task": job.first_task,
        "slices": job.slices,
    }


def _job_from_json(table: dict[str, Any]) -> Job:
    need = Need(Allocation(**table["allocation"]), table["replicas"], table["cores"])
    slices: Sequence[Sequence[int]] = table["slices"]
    return Job(need, table["first_task"], tuple((start, stop) for start, stop in slices))

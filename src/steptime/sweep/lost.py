"""Cells whose job ended before they had a record: why, and the record that says so.

What the job printed is asked first, then what the scheduler still remembers.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from steptime import catalog
from steptime.core.errors import InputError
from steptime.core.record import Record
from steptime.launch.local import Death
from steptime.launch.script import NO_MODULE, RUN_FIRST_FAILED
from steptime.launch.slurm import Ended
from steptime.measure.contract import method
from steptime.sweep import manifest
from steptime.sweep.manifest import Submission, Visit
from steptime.sweep.run import How

UNKNOWN = "unknown"
_LOG_BYTES = 20_000  # of the end of what a job printed

OUTPUT = (  # what a job prints: its cause; the first that is found counts
    (r"DUE TO TIME LIMIT", "time-limit"),
    (r"DUE TO NODE FAILURE|DUE TO NODE .*NOT RESPONDING", "node-fail"),
    (r"DUE TO PREEMPTION", "preempted"),
    (r"[Oo]om.kill|[Oo]ut [Oo]f [Mm]emory|[Ee]xceeded .*memory limit", "killed"),
    (re.escape(NO_MODULE), "module-conflict"),
    (r"GLIBCXX_|ModuleNotFoundError|ImportError", "import-error"),
    (r"[Ii]llegal instruction", "illegal-instruction"),
    (re.escape(RUN_FIRST_FAILED), "bad-config"),
    (r"No such file or directory|command not found|can't open file", "missing-file"),
    (r"No space left on device|[Dd]isk quota exceeded", "no-space"),
    (r"Segmentation fault|Aborted|Bus error|core dumped", "crashed"),
    (r"\*\*\* (?:JOB|STEP) .*CANCELLED AT", "cancelled"),
    (r"\bKilled\b", "killed"),
    (r"Traceback \(most recent call last\)", "crashed"),
)


def cause_of_output(submission: Submission, task: int) -> str:
    """Give the cause that the end of a task's output tells, or ""."""
    text = output_of(submission, task)
    return next((cause for pattern, cause in OUTPUT if re.search(pattern, text)), "")


def output_of(submission: Submission, task: int) -> str:
    """Give the end of what a task's jobs printed; "" where there is nothing."""
    names = {
        f"{line['job']}_{task - line['first']}.out"
        for line in manifest.read_lines(submission.folder / manifest.SUBMITTED)
        if line["first"] <= task < line["first"] + line["tasks"]
    }
    return "\n".join(_end_of(submission.folder / "logs" / name) for name in sorted(names))


def _end_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def death_of(submission: Submission, task: int, visit: Visit, ended: Ended | None) -> Death:
    """Give why a visit has no record though its task is over; `ended` is the scheduler's word."""
    lines = progress_of(submission, task)
    cause = cause_of_output(submission, task) or (ended.cause if ended else "") or "vanished"
    began = any(line.get("cell") == visit.id for line in lines)
    where = "while it was measured" if began else "before it was begun"
    said = ended.text if ended else "the scheduler no longer knows it"
    job = f"{ended.job} " if ended else ""
    return Death(_status(cause, ended), cause, f"job {job}ended {where} ({said})")


def _status(cause: str, ended: Ended | None) -> str:
    """Give oom where a kill was for memory; every other loss is a failure, to be tried again."""
    for_memory = ended is not None and ended.state == "OUT_OF_MEMORY"
    return "oom" if cause == "killed" and for_memory else "failed"


def progress_of(submission: Submission, task: int) -> list[dict[str, str]]:
    """Give what a task wrote of itself, over all its starts."""
    paths = sorted(
        (submission.folder / "progress").glob(f"{task}.*.jsonl"),
        key=lambda path: int(path.name.split(".")[1]),
    )
    return [line for path in paths for line in manifest.read_lines(path)]


def lost_record(visit: Visit, how: How, death: Death) -> Record:
    """Give the record of a visit that no worker answered for."""
    cell = visit.cell
    return Record(
        origin="measured",
        method=method(cell.backend, UNKNOWN, cell.options, how.runs),
        workload=cell.workload,
        platform=_platform(cell.options.gpu),
        quantities={},
        status=death.status,
        cause=death.cause,
        note=death.note,
        env={"cell": visit.id, "round": visit.round, "budget_s": how.budget_s},
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _platform(gpu: str) -> str:
    """Give the platform that was asked for, as far as its name tells it."""
    try:
        return catalog.device(gpu).name if gpu else UNKNOWN
    except InputError:
        return gpu

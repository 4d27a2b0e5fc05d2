"""Cells whose job ended before they had a record: why, and the record that says so.

What the job printed is asked first, then what the scheduler still remembers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from steptime.cluster import submission as manifest
from steptime.cluster.resources import UNKNOWN, platform_of
from steptime.cluster.script import BEGUN, NO_MODULE, READY, RUN_FIRST_FAILED
from steptime.cluster.slurm import Ended
from steptime.cluster.submission import Submission, Visit
from steptime.core.record import Record
from steptime.launch.local import Death
from steptime.measure.contract import method
from steptime.sweep.run import How, unmeasured

FOR_MEMORY = "killed for memory"
_LOG_BYTES = 50_000  # of the end of what a job printed

OUTPUT = (  # what a job prints: its cause; the first that is found counts, Slurm's words first
    (r"DUE TO TIME LIMIT", "time-limit"),
    (r"DUE TO NODE FAILURE", "node-fail"),
    (r"DUE TO PREEMPTION", "preempted"),
    (r"[Oo]om.kill|[Oo]ut [Oo]f [Mm]emory|[Ee]xceeded .*memory limit", FOR_MEMORY),
    (r"\*\*\* (?:JOB|STEP) .*CANCELLED AT", "cancelled"),
    (re.escape(NO_MODULE), "module-conflict"),
    (r"GLIBCXX_|ModuleNotFoundError|ImportError", "import-error"),
    (r"[Ii]llegal instruction", "illegal-instruction"),
    (re.escape(RUN_FIRST_FAILED), "bad-config"),
    (
        r"No such file or directory|command not found|exec: .*: not found|can't open file",
        "missing-file",
    ),
    (r"No space left on device|[Dd]isk quota exceeded", "no-space"),
    (r"Segmentation fault|Aborted|Bus error|core dumped", "crashed"),
    (r"\bKilled\b", "killed"),
    (r"Traceback \(most recent call last\)", "crashed"),
)


def cause_of_output(text: str) -> str:
    """Give the cause that one start of a job printed, or "".

    What modules and the lines of `run_first` printed counts only where the task did not begin.
    """
    text = text.partition(READY)[2] or text
    return next((cause for pattern, cause in OUTPUT if re.search(pattern, text)), "")


def outputs(submission: Submission, task: int) -> list[str]:
    """Give the end of what a task printed, one text for each time that it was started."""
    taken = manifest.taken(submission)
    if task not in taken:
        return []
    job, index = taken[task]
    found = _end_of(submission.folder / "logs" / f"{job}_{index}.out")
    return found.split(BEGUN)[1:] if BEGUN in found else [found] if found else []


def _end_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


@dataclass(frozen=True)
class End:
    """How a task ended: the cause of what it left undone, the scheduler's word, what it began."""

    cause: str
    ended: Ended | None
    began: tuple[str, ...]

    def death(self, visit: Visit) -> Death:
        """Give why a visit has no record; only the one in flight can have been too large."""
        in_flight = self.began[-1:] == (visit.id,)
        where = "while it was measured" if in_flight else "before it was begun"
        said = f" ({self.ended.text})" if self.ended else ""
        job = f"job {self.ended.job}" if self.ended else "its job"
        for_memory = self.cause == FOR_MEMORY
        cause = "killed" if for_memory else self.cause
        status = "oom" if for_memory and in_flight else "failed"
        return Death(status, cause, f"{job} ended {where}{said}")


def end_of(submission: Submission, task: int, ended: Ended | None) -> End:
    """Give how a task ended, as far as its output and the scheduler (`ended`) tell it.

    One that printed nothing and left the queue never began: what waits can only be cancelled, and
    Slurm forgets such a task at once.
    """
    printed = outputs(submission, task)
    lines = progress_of(submission, task)
    never = "" if printed or lines else "cancelled"
    said = cause_of_output(printed[-1]) if printed else ""
    by_state = ended.cause if ended else ""
    if by_state == "crashed" and printed and READY not in printed[-1]:
        by_state = "bad-config"  # what comes before the first cell ended the script
    cause = said or by_state or never or "vanished"
    return End(cause, ended, tuple(manifest.begun(lines)))


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
    unknown = method(cell.backend, UNKNOWN, cell.options, how.runs)
    env = {"cell": visit.id, "round": visit.round, "budget_s": how.budget_s}
    return unmeasured(cell, unknown, platform_of(cell.options.gpu), death, env)

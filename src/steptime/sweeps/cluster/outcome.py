"""Cells whose job ended before they had a record: why, and the failure record that says so.

What the job printed is asked first, then what the scheduler still remembers.
"""

import re
from collections.abc import Callable

from steptime.hardware import catalog
from steptime.measure.contract import method
from steptime.measure.launch import Failure
from steptime.records.record import Record
from steptime.sweeps.cells import Trial
from steptime.sweeps.cluster.resources import UNKNOWN
from steptime.sweeps.cluster.scheduler import (
    BEGUN,
    FOR_MEMORY,
    NO_MODULE,
    READY,
    RUN_FIRST_FAILED,
    JobExit,
    scheduler_of,
)
from steptime.sweeps.cluster.submission import Submission
from steptime.sweeps.run import Means, unmeasured

_LOG_BYTES = 50_000  # of the end of what a job printed
PRINTED = (  # what a job prints: its cause; the first that is found counts, the scheduler's first
    (re.escape(NO_MODULE), "module-conflict"),
    (r"GLIBCXX_|ModuleNotFoundError|ImportError", "import-error"),
    (r"[Ii]llegal instruction", "illegal-instruction"),
    (re.escape(RUN_FIRST_FAILED), "bad-config"),
    (r"No such file or directory|command not found|exec: .*: not found", "missing-file"),
    (r"can't open file", "missing-file"),
    (r"No space left on device|[Dd]isk quota exceeded", "no-space"),
    (r"Segmentation fault|Aborted|Bus error|core dumped", "crashed"),
    (r"\bKilled\b", "killed"),
    (r"Traceback \(most recent call last\)", "crashed"),
)
NEVER_BEGAN, VANISHED, BAD_SCRIPT = "cancelled", "vanished", "bad-config"


def cause_of_output(text: str, scheduler: str = "slurm") -> str:
    """Return the cause that one start of a job printed, or "".

    What modules and the lines of `run_first` printed counts only where the task did not begin.
    """
    text = text.partition(READY)[2] or text
    patterns = (*scheduler_of(scheduler).printed, *PRINTED)
    return next((cause for pattern, cause in patterns if re.search(pattern, text)), "")


def outputs(submission: Submission, task: int) -> list[str]:
    """Return the end of what a task printed, one text for each time that it was started."""
    job, index = submission.sent.get(task, ("", 0))
    path = submission.folder / "logs" / f"{job}_{index}.out"
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        text = file.read().decode("utf-8", "replace")
    return text.split(BEGUN)[1:] if BEGUN in text else [text] if text else []


def failures_of(
    submission: Submission, task: int, ended: JobExit | None
) -> Callable[[Trial], Failure]:
    """Return what says why a trial of a task has no record, by its output and the scheduler.

    One that printed nothing and left the queue never began: what waits can only be cancelled, and
    a scheduler may forget such a task at once. Only what was in flight can have been too large.
    """
    printed, in_flight = outputs(submission, task), submission.begun(task)[-1:]
    said = cause_of_output(printed[-1], submission.scheduler) if printed else ""
    by_state = ended.cause if ended else ""
    if by_state == "crashed" and printed and READY not in printed[-1]:
        by_state = BAD_SCRIPT  # what comes before the first cell ended the script
    never = "" if printed or task in submission.restarts else NEVER_BEGAN
    cause = said or by_state or never or VANISHED
    job, state = (f"job {ended.job}", f" ({ended.text})") if ended else ("its job", "")

    def failure(trial: Trial) -> Failure:
        began = in_flight == [trial.id]
        note = f"{job} ended {'while it was measured' if began else 'before it was begun'}{state}"
        if cause == FOR_MEMORY:
            return Failure("oom" if began else "failed", "killed", note)
        return Failure("failed", cause, note)

    return failure


def failure_record(trial: Trial, how: Means, failure: Failure) -> Record:
    """Return the record of a trial that no worker answered for."""
    cell = trial.cell
    own = method(cell.backend, UNKNOWN, cell.options, how.runs)
    gpu = cell.options.gpu
    node = cell.request.node if cell.request else ""
    platform = catalog.platform_of(gpu) or gpu or UNKNOWN
    return unmeasured(trial, how, own, platform, failure, **({"host": node} if node else {}))

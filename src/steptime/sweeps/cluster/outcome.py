"""Cells whose job ended before they had a record: the cause, and the failure record of each.

What Slurm decided (a node failed, a time limit) counts first, then the output of the job.
"""

import re
from collections.abc import Callable, Iterable

from steptime.hardware import device_words
from steptime.measure.contract import make_record_method
from steptime.measure.launch import Failure
from steptime.records.record import Record
from steptime.sweeps.cells import Trial
from steptime.sweeps.cluster.jobs import (
    BEGUN,
    FOR_MEMORY,
    NO_MODULE,
    READY,
    RUN_FIRST_FAILED,
    JobExit,
)
from steptime.sweeps.cluster.parsing import PRINTED_CAUSES
from steptime.sweeps.cluster.resources import UNKNOWN
from steptime.sweeps.cluster.submission import Submission
from steptime.sweeps.run import Means, make_unmeasured

_LOG_BYTES = 50_000  # of the end of the output of a job
SCRIPT_CAUSES = (  # patterns of the output of a job with their causes; the first match counts
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
CRASHED = "crashed"
DECISIVE_CAUSES = {"node-fail", "preempted", "time-limit", FOR_MEMORY}
"""Causes that Slurm decides; no line of the output is more likely."""
RESTART_CAUSES = {"node-fail", "preempted"}  # after these Slurm starts a job again
NODE_FAIL = "node-fail"


def cause_of_output(text: str) -> str:
    """Return the cause that the output of one start of a job tells, or "".

    Lines of modules and of `run_first` count only where the task did not begin.
    """
    return _find_cause(text, (*PRINTED_CAUSES, *SCRIPT_CAUSES))


def cause_of_restart(text: str) -> str:
    """Return the cause for which Slurm started a job again, of the output of the start before.

    A node that loses its power prints nothing.
    """
    causes = [(pattern, cause) for pattern, cause in PRINTED_CAUSES if cause in RESTART_CAUSES]
    return _find_cause(text, causes) or NODE_FAIL


def _find_cause(text: str, patterns: Iterable[tuple[str, str]]) -> str:
    _, _, text_of_task = text.partition(READY)
    searched_text = text_of_task or text  # without the lines of modules where the task began
    causes = (cause for pattern, cause in patterns if re.search(pattern, searched_text))
    return next(causes, "")


def read_outputs(submission: Submission, task: int) -> list[str]:
    """Return the end of the output of a task, one text for each of its starts."""
    task_job = submission.task_jobs.get(task)
    if task_job is None:
        return []
    path = submission.folder / "logs" / f"{task_job.text}.out"
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        text = file.read().decode("utf-8", "replace")
    if BEGUN in text:
        # Each start of the task appends to the file, and prints this word first.
        return text.split(BEGUN)[1:]
    return [text] if text else []


def judge_cause(job_exit: JobExit | None, outputs: list[str], has_begun: bool) -> str:
    """Return the cause of the missing records of a task, by Slurm's answer and its output.

    A task that printed nothing, left the queue and has no exit never began: a waiting task can only
    be cancelled, and Slurm may forget it at once.
    """
    output = outputs[-1] if outputs else ""
    state_cause = job_exit.cause if job_exit else ""
    # The surest evidence first: a limit by which Slurm itself ended the job, then what the job
    # printed last, then the other states of Slurm.
    if state_cause in DECISIVE_CAUSES:
        return state_cause
    if state_cause == NEVER_BEGAN:  # somebody cancelled it; Slurm's own lines say more
        return _find_cause(output, PRINTED_CAUSES) or state_cause
    output_cause = cause_of_output(output) if output else ""
    if output_cause:
        return output_cause
    if state_cause == CRASHED and output and READY not in output:
        return BAD_SCRIPT  # a line before the first cell ended the script
    if state_cause:
        return state_cause
    left_traces = bool(outputs) or has_begun or job_exit is not None
    return VANISHED if left_traces else NEVER_BEGAN


def explain_failures(
    submission: Submission, task: int, job_exit: JobExit | None
) -> Callable[[Trial], Failure]:
    """Return the function that explains why a trial of a task has no record.

    Only the trial in flight can have been too large for the memory.
    """
    outputs = read_outputs(submission, task)
    begun_ids = submission.list_begun(task)
    in_flight_id = begun_ids[-1] if begun_ids else None
    has_begun = task in submission.restarts  # a task writes a file at each beginning
    cause = judge_cause(job_exit, outputs, has_begun)
    job = f"job {job_exit.task.text}" if job_exit else "its job"
    state = f" ({job_exit.text})" if job_exit else ""

    def explain(trial: Trial) -> Failure:
        is_in_flight = trial.id == in_flight_id
        time = "while it was measured" if is_in_flight else "before it was begun"
        note = f"{job} ended {time}{state}"
        # Only the cell in flight can have filled the memory; those behind it never began.
        if cause == FOR_MEMORY:
            return Failure("oom" if is_in_flight else "failed", "killed", note)
        return Failure("failed", cause, note)

    return explain


def make_failure_record(trial: Trial, means: Means, failure: Failure) -> Record:
    """Return the record of a trial for which no worker answered."""
    cell = trial.cell
    record_method = make_record_method(cell.backend, UNKNOWN, cell.options, means.runs)
    gpu = cell.options.gpu
    node = cell.request.node if cell.request else ""
    platform = device_words.platform_of(gpu) or gpu or UNKNOWN
    facts = {"host": node} if node else {}
    return make_unmeasured(trial, means, record_method, platform, failure, **facts)

"""One task of a job: measures its cells one after another, and leaves a record of each.

    python -m steptime.sweeps.cluster.task SUBMISSION TASK [FILE.py:NAME]

The code is what its native networks run: a batch script says it, and no file of cells.

A scheduler that starts the job again finds the task where it stopped: cells with a final record are
passed over, and the one that was in flight when the node went down leaves a record that says so. A
cell that took its job down `requeues` times is given up.
"""

import errno
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from steptime.core.errors import InputError
from steptime.core.files import append_line, read_lines
from steptime.core.progress import note
from steptime.formats import located
from steptime.measure.launch import Failure, StartError
from steptime.records import store
from steptime.records.record import Record, now
from steptime.sweeps.cells import Trial
from steptime.sweeps.cluster import submission as files
from steptime.sweeps.cluster.outcome import cause_of_output, failure_record, outputs
from steptime.sweeps.cluster.scheduler import Placement, scheduler_of
from steptime.sweeps.cluster.status import NODE_FAIL
from steptime.sweeps.cluster.submission import Submission, Task
from steptime.sweeps.run import attempt
from steptime.sweeps.workers import Workers

SETTLE_S = 0.5
"""All processes of a job are ended: a worker may be gone before this one gets its own signal."""
FOLLOW_S = 120.0  # in which other ranks must see that rank 0 has begun
MISSING_FILE, BAD_CONFIG = "missing-file", "bad-config"


class StopError(Exception):
    """The scheduler asked the job to end, and will say why."""


@dataclass(frozen=True)
class Start:
    """One start of a task: what it is to do, where, and with what."""

    submission: Submission
    task: Task
    placement: Placement
    workers: Workers

    @property
    def progress(self) -> Path:
        """The file that tells what it began."""
        return self.submission.progress_file(self.task.number, self.placement.restarts)

    def with_facts(self, record: Record, facts: Mapping[str, str]) -> Record:
        """Return the record with what it is found by later: its submission and job."""
        own = {"submission": self.submission.folder.name}
        if node := self.task.need.request.node or facts.get("node"):
            own["host"] = node
        env = {**record.env, **own, self.submission.scheduler: dict(facts)}
        return replace(record, env=env)


def main(arguments: Sequence[str]) -> int:
    """Run the task that the command line names; of several ranks, one of them."""
    folder, number, *code = arguments
    submission = files.read(Path(folder), *code)
    task = submission.tasks[int(number)]
    scheduler = scheduler_of(submission.scheduler)
    scheduler.confine()
    workers = Workers()
    start = Start(submission, task, scheduler.placement(), workers)
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        (_lead if workers.rank.is_zero else _follow)(start)
    except StopError:
        return 0  # the scheduler knows why, and says it
    except (OSError, store.StoreError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
            return errno.ENOSPC  # the log may be on the same disk: only the exit code is left
        raise
    finally:
        signal.signal(signal.SIGTERM, before)  # nothing is left to be stopped
        workers.close()
    return 0  # what became of the cells is in their records


def _lead(start: Start) -> None:
    """Measure the cells that are left of a task, and write what becomes of them."""

    def say(**table: Any) -> None:
        append_line(start.progress, {**table, "at": now()})

    with store.open_writer(start.submission.out) as writer:
        trials = left(start, writer) if start.placement.restarts else start.task.trials
        facts = start.placement.facts
        say(began=dict(facts), visits=[trial.id for trial in trials])
        for trial in trials:
            record = _record(start, trial, partial(say, cell=trial.id))
            if record.status == "failed":
                time.sleep(SETTLE_S)
            writer.append(start.with_facts(record, facts))
    say(ended="all done")


def _follow(start: Start) -> None:
    """Take part in the cells that rank 0 measures; it says which, and keeps the records."""
    end = time.monotonic() + FOLLOW_S
    while not (lines := read_lines(start.progress)):
        if time.monotonic() > end:
            number = start.task.number
            raise InputError(f"rank 0 of task {number} did not begin within {FOLLOW_S:g} s")
        time.sleep(0.1)
    by_id = {trial.id: trial for trial in start.task.trials}
    for name in lines[0]["visits"]:
        record = _record(start, by_id[name], lambda: None)
        if record.status != "ok":
            note(f"rank {start.workers.rank.rank}: {record.cause}: {record.note}")


def _record(start: Start, trial: Trial, begin: Callable[[], None]) -> Record:
    """Return the record of a trial, whatever happened; `begin` is called once it has a worker."""
    workers, how = start.workers, start.submission.how
    try:
        record = attempt(workers, trial, how, begin)
    except StartError as error:
        record = failure_record(trial, how, error.failure)
    except InputError as error:
        file = located(trial.cell.workload.file, trial.cell.workload.sha256)
        cause = MISSING_FILE if file and not Path(file).exists() else BAD_CONFIG
        record = failure_record(trial, how, Failure("failed", cause, str(error)))
    if workers.rank.size > 1:
        workers.close()  # ranks that saw a cell end differently meet again in new processes
    return record


def left(start: Start, writer: store.Writer) -> tuple[Trial, ...]:
    """Return the trials that have no record yet, after a record of what was in flight."""
    submission, requeues = start.submission, start.task.need.request.requeues
    known = {
        record.env["cell"]
        for record in store.load(submission.out, lambda _: None, required=False)
        if record.env.get("submission") == submission.folder.name and not record.env.get("again")
    }
    deaths: list[str] = []
    in_flight: list[str] = []
    before: list[dict[str, Any]] = []
    for earlier in range(start.placement.restarts):
        before = read_lines(submission.progress_file(start.task.number, earlier))
        in_flight = files.begun(before)[-1:]
        deaths += in_flight
    rest = []
    for trial in start.task.trials:
        if trial.id in known:
            continue
        times = deaths.count(trial.id)
        if in_flight == [trial.id]:
            (printed,) = outputs(submission, start.task.number)[-2:-1] or [""]
            # a node that is dead prints nothing
            cause = cause_of_output(printed, submission.scheduler) or NODE_FAIL
            gave_up = f"; given up after {times} times" if times > requeues else ""
            why = f"its job ended while it was measured{gave_up}"
            record = failure_record(trial, submission.how, Failure("failed", cause, why))
            record = replace(record, env={**record.env, "again": times <= requeues})
            facts: dict[str, str] = next((one["began"] for one in before if "began" in one), {})
            writer.append(start.with_facts(record, facts))
        if times <= requeues:
            rest.append(trial)
    return tuple(rest)


def _stop(number: int, _: FrameType | None) -> None:
    raise StopError


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

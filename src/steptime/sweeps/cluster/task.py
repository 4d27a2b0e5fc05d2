"""One task of a job: measures its cells one after another, and leaves a record of each.

    python -m steptime.sweeps.cluster.task SUBMISSION TASK [FILE.py:NAME]

The code is the source of native networks: a batch script names it, and no file of cells.

When Slurm starts the job again, the task goes on where it stopped: cells with a final record are
passed over, and the cell in flight when the node went down leaves a record that says so. A cell
that took its job down `requeues` times is given up. Of several jobs that Slurm may have made of one
submission, only the first measures.
"""

import errno
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.core.files import append_line, read_lines
from steptime.core.progress import print_note
from steptime.formats import find_network_file
from steptime.measure.launch import Failure, StartError
from steptime.records import store
from steptime.records.record import Record, current_time
from steptime.sweeps.cells import Trial
from steptime.sweeps.cluster import submission as files
from steptime.sweeps.cluster.jobs import Placement
from steptime.sweeps.cluster.outcome import cause_of_restart, make_failure_record, read_outputs
from steptime.sweeps.cluster.slurm import bind_to_job, read_placement
from steptime.sweeps.cluster.submission import Submission, Task
from steptime.sweeps.run import attempt
from steptime.sweeps.workers import Workers

SETTLE_S = 0.5
"""All processes of a job are ended: a worker may be gone before this one gets its own signal."""
FOLLOW_S = 120.0  # in which other ranks must see that rank 0 has begun
MISSING_FILE, BAD_CONFIG = "missing-file", "bad-config"


class StopError(Exception):
    """Slurm asked the job to end, and will say why."""


@dataclass(frozen=True)
class Start:
    """One start of a task, with its placement and its workers."""

    submission: Submission
    task: Task
    placement: Placement
    workers: Workers

    @property
    def progress(self) -> Path:
        """The file of the cells that it began."""
        return self.submission.progress_file(self.task.number, self.placement.restarts)

    def add_facts(self, record: Record, facts: Mapping[str, str]) -> Record:
        """Return the record with its submission, its job and its node."""
        env = {**record.env, "submission": self.submission.folder.name}
        if node := self.task.need.request.node or facts.get("node"):
            env["host"] = node
        return replace(record, env={**env, "slurm": dict(facts)})


def main(arguments: Sequence[str]) -> int:
    """Run the task that the command line names; of several ranks, one of them."""
    # The batch script passes the folder of the submission, the number of the task and, if networks
    # are native Python, their source.
    folder, number, *code = arguments
    submission = files.read(Path(folder), *code)
    task = submission.tasks[int(number)]
    placement = read_placement()
    bind_to_job()
    workers = Workers()
    start = Start(submission, task, placement, workers)
    default_handler = signal.signal(signal.SIGTERM, _stop)
    try:
        is_owner = submission.claim_task(task.number, placement.facts.get("array", ""))
        if not is_owner:
            print_note(
                f"task {number} is another job's, or its cells were sent again: it ends here"
            )
        elif workers.rank.is_rank_zero:
            _lead(start)
        else:
            _follow(start)
    except StopError:
        return 0  # Slurm knows why, and says it
    except (OSError, store.StoreError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        is_disk_full = isinstance(cause, OSError) and cause.errno == errno.ENOSPC
        if is_disk_full:
            return errno.ENOSPC  # the log may be on the same disk: only the exit code is left
        raise
    finally:
        signal.signal(signal.SIGTERM, default_handler)  # nothing is left to be stopped
        workers.close()
    return 0  # the records tell the rest


def _lead(start: Start) -> None:
    """Measure the remaining cells of a task, and write their records."""

    def say(**table: Any) -> None:
        append_line(start.progress, {**table, "at": current_time()})

    with store.open_writer(start.submission.out) as writer:
        restarts = start.placement.restarts
        trials = list_remaining(start, writer) if restarts else start.task.trials
        facts = start.placement.facts
        say(began=dict(facts), visits=[trial.id for trial in trials])
        for trial in trials:
            record = _measure(start, trial, partial(say, cell=trial.id))
            if record.status == "failed":
                # The worker may have died of the signal that is about to end this process, too.
                time.sleep(SETTLE_S)
            writer.append(start.add_facts(record, facts))
    say(ended="all done")


def _follow(start: Start) -> None:
    """Take part in the cells that rank 0 measures; it names them, and keeps the records."""
    # Rank 0 writes the list of cells to measure; the other ranks measure the same ones.
    end = time.monotonic() + FOLLOW_S
    while not (lines := read_lines(start.progress)):
        if time.monotonic() > end:
            number = start.task.number
            raise InputError(f"rank 0 of task {number} did not begin within {FOLLOW_S:g} s")
        time.sleep(0.1)
    by_id = {trial.id: trial for trial in start.task.trials}
    first_line = lines[0]  # in which rank 0 names the cells
    for trial_id in first_line["visits"]:
        record = _measure(start, by_id[trial_id], lambda: None)
        if record.status != "ok":
            print_note(f"rank {start.workers.rank.rank}: {record.cause}: {record.note}")


def _measure(start: Start, trial: Trial, begin: Callable[[], None]) -> Record:
    """Return the record of a trial, whatever happened; `begin` is called once it has a worker."""
    workers = start.workers
    means = start.submission.means
    try:
        record = attempt(workers, trial, means, begin)
    except StartError as error:
        record = make_failure_record(trial, means, error.failure)
    except InputError as error:
        file = find_network_file(trial.cell.workload.file, trial.cell.workload.sha256)
        cause = MISSING_FILE if file and not Path(file).exists() else BAD_CONFIG
        record = make_failure_record(trial, means, Failure("failed", cause, str(error)))
    if workers.rank.size > 1:
        workers.close()  # ranks that saw a cell end differently meet again in new processes
    return record


def list_remaining(start: Start, writer: store.Writer) -> tuple[Trial, ...]:
    """Return the trials without a record, after the record of the trial that was in flight."""
    submission = start.submission
    max_deaths = start.task.need.request.requeues
    recorded_ids = _list_recorded(submission)
    progress_of_starts = [
        read_lines(submission.progress_file(start.task.number, restart))
        for restart in range(start.placement.restarts)
    ]
    # Each earlier start died in the last cell that it began; the last start in `in_flight_id`.
    deaths: Counter[str] = Counter()  # by cell
    in_flight_id = None
    for lines in progress_of_starts:
        begun_ids = files.list_begun(lines)
        in_flight_id = begun_ids[-1] if begun_ids else None
        if in_flight_id is not None:
            deaths[in_flight_id] += 1
    remaining = []
    for trial in start.task.trials:
        if trial.id in recorded_ids:
            continue
        if trial.id == in_flight_id:
            record = _make_interrupted(start, trial, deaths[trial.id])
            writer.append(start.add_facts(record, _find_facts(progress_of_starts[-1])))
        may_retry = deaths[trial.id] <= max_deaths
        if may_retry:
            remaining.append(trial)
    return tuple(remaining)


def _list_recorded(submission: Submission) -> set[str]:
    """Return the ids of the cells with a record of this submission that ends them."""
    records = store.load(submission.out, lambda _: None, required=False)
    return {
        record.env["cell"]
        for record in records
        if record.env.get("submission") == submission.folder.name and not record.env.get("again")
    }


def _find_facts(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
    """Return the facts of the placement that a start of a task wrote first."""
    facts: Mapping[str, str] = next((line["began"] for line in lines if "began" in line), {})
    return facts


def _make_interrupted(start: Start, trial: Trial, deaths: int) -> Record:
    """Return the record of a trial whose job ended while it was measured, and began again."""
    outputs = read_outputs(start.submission, start.task.number)
    # The last output is of this start, the one before it of the start that was interrupted.
    cause = cause_of_restart(outputs[-2] if len(outputs) > 1 else "")
    is_final = deaths > start.task.need.request.requeues
    end = f"; given up after {deaths} times" if is_final else ""
    failure = Failure("failed", cause, f"its job ended while it was measured{end}")
    record = make_failure_record(trial, start.submission.means, failure)
    return replace(record, env={**record.env, "again": not is_final})


def _stop(number: int, _: FrameType | None) -> None:
    raise StopError


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

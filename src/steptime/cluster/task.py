"""One task of a job: measures its cells one after another, and leaves a record of each.

    python -m steptime.cluster.task SUBMISSION TASK

A scheduler that starts the job again (SLURM_RESTART_COUNT) finds the task where it stopped: cells
with a final record are passed over, and the one that was in flight when the node went down leaves
a record that says so. A cell that took its job down `requeues` times is given up.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from steptime import store
from steptime.cluster import slurm
from steptime.cluster import submission as manifest
from steptime.cluster.outcome import cause_of_output, lost_record, outputs
from steptime.cluster.submission import Submission, Visit
from steptime.core.errors import InputError
from steptime.core.record import Record
from steptime.launch.local import Death, StartError
from steptime.sweep.run import attempt
from steptime.sweep.workers import Workers

SETTLE_S = 0.5
"""Slurm ends all processes of a job: a worker may be gone before this one gets its own signal."""


FOLLOW_S = 120.0  # in which other ranks must see that rank 0 has begun


class StopError(Exception):
    """The scheduler asked the job to end, and will say why."""


def main(arguments: Sequence[str]) -> int:
    """Run the task that the command line names; of several ranks (srun), one of them."""
    submission, number = manifest.read(Path(arguments[0])), int(arguments[1])
    restart = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    signal.signal(signal.SIGTERM, _stop)
    slurm.confine()
    workers = Workers()
    try:
        if workers.leads:
            _lead(submission, number, restart, workers)
        else:
            _follow(submission, number, restart, workers)
    except StopError:
        return 0  # the scheduler knows why, and says it
    except (OSError, store.StoreError) as error:
        found = error if isinstance(error, OSError) else error.__cause__
        if isinstance(found, OSError) and found.errno == errno.ENOSPC:
            return errno.ENOSPC  # the log may be on the same disk: only the exit code is left
        raise
    finally:
        workers.close()
    return 0  # what became of the cells is in their records


def _lead(submission: Submission, number: int, restart: int, workers: Workers) -> None:
    """Measure the cells that are left of a task, and write what becomes of them."""
    job, visits = next((job, own) for task, job, own in submission.tasks() if task == number)
    progress = _progress(submission, number, restart)

    def say(**table: Any) -> None:
        manifest.append_line(progress, {**table, "at": datetime.now(UTC).isoformat()})

    with store.open_writer(submission.out) as writer:
        if restart:
            requeues = job.need.allocation.requeues
            visits = _left(submission, number, restart, visits, requeues, writer)
        say(began=_place(), visits=[visit.id for visit in visits])
        for visit in visits:
            record = _record(workers, submission, visit, partial(say, cell=visit.id))
            if record.status == "failed":
                time.sleep(SETTLE_S)
            writer.append(_of_task(record, submission, visit, _place()))
    say(ended="all done")


def _follow(submission: Submission, number: int, restart: int, workers: Workers) -> None:
    """Take part in the cells that rank 0 measures; it says which, and keeps the records."""
    end = time.monotonic() + FOLLOW_S
    while not (lines := manifest.read_lines(_progress(submission, number, restart))):
        if time.monotonic() > end:
            raise InputError(f"rank 0 of task {number} did not begin within {FOLLOW_S:g} s")
        time.sleep(0.1)
    by_id = {visit.id: visit for visit in submission.visits}
    for name in lines[0]["visits"]:
        record = _record(workers, submission, by_id[name], lambda: None)
        if record.status != "ok":
            sys.stderr.write(f"{workers.name}: {record.cause}: {record.note}\n")


def _record(
    workers: Workers, submission: Submission, visit: Visit, begin: Callable[[], None]
) -> Record:
    """Give the record of a visit, whatever happened; `begin` is called when its worker is there."""
    try:
        workers.place(visit.cell)
        begin()
        record = attempt(workers, visit.cell, submission.how, visit.round)
    except StartError as error:
        record = lost_record(visit, submission.how, error.death)
    except InputError as error:
        file = visit.cell.workload.file
        cause = "missing-file" if file and not Path(file).exists() else "bad-config"
        death = Death("failed", cause, str(error))
        record = lost_record(visit, submission.how, death)
    if workers.joined:
        workers.close()  # ranks that saw a cell end differently meet again in new processes
    return record


def _progress(submission: Submission, number: int, restart: int) -> Path:
    return submission.folder / "progress" / f"{number}.{restart}.jsonl"


def _left(
    submission: Submission,
    number: int,
    restart: int,
    visits: tuple[Visit, ...],
    requeues: int,
    writer: store.Writer,
) -> tuple[Visit, ...]:
    """Give the visits that have no record yet, after a record of what was in flight."""
    folder = submission.folder
    known = {
        record.env["cell"]
        for record in store.load(submission.out, lambda _: None, required=False)
        if record.env.get("submission") == folder.name and not record.env.get("again")
    }
    deaths: list[str] = []
    in_flight: list[str] = []
    before: list[dict[str, Any]] = []
    for earlier in range(restart):
        before = manifest.read_lines(_progress(submission, number, earlier))
        in_flight = manifest.begun(before)[-1:]
        deaths += in_flight
    left = []
    for visit in visits:
        if visit.id in known:
            continue
        times = deaths.count(visit.id)
        if in_flight == [visit.id]:
            death = Death("failed", *_why(submission, number, times, requeues))
            record = lost_record(visit, submission.how, death)
            record = replace(record, env={**record.env, "again": times <= requeues})
            place: dict[str, str] = next((one["began"] for one in before if "began" in one), {})
            writer.append(_of_task(record, submission, visit, place))
        if times <= requeues:
            left.append(visit)
    return tuple(left)


def _why(submission: Submission, number: int, times: int, requeues: int) -> tuple[str, str]:
    """Give cause and note of the start before this one; a node that is dead prints nothing."""
    earlier = outputs(submission, number)[-2:-1]
    cause = (cause_of_output(earlier[0]) if earlier else "") or "node-fail"
    gave_up = f"; given up after {times} times" if times > requeues else ""
    return cause, f"its job ended while it was measured{gave_up}"


def _of_task(
    record: Record, submission: Submission, visit: Visit, place: Mapping[str, str]
) -> Record:
    """Give the record with what a later look finds it by: its cell, submission and job."""
    own = {"cell": visit.id, "submission": submission.folder.name, "slurm": dict(place)}
    return replace(record, env={**record.env, **own})


def _place() -> dict[str, str]:
    """Give where the scheduler put this task, as its variables say."""
    names = {
        "job": "SLURM_JOB_ID",
        "array": "SLURM_ARRAY_JOB_ID",
        "index": "SLURM_ARRAY_TASK_ID",
        "node": "SLURMD_NODENAME",
        "partition": "SLURM_JOB_PARTITION",
        "restart": "SLURM_RESTART_COUNT",
        "gpus": "SLURM_JOB_GPUS",
        "visible": "CUDA_VISIBLE_DEVICES",
    }
    return {key: os.environ[name] for key, name in names.items() if name in os.environ}


def _stop(number: int, _: FrameType | None) -> None:
    raise StopError


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

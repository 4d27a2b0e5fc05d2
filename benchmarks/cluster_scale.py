"""How long steptime itself takes for an array of 10,000 cells: plan, submit, ask, collect.

Slurm is made up (tests/null_backend/fake_slurm.py) and answers at once; nothing is
measured. Half of the cells get the record of a worker, as tasks write them; the jobs of the others
vanish, so that `collect` writes their records. A second sweep then submits just these. Prints one
JSON document.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "null_backend"))
import fake_slurm

from steptime.core.copying import replace
from steptime.measure.launch import Failure
from steptime.questions.sweep import jobs
from steptime.records import store
from steptime.sweeps.cells import cells_of
from steptime.sweeps.cluster import commands
from steptime.sweeps.cluster import status as cluster
from steptime.sweeps.cluster import submission as files
from steptime.sweeps.cluster.outcome import make_failure_record
from steptime.sweeps.cluster.submit import send
from steptime.sweeps.experiment import check_experiment
from steptime.sweeps.run import Means, SweepRequest

EXPERIMENT = {
    "name": "ten thousand",
    "batch": "1..50",
    "networks": [
        {"family": "fc", "layers": "1..10", "nodes": "8..80 +8", "inputs": 8, "outputs": 4}
    ],
    "slurm": {"gpu": ["k80", "p100"], "cells_per_task": 50},
}


def main() -> None:
    """Time each part."""
    with tempfile.TemporaryDirectory() as scratch:
        commands.execute = fake_slurm.execute
        fake_slurm.reset()
        print(json.dumps(_times(Path(scratch) / "out"), indent=2))


def _times(out: Path) -> dict[str, object]:
    times: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = call()
        times[name] = time.perf_counter() - begin
        return result

    experiment = check_experiment(EXPERIMENT, "benchmark")
    cells, *_ = timed("cells_s", lambda: cells_of(experiment, "benchmark", on_cluster=True))
    request = SweepRequest("ten thousand", cells, out, Means())
    first = timed("plan_and_submit_s", lambda: send(request, _ignore))
    queued = timed("status_queued_s", lambda: jobs.status(out))
    _write_half(out)
    fake_slurm.set_state("COMPLETED")
    ended = timed("status_ended_s", lambda: jobs.status(out))
    lost = timed("collect_s", lambda: cluster.collect(out, _ignore))
    second = timed("resume_s", lambda: send(request, _ignore))
    return {
        "cells": first.cells,
        "tasks": first.tasks,
        "queued": queued.queued,
        "finished": ended.finished,
        "lost": len(lost),
        "resubmitted": second.submitted,
        **times,
    }


def _write_half(out: Path) -> None:
    """Write the records of every other cell as tasks would, one file a task."""
    (submission,) = files.read_submissions(out)
    for task in submission.tasks:
        with store.open_writer(out) as writer:
            for trial in task.trials[::2]:
                record = make_failure_record(trial, submission.means, Failure("ok", "", ""))
                env = {**record.env, "submission": submission.folder.name}
                writer.append(replace(record, env=env))


def _ignore(_: str) -> None:
    """Take a warning that nobody reads."""


if __name__ == "__main__":
    main()

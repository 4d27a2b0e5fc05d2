"""Kills of a Slurm suite: of a task, of collecting, and of the submission itself."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fake_slurm

from attack.kills import Scenario, Story
from attack.victims import Act
from steptime.cli.main import run as command
from steptime.records import store
from steptime.sweeps.cluster import commands, submission, task

SUITE = {
    "name": "suite",
    "backend": "null",
    "threads": 1,
    "budget_s": 0.02,
    "batch": [2, 4],
    "networks": [{"family": "fc", "layers": [1, 2], "nodes": 4, "inputs": 8, "outputs": 4}],
    "slurm": {"gpu": "k80", "cells_per_task": 4, "time": "30", "requeues": 1000},
}
TWO_JOBS = {**SUITE, "slurm": {"gpu": ["k80", "p100"], "cells_per_task": 2}}
UNANSWERED = 3  # of so many arrays one is taken, and sbatch says that its socket timed out
EXECUTE = commands.execute  # the real one, which starts programs


def _submit(story: Story) -> None:
    """Submit a suite to a Slurm of this process."""
    commands.execute = fake_slurm.execute
    fake_slurm.reset()
    file = story.folder / "suite.json"
    file.write_text(json.dumps(SUITE))
    out = story.folder / "out"
    with _silent():
        command(["sweep", str(file), "--out", str(out), "--launcher", "slurm"])
    (story.state,) = submission.read_submissions(out)


@contextmanager
def _silent() -> Iterator[None]:
    """Send all that this process prints to nowhere."""
    streams = [os.dup(descriptor) for descriptor in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    try:
        yield
    finally:
        sys.stdout.flush()
        for descriptor, stream in zip((1, 2), streams, strict=True):
            os.dup2(stream, descriptor)
            os.close(stream)


def _submit_and_lose(story: Story) -> None:
    """Submit a suite whose nodes fail before they measure anything."""
    _submit(story)
    fake_slurm.set_state("NODE_FAIL")


def _run_task(story: Story) -> Act:
    def act() -> int:
        os.environ["SLURM_ARRAY_JOB_ID"] = str(fake_slurm.FIRST_JOB)
        os.environ["SLURM_RESTART_COUNT"] = str(story.runs)
        return task.main([str(story.state.folder), "0"])

    return act


def _collect(_: Story) -> Act:
    return lambda: command(["sweep", "collect", "out"])


def _list_cells(story: Story) -> Iterable[Hashable]:
    records = store.load(story.folder / "out", lambda _: None, required=False)
    return (record.env["cell"] for record in records if not record.env.get("again"))


def _write_programs(story: Story) -> None:
    """Write a suite, and a Slurm as programs, which outlive the command that calls them."""
    (story.folder / "suite.json").write_text(json.dumps(TWO_JOBS))
    state = fake_slurm.State(unanswered=UNANSWERED)
    story.state = fake_slurm.install_commands(story.folder / "slurm", state)


def _send(story: Story) -> Act:
    def act() -> int:
        commands.execute = EXECUTE
        programs = story.state.parent / "bin"
        os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        return command(["sweep", "suite.json", "--out", "out", "--launcher", "slurm"])

    return act


def _list_scheduled(story: Story) -> Iterable[Hashable]:
    """Yield the cells that the tasks of all jobs will measure, as often as they will.

    A task of a withdrawn array ends at once, and the second job of an array, too.
    """
    submissions = {
        suite.folder: suite for suite in submission.read_submissions(story.folder / "out")
    }
    claimed = set()
    for job in fake_slurm.load(story.state).jobs.values():
        folder = Path(job.script).parent
        suite = submissions.get(folder)
        array = (folder, job.first)
        if suite is None or job.first in suite.read_withdrawn() or array in claimed:
            continue
        claimed.add(array)
        for number in range(job.first, job.first + job.tasks):
            yield from (trial.id for trial in suite.tasks[number].trials)


SCENARIOS = (
    Scenario("Slurm suite, a task", 60, _submit, _run_task, _list_cells),
    Scenario("Slurm suite, collecting", 20, _submit_and_lose, _collect, _list_cells),
    Scenario("Slurm suite, submitting", 40, _write_programs, _send, _list_scheduled),
)

"""What a submission would take: predicted time, memory and node-hours, and what will not fit."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.core.progress import track_progress
from steptime.core.units import format_bytes
from steptime.hardware.device import Device
from steptime.records.record import Quantity
from steptime.records.row import group_by
from steptime.sweeps.answers import (
    JobEstimate,
    LargeCell,
    PreviewAnswer,
    describe_large_cell,
    describe_progress,
)
from steptime.sweeps.cell_rows import CellRow, make_cell_row
from steptime.sweeps.cells import Trial
from steptime.sweeps.cluster.jobs import Need
from steptime.sweeps.cluster.resources import CellMemory, device_of, memories, runs_on_gpu
from steptime.sweeps.cluster.status import Warn, take_snapshot
from steptime.sweeps.cluster.submission import Job, Submission, compose
from steptime.sweeps.cluster.submit import describe_cells, find_missing
from steptime.sweeps.run import Means, SweepRequest, predictions

MAX_TASKS = 1001  # tasks of an array, Slurm's default: a dry run does not ask the controller
START_S = 5.0  # of a worker with its framework, once a task and once a further run of a cell
MIN_STEPS = 4  # the first one and three samples
HOUR_S = 3600

OversizedTrials = list[tuple[Trial, CellMemory]]


def estimate_job(
    job: Job, means: Means, nodes: int, script: str
) -> tuple[JobEstimate, OversizedTrials]:
    """Return the estimate of a job, and its cells with too little memory.

    A cell takes its budget, or as many steps as it must run where they take longer, in each run.
    It is predicted where it runs on a GPU whose type a data file has. `needs_bytes` and `has_bytes`
    are of the GPU, or of the node where steps run on a CPU.
    """
    need = job[0].need
    trials = [trial for task in job for trial in task.trials]
    # The requests of cells have one type of GPU each; steps on the CPU beside it are not predicted.
    uses_gpu = any(runs_on_gpu(trial.cell) for trial in trials)
    device = device_of(need.request.gpu[0]) if uses_gpu else None
    memory = _find_job_memory(trials)
    # A cell that does not fit is not run, and takes no time, unless all are to be tried.
    skipped_ids = set() if means.try_all else {trial.id for trial, _ in memory.oversized}
    seconds_by_trial = {
        trial.id: 0.0 if trial.id in skipped_ids else _trial_s(trial, means, device)
        for trial in track_progress(trials, "cells estimated")
    }
    tasks_s = [START_S + sum(seconds_by_trial[trial.id] for trial in task.trials) for task in job]
    estimate = JobEstimate(
        gpu=need.request.gpu[0],
        partition=need.request.partition,
        replicas=need.replicas,
        nodes=nodes,
        cells=len(trials),
        tasks=len(tasks_s),
        longest_task_s=max(tasks_s),
        node_hours=need.nodes * sum(tasks_s) / HOUR_S,
        needs_bytes=memory.of_step.needs_bytes,
        has_bytes=memory.of_step.has_bytes,
        node_needs_bytes=memory.of_node.needs_bytes,
        node_has_bytes=memory.of_node.has_bytes,
        predicted_on=device.name if device else None,
        script=script,
    )
    return estimate, memory.oversized


class _JobMemory(NamedTuple):
    """The memory of the cell of a job that needs most.

    Attributes:
        of_step: where the step is: of the GPU, or of the node for a step on a CPU.
        of_node: of the node.
        oversized: cells that need more than there is, with this memory.
    """

    of_step: CellMemory
    of_node: CellMemory
    oversized: OversizedTrials


def _find_job_memory(trials: Sequence[Trial]) -> _JobMemory:
    """Return the largest memory that cells need, and the cells with too little."""
    step_memories = []
    node_memories = []
    oversized = []
    for trial in trials:
        trial_memories = memories(trial.cell)  # of a GPU and a node, or of a node alone
        step_memories.append(trial_memories[0])
        node_memories.append(trial_memories[-1])
        oversized += [(trial, memory) for memory in trial_memories if not memory.is_sufficient]
    return _JobMemory(
        of_step=max(step_memories, key=_needed_bytes),
        of_node=max(node_memories, key=_needed_bytes),
        oversized=oversized,
    )


def _needed_bytes(memory: CellMemory) -> int:
    return memory.needs_bytes


def _trial_s(trial: Trial, means: Means, gpu: Device | None) -> float:
    """Return the predicted seconds of a trial in all its runs."""
    min_steps = max(MIN_STEPS, trial.cell.options.train_steps)
    run_s = means.budget_s
    if gpu is not None and runs_on_gpu(trial.cell):
        with suppress(InputError):  # then the budget alone decides
            records = predictions(trial.cell, gpu, link=None, by_op=False)
            step_s = records[0].quantities.get("step_s", Quantity()).value if records else None
            run_s = max(run_s, min_steps * (step_s or 0.0))
    all_runs_s = means.runs * min(run_s, means.time_limit_s)
    restarts_s = (means.runs - 1) * START_S  # each run is a process of its own
    return all_runs_s + restarts_s


def group_by_node(jobs: Iterable[Job]) -> list[list[Job]]:
    """Return the jobs in groups; the jobs of a group differ in their nodes alone."""

    # With `nodes = "each"` every node has a job of its own: these are estimated as one.
    def drop_node(job: Job) -> Need:
        need = job[0].need  # equal for all tasks of the job
        if not need.request.node:
            return need
        return replace(need, request=need.request.model_copy(update={"nodelist": ""}))

    return list(group_by(jobs, drop_node).values())


def preview(request: SweepRequest, warn: Warn) -> PreviewAnswer:
    """Return the jobs that would be submitted, with their scripts and their cost."""
    missing = find_missing(request, take_snapshot(request.out, warn))
    submission = compose(request.out, request.means, missing.trials, MAX_TASKS)
    jobs, not_fitting, remarks = _estimate_jobs(submission, request.means)
    cells = len(missing.ids)
    progress = describe_progress(request.name, cells, missing.finished)
    waiting = f"{missing.in_flight} waiting or running; nothing is submitted"
    return PreviewAnswer(
        name=request.name,
        out=str(request.out),
        cells=cells,
        finished_before=missing.finished,
        in_flight=missing.in_flight,
        rows=tuple(
            make_cell_row(trial, CellRow) for task in submission.tasks for trial in task.trials
        ),
        jobs=tuple(jobs),
        node_hours=sum(job.node_hours for job in jobs),
        not_fitting=tuple(not_fitting),
        headline=(f"{request.name}: {request.text}", f"{progress}, {waiting}"),
        notes=(
            *describe_cells(request, missing),
            *remarks,
            *(describe_large_cell(cell) for cell in not_fitting),
        ),
    )


def _estimate_jobs(
    submission: Submission, means: Means
) -> tuple[list[JobEstimate], list[LargeCell], list[str]]:
    """Return the jobs of a submission, the cells that will not fit, and remarks."""
    jobs: list[JobEstimate] = []
    not_fitting: list[LargeCell] = []
    remarks: list[str] = []
    for node_jobs in group_by_node(submission.jobs):
        # Jobs that differ in their node alone are one estimate, of as many nodes as jobs.
        tasks = tuple(task for node_job in node_jobs for task in node_job)
        need = tasks[0].need
        nodes = len(node_jobs) if need.request.node else need.nodes
        estimate, oversized = estimate_job(tasks, means, nodes, submission.make_script(need))
        jobs.append(estimate)
        for trial, memory in oversized:
            not_fitting.append(make_cell_row(trial, LargeCell, **asdict(memory)))
        if estimate.node_has_bytes is None:
            needs = f"a node needs at least {format_bytes(estimate.node_needs_bytes)}"
            unknown = "without memory_GB the site says what a job gets"
            remarks.append(f"{need.text}: {needs}; {unknown}")
    return jobs, not_fitting, remarks

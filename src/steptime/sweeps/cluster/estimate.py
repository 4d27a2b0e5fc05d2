"""What a submission would take: predicted time, memory and node-hours, and what will not fit."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from steptime.core.errors import InputError
from steptime.core.progress import watched
from steptime.core.table import picked
from steptime.core.units import size
from steptime.hardware.device import Device
from steptime.records.record import Quantity
from steptime.records.row import grouped
from steptime.sweeps.cells import Trial
from steptime.sweeps.cluster.resources import CellMemory, device_of, memories
from steptime.sweeps.cluster.scheduler import Need
from steptime.sweeps.cluster.status import Warn, snapshot
from steptime.sweeps.cluster.submission import Job, compose, row_of
from steptime.sweeps.cluster.submit import counts, missing
from steptime.sweeps.run import Means, SweepRequest, predictions

LARGEST = 1001  # tasks of an array: a dry run asks nobody
START_S = 5.0  # of a worker with its framework, once a task and once a further run of a cell
LEAST_STEPS = 4  # the first one and three samples


def estimate(job: Job, how: Means) -> tuple[dict[str, Any], list[tuple[Trial, CellMemory]]]:
    """Return what a job would take, as JSON values, and the cells with too little memory.

    A cell takes its budget, or as many steps as it must run where they take longer, in each run.
    It is predicted where a data file has the type of GPU. `needs_bytes` and `has_bytes` are of the
    GPU, or of the node where none was asked for.
    """
    need = job[0].need
    device = device_of(need.request.gpu[0])
    own = [(trial, memories(trial.cell)) for task in job for trial in task.trials]
    too_large = [(trial, memory) for trial, both in own for memory in both if not memory.suffices]
    untried = set() if how.try_all else {trial.id for trial, _ in too_large}
    seconds = {
        trial.id: 0.0 if trial.id in untried else _seconds(trial, how, device)
        for trial, _ in watched(own, "cells estimated")
    }
    tasks = [START_S + sum(seconds[trial.id] for trial in task.trials) for task in job]
    memory, on_node = (
        max((both[which] for _, both in own), key=lambda one: one.needs_bytes) for which in (0, -1)
    )
    return {
        "gpu": need.request.gpu[0],
        "partition": need.request.partition,
        **picked(need, "replicas nodes"),
        "cells": len(own),
        "tasks": len(tasks),
        "longest_task_s": max(tasks),
        "node_hours": need.nodes * sum(tasks) / 3600,
        **picked(memory, "needs_bytes has_bytes"),
        "node_needs_bytes": on_node.needs_bytes,
        "node_has_bytes": on_node.has_bytes,
        "predicted_on": device.name if device else None,
    }, too_large


def _seconds(trial: Trial, how: Means, device: Device | None) -> float:
    steps = max(LEAST_STEPS, trial.cell.options.train_steps)
    each = how.budget_s
    with suppress(InputError):  # then the budget alone tells
        for record in predictions(trial.cell, device, None, by_op=False)[:1] if device else ():
            step_s = record.quantities.get("step_s", Quantity()).value
            each = max(each, steps * (step_s or 0.0))
    return how.runs * min(each, how.time_limit_s) + (how.runs - 1) * START_S


def grouped_by_node(jobs: Iterable[Job]) -> list[list[Job]]:
    """Return the jobs, those together that differ in their nodes alone."""

    def anywhere(job: Job) -> Need:
        need = job[0].need
        if not need.request.node:
            return need
        return replace(need, request=need.request.model_copy(update={"nodelist": ""}))

    return list(grouped(jobs, anywhere).values())


def preview(request: SweepRequest, warn: Warn, scheduler: str = "slurm") -> dict[str, Any]:
    """Return what would be submitted, with the scripts and what it would take, as JSON values."""
    lacks = missing(request, snapshot(request.out, warn))
    submission = compose(request.out, request.how, lacks.trials, LARGEST, scheduler)
    jobs, not_fitting = [], []
    document = counts(request, lacks)
    for alike in grouped_by_node(submission.jobs):
        job = tuple(task for one in alike for task in one)  # all tasks of jobs of many nodes
        need = job[0].need
        made, too_large = estimate(job, request.how)
        if need.request.node:
            made["nodes"] = len(alike)
        jobs.append({**made, "script": submission.script(need)})
        not_fitting += [row_of(trial) | asdict(memory) for trial, memory in too_large]
        if made["node_has_bytes"] is None:
            needs = f"a node needs at least {size(made['node_needs_bytes'])}"
            text = f"{need.text}: {needs}; without memory_GB the site says what a job gets"
            document["remarks"].append(text)
    return document | {
        "jobs": jobs,
        "node_hours": sum(job["node_hours"] for job in jobs),
        "visits": [row_of(trial) for task in submission.tasks for trial in task.trials],
        "not_fitting": not_fitting,
    }

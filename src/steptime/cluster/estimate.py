"""What a submission would take: predicted time, memory and node-hours, and what will not fit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from steptime.cluster.resources import Memory, device_of, memories
from steptime.cluster.scheduler import scheduler_of
from steptime.cluster.status import Warn, snapshot
from steptime.cluster.submission import Job, Trial, compose
from steptime.cluster.submit import counts, missing
from steptime.core.errors import InputError
from steptime.core.hardware import Device
from steptime.core.record import Quantity
from steptime.core.units import size
from steptime.sweep.predictions import predictions
from steptime.sweep.run import How, Request

LARGEST = 1001  # tasks of an array: a dry run asks nobody
START_S = 5.0  # of a worker with its framework, once a task and once a further run of a cell
LEAST_STEPS = 4  # the first one and three samples


@dataclass(frozen=True)
class ResourceEstimate:
    """What one job would take, the most memory of a cell, and the cells for which it is too little.

    `memory` is of the GPU, or of the node where none was asked for; `on_node` always of the node.
    """

    job: Job
    seconds: float
    longest_task_s: float
    memory: Memory
    on_node: Memory
    device: str | None
    too_large: tuple[tuple[Trial, Memory], ...]

    @property
    def node_hours(self) -> float:
        """Nodes times hours, all tasks together."""
        return self.job.need.nodes * self.seconds / 3600

    @property
    def row(self) -> dict[str, Any]:
        """The estimate as JSON values."""
        need = self.job.need
        return {
            "gpu": need.request.gpu[0],
            "partition": need.request.partition,
            "replicas": need.replicas,
            "nodes": need.nodes,
            "cells": len(self.job.trials),
            "tasks": len(self.job.tasks),
            "longest_task_s": self.longest_task_s,
            "node_hours": self.node_hours,
            "needs_bytes": self.memory.needs_bytes,
            "has_bytes": self.memory.has_bytes,
            "node_needs_bytes": self.on_node.needs_bytes,
            "node_has_bytes": self.on_node.has_bytes,
            "predicted_on": self.device,
        }


def estimate(job: Job, how: How) -> ResourceEstimate:
    """Return what a job would take.

    A cell takes its budget, or as many steps as it must run where they take longer, in each run.
    `device` is None where no data file has the type of GPU.
    """
    device = device_of(job.need.request.gpu[0])
    own = [(trial, memories(trial.cell)) for trial in job.trials]
    too_large = tuple(
        (trial, memory) for trial, both in own for memory in both if not memory.suffices
    )
    untried = set() if how.try_all else {trial.id for trial, _ in too_large}
    tasks = [
        START_S + sum(_seconds(trial, how, device) for trial in task if trial.id not in untried)
        for task in job.tasks
    ]
    memory, on_node = (
        max((both[which] for _, both in own), key=lambda one: one.needs_bytes) for which in (0, -1)
    )
    name = device.name if device else None
    return ResourceEstimate(job, sum(tasks), max(tasks), memory, on_node, name, too_large)


def _seconds(trial: Trial, how: How, device: Device | None) -> float:
    steps = max(LEAST_STEPS, trial.cell.options.train_steps)
    step_s = _step_s(trial, device)
    each = max(how.budget_s, steps * step_s) if step_s else how.budget_s
    return how.runs * min(each, how.time_limit_s) + (how.runs - 1) * START_S


def _step_s(trial: Trial, device: Device | None) -> float | None:
    if device is None:
        return None
    try:
        records = predictions(trial.cell, device, None, by_op=False)
    except InputError:
        return None
    return records[0].quantities.get("step_s", Quantity()).value if records else None


def preview(request: Request, warn: Warn, scheduler: str = "slurm") -> dict[str, Any]:
    """Return what would be submitted, with the scripts and what it would take, as JSON values."""
    row = scheduler_of(scheduler)
    lacks = missing(request, snapshot(request.out, warn))
    submission = compose(request.out, request.how, lacks.trials, LARGEST, scheduler)
    estimates = [estimate(job, request.how) for job in submission.jobs]
    document = counts(request, lacks)
    return document | {
        "remarks": [*document["remarks"], *_remarks(estimates)],
        "jobs": [
            one.row | {"script": submission.script(one.job, row, sys.executable)}
            for one in estimates
        ],
        "node_hours": sum(one.node_hours for one in estimates),
        "visits": [_row(trial) for trial in submission.trials],
        "not_fitting": [
            _row(trial)
            | {"needs_bytes": memory.needs_bytes, "has_bytes": memory.has_bytes, "of": memory.of}
            for one in estimates
            for trial, memory in one.too_large
        ],
    }


def _remarks(estimates: list[ResourceEstimate]) -> Iterator[str]:
    """Return a line for each job that leaves its memory to the site."""
    for one in estimates:
        if one.on_node.has_bytes is None:
            needs = f"a node needs at least {size(one.on_node.needs_bytes)}"
            yield f"{one.job.need.text}: {needs}; without memory_GB the site says what a job gets"


def _row(trial: Trial) -> dict[str, Any]:
    """Return what tells a trial from others: every column in which two of a sweep can differ."""
    workload, options = trial.cell.workload, trial.cell.options
    return {
        "id": trial.id,
        "model": workload.label,
        "batch": workload.batch_per_replica,
        "replicas": workload.plan.data,
        "gpu": options.gpu,
        "staging": options.staging,
        "dtype": workload.dtype,
        "phase": workload.phase,
        "optimizer": workload.optimizer,
        "backend": trial.cell.backend,
        **{
            name: getattr(options, name)
            for name in (
                "device", "threads", "compile", "tf32", "input", "loaders", "prefetch", "strategy",
                "overlap", "allocation",
            )
        },
        "round": trial.round,
    }  # fmt: skip

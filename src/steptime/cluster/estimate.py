"""What a submission would take: predicted time, memory and node-hours, and what will not fit."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from steptime.cluster.resources import device_of, memory_bytes
from steptime.cluster.slurm import DEFAULT_LARGEST
from steptime.cluster.status import Warn, counts, look, missing
from steptime.cluster.submission import Job, Visit, compose, job_script
from steptime.core.errors import InputError
from steptime.core.hardware import Device
from steptime.core.record import Quantity
from steptime.sweep.cells import needed_bytes
from steptime.sweep.predictions import predictions
from steptime.sweep.run import How, Request

START_S = 5.0  # of a worker with its framework, once a task and once a further run of a cell
LEAST_STEPS = 4  # the first one and three samples


@dataclass(frozen=True)
class Outlook:
    """What one job would take, and the cells that need more memory than there is.

    `has_bytes` is None where the memory of a GPU or node is not known: nothing is said to fit.
    """

    job: Job
    seconds: float
    longest_task_s: float
    needs_bytes: int
    has_bytes: float | None
    device: str | None
    too_large: tuple[tuple[Visit, int, float], ...]

    @property
    def node_hours(self) -> float:
        """Nodes times hours, all tasks together."""
        return self.job.need.nodes * self.seconds / 3600


def outlook(job: Job, visits: Iterable[Visit], how: How) -> Outlook:
    """Give what a job would take; `device` is None where no data file has that type of GPU.

    A cell takes its budget, or as many steps as it must run where they take longer, in each run.
    """
    own = list(visits)
    device = device_of(job.need.allocation.gpu[0])
    has_bytes = memory_bytes(job.need.allocation)
    needs = [needed_bytes(visit.cell, job.need.processes_per_node) for visit in own]
    too_large = tuple(
        (visit, need, has_bytes)
        for visit, need in zip(own, needs, strict=True)
        if has_bytes is not None and need > has_bytes
    )
    large = {visit.id for visit, *_ in too_large}
    seconds = [
        0.0 if visit.id in large and not how.try_all else _seconds(visit, how, device)
        for visit in own
    ]
    begin = job.slices[0][0]
    tasks = [START_S + sum(seconds[start - begin : stop - begin]) for start, stop in job.slices]
    name = device.name if device else None
    return Outlook(job, sum(tasks), max(tasks), max(needs), has_bytes, name, too_large)


def _seconds(visit: Visit, how: How, device: Device | None) -> float:
    steps = max(LEAST_STEPS, visit.cell.options.train_steps)
    step_s = _step_s(visit, device)
    each = max(how.budget_s, steps * step_s) if step_s else how.budget_s
    return how.runs * min(each, how.time_limit_s) + (how.runs - 1) * START_S


def _step_s(visit: Visit, device: Device | None) -> float | None:
    if device is None:
        return None
    try:
        found = predictions(visit.cell, device, None, by_op=False)
    except InputError:
        return None
    return found[0].quantities.get("step_s", Quantity()).value if found else None


def rows(outlooks: Iterable[Outlook]) -> Iterator[dict[str, Any]]:
    """Give one row a job, as JSON values."""
    for one in outlooks:
        need = one.job.need
        yield {
            "gpu": need.allocation.gpu[0],
            "partition": need.allocation.partition,
            "replicas": need.replicas,
            "nodes": need.nodes,
            "cells": one.job.slices[-1][1] - one.job.slices[0][0],
            "tasks": len(one.job.slices),
            "longest_task_s": one.longest_task_s,
            "node_hours": one.node_hours,
            "needs_bytes": one.needs_bytes,
            "has_bytes": one.has_bytes,
            "predicted_on": one.device,
        }


def preview(request: Request, warn: Warn) -> dict[str, Any]:
    """Give what would be submitted, with the scripts and what it would take, as JSON values."""
    found = missing(request, look(request.out, warn))
    submission = compose(request.out, request.how, found.visits, DEFAULT_LARGEST)
    outlooks = [
        outlook(job, submission.visits[job.slices[0][0] : job.slices[-1][1]], request.how)
        for job in submission.jobs
    ]
    jobs = [
        row | {"script": job_script(submission, one.job, sys.executable)}
        for row, one in zip(rows(outlooks), outlooks, strict=True)
    ]
    too_large = [what for one in outlooks for what in one.too_large]
    return counts(request, found) | {
        "jobs": jobs,
        "node_hours": sum(one.node_hours for one in outlooks),
        "visits": [{"id": visit.id, **_said(visit)} for visit in submission.visits],
        "not_fitting": [
            {**_said(visit), "needs_bytes": needs, "has_bytes": has}
            for visit, needs, has in too_large
        ],
    }


def _said(visit: Visit) -> dict[str, Any]:
    workload, options = visit.cell.workload, visit.cell.options
    return {
        "model": workload.label,
        "batch": workload.batch_per_replica,
        "replicas": workload.plan.data,
        "gpu": options.gpu,
        "staging": options.staging,
    }

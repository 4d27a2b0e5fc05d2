"""Predictions of cells, so that they stand beside what is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from steptime import catalog, store
from steptime.core.errors import InputError
from steptime.core.hardware import Cluster, Device, Link
from steptime.core.record import Record
from steptime.predict.parallel.replicas import predict_replicas
from steptime.predict.records import records
from steptime.predict.step_model import StepModel
from steptime.sweep.cells import Cell

if TYPE_CHECKING:
    from steptime.sweep.run import Request


def predict(
    cells: Iterable[Cell],
    request: Request,
    writer: store.Writer,
    known: Iterable[Record],
    warn: Callable[[str], None],
) -> None:
    """Write the predictions that a sweep asks for and that are not among the `known` records."""
    devices = [catalog.device(name) for name in request.predict_on]
    link = catalog.link(request.link) if request.link else None
    done = store.done_keys(known) if devices else set()
    seen = set()
    unpredicted = 0
    for device in devices:
        for cell in cells:
            workload, options = cell.workload, cell.options
            mark = (workload.key, options.strategy, options.overlap, device.name)
            if mark in seen:
                continue
            seen.add(mark)
            try:
                head, *ops = predictions(cell, device, link, request.by_op) or (None,)
            except InputError as error:
                raise InputError(f"{workload.label}: {error}") from None
            if head is None:
                unpredicted += 1
            elif (workload.key, head.platform, store.identity(head.method), 0) not in done:
                for record in (*ops, head):  # the whole step says that all of its ops are there
                    writer.append(record)
    if unpredicted:
        warn(
            f'{unpredicted} predictions of several replicas are left out: link = "local" or the '
            "name of a link says what joins them"
        )


def predictions(cell: Cell, device: Device, link: Link | None, by_op: bool) -> list[Record]:
    """Return the prediction of a cell on a device by the default method.

    `link` joins its replicas; none are given where that is needed and not known.
    """
    workload, options = cell.workload, cell.options
    if workload.plan.data > 1:
        if link is None and options.strategy != "independent":
            return []
        cluster = Cluster(device, ((workload.plan.data, link),) if link else ())
        every = predict_replicas(workload, cluster, options.strategy, options.overlap)
    else:
        every = records(StepModel(workload, device))
    return list(every) if by_op else [every[0]]

"""Predictions of cells, so that they stand beside what is measured."""

from __future__ import annotations

from collections.abc import Iterable

from steptime import store
from steptime.core.errors import InputError
from steptime.core.hardware import Cluster, Device, Link
from steptime.core.record import Record
from steptime.predict.parallel.replicas import predict_replicas
from steptime.predict.records import records
from steptime.predict.step_model import StepModel
from steptime.sweep.cells import Cell


def predict_cells(
    cells: Iterable[Cell],
    devices: list[Device],
    link: Link | None,
    by_op: bool,
    writer: store.Writer,
    done: set[store.DoneKey],
) -> int:
    """Predict each cell once on each device; give how many could not be, for want of a link."""
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
                records = predictions(cell, device, link, by_op)
            except InputError as error:
                raise InputError(f"{workload.label}: {error}") from None
            if not records:
                unpredicted += 1
                continue
            head = records[0]
            if (workload.key, head.platform, store.identity(head.method), 0) in done:
                continue
            # ops first: the record of the whole step says that all of them are there
            for record in (*records[1:], head):
                writer.append(record)
    return unpredicted


def predictions(cell: Cell, device: Device, link: Link | None, by_op: bool) -> list[Record]:
    """Give the prediction of a cell on a device by the default method.

    `link` joins its replicas; none are given where that is needed and not known.
    """
    workload, options = cell.workload, cell.options
    if workload.plan.data > 1:
        if link is None and options.strategy != "independent":
            return []
        cluster = Cluster(device, ((workload.plan.data, link),) if link else ())
        found = predict_replicas(workload, cluster, options.strategy, options.overlap)
    else:
        found = records(StepModel(workload, device))
    return list(found) if by_op else [found[0]]

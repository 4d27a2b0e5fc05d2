"""A study: predictions over models, devices, batches and numbers of workers, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from steptime.build import build_step
from steptime.core.graph import Graph
from steptime.core.hardware import Device, Link
from steptime.core.workload import Workload
from steptime.predict import cost_model
from steptime.predict.grid import steps
from steptime.predict.parallel.collectives import fabric_of, schemes
from steptime.predict.prediction import fits_into


class Cell(NamedTuple):
    """One prediction of a study. `batch` is a worker's; `step_s` holds the exchange, `comm_s`."""

    model: str
    device: str
    batch: int
    workers: int
    step_s: float
    forward_s: float
    backward_s: float
    update_s: float
    comm_s: float
    samples_per_s: float | None
    peak_memory_bytes: int
    status: str


Maker = Callable[[int | None], Workload]


def _step(make: Maker, batch: int) -> Graph:
    return build_step(make(batch))


def study(
    models: Sequence[Maker],
    devices: Sequence[Device],
    batches: Sequence[int] | None,
    workers: Sequence[int],
    link: Link | None,
    method: str,
    options: Mapping[str, str],
) -> Iterator[Cell]:
    """Give every cell, workers changing fastest, then batches, devices and models.

    A maker gives a model's workload at a batch, at its own for None, which is taken where no
    `batches` are given. Every worker keeps the batch (weak scaling); gradients are exchanged by
    the method's usual collective. Raises `InputError` as a single prediction does.
    """
    chosen = cost_model(method)
    settings = chosen.chosen(options)
    exchange = schemes(chosen.as_published)[chosen.collective]
    for make in models:
        first = make(batches[0] if batches else None)
        wanted = batches or (first.batch_per_replica,)
        found = steps(partial(_step, make), wanted, first.dtype, settings)
        memory = {batch: found.peak_memory_at(batch) for batch in wanted}
        for device in devices:
            fabric = None
            if link is not None:
                rate = device.memory_bytes_per_s
                fabric = fabric_of(link, settings.ppp_comm, chosen.as_published, rate)
            comm_s = {
                count: exchange(found.gradient_bytes, count, fabric)
                if fabric and count > 1
                else 0.0
                for count in workers
            }
            seconds_at = found.seconds_on(device)
            for batch in wanted:
                times = seconds_at(batch)
                alone_s = times.step_s
                status = "ok" if fits_into(memory[batch], device) else "oom"
                for count in workers:
                    step_s = alone_s + comm_s[count]
                    yield Cell(
                        first.label,
                        device.name,
                        batch,
                        count,
                        step_s,
                        times.forward_s,
                        times.backward_s,
                        times.update_s,
                        comm_s[count],
                        count * batch / step_s if step_s else None,
                        memory[batch],
                        status,
                    )

"""Grids: predictions over models, devices, batches and numbers of replicas, as cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, cycle, islice, repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from steptime.build import tokens_per_example
from steptime.core.errors import InputError
from steptime.core.garbage import no_collection
from steptime.core.workload import Workload
from steptime.grids.batch_steps import BatchSteps, fit_device
from steptime.hardware.device import Device, Link
from steptime.prediction.assumed import assumed_of
from steptime.prediction.method import Method
from steptime.prediction.steps.lines import Span
from steptime.prediction.steps.step_model import StepModel


class GridCell(NamedTuple):
    """One prediction of a grid. `batch` is a replica's; `step_s` includes `communication_s`.

    `low_s` and `high_s` bound the step, None where the method gives no bound; `is_extrapolated`
    says that some kernels, or devices like this one, were never measured. Where a device has no
    peak for the dtype, `status` is `unsupported`, `notes` say why, and there are no times.
    `assumed` is the software, layout and host that it is a prediction of. `peak_bytes` are
    of the tensors, `needed_bytes` of the whole process, which decides whether the step fits; None
    without times. Of a cell with times, `notes` are the remarks of its prediction.
    """

    model: str
    device: str
    batch: int
    replicas: int
    step_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    update_s: float | None = None
    communication_s: float | None = None
    examples_per_s: float | None = None
    peak_bytes: int = 0
    status: str = "unsupported"
    notes: tuple[str, ...] = ()
    low_s: float | None = None
    high_s: float | None = None
    dtype: str = ""
    assumed: Mapping[str, str] = MappingProxyType({})
    needed_bytes: int | None = None
    is_extrapolated: bool | None = None
    optimizer: str = ""
    tokens_per_s: float | None = None


STATUS_BY_FIT = {True: "ok", False: "oom"}
"""The status of a cell by whether the step fits the device."""

Maker = Callable[[int | None], Workload]
"""Makes the workload of a model at a batch, at the model's own for None."""


def grid(
    models: Sequence[Maker],
    devices: Sequence[Device],
    batches: Sequence[int] | None,
    replicas: Sequence[int],
    link: Link | None,
    method: str | Method,
    options: Mapping[str, str],
) -> Iterator[GridCell]:
    """Yield every cell, replicas changing fastest, then batches, devices and models.

    Every replica keeps the batch (weak scaling); gradients are exchanged by the method's usual
    collective.

    Args:
        models: makers of the workloads.
        devices: the devices.
        batches: batches of a replica; None is the batch of each model.
        replicas: numbers of replicas.
        link: the link between replicas; None where there is one replica.
        method: the cost model.
        options: options of the method.

    Raises:
        InputError: as a single prediction does, but for a device without a peak for the dtype,
            unless no device has one.
    """
    for make in models:
        workload = make(batches[0] if batches else None)
        with no_collection():  # graphs and kernels of three batches live until the last cell
            # Where no option names a stack, each device has its usual one (`assumes`).
            model = StepModel(workload, devices[0], link, method, options, assumes=True)
            steps = BatchSteps(model, batches or (workload.batch_per_replica,))
            models_on_devices = [model.with_device(device) for device in devices]
        yield from _network_cells(steps, models_on_devices, replicas)


def _network_cells(
    steps: BatchSteps, models: Sequence[StepModel], replicas: Sequence[int]
) -> Iterator[GridCell]:
    """Yield the cells of a network on each device, the first of them before all are priced.

    Many batches of a single device are priced chunk by chunk. Several devices are priced side by
    side, as they share the interpolated kernels, but for the first batches of the first device.

    Args:
        steps: the network's steps at all batches, of the first model.
        models: the network on each device.
        replicas: numbers of replicas.

    Raises:
        InputError: if no device has a peak for the data type.
    """
    first_model = models[0]
    # Cells of the first device that are yielded before all are priced, so that a caller who prints
    # them has something to show at once.
    early_cell_count = 0
    for early_steps in _split_early_steps(steps, is_single=len(models) == 1):
        with no_collection():
            (span,) = _price_devices(early_steps, [first_model])
        if isinstance(span, InputError):
            break
        early_cell_count += len(early_steps.batches) * len(replicas)
        yield from _priced_cells(first_model, early_steps, span, replicas)
    are_all_early = early_cell_count > 0 and len(models) == 1
    if not are_all_early:
        yield from islice(_list_all_cells(steps, models, replicas), early_cell_count, None)


def _split_early_steps(steps: BatchSteps, is_single: bool) -> Iterator[BatchSteps]:
    """Return the batches that are priced on the first device before all devices are.

    Those are all batches of a single device, in chunks. Of several devices it is the first chunk
    alone, as the others are cheaper side by side. Few batches are not split, and none is early.
    """
    chunks = (chunk for chunk in steps.split_batches() if chunk is not steps)
    return chunks if is_single else islice(chunks, 1)


def _list_all_cells(
    steps: BatchSteps, models: Sequence[StepModel], replicas: Sequence[int]
) -> Iterator[GridCell]:
    """Yield the cells of all devices, which are priced side by side.

    Raises:
        InputError: if no device has a peak for the data type.
    """
    with no_collection():
        spans = _price_devices(steps, models)
    # One device that cannot run the step has cells with the reason; if none can, it is an error.
    refusals = [span for span in spans if isinstance(span, InputError)]
    if len(refusals) == len(spans):
        raise refusals[-1]
    for model, span in zip(models, spans, strict=True):
        device_steps = steps.for_model(model)
        if isinstance(span, InputError):
            yield from _refused_cells(model, device_steps, span, replicas)
        else:
            yield from _priced_cells(model, device_steps, span, replicas)


def _price_devices(steps: BatchSteps, models: Sequence[StepModel]) -> list[Span | InputError]:
    """Return the times on each device, or the refusal of one without a peak for the dtype."""
    try:
        return [*steps.spans(models)]
    except InputError as error:
        # The error does not tell which device it is of: halve their list until it is alone.
        if len(models) == 1:
            return [error]
        middle = len(models) // 2
        first_half = _price_devices(steps, models[:middle])
        return [*first_half, *_price_devices(steps, models[middle:])]


def _refused_cells(
    model: StepModel, steps: BatchSteps, refusal: InputError, replicas: Sequence[int]
) -> Iterator[GridCell]:
    """Yield the cells of a device that cannot run the step: their memory and the reason."""
    for batch, peak_bytes in zip(steps.batches, steps.peak_bytes, strict=True):
        for replica_count in replicas:
            yield GridCell(
                model.workload.label,
                model.device.name,
                batch,
                replica_count,
                peak_bytes=peak_bytes,
                notes=(str(refusal),),
                dtype=model.workload.dtype,
                optimizer=model.workload.optimizer,
            )


def _link_bounds(
    model: StepModel, span: Span, replicas: Sequence[int], kernels_s: Any, communication_s: Any
) -> Iterator[Any]:
    """Yield the low and the high ends of steps whose kernels and links are off independently.

    Args:
        model: the network on the device.
        span: its times.
        replicas: numbers of replicas.
        kernels_s: the seconds of kernels in each cell.
        communication_s: the seconds of collectives in each cell.
    """
    # The low end of a step has fast kernels and fast links, the high end slow ones.
    fast_links, slow_links = 1, -1  # `collective_s` takes the ends of a link's rate by these signs
    for link_end, kernel_bounds_s in ((fast_links, span.low_s), (slow_links, span.high_s)):
        if kernel_bounds_s is None:
            yield repeat(None)
            continue
        # In the order of cells: by batch and, within a batch, by the number of replicas.
        exchange_s = np.resize(_exchange_s(model, replicas, link_end), len(communication_s))
        kernels_error_s = np.repeat(kernel_bounds_s, len(replicas)) - kernels_s
        links_error_s = exchange_s - communication_s
        error_s = np.hypot(kernels_error_s, links_error_s)  # kernels and links err independently
        # Shorter for fast links (1), longer for slow ones (-1).
        yield (kernels_s + communication_s - link_end * error_s).tolist()


def _exchange_s(model: StepModel, replicas: Sequence[int], link_end: int) -> list[float]:
    """Return the seconds of the exchange of gradients by the number of replicas."""
    collective = model.collective()
    return [
        model.collective_s(collective, model.gradient_bytes, count, link_end) if count > 1 else 0.0
        for count in replicas
    ]


def _rates(counts: Any, seconds: Any) -> list[float | None]:
    """Return counts a second, of arrays; None where a method counts no time."""
    has_time = seconds > 0
    rates: list[float | None] = np.divide(
        counts, seconds, out=np.zeros_like(seconds), where=has_time
    ).tolist()
    if has_time.all():
        return rates
    # a step of no time has no rate
    flags = has_time.tolist()
    return [rate if is_timed else None for rate, is_timed in zip(rates, flags, strict=True)]


def _priced_cells(
    model: StepModel, steps: BatchSteps, span: Span, replicas: Sequence[int]
) -> Iterator[GridCell]:
    """Return the cells of a device, made by columns: each batch, on each number of replicas."""
    column_by_field = {
        **_constant_columns(model),
        "replicas": cycle(replicas),
        **_time_columns(model, steps, span, replicas),
        **_batch_columns(model, steps, span, replicas),
    }
    columns = [column_by_field[name] for name in GridCell._fields]
    # `GridCell._make` runs as Python, cell by cell; this does not.
    make_cell = partial(tuple.__new__, GridCell)
    return map(make_cell, zip(*columns, strict=False))  # columns of `repeat` and `cycle` never end


def _constant_columns(model: StepModel) -> dict[str, Iterable[object]]:
    """Return the columns that have one value in all cells of a device."""
    workload = model.workload
    return {
        "model": repeat(workload.label),
        "device": repeat(model.device.name),
        "dtype": repeat(workload.dtype),
        "assumed": repeat(assumed_of(model)),
        "optimizer": repeat(workload.optimizer),
    }


def _time_columns(
    model: StepModel, steps: BatchSteps, span: Span, replicas: Sequence[int]
) -> dict[str, Iterable[object]]:
    """Return the columns of steps with their exchanges: each batch, on each number of replicas."""
    communication_s_of_replicas = [
        model.estimate_comm(count) if count > 1 else 0.0 for count in replicas
    ]
    communication_s = np.tile(communication_s_of_replicas, len(steps.batches))
    kernels_s = np.repeat(np.sum(span.times, axis=0), len(replicas))
    step_s = kernels_s + communication_s
    examples_per_s = _rates(np.outer(steps.batches, replicas).reshape(-1), step_s)
    length = tokens_per_example(model.workload)
    tokens_per_s: Iterable[float | None] = repeat(None)
    if length is not None:
        tokens_per_s = (None if rate is None else length * rate for rate in examples_per_s)
    low_s, high_s = _link_bounds(model, span, replicas, kernels_s, communication_s)
    return {
        "step_s": step_s.tolist(),
        "communication_s": communication_s.tolist(),
        "examples_per_s": examples_per_s,
        "tokens_per_s": tokens_per_s,
        "low_s": low_s,
        "high_s": high_s,
    }


def _batch_columns(
    model: StepModel, steps: BatchSteps, span: Span, replicas: Sequence[int]
) -> dict[str, Iterable[object]]:
    """Return the columns that depend on the batch alone, each value for all replicas."""
    needed_bytes = steps.needed_bytes(model)
    forward_s, backward_s, update_s = span.times
    column_by_field: dict[str, Iterable[object]] = {
        "batch": steps.batches,
        "forward_s": forward_s,
        "backward_s": backward_s,
        "update_s": update_s,
        "peak_bytes": steps.peak_bytes,
        "status": (STATUS_BY_FIT[fits] for fits in fit_device(model, needed_bytes)),
        "notes": steps.remarks(model, needed_bytes),
        "needed_bytes": needed_bytes,
        "is_extrapolated": span.is_extrapolated,
    }
    if len(replicas) == 1:
        return column_by_field
    return {name: _repeat_values(values, len(replicas)) for name, values in column_by_field.items()}


def _repeat_values(values: Iterable[object], count: int) -> Iterable[object]:
    """Return values, each `count` times in a row."""
    return chain.from_iterable(repeat(value, count) for value in values)

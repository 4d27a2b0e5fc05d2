"""Predictions of many workloads on many devices, as records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from steptime.core.dtypes import find_dtype
from steptime.core.errors import InputError
from steptime.core.graph import PASSES
from steptime.core.progress import track_progress
from steptime.core.workload import Workload
from steptime.grids.batch_steps import BatchSteps, fit_device
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.prediction.method import Method
from steptime.prediction.records import StepVerdict, costs, record_method, step_record
from steptime.prediction.steps.lines import Span
from steptime.prediction.steps.step_model import StepModel
from steptime.records.record import Quantity, Record, current_time

Place = tuple[Device, str | None]  # and the dtype there, None for that of each workload


def place_of(text: str, method: str = "") -> Place:
    """Return the device that a text such as `tpu-v2-8:bfloat16-mixed` names, and its dtype."""
    name, dtype = text, ""
    if ":" in text:
        name, _, dtype = text.rpartition(":")
    device = catalog.device(name.strip(), method)
    has_dtype = bool(dtype.strip())
    return device, find_dtype(dtype.strip()) if has_dtype else None


def predict_records(
    workloads: Iterable[Workload],
    places: Sequence[Place],
    method: str | Method,
    options: Mapping[str, object],
    refusals: dict[str, int],
) -> Iterator[Record]:
    """Yield the record of each step of one replica at each place, network by network.

    Args:
        workloads: the steps; those of one network at several batches are predicted together.
        places: devices with data types.
        method: the cost model.
        options: options of the method.
        refusals: number of steps that a place cannot run, by the reason; it is added to.

    Raises:
        InputError: for a mistake that does not depend on the place.
    """
    workloads_by_network: dict[str, list[Workload]] = {}  # they differ in the batch alone
    for workload in workloads:
        network_key = replace(workload, batch_per_replica=1).key
        workloads_by_network.setdefault(network_key, []).append(workload)
    dtypes = dict.fromkeys(dtype for _, dtype in places)
    for workloads_of_network in track_progress(list(workloads_by_network.values()), "networks"):
        network = workloads_of_network[0]
        batches = list(dict.fromkeys(step.batch_per_replica for step in workloads_of_network))
        for dtype in dtypes:
            workload = network.with_dtype(find_dtype(dtype)) if dtype else network
            # Any device will do: `_predict_devices` puts the model on those of the places. Each has
            # its usual stack where no option names one (`assumes`).
            first_device, _ = places[0]
            model = StepModel(workload, first_device, method=method, options=options, assumes=True)
            devices = [device for device, place_dtype in places if place_dtype == dtype]
            yield from _predict_devices(BatchSteps(model, batches), devices, refusals)


def _predict_devices(
    steps: BatchSteps, devices: Iterable[Device], refusals: dict[str, int]
) -> Iterator[Record]:
    """Yield the records of a network on each device; count those that are refused."""
    work_by_steps: dict[BatchSteps, list[dict[str, float]]] = {}  # devices may share their graphs
    for device in devices:
        try:
            model = steps.model.with_device(device)
            device_steps = steps.for_model(model)
            if device_steps not in work_by_steps:
                work_by_steps[device_steps] = _count_work(device_steps)
            yield from _device_records(model, device_steps, work_by_steps[device_steps])
        except InputError as error:
            refusals[str(error)] = refusals.get(str(error), 0) + len(steps.batches)


def _count_work(steps: BatchSteps) -> list[dict[str, float]]:
    """Return FLOP and traffic at each batch, between the ends of lines where it lies on these."""
    if steps.groups:
        return steps.merge([_count_work(group.steps) for group in steps.groups])
    if steps.lines is None:
        return [costs(steps.model, batch) for batch in steps.batches]
    # Work is linear in the batch: interpolate between the two batches of the lines.
    low_costs = costs(steps.model, steps.lines.low_batch)
    high_costs = costs(steps.model, steps.lines.high_batch)

    def interpolate(name: str, share: float) -> int:
        growth = high_costs[name] - low_costs[name]
        return round(low_costs[name] + growth * share)

    shares = steps.lines.share_between_ends(steps.batches).tolist()
    return [{name: interpolate(name, share) for name in low_costs} for share in shares]


def _device_records(
    model: StepModel, steps: BatchSteps, work: Sequence[Mapping[str, float]]
) -> Iterator[Record]:
    """Yield the records of a network on a device, by batch.

    Raises:
        InputError: as a prediction does.
    """
    (span,) = steps.spans([model])
    method = record_method(model)
    taken_at = current_time()
    needed_bytes = steps.needed_bytes(model)
    verdicts = map(StepVerdict, fit_device(model, needed_bytes), steps.remarks(model, needed_bytes))
    quantities = _list_quantities(span, work, steps.peak_bytes)
    for batch, step_quantities, verdict in zip(steps.batches, quantities, verdicts, strict=True):
        workload = replace(model.workload, batch_per_replica=batch)
        yield step_record(model, workload, method, step_quantities, verdict, taken_at=taken_at)


def _list_quantities(
    span: Span, work: Sequence[Mapping[str, float]], peak_bytes: Sequence[int]
) -> Iterator[dict[str, Quantity]]:
    """Yield the quantities of the step at each batch: times, FLOP and bytes."""
    unknown_bounds: list[float | None] = [None] * len(work)
    columns = (
        zip(*span.times, strict=True),
        span.low_s or unknown_bounds,
        span.high_s or unknown_bounds,
        work,
        peak_bytes,
    )
    for times, low_s, high_s, work_of_step, peak_bytes_of_step in zip(*columns, strict=True):
        pass_times = {f"{name}_s": time_s for name, time_s in zip(PASSES, times, strict=True)}
        amounts = {**pass_times, **work_of_step}
        yield {
            **{name: Quantity(amount) for name, amount in amounts.items()},
            "step_s": Quantity(sum(times), low=low_s, high=high_s),
            "peak_bytes": Quantity(peak_bytes_of_step),
        }

"""Predictions as records: of the whole step first, then of each row."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from steptime import __version__
from steptime.core.copying import replace
from steptime.core.graph import PASSES
from steptime.core.workload import Workload
from steptime.hardware.device import Device, device_hash
from steptime.prediction.method import stack_option, tf32_option
from steptime.prediction.outcome import Prediction
from steptime.prediction.schedule import RowTime
from steptime.prediction.steps.step_model import StepModel
from steptime.records.record import Quantity, Record, RecordMethod, current_time
from steptime.records.stacks import stack_of


class StepVerdict(NamedTuple):
    """The part of a prediction that is no number: whether it fits, and remarks."""

    fits: bool
    remarks: Sequence[str]


def records(model: StepModel) -> Sequence[Record]:
    """Return the record of a workload's step, then one for each row."""
    prediction = model.predict()
    method = record_method(model)
    verdict = StepVerdict(prediction.fits, prediction.remarks)
    step_quantities = _step_quantities(model, prediction)
    step = step_record(model, model.workload, method, step_quantities, verdict)
    row_records = []
    traffic_bytes = _traffic_by_row(prediction)
    for row_time in prediction.times.rows:
        row = row_time.row
        quantities = _row_quantities(row_time, prediction, traffic_bytes[row.name])
        row_record = step_record(
            model,
            model.workload,
            method,
            quantities,
            verdict,
            scope=row.name,
            taken_at=step.taken_at,
        )
        row_records.append(replace(row_record, env={**row_record.env, "op_kind": row.kind}))
    return [step, *row_records]


def _step_quantities(model: StepModel, prediction: Prediction) -> dict[str, Quantity]:
    """Return the quantities of a step's record."""
    times = prediction.times
    quantities = {
        "forward_s": Quantity(times.forward_s),
        "backward_s": Quantity(times.backward_s),
        "update_s": Quantity(times.update_s),
        "step_s": Quantity(times.step_s, low=times.low_s, high=times.high_s),
    }
    values = {**costs(model), "peak_bytes": prediction.peak_bytes}
    return quantities | {name: Quantity(value) for name, value in values.items()}


def _row_quantities(
    row_time: RowTime, prediction: Prediction, traffic_bytes: float
) -> dict[str, Quantity]:
    """Return the quantities of a row's record."""
    flop = prediction.flop_by_row[row_time.row.name]
    return {
        "forward_s": Quantity(row_time.forward.value),
        "backward_s": Quantity(row_time.backward.value),
        "update_s": Quantity(row_time.update.value),
        "step_s": Quantity(row_time.step_s, low=row_time.step.low, high=row_time.step.high),
        "flop": Quantity(sum(flop.values())),
        "forward_flop": Quantity(flop["forward"]),
        "traffic_bytes": Quantity(traffic_bytes),
    }


def _traffic_by_row(prediction: Prediction) -> dict[str, float]:
    """Return the bytes that the kernels of each row move in memory."""
    lowered = prediction.lowered
    traffic_bytes = dict.fromkeys((row.name for row in lowered.rows), 0.0)
    for kernel in lowered.kernels:
        is_collective = kernel.exchange is not None  # its bytes cross a link
        has_row = kernel.op in traffic_bytes  # the update of all weights at once has none
        if has_row and not is_collective:
            traffic_bytes[kernel.op] += kernel.bytes
    return traffic_bytes


def costs(model: StepModel, batch: int | None = None) -> dict[str, float]:
    """Return the FLOP of a step, those of its forward pass, and its memory traffic."""
    flop_of_rows = model.flop_by_row(batch).values()
    flop_by_pass = {name: sum(row_flop[name] for row_flop in flop_of_rows) for name in PASSES}
    return {
        "flop": sum(flop_by_pass.values()),
        "forward_flop": flop_by_pass["forward"],
        "traffic_bytes": model.lower_step(batch).traffic_bytes,
    }


def step_record(
    model: StepModel,
    workload: Workload,
    method: RecordMethod,
    quantities: Mapping[str, Quantity],
    verdict: StepVerdict,
    scope: str = "",
    taken_at: str = "",
) -> Record:
    """Return the record of a predicted step, or of a row of it.

    Args:
        model: the step.
        workload: the workload that the record names.
        method: the method that the record names.
        quantities: the predicted numbers by key.
        verdict: whether the step fits, and remarks.
        scope: name of the row, "" for the whole step.
        taken_at: time of the prediction; "" for the present.
    """
    # Methods that know no stack do not name one.
    stack = {"stack": model.stack.label} if "stack" in model.method.options else {}
    # A device whose ceilings were measured names the platform on which they were.
    platform = model.device.measured.get("platform", model.device.name)
    return Record(
        origin="predicted",
        method=method,
        workload=workload,
        platform=platform,
        quantities=quantities,
        status="ok" if verdict.fits else "oom",
        cause="" if verdict.fits else "predicted-not-to-fit",
        note="; ".join(verdict.remarks),
        scope=scope,
        env={"steptime": __version__, **stack},
        taken_at=taken_at or current_time(),
    )


def options_of(record: Record, device: Device) -> dict[str, str]:
    """Return the options of methods under which a record ran: its stack, and TF32 if known."""
    allows_tf32 = record.method.options.get("tf32")
    options = stack_option(stack_of(record))
    if allows_tf32 is None:
        return options
    return options | tf32_option(bool(allows_tf32), device)


def record_method(model: StepModel) -> RecordMethod:
    """Return the method of a model, with the device figures that decide its numbers."""
    method, device = model.method, model.effective_device
    # `derate_device` puts the peak of the predicted data type first.
    peak = next(iter(device.datasheet.peak_flop_per_s.values()))
    return RecordMethod(
        method.name,
        method.version,
        {
            "device": model.device.name,
            "device_hash": device_hash(model.device, method.reads),
            "peak_flop_per_s": peak,
            "memory_bytes_per_s": device.datasheet.memory_bytes_per_s,
            "launch_s": None if model.settings.host == "no" else model.device.datasheet.launch_s,
            **method.changed_options(model.options),
        },
    )

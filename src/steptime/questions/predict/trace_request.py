"""The step of a trace of PyTorch's profiler on another device, or with other settings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from steptime.calibration.traces.batch import BatchChange, find_batch
from steptime.calibration.traces.calls import is_recognised
from steptime.calibration.traces.transfer import MovedOp, MovedStep, TracedStepChange, move_step
from steptime.core.errors import InputError, check_choice
from steptime.core.toml_files import format_path
from steptime.core.units import format_count, format_percent, format_seconds
from steptime.core.values import parse_count
from steptime.hardware import catalog, device_words
from steptime.hardware.device import Device
from steptime.prediction import DEFAULT, conformal
from steptime.prediction.calibrated.cpu import cores_of
from steptime.prediction.method import Method
from steptime.questions.predict.trace_options import TraceRequest
from steptime.questions.predict.traced_step import TracedKind, TracedStepTime
from steptime.records.readers.sources import RecordSource, list_sources
from steptime.records.readers.torch_trace import find_device_name, recognises
from steptime.records.traces.event_trees import ATEN
from steptime.records.traces.trace_events import read_events
from steptime.records.traces.traced_ops import TracedStep, read_traced_step

TRACE_DTYPES = ("float32", "float64", "bfloat16", "float16")
UNDISTURBED_SHARE = 0.9  # of a traced step, below which a note says that it was disturbed
CPU_CALIBRATION = "steptime calibrate --only ceilings --threads N"


def predict_trace(
    request: TraceRequest, method: Method, settings: Mapping[str, str]
) -> TracedStepTime:
    """Predict the step of a trace on a device.

    Raises:
        InputError: for a file that is no trace with shapes, an unknown device or batch, and a step
            too much of which has no shapes.
    """
    if request.dtype is not None:
        check_choice("--dtype of a trace", request.dtype, TRACE_DTYPES)
    source = _read_source(Path(request.origin.path))
    steps = None if request.origin.steps is None else parse_count(request.origin.steps, "--steps")
    try:
        step = read_traced_step(read_events(source.text), is_recognised, steps)
    except InputError as error:
        raise InputError(f"{format_path(Path(request.origin.path))}: {error}") from None
    origin = _find_origin(request, source, step)
    target = _find_target(request, origin)
    change = TracedStepChange(_find_batch_change(request, step), request.dtype)
    configured_method = method.with_options(settings)
    try:
        moved = move_step(step, origin, target, change, configured_method)
    except InputError as error:
        raise InputError(f"{format_path(Path(request.origin.path))}: {error}") from None
    return _make_answer(request, step, moved, (origin, target), change, configured_method)


def _read_source(path: Path) -> RecordSource:
    """Return the content of the file; raises `InputError` for one that is no trace."""
    if not path.is_file():
        raise InputError(f"{format_path(path)}: there is no such file")
    for source in list_sources(path):
        if isinstance(source, RecordSource) and recognises(source):
            return source
    raise InputError(f"{format_path(path)}: is no trace of torch.profiler (export_chrome_trace)")


def _find_origin(request: TraceRequest, source: RecordSource, step: TracedStep) -> Device:
    """Return the device on which the trace was taken."""
    if request.origin.device is not None:
        return catalog.device(request.origin.device)
    if not step.is_on_device:  # the step ran on a CPU, taken to be that of this machine
        try:
            return catalog.device(device_words.LOCAL)
        except InputError:
            advice = f"name it with --from-device, or measure this machine: {CPU_CALIBRATION}"
            raise InputError(f"--trace: is of a CPU without a device file; {advice}") from None
    traced_name = find_device_name(source)  # the driver's name: `NVIDIA H100 80GB HBM3`
    device_name = device_words.platform_of(traced_name) if traced_name else None
    if device_name is None:
        reason = "it does not name its device"
        if traced_name:
            reason = f"its device '{traced_name}' is unknown"
        raise InputError(f"{format_path(Path(request.origin.path))}: {reason}; add --from-device")
    return catalog.device(device_name)


def _find_target(request: TraceRequest, origin: Device) -> Device:
    """Return the device that is asked for; without one that of the trace, on other threads."""
    if request.device is not None and request.threads is not None:
        raise InputError("--threads is of the device of the trace; leave out --device")
    if request.device is not None:
        return catalog.device(request.device)
    if request.threads is None:
        return origin
    if not origin.is_cpu:
        raise InputError(f"--threads is of a CPU, and {origin.name} is none")
    return with_threads(origin, parse_count(request.threads, "--threads"))


def with_threads(device: Device, threads: int) -> Device:
    """Return a CPU with another number of cores at work, whose rates grow with it."""
    sheet = device.datasheet
    cores = sheet.cores or cores_of(device)
    # Rates of a CPU are taken to be proportional to the threads that work.
    threads_over_cores = threads / cores
    scaled_device = device.with_figures(
        cores=threads,
        peak_flop_per_s={
            name: threads_over_cores * rate for name, rate in sheet.peak_flop_per_s.items()
        },
        vector_flop_per_s={
            name: threads_over_cores * rate for name, rate in sheet.vector_flop_per_s.items()
        },
        memory_bytes_per_s=threads_over_cores * sheet.memory_bytes_per_s,
    )
    return replace(scaled_device, name=f"{device.name}, {format_count(threads, 'thread')}")


def _find_batch_change(request: TraceRequest, step: TracedStep) -> BatchChange | None:
    """Return the batch of the trace and the one that is asked for; None where neither is known."""
    traced_batch: int | None
    if request.origin.batch is None:
        traced_batch = find_batch(step.ops)
    else:
        traced_batch = parse_count(request.origin.batch, "--from-batch")
    if request.batch is None:
        return None if traced_batch is None else BatchChange(traced_batch, traced_batch)
    if traced_batch is None:
        raise InputError("--batch: the trace shows no batch of its own; add --from-batch")
    return BatchChange(traced_batch, parse_count(request.batch, "--batch"))


def _make_answer(
    request: TraceRequest,
    step: TracedStep,
    moved: MovedStep,
    devices: tuple[Device, Device],
    change: TracedStepChange,
    method: Method,
) -> TracedStepTime:
    """Return the answer about a traced step that was moved to another device or batch.

    Args:
        request: what was asked.
        step: the step as the trace shows it.
        moved: the step on the target.
        devices: the device of the trace, and the target.
        change: what else differs from the trace.
        method: the cost model, under its options.
    """
    origin, target = devices
    batch = change.batch  # None where neither the trace nor an option says the batch
    # Two times: `moved.step_s` corrects each op's prediction by how far off the prediction was on
    # the device of the trace; `moved.priced_s` is the prediction alone, and has the interval.
    predicted_s = moved.priced_s
    predicted_low_s, predicted_high_s = _find_interval(predicted_s, target, method)
    examples_per_s = None
    if batch is not None and moved.step_s:
        examples_per_s = batch.requested / moved.step_s
    assumed = {} if request.origin.device is not None else {"from_device": origin.name}
    if batch is not None and request.origin.batch is None:
        assumed["from_batch"] = str(batch.traced)
    if "stack" in method.options:
        assumed["stack"] = method.settings.stack
    return TracedStepTime(
        trace=Path(request.origin.path).name,
        device=target.name,
        from_device=origin.name,
        method=method.name,
        batch=None if batch is None else batch.requested,
        from_batch=None if batch is None else batch.traced,
        dtype=request.dtype,
        traced_steps=step.step_count,
        measured_s=step.step_s,
        step_s=moved.step_s,
        forward_s=moved.pass_s("forward"),
        backward_s=moved.pass_s("backward"),
        update_s=moved.pass_s("update"),
        unshaped_s=moved.unshaped_s,
        host_s=moved.host_s,
        # Unshaped: ops whose shapes the trace lacks. Undisturbed: without the delays of other work.
        unshaped_share=sum(step.unshaped_s.values()) / step.undisturbed_s,
        examples_per_s=examples_per_s,
        is_carried=moved.is_carried,  # whether `moved.step_s` has that correction
        predicted_s=predicted_s,
        predicted_low_s=predicted_low_s,
        predicted_high_s=predicted_high_s,
        flop=moved.work.flop,
        utilisation=moved.work.peak_s / predicted_s if predicted_s else None,
        uncounted_share=moved.work.uncounted_s / predicted_s if predicted_s else 0.0,
        assumed=assumed,
        notes=tuple(_list_notes(request, step, moved, devices)),
        rows=tuple(_group_ops(moved.ops)),
        _by_op=request.by_op,
    )


def _find_interval(
    step_s: float, device: Device, method: Method
) -> tuple[float | None, float | None]:
    """Return the ends of the 80 % interval of a step by its shapes alone, as of any network."""
    # Intervals were calibrated for the default method alone.
    if method.name != DEFAULT:
        return None, None
    interval = conformal.find_typical_ends(conformal.DEVICE_STEPS, device).interval_around(step_s)
    return interval.low, interval.high


def _list_notes(
    request: TraceRequest, step: TracedStep, moved: MovedStep, devices: tuple[Device, Device]
) -> list[str]:
    """Return the remarks: what has no shapes, what is not carried over, how steps were found."""
    origin, target = devices
    notes = []
    # An op without shapes cannot be priced: its traced time is scaled by the memory's bandwidth.
    unshaped_s = sum(step.unshaped_s.values())
    if unshaped_s:
        longest_op = max(step.unshaped_s, key=step.unshaped_s.__getitem__)
        share = format_percent(unshaped_s / step.undisturbed_s)
        notes.append(
            f"{share} of the traced step has no shapes ({longest_op}): scaled by bandwidth"
        )
    # Between a CPU and a GPU the ratio of measured to predicted time says nothing.
    if not moved.is_carried:
        kinds = f"a {origin.kind} to a {target.kind}"
        notes.append(f"measured times are not carried over from {kinds}: shapes alone decide")
    if step.undisturbed_s < UNDISTURBED_SHARE * step.step_s:
        undisturbed = format_seconds(step.undisturbed_s)
        notes.append(
            f"other work disturbed the trace: its ops and gaps take {undisturbed} undisturbed"
        )
    if request.threads is not None:
        notes.append(f"rates of {target.name} are those of {origin.name} in proportion to threads")
    if not step.is_marked and request.origin.steps is None:
        reason = format_count(step.step_count, "step")
        notes.append(f"the trace marks no steps: taken to be {reason}; --steps N divides it")
    return notes


def _group_ops(ops: Sequence[MovedOp]) -> list[TracedKind]:
    """Return the ops by name and pass, the longest first."""
    ops_by_kind_and_pass: dict[tuple[str, str], list[MovedOp]] = {}
    for op in ops:
        kind_and_pass = op.key.name.removeprefix(ATEN), op.key.pass_
        ops_by_kind_and_pass.setdefault(kind_and_pass, []).append(op)
    rows = []
    for (kind, pass_), group in ops_by_kind_and_pass.items():
        measured_s = sum(op.measured_s for op in group)
        predicted_s = sum(op.predicted_s for op in group)
        rows.append(
            TracedKind(
                kind=kind,
                pass_=pass_,
                calls=sum(op.calls for op in group),
                measured_s=measured_s,
                predicted_s=predicted_s,
                measured_over_predicted=measured_s / predicted_s if predicted_s else 1.0,
                step_s=sum(op.moved_s for op in group),
            )
        )
    return sorted(rows, key=lambda row: -row.step_s)

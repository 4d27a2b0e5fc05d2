"""Predictions as records: of the whole step first, then of each row."""

from collections.abc import Mapping, Sequence
from typing import Any

from steptime import __version__
from steptime.core.copying import replace
from steptime.core.graph import PASSES
from steptime.core.workload import Workload
from steptime.hardware.device import Device, device_hash
from steptime.prediction.method import stack_option, tf32_option
from steptime.prediction.step_model import StepModel
from steptime.records.record import Quantity, Record, RecordMethod, current_time
from steptime.records.stacks import stack_of


def records(model: StepModel) -> Sequence[Record]:
    """Return the record of a workload's step, then one for each row."""
    made, named, taken_at = model.predict(), record_method(model), current_time()

    def record(values: Mapping[str, float], told: Mapping[str, Any], scope: str = "") -> Record:
        step = Quantity(told["step_s"], low=told["low_s"], high=told["high_s"])
        times = {f"{name}_s": Quantity(told[f"{name}_s"]) for name in PASSES}
        times |= {"step_s": step, **{name: Quantity(value) for name, value in values.items()}}
        how = times, made.fits, made.remarks, taken_at
        return step_record(model, model.workload, named, *how, scope)

    moved = dict.fromkeys((row.name for row in made.lowered.rows), 0.0)
    for kernel in made.lowered.kernels:
        if kernel.exchange is None and kernel.op in moved:
            moved[kernel.op] += kernel.bytes
    whole = {**costs(model), "peak_bytes": made.peak_bytes}
    times = made.times
    step_times = {
        "step_s": times.step_s,
        "low_s": times.low_s,
        "high_s": times.high_s,
        "forward_s": times.forward_s,
        "backward_s": times.backward_s,
        "update_s": times.update_s,
    }
    found = [record(whole, step_times)]
    for one in made.times.rows:
        name, flop = one.row.name, made.counted[one.row.name]
        values = {"flop": sum(flop.values()), "forward_flop": flop["forward"]}
        own = record({**values, "traffic_bytes": moved[name]}, one.told, name)
        found.append(replace(own, env={**own.env, "op_kind": one.row.kind}))
    return found


def costs(model: StepModel, batch: int | None = None) -> dict[str, float]:
    """Return the FLOP of a step, those of its forward pass, and the bytes that it moves."""
    every, moved = model.counted(batch).values(), model.lowered(batch).traffic_bytes
    by_pass = {name: sum(parts[name] for parts in every) for name in PASSES}
    forward = by_pass["forward"]
    return {"flop": sum(by_pass.values()), "forward_flop": forward, "traffic_bytes": moved}


def step_record(
    model: StepModel,
    workload: Workload,
    named: RecordMethod,
    quantities: Mapping[str, Quantity],
    fits: bool,
    remarks: Sequence[str],
    taken_at: str,
    scope: str = "",
) -> Record:
    """Return what a model found of a workload as a record, of the step or of a row of it."""
    stack = {"stack": model.stack.label} if "stack" in model.method.options else {}
    return Record(
        origin="predicted",
        method=named,
        workload=workload,
        platform=model.device.measured.get("platform", model.device.name),
        quantities=quantities,
        status="ok" if fits else "oom",
        cause="" if fits else "predicted-not-to-fit",
        note="; ".join(remarks),
        scope=scope,
        env={"steptime": __version__, **stack},
        taken_at=taken_at,
    )


def options_of(one: Record, device: Device) -> dict[str, str]:
    """Return the options of methods that say how a record ran: its stack, and whether in TF32."""
    allowed = one.method.options.get("tf32")
    found = stack_option(stack_of(one))
    return found if allowed is None else found | tf32_option(bool(allowed), device)


def record_method(model: StepModel) -> RecordMethod:
    """Return what a record says of how its numbers were obtained."""
    method, seen = model.method, model.seen
    peak = next(iter(seen.peak_flop_per_s.values()))
    return RecordMethod(
        method.name,
        method.version,
        {
            "device": model.device.name,
            "device_hash": device_hash(model.device, model.method.reads),
            "peak_flop_per_s": peak,
            "memory_bytes_per_s": seen.memory_bytes_per_s,
            "launch_s": None if model.settings.host == "no" else model.device.launch_s,
            **method.changed(model.options),
        },
    )

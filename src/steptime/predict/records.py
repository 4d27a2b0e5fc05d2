"""Predictions as records: of the whole step first, then of each row."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from steptime import __version__
from steptime.catalog import device_hash
from steptime.core.record import Method, Quantity, Record
from steptime.core.workload import Workload
from steptime.predict.lower import PASSES
from steptime.predict.step_model import StepModel


def records(model: StepModel) -> Sequence[Record]:
    """Return the record of a workload's step, then one for each row."""
    made = model.predict()
    named = record_method(model)
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")

    def record(scope: str, values: Mapping[str, float], **about: str) -> Record:
        return Record(
            origin="predicted",
            method=named,
            workload=model.workload,
            platform=model.device.measured.get("platform", model.device.name),
            quantities={name: Quantity(value) for name, value in values.items()},
            status=made.status,
            cause="" if made.fits else "predicted-not-to-fit",
            note="; ".join(made.remarks),
            scope=scope,
            env={"steptime": __version__, **_stack(model), **about},
            taken_at=taken_at,
        )

    moved = dict.fromkeys((row.name for row in made.lowered.rows), 0.0)
    for kernel in made.lowered.kernels:
        if kernel.exchange is None and kernel.op in moved:
            moved[kernel.op] += kernel.bytes
    whole = {
        **{f"{name}_s": getattr(made.times, f"{name}_s") for name in (*PASSES, "step")},
        "flop": made.flop,
        "forward_flop": sum(parts["forward"] for parts in made.counted.values()),
        "traffic_bytes": made.lowered.traffic_bytes,
        "peak_memory_bytes": made.peak_memory_bytes,
    }
    times = made.times
    step = Quantity(times.step_s, low=times.low_s, high=times.high_s)
    head = record("", whole)
    found = [replace(head, quantities={**head.quantities, "step_s": step})]
    for one in times.rows:
        row, flop = one.row, made.counted[one.row.name]
        values = {f"{name}_s": getattr(one, name).value for name in PASSES}
        values |= {
            "step_s": one.step_s,
            "flop": sum(flop.values()),
            "forward_flop": flop["forward"],
        }
        own = record(row.name, {**values, "traffic_bytes": moved[row.name]}, op_kind=row.kind)
        low, high = one.bounds
        bounded = Quantity(one.step_s, low=low, high=high)
        found.append(replace(own, quantities={**own.quantities, "step_s": bounded}))
    return found


def now() -> str:
    """Return the time in UTC, as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def step_record(
    model: StepModel,
    workload: Workload,
    named: Method,
    quantities: Mapping[str, Quantity],
    fits: bool,
    remarks: Sequence[str],
    taken_at: str,
    scope: str = "",
) -> Record:
    """Return what a model found of a workload as a record, of the step or of a row of it."""
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
        env={"steptime": __version__, **_stack(model)},
        taken_at=taken_at,
    )


def _stack(model: StepModel) -> dict[str, str]:
    """Return the stack that was predicted; nothing for a method that knows none."""
    return {"stack": model.stack.label} if "stack" in model.method.options else {}


def record_method(model: StepModel) -> Method:
    """Return what a record says of how its numbers were obtained."""
    method, seen = model.method, model.seen
    peak = next(iter(seen.peak_flop_per_s.values()))
    return Method(
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

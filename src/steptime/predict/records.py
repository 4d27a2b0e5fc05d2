"""Predictions as records: of the whole step first, then of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from steptime import __version__
from steptime.catalog import device_hash
from steptime.core.record import Method, Quantity, Record
from steptime.predict.prediction import Prediction
from steptime.predict.schedule import RowTime
from steptime.predict.step_model import StepModel


def records(model: StepModel) -> Sequence[Record]:
    """Return the record of a workload's step, then one for each row."""
    made = model.predict()
    named = record_method(model)
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")

    def record(scope: str, values: Mapping[str, float]) -> Record:
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
            env={"steptime": __version__},
            taken_at=taken_at,
        )

    moved = _by_row(made)
    whole = {**_step_quantities(made), "peak_memory_bytes": made.peak_memory_bytes}
    return [
        record("", whole),
        *(record(r.row.name, _row_quantities(r, *moved[r.row.name])) for r in made.times.rows),
    ]


def record_method(model: StepModel) -> Method:
    """Return what a record says of how its numbers were obtained."""
    method, seen = model.method, model.seen
    peak = next(iter(seen.peak_flop_per_s.values()))
    return Method(
        method.name,
        method.version,
        {
            "device": model.device.name,
            "device_hash": device_hash(model.device),
            "peak_flop_per_s": peak,
            "memory_bytes_per_s": seen.memory_bytes_per_s,
            "launch_s": None if model.settings.host == "no" else model.device.launch_s,
            **method.changed(model.options),
        },
    )


def _by_row(made: Prediction) -> dict[str, tuple[float, float]]:
    """Return the FLOP and bytes of each row, in all passes."""
    found: dict[str, tuple[float, float]] = {row.row.name: (0, 0) for row in made.times.rows}
    for kernel in made.lowered.kernels:
        if kernel.op in found and kernel.exchange is None:
            flop, moved = found[kernel.op]
            found[kernel.op] = (flop + kernel.flop, moved + kernel.bytes)
    return found


def _step_quantities(made: Prediction) -> dict[str, float]:
    return {
        "forward_s": made.times.forward_s,
        "backward_s": made.times.backward_s,
        "update_s": made.times.update_s,
        "step_s": made.times.step_s,
        "flop": made.lowered.flop,
        "forward_flop": made.forward_flop,
        "traffic_bytes": made.lowered.traffic_bytes,
    }


def _row_quantities(found: RowTime, flop: float, moved: float) -> dict[str, float]:
    return {
        "forward_s": found.forward.value,
        "backward_s": found.backward.value,
        "update_s": found.update.value,
        "step_s": found.step_s,
        "flop": flop,
        "forward_flop": found.flop,
        "traffic_bytes": moved,
    }

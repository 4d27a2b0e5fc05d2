"""Predictions as records: of the whole step first, then of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from steptime import __version__
from steptime.catalog import device_hash
from steptime.core.graph import Graph
from steptime.core.hardware import Cluster, Device
from steptime.core.record import Method as RecordMethod
from steptime.core.record import Quantity, Record
from steptime.core.units import size
from steptime.core.workload import Workload
from steptime.count import peak_memory_bytes
from steptime.predict.costs import costs
from steptime.predict.estimate import Estimate, RowSeconds, estimate, rates
from steptime.predict.layers import unknown_work
from steptime.predict.settings import Method, Settings


def predict(
    method: Method,
    graph: Graph,
    workload: Workload,
    cluster: Cluster,
    options: Mapping[str, str],
) -> Sequence[Record]:
    """Give the record of the step, then one for each row; `graph` is of the whole step."""
    settings = method.chosen(options)
    device = cluster.device
    found = estimate(costs(graph, workload.dtype, settings), device, workload.dtype, settings)
    memory = peak_memory_bytes(graph)
    notes = remarks(graph, device, memory, settings)
    fits = device.memory_bytes is None or memory <= device.memory_bytes
    named = record_method(method, options, device, workload.dtype)
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")

    def record(scope: str, values: Mapping[str, float]) -> Record:
        return Record(
            origin="predicted",
            method=named,
            workload=workload,
            platform=device.measured.get("platform", device.name),
            quantities={name: Quantity(value) for name, value in values.items()},
            status="ok" if fits else "oom",
            cause="" if fits else "predicted-not-to-fit",
            note="; ".join(notes),
            scope=scope,
            env={"steptime": __version__},
            taken_at=taken_at,
        )

    whole = {**_step_quantities(found), "peak_memory_bytes": float(memory)}
    return [record("", whole), *(record(r.row.name, _row_quantities(r)) for r in found.rows)]


def record_method(
    method: Method, options: Mapping[str, str], device: Device, dtype: str
) -> RecordMethod:
    """Give what a record says of how its numbers were obtained."""
    settings = method.chosen(options)
    at = rates(device, dtype, settings)
    return RecordMethod(
        method.name,
        method.version,
        {
            "device": device.name,
            "device_hash": device_hash(device),
            "peak_flop_per_s": at.flop_per_s,
            "memory_bytes_per_s": at.bytes_per_s,
            "launch_s": None if settings.dispatch == "no" else device.launch_s,
            **method.texts(options),
        },
    )


def remarks(graph: Graph, device: Device, memory_bytes: int, settings: Settings) -> tuple[str, ...]:
    """Give what a reader of the prediction must know: what does not fit, what is not counted."""
    found = []
    if device.memory_bytes is not None and memory_bytes > device.memory_bytes:
        found.append(f"needs {size(memory_bytes)}, {device.name} has {size(device.memory_bytes)}")
    if not settings.ops and (kinds := unknown_work(graph)):
        found.append(f"Paleo knows no {', '.join(kinds)}: they count nothing")
    if not settings.cycle and device.clock_hz is None:
        found.append(f"{device.name}: no clock is known, so no kernel takes at least a cycle")
    if graph.unmodelled:
        names = ", ".join(graph.unmodelled)
        found.append(f"layers of unknown type count nothing: {names}")
    return tuple(found)


def _step_quantities(found: Estimate) -> dict[str, float]:
    return {
        "forward_s": found.forward_s,
        "backward_s": found.backward_s,
        "update_s": found.update_s,
        "step_s": found.step_s,
        "flop": float(found.flop),
        "forward_flop": float(found.forward_flop),
        "traffic_bytes": float(found.traffic_bytes),
    }


def _row_quantities(found: RowSeconds) -> dict[str, float]:
    row = found.row
    works = (*row.forward, *row.backward, *row.update)
    return {
        "forward_s": found.forward.total_s,
        "backward_s": found.backward.total_s,
        "update_s": found.update_s,
        "step_s": found.step_s,
        "flop": float(sum(flop for flop, _ in works)),
        "forward_flop": float(found.flop),
        "traffic_bytes": float(sum(sum(terms) for _, terms in works)),
    }

"""Predictions as records: of the whole step first, then of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from steptime import __version__
from steptime.catalog import device_hash
from steptime.core.graph import Graph
from steptime.core.hardware import Cluster, Device
from steptime.core.record import Method, Quantity, Record
from steptime.core.workload import Workload
from steptime.predict.estimate import Estimate, RowSeconds, rates
from steptime.predict.prediction import prediction
from steptime.predict.settings import CostModel


def predict(
    method: CostModel,
    graph: Graph,
    workload: Workload,
    cluster: Cluster,
    options: Mapping[str, str],
) -> Sequence[Record]:
    """Give the record of the step, then one for each row; `graph` is of the whole step."""
    device = cluster.device
    made = prediction(method, graph, workload.dtype, device, options)
    named = record_method(method, options, device, workload.dtype)
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")

    def record(scope: str, values: Mapping[str, float]) -> Record:
        return Record(
            origin="predicted",
            method=named,
            workload=workload,
            platform=device.measured.get("platform", device.name),
            quantities={name: Quantity(value) for name, value in values.items()},
            status=made.status,
            cause="" if made.fits else "predicted-not-to-fit",
            note="; ".join(made.remarks),
            scope=scope,
            env={"steptime": __version__},
            taken_at=taken_at,
        )

    memory = float(made.peak_memory_bytes)
    whole = {**_step_quantities(made.estimate), "peak_memory_bytes": memory}
    rows = made.estimate.rows
    return [record("", whole), *(record(r.row.name, _row_quantities(r)) for r in rows)]


def record_method(
    method: CostModel, options: Mapping[str, str], device: Device, dtype: str
) -> Method:
    """Give what a record says of how its numbers were obtained."""
    settings = method.chosen(options)
    at = rates(device, dtype, settings)
    return Method(
        method.name,
        method.version,
        {
            "device": device.name,
            "device_hash": device_hash(device),
            "peak_flop_per_s": at.flop_per_s,
            "memory_bytes_per_s": at.bytes_per_s,
            "launch_s": None if settings.dispatch == "no" else device.launch_s,
            **method.changed(options),
        },
    )


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

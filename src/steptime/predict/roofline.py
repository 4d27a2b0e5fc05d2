"""The roofline: every op takes the longer of its arithmetic and its memory traffic.

Williams, Waterman, Patterson 2009. An op's time is max(FLOP / peak, bytes / bandwidth), plus the
time to issue it where the device file knows that. Ops follow one another and share no cache;
the peak is that of the dtype computed in, for every op of the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from steptime import __version__
from steptime.catalog import device_hash
from steptime.core.dtypes import precision
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.graph import Graph
from steptime.core.hardware import Cluster, Device
from steptime.core.record import Method, Quantity, Record
from steptime.core.units import size
from steptime.core.workload import Workload
from steptime.count import OpCost, op_cost, peak_memory_bytes

VERSION = "1"
PARTS = ("forward", "backward", "update")
OPTIONS = {  # name: (default, meaning)
    "dispatch": ("yes", "add the device's time to issue an op, where it is known"),
    "tf32": ("no", "use the TF32 peak for float32"),
}


def peak_flop_per_s(device: Device, dtype: str, tf32: bool = False) -> float:
    """Give the peak of a dtype; raises `InputError`, naming what is known, where it is unknown."""
    wanted = precision(dtype).compute
    if tf32 and wanted == "float32":
        wanted = "tf32"
    if wanted not in device.peak_flop_per_s:
        known = ", ".join(device.peak_flop_per_s)
        raise InputError(f"device '{device.name}': no peak is known for {wanted}; known: {known}")
    return device.peak_flop_per_s[wanted]


def _read_options(options: Mapping[str, str]) -> dict[str, bool]:
    for name, value in options.items():
        if name not in OPTIONS:
            raise unknown("option", name, OPTIONS, "roofline")
        if value not in ("yes", "no"):
            raise InputError(f"roofline: option {name} is yes or no, not {shorten(value)}")
    return {name: options.get(name, default) == "yes" for name, (default, _) in OPTIONS.items()}


def predict(
    graph: Graph, workload: Workload, cluster: Cluster, options: Mapping[str, str]
) -> Sequence[Record]:
    """Give the record of the step, then one for each forward op with its gradient and update."""
    chosen = _read_options(options)
    device = cluster.device
    peak = peak_flop_per_s(device, workload.dtype, chosen["tf32"])
    launch = (device.launch_s or 0.0) if chosen["dispatch"] else 0.0

    def seconds(cost: OpCost) -> float:
        work = max(cost.flop / peak, cost.traffic_bytes / device.memory_bytes_per_s)
        return work + launch

    total = _Sum()
    by_op: dict[str, _Sum] = {}
    for op in graph.ops:
        cost = op_cost(graph, op)
        time = seconds(cost)
        total.add(cost, time)
        by_op.setdefault(cost.of, _Sum()).add(cost, time)

    memory = peak_memory_bytes(graph)
    fits = device.memory_bytes is None or memory <= device.memory_bytes
    method = Method(
        "roofline",
        VERSION,
        {
            "device": device.name,
            "device_hash": device_hash(device),
            "peak_flop_per_s": peak,
            "memory_bytes_per_s": device.memory_bytes_per_s,
            "launch_s": device.launch_s if chosen["dispatch"] else None,
            "tf32": chosen["tf32"],
        },
    )
    has = size(device.memory_bytes or 0)
    note = "" if fits else f"needs {size(memory)}, {device.name} has {has}"
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")

    def record(scope: str, found: _Sum, extra: Mapping[str, Quantity]) -> Record:
        return Record(
            origin="predicted",
            method=method,
            workload=workload,
            platform=device.measured.get("platform", device.name),
            quantities={**found.quantities(), **extra},
            status="ok" if fits else "oom",
            cause="" if fits else "predicted-not-to-fit",
            note=note,
            scope=scope,
            env={"steptime": __version__},
            taken_at=taken_at,
        )

    peak_memory = {"peak_memory_bytes": Quantity(float(memory))}
    forward = [op.name for op in graph.ops if op.part == "forward"]
    return [record("", total, peak_memory), *(record(name, by_op[name], {}) for name in forward)]


class _Sum:
    """Times by part, FLOP and bytes, added up over ops."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.flop = self.forward_flop = self.traffic = 0

    def add(self, cost: OpCost, time: float) -> None:
        self.seconds[cost.part] += time
        self.flop += cost.flop
        self.forward_flop += cost.flop if cost.part == "forward" else 0
        self.traffic += cost.traffic_bytes

    def quantities(self) -> dict[str, Quantity]:
        values = {f"{part}_s": time for part, time in self.seconds.items()}
        values["step_s"] = sum(self.seconds.values())
        values["flop"] = float(self.flop)
        values["forward_flop"] = float(self.forward_flop)
        values["traffic_bytes"] = float(self.traffic)
        return {name: Quantity(value) for name, value in values.items()}

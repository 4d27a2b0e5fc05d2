"""One prediction: the times of a step, its memory, and what a reader must know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from steptime.core.dtypes import precision
from steptime.core.graph import Graph
from steptime.core.hardware import Device
from steptime.core.units import size
from steptime.count import peak_memory_bytes
from steptime.paleo.layers import unknown_work
from steptime.predict.costs import costs
from steptime.predict.estimate import Estimate, estimate
from steptime.predict.settings import CostModel, Settings


@dataclass(frozen=True)
class Prediction:
    """The times of a step on a device, its peak memory, and remarks, each one line.

    `fits` is False where the device is known to have less memory.
    """

    estimate: Estimate
    peak_memory_bytes: int
    parameters: int
    fits: bool
    remarks: tuple[str, ...]

    @property
    def status(self) -> str:
        """`ok`, or `oom` where the step does not fit."""
        return "ok" if self.fits else "oom"


def prediction(
    method: CostModel, graph: Graph, dtype: str, device: Device, options: Mapping[str, str]
) -> Prediction:
    """Give the prediction of the step that `graph` is, by a method under options as texts.

    Raises `InputError` for an option that the method does not have, a dtype without a peak, and a
    layer that the method does not know.
    """
    settings = method.chosen(options)
    found = costs(graph, dtype, settings)
    memory = peak_memory_bytes(graph)
    fits = fits_into(memory, device)
    notes = remarks(graph, dtype, device, settings)
    if not fits:
        has = size(device.memory_bytes or 0)
        notes = (f"needs {size(memory)}, {device.name} has {has}", *notes)
    seconds = estimate(found, device, dtype, settings)
    return Prediction(seconds, memory, found.parameters, fits, notes)


def fits_into(memory_bytes: float, device: Device) -> bool:
    """Whether a step fits, True where the device's memory is unknown."""
    return device.memory_bytes is None or memory_bytes <= device.memory_bytes


def remarks(graph: Graph, dtype: str, device: Device, settings: Settings) -> tuple[str, ...]:
    """Give what the prediction leaves out: ops, layers, figures, wishes that a method ignores."""
    found = []
    if not settings.dtype and precision(dtype).compute != "float32":
        found.append(f"Paleo counts elements of 4 bytes at the float32 peak, not {dtype}")
    if not settings.update and any(op.part == "update" and op.kind != "sgd" for op in graph.ops):
        found.append("Paleo updates by plain SGD, whatever the optimizer")
    if not settings.ops and (kinds := unknown_work(graph)):
        found.append(f"Paleo knows no {', '.join(kinds)}: they count nothing")
    if not settings.cycle and device.clock_hz is None:
        found.append(f"{device.name}: no clock is known, so no kernel takes at least a cycle")
    if graph.unmodelled:
        names = ", ".join(graph.unmodelled)
        found.append(f"layers of unknown type count nothing: {names}")
    return tuple(found)

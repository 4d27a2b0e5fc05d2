"""Optimizer states beyond the device: paged where they have no room, or updated by the host."""

import re
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import NamedTuple, Protocol

from steptime.core.graph import Graph, Op
from steptime.core.workload import StateMode, Tuning, Workload
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.network.count import op_work
from steptime.prediction.lower import Lowered
from steptime.prediction.memory import Needs
from steptime.prediction.method import Method
from steptime.prediction.schedule import Timeline
from steptime.prediction.training import fused_update, states_of


class Stepped(Protocol):
    """What of a step is asked: its workload on a device, its graph, and what these need."""

    workload: Workload
    device: Device
    method: Method

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""

    def graph(self, batch: int | None = None) -> Graph:
        """Return the graph of a step on `batch` examples."""

    def needs(self, batch: int | None = None) -> Needs:
        """Return the memory that a step on `batch` examples needs."""


USUAL_LINK = "pcie-4-x16"  # of a device that does not say what joins it to its host


class OnHost(NamedTuple):
    """Seconds of an update on the host, of what moves there and back, and what of it is waited."""

    update_s: float
    moved_s: float
    exposed_s: float


def on_host(
    sizes: tuple[float, float], updated_s: float, beside_s: float, moves_s: Callable[[float], float]
) -> OnHost:
    """Return what an update on the host takes; `sizes` are bytes of gradients and of weights.

    Gradients go out beside the last backward pass; weights come back in 16 bit, part by part while
    the host works on the next one (Ren and others 2021, ZeRO-Offload).
    """
    out_s, back_s = map(moves_s, sizes)
    exposed_s = max(0.0, out_s - beside_s) + max(0.0, back_s - updated_s)
    return OnHost(updated_s, out_s + back_s, exposed_s)


def host_memory() -> tuple[float, int]:
    """Return what a host is taken to have: bytes a second of memory, and devices that share it."""
    constants = catalog.constants_of("host")
    return constants["memory.bytes_per_s"].value, int(constants["memory.devices"].value)


def host_link(device: Device) -> str:
    """Return the name of the link that joins a device to its host."""
    generation = re.match(r"PCIe\s?(\d) x16", device.node_link)
    return f"pcie-{generation[1]}-x16" if generation else USUAL_LINK


def with_states(step: Lowered, graph: Graph, tuning: Tuning) -> Lowered:
    """Return a step whose update is one kernel a weight, where states are of 8 bits or paged.

    Each reads weight, gradient and states once, and writes weight and states.
    """
    if not tuning.states:
        return step
    others = [one for one in step.kernels if one.pass_ != "update"]
    made = [
        fused_update(float(op_work(graph, op)[1]), graph.tensors[op.inputs[0]].size)
        for op in _updates(graph)
    ]
    return replace(step, kernels=(*others, *made))


def sizes_away(graph: Graph, tuning: Tuning) -> dict[str, int]:
    """Return 0 bytes for states that may lie in the host's memory, and inside of updates."""
    away = states_of(graph) if may_leave(tuning) else []
    inside = [op.name for op in _updates(graph)] if tuning.states else []
    return dict.fromkeys((*away, *inside), 0)


def beyond_device(times: Timeline, model: Stepped, batch: int) -> Timeline:
    """Return the times of a step with what its states take that lie in the host's memory.

    Those that are paged and have no room go there and back.
    """
    tuning = model.workload.tuning
    if not may_leave(tuning):
        return times
    graph = model.graph(batch)
    link = model.method.copies(catalog.link(tuning.host_link or host_link(model.device)))
    if StateMode.OFFLOADED not in tuning.states:
        held = sum(graph.tensors[name].size_bytes for name in states_of(graph))
        room = model.device.usable_bytes or inf
        away = min(held, max(0.0, model.needs(batch).total_bytes + held - room))
        return _later(times, times.update_s + 2 * link.message_s(away)) if away else times
    updates = _updates(graph)
    moved = sum(op_work(graph, op)[1] for op in updates)
    weights = sum(graph.tensors[op.inputs[0]].size_bytes for op in updates)
    sizes = float(model.gradient_bytes), float(weights)
    beside_s = times.backward_s * (1 - 1 / max(1, len(updates)))
    made = on_host(sizes, moved / host_memory()[0], beside_s, link.message_s)
    return _later(times, made.update_s + made.exposed_s)


def may_leave(tuning: Tuning) -> bool:
    """Return whether optimizer states may lie in the host's memory: paged or offloaded."""
    return StateMode.PAGED in tuning.states or StateMode.OFFLOADED in tuning.states


def _updates(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.part == "update"]


def _later(times: Timeline, update_s: float) -> Timeline:
    """Return the times of a step whose update takes so long."""
    more = update_s - times.update_s
    low, high = (None if end is None else end + more for end in (times.low_s, times.high_s))
    return replace(times, update_s=update_s, low_s=low, high_s=high)

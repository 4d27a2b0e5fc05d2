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


class PredictedStep(Protocol):
    """A step on a device: the part of a `StepModel` that states in the host's memory depend on."""

    @property
    def workload(self) -> Workload:
        """The network."""

    @property
    def device(self) -> Device:
        """The device."""

    @property
    def method(self) -> Method:
        """The method under its options."""

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""

    def graph(self, batch: int | None = None) -> Graph:
        """Return the graph of a step on `batch` examples."""

    def needs(self, batch: int | None = None) -> Needs:
        """Return the memory that a step on `batch` examples needs."""


USUAL_LINK = "pcie-4-x16"  # of a device that does not say what joins it to its host


class HostUpdate(NamedTuple):
    """Seconds of an update on the host.

    Attributes:
        update_s: the update.
        transfers_s: gradients and weights on their way there and back.
        exposed_s: the part of `transfers_s` for which the step waits.
    """

    update_s: float
    transfers_s: float
    exposed_s: float


def time_host_update(
    gradient_bytes: float,
    weight_bytes: float,
    update_s: float,
    backward_s: float,
    transfer_s: Callable[[float], float],
) -> HostUpdate:
    """Return the times of an update on the host.

    Gradients go out during the last backward pass; weights come back in 16 bit, part by part while
    the host works on the next one (Ren and others 2021, ZeRO-Offload).

    Args:
        gradient_bytes: bytes that go to the host.
        weight_bytes: bytes that come back.
        update_s: seconds of the update.
        backward_s: seconds of the backward pass in which gradients can move.
        transfer_s: seconds of a transfer of so many bytes.
    """
    out_s = transfer_s(gradient_bytes)
    back_s = transfer_s(weight_bytes)
    # Gradients hide behind the backward pass, weights behind the update.
    exposed_s = max(0.0, out_s - backward_s) + max(0.0, back_s - update_s)
    return HostUpdate(update_s, out_s + back_s, exposed_s)


class HostMemoryRate(NamedTuple):
    """The memory of a host: its rate, and the number of devices that share it."""

    bytes_per_s: float
    devices: int


def host_memory() -> HostMemoryRate:
    """Return the memory that a host is assumed to have."""
    constants = catalog.constants_of("host")
    devices = int(constants["memory.devices"].value)
    return HostMemoryRate(constants["memory.bytes_per_s"].value, devices)


def host_link(device: Device) -> str:
    """Return the name of the link that joins a device to its host."""
    generation = re.match(r"PCIe\s?(\d) x16", device.datasheet.node_link)
    return f"pcie-{generation[1]}-x16" if generation else USUAL_LINK


def merge_updates(step: Lowered, graph: Graph, tuning: Tuning) -> Lowered:
    """Return a step whose update is one kernel a weight, where states are of 8 bits or paged.

    Each kernel reads weight, gradient and states once, and writes weight and states.
    """
    # Default optimizer states are updated by the kernels of the stack, others by a fused kernel
    # for each weight.
    if not tuning.states:
        return step
    kernels = [kernel for kernel in step.kernels if kernel.pass_ != "update"]
    for op in _updates(graph):
        _flop, moved_bytes = op_work(graph, op)
        kernels.append(fused_update(float(moved_bytes), graph.tensors[op.inputs[0]].size))
    return replace(step, kernels=tuple(kernels))


def sizes_on_host(graph: Graph, tuning: Tuning) -> dict[str, int]:
    """Return 0 bytes, by name, for states that may lie in the host's memory, and inside updates."""
    states = states_of(graph) if may_leave_device(tuning) else []
    updates = [op.name for op in _updates(graph)] if tuning.states else []
    return dict.fromkeys((*states, *updates), 0)


def add_host_states(times: Timeline, step: PredictedStep, batch: int) -> Timeline:
    """Return the times of a step with the time of states that lie in the host's memory.

    Paged states that have no room on the device go there and back. Offloaded states are updated by
    the host.
    """
    tuning = step.workload.tuning
    if not may_leave_device(tuning):
        return times
    link = step.method.join_host(catalog.link(tuning.host_link or host_link(step.device)))
    is_updated_by_host = StateMode.OFFLOADED in tuning.states
    if not is_updated_by_host:  # paged: states stay on the device as long as there is room
        paged_bytes = _paged_bytes(step, batch)
        if not paged_bytes:
            return times
        paging_s = 2 * link.message_s(paged_bytes)  # to the device and back
        return _replace_update(times, times.update_s + paging_s)
    graph = step.graph(batch)
    updates = _updates(graph)
    moved_bytes = 0
    for op in updates:
        _flop, op_bytes = op_work(graph, op)
        moved_bytes += op_bytes
    weight_bytes = sum(graph.tensors[op.inputs[0]].size_bytes for op in updates)
    # The last gradient cannot move while the backward pass runs.
    last_gradient_share = 1 / max(1, len(updates))
    update = time_host_update(
        float(step.gradient_bytes),
        float(weight_bytes),
        moved_bytes / host_memory().bytes_per_s,
        times.backward_s * (1 - last_gradient_share),
        link.message_s,
    )
    return _replace_update(times, update.update_s + update.exposed_s)


def _paged_bytes(step: PredictedStep, batch: int) -> float:
    """Return the bytes of states that have no room on the device."""
    graph = step.graph(batch)
    state_bytes = sum(graph.tensors[name].size_bytes for name in states_of(graph))
    usable_bytes = step.device.datasheet.usable_bytes or inf
    excess_bytes = step.needs(batch).total_bytes + state_bytes - usable_bytes
    return min(state_bytes, max(0.0, excess_bytes))


def may_leave_device(tuning: Tuning) -> bool:
    """Return whether optimizer states may lie in the host's memory: paged or offloaded."""
    return StateMode.PAGED in tuning.states or StateMode.OFFLOADED in tuning.states


def _updates(graph: Graph) -> list[Op]:
    """Return the ops that update weights."""
    return [op for op in graph.ops if op.part == "update"]


def _replace_update(times: Timeline, update_s: float) -> Timeline:
    """Return the times of a step with another time of its update."""
    change_s = update_s - times.update_s
    low_s = None if times.low_s is None else times.low_s + change_s
    high_s = None if times.high_s is None else times.high_s + change_s
    return replace(times, update_s=update_s, low_s=low_s, high_s=high_s)

"""What is known of a node before a job runs there: its GPU by the site's name, its memory."""

from __future__ import annotations

from steptime import catalog
from steptime.cluster.script import Need
from steptime.core.hardware import Device
from steptime.sweep.cells import Cell, needed_bytes
from steptime.sweep.resource_request import Allocation

UNKNOWN = "unknown"


def device_of(gpu: str) -> Device | None:
    """Return the data of a type of GPU; sites have names for GPUs that nobody else has."""
    name = catalog.platform_of(gpu)
    return catalog.device(name) if name else None


def platform_of(gpu: str) -> str:
    """Return the platform that was asked for, as far as the name of the GPU tells it."""
    return catalog.platform_of(gpu) or gpu or UNKNOWN


def memory_bytes(allocation: Allocation) -> float | None:
    """Give the memory of a GPU, or of the node where none was asked for; None if unknown."""
    gpu = allocation.gpu[0]
    if gpu:
        device = device_of(gpu)
        return device.memory_bytes if device else None
    return None if allocation.memory_GB is None else allocation.memory_GB * 1e9


def fits(cell: Cell) -> bool:
    """Whether a cell is predicted to fit, or nothing is known of the memory."""
    need = need_of(cell)
    has = memory_bytes(need.allocation)
    return has is None or needed_bytes(cell, need.processes_per_node) <= has


def need_of(cell: Cell) -> Need:
    """Give what a cell needs of a cluster."""
    allocation = cell.allocation or Allocation()
    cores = allocation.cpus or cell.options.threads or 1
    return Need(allocation, cell.workload.plan.data, cores)

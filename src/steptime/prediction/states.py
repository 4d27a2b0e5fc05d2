"""Optimizer states beyond the device: paged where they have no room, or updated by the host."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.prediction.schedule import Timeline

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
    generation = re.match(r"PCIe\s?(\d) x16", str(device.details.get("link", "")))
    return f"pcie-{generation[1]}-x16" if generation else USUAL_LINK


def later(times: Timeline, update_s: float) -> Timeline:
    """Return the times of a step whose update takes so long."""
    more = update_s - times.update_s
    low, high = (None if end is None else end + more for end in (times.low_s, times.high_s))
    return replace(times, update_s=update_s, low_s=low, high_s=high)

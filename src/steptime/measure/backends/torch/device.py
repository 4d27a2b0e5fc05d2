"""Where PyTorch can run here: finding a device, its memory, its clock."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import repeat

import torch

from steptime.core.errors import InputError, shorten
from steptime.measure import machine
from steptime.measure.contract import DeviceFacts, Peak
from steptime.measure.infeed import clocked

EVENTS = "CUDA events: from the end of the work before to the end of the copy"
Call = Callable[[], None]


def find(name: str) -> torch.device:
    """Return the device of `cpu`, `cuda[:n]` or `mps`; raises `InputError` where it is not here."""
    here = ["cpu", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        here.append("mps")
    full = "cuda:0" if name == "cuda" else name
    if full not in here:
        raise InputError(f"{shorten(name)} is not available here; there is: {', '.join(here)}")
    return torch.device(full)


def facts(device: torch.device) -> DeviceFacts:
    """Return what is known of the device."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        cache_bytes = getattr(properties, "L2_cache_size", None) or None
        has_tf32 = torch.version.hip is None and properties.major >= 8  # Ampere was the first
        product = torch.cuda.get_device_name(device)
        return DeviceFacts(product, total_bytes, free_bytes, cache_bytes, True, has_tf32)
    if device.type == "mps":
        total_bytes = int(torch.mps.recommended_max_memory())
        room_bytes = total_bytes - torch.mps.driver_allocated_memory()
        chip = machine.cpu_model()  # which an Apple GPU is part of
        return DeviceFacts(chip, total_bytes, room_bytes, None, True)
    return machine.host_facts()


def sync(device: torch.device) -> Callable[[], None]:
    """Return what returns when the device has finished its work."""
    if device.type == "cuda":
        return partial(torch.cuda.synchronize, device)
    if device.type == "mps":
        return torch.mps.synchronize
    return lambda: None


def timer(device: torch.device) -> Callable[[Callable[[], None], int], float] | None:
    """Return a timer of n steps by the device's own clock, in seconds; None where it has none."""
    if device.type != "cuda":
        return None

    def seconds_of(step: Callable[[], None], steps: int) -> float:
        with torch.cuda.device(device):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(device)
            first.record()
            for _ in repeat(None, steps):
                step()
            last.record()
            last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    return seconds_of


def clocked_input(take: Call, device: torch.device) -> tuple[Call, Callable[[], float]]:
    """Return `take` on a clock, and what gives the seconds spent in it since last asked.

    A CUDA device has an event before and one after: the first comes when the work before is done,
    so time in which the host reads while the device still computes is not waited for.
    """
    if device.type != "cuda":
        return clocked(take)
    events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
    taken = 0

    def timed() -> None:
        nonlocal taken
        if taken == len(events):  # they are used again in the next sample
            events.append(
                (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            )
        before, after = events[taken]
        taken += 1
        stream = torch.cuda.current_stream(device)
        before.record(stream)
        take()
        after.record(stream)

    def waited() -> float:
        nonlocal taken
        torch.cuda.synchronize(device)
        total_ms = sum(float(before.elapsed_time(after)) for before, after in events[:taken])
        taken = 0
        return total_ms / 1e3

    return timed, waited


def memory_meter(device: torch.device) -> tuple[Peak, Callable[[], None]]:
    """Return what reads the peak bytes and names the meter, and what sets the peak back."""
    if device.type == "cuda":
        return (
            lambda: (torch.cuda.max_memory_allocated(device), "torch.cuda.max_memory_allocated"),
            partial(torch.cuda.reset_peak_memory_stats, device),
        )
    if device.type == "mps":  # has no high-water mark: what the pool has grown to
        meter = "torch.mps.driver_allocated_memory"
        return lambda: (torch.mps.driver_allocated_memory(), meter), torch.mps.empty_cache
    return lambda: (None, "resident set, by the worker"), lambda: None

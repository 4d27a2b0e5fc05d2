"""The time of a step on a device: costs and rates become seconds, row by row and in all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.hardware import GB, Device
from steptime.predict.costs import Costs, Row
from steptime.predict.settings import Settings
from steptime.predict.work import NOTHING, Rates, Seconds, timed

GIB = 2.0**30


@dataclass(frozen=True)
class RowSeconds:
    """The times of one row. `flop` is of its forward pass; `update_s` its share of the update."""

    row: Row
    forward: Seconds
    backward: Seconds
    update_s: float
    flop: float

    @property
    def step_s(self) -> float:
        """Seconds of the row in a step."""
        return self.forward.total_s + self.backward.total_s + self.update_s


@dataclass(frozen=True)
class Estimate:
    """The times of one step. Parts add up to the step.

    The parts are those of the rows, or longer where the device waits for the host, which takes
    `host_s` to issue the step (None where that is unknown or left out).
    """

    rows: tuple[RowSeconds, ...]
    forward_s: float
    backward_s: float
    update_s: float
    host_s: float | None
    flop: float
    forward_flop: float
    traffic_bytes: float

    @property
    def step_s(self) -> float:
        """Seconds of one step."""
        return self.forward_s + self.backward_s + self.update_s


def peak_flop_per_s(device: Device, dtype: str, tf32: bool = False) -> float:
    """Give the peak of a dtype; raises `InputError`, naming what is known, where it is unknown."""
    wanted = precision(dtype).compute
    if tf32 and wanted == "float32":
        wanted = "tf32"
    if wanted not in device.peak_flop_per_s:
        known = ", ".join(device.peak_flop_per_s)
        raise InputError(f"device '{device.name}': no peak is known for {wanted}; known: {known}")
    return device.peak_flop_per_s[wanted]


def rates(device: Device, dtype: str, settings: Settings) -> Rates:
    """Give what a device does at most under a method's assumptions."""
    peak = peak_flop_per_s(device, dtype if settings.dtype else "float32", settings.tf32)
    memory = device.memory_bytes_per_s * (1.0 if settings.gigabyte else GIB / GB)
    cycle = 0.0 if settings.cycle or device.clock_hz is None else 1.0 / device.clock_hz
    own_host = settings.dispatch == "behind" and device.is_own_host
    added = settings.dispatch == "added" or own_host  # nothing hides it
    return Rates(
        peak * settings.ppp_comp,
        memory * settings.ppp_comp,
        cycle,
        (device.launch_s or 0.0) if added else 0.0,
    )


def host_seconds(device: Device, settings: Settings) -> float | None:
    """Give the host's time to issue one op ahead of the device, None where it plays no part."""
    ahead = settings.dispatch == "behind" and not device.is_own_host
    return device.launch_s if ahead else None


def update_rates(found: Rates, settings: Settings) -> Rates:
    """Give the rates of the update, which in Paleo reaches the whole peak."""
    if settings.update:
        return found
    return replace(
        found,
        flop_per_s=found.flop_per_s / settings.ppp_comp,
        bytes_per_s=found.bytes_per_s / settings.ppp_comp,
    )


def estimate(found: Costs, device: Device, dtype: str, settings: Settings) -> Estimate:
    """Give the times of a step with these costs on a device."""
    of_device = rates(device, dtype, settings)
    of_update = update_rates(of_device, settings)
    whole = timed(found.update, of_update, settings.overlap).total_s if found.update else 0.0
    share = whole / found.parameters if found.update and found.parameters else 0.0
    rows = tuple(
        RowSeconds(
            row,
            timed(row.forward, of_device, settings.overlap) if row.forward else NOTHING,
            timed(row.backward, of_device, settings.overlap) if row.backward else NOTHING,
            timed(row.update, of_update, settings.overlap).total_s
            if row.update
            else share * row.parameters,
            sum(flop for flop, _ in row.forward),
        )
        for row in found.rows
    )
    parts = [
        sum(row.forward.total_s for row in rows),
        sum(row.backward.total_s for row in rows),
        whole if found.update else sum(row.update_s for row in rows),
    ]
    counts = [
        sum(len(row.forward) for row in found.rows),
        sum(len(row.backward) for row in found.rows),
        len(found.update) + sum(len(row.update) for row in found.rows),
    ]
    issue_s = host_seconds(device, settings)
    works = list(_works(found))
    return Estimate(
        rows,
        *behind_host(parts, counts, issue_s),
        None if issue_s is None else issue_s * sum(counts),
        sum(flop for flop, _ in works),
        sum(row.flop for row in rows),
        sum(sum(terms) for _, terms in works),
    )


def behind_host(
    parts_s: list[float], kernels: list[int], issue_s: float | None
) -> tuple[float, float, float]:
    """Give the parts of a step when the device waits for the host wherever that is slower.

    The host issues one kernel after another, `issue_s` each, without waiting; a part ends when the
    device has done its work and the host has issued it. Parts of 1 and 4 s with 2 kernels each and
    1 s to issue one take 2 and 4 s: the first waits for the host, the second hides it.
    """
    if issue_s is None:
        return (parts_s[0], parts_s[1], parts_s[2])
    found, end, issued = [], 0.0, 0
    for part, count in zip(parts_s, kernels, strict=True):
        issued += count
        finished = max(end + part, issued * issue_s) if count else end
        found.append(finished - end)
        end = finished
    return (found[0], found[1], found[2])


def _works(found: Costs) -> Iterator[tuple[float, tuple[float, ...]]]:
    for row in found.rows:
        yield from chain(row.forward, row.backward, row.update)
    yield from found.update

"""One prediction: the times of a step, its memory, and what a reader must know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from steptime.core.graph import Part
from steptime.core.hardware import Device
from steptime.predict.lower import Lowered
from steptime.predict.schedule import Timeline


@dataclass(frozen=True)
class Prediction:
    """The times of a step on a device, what it runs, its peak memory, and remarks, each one line.

    `counted` are the FLOP of each row by pass (`StepModel.counted`). `fits` is False where the
    device is known to have less memory.
    """

    times: Timeline
    lowered: Lowered
    counted: Mapping[str, Mapping[Part, float]]
    peak_memory_bytes: int
    fits: bool
    remarks: tuple[str, ...]

    @property
    def flop(self) -> float:
        """FLOP of the step by the counting convention; the kernels may execute more or fewer."""
        return sum(sum(parts.values()) for parts in self.counted.values())

    @property
    def status(self) -> str:
        """`ok`, or `oom` where the step does not fit."""
        return "ok" if self.fits else "oom"


def fits_into(memory_bytes: float, device: Device) -> bool:
    """Whether a step fits, True where the device's memory is unknown."""
    return device.memory_bytes is None or memory_bytes <= device.memory_bytes

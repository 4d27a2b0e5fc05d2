"""What is predicted of a step in all: times, kernels, memory."""

from collections.abc import Mapping
from dataclasses import dataclass

from steptime.core.graph import Part
from steptime.prediction.lower import Lowered
from steptime.prediction.memory import Needs
from steptime.prediction.schedule import Timeline


@dataclass(frozen=True)
class Prediction:
    """The times of a step on a device, what it runs, its peak memory, and remarks, each one line.

    `counted` are the FLOP of each row by pass (`StepModel.flop_by_row`). `fits` is False where the
    device is known to have less memory than the step `needs`.
    """

    times: Timeline
    lowered: Lowered
    counted: Mapping[str, Mapping[Part, float]]
    needs: Needs
    fits: bool
    remarks: tuple[str, ...]

    @property
    def peak_bytes(self) -> int:
        """Bytes of all tensors at the worst moment of the step."""
        return self.needs.peak_bytes

    @property
    def flop(self) -> float:
        """FLOP of the step by the counting convention; the kernels may execute more or fewer."""
        return sum(sum(parts.values()) for parts in self.flop_by_row.values())

    @property
    def status(self) -> str:
        """`ok`, or `oom` where the step does not fit."""
        return "ok" if self.fits else "oom"

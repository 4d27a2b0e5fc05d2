"""What a form returns, and arithmetic that numbers and arrays share."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from steptime.core.hardware import Device
from steptime.predict.kernel import Kernel, Larger


class Parts(NamedTuple):
    """Seconds of a kernel: its arithmetic, its traffic, and what nothing overlaps."""

    compute_s: Any
    memory_s: Any
    gap_s: Any


Constants = Mapping[str, float]
Form = Callable[[Kernel, Device, Constants, Larger], Parts]


def ceil(part: Any, size: Any) -> Any:
    """Return how many of `size` it takes to cover `part`: 3 for 5 and 2."""
    return -(-part // size)


def streamed_s(moved: Any, device: Device, constants: Constants) -> Any:
    """Return the seconds of moving bytes, of which few in flight do not fill the memory's rate.

    1 GB at a reached rate of 1 GB/s takes 1 s, and `stream.latency_s` in all cases.
    """
    rate = device.memory_bytes_per_s * constants["stream.share"]
    return moved / rate + constants["stream.latency_s"] * (moved > 0)

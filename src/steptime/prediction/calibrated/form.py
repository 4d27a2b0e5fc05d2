"""What a form returns, and what several forms ask of a device."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Device
from steptime.prediction.kernels import Rows, computed_as


class Parts(NamedTuple):
    """Seconds of a kernel: its arithmetic, its traffic, and what nothing overlaps.

    `flop` is the arithmetic done where it is not what is counted, as with Winograd.
    """

    compute_s: Any
    memory_s: Any
    gap_s: Any
    flop: Any = None


Constants = Mapping[str, float]
Form = Callable[[Rows, Device, Constants], Parts]


def ceil(part: Any, size: Any) -> Any:
    """Return how many of `size` it takes to cover `part`: 3 for 5 and 2."""
    return np.ceil(part / size)


MULTIPROCESSORS = 64  # of a device whose file does not say
CLOCK_HZ = 1.5e9  # at which latencies are stated, and of a device whose file does not say
CLIFF = 3  # how sharply the last cache ends: bytes of its own size are missed by half


def is_geforce(device: Device) -> bool:
    """Whether a GPU is one for games: it runs above the boost clock that it states, without ECC."""
    return device.series == "GeForce"


def is_nvidia(device: Device) -> bool:
    """Whether a device is a GPU of NVIDIA's, as one is whose file does not say its maker."""
    return device.kind == "gpu" and device.maker in (None, "NVIDIA")


def library_share(device: Device, constants: Constants) -> float:
    """Return what libraries reach of a peak on a device, beside what NVIDIA's reach on theirs."""
    return 1.0 if is_nvidia(device) else constants["product.amd"]


def memory_rate(device: Device, constants: Constants) -> Any:
    """Return the bytes per second that long kernels reach: a share by the kind of memory.

    Stacked memory (HBM) comes nearer to its datasheet than GDDR, whose error correction takes a
    part of the bandwidth, but on a `GeForce`, which has none; AMD's chips and those before Volta
    reach less of all.
    """
    if has_trait(device, "old"):
        share = constants["stream.share_old"]
    elif "HBM" in (device.memory_type or ""):
        share = constants["stream.share_amd" if device.maker == "AMD" else "stream.share_hbm"]
    elif is_geforce(device):
        share = constants["stream.share_geforce"]
    else:
        share = constants["stream.share_gddr"]
    return device.memory_bytes_per_s * share


def latency_s(device: Device, constants: Constants, name: str) -> float:
    """Return the seconds of a constant that counts clocks, as it is stated: at `CLOCK_HZ`."""
    return constants[name] * CLOCK_HZ / (device.clock_hz or CLOCK_HZ)


def missed(moved: Any, device: Device) -> Any:
    """Return the share of bytes used again and again that the last cache does not hold."""
    if not device.l2_bytes:
        return 1.0
    return 1 - 1 / (1 + (moved / device.l2_bytes) ** CLIFF)


def cached_share(device: Device, constants: Constants) -> float:
    """Return how long bytes from the last cache take, beside as many of the memory: 1 at most.

    A multiprocessor takes `stream.cached_bytes` a clock from there.
    """
    if device.kind != "gpu" or not device.l2_bytes or not device.clock_hz:
        return 1.0
    units = device.multiprocessors or MULTIPROCESSORS
    cached = constants["stream.cached_bytes"] * units * device.clock_hz
    return min(1.0, float(memory_rate(device, constants)) / cached)


def streamed_s(moved: Any, device: Device, constants: Constants) -> Any:
    """Return the seconds of moving bytes, of which few in flight do not fill the memory's rate.

    1 GB at a reached rate of 1 GB/s takes 1 s, and `stream.latency_s` in all cases.
    """
    waits = latency_s(device, constants, "stream.latency_s")
    return moved / memory_rate(device, constants) + waits * (moved > 0)


def between_events_s(seconds: Any, host_s: Any, visible: Any) -> Any:
    """Return what two events around one op show, whose kernels take `seconds`.

    The host calls the op, which takes `host_s`; the device sees a share of that, `visible`, between
    the first event and the first kernel. What is later, host or device, ends the time: at 30 us
    and a share of 0.5, kernels of 1 us take 30 us, and those of 100 us 115 us.
    """
    late = visible * host_s + seconds
    return (host_s**_LATER + late**_LATER) ** (1 / _LATER)


_LATER = 8  # power of the norm of both: near their maximum


def ruled_as(kernels: Rows, device: Device) -> str:
    """Return the type whose units, power limit and joules a kernel has.

    Constants of convolutions in TF32 were fitted with those of float32.
    """
    return kernels.dtype if kernels.window else computed_as(kernels, device)


def has_matrix_units(device: Device, dtype: str) -> bool:
    """Whether products of a type run on units made for them: tensor cores, AMD's matrix cores.

    Their peak is well above that of vector units; double rate for half types is none.
    """
    if has_trait(device, "vector_only"):
        return False
    vector = device.vector_flop_per_s.get("float32")
    return bool(vector and device.peak_flop_per_s[dtype] > 1.5 * vector)

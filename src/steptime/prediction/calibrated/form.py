"""The price of a kernel by a form, in parts, and properties of devices that several forms use.

A form is a function that prices kernels of one kind of work, such as matrix products.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Device
from steptime.prediction.kernels import Rows, computed_as


class TimeParts(NamedTuple):
    """Seconds of a kernel: arithmetic, memory traffic, and a gap that overlaps with neither.

    `flop` is the executed arithmetic where it differs from the counted one, as with Winograd;
    None means equal.
    """

    compute_s: Any
    memory_s: Any
    gap_s: Any
    flop: Any = None


Constants = Mapping[str, float]
Form = Callable[[Rows, Device, Constants], TimeParts]


def ceil(part: Any, size: Any) -> Any:
    """Return the number of pieces of `size` that cover `part`: 3 for 5 and 2."""
    return np.ceil(part / size)


WIDTHS = (32, 64, 96, 128, 160, 192, 224, 256)  # of heads that FlashAttention has kernels for
MULTIPROCESSORS = 64  # of a device whose file does not say
CLOCK_HZ = 1.5e9  # at which latencies are stated, and of a device whose file does not say
CACHE_EDGE_POWER = 3  # steepness of the miss rate where bytes outgrow the last cache
EVENT_NORM_POWER = 8  # of the norm of two times that stands for the later one, smoothly
MATRIX_UNIT_RATIO = 1.5  # of peak to vector peak above which products have units of their own


def is_nvidia(device: Device) -> bool:
    """Return whether a device is a GPU of NVIDIA, which a GPU without a stated maker counts as."""
    return device.kind == "gpu" and has_trait(device, "nvidia")


def library_share(device: Device, constants: Constants) -> float:
    """Return the share of a peak that libraries reach, relative to NVIDIA's on their own GPUs."""
    return 1.0 if is_nvidia(device) else constants["product.amd"]


def memory_rate(device: Device, constants: Constants) -> Any:
    """Return the bytes per second that long kernels reach: a share by the kind of memory.

    Stacked memory (HBM) comes nearer to its datasheet than GDDR, whose error correction takes a
    part of the bandwidth, but on a `GeForce`, which has none; AMD's chips and those before Volta
    reach less of all.
    """
    if has_trait(device, "old"):
        share = constants["stream.share_old"]
    elif has_trait(device, "stacked_memory"):
        share = constants["stream.share_amd" if has_trait(device, "amd") else "stream.share_hbm"]
    elif has_trait(device, "game_card"):
        share = constants["stream.share_geforce"]
    else:
        share = constants["stream.share_gddr"]
    return device.datasheet.memory_bytes_per_s * share


def latency_s(device: Device, constants: Constants, name: str) -> float:
    """Return a latency on a device, from a constant that is stated for a clock of `CLOCK_HZ`."""
    return constants[name] * CLOCK_HZ / (device.datasheet.clock_hz or CLOCK_HZ)


def miss_share(working_set_bytes: Any, device: Device) -> Any:
    """Return the share of accesses to a working set that miss the last cache.

    It is a half for a working set of the size of the cache, and 1 without a cache.
    """
    if not device.datasheet.l2_bytes:
        return 1.0
    # A smooth step: a half where the working set is as large as the cache.
    return 1 - 1 / (1 + (working_set_bytes / device.datasheet.l2_bytes) ** CACHE_EDGE_POWER)


def cached_share(device: Device, constants: Constants) -> float:
    """Return the time of bytes from the last cache as a share of that from memory, at most 1.

    A multiprocessor reads `stream.cached_bytes` a clock from the cache.
    """
    has_cache = device.kind == "gpu" and device.datasheet.l2_bytes
    # Without a known cache all bytes take the time of memory.
    if not has_cache or not device.datasheet.clock_hz:
        return 1.0
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    bytes_per_clock = constants["stream.cached_bytes"] * multiprocessors
    cache_bytes_per_s = bytes_per_clock * device.datasheet.clock_hz
    memory_bytes_per_s = float(memory_rate(device, constants))
    return min(1.0, memory_bytes_per_s / cache_bytes_per_s)


def padded_width(width: Any) -> Any:
    """Return the width of heads with which the kernel runs: 64 for 40.

    Source: flash-attention, csrc/flash_attn/src/static_switch.h, HEADDIM_SWITCH.
    """
    padded = width + 0.0
    for smaller, wider in pairwise((0, *WIDTHS)):
        padded = np.where((width > smaller) & (width < wider), wider, padded)
    return padded


def stream_s(moved_bytes: Any, device: Device, constants: Constants) -> Any:
    """Return the seconds of memory traffic: bytes over the reached rate, plus the latency.

    1 GB at a reached rate of 1 GB/s takes 1 s and `stream.latency_s`; no bytes take no time.
    """
    wait_s = latency_s(device, constants, "stream.latency_s")
    return moved_bytes / memory_rate(device, constants) + wait_s * (moved_bytes > 0)


def between_events_s(kernels_s: Any, host_s: Any, visible_share: Any) -> Any:
    """Return the time between two device events around one op.

    The host takes `host_s` to call the op; a `visible_share` of that passes between the first event
    and the first kernel. The later of host and device ends the time: with 30 us of the host and a
    share of 0.5, kernels of 1 us show 30 us, and kernels of 100 us show 115 us.
    """
    device_end_s = visible_share * host_s + kernels_s
    # A norm of a high power is a smooth maximum: the later of both ends.
    return (host_s**EVENT_NORM_POWER + device_end_s**EVENT_NORM_POWER) ** (1 / EVENT_NORM_POWER)


def rated_dtype(kernels: Rows, device: Device) -> str:
    """Return the type whose units, power limit and energy a kernel has.

    Constants of convolutions in TF32 were fitted with those of float32.
    """
    return kernels.dtype if kernels.window else computed_as(kernels, device)


def vector_rate(device: Device, dtype: str) -> float:
    """Return the FLOP/s of vector units, that of matrix products where no file says it."""
    datasheet = device.datasheet
    return datasheet.vector_peak(dtype) or datasheet.peak_flop_per_s[dtype]


def has_matrix_units(device: Device, dtype: str) -> bool:
    """Return whether products of a type run on tensor cores (NVIDIA) or matrix cores (AMD).

    The peak of such units is well above that of vector units; vector units that run half types at
    double rate are no matrix units.
    """
    if has_trait(device, "vector_only"):
        return False
    vector_peak = device.datasheet.vector_flop_per_s.get("float32")
    if not vector_peak:
        return False
    # Vector units that run half types at double rate are no matrix units, which are far faster.
    return device.datasheet.peak_flop_per_s[dtype] > MATRIX_UNIT_RATIO * vector_peak

"""The roofline: how long a kernel takes on a device, and what of a device a method sees."""

from dataclasses import replace

import numpy as np

from steptime.core.dtypes import PRECISIONS, precision
from steptime.core.errors import InputError
from steptime.hardware.device import Device
from steptime.prediction.kernel import Interval, Kernel, Settings
from steptime.prediction.kernels import Rows

FLOATS = tuple(dict.fromkeys(one.compute for one in PRECISIONS.values()))


def roofline(kernels: Rows, device: Device) -> Interval:
    """Return the longer of FLOP / peak and bytes / bandwidth, and the launches: a lower bound.

    Williams, Waterman, Patterson 2009. 1 GFLOP and 2 GB at 1 GFLOP/s and 1 GB/s take 2 s.
    """
    compute_s, memory_s = at_peak(kernels, device)
    value = np.maximum(compute_s, memory_s) + launching_s(kernels, device)
    return Interval(value, value, None, False, compute_s, memory_s)


def at_peak(kernels: Kernel | Rows, device: Device) -> tuple[float, float]:
    """Return the seconds of arithmetic and of traffic at a device's rates."""
    return (
        kernels.flop / device.peak_flop_per_s[kernels.dtype],
        kernels.bytes / device.memory_bytes_per_s,
    )


def launching_s(kernels: Rows, device: Device) -> float:
    """Return the seconds of launching a kernel that nothing hides."""
    return 0.0 if device.launch_s is None else device.launch_s * kernels.launches


def peak_flop_per_s(device: Device, dtype: str, tf32: bool = False) -> float:
    """Return the peak of a dtype; raises `InputError`, naming what is known, if it is not."""
    wanted = precision(dtype).compute
    if tf32 and wanted == "float32":
        wanted = "tf32"
    if wanted not in device.peak_flop_per_s:
        known = ", ".join(device.peak_flop_per_s)
        raise InputError(f"device '{device.name}': no peak is known for {wanted}; known: {known}")
    return device.peak_flop_per_s[wanted]


def seen(device: Device, dtype: str, settings: Settings) -> Device:
    """Return the device as kernels find it: its rates as far as they are reached.

    The peak of `dtype` stands first. Kernels that a mixed step runs in another type have the peak
    of theirs, or that of `dtype` where none is published: a bound. `launch_s` is what a kernel
    takes longer for being launched, None where the host issues ahead of the device (`issue_s`).
    Raises `InputError` where no peak of `dtype` is known.
    """
    peak = peak_flop_per_s(device, dtype, settings.tf32 == "on")
    reached, compute = settings.compute_efficiency, precision(dtype).compute
    also = ("tf32",) if "tf32" in device.peak_flop_per_s else ()  # what convolutions may run as
    peaks = {name: device.peak_flop_per_s.get(name, peak) for name in (*FLOATS, *also)}
    peaks |= {compute: peak}
    added = settings.host == "added" or (settings.host == "ahead" and device.is_cpu)
    return replace(
        device,
        peak_flop_per_s={name: peaks[name] * reached for name in (compute, *FLOATS, *also)},
        memory_bytes_per_s=device.memory_bytes_per_s * reached,
        launch_s=device.launch_s if added else None,
    )


def issue_s(device: Device, settings: Settings) -> float | None:
    """Return the host's time to issue one op ahead of the device, None where it plays no part."""
    ahead = settings.host == "ahead" and not device.is_cpu
    return device.launch_s if ahead else None

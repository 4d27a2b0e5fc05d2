"""The roofline of kernels on a device, and the device at the rates that kernels reach."""

import numpy as np

from steptime.core.dtypes import OPERAND_BYTES, PRECISIONS, precision
from steptime.core.errors import InputError
from steptime.hardware.device import Device
from steptime.prediction.kernel import Interval, Kernel, Settings
from steptime.prediction.kernels import Rows

FLOATS = tuple(dict.fromkeys(row.compute for row in PRECISIONS.values()))


def roofline(kernels: Rows, device: Device) -> Interval:
    """Return the longer of FLOP / peak and bytes / bandwidth, and the launches: a lower bound.

    Williams, Waterman, Patterson 2009. 1 GFLOP and 2 GB at 1 GFLOP/s and 1 GB/s take 2 s.
    """
    compute_s, memory_s = peak_times(kernels, device)
    value = np.maximum(compute_s, memory_s) + launching_s(kernels, device)
    return Interval(
        value,
        low=value,
        high=None,  # a lower bound
        is_extrapolated=False,
        compute_s=compute_s,
        memory_s=memory_s,
    )


def peak_times(kernels: Kernel | Rows, device: Device) -> tuple[float, float]:
    """Return the seconds of arithmetic and of traffic at a device's rates."""
    return (
        kernels.flop / device.datasheet.peak_flop_per_s[kernels.dtype],
        kernels.bytes / device.datasheet.memory_bytes_per_s,
    )


def launching_s(kernels: Rows, device: Device) -> float:
    """Return the seconds of launching a kernel that nothing hides."""
    return (
        0.0 if device.datasheet.launch_s is None else device.datasheet.launch_s * kernels.launches
    )


def peak_flop_per_s(device: Device, dtype: str, tf32: bool = False) -> float:
    """Return the peak of a data type.

    Raises:
        InputError: if the device has no such peak; the message names those that it has.
    """
    peaks = device.datasheet.peak_flop_per_s
    product_dtype = precision(dtype).products  # of 8 or 4 bits; "" where products have no other
    if product_dtype and product_dtype not in peaks:
        raise _missing_peak(device, product_dtype)
    compute_dtype = precision(dtype).compute
    if tf32 and compute_dtype == "float32":
        compute_dtype = "tf32"
    if compute_dtype not in peaks:
        raise _missing_peak(device, compute_dtype)
    return peaks[compute_dtype]


def _missing_peak(device: Device, dtype: str) -> InputError:
    names = ", ".join(device.datasheet.peak_flop_per_s)
    return InputError(f"device '{device.name}': no peak is known for {dtype}; known: {names}")


def derate_device(device: Device, dtype: str, settings: Settings) -> Device:
    """Return the device at the rates that kernels reach.

    The peak of `dtype` stands first. A type that a mixed step uses beside it and that has no
    published peak gets the peak of `dtype`: a bound. Types of 8 and 4 bit have their own, where it
    is known. `launch_s` is the time by which a launch makes
    a kernel longer; None where the host issues ahead of the device (`issue_s`).

    Raises:
        InputError: if the device has no peak of `dtype`.
    """
    published_peaks = device.datasheet.peak_flop_per_s
    peak = peak_flop_per_s(device, dtype, settings.tf32 == "on")
    peaks = {precision(dtype).compute: peak}  # the first one: records of the device show it
    # A mixed step computes in other float types, too. One without a published peak takes this one.
    for name in FLOATS:
        peaks.setdefault(name, published_peaks.get(name, peak))
    # Types of products alone: products use them only where a peak is published.
    for name in ("tf32", *OPERAND_BYTES):
        if name in published_peaks:
            peaks.setdefault(name, published_peaks[name])
    # A host that runs ahead of the device hides its launches; on a CPU nothing runs ahead.
    adds_launches = settings.host == "added" or (settings.host == "ahead" and device.is_cpu)
    efficiency = settings.compute_efficiency
    return device.with_figures(
        peak_flop_per_s={name: value * efficiency for name, value in peaks.items()},
        memory_bytes_per_s=device.datasheet.memory_bytes_per_s * efficiency,
        launch_s=device.datasheet.launch_s if adds_launches else None,
    )


def issue_s(device: Device, settings: Settings) -> float | None:
    """Return the host's time to issue one op ahead of the device, None where it plays no part."""
    is_ahead = settings.host == "ahead" and not device.is_cpu
    return device.datasheet.launch_s if is_ahead else None

"""Kernels that move bytes: elementwise ops, softmax, norms, pools, copies, optimizers."""

from typing import Any, NamedTuple

import numpy as np

from steptime.core.dtypes import SIZE_BYTES
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import (
    CLOCK_HZ,
    MULTIPROCESSORS,
    Constants,
    Parts,
    latency_s,
    memory_rate,
    missed,
)
from steptime.prediction.kernels import Rows

REDUCING = {  # kind of rows that are reduced: share of the bytes that is moved again
    **dict.fromkeys(
        ("softmax", "softmax_grad", "cross_entropy", "log_softmax_grad"), "stream.softmax_again"
    ),
    **dict.fromkeys(("layer_norm", "rms_norm"), "stream.norm_again"),
}


def stream(kernels: Rows, device: Device, constants: Constants) -> Parts:
    """Return the seconds of a kernel that is limited by its traffic, its rows, or its arithmetic.

    Every kernel waits `stream.latency_s` for its first bytes. Rows that are reduced occupy a
    multiprocessor for `stream.element_clocks` an element, and are read again from memory as far as
    the last cache does not hold those at work (`_again`). Bytes that all fit into it come from
    there, `stream.cached_bytes` a clock and multiprocessor, if that is faster.
    """
    at = _rates(device, constants, kernels.dtype)
    compute = kernels.flop / at.flop_per_s
    moved: Any = kernels.bytes
    if kernels.kind in REDUCING:
        elements = kernels.bytes / (2 * SIZE_BYTES[kernels.dtype])
        compute = compute + elements * at.element_s
        moved = moved * (1 + _again(kernels, device, constants))
    far = missed(kernels.bytes, device) if at.cached_s < at.byte_s else 1.0
    slower = at.cached_s + far * (at.byte_s - at.cached_s)
    memory = moved * slower + at.first_s * (kernels.bytes > 0)
    return Parts(compute, memory, constants["launch.gap_s"] * kernels.launches)


def _again(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the share of its bytes that a kernel of rows moves again from memory.

    Each multiprocessor works on `stream.rows_running` rows at once: 16 of 1 MB on each of 10 are
    160 MB, of which a cache of 40 MB holds next to nothing. Rows of softmax up to
    `stream.kept_row` stay in registers, and of longer ones as much is at work.
    """
    again, row = REDUCING[kernels.kind], kernels.row
    if again == "stream.softmax_again":
        longest = constants["stream.kept_row"]
        shorter, row = row <= longest, np.minimum(row, longest)
    else:
        shorter = False
    units = device.multiprocessors or MULTIPROCESSORS
    running = constants["stream.rows_running"] * units * row * SIZE_BYTES[kernels.dtype]
    return constants[again] * missed(running, device) * np.logical_not(shorter)


class _Rates(NamedTuple):
    """FLOP per second, and seconds: of a byte, of one from the cache, of the first, of an element.

    The element is one of a row that is reduced.
    """

    flop_per_s: float
    byte_s: float
    cached_s: float
    first_s: float
    element_s: float


def _rates(device: Device, constants: Constants, dtype: str) -> _Rates:
    """Return the rates of kernels of a type that move bytes."""
    units = device.multiprocessors or MULTIPROCESSORS
    peak = device.vector_peak(dtype) or device.peak_flop_per_s[dtype]
    rate = memory_rate(device, constants)
    cached = rate
    if device.l2_bytes and device.clock_hz:
        cached = max(constants["stream.cached_bytes"] * units * device.clock_hz, rate)
    waits = latency_s(device, constants, "stream.latency_s")
    clocks = constants["stream.element_clocks"]
    element_s = clocks / (units * (device.clock_hz or CLOCK_HZ))
    return _Rates(peak * constants["stream.flop_share"], 1 / rate, 1 / cached, waits, element_s)

"""Kernels that move bytes: elementwise ops, softmax, norms, pools, copies, optimizers."""

from typing import Any

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

    Every kernel waits `stream.latency_s` for its first bytes. Of rows that are reduced a
    multiprocessor takes `stream.reduced_bytes` a clock, and reads them again from memory as far as
    the last cache does not hold those at work (`_again`). Bytes that all fit into it come from
    there, `stream.cached_bytes` a clock and multiprocessor, if that is faster.
    """
    units, clock_hz = device.multiprocessors or MULTIPROCESSORS, device.clock_hz or CLOCK_HZ
    peak = device.vector_peak(kernels.dtype) or device.peak_flop_per_s[kernels.dtype]
    compute = kernels.flop / (peak * constants["stream.flop_share"])
    moved: Any = kernels.bytes
    if kernels.kind in REDUCING:
        reduced = constants["stream.reduced_bytes"] * units * clock_hz
        compute = compute + kernels.bytes / reduced
        moved = moved * (1 + _again(kernels, device, constants))
    rate, cached = memory_rate(device, constants), 0.0
    if device.l2_bytes and device.clock_hz:
        cached = constants["stream.cached_bytes"] * units * clock_hz
    far = missed(kernels.bytes, device) if cached > rate else 1.0
    each_s = 1 / max(cached, rate) * (1 - far) + far / rate
    waits = latency_s(device, constants, "stream.latency_s") * (kernels.bytes > 0)
    return Parts(compute, moved * each_s + waits, constants["launch.gap_s"] * kernels.launches)


def _again(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the share of its bytes that a kernel of rows moves again from memory.

    Each multiprocessor works on `stream.rows_running` rows at once: 16 of 1 MB on each of 10 are
    160 MB, of which a cache of 40 MB holds next to nothing. Rows of softmax up to
    `stream.kept_row` stay in registers, and of longer ones as much is at work.
    """
    again, row, kept = REDUCING[kernels.kind], kernels.row, False
    if again == "stream.softmax_again":
        longest = constants["stream.kept_row"]
        kept, row = row <= longest, np.minimum(row, longest)
    units = device.multiprocessors or MULTIPROCESSORS
    running = constants["stream.rows_running"] * units * row * SIZE_BYTES[kernels.dtype]
    return constants[again] * missed(running, device) * np.logical_not(kept)

"""Kernels that move bytes: elementwise ops, softmax, norms, pools, copies, optimizers."""

from typing import Any, NamedTuple

from steptime.core.dtypes import SIZE_BYTES
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import (
    MULTIPROCESSORS,
    Constants,
    Parts,
    latency_s,
    memory_rate,
    missed,
)
from steptime.prediction.kernels import Rows

_SOFTMAX = ("stream.softmax_again", 1024)  # shorter rows stay in registers
_NORM = ("stream.norm_again", 0)
REDUCING = {  # kind: share of the bytes that is moved again, for rows longer than
    **dict.fromkeys(("softmax", "softmax_grad", "cross_entropy", "log_softmax_grad"), _SOFTMAX),
    **dict.fromkeys(("layer_norm", "rms_norm"), _NORM),
}


def stream(kernels: Rows, device: Device, constants: Constants) -> Parts:
    """Return the seconds of a kernel that is limited by its traffic, its rows, or its arithmetic.

    Every kernel waits `stream.latency_s` for its first bytes. A row that is reduced occupies a
    multiprocessor for a time of its own. Bytes that all fit into the last cache come from there,
    `stream.cached_bytes` a clock and multiprocessor, if that is faster.
    """
    at = _rates(device, constants, kernels.dtype)
    compute = kernels.flop / at.flop_per_s
    moved: Any = kernels.bytes
    if kernels.kind in REDUCING:
        again, longest = REDUCING[kernels.kind]
        rows = kernels.bytes / (2 * SIZE_BYTES[kernels.dtype] * kernels.row)
        compute = compute + rows * at.row_s
        moved = moved * (1 + constants[again] * (kernels.row > longest))
    far = missed(kernels.bytes, device) if at.cached_s < at.byte_s else 1.0
    slower = at.cached_s + far * (at.byte_s - at.cached_s)
    memory = moved * slower + at.first_s * (kernels.bytes > 0)
    return Parts(compute, memory, constants["launch.gap_s"] * kernels.launches)


class _Rates(NamedTuple):
    """FLOP per second, and the seconds of a byte, of one from the cache, of the first, of a row."""

    flop_per_s: float
    byte_s: float
    cached_s: float
    first_s: float
    row_s: float


def _rates(device: Device, constants: Constants, dtype: str) -> _Rates:
    """Return the rates of kernels of a type that move bytes."""
    units = device.multiprocessors or MULTIPROCESSORS
    peak = device.vector_peak(dtype) or device.peak_flop_per_s[dtype]
    rate = memory_rate(device, constants)
    cached = rate
    if device.l2_bytes and device.clock_hz:
        cached = max(constants["stream.cached_bytes"] * units * device.clock_hz, rate)
    waits = latency_s(device, constants, "stream.latency_s")
    row_s = constants.get("stream.row_s", 0.0) / units
    return _Rates(peak * constants["stream.flop_share"], 1 / rate, 1 / cached, waits, row_s)

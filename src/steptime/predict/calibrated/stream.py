"""Kernels that move bytes: elementwise ops, softmax, norms, pools, copies, optimizers."""

from typing import Any

from steptime.core.dtypes import SIZE_BYTES
from steptime.core.hardware import Device
from steptime.predict.calibrated.form import (
    MULTIPROCESSORS,
    Constants,
    Parts,
    latency_s,
    memory_rate,
    missed,
)
from steptime.predict.kernel import Kernel, Larger

_SOFTMAX = ("stream.softmax_again", 1024)  # shorter rows stay in registers
_NORM = ("stream.norm_again", 0)
REDUCING = {  # kind: share of the bytes that is moved again, for rows longer than
    **dict.fromkeys(("softmax", "softmax_grad", "cross_entropy", "log_softmax_grad"), _SOFTMAX),
    **dict.fromkeys(("layer_norm", "rms_norm"), _NORM),
}


def stream(kernel: Kernel, device: Device, constants: Constants, _larger: Larger) -> Parts:
    """Return the seconds of a kernel that is limited by its traffic, its rows, or its arithmetic.

    Every kernel waits `stream.latency_s` for its first bytes. A row that is reduced occupies a
    multiprocessor for a time of its own. Bytes that all fit into the last cache come from there,
    `stream.cached_bytes` a clock and multiprocessor, if that is faster.
    """
    units = device.multiprocessors or MULTIPROCESSORS
    peak = device.vector_peak(kernel.dtype) or device.peak_flop_per_s[kernel.dtype]
    compute = kernel.flop / (peak * constants["stream.flop_share"])
    moved: Any = kernel.bytes
    if kernel.kind in REDUCING:
        again, longest = REDUCING[kernel.kind]
        rows = kernel.bytes / (2 * SIZE_BYTES[kernel.dtype] * kernel.row)
        compute = compute + rows * constants["stream.row_s"] / units
        moved = moved * (1 + constants[again] * (kernel.row > longest))
    rate = memory_rate(device, constants)
    slower = 1 / rate
    if device.l2_bytes and device.clock_hz:
        far = missed(kernel.bytes, device)
        cached = constants["stream.cached_bytes"] * units * device.clock_hz
        slower = far / rate + (1 - far) / max(cached, rate)
    waits = latency_s("stream.latency_s", device, constants)
    memory = moved * slower + waits * (kernel.bytes > 0)
    return Parts(compute, memory, constants["launch.gap_s"] * kernel.launches)

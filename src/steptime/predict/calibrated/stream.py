"""Kernels that move bytes: elementwise ops, norms, pools, copies."""

from steptime.core.hardware import Device
from steptime.predict.calibrated.form import Constants, Parts, streamed_s
from steptime.predict.kernel import Kernel, Larger


def stream(kernel: Kernel, device: Device, constants: Constants, _larger: Larger) -> Parts:
    """Return the seconds of a kernel that is limited by its traffic, or by its arithmetic."""
    compute = kernel.flop / (device.peak_flop_per_s[kernel.dtype] * constants["stream.flop_share"])
    gap = constants["launch.gap_s"] * kernel.launches
    return Parts(compute, streamed_s(kernel.bytes, device, constants), gap)

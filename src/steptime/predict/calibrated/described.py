"""Networks of which only sums are known (`steptime.predict.described`), on GPUs."""

from steptime.core.hardware import Device
from steptime.predict.calibrated.form import Constants, Parts, is_geforce, memory_rate
from steptime.predict.kernel import Kernel, Larger


def described(kernel: Kernel, device: Device, constants: Constants, _larger: Larger) -> Parts:
    """Return the seconds of a step: arithmetic, and every activation moved several times.

    The two do not overlap, since layers that compute and layers that move follow one another.
    """
    _, phase, *words = kernel.kind.split("-")
    passes = constants[f"described.{phase}_passes"]
    for word in words:
        passes = passes * constants[f"described.{word}"]
    rate = device.peak_flop_per_s[kernel.dtype] * constants["described.share"]
    rate *= constants["product.geforce"] if is_geforce(device) else 1.0
    return Parts(kernel.flop / rate, 0.0, passes * kernel.bytes / memory_rate(device, constants))

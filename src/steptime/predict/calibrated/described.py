"""Networks of which only sums are known (`steptime.predict.described`), on GPUs."""

from steptime.core.hardware import Device
from steptime.predict import described as sums
from steptime.predict.calibrated.form import Constants, is_geforce, library_share, memory_rate
from steptime.predict.calibrated.form import Parts as Seconds
from steptime.predict.kernel import Kernel, Larger


def described(kernel: Kernel, device: Device, constants: Constants, larger: Larger) -> Seconds:
    """Return the seconds of a step: arithmetic, and what layers move several times.

    The two do not overlap, since layers that compute and layers that move follow one another.
    Gradients of groups that lie channels last are computed on vector units.
    """
    _, phase, *words = kernel.kind.split("-")
    parts = sums.Parts(*kernel.tensors)
    rate = device.peak_flop_per_s[kernel.dtype] * constants["described.share"]
    rate *= library_share(device, constants)
    rate *= constants["product.geforce"] if is_geforce(device) else 1.0
    dense = kernel.flop - parts.grouped_flop - parts.depthwise_flop
    compute = (dense + parts.grouped_flop / constants["described.grouped"]) / rate
    vector = device.vector_peak("float32") or device.peak_flop_per_s[kernel.dtype]
    if "channels_last" in words:
        compute = compute + parts.padded_flop / (vector * constants["described.padded"])
    last = {"channels_last", "compiled"} & {*words}
    turned = constants["described.channels_last" if last else f"described.{phase}_turned"]
    moved = parts.images * turned
    moved = moved + parts.moved * constants[f"described.{phase}_moved"]
    moved = moved + parts.scores + parts.depthwise
    slowly = parts.depthwise_flop / (vector * constants["described.depthwise"])
    return Seconds(compute, 0.0, moved / memory_rate(device, constants) + slowly, kernel.flop)


def unnamed(kernel: Kernel, device: Device, constants: Constants, larger: Larger) -> Seconds:
    """Return the seconds of a step of a network of a family that is not known."""
    return described(kernel, device, constants, larger)

"""Networks of which only sums are known (`steptime.prediction.described`), on GPUs."""

from steptime.hardware.device import Device
from steptime.prediction import described as sums
from steptime.prediction.calibrated.form import Constants, is_geforce, library_share, memory_rate
from steptime.prediction.calibrated.form import Parts as Seconds
from steptime.prediction.kernels import Rows


def described(kernels: Rows, device: Device, constants: Constants) -> Seconds:
    """Return the seconds of a step: arithmetic, and what layers move several times.

    The two do not overlap, since layers that compute and layers that move follow one another.
    Gradients of groups that lie channels last are computed on vector units. What ops take beside
    is that of short ones.
    """
    _, phase, *words = kernels.kind.split("-")
    parts = sums.Parts(*kernels.tensors)
    rate = device.peak_flop_per_s[kernels.dtype] * constants["described.share"]
    rate *= library_share(device, constants)
    rate *= constants["product.geforce"] if is_geforce(device) else 1.0
    compute = (parts.dense_flop + parts.grouped_flop / constants["described.grouped"]) / rate
    vector = device.vector_peak("float32") or device.peak_flop_per_s[kernels.dtype]
    if "channels_last" in words:
        compute = compute + parts.lane_flop / (vector * constants["described.lanes"])
    last = {"channels_last", "compiled"} & {*words}
    turned = constants["described.channels_last" if last else f"described.{phase}_turned"]
    moved = parts.images * turned
    moved = moved + parts.moved * constants[f"described.{phase}_moved"]
    moved = moved + parts.copied * constants["described.copied"] + parts.scores
    often = constants["described.train_depthwise"] if phase == "train" else 1.0
    moved = moved + parts.depthwise * often
    slowly = parts.depthwise_flop / (vector * constants["described.depthwise"])
    beside = slowly + parts.ops * constants["described.op_s"]
    return Seconds(compute, 0.0, moved / memory_rate(device, constants) + beside, kernels.flop)


def unnamed(kernels: Rows, device: Device, constants: Constants) -> Seconds:
    """Return the seconds of a step of a network of a family that is not known."""
    return described(kernels, device, constants)

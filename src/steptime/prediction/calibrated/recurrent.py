"""Recurrent layers on GPUs, as cuDNN runs them: what it can at once, then step after step.

Appleyard, Kocisky, Blunsom 2016, "Optimizing Performance of Recurrent Neural Networks on GPUs".
"""

import numpy as np

from steptime.core.dtypes import SIZE_BYTES
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import CLOCK_HZ, OLD, Constants, Parts, memory_rate
from steptime.prediction.calibrated.product import tiled_s
from steptime.prediction.kernels import Rows, computed_as

FEW = 16  # rows up to which a product of the state is split over the device
BY_LANES = (*OLD, "Volta", "Turing")  # whose float32 cuDNN multiplies so; later it is TF32
BLOCK = 32  # rows up to which a block of threads makes all of them, and is not split


def recurrent(kernels: Rows, device: Device, constants: Constants) -> Parts:
    """Return the seconds of a recurrent layer, or of its gradient.

    A step is a product of the state (two with a projection), which reads the weights again unless
    the last cache holds them, and a pause until the next one can begin. The product of all inputs
    runs beside the steps as far as these leave room, and so does its gradient; those of the other
    weights come after.
    """
    count = len(kernels.products) // (2 if kernels.kind.endswith("_grad") else 1)
    each, after = kernels.products[1:count], kernels.products[count + 1 :]
    last = kernels._replace(products=after)
    seen = kernels.dtype == "float32" and (device.architecture or "").startswith(BY_LANES)
    chain = weights = 0.0
    for steps, m, n, k in each:
        one = kernels._replace(products=((1, m, n, k),))
        unsplit = k * constants["recurrent.block_clocks"] / (device.clock_hz or CLOCK_HZ)
        unsplit = unsplit * seen * (m > FEW) * (m <= BLOCK)
        chain = chain + steps * np.maximum(tiled_s(one, device, constants), unsplit)
        weights = weights + SIZE_BYTES[kernels.dtype] * n * k
    compute = np.maximum(
        chain + tiled_s(last, device, constants),
        kernels.flop / device.peak_flop_per_s[computed_as(kernels, device)],
    )
    again = steps * weights * (weights > (device.l2_bytes or 0)) / memory_rate(device, constants)
    return Parts(compute, again, len(each) * steps * constants["recurrent.step_s"])

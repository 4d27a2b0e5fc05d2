"""Matrix products on TPUs: tiles of the weights in systolic arrays, past which rows are streamed.

Jouppi et al. 2017, "In-Datacenter Performance Analysis of a Tensor Processing Unit", section 2.
"""

from typing import Any

import numpy as np

from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import Constants, Parts, ceil, streamed_s
from steptime.prediction.kernels import Rows

SIDE = 128  # of an array whose device file does not say: all between v2 and v5p
SCORED = ("attention", "attention_grad")  # kinds whose scores pass the vector unit
ROWS = 8  # that lie in memory together, by 128 columns: a tile of XLA


def systolic(kernels: Rows, device: Device, constants: Constants) -> Parts:
    """Return the seconds of a kernel's products, one after the other, and of its traffic.

    Of each product the share is done that the stack executes: half of attention under a mask.
    """
    rate = device.peak_flop_per_s[kernels.dtype] * constants["systolic.share"]
    done = sum(padded_flop(shape, device) for shape in kernels.products)
    counted = sum(2.0 * b * m * n * k for b, m, n, k in kernels.products)
    compute_s = done * kernels.flop / counted / rate
    if kernels.kind in SCORED:
        width = kernels.products[0][2 if kernels.kind == "attention_grad" else 3]
        vector = device.vector_peak("float32") or rate
        compute_s = compute_s + kernels.flop * constants["systolic.score_flop"] / width / vector
    memory = streamed_s(kernels.bytes, device, constants)
    return Parts(compute_s, memory, constants["launch.gap_s"] * kernels.launches)


def padded_flop(shape: tuple[Any, Any, Any, Any], device: Device) -> Any:
    """Return the FLOP that arrays do for a product `(batch, m, n, k)`, with those that are lost.

    Columns and contraction are padded to the arrays' side, rows to 8. While one tile of weights is
    used the next one is loaded, which takes as long as a side of rows. Arrays without a tile wait:
    where the file says how many there are, tiles are dealt out a side of rows at a time.
    128 x 128 x 128 in one array of 128 loses nothing, and 1 x 100 x 100 as much as that.
    """
    batch, m, n, k = shape
    side = device.array_side or SIDE
    tiles = batch * ceil(n, side) * ceil(k, side)
    done = 2 * tiles * side * side * np.maximum(side, ROWS * ceil(m, ROWS))
    if not device.arrays:
        return done
    parts = tiles * ceil(m, side)
    return done * ceil(parts, device.arrays) * device.arrays / parts

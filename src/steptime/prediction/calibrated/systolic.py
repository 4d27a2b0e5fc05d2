"""Matrix products on TPUs: tiles of the weights in systolic arrays, past which rows are streamed.

Jouppi et al. 2017, "In-Datacenter Performance Analysis of a Tensor Processing Unit", section 2.
"""

from typing import Any

import numpy as np

from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import Constants, TimeParts, ceil, stream_s
from steptime.prediction.kernels import Rows

SIDE = 128  # of an array whose device file does not say: all between v2 and v5p
SCORED = ("attention", "attention_grad")  # kinds whose scores pass the vector unit
TILE_ROWS = 8  # rows of an XLA tile in memory, which has 128 columns


def systolic(kernels: Rows, device: Device, constants: Constants) -> TimeParts:
    """Return the time of matrix products in systolic arrays, one after the other.

    A stack may execute a share of a product only: half of attention under a causal mask.
    """
    flop_per_s = device.datasheet.peak_flop_per_s[kernels.dtype] * constants["systolic.share"]
    array_flop = sum(padded_flop(shape, device) for shape in kernels.products)
    counted_flop = sum(2.0 * b * m * n * k for b, m, n, k in kernels.products)
    # `kernels.flop` is less than `counted_flop` where a causal mask leaves out products.
    compute_s = array_flop * kernels.flop / counted_flop / flop_per_s
    if kernels.kind in SCORED:
        # The first product has the scores forward and the gradient of the values backward.
        _, _, n, k = kernels.products[0]
        head_width = n if kernels.kind == "attention_grad" else k
        vector_peak = device.datasheet.vector_peak("float32") or flop_per_s
        # The vector unit works on each score: its FLOP are those of the products per column of the
        # head.
        score_flop = kernels.flop * constants["systolic.score_flop"] / head_width
        compute_s = compute_s + score_flop / vector_peak
    memory_s = stream_s(kernels.bytes, device, constants)
    return TimeParts(compute_s, memory_s, constants["launch.gap_s"] * kernels.launches)


def padded_flop(shape: tuple[Any, Any, Any, Any], device: Device) -> Any:
    """Return the FLOP of the arrays for a product `(batch, m, n, k)`, with padding and idle arrays.

    Columns and contraction are padded to the side of an array, rows to 8. While one tile of weights
    is used the next one is loaded, which takes as long as a side of rows. Arrays without a tile
    wait: where the device file says how many arrays there are, tiles are dealt out a side of rows
    at a time. 128 x 128 x 128 in one array of 128 wastes nothing; 1 x 100 x 100 takes as much.
    """
    batch, m, n, k = shape
    side = device.datasheet.array_side or SIDE
    tiles = batch * ceil(n, side) * ceil(k, side)
    padded_rows = TILE_ROWS * ceil(m, TILE_ROWS)
    # While one tile is used the next one is loaded, which takes as long as a side of rows.
    tile_flop = 2 * tiles * side * side * np.maximum(side, padded_rows)
    if not device.datasheet.arrays:
        return tile_flop
    pieces = tiles * ceil(m, side)
    # Arrays without a piece wait for the others.
    busy_pieces = ceil(pieces, device.datasheet.arrays) * device.datasheet.arrays
    return tile_flop * busy_pieces / pieces

"""Matrix products on GPUs: tiles of the result, in waves over the multiprocessors."""

from typing import Any

from steptime.core.hardware import Device
from steptime.predict.calibrated.form import (
    MULTIPROCESSORS,
    Constants,
    Parts,
    ceil,
    streamed_s,
)
from steptime.predict.kernel import Kernel, Larger

TILES = (  # rows, columns, constant that holds the share of the peak
    (128, 128, "product.share_128x128"),
    (128, 64, "product.share_128x64"),
    (64, 64, "product.share_64x64"),
    (32, 32, "product.share_32x32"),
)


def product(kernel: Kernel, device: Device, constants: Constants, larger: Larger) -> Parts:
    """Return the seconds of a kernel's products, each by the tile that suits it best."""
    compute = tiled_s(kernel, device, constants, larger)
    memory = streamed_s(kernel.bytes, device, constants)
    return Parts(compute, memory, constants["launch.gap_s"] * kernel.launches)


def tiled_s(kernel: Kernel, device: Device, constants: Constants, larger: Larger) -> Any:
    """Return the seconds of the arithmetic of a kernel's products, one after the other."""
    units = device.multiprocessors or MULTIPROCESSORS
    rate = device.peak_flop_per_s[kernel.dtype] / units
    compute: Any = 0.0
    for batch, m, n, k in kernel.products:
        best: Any = None
        for rows, columns, share in TILES:
            waves = ceil(batch * ceil(m, rows) * ceil(n, columns), units)
            work = 2.0 * rows * columns * (k + constants["product.ramp"])
            one = waves * work / (rate * constants[share])
            best = one if best is None else -larger(-best, -one)
        compute = compute + best
    return compute

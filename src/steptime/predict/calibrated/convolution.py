"""Convolutions on GPUs: products that are never written out, and Winograd's shorter ones.

Implicit products: Chetlur et al. 2014, cuDNN. Winograd: Lavin, Gray 2016, "Fast Algorithms for
Convolutional Neural Networks".
"""

from typing import Any

from steptime.core.hardware import Device
from steptime.predict.calibrated.form import Constants, Parts, ceil, streamed_s
from steptime.predict.calibrated.product import tiled_s
from steptime.predict.kernel import Kernel, Larger

NO_WINOGRAD = ("Kepler", "Kepler 2.0")


def convolution(kernel: Kernel, device: Device, constants: Constants, larger: Larger) -> Parts:
    """Return the seconds of a convolution or of one of its gradients by its best algorithm."""
    shape = implicit(kernel)
    gap = constants["launch.gap_s"] * kernel.launches
    compute = tiled_s(kernel._replace(products=(shape,)), device, constants, larger)
    plain = Parts(
        compute / constants["convolution.share"],
        streamed_s(kernel.bytes, device, constants),
        gap,
    )
    if kernel.window is None or kernel.kind == "conv2d_grad_weight":
        return plain
    if kernel.dtype != "float32" or device.architecture in NO_WINOGRAD:
        return plain
    height, width, down, across, *_ = kernel.window
    fits = (height == 3) * (width == 3) * (down == 1) * (across == 1)
    best = plain
    for other in (
        _fused(kernel, shape, device, constants),
        _in_three(kernel, shape, device, constants, larger),
    ):
        best = _quicker(fits, other, best)
    return best


def implicit(kernel: Kernel) -> tuple[Any, Any, Any, Any]:
    """Return `(groups, m, n, k)` of the implicit product.

    m are places of the result, n its channels, k channels and taps that are summed; a gradient of
    the input has, at each of its places, only the taps that a stride leaves.
    """
    groups, m, n, k = kernel.products[0]
    if kernel.kind != "conv_transpose2d" or kernel.window is None:
        return groups, m, n, k
    height, width, down, across, *_ = kernel.window
    taps, strides = height * width, down * across
    return groups, m * strides, n / taps, k * taps / strides


def _places(kernel: Kernel, m: Any, side: int) -> Any:
    """Return the squares of `side` by `side` places that cover all maps of the result."""
    *_, rows, columns = kernel.window or (1,) * 6
    return m / (rows * columns) * ceil(rows, side) * ceil(columns, side)


def _fused(kernel: Kernel, shape: Any, device: Device, constants: Constants) -> Parts:
    """Return the seconds of Winograd's F(2x2, 3x3) in one kernel: 16 products for 36.

    A block of threads makes 32 squares of 32 filters.
    """
    groups, m, n, k = shape
    units = device.multiprocessors or 64
    rate = device.peak_flop_per_s[kernel.dtype] / units
    waves = ceil(groups * ceil(_places(kernel, m, 2), 32) * ceil(n, 32), units)
    work = 2.0 * 16 * 32 * 32 * (k / 9 + constants["product.ramp"])
    compute = waves * work / (rate * constants["convolution.fused_share"])
    return Parts(
        compute,
        streamed_s(kernel.bytes, device, constants),
        constants["launch.gap_s"] * kernel.launches,
    )


def _in_three(
    kernel: Kernel, shape: Any, device: Device, constants: Constants, larger: Larger
) -> Parts:
    """Return the seconds of Winograd's F(4x4, 3x3) in kernels: transforms, 36 products, transform.

    The transforms overlap nothing.
    """
    groups, m, n, k = shape
    channels, size = k / 9, 4
    squares = _places(kernel, m, 4)
    batched = kernel._replace(products=((36 * groups, squares, n, channels),))
    seen, made, filters = squares * channels, squares * n, channels * n
    moved = groups * size * (m * channels + 36 * seen + 36 * made + m * n + 45 * filters)
    again = groups * size * 36 * (seen + made + filters)
    gap = streamed_s(moved, device, constants) / constants["convolution.transform_share"]
    return Parts(
        tiled_s(batched, device, constants, larger) / constants["convolution.share"],
        streamed_s(again, device, constants),
        gap + 4 * constants["launch.gap_s"] * kernel.launches,
    )


def _quicker(fits: Any, one: Parts, other: Parts) -> Parts:
    """Return the parts of what takes less, `other` where `one` does not fit."""
    less = fits * (_rough(one) < _rough(other))
    return Parts(*[less * a + (1 - less) * b for a, b in zip(one, other, strict=True)])


def _rough(parts: Parts) -> Any:
    power = 4
    return (parts.compute_s**power + parts.memory_s**power) ** (1 / power) + parts.gap_s

"""Matrix products on GPUs: tiles of the result, in waves over the multiprocessors."""

from collections.abc import Mapping
from typing import Any

from steptime.core.dtypes import SIZE_BYTES
from steptime.core.hardware import Device
from steptime.predict.calibrated.form import (
    MULTIPROCESSORS,
    OLD,
    Constants,
    Parts,
    ceil,
    memory_rate,
    streamed_s,
)
from steptime.predict.kernel import Kernel, Larger

Tiles = tuple[tuple[int, int], ...]  # rows, columns of the result that a thread block makes
_WIDE: Tiles = ((128, 128), (64, 128), (128, 32), (32, 128), (32, 64), (32, 32))
_AMPERE = (_WIDE, ((128, 128),))
TILES: Mapping[str, tuple[Tiles, Tiles]] = {  # by generation: of one product, of batches
    "Maxwell": (((64, 64), (128, 32), (32, 128)), ((64, 128),)),
    "Pascal": (((64, 64), (128, 32), (32, 128)), ((64, 128),)),
    "Volta": (_WIDE, ((64, 64), (128, 32), (32, 128))),
    "Turing": ((*_WIDE, (64, 64)), ((64, 128), (64, 64), (32, 128))),
    "Ampere": _AMPERE,
    "Ada": _AMPERE,
    "Hopper": _AMPERE,
    "Blackwell": _AMPERE,
}
OF_OTHERS = ((*_WIDE, (64, 64)), ((128, 128), (64, 64), (32, 32)))
LEAST_PART = 200  # length of the contraction below which it is not split
_FALL = 0.45  # power by which older GPUs slow down beyond
PAGES_BYTES = 64 * 2**20  # of a matrix whose addresses older GPUs hold at hand


def product(kernel: Kernel, device: Device, constants: Constants, larger: Larger) -> Parts:
    """Return the seconds of a kernel's products, each by the tile that suits it best."""
    compute = tiled_s(kernel, device, constants, larger)
    memory = streamed_s(kernel.bytes, device, constants)
    return Parts(compute, memory, constants["launch.gap_s"] * kernel.launches)


def tiled_s(kernel: Kernel, device: Device, constants: Constants, larger: Larger) -> Any:
    """Return the seconds of the arithmetic of a kernel's products, one after the other.

    Libraries offer batches of products fewer tiles than single ones, and split the contraction of
    single ones alone.
    """
    age = device.architecture or ""
    old = age.startswith(OLD)
    rate = device.peak_flop_per_s[kernel.dtype] * constants["product.share"]
    rate = rate * constants["product.old"] if old else rate
    alone, batched = TILES.get(age.partition(" ")[0], OF_OTHERS)
    compute: Any = 0.0
    for shape in kernel.products:
        batch, _, n, k = shape
        at: Any = rate
        if old and kernel.kind == "linear":
            held = PAGES_BYTES / (PAGES_BYTES + SIZE_BYTES[kernel.dtype] * n * k)
            at = rate * (1 + (1 - held) * k / constants["product.stride"]) ** -_FALL
        many: Any = batch > 1
        if many is True:
            compute = compute + _fastest_s(shape, batched, at, False, device, constants, larger)
        elif many is False:
            compute = compute + _fastest_s(shape, alone, at, True, device, constants, larger)
        else:
            compute = compute + many * _fastest_s(
                shape, batched, at, False, device, constants, larger
            )
            compute = compute + (1 - many) * _fastest_s(
                shape, alone, at, True, device, constants, larger
            )
    return compute


def _fastest_s(
    shape: tuple[Any, Any, Any, Any],
    tiles: Tiles,
    rate: Any,
    splits: bool,
    device: Device,
    constants: Constants,
    larger: Larger,
) -> Any:
    """Return the seconds of a product by the best of some tiles, with its contraction split or not.

    A tile needs one row and one column of its operands for each multiply-add of its area, so small
    ones keep the arithmetic waiting. A wave is a tile for each multiprocessor. Parts of a split
    contraction are written and summed up.
    """
    batch, m, n, k = shape
    units = device.multiprocessors or MULTIPROCESSORS
    ramp, half = constants["product.ramp"], constants["product.half_reuse"]
    best: Any = None
    for rows, columns in tiles:
        reuse = rows * columns / (rows + columns)
        each = 2.0 * rows * columns * units / rate * (1 + half / reuse)  # seconds of a wave and k
        blocks = batch * ceil(m, rows) * ceil(n, columns)
        found = ceil(blocks, units) * each * (k + ramp)
        best = found if best is None else -larger(-best, -found)
        if splits:
            parts = larger(1.0, -larger(-(units // blocks), -(k // LEAST_PART)))
            summed = 4.0 * m * n * (parts + 1) / memory_rate(device, constants)
            found = ceil(blocks * parts, units) * each * (ceil(k, parts) + ramp) + summed
            best = -larger(-best, -(found + constants["product.sum_s"]))
    return best

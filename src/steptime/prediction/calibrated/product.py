"""Matrix products on GPUs: tiles of the result, in waves over the multiprocessors."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steptime.core.dtypes import SIZE_BYTES
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import (
    MULTIPROCESSORS,
    OLD,
    Constants,
    Parts,
    ceil,
    has_matrix_units,
    is_geforce,
    latency_s,
    library_share,
    memory_rate,
    missed,
    streamed_s,
)
from steptime.prediction.kernel import Kernel
from steptime.prediction.kernels import Rows, computed_as

Shape = tuple[Any, Any, Any, Any]  # batch, m, n, k
Tiles = tuple[tuple[int, int], ...]  # rows, columns of the result that a thread block makes
_WIDE: Tiles = ((128, 128), (64, 128), (128, 32), (32, 128), (32, 64), (32, 32))
_AMPERE = (_WIDE, ((128, 128),))
TILES: Mapping[str, tuple[Tiles, Tiles]] = {  # by generation: of one product, of batches
    "Maxwell": (((128, 128), (64, 128), (64, 64), (128, 32)), ((64, 128),)),
    "Pascal": (((128, 128), (64, 64), (128, 32), (32, 128)), ((64, 128),)),
    "Volta": (_WIDE, ((64, 64), (128, 32), (32, 128))),
    "Turing": ((*_WIDE, (64, 64)), ((64, 128), (64, 64), (32, 128))),
    "Ampere": _AMPERE,
    "Ada": _AMPERE,
    "Hopper": _AMPERE,
    "Blackwell": _AMPERE,
}
TENSOR: Tiles = ((128, 256), (128, 128), (64, 128), (64, 64), (16, 64))
OF_OTHERS: Tiles = ((128, 128), (64, 128), (64, 64), (32, 64), (32, 32))
LARGEST = (128, 128)  # the tile that reaches the share of the peak, of vector units
HALVES = ("float16", "bfloat16")
# of linear layers on Pascal, with what an element of a tile counts: the library takes the tile that
# is padded least, not the fastest (as launched by PyTorch 2.1 on P4 and P100)
ALONG: Mapping[str, Mapping[tuple[int, int], float]] = {
    "Maxwell": {(64, 64): 1.0, (128, 32): 1.0},
    "Pascal": {(64, 64): 1.0, (128, 32): 0.95},
}
LANES = 96  # of a multiprocessor, above which a Pascal chip is built as Maxwell was
# where an instruction is 32 multiply-adds, and schedulers issue one a clock: with 128 lanes none is
# left for what is not arithmetic (CUDA C++ Programming Guide, multiprocessors of 8.6, 8.9, 9.0);
# B200 and its kin multiply pairs (PTX, fma.f32x2)
ONE_ISSUED = ("Ampere", "Ada", "Hopper", "Blackwell 2")
NARROW_BYTES = 1  # of an element that is multiplied in 8 bit or less
PAGES_BYTES, ROW = 16 * 2**20, 4000  # of a matrix that older GPUs hold at hand, in rows of 4000
GROWS = 0.4  # power by which reading again slows down as the first operand grows


def product(kernels: Rows, device: Device, constants: Constants) -> Parts:
    """Return the seconds of a kernel's products, each by the tile that suits it best."""
    compute, flop = tiled(kernels, device, constants)
    moved = np.maximum(kernels.bytes - _at_hand(kernels, device), 0)
    if not has_matrix_units(device, computed_as(kernels, device)):
        moved = moved + (constants["product.along"] - 1) * _along(kernels)
    memory = streamed_s(moved, device, constants)
    return Parts(compute, memory, constants["launch.gap_s"] * kernels.launches, flop)


def _along(kernels: Rows) -> Any:
    """Return the bytes of operands that lie along the contraction, of which tiles read pieces."""
    size = SIZE_BYTES.get(kernels.dtype, NARROW_BYTES)
    of_weights = kernels.kind == "linear"
    return sum(size * batch * (m + n * of_weights) * k for batch, m, n, k in kernels.products)


def _at_hand(kernels: Rows, device: Device) -> Any:
    """Return the bytes that the last cache holds: what the kernel before made, what the next reads.

    Weights are read once in a step, and come from memory.
    """
    size = SIZE_BYTES.get(kernels.dtype, NARROW_BYTES)
    parts = [size * batch * m * (n + k) for batch, m, n, k in kernels.products]
    return sum(own * (1 - missed(own, device)) for own in parts)


def weights_at_hand(kernels: Kernel | Rows, device: Device, copies: int) -> Any:
    """Return the bytes of weights in the last cache where a kernel goes round `copies` of them."""
    size = SIZE_BYTES.get(kernels.dtype, NARROW_BYTES)
    parts = [(size * b * n * k, size * b * m * (n + k)) for b, m, n, k in kernels.products]
    return sum(own * (1 - missed(copies * own + rest, device)) for own, rest in parts)


TENSOR_RATE = 2.9e12  # FLOP/s of an A100's multiprocessor: tensor cores that are slower wait less


_Timed = tuple[Tiles, tuple[tuple[float, float], ...]]


class _Units(NamedTuple):
    """What multiplies: multiprocessors, their tiles for one product and for batches.

    With the tiles come the seconds of a wave of each a step of the contraction, and as how many of
    these it waits for its first and last numbers. The contraction is padded to `step`. The parts
    of one that is split over multiprocessors are written at the `rate` of the memory and summed in
    `sum_s`. However few or small tiles are, a step takes `turn_s`: each waits for its numbers.
    `padded` is what an element of each tile of one product counts where the library takes the tile
    that is padded least, not the fastest.
    """

    alone: _Timed
    batched: _Timed
    multiprocessors: int
    rate: float
    sum_s: float
    step: int = 1
    turn_s: float = 0.0
    padded: tuple[float, ...] = ()


def tiled_s(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the seconds of the arithmetic of a kernel's products, one after the other."""
    return tiled(kernels, device, constants)[0]


def tiled(kernels: Rows, device: Device, constants: Constants) -> tuple[Any, Any]:
    """Return the seconds of a kernel's products, and their FLOP with those that pad their tiles.

    Libraries offer batches of products fewer tiles than single ones, and split the contraction of
    single ones alone.
    """
    compute, flop, dtype = 0.0, 0.0, computed_as(kernels, device)
    strided = kernels.kind == "linear" and (device.architecture or "").startswith(OLD)
    for shape in kernels.products:
        seconds, done = product_s(device, constants, dtype, shape, strided)
        compute, flop = compute + seconds, flop + done
    return compute, flop


def product_s(
    device: Device,
    constants: Constants,
    dtype: str,
    shape: Shape,
    strided: bool = False,
) -> tuple[Any, Any]:
    """Return the seconds of a product, and its FLOP with those that pad its tiles.

    The second operand is read again for each row of tiles where it is `strided`.
    """
    units = _units_of(device, constants, dtype, strided)
    many = shape[0] > 1
    if np.all(many) or not np.any(many):
        return _fastest(shape, units, bool(np.all(many)))
    batched, alone = (_fastest(shape, units, one) for one in (True, False))
    seconds, flop = (np.where(many, a, b) for a, b in zip(batched, alone, strict=True))
    return seconds, flop


def _units_of(device: Device, constants: Constants, dtype: str, strided: bool) -> _Units:
    """Return what multiplies products of a type, by generation."""
    age = (device.architecture or "").partition(" ")[0]
    peak = device.peak_flop_per_s[dtype]
    rate = peak * library_share(device, constants)
    count = device.multiprocessors or MULTIPROCESSORS
    sum_s, ramp_s, turn_s = (
        latency_s(device, constants, f"product.{name}") for name in ("sum_s", "ramp_s", "turn_s")
    )
    summing = count, memory_rate(device, constants), sum_s

    def timed(tiles: Tiles, half: float, waits: float = 0.0) -> _Timed:
        """Return tiles, which reach half of the rate where an operand is used `half` times.

        They wait as for `waits` steps, or for `product.ramp_s`.
        """
        each = [2.0 * tile[0] * tile[1] * count / rate * (1 + half / reuse(tile)) for tile in tiles]
        return tiles, tuple((one, waits or ramp_s / one) for one in each)

    if has_matrix_units(device, dtype):
        rate *= constants["product.tensor_share"]
        rate *= constants["product.geforce"] if is_geforce(device) else 1.0
        quick = min(1.0, peak / count / TENSOR_RATE)
        half = constants["product.tensor_half_reuse"] * quick
        rate *= 1 + half / reuse(TENSOR[0])
        waits = constants["product.tensor_ramp"] * quick**2
        tiles = timed(TENSOR if age in TILES else OF_OTHERS, half, waits)
        return _Units(tiles, tiles, *summing, 32)
    if age in OLD and dtype in HALVES:
        rate = device.vector_flop_per_s.get("float32", rate)  # frameworks ask for sums in float32
    rate *= constants["product.share"]
    rate *= constants["product.kepler"] if age == "Kepler" else 1.0
    is_pascal = age == "Pascal"
    if is_pascal and _lanes(device) > LANES:
        age = "Maxwell"
    alone, batched = TILES.get(age, (OF_OTHERS, OF_OTHERS))
    counts = ALONG[age] if strided and is_pascal else {}
    alone = (*counts,) or alone
    half = constants["product.half_reuse"]
    rate *= 1 + half / reuse(LARGEST)
    half *= (_lanes(device) or 64) / 64
    single, batches = timed(alone, half), timed(batched, half)
    return _Units(single, batches, *summing, turn_s=turn_s, padded=(*counts.values(),))


def reuse(tile: tuple[int, int]) -> float:
    """Return how often a tile uses each number that it reads: 64 times for 128 x 128."""
    rows, columns = tile
    return rows * columns / (rows + columns)


def _lanes(device: Device) -> float:
    """Return the multiply-adds that a multiprocessor does in a clock, 0 where that is not known."""
    if not device.clock_hz or not device.multiprocessors:
        return 0.0
    peak = device.vector_flop_per_s.get("float32", 0.0)
    return peak / (2 * device.clock_hz * device.multiprocessors)


def _fastest(shape: Shape, units: _Units, in_batch: bool) -> tuple[Any, Any]:
    """Return seconds and FLOP of a product by the tile that is taken, its contraction split or not.

    A tile needs one row and one column of its operands for each multiply-add of its area, so small
    ones keep the arithmetic waiting. A wave is a tile for each multiprocessor. Parts of a split
    contraction are written and summed up. Of two tiles that are padded alike either may be taken.
    """
    batch, m, n, k = shape
    count, dims = units.multiprocessors, [1] * np.ndim(batch * m * n * k)
    tiles, waves_s = units.batched if in_batch else units.alone
    rows, columns = (np.array(sides).reshape(-1, *dims) for sides in zip(*tiles, strict=True))
    each, waits = (np.array(one).reshape(-1, *dims) for one in zip(*waves_s, strict=True))
    area = rows * columns
    blocks, long = batch * ceil(m, rows) * ceil(n, columns), units.step * ceil(k, units.step)
    waves = ceil(blocks, count)
    busy = waves * each
    found = np.maximum(busy, units.turn_s) * long + busy * waits
    if not in_batch:
        parts = np.maximum(np.floor(count / blocks), 1.0)
        busy = ceil(blocks * parts, count) * each
        summed = 4.0 * (m * n + area * count) / units.rate + units.sum_s
        split = np.maximum(busy, units.turn_s) * ceil(long, parts) + busy * waits + summed
        found = np.minimum(found, split)
    elements = area * blocks
    taken_by = found
    if units.padded and not in_batch:
        taken_by = np.array(units.padded).reshape(-1, *dims) * elements
    share = _shares(taken_by == taken_by.min(axis=0))
    return (share * found).sum(axis=0), 2.0 * k * (share * elements).sum(axis=0)


def _shares(least: NDArray[np.bool_]) -> Any:
    """Return how much of each tile is taken where some are the least: half of the last of them."""
    several = least.sum(axis=0) > 1
    if not several.any():
        return least
    found, some = least.astype(float), least[:, several]
    after = some[::-1].cumsum(axis=0)[::-1] - some
    found[:, several] = some * 0.5 ** (after + (some.cumsum(axis=0) > 1))
    return found

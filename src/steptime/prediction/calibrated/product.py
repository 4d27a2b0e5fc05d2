"""Matrix products on GPUs: tiles of the result, in waves over the multiprocessors."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from steptime.core.dtypes import HALVES, SIZE_BYTES
from steptime.hardware.architectures import family_of, has_trait, value_by_family
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import (
    MULTIPROCESSORS,
    Constants,
    Parts,
    cached_share,
    ceil,
    has_matrix_units,
    is_geforce,
    is_nvidia,
    latency_s,
    library_share,
    memory_rate,
    miss_share,
    stream_s,
)
from steptime.prediction.kernel import Kernel
from steptime.prediction.kernels import Rows, computed_as

Shape = tuple[Any, Any, Any, Any]  # batch, m, n, k
Tiles = tuple[tuple[int, int], ...]  # rows, columns of the result that a thread block makes
LARGEST = (128, 128)  # the tile that reaches the share of the peak, of vector units
LANES = 96  # of a multiprocessor, above which all that its schedulers issue is arithmetic
NARROW_BYTES = 1  # of an element that is multiplied in 8 bit or less
WHOLE_BYTES = 16  # that threads, and copies of tensors, read at once
TENSOR_FLOP_PER_S = 2.9e12  # of a multiprocessor for which waits are stated: slower ones wait less


def product(kernels: Rows, device: Device, constants: Constants) -> Parts:
    """Return the seconds of a kernel's products, each by the tile that suits it best.

    What the last cache holds comes from there. Matrix units wait `product.tensor_wait_s` for their
    first bytes; vector units read what lies along the contraction in pieces.
    """
    compute, flop = tiled(kernels, device, constants)
    quick = np.minimum(_at_hand(kernels, device), kernels.bytes)
    moved = kernels.bytes - quick * (1 - cached_share(device, constants))
    if has_matrix_units(device, computed_as(kernels, device)):
        waits = latency_s(device, constants, "product.tensor_wait_s")
        memory = moved / memory_rate(device, constants) + waits
    else:
        moved = moved + (constants["product.along"] - 1) * _along(kernels)
        memory = stream_s(moved, device, constants)
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
    return sum(own * (1 - miss_share(own, device)) for own in parts)


def weights_at_hand(kernels: Kernel | Rows, device: Device, copies: int) -> Any:
    """Return the bytes of weights in the last cache where a kernel goes round `copies` of them."""
    size = SIZE_BYTES.get(kernels.dtype, NARROW_BYTES)
    parts = [(size * b * n * k, size * b * m * (n + k)) for b, m, n, k in kernels.products]
    return sum(own * (1 - miss_share(copies * own + rest, device)) for own, rest in parts)


_Timed = tuple[Tiles, tuple[tuple[float, float], ...]]


class _Units(NamedTuple):
    """What multiplies: multiprocessors, their tiles for one product and for batches.

    With the tiles come the seconds of a wave of each a step of the contraction, and as how many of
    these it waits for its first and last numbers. The contraction is padded to `step`. The parts
    of one that is split over multiprocessors are written at the `rate` of the memory and summed in
    `sum_s`. However few or small tiles are, a step takes `turn_s`: each waits for its numbers.
    """

    alone: _Timed
    batched: _Timed
    multiprocessors: int
    rate: float
    sum_s: float
    turn_s: float
    step: int = 1


def tiled_s(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the seconds of the arithmetic of a kernel's products, one after the other."""
    return tiled(kernels, device, constants)[0]


def tiled(kernels: Rows, device: Device, constants: Constants) -> tuple[Any, Any]:
    """Return the seconds of a kernel's products, and their FLOP with those that pad their tiles.

    Libraries offer batches of products fewer tiles than single ones, and split the contraction of
    single ones alone.
    """
    compute, flop, dtype = 0.0, 0.0, computed_as(kernels, device)
    along = kernels.kind == "linear"
    for shape in kernels.products:
        seconds, done = product_s(device, constants, dtype, shape, along)
        seconds = seconds / _aligned_share(kernels, shape, device, constants)
        seconds = seconds / _across_share(kernels, dtype, device, constants)
        compute, flop = compute + seconds, flop + done
    return compute, flop


def _aligned_share(kernels: Rows, shape: Shape, device: Device, constants: Constants) -> Any:
    """Return the share of its rate that a product on matrix units has by how its rows lie.

    Libraries read and write 16 bytes at once where each row begins at a multiple of them. Rows of
    operands and of the result are n and k long, and m and n of a product whose first operand is
    transposed (gradients of weights). Rows that begin at odd numbers of 2 bytes are copied number
    by number (`product.odd`); others take what is copied in 4 and 8 bytes (`product.uneven`). Each
    is a constant of the architecture.
    """
    dtype = computed_as(kernels, device)
    if not (has_matrix_units(device, dtype) and is_nvidia(device) and dtype in HALVES):
        return 1.0
    _, m, n, k = shape
    first_row = m if kernels.transposed else k
    numbers = WHOLE_BYTES // SIZE_BYTES[dtype]
    odd = (n % 2 == 1) | (first_row % 2 == 1)
    uneven = (n % numbers > 0) | (first_row % numbers > 0)
    shares = [constants[f"product.{name}_{copies(device)}"] for name in ("odd", "uneven")]
    return np.where(odd, shares[0], np.where(uneven, shares[1], 1.0))


def _across_share(kernels: Rows, dtype: str, device: Device, constants: Constants) -> float:
    """Return the share of its rate that a product in TF32 has whose operands lie across.

    Matrix units to which tensors are copied transpose operands of 16 bits alone (PTX ISA, wgmma:
    imm-trans-a). TF32 operands have to lie along the contraction, as in the forward pass of a
    linear layer; its gradients run on the instructions of devices before.
    """
    is_across = dtype == "tf32" and kernels.kind != "linear"
    if is_across and is_nvidia(device) and copies(device) == "tensor":
        return constants["product.across_tensor"]
    return 1.0


def copies(device: Device) -> str:
    """Return what brings numbers to matrix units: copies of a `tensor`, or `threads`."""
    return "tensor" if has_trait(device, "copied_tensors") else "threads"


def product_s(
    device: Device,
    constants: Constants,
    dtype: str,
    shape: Shape,
    along: bool = False,
) -> tuple[Any, Any]:
    """Return the seconds of a product, and its FLOP with those that pad its tiles.

    Both operands lie along the contraction where it is `along`.
    """
    units = _units_of(device, constants, dtype, along)
    many = shape[0] > 1
    if np.all(many) or not np.any(many):
        return _fastest(shape, units, bool(np.all(many)))
    batched, alone = (_fastest(shape, units, one) for one in (True, False))
    seconds, flop = (np.where(many, a, b) for a, b in zip(batched, alone, strict=True))
    return seconds, flop


def _units_of(device: Device, constants: Constants, dtype: str, along: bool) -> _Units:
    """Return what multiplies products of a type, by architecture."""
    family = family_of(device)
    count = device.multiprocessors or MULTIPROCESSORS
    peak = device.peak_flop_per_s[dtype]
    rate = peak * library_share(device, constants)
    sum_s, ramp_s = (latency_s(device, constants, f"product.{one}") for one in ("sum_s", "ramp_s"))
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
        quick = min(1.0, peak / count / TENSOR_FLOP_PER_S)
        half, waits = (
            constants["product.tensor_half_reuse"] * quick,
            constants["product.tensor_ramp"],
        )
        tiles = tiles_of("matrix")
        rate *= 1 + half / reuse(tiles[0])
        single = timed(tiles, half, waits * quick**2)
        rate *= 1.0 if is_nvidia(device) else constants["product.amd_batched"]
        batches = timed(tiles, half, waits * quick**2)
        step = step_of(family)
        turn_s = latency_s(device, constants, "product.tensor_turn_s") / step
        return _Units(single, batches, *summing, turn_s, step)
    old = has_trait(device, "old")
    if old and dtype in HALVES:
        rate = device.vector_flop_per_s.get("float32", rate)  # frameworks ask for sums in float32
    rate *= constants["product.share"]
    rate *= constants["product.kepler"] if has_trait(device, "kepler") else 1.0
    rate *= issue_share(device, constants)
    half = constants["product.half_reuse"]
    rate *= 1 + half / reuse(LARGEST)
    single = timed(tiles_of("along" if along and old else "alone"), half)
    batches = timed(tiles_of("batched", family), half)
    return _Units(single, batches, *summing, latency_s(device, constants, "product.turn_s"))


@cache
def tiles_of(use: str, family: str = "") -> Tiles:
    """Return the tiles that libraries offer for a use on a family of architectures."""
    offered = value_by_family(family, "tiles", use)
    return tuple((rows, columns) for rows, columns in offered)


@cache
def step_of(family: str) -> int:
    """Return how many columns of the contraction matrix units multiply in a turn."""
    step: int = value_by_family(family, "steps", "matrix")
    return step


def reuse(tile: tuple[int, int]) -> float:
    """Return how often a tile uses each number that it reads: 64 times for 128 x 128."""
    rows, columns = tile
    return rows * columns / (rows + columns)


def issue_share(device: Device, constants: Constants) -> float:
    """Return the share of its peak that schedulers leave to long arithmetic on vector units."""
    one_issued = has_trait(device, "one_issued")
    return constants["product.issue"] if one_issued and _lanes(device) > LANES else 1.0


def _lanes(device: Device) -> float:
    """Return the multiply-adds that a multiprocessor does in a clock, 0 where that is not known."""
    if not device.clock_hz or not device.multiprocessors:
        return 0.0
    peak = device.vector_flop_per_s.get("float32", 0.0)
    return peak / (2 * device.clock_hz * device.multiprocessors)


def _fastest(shape: Shape, units: _Units, in_batch: bool) -> tuple[Any, Any]:
    """Return seconds and FLOP of a product by its fastest tile, its contraction split or not.

    A tile needs one row and one column of its operands for each multiply-add of its area, so small
    ones keep the arithmetic waiting. A wave is a tile for each multiprocessor. Parts of a split
    contraction are written and summed up.
    """
    batch, m, n, k = shape
    count, long = units.multiprocessors, units.step * ceil(k, units.step)
    padded: Any = 0.0
    least, timed = np.inf, units.batched if in_batch else units.alone
    for (rows, columns), (each, waits) in zip(*timed, strict=True):
        blocks = batch * ceil(m, rows) * ceil(n, columns)
        busy = ceil(blocks, count) * each
        seconds = np.maximum(busy, units.turn_s) * long + busy * waits
        if not in_batch and np.min(blocks) <= count / 2:  # else none is split
            parts = np.maximum(np.floor(count / blocks), 1.0)
            busy = ceil(blocks * parts, count) * each
            summed = 4.0 * (m * n + rows * columns * count) / units.rate + units.sum_s
            split = np.maximum(busy, units.turn_s) * ceil(long, parts) + busy * waits + summed
            seconds = np.minimum(seconds, split)
        padded = np.where(seconds < least, rows * columns * blocks, padded)
        least = np.minimum(seconds, least)
    return least, 2.0 * k * padded

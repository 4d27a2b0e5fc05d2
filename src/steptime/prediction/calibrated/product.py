"""Matrix products on GPUs: tiles of the result, in waves over the multiprocessors."""

from typing import Any, NamedTuple

import numpy as np

from steptime.core.dtypes import HALVES, SIZE_BYTES
from steptime.hardware.architectures import SetTiles, family_of, has_trait
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import (
    MULTIPROCESSORS,
    Constants,
    TimeParts,
    cached_share,
    has_matrix_units,
    is_nvidia,
    latency_s,
    library_share,
    memory_rate,
    miss_share,
    stream_s,
)
from steptime.prediction.calibrated.tiles import (
    ProductTime,
    Shape,
    Units,
    contraction_step,
    limit_tiles,
    list_set_tiles,
    list_tiles,
    reuse,
    time_fastest_tile,
    time_tiles,
)
from steptime.prediction.kernel import Kernel
from steptime.prediction.kernels import Rows, computed_as

LARGEST_TILE = (128, 128)  # reaches `product.share` of the peak of vector units
MAX_ISSUED_LANES = 96  # of a multiprocessor; with more, arithmetic fills all issue slots
PAIR = 2  # multiprocessors of a product: wgmma in clusters of 2, tcgen05 with cta_group::2
UNSPLIT_STEP = 128  # columns of the contraction in a tile of CUTLASS kernels for 8 bit (vLLM, c3x)
NARROW_BYTES = 1  # size of an element of a type of 8 bits or fewer
VECTOR_BYTES = 16  # that threads, and copies of tensors, read at once
REFERENCE_FLOP_PER_S = 2.9e12  # of a multiprocessor for which waits of matrix units are stated


def product(kernels: Rows, device: Device, constants: Constants) -> TimeParts:
    """Return the time of a kernel's products, each by the tile that suits it best.

    Bytes that the last cache holds come from there. Matrix units wait `product.tensor_wait_s` for
    their first bytes. Vector units read operands that lie along the contraction in pieces, which
    takes `product.along` times as long.
    """
    arithmetic = time_products(kernels, device, constants)
    compute_s = arithmetic.compute_s * (1 + _load_share(kernels, device, constants))
    # Bytes that lie in the last cache count by the share of time that they take there.
    cached_bytes = np.minimum(_cached_bytes(kernels, device), kernels.bytes)
    moved_bytes = kernels.bytes - cached_bytes * (1 - cached_share(device, constants))
    if has_matrix_units(device, computed_as(kernels, device)):
        wait_s = latency_s(device, constants, "product.tensor_wait_s")
        memory_s = moved_bytes / memory_rate(device, constants) + wait_s
    else:  # without tensor cores, operands are read several times
        extra_reads = constants["product.along"] - 1
        extra_bytes = extra_reads * _bytes_along_contraction(kernels)
        memory_s = stream_s(moved_bytes + extra_bytes, device, constants)
    gap_s = constants["launch.gap_s"] * kernels.launches
    return TimeParts(compute_s, memory_s, gap_s, arithmetic.flop)


def _load_share(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the time of loading operands as a share of that of multiplying them.

    Grouped products of some stacks fetch the rows of an expert by threads, which do not multiply
    meanwhile: `kernels.loaded_bytes` in a clock of a multiprocessor. A tile of 128 x 128 multiplies
    each number that it loads 64 times.
    """
    bytes_per_clock = constants.get("kernels.loaded_bytes")
    clock_hz = device.datasheet.clock_hz
    is_gathered = kernels.kind == "experts" and len(kernels.figures) > 0
    if not bytes_per_clock or not clock_hz or not is_gathered:
        return 0.0
    (element_bytes,) = kernels.figures
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    peak = device.datasheet.peak_flop_per_s[kernels.dtype]
    flop_per_clock = peak / multiprocessors / clock_hz
    # A multiply-add is 2 FLOP.
    needed_bytes_per_clock = flop_per_clock / 2 / reuse(LARGEST_TILE) * element_bytes
    return needed_bytes_per_clock / bytes_per_clock


def _bytes_along_contraction(kernels: Rows) -> Any:
    """Return the bytes of operands that lie along the contraction, of which tiles read pieces."""
    element_bytes = SIZE_BYTES.get(kernels.dtype, NARROW_BYTES)
    stores_weights_along = kernels.kind == "linear"  # whose weights are `[n, k]`
    total_bytes: Any = 0
    # Operands whose rows of k numbers lie in memory along the contraction.
    for batch, m, n, k in kernels.products:
        rows_along = m + n if stores_weights_along else m
        total_bytes = total_bytes + element_bytes * batch * rows_along * k
    return total_bytes


def _cached_bytes(kernels: Rows, device: Device) -> Any:
    """Return the bytes in the last cache: the output of the kernel before, and the kernel's own.

    Weights are read once in a step, so that they come from memory.
    """
    element_bytes = SIZE_BYTES.get(kernels.dtype, NARROW_BYTES)
    cached_bytes: Any = 0
    for batch, m, n, k in kernels.products:
        # Without the weights, n * k: a step reads them once, from memory.
        size_bytes = element_bytes * batch * m * (n + k)
        cached_bytes = cached_bytes + size_bytes * (1 - miss_share(size_bytes, device))
    return cached_bytes


def cached_weight_bytes(kernels: Kernel | Rows, device: Device, copies: int) -> Any:
    """Return the bytes of weights in the last cache when a kernel cycles through `copies` of them.

    A benchmark that repeats a kernel uses several copies of the weights in turn.
    """
    element_bytes = SIZE_BYTES.get(kernels.dtype, NARROW_BYTES)
    cached_bytes: Any = 0
    for batch, m, n, k in kernels.products:
        weight_bytes = element_bytes * batch * n * k
        activation_bytes = element_bytes * batch * m * (n + k)
        # A benchmark that repeats a kernel cycles through copies of its weights.
        working_set_bytes = copies * weight_bytes + activation_bytes
        hit_share = 1 - miss_share(working_set_bytes, device)
        cached_bytes = cached_bytes + weight_bytes * hit_share
    return cached_bytes


def products_s(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the seconds of the arithmetic of a kernel's products, one after the other."""
    return time_products(kernels, device, constants).compute_s


def time_products(kernels: Rows, device: Device, constants: Constants) -> ProductTime:
    """Return the arithmetic of a kernel's products, one after the other.

    Libraries offer batches of products fewer tiles than single products, and split the contraction
    of single products alone.
    """
    compute_s: Any = 0.0
    flop: Any = 0.0
    dtype = computed_as(kernels, device)
    is_along_contraction = kernels.kind == "linear"  # of both operands, in memory
    # Only layers by themselves have the figures that `adapt_to_engine` gives.
    is_single_op = is_along_contraction and len(kernels.figures) > 0
    for shape in kernels.products:
        time = time_product(device, constants, dtype, shape, is_along_contraction, is_single_op)
        seconds = time.compute_s / _alignment_share(kernels, shape, device, constants)
        seconds = seconds / _transposition_share(kernels, dtype, device, constants)
        compute_s = compute_s + seconds
        flop = flop + time.flop
    return ProductTime(compute_s, flop)


def _alignment_share(kernels: Rows, shape: Shape, device: Device, constants: Constants) -> Any:
    """Return the share of its rate that a product on matrix units keeps, by its rows' alignment.

    Libraries read and write 16 bytes at once where each row begins at a multiple of 16 bytes. Rows
    of operands and of the result are n and k long, or m and n in a product whose first operand is
    transposed (gradients of weights). Rows that begin at odd multiples of 2 bytes are copied number
    by number (`product.odd`), others in pieces of 4 and 8 bytes (`product.uneven`). Both constants
    depend on the architecture.
    """
    dtype = computed_as(kernels, device)
    runs_on_tensor_cores = is_nvidia(device) and has_matrix_units(device, dtype)
    if not runs_on_tensor_cores or dtype not in HALVES:
        return 1.0
    # Rows are loaded in vectors if each begins at a multiple of one, else number by number.
    _, m, n, k = shape
    operand_row = m if kernels.transposed else k
    result_row = n
    vector_elements = VECTOR_BYTES // SIZE_BYTES[dtype]
    is_odd = (result_row % 2 == 1) | (operand_row % 2 == 1)
    is_uneven = (result_row % vector_elements > 0) | (operand_row % vector_elements > 0)
    loader = operand_loader(device)
    uneven_share = np.where(is_uneven, constants[f"product.uneven_{loader}"], 1.0)
    return np.where(is_odd, constants[f"product.odd_{loader}"], uneven_share)


def _transposition_share(kernels: Rows, dtype: str, device: Device, constants: Constants) -> float:
    """Return the share of its rate that a product in TF32 keeps if its operands lie across.

    Matrix units to which tensors are copied transpose operands of 16 bits alone (PTX ISA, wgmma:
    imm-trans-a). TF32 operands have to lie along the contraction, as in the forward pass of a
    linear layer; its gradients run on the instructions of earlier devices.
    """
    # Tensor copies transpose operands of 16 bits alone. In TF32 only a linear layer's forward
    # pass has its operands along the contraction; other products run on slower instructions.
    is_across = dtype == "tf32" and kernels.kind != "linear"
    if is_across and is_nvidia(device) and operand_loader(device) == "tensor":
        return constants["product.across_tensor"]
    return 1.0


def operand_loader(device: Device) -> str:
    """Return the way operands come to matrix units: copies of a `tensor`, or `threads`."""
    return "tensor" if has_trait(device, "copied_tensors") else "threads"


def time_product(
    device: Device,
    constants: Constants,
    dtype: str,
    shape: Shape,
    is_along_contraction: bool = False,
    is_single_op: bool = False,
) -> ProductTime:
    """Return the arithmetic of one product, or of one batch of products.

    Args:
        device: the device.
        constants: the constants of its calibration.
        dtype: the type that is computed in.
        shape: batch, m, n and k; numbers or arrays.
        is_along_contraction: whether both operands lie along the contraction.
        is_single_op: whether it is a layer by itself, which runs by the kernels of an engine.
    """
    units = _find_units(device, constants, dtype, is_along_contraction, is_single_op)
    # Arrays may hold single products and batches.
    is_batch = shape[0] > 1
    if np.all(is_batch):
        return time_fastest_tile(shape, units, in_batch=True)
    if not np.any(is_batch):
        return time_fastest_tile(shape, units, in_batch=False)
    batch = time_fastest_tile(shape, units, in_batch=True)
    single = time_fastest_tile(shape, units, in_batch=False)
    return ProductTime(
        np.where(is_batch, batch.compute_s, single.compute_s),
        np.where(is_batch, batch.flop, single.flop),
    )


def _find_units(
    device: Device, constants: Constants, dtype: str, is_along_contraction: bool, is_single_op: bool
) -> Units:
    """Return the units that multiply numbers of a type on a device."""
    if has_matrix_units(device, dtype):
        return _matrix_units(device, constants, dtype, is_single_op)
    return _vector_units(device, constants, dtype, is_along_contraction)


def _matrix_units(device: Device, constants: Constants, dtype: str, is_single_op: bool) -> Units:
    """Return tensor or matrix cores with their tiles."""
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    peak = device.datasheet.peak_flop_per_s[dtype]
    # The slower a multiprocessor is, the less its units wait for numbers.
    relative_speed = min(1.0, peak / multiprocessors / REFERENCE_FLOP_PER_S)
    # The uses of an operand by a tile at which half of the rate is reached.
    half_reuse = constants["product.tensor_half_reuse"] * relative_speed
    # Squared, since each step of a slow one lasts longer: its ramp is shorter in seconds, too.
    ramp_steps = constants["product.tensor_ramp"] * relative_speed**2
    flop_per_s = _matrix_flop_per_s(peak, half_reuse, device, constants)
    batch_share = 1.0 if is_nvidia(device) else constants["product.amd_batched"]
    library = _choose_library(device, constants, dtype, is_single_op)
    tiles = list_tiles("matrix")
    single_tiles = time_tiles(
        tuple((rows, columns) for _, rows, columns in library.set_tiles) or tiles,
        multiprocessors,
        flop_per_s,
        half_reuse,
        ramp_steps=ramp_steps,
        sharing=PAIR if library.is_persistent else 1,  # multiprocessors that share an operand
    )
    if library.set_tiles:
        single_tiles = limit_tiles(single_tiles, library.set_tiles)
    batch_tiles = time_tiles(
        tiles, multiprocessors, flop_per_s * batch_share, half_reuse, ramp_steps=ramp_steps
    )
    return Units(
        single_tiles=single_tiles,
        batch_tiles=batch_tiles,
        multiprocessors=multiprocessors,
        memory_bytes_per_s=memory_rate(device, constants),
        sum_s=latency_s(device, constants, "product.sum_s"),
        # Matrix units multiply `step` columns of the contraction in a turn: the seconds of one.
        turn_s=latency_s(device, constants, "product.tensor_turn_s") / library.step,
        step=library.step,
        splits=library.splits,
        is_persistent=library.is_persistent,
        has_set_tiles=bool(library.set_tiles),
    )


class _MatrixLibrary(NamedTuple):
    """The kernels for matrix units that a stack brings; see `Units`.

    Attributes:
        step: columns of the contraction that are multiplied in a turn.
        splits: whether the contraction of single products may be split.
        is_persistent: whether blocks of threads stay, and pairs of them share an operand.
        set_tiles: tiles that single products take by their rows; () for the fastest tile.
    """

    step: int
    splits: bool
    is_persistent: bool
    set_tiles: SetTiles


def _choose_library(
    device: Device, constants: Constants, dtype: str, is_single_op: bool
) -> _MatrixLibrary:
    """Return the kernels for products of a type.

    CUTLASS kernels for 8 bit, which some stacks bring (`kernels.unsplit`), split no contraction.
    Layers by themselves take their tiles by the rows of the product in these kernels, and run by
    persistent kernels in 16 bit, in which pairs of multiprocessors share an operand. Steps have
    neither: their constants were fitted with waves of the fastest tiles.
    """
    family = family_of(device)
    is_unsplit = dtype == "float8" and bool(constants.get("kernels.unsplit"))
    has_persistent = bool(constants.get("kernels.persistent")) and dtype in HALVES
    return _MatrixLibrary(
        step=UNSPLIT_STEP if is_unsplit else contraction_step(family),
        splits=not is_unsplit,
        is_persistent=is_single_op and has_persistent and has_trait(device, "copied_tensors"),
        set_tiles=list_set_tiles(family) if is_unsplit and is_single_op else (),
    )


def _matrix_flop_per_s(
    peak: float, half_reuse: float, device: Device, constants: Constants
) -> float:
    """Return the rate of matrix units if numbers were used without end.

    `peak` is the datasheet's. The share of it is stated for the largest tile, the first of the
    list: `time_tiles` divides by the same factor of each tile.
    """
    largest_tile, *_ = list_tiles("matrix")
    flop_per_s = peak * library_share(device, constants)
    flop_per_s *= constants["product.tensor_share"]
    if has_trait(device, "game_card"):
        flop_per_s *= constants["product.geforce"]
    return flop_per_s * (1 + half_reuse / reuse(largest_tile))


def _vector_units(
    device: Device, constants: Constants, dtype: str, is_along_contraction: bool
) -> Units:
    """Return the vector units of multiprocessors with their tiles."""
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    half_reuse = constants["product.half_reuse"]
    flop_per_s = _vector_flop_per_s(device, constants, dtype)
    # The share of the peak is stated for the largest tile, whose reuse is taken out here.
    flop_per_s *= 1 + half_reuse / reuse(LARGEST_TILE)
    ramp_s = latency_s(device, constants, "product.ramp_s")
    # Old libraries have other tiles ("along") for operands that lie along the contraction; "alone"
    # are the tiles of other single products, "batched" those of batches.
    has_other_tiles = is_along_contraction and has_trait(device, "old")
    single_tiles = list_tiles("along" if has_other_tiles else "alone")
    batch_tiles = list_tiles("batched", family_of(device))
    return Units(
        single_tiles=time_tiles(
            single_tiles, multiprocessors, flop_per_s, half_reuse, ramp_s=ramp_s
        ),
        batch_tiles=time_tiles(batch_tiles, multiprocessors, flop_per_s, half_reuse, ramp_s=ramp_s),
        multiprocessors=multiprocessors,
        memory_bytes_per_s=memory_rate(device, constants),
        sum_s=latency_s(device, constants, "product.sum_s"),
        turn_s=latency_s(device, constants, "product.turn_s"),
    )


def _vector_flop_per_s(device: Device, constants: Constants, dtype: str) -> float:
    """Return the rate that products reach on vector units with the largest tile."""
    flop_per_s = device.datasheet.peak_flop_per_s[dtype] * library_share(device, constants)
    if has_trait(device, "old") and dtype in HALVES:  # frameworks ask for sums in float32
        flop_per_s = device.datasheet.vector_flop_per_s.get("float32", flop_per_s)
    flop_per_s *= constants["product.share"]
    if has_trait(device, "kepler"):
        flop_per_s *= constants["product.kepler"]
    return flop_per_s * issue_share(device, constants)


def issue_share(device: Device, constants: Constants) -> float:
    """Return the share of its peak that schedulers leave to long arithmetic on vector units."""
    issues_singly = has_trait(device, "one_issued")
    if issues_singly and _lanes(device) > MAX_ISSUED_LANES:
        return constants["product.issue"]
    return 1.0


def _lanes(device: Device) -> float:
    """Return the multiply-adds of a multiprocessor in a clock; 0 if its clock is unknown."""
    if not device.datasheet.clock_hz or not device.datasheet.multiprocessors:
        return 0.0
    peak = device.datasheet.vector_flop_per_s.get("float32", 0.0)
    return peak / (2 * device.datasheet.clock_hz * device.datasheet.multiprocessors)

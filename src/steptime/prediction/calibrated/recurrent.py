"""Recurrent layers on GPUs, as cuDNN runs them: all inputs at once, then step after step.

Appleyard, Kocisky, Blunsom 2016, "Optimizing Performance of Recurrent Neural Networks on GPUs".
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from steptime.core.dtypes import SIZE_BYTES
from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import (
    CLOCK_HZ,
    MULTIPROCESSORS,
    Constants,
    TimeParts,
    memory_rate,
    miss_share,
)
from steptime.prediction.calibrated.product import products_s
from steptime.prediction.calibrated.tiles import Shape
from steptime.prediction.kernels import Rows, computed_as

REGISTER_BYTES = 256 * 1024  # of a multiprocessor, which may keep weights from step to step
BLOCK_WIDTH = 128  # of the state, of which float16 kernels with resident weights take multiples
BLOCK_ROWS = 8  # likewise of the batch
MAX_BLOCK_ROWS = 128  # the largest batch of such kernels


class _Weights(NamedTuple):
    """The recurrent weights of a layer.

    Attributes:
        size_bytes: their bytes.
        flop: FLOP of all products with them.
        memory_s: seconds of reading them from memory at every step; 0 if the cache holds them.
    """

    size_bytes: Any
    flop: Any
    memory_s: Any


def recurrent(kernels: Rows, device: Device, constants: Constants) -> TimeParts:
    """Return the time of a recurrent layer, or of its gradient.

    A step is a product of the state (two with a projection), which reads the weights again unless
    the last cache holds them, and a pause until the next step can begin. The product of all inputs,
    or its gradient, runs beside the steps as far as these leave room; the gradients of the other
    weights run after the steps. From Volta on, weights that fit into the registers of all
    multiprocessors may stay resident, if the stack asks for it (`Execution.register_width`): one
    kernel runs all steps at a share of the peak, with shorter pauses. In any case inputs, outputs
    and saved gates pass the memory, as far as the last cache does not hold them.
    """
    # Products: of all inputs, then of the steps; a gradient has as many again for the weights.
    is_gradient = kernels.kind.endswith("_grad")
    step_product_end = len(kernels.products) // (2 if is_gradient else 1)
    # The first product of each half, of all inputs, is left out: it runs beside the steps.
    step_products = kernels.products[1:step_product_end]
    final_products = kernels.products[step_product_end + 1 :]
    steps, _, _, _ = step_products[0]  # a product for each step, as a batch
    weights = _describe_weights(kernels, step_products, device, constants)
    peak = device.datasheet.peak_flop_per_s[computed_as(kernels, device)]
    memory_bytes_per_s = memory_rate(device, constants)
    moved_s = kernels.bytes * miss_share(kernels.bytes, device) / memory_bytes_per_s
    final_s = products_s(kernels._replace(products=final_products), device, constants)

    chain_s = sum(_step_s(kernels, shape[1:], device, constants) * steps for shape in step_products)
    pauses_s = steps * len(step_products) * constants["recurrent.step_s"]
    memory_bound_s = np.maximum(weights.memory_s, moved_s)
    # Streaming: each step reads the weights again. Resident: they stay in registers.
    streaming_s = np.maximum(chain_s + final_s, memory_bound_s) + pauses_s

    resident_chain_s = weights.flop / (peak * constants["recurrent.kept_share"])
    resident_pauses_s = steps * len(step_products) * constants["recurrent.kept_s"]
    resident_s = np.maximum(resident_chain_s + final_s, moved_s) + resident_pauses_s

    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    has_room = weights.size_bytes <= REGISTER_BYTES * multiprocessors
    is_resident = (resident_s < streaming_s) & has_room & (not has_trait(device, "old"))
    is_resident = is_resident & _asks_for_residence(kernels, step_products[0])
    compute_s = np.where(is_resident, resident_chain_s, chain_s) + final_s
    return TimeParts(
        compute_s=np.maximum(compute_s, kernels.flop / peak),
        memory_s=np.maximum(np.where(is_resident, 0.0, weights.memory_s), moved_s),
        gap_s=np.where(is_resident, resident_pauses_s, pauses_s),
    )


def _describe_weights(
    kernels: Rows, step_products: Sequence[Shape], device: Device, constants: Constants
) -> _Weights:
    """Return the recurrent weights of a layer, from the products of its steps."""
    element_bytes = SIZE_BYTES[kernels.dtype]
    steps, *_ = step_products[0]  # one product is stated for all steps, as a batch of them
    size_bytes = sum(element_bytes * n * k for _, _, n, k in step_products)
    flop = sum(2.0 * steps * m * n * k for _, m, n, k in step_products)
    exceeds_cache = size_bytes > (device.datasheet.l2_bytes or 0)
    read_bytes = steps * size_bytes * exceeds_cache  # in each step again, or never
    return _Weights(size_bytes, flop, read_bytes / memory_rate(device, constants))


def _step_s(kernels: Rows, shape: tuple[Any, ...], device: Device, constants: Constants) -> Any:
    """Return the seconds of a product of the state, m rows of k, by weights [n, k].

    A few rows are multiplied as vectors: each weight is read once, from the last cache or memory.
    On GPUs before Volta, products in float32 of few rows are not split along the contraction.
    """
    m, n, k = shape
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    clock_hz = device.datasheet.clock_hz or CLOCK_HZ
    # Libraries for old devices run products of some numbers of rows as one block along the whole
    # contraction, which takes a fixed number of clocks for each of its k columns.
    has_unsplit_kernel = has_trait(device, "old") and kernels.dtype == "float32"
    is_above_split = m > constants["recurrent.split_rows"]
    fits_block = m <= constants["recurrent.block_rows"]
    is_unsplit = is_above_split * fits_block * has_unsplit_kernel  # may be arrays
    unsplit_s = is_unsplit * k * constants["recurrent.block_clocks"] / clock_hz
    tiles_s = products_s(kernels._replace(products=((1, m, n, k),)), device, constants)
    cache_bytes_per_s = constants["stream.cached_bytes"] * multiprocessors * clock_hz
    read_s = SIZE_BYTES[kernels.dtype] * n * k / cache_bytes_per_s
    # A few rows are multiplied as vectors: each weight is read once.
    is_vector = m <= constants["recurrent.thin_rows"]
    vector_s = np.minimum(read_s, tiles_s)
    matrix_s = np.maximum(tiles_s, unsplit_s)
    return np.where(is_vector, vector_s, matrix_s)


def _asks_for_residence(kernels: Rows, step_product: Shape) -> Any:
    """Return whether a stack has the library keep the weights of such a state in registers."""
    # The stack sets no limit.
    if not kernels.figures:
        return True
    # By convention: the widths up to which weights stay in registers (`Execution.register_width`).
    max_width, max_half_width = kernels.figures
    _, rows, _, width = step_product
    fills_blocks = (width % BLOCK_WIDTH == 0) & (rows % BLOCK_ROWS == 0) & (rows <= MAX_BLOCK_ROWS)
    is_half = kernels.dtype == "float16"
    return (width <= max_width) | (is_half & fills_blocks & (width <= max_half_width))

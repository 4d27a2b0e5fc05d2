"""Recurrent layers on GPUs, as cuDNN runs them: all inputs at once, then step after step.

Appleyard, Kocisky, Blunsom 2016, "Optimizing Performance of Recurrent Neural Networks on GPUs".
"""

from collections.abc import Sequence
from functools import partial
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


class _Products(NamedTuple):
    """The matrix products of a recurrent layer, by when they run.

    Attributes:
        of_steps: those of each step, one after the other; each stated as a batch of all steps.
        final: those of a gradient for its weights, after the last step; none forward.
    """

    of_steps: tuple[Shape, ...]
    final: tuple[Shape, ...]

    @property
    def step_count(self) -> Any:
        """Steps of the layer."""
        step_count, *_ = self.of_steps[0]
        return step_count

    @property
    def pause_count(self) -> Any:
        """Pauses: each product of a step waits for the one before."""
        return self.step_count * len(self.of_steps)


class _StepLoop(NamedTuple):
    """The seconds of all steps of a layer, one after the other, by one sort of kernel.

    Attributes:
        compute_s: the products of the steps.
        memory_s: reading weights, inputs and saved gates, beside the products.
        pauses_s: pauses until the next step can begin.
    """

    compute_s: Any
    memory_s: Any
    pauses_s: Any

    def total_s(self, final_s: Any) -> Any:
        """Return the seconds of the loop and of `final_s` of arithmetic behind it."""
        return np.maximum(self.compute_s + final_s, self.memory_s) + self.pauses_s


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
    products = _split_products(kernels)
    weights = _describe_weights(kernels, products.of_steps, device, constants)
    streaming = _stream_weights(kernels, products, weights, device, constants)
    resident = _keep_weights(kernels, products, weights, device, constants)
    final_s = products_s(kernels._replace(products=products.final), device, constants)
    is_faster = resident.total_s(final_s) < streaming.total_s(final_s)
    is_resident = is_faster & _can_stay_resident(kernels, products, weights, device)
    loop = _StepLoop._make(map(partial(np.where, is_resident), resident, streaming))
    peak = device.datasheet.peak_flop_per_s[computed_as(kernels, device)]
    return TimeParts(
        # The product of all inputs runs beside the loop: together at least all FLOP at the peak.
        compute_s=np.maximum(loop.compute_s + final_s, kernels.flop / peak),
        memory_s=loop.memory_s,
        gap_s=loop.pauses_s,
    )


def _stream_weights(
    kernels: Rows, products: _Products, weights: _Weights, device: Device, constants: Constants
) -> _StepLoop:
    """Return the steps of kernels that read the weights at each step."""
    compute_s = sum(
        _step_s(kernels, shape[1:], device, constants) * products.step_count
        for shape in products.of_steps
    )
    return _StepLoop(
        compute_s=compute_s,
        memory_s=np.maximum(weights.memory_s, _traffic_s(kernels, device, constants)),
        pauses_s=products.pause_count * constants["recurrent.step_s"],
    )


def _keep_weights(
    kernels: Rows, products: _Products, weights: _Weights, device: Device, constants: Constants
) -> _StepLoop:
    """Return the steps of a kernel that keeps the weights in registers from the first step on."""
    peak = device.datasheet.peak_flop_per_s[computed_as(kernels, device)]
    return _StepLoop(
        compute_s=weights.flop / (peak * constants["recurrent.kept_share"]),
        memory_s=_traffic_s(kernels, device, constants),
        pauses_s=products.pause_count * constants["recurrent.kept_s"],
    )


def _traffic_s(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the seconds of inputs, outputs and saved gates that pass the memory."""
    missed_bytes = kernels.bytes * miss_share(kernels.bytes, device)
    return missed_bytes / memory_rate(device, constants)


def _split_products(kernels: Rows) -> _Products:
    """Return the products of a layer by when they run; the product of all inputs is in neither.

    `kernels.products` has the product of all inputs, then those of the steps. A gradient has all
    of them twice: for the inputs, then for the weights.
    """
    is_gradient = kernels.kind.endswith("_grad")
    step_product_end = len(kernels.products) // (2 if is_gradient else 1)
    return _Products(
        of_steps=kernels.products[1:step_product_end],
        final=kernels.products[step_product_end + 1 :],
    )


def _can_stay_resident(
    kernels: Rows, products: _Products, weights: _Weights, device: Device
) -> Any:
    """Return whether the registers of all multiprocessors can hold the weights of the steps."""
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    has_room = weights.size_bytes <= REGISTER_BYTES * multiprocessors
    has_kernels = not has_trait(device, "old")
    asks_for_residence = _asks_for_residence(kernels, products.of_steps[0])
    return has_room & has_kernels & asks_for_residence


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
    """
    m, n, k = shape
    tiles_s = products_s(kernels._replace(products=((1, m, n, k),)), device, constants)
    matrix_s = np.maximum(tiles_s, _unsplit_s(kernels, m, k, device, constants))
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    clock_hz = device.datasheet.clock_hz or CLOCK_HZ
    cache_bytes_per_s = constants["stream.cached_bytes"] * multiprocessors * clock_hz
    read_s = SIZE_BYTES[kernels.dtype] * n * k / cache_bytes_per_s
    vector_s = np.minimum(read_s, tiles_s)
    is_vector = m <= constants["recurrent.thin_rows"]
    return np.where(is_vector, vector_s, matrix_s)


def _unsplit_s(kernels: Rows, m: Any, k: Any, device: Device, constants: Constants) -> Any:
    """Return the seconds of one block along the whole contraction, 0 where none is used.

    On GPUs before Volta, libraries run products in float32 of some numbers of rows so. It takes a
    fixed number of clocks for each of its k columns.
    """
    clock_hz = device.datasheet.clock_hz or CLOCK_HZ
    has_unsplit_kernel = has_trait(device, "old") and kernels.dtype == "float32"
    is_above_split = m > constants["recurrent.split_rows"]
    fits_block = m <= constants["recurrent.block_rows"]
    is_unsplit = is_above_split * fits_block * has_unsplit_kernel  # may be arrays
    return is_unsplit * k * constants["recurrent.block_clocks"] / clock_hz


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

"""The time of kernels on a CPU: PyTorch's eager operators, oneDNN's convolutions, a BLAS.

Rates are those of one core; kind and size of a kernel decide the number of cores that work on it.
The sources of the figures stand beside the constants (`data/priors/cpu.toml`).
"""

from typing import Any

import numpy as np

from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import Constants, Form, TimeParts
from steptime.prediction.kernels import Rows

CLOCK_HZ = 3e9  # of a device whose file does not say
CACHE_BYTES = 32 * 2**20  # likewise, of its last cache
CORE_FLOP = 32  # of a core in a clock: two units of 8 numbers of float32, multiply and add
GRAIN_BYTES = 8 * 32_768  # read and written; ATen splits no op of fewer elements (GRAIN_SIZE)
UPDATE_OPS = {"sgd": 1, "momentum": 2, "rmsprop": 5, "adam": 8, "adamw": 9}  # torch, of a weight
# Arithmetic that no vector unit hides: the constant that has its cycles of a counted FLOP.
CYCLES_CONSTANT_OF_KIND = {
    "batch_norm": "vector.batch_norm_cycles",
    "batch_norm_grad": "vector.batch_norm_grad_cycles",
    **dict.fromkeys(("max_pool2d", "max_pool2d_grad"), "vector.max_pool_cycles"),
    **dict.fromkeys(("avg_pool2d", "avg_pool2d_grad"), "vector.avg_pool_cycles"),
    "tanh": "vector.tanh_cycles",
    "dropout": "vector.random_cycles",
    **dict.fromkeys(("softmax", "softmax_grad", "cross_entropy"), "vector.row_cycles"),
    **dict.fromkeys(("log_softmax_grad", "layer_norm", "layer_norm_grad"), "vector.row_cycles"),
    "rms_norm": "vector.row_cycles",
    "rms_norm_grad": "vector.composite_cycles",
    "embedding_grad": "vector.scatter_cycles",
}


def cores_of(device: Device) -> int:
    """Return the number of cores that a device's peak implies, where its file does not say it."""
    peak = device.datasheet.peak_flop_per_s.get("float32", 0.0)
    return max(1, round(peak / CORE_FLOP / (device.datasheet.clock_hz or CLOCK_HZ)))


def working_cores(device: Device, share: float, is_large: Any = 1) -> Any:
    """Return the cores that work on a kernel: all at a share of 1, one if it is not large."""
    return 1 + ((device.datasheet.cores or 1) - 1) * share * is_large


def core_flop_per_s(kernels: Rows, device: Device) -> float:
    """Return the peak of one core."""
    return device.datasheet.peak_flop_per_s[kernels.dtype] / (device.datasheet.cores or 1)


def cache_bytes(device: Device, cores: Any) -> Any:
    """Return the bytes of the last cache that a number of cores reaches together.

    The cores of an AMD processor share an L3 by groups (CCX), and a core reaches that of its own
    group alone. Kernels are spread evenly over all groups, so that cores reach their share of all
    L3, and at least that of one group. Where the file says no L3, it is the last cache that a
    calibration measured, else 32 MiB.
    """
    l3_bytes = device.datasheet.l3_bytes  # of all groups of cores together
    if l3_bytes is None:
        return device.datasheet.l2_bytes or CACHE_BYTES
    group_bytes = device.datasheet.l3_of_core_bytes or l3_bytes
    proportional_bytes = l3_bytes * cores / (device.datasheet.cores or 1)
    return np.maximum(group_bytes, proportional_bytes)


def traffic_s(moved_bytes: Any, cores: Any, device: Device, constants: Constants) -> Any:
    """Return the seconds in which cores move bytes from the last cache, or from memory.

    Well within the cache each core moves `stream.cache_bytes_per_s`; well beyond it each moves
    `stream.core_bytes_per_s`, as long as the memory's rate is enough for all. In between the share
    that comes from memory is w / (1 + w), where w is the squared ratio of bytes to cache.
    """
    usable_cache_bytes = constants["stream.cache_share"] * cache_bytes(device, cores)
    fill = moved_bytes / usable_cache_bytes
    # A smooth step: 0 well within the cache, half where the bytes just fill it, 1 well beyond.
    memory_share = fill * fill / (1 + fill * fill)
    cache_s = moved_bytes / (constants["stream.cache_bytes_per_s"] * cores)
    memory_s = np.maximum(
        moved_bytes / (constants["stream.memory_share"] * device.datasheet.memory_bytes_per_s),
        moved_bytes / (constants["stream.core_bytes_per_s"] * cores),
    )
    extra_s = np.maximum(memory_s - cache_s, 0.0)  # memory is never quicker than the cache
    return cache_s + memory_share * extra_s


def gap_s(kernels: Rows, cores: Any, constants: Constants) -> Any:
    """Return the seconds of calling a kernel's operators, and of the new pages of its output.

    A call records the gradient function, too, and wakes the other cores. The cores that work on a
    kernel map and zero its pages.
    """
    new_page_bytes = kernels.fresh
    pages_s = new_page_bytes * constants["stream.page_s_per_byte"] / cores
    has_cores_to_wake = cores > 1  # may be an array, of batches
    start_s = pages_s + constants["launch.fork_s"] * has_cores_to_wake
    if kernels.pass_ == "update":
        # PyTorch calls the optimizer's ops for each weight, and gathers its gradient once.
        ops_s = constants["launch.update_s"] * UPDATE_OPS.get(kernels.kind, 1)
        return start_s + ops_s + constants["launch.weight_s"]
    call_s = constants[f"launch.{kernels.pass_}_s"]
    # A recurrent op is one call for all of its serial steps.
    return start_s + call_s * kernels.launches / kernels.serial


def stream(kernels: Rows, device: Device, constants: Constants) -> TimeParts:
    """Return the time of a kernel without products: cycles by kind, and traffic by cache."""
    is_split_over_cores = kernels.bytes > GRAIN_BYTES  # ATen runs a smaller op on one core
    cores = working_cores(device, constants["parallel.stream"], is_split_over_cores)
    cycles_per_s = cores * (device.datasheet.clock_hz or CLOCK_HZ)
    cycles_per_flop = constants[CYCLES_CONSTANT_OF_KIND.get(kernels.kind, "vector.cycles")]
    return TimeParts(
        compute_s=kernels.flop * cycles_per_flop / cycles_per_s,
        memory_s=traffic_s(kernels.bytes, cores, device, constants),
        gap_s=gap_s(kernels, cores, constants),
    )


def products_s(
    kernels: Rows, cores: Any, device: Device, constants: Constants, share: float
) -> Any:
    """Return the seconds of products, whose share of the peak falls with short sides."""
    flop_per_s = core_flop_per_s(kernels, device) * share * cores
    # A fitted padding of each side: the shorter a side, the less of the peak it reaches.
    padding = constants["product.side"]
    return sum(
        2.0 * batch * (m + padding) * (n + padding) * (k + padding) / flop_per_s
        for batch, m, n, k in kernels.products
    )


def product(kernels: Rows, device: Device, constants: Constants) -> TimeParts:
    """Return the time of matrix products, for which a library first packs its operands."""
    cores = working_cores(device, constants["parallel.product"])
    compute_s = products_s(kernels, cores, device, constants, constants["product.share"])
    memory_s = traffic_s(kernels.bytes, cores, device, constants)
    packing_s = constants["product.packing"] * memory_s
    return TimeParts(compute_s, memory_s, gap_s(kernels, cores, constants) + packing_s)


def attention(kernels: Rows, device: Device, constants: Constants) -> TimeParts:
    """Return the time of fused attention, which computes masked scores, too."""
    cores = working_cores(device, constants["parallel.product"])
    share = constants[f"attention.{kernels.pass_}"]
    compute_s = products_s(kernels, cores, device, constants, share)
    memory_s = traffic_s(kernels.bytes, cores, device, constants)
    return TimeParts(compute_s, memory_s, gap_s(kernels, cores, constants))


def convolution(kernels: Rows, device: Device, constants: Constants) -> TimeParts:
    """Return the time of a convolution in a blocked layout, to which its tensors are copied.

    Each side of its product is padded by a constant, so that short sides reach less of the peak.
    """
    cores = working_cores(device, constants["parallel.convolution"])
    flop_per_s = core_flop_per_s(kernels, device) * constants["convolution.share"] * cores
    is_weight_gradient = kernels.kind == "conv2d_grad_weight"
    compute_s: Any = 0.0
    for groups, m, n, k in kernels.products:
        # The gradient of weights sums over the positions.
        positions, filters, taps = (k, m, n) if is_weight_gradient else (m, n, k)
        # Fitted paddings: the shorter a side, the less of the peak it reaches.
        padded_positions = positions + constants["convolution.rows"]
        padded_filters = filters + constants["convolution.side"]
        padded_taps = taps + constants["convolution.window"]
        padded_volume = padded_positions * padded_filters * padded_taps
        compute_s = compute_s + 2.0 * groups * padded_volume / flop_per_s
    memory_s = traffic_s(kernels.bytes, cores, device, constants)
    # Tensors are copied to a blocked layout and back.
    copies_s = constants["convolution.copies"] * memory_s
    call_s = constants["convolution.call_s"] + gap_s(kernels, cores, constants)
    return TimeParts(compute_s, memory_s, call_s + copies_s)


def recurrent(kernels: Rows, device: Device, constants: Constants) -> TimeParts:
    """Return the time of a recurrent layer: its products, and the gates of each step."""
    cell = kernels.kind.removesuffix("_grad")
    cores = working_cores(device, constants["parallel.recurrent"])
    # An LSTM runs in oneDNN, other cells in the BLAS.
    share = constants["recurrent.lstm_share" if cell == "lstm" else "product.share"]
    compute_s = products_s(kernels, cores, device, constants, share)
    _input_product, state_product, *_ = kernels.products
    steps, examples, columns, contraction = state_product
    is_forward = kernels.kind == cell
    # The gates are the columns of the state's product; backward they are its contraction.
    gate_width = columns if is_forward else contraction
    gate_elements = examples * gate_width * steps
    gate_cycles = gate_elements * constants[f"recurrent.{cell}_cycles"]
    gates_s = gate_cycles / (device.datasheet.clock_hz or CLOCK_HZ)
    steps_s = kernels.serial * constants[f"recurrent.{cell}_step_s"]
    backward_factor = 1 if is_forward else constants["recurrent.backward"]
    serial_s = backward_factor * (gates_s + steps_s)
    memory_s = traffic_s(kernels.bytes, cores, device, constants)
    return TimeParts(compute_s, memory_s, gap_s(kernels, cores, constants) + serial_s)


FORMS: dict[str, Form] = {
    "product": product,
    "stream": stream,
    "convolution": convolution,
    "attention": attention,
    "recurrent": recurrent,
}

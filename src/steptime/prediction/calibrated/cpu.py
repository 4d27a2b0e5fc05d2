"""What kernels take on a CPU: PyTorch's eager operators, oneDNN's convolutions, a BLAS.

Rates are those of one core; a kernel is spread over the cores that its kind and size let work.
Where the figures come from is said beside the constants (`data/priors/cpu.toml`).
"""

from typing import Any

import numpy as np

from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import Constants, Form, Parts
from steptime.prediction.kernels import Rows

CLOCK_HZ = 3e9  # of a device whose file does not say
CACHE_BYTES = 32 * 2**20  # likewise, of its last cache
CORE_FLOP = 32  # of a core in a clock: two units of 8 numbers of float32, multiply and add
GRAIN_BYTES = 8 * 32_768  # read and written; ATen splits no op of fewer elements (GRAIN_SIZE)
UPDATE_OPS = {"sgd": 1, "momentum": 2, "rmsprop": 5, "adam": 8, "adamw": 9}  # torch, of a weight
CYCLES = {  # arithmetic that no vector unit hides: the constant, in cycles a counted FLOP
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
    """Return the cores that a peak needs, of a device whose file does not say them."""
    peak = device.peak_flop_per_s.get("float32", 0.0)
    return max(1, round(peak / CORE_FLOP / (device.clock_hz or CLOCK_HZ)))


def at_work(device: Device, share: float, large: Any = 1) -> Any:
    """Return the cores that work on a kernel: all at a share of 1, one where it is not `large`."""
    return 1 + ((device.cores or 1) - 1) * share * large


def core_flop_per_s(kernels: Rows, device: Device) -> float:
    """Return the peak of one core."""
    return device.peak_flop_per_s[kernels.dtype] / (device.cores or 1)


def cache_bytes(device: Device, cores: Any) -> Any:
    """Return the last cache that some cores reach together.

    The cores of an AMD processor share an L3 by groups (CCX), of which one core reaches its own
    alone: kernels are spread over all groups alike, so that so many cores reach their share of all
    L3, and at least that of one group. Where the file says no L3, it is the last cache that a
    calibration found, else 32 MiB.
    """
    if device.l3_bytes is None:
        return device.l2_bytes or CACHE_BYTES
    of_core = device.l3_of_core_bytes or device.l3_bytes
    return np.maximum(of_core, device.l3_bytes * cores / (device.cores or 1))


def moved_s(moved: Any, cores: Any, device: Device, constants: Constants) -> Any:
    """Return the seconds in which some cores move bytes that lie in the last cache or beyond it.

    Well within the cache each core moves `stream.cache_bytes_per_s`; well beyond it each moves
    `stream.core_bytes_per_s`, as long as the memory's rate is enough for all. In between the share
    that comes from memory is w / (1 + w), w the square of the bytes over the cache's.
    """
    filled = moved / (constants["stream.cache_share"] * cache_bytes(device, cores))
    outside = filled * filled / (1 + filled * filled)
    core = moved / (constants["stream.cache_bytes_per_s"] * cores)
    memory = np.maximum(
        moved / (constants["stream.memory_share"] * device.memory_bytes_per_s),
        moved / (constants["stream.core_bytes_per_s"] * cores),
    )
    return core + outside * np.maximum(memory - core, 0 * core)


def gap_s(kernels: Rows, cores: Any, constants: Constants) -> Any:
    """Return the seconds of calling a kernel's operators, and of the new pages of its output.

    Calls include the records of gradients, and to wake the other cores; those that work on the
    kernel map and zero its pages.
    """
    pages = kernels.fresh * constants["stream.page_s_per_byte"] / cores
    begun = pages + constants["launch.fork_s"] * (cores > 1)
    if kernels.pass_ == "update":
        own = constants["launch.update_s"] * UPDATE_OPS.get(kernels.kind, 1)
        return begun + own + constants["launch.weight_s"]
    return begun + constants[f"launch.{kernels.pass_}_s"] * kernels.launches / kernels.serial


def stream(kernels: Rows, device: Device, constants: Constants) -> Parts:
    """Return the seconds of a kernel without products: cycles by kind, and bytes by cache."""
    cores = at_work(device, constants["parallel.stream"], kernels.bytes > GRAIN_BYTES)
    rate = cores * (device.clock_hz or CLOCK_HZ)
    name = CYCLES.get(kernels.kind, "vector.cycles")
    compute = kernels.flop * constants[name] / rate
    memory = moved_s(kernels.bytes, cores, device, constants)
    return Parts(compute, memory, gap_s(kernels, cores, constants))


def products_s(
    kernels: Rows, cores: Any, device: Device, constants: Constants, share: float
) -> Any:
    """Return the seconds of products, whose share of the peak falls with short sides."""
    rate = core_flop_per_s(kernels, device) * share * cores
    side = constants["product.side"]
    return sum(
        2.0 * batch * (m + side) * (n + side) * (k + side) / rate
        for batch, m, n, k in kernels.products
    )


def product(kernels: Rows, device: Device, constants: Constants) -> Parts:
    """Return the seconds of matrix products, for which a library first packs its operands."""
    cores = at_work(device, constants["parallel.product"])
    compute = products_s(kernels, cores, device, constants, constants["product.share"])
    memory = moved_s(kernels.bytes, cores, device, constants)
    packing = constants["product.packing"] * memory
    return Parts(compute, memory, gap_s(kernels, cores, constants) + packing)


def attention(kernels: Rows, device: Device, constants: Constants) -> Parts:
    """Return the seconds of fused attention; what a causal mask leaves out is computed too."""
    cores = at_work(device, constants["parallel.product"])
    share = constants[f"attention.{kernels.pass_}"]
    compute = products_s(kernels, cores, device, constants, share)
    memory = moved_s(kernels.bytes, cores, device, constants)
    return Parts(compute, memory, gap_s(kernels, cores, constants))


def convolution(kernels: Rows, device: Device, constants: Constants) -> Parts:
    """Return the seconds of a convolution in a blocked layout, to which its tensors are copied."""
    cores = at_work(device, constants["parallel.convolution"])
    rate = core_flop_per_s(kernels, device) * constants["convolution.share"] * cores
    rows, side = constants["convolution.rows"], constants["convolution.side"]
    window, compute = constants["convolution.window"], 0.0
    for groups, m, n, k in kernels.products:
        places, filters, taps = (k, m, n) if kernels.kind == "conv2d_grad_weight" else (m, n, k)
        padded = (places + rows) * (filters + side) * (taps + window)
        compute = compute + 2.0 * groups * padded / rate
    copied = moved_s(kernels.bytes, cores, device, constants)
    copies = constants["convolution.copies"] * copied
    gap = constants["convolution.call_s"] + gap_s(kernels, cores, constants)
    return Parts(compute, copied, gap + copies)


def recurrent(kernels: Rows, device: Device, constants: Constants) -> Parts:
    """Return the seconds of a recurrent layer: its products, and the gates of each step."""
    cell = kernels.kind.removesuffix("_grad")
    cores = at_work(device, constants["parallel.recurrent"])
    share = constants["recurrent.lstm_share" if cell == "lstm" else "product.share"]
    compute = products_s(kernels, cores, device, constants, share)
    batch, m, n, k = kernels.products[1]
    is_forward = kernels.kind == cell
    state = m * (n if is_forward else k) * batch  # elements of all gates
    gates = state * constants[f"recurrent.{cell}_cycles"] / (device.clock_hz or CLOCK_HZ)
    steps = kernels.serial * constants[f"recurrent.{cell}_step_s"]
    memory = moved_s(kernels.bytes, cores, device, constants)
    twice = 1 if is_forward else constants["recurrent.backward"]
    gap = gap_s(kernels, cores, constants)
    return Parts(compute, memory, gap + twice * (gates + steps))


FORMS: dict[str, Form] = {
    "product": product,
    "stream": stream,
    "convolution": convolution,
    "attention": attention,
    "recurrent": recurrent,
}

"""Kernels that move bytes: elementwise ops, softmax, norms, pools, copies, optimizers."""

from typing import Any

import numpy as np

from steptime.core.dtypes import SIZE_BYTES
from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import (
    CLOCK_HZ,
    MULTIPROCESSORS,
    Constants,
    TimeParts,
    ceil,
    latency_s,
    memory_rate,
    miss_share,
    vector_rate,
)
from steptime.prediction.kernels import Rows

ENGINE_CALLS = {  # kinds that stand for several kernels of an engine: the constant of their calls
    "scale": "kernels.scale_s",
    "route": "kernels.experts_s",
}
REDUCING = {  # kinds that reduce rows: the constant for the share of bytes that is read again
    **dict.fromkeys(
        ("softmax", "softmax_grad", "cross_entropy", "log_softmax_grad"), "stream.softmax_again"
    ),
    **dict.fromkeys(("layer_norm", "rms_norm"), "stream.norm_again"),
}


def stream(kernels: Rows, device: Device, constants: Constants) -> TimeParts:
    """Return the time of a kernel that is limited by its traffic, its rows, or its arithmetic.

    Every kernel waits `stream.latency_s` for its first bytes. A multiprocessor reduces
    `stream.reduced_bytes` of rows a clock; rows that the last cache does not hold while they are
    worked on are read from memory again (`_reread_share`). Bytes that all fit into the last cache
    come from there at `stream.cached_bytes` a clock and multiprocessor, if that is faster.
    """
    peak = vector_rate(device, kernels.dtype)
    compute_s = kernels.flop / (peak * constants["stream.flop_share"])
    kernel_bytes: Any = kernels.bytes + _remote_row_bytes(kernels, device, constants)
    moved_bytes = kernel_bytes
    if kernels.kind in REDUCING:
        compute_s = compute_s + _reduction_s(kernels, device, constants)
        moved_bytes = moved_bytes * (1 + _reread_share(kernels, device, constants))
    wait_s = latency_s(device, constants, "stream.latency_s") * (kernels.bytes > 0)
    if kernels.kind in ENGINE_CALLS:
        wait_s = wait_s + latency_s(device, constants, ENGINE_CALLS[kernels.kind])
    if kernels.kind == "cast" and kernels.figures:
        compute_s = compute_s + _cast_rows_s(kernels, device, constants)
    memory_s = moved_bytes * _byte_s(kernel_bytes, device, constants) + wait_s
    return TimeParts(compute_s, memory_s, constants["launch.gap_s"] * kernels.launches)


def _reduction_s(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the seconds of reducing rows, such as those of a softmax or a norm."""
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    clock_hz = device.datasheet.clock_hz or CLOCK_HZ
    reduced_bytes_per_s = constants["stream.reduced_bytes"] * multiprocessors * clock_hz
    return kernels.bytes / reduced_bytes_per_s


def _byte_s(working_set_bytes: Any, device: Device, constants: Constants) -> Any:
    """Return the mean seconds of moving a byte: from the last cache if it hits, or from memory."""
    datasheet = device.datasheet
    memory_bytes_per_s = memory_rate(device, constants)
    cache_bytes_per_s = 0.0  # of an unknown cache
    if datasheet.l2_bytes and datasheet.clock_hz:
        multiprocessors = datasheet.multiprocessors or MULTIPROCESSORS
        cache_bytes_per_s = constants["stream.cached_bytes"] * multiprocessors * datasheet.clock_hz
    is_cache_faster = cache_bytes_per_s > memory_bytes_per_s
    memory_share = miss_share(working_set_bytes, device) if is_cache_faster else 1.0
    hit_bytes_per_s = max(cache_bytes_per_s, memory_bytes_per_s)
    return 1 / hit_bytes_per_s * (1 - memory_share) + memory_share / memory_bytes_per_s


def _remote_row_bytes(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the bytes that a layer of experts moves for rows of other ranks' experts.

    Triton's grouped kernels (`kernels.remote_rows`) write zeros for these rows, activate and sum
    them. They have operands of 8 and 16 bit. FlashInfer's leave such rows out; some stacks take
    these (`kernels.flashinfer_experts`) from Blackwell on, and in 8 bit on Hopper.
    """
    if kernels.kind != "route" or not constants.get("kernels.remote_rows"):
        return 0.0
    remote_bytes, operand_bytes = kernels.figures
    is_triton = operand_bytes >= SIZE_BYTES["int8"]
    if constants.get("kernels.flashinfer_experts"):
        is_blackwell = has_trait(device, "flashinfer_experts")
        is_hopper_or_later = has_trait(device, "copied_tensors")
        is_8_bit = operand_bytes < SIZE_BYTES["bfloat16"]
        is_triton = is_triton & (not is_blackwell) & np.logical_not(is_hopper_or_later & is_8_bit)
    return np.where(is_triton, remote_bytes, 0.0)


def _cast_rows_s(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the seconds of blocks of threads that each find the scale of a row and cast it.

    300 rows of 4,096 numbers on 100 multiprocessors take three times `kernels.cast_row_s`, and
    three times 4,096 `kernels.cast_number_s`.
    """
    rows, width = kernels.figures
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    row_s = latency_s(device, constants, "kernels.cast_row_s")
    number_s = latency_s(device, constants, "kernels.cast_number_s")
    return ceil(rows, multiprocessors) * row_s + rows * width / multiprocessors * number_s


def _reread_share(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the share of its bytes that a kernel of rows reads from memory a second time.

    Each multiprocessor works on `stream.rows_running` rows at once: 16 rows of 1 MB on each of 10
    are a working set of 160 MB, of which a cache of 40 MB holds next to nothing. Rows of softmax up
    to `stream.kept_row` elements stay in registers; of longer rows that many elements are in work.
    """
    reread_constant = REDUCING[kernels.kind]  # the share that would be read again without a cache
    row_elements = kernels.row
    is_in_registers: Any = False
    if reread_constant == "stream.softmax_again":
        max_elements = constants["stream.kept_row"]
        is_in_registers = row_elements <= max_elements
        row_elements = np.minimum(row_elements, max_elements)
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    row_bytes = row_elements * SIZE_BYTES[kernels.dtype]
    # Rows that are worked on at once: the cache keeps as many of them as it has room for.
    working_set_bytes = constants["stream.rows_running"] * multiprocessors * row_bytes
    share = constants[reread_constant] * miss_share(working_set_bytes, device)
    return share * np.logical_not(is_in_registers)

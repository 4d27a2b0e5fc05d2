"""Attention as one kernel, which keeps its scores on the chip."""

from typing import Any

from steptime.core.dtypes import HALVES
from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Device
from steptime.prediction.calibrated.engine_attention import engine_attention, runs_engine_kernels
from steptime.prediction.calibrated.form import (
    MULTIPROCESSORS,
    Constants,
    TimeParts,
    ceil,
    padded_width,
    stream_s,
)
from steptime.prediction.calibrated.product import product
from steptime.prediction.kernels import Rows


def attention(kernels: Rows, device: Device, constants: Constants) -> TimeParts:
    """Return the time of a fused attention kernel, forward or backward.

    Stacks of inference may bring kernels of their own (`engine_attention.py`). Without them it is
    FlashAttention-2 in half precision from Ampere on, else PyTorch's memory-efficient kernel. The
    FLOP are those that the stack executes: half under a causal mask.
    """
    if runs_engine_kernels(kernels, device, constants):
        return engine_attention(kernels, device, constants)
    memory_s = stream_s(kernels.bytes, device, constants)
    gap_s = constants["launch.gap_s"] * kernels.launches
    # FlashAttention has kernels in half precision alone, and from Ampere on.
    if kernels.dtype not in HALVES or has_trait(device, "unfused"):
        compute_s = _memory_efficient_s(kernels, device, constants)
    else:
        compute_s = _flash_s(kernels, device, constants)
    return TimeParts(compute_s, memory_s, gap_s)


def _memory_efficient_s(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the arithmetic of PyTorch's memory-efficient kernel.

    It computes its products at a share of the rate of matrix products.
    """
    full_flop: Any = 0.0
    for batch, m, n, k in kernels.products:
        full_flop = full_flop + 2.0 * batch * m * n * k
    full_products_s = product(kernels, device, constants).compute_s
    # `kernels.flop` leaves out the scores that a mask hides. These kernels skip them as well, and
    # reach a share `attention.plain` of the rate of products.
    speedup = constants["attention.plain"] * full_flop / kernels.flop
    return full_products_s / speedup


def _flash_s(kernels: Rows, device: Device, constants: Constants) -> Any:
    """Return the arithmetic of FlashAttention-2: a share of the peak of matrix units.

    The exponential of a score takes as long as `attention.softmax` more columns of the head would.
    Thread blocks of `attention.queries` rows run in waves over the multiprocessors.
    """
    is_backward = kernels.kind == "attention_grad"
    # The first product has the scores forward, `[queries x keys x width]`, and the gradient of the
    # values backward, `[keys x width x queries]`. Thread blocks divide its rows in both.
    batch, rows, columns, contraction = kernels.products[0]
    width = columns if is_backward else contraction
    # Devices of later architectures, and those of AMD, reach another share of the peak: the kernels
    # were written for neither.
    has_untuned_kernels = has_trait(device, "copied_tensors") or has_trait(device, "amd")
    share = constants["attention.share_new" if has_untuned_kernels else "attention.share"]
    if is_backward:
        share = share * constants["attention.backward"]
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    blocks = batch * ceil(rows, constants["attention.queries"])
    # The last wave of thread blocks is not full, but takes as long as a full one.
    wave_padding = ceil(blocks, multiprocessors) * multiprocessors / blocks
    # The exponential of a score takes as long as so many more columns of the head.
    executed_width = padded_width(width) + constants["attention.softmax"]
    executed_flop = kernels.flop * wave_padding * executed_width / width
    return executed_flop / (device.datasheet.peak_flop_per_s[kernels.dtype] * share)

"""Attention as one kernel, which keeps its scores on the chip."""

from itertools import pairwise
from typing import Any

import numpy as np

from steptime.core.dtypes import HALVES
from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import (
    MULTIPROCESSORS,
    Constants,
    TimeParts,
    ceil,
    stream_s,
)
from steptime.prediction.calibrated.product import product
from steptime.prediction.kernels import Rows

WIDTHS = (32, 64, 96, 128, 160, 192, 224, 256)  # of heads that FlashAttention has kernels for


def _padded_width(width: Any) -> Any:
    """Return the width of heads with which the kernel runs: 64 for 40.

    Source: flash-attention, csrc/flash_attn/src/static_switch.h, HEADDIM_SWITCH.
    """
    padded = width + 0.0
    for smaller, wider in pairwise((0, *WIDTHS)):
        padded = np.where((width > smaller) & (width < wider), wider, padded)
    return padded


def attention(kernels: Rows, device: Device, constants: Constants) -> TimeParts:
    """Return the time of a fused attention kernel, forward or backward.

    In half precision from Ampere on that is FlashAttention-2, else PyTorch's memory-efficient
    kernel. The FLOP are those that the stack executes: half under a causal mask.
    """
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
    counted_flop: Any = 0.0
    for batch, m, n, k in kernels.products:
        counted_flop = counted_flop + 2.0 * batch * m * n * k
    products = product(kernels, device, constants)
    share = constants["attention.plain"] * counted_flop / kernels.flop
    return products.compute_s / share


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
    # Such devices reach another share, since the kernels were written for earlier ones.
    has_untuned_kernels = has_trait(device, "copied_tensors") or has_trait(device, "amd")
    share = constants["attention.share_new" if has_untuned_kernels else "attention.share"]
    if is_backward:
        share = share * constants["attention.backward"]
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    blocks = batch * ceil(rows, constants["attention.queries"])
    # The last wave of thread blocks is not full, but takes as long as a full one.
    wave_padding = ceil(blocks, multiprocessors) * multiprocessors / blocks
    # The exponential of a score takes as long as so many more columns of the head.
    executed_width = _padded_width(width) + constants["attention.softmax"]
    executed_flop = kernels.flop * wave_padding * executed_width / width
    return executed_flop / (device.datasheet.peak_flop_per_s[kernels.dtype] * share)

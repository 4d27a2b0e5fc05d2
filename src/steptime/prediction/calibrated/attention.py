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
    Parts,
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


def attention(kernels: Rows, device: Device, constants: Constants) -> Parts:
    """Return the seconds of an attention kernel, forward or backward.

    In half precision from Ampere on that is FlashAttention-2: a share of the peak, of which the
    exponentials of a score take as much as `attention.softmax` more columns of the head would;
    thread blocks of `attention.queries` run in waves. In other types, and on older devices,
    PyTorch's memory-efficient kernel computes the products at a share of what matrix products take.
    The FLOP are those that the stack executes: half under a causal mask.
    """
    memory = stream_s(kernels.bytes, device, constants)
    gap = constants["launch.gap_s"] * kernels.launches
    counted: Any = 0.0
    for b, m, n, k in kernels.products:
        counted = counted + 2.0 * b * m * n * k
    if kernels.dtype not in HALVES or has_trait(device, "unfused"):
        found = product(kernels, device, constants)
        share = constants["attention.plain"] * counted / kernels.flop
        return Parts(found.compute_s / share, memory, gap)
    batch, length, keys, width = kernels.products[0]
    fills_part = has_trait(device, "copied_tensors") or device.maker == "AMD"
    share = constants["attention.share_new" if fills_part else "attention.share"]
    if kernels.kind == "attention_grad":
        keys, width = width, keys
        share = share * constants["attention.backward"]
    padded = _padded_width(width)
    units = device.multiprocessors or MULTIPROCESSORS
    blocks = batch * ceil(length, constants["attention.queries"])
    idle = ceil(blocks, units) * units / blocks
    work = kernels.flop * idle * (padded + constants["attention.softmax"]) / width
    return Parts(work / (device.peak_flop_per_s[kernels.dtype] * share), memory, gap)

"""Recurrent layers on GPUs, as cuDNN runs them: what it can at once, then step after step.

Appleyard, Kocisky, Blunsom 2016, "Optimizing Performance of Recurrent Neural Networks on GPUs".
"""

from typing import Any

import numpy as np

from steptime.core.dtypes import SIZE_BYTES
from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import (
    CLOCK_HZ,
    MULTIPROCESSORS,
    Constants,
    Parts,
    memory_rate,
    miss_share,
)
from steptime.prediction.calibrated.product import products_s
from steptime.prediction.kernels import Rows, computed_as

PAUSES = ("recurrent.step_s", "recurrent.kept_s")
REGISTER_BYTES = 256 * 1024  # of a multiprocessor, which may keep weights from step to step


def recurrent(kernels: Rows, device: Device, constants: Constants) -> Parts:
    """Return the seconds of a recurrent layer, or of its gradient.

    A step is a product of the state (two with a projection), which reads the weights again unless
    the last cache holds them, and a pause until the next one can begin. The product of all inputs
    runs beside the steps as far as these leave room, and so does its gradient; those of the other
    weights come after. From Volta on, weights that the registers of all multiprocessors hold may
    stay there, if the stack asks for that (`Execution.kept`): one kernel runs all steps at a share
    of the peak, with shorter pauses. In any case inputs, outputs and saved gates pass the memory,
    as far as the last cache does not hold them.
    """
    count = len(kernels.products) // (2 if kernels.kind.endswith("_grad") else 1)
    each, after = kernels.products[1:count], kernels.products[count + 1 :]
    steps, units = each[0][0], device.multiprocessors or MULTIPROCESSORS
    chain = sum(_step_s(kernels, one[1:], device, constants) * steps for one in each)
    weights = sum(SIZE_BYTES[kernels.dtype] * n * k for _, _, n, k in each)
    flop = sum(2.0 * steps * m * n * k for _, m, n, k in each)
    peak = device.peak_flop_per_s[computed_as(kernels, device)]
    again = steps * weights * (weights > (device.l2_bytes or 0)) / memory_rate(device, constants)
    pauses, resident_pauses_s = (steps * len(each) * constants[name] for name in PAUSES)
    kept = flop / (peak * constants["recurrent.kept_share"])
    moved_s = kernels.bytes * miss_share(kernels.bytes, device) / memory_rate(device, constants)
    after_s = products_s(kernels._replace(products=after), device, constants)
    resident_s = np.maximum(kept + after_s, moved_s) + resident_pauses_s
    chain_s = np.maximum(np.maximum(chain + after_s, again), moved_s) + pauses
    stays = (
        (resident_s < chain_s)
        & (weights <= REGISTER_BYTES * units)
        & (not has_trait(device, "old"))
    )
    stays = stays & _may_stay(kernels, *each[0][1:])
    compute = np.maximum(np.where(stays, kept, chain) + after_s, kernels.flop / peak)
    memory = np.maximum(np.where(stays, 0.0, again), moved_s)
    return Parts(compute, memory, np.where(stays, resident_pauses_s, pauses))


def _step_s(kernels: Rows, shape: tuple[Any, ...], device: Device, constants: Constants) -> Any:
    """Return the seconds of a product of the state, which is m rows of k, by weights [n, k].

    A few rows are vectors: each weight is read once, from the last cache or from memory.
    """
    m, n, k = shape
    units, clock_hz = device.multiprocessors or MULTIPROCESSORS, device.clock_hz or CLOCK_HZ
    least, most = constants["recurrent.split_rows"], constants["recurrent.block_rows"]
    in_block = (m > least) * (m <= most) * (has_trait(device, "old") and kernels.dtype == "float32")
    unsplit = in_block * k * constants["recurrent.block_clocks"] / clock_hz
    tiled = products_s(kernels._replace(products=((1, m, n, k),)), device, constants)
    read = SIZE_BYTES[kernels.dtype] * n * k / (constants["stream.cached_bytes"] * units * clock_hz)
    is_thin = m <= constants["recurrent.thin_rows"]
    return np.where(is_thin, np.minimum(read, tiled), np.maximum(tiled, unsplit))


def _may_stay(kernels: Rows, rows: Any, _: Any, width: Any) -> Any:
    """Return whether a stack has the library keep the weights of a state of this width."""
    if not kernels.figures:
        return True
    kept, kept_half = kernels.figures
    in_blocks = (width % 128 == 0) & (rows % 8 == 0) & (rows <= 128)
    is_half = kernels.dtype == "float16"
    return (width <= kept) | (is_half & in_blocks & (width <= kept_half))

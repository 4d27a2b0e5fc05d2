"""By how much the predictions of ops are off on a CPU, as its standard ops show.

`steptime calibrate` times ops in standard sizes. ln(measured / predicted) of one is its residual;
an op of a trace has the mean residual of the standard ops of its kind, in which those of its size
weigh most (Shepard 1968). Threads, instructions and types of numbers act on each kind and size
differently, which no ceiling shows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from steptime.calibration.traces.kernels import kernels_of
from steptime.hardware.device import Device
from steptime.prediction.kernel import Settings
from steptime.prediction.prices import Floats
from steptime.records.traces.standard_ops import list_standard_ops
from steptime.records.traces.traced_ops import ATEN, OpKey

NEAR = 0.3  # distance of sizes [ln], within which standard ops weigh alike
PLAIN = "mul"  # stands for ops that move bytes, and have no standard op of their own
SIMILAR = {  # ops without standard ones of their own: the standard ones that run alike
    "addmm": "linear",
    "baddbmm": "bmm",
    **dict.fromkeys(("copy", "contiguous", "to", "_to_copy"), "clone"),
    **dict.fromkeys(("stack", "concat"), "cat"),
    **dict.fromkeys(("zeros_like", "fill", "ones_like", "new_zeros"), "zero_"),
    **dict.fromkeys(("clamp_min", "hardtanh", "leaky_relu"), "relu"),
    **dict.fromkeys(("sigmoid", "silu"), "tanh"),
    **dict.fromkeys(("native_dropout", "normal", "uniform"), "bernoulli_"),
    "adaptive_avg_pool2d": "mean",
    "_adaptive_avg_pool2d": "mean",
    "nll_loss": "nll_loss_forward",
    "_softmax_backward_data": "_softmax",
    "_log_softmax_backward_data": "_log_softmax",
}

Price = Callable[[Sequence[OpKey]], Sequence[float]]  # seconds of ops by the method alone


class _KindResiduals(NamedTuple):
    """The residuals of the standard ops of one kind, with the sizes of each [ln]."""

    sizes: Floats
    residuals: Floats


class OpResiduals:
    """The residuals of the standard ops of a device, for one data type."""

    def __init__(self, times_s: Mapping[str, float], dtype: str, price: Price) -> None:
        """Price the standard ops that were measured.

        Args:
            times_s: their seconds, by label.
            dtype: the floating type that they ran in.
            price: returns the seconds of ops by the method alone.
        """
        self._dtype = dtype
        ops = [op for op in list_standard_ops() if op.label in times_s]
        keys = [op.make_key(dtype) for op in ops]
        samples: dict[tuple[str, int], list[tuple[Floats, float]]] = {}
        for op, key, price_s in zip(ops, keys, price(keys), strict=True):
            sizes = _find_sizes(key, dtype)
            residual = float(np.log(times_s[op.label] / price_s))
            samples.setdefault((op.name, len(sizes)), []).append((sizes, residual))
        self._kinds = {
            kind: _KindResiduals(
                np.array([sizes for sizes, _ in rows]), np.array([residual for _, residual in rows])
            )
            for kind, rows in samples.items()
        }

    def find(self, key: OpKey) -> float | None:
        """Return the residual of an op; None where no standard op is like it."""
        sizes = _find_sizes(key, self._dtype)
        name = key.name.removeprefix(ATEN)
        bare_name = name.rstrip("_")
        names = (name, bare_name, f"{bare_name}_", SIMILAR.get(bare_name, PLAIN), PLAIN)
        for candidate in names:
            kind = self._kinds.get((candidate, len(sizes)))
            if kind is not None:
                squared_distances = ((kind.sizes - sizes) ** 2).sum(axis=1)
                weights = (squared_distances + NEAR**2) ** -2
                return float(np.average(kind.residuals, weights=weights))
        return None


def read_residuals(device: Device, dtype: str, price: Price) -> OpResiduals | None:
    """Return the residuals of a device for a data type; None where its file has no such times."""
    times_s = device.measured.get("ops", {}).get(dtype)
    return OpResiduals(times_s, dtype, price) if times_s else None


def _find_sizes(key: OpKey, dtype: str) -> Floats:
    """Return the sizes of an op [ln]: those of its product, or the bytes that it moves."""
    kernels = kernels_of(key, dtype, Settings())
    first_kernel = kernels[0]
    sizes: Sequence[float] = [sum(kernel.bytes for kernel in kernels)]
    if first_kernel.products:
        # A recurrent layer's first product is that of all inputs, the second that of a state.
        is_serial = first_kernel.serial > 1 and len(first_kernel.products) > 1
        sizes = first_kernel.products[1 if is_serial else 0]
    logarithms: Floats = np.log(np.maximum(1.0, np.array(sizes, dtype=float)))
    return logarithms

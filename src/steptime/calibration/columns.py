"""Many cases of a device at once: kernels side by side as arrays, priced by the same forms."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steptime.calibration.cases import Case
from steptime.core.hardware import Device
from steptime.predict.calibrated.form import Constants
from steptime.predict.calibrated.method import price
from steptime.predict.kernel import Kernel, Settings
from steptime.predict.price import seen

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class _Block:
    """Kernels that differ in numbers alone: one kernel of arrays, and the case of each."""

    kernel: Kernel
    case: Any  # indices


class Columns:
    """The cases of one device, ready to be priced again and again under other constants."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        self.device: Device = seen_fully(cases[0].device)
        self.seconds: Floats = np.array([case.seconds for case in cases])
        self._isolated = np.array([case.condition == "isolated" for case in cases])
        blocks: dict[Any, tuple[list[Kernel], list[int]]] = {}
        for i, case in enumerate(cases):
            for kernel in case.kernels:
                alike = kernel._replace(
                    op="",
                    flop=0,
                    bytes=0,
                    tensors=(),
                    products=(),
                    after=(),
                    window=kernel.window and (0,) * 6,
                )
                kernels, places = blocks.setdefault((alike, len(kernel.products)), ([], []))
                kernels.append(kernel)
                places.append(i)
        self._blocks = [
            _Block(_stacked(kernels), np.array(places)) for kernels, places in blocks.values()
        ]

    def predicted(self, constants: Constants) -> Floats:
        """Return the seconds of each case under these constants."""
        device = replace(self.device, constants=constants)
        total: Floats = np.zeros(len(self.cases))
        for block in self._blocks:
            value: Any = price(block.kernel, device, np.maximum).value
            np.add.at(total, block.case, np.broadcast_to(value, block.case.shape))
        return total + self._isolated * constants["launch.isolated_s"]


def seen_fully(device: Device) -> Device:
    """Return a device as kernels find it at its first peak: those of all types are filled in."""
    dtype = "float32" if "float32" in device.peak_flop_per_s else next(iter(device.peak_flop_per_s))
    return seen(device, dtype, Settings())


def _stacked(kernels: Sequence[Kernel]) -> Kernel:
    """Return kernels that differ in numbers alone as one kernel of arrays."""
    products: Any = np.array([one.products for one in kernels], dtype=float)
    windows: Any = kernels[0].window and np.array([one.window for one in kernels], dtype=float).T
    return kernels[0]._replace(
        flop=np.array([one.flop for one in kernels], dtype=float),  # type: ignore[arg-type]
        bytes=np.array([one.bytes for one in kernels], dtype=float),  # type: ignore[arg-type]
        products=tuple(
            tuple(products[:, i, j] for j in range(4)) for i in range(products.shape[1])
        ),
        window=None if windows is None else tuple(windows),
    )

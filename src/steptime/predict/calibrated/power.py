"""The power cap: what a device may draw bounds how fast it works for long."""

from typing import Any

from steptime.core.hardware import Device
from steptime.predict.calibrated.form import Constants
from steptime.predict.kernel import Kernel, Larger

NODE_NM = 16  # of the process in which energies are stated
UNKNOWN_NM = 7  # of a device whose file does not say


def dynamic_j(kernel: Kernel, flop: Any, device: Device, constants: Constants) -> Any:
    """Return the joules that a kernel takes beyond those of a device that waits.

    They are `power.flop_j` for a FLOP outside of matrix units at 16 nm, less at smaller nodes by
    `power.node`, and `power.byte_j` for a byte.
    """
    node = ((device.process_nm or UNKNOWN_NM) / NODE_NM) ** constants["power.node"]
    return flop * constants["power.flop_j"] * node + kernel.bytes * constants["power.byte_j"]


def capped_s(
    kernel: Kernel, flop: Any, pause_s: Any, device: Device, constants: Constants, larger: Larger
) -> Any:
    """Return the least seconds in which a device may spend the energy of a kernel, 0 if not known.

    At 100 W, of which it draws 20 waiting, 8 J take 0.1 s. During a `pause_s` beside each kernel
    the device works as little as it may, which leaves more for the kernel.
    """
    if device.peak_w is None:
        return 0.0
    budget_w = device.peak_w * (1 - constants["power.idle"])
    return larger(dynamic_j(kernel, flop, device, constants) / budget_w - pause_s, 0.0)

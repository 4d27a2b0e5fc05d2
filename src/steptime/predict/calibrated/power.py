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
    kernel: Kernel,
    compute_s: Any,
    pause_s: Any,
    device: Device,
    constants: Constants,
    larger: Larger,
) -> Any:
    """Return the least seconds in which a device may spend a kernel's energy, 0 if not known.

    At 100 W, of which it draws 20 waiting, 8 J take 0.1 s. In the `pause_s` that it rests beside
    the kernel, it saves for it. What takes `compute_s` at the peak is no more arithmetic than the
    peak allows: Winograd's is less than counted.
    """
    if device.peak_w is None:
        return 0.0
    executed = -larger(-kernel.flop, -compute_s * device.peak_flop_per_s[kernel.dtype])
    budget_w = device.peak_w * (1 - constants["power.idle"])
    return larger(dynamic_j(kernel, executed, device, constants) / budget_w - pause_s, 0.0)

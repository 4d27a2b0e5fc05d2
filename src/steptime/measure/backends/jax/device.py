"""Where JAX can run here: finding devices, what is known of them, their memory."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import jax

from steptime.core.errors import InputError, shorten
from steptime.measure import machine
from steptime.measure.contract import DeviceFacts, Peak

PLATFORMS = {"cpu": "cpu", "cuda": "cuda,cpu", "tpu": "tpu,cpu"}  # what is started for a device
_PEAK = "peak_bytes_in_use"


def find(name: str, count: int = 1) -> list[jax.Device]:
    """Return the device of `cpu`, `cuda[:n]` or `tpu[:n]`, or the first `count` of its kind.

    A CPU is as many devices as are asked for before it is first used. Raises `InputError` for less.
    """
    kind, colon, number = name.partition(":")
    if colon and count > 1:
        raise InputError(f"{shorten(name)} is one device; replicas run on '{kind}', one on each")
    if kind in PLATFORMS:
        jax.config.update("jax_platforms", PLATFORMS[kind])  # what was started stays
    if kind == "cpu" and count > 1:
        with contextlib.suppress(RuntimeError):  # it is in use, as so many devices as it has
            jax.config.update("jax_num_cpu_devices", count)
    try:
        found = jax.devices(kind) if kind in PLATFORMS else []
    except RuntimeError:
        found = []
    if kind == "cpu":
        found = found[: 0 if colon else count]
    first = int(number) if re.fullmatch(r"\d{1,6}", number) else 0 if not colon else len(found)
    if first + count <= len(found):
        return found[first : first + count]
    jax.config.update("jax_platforms", "cpu")
    here = ["cpu", *(f"{kind}:{n}" for n in range(len(found)) if kind != "cpu")]
    many = f"{count} x " if count > 1 else ""
    raise InputError(f"{many}{shorten(name)} is not available to jax; there is: {', '.join(here)}")


def facts(device: jax.Device) -> DeviceFacts:
    """Return what is known of the device."""
    if device.platform == "cpu":
        return machine.host_facts()
    stats = device.memory_stats() or {}
    limit, used = stats.get("bytes_limit"), stats.get("bytes_in_use", 0)
    capability = re.match(r"\d+", str(getattr(device, "compute_capability", "")))
    has_tf32 = device.platform == "tpu" or (capability is not None and int(capability[0]) >= 8)
    product = str(device.device_kind)
    return DeviceFacts(product, limit, limit and limit - used, None, True, has_tf32)


def memory_meter(device: jax.Device, compiled: Any) -> tuple[Peak, Callable[[], None]]:
    """Return what reads the peak bytes of a step and names the meter, and what starts it again.

    On a CPU, and on a device whose peak another network has made (JAX cannot set it back), the peak
    is what XLA has planned; None where it tells no plan.
    """
    before = 0

    def peak() -> int:
        return int((device.memory_stats() or {}).get(_PEAK, 0))

    def reset() -> None:
        nonlocal before
        before = peak()

    def read() -> tuple[int | None, str]:
        if (most := peak()) > before:
            return most, f"memory_stats, {_PEAK}"
        plan = compiled.memory_analysis()
        if plan is None:
            return None, "XLA tells no plan of its memory"
        made = plan.output_size_in_bytes + plan.temp_size_in_bytes - plan.alias_size_in_bytes
        meter = "XLA's plan: arguments, outputs and temporaries, what is donated once"
        return int(plan.argument_size_in_bytes + made), meter

    reset()
    return read, reset

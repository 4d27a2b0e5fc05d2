"""The settings that an answer assumed, as text: each by the option that changes it."""

from collections.abc import Iterable, Mapping
from typing import Any

from steptime.core.signatures.signature import option_name

MAX_DEVICE_NAMES = 3  # in the text of an assumption that devices share
_FIRST = (
    "stack",
    "channels_last",
    "tf32",
    "host",
    "dtype",
    "optimizer",
    "inside",
    "per_node",
    "link",
    "links_per_node",
)
"""The settings that a line of assumptions begins with, in this order."""


def assumed_text(assumed: Mapping[str, str]) -> str | None:
    """Return the options that say what is assumed: `--stack torch-eager, --tf32 auto`, or None."""
    names = [name for name in _FIRST if name in assumed]
    names += [name for name in assumed if name not in _FIRST]
    return ", ".join(f"{option_name(name)} {assumed[name]}" for name in names) or None


def assumed_row(assumed: Mapping[str, str]) -> list[tuple[str, Any]]:
    """Return the row of an answer with the assumed options, none where nothing is assumed."""
    text = assumed_text(assumed)
    return [("assumed", text)] if text else []


def assumed_line(texts: Iterable[tuple[str, str | None]]) -> list[str]:
    """Return one line of the assumed options of devices, none where nothing is assumed.

    Args:
        texts: a device and the text of what is assumed for it (`assumed_text`).
    """
    # Inner dictionaries are sets in order: several rows may have one device.
    devices_by_text: dict[str, dict[str, None]] = {}
    for device, text in texts:
        devices_by_text.setdefault(text or "", {})[device] = None
    needs_devices = len(devices_by_text) > 1  # they differ in their assumptions
    assumptions = []
    for text, devices in devices_by_text.items():
        if not text:
            continue
        names = ", ".join([*devices][:MAX_DEVICE_NAMES])
        unnamed_count = len(devices) - MAX_DEVICE_NAMES
        if unnamed_count > 0:
            names += f" and {unnamed_count} more"
        assumptions.append(f"{text} ({names})" if needs_devices else text)
    return [f"assumed: {'; '.join(assumptions)}"] if assumptions else []

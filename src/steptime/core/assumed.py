"""The settings that an answer assumed, as text: each by the option that changes it."""

from collections.abc import Iterable, Mapping
from typing import Any

MAX_DEVICE_NAMES = 3  # in the text of an assumption that devices share
_OPTIONS = {
    "stack": "--stack",
    "channels_last": "--channels-last",
    "tf32": "--tf32",
    "host": "--host",
    "dtype": "--dtype",
    "optimizer": "--optimizer",
    "inside": "--inside",
    "per_node": "--per-node",
    "link": "--link",
    "links_per_node": "--links-per-node",
}


def assumed_text(assumed: Mapping[str, str]) -> str | None:
    """Return the options that say what is assumed: `--stack torch-eager, --tf32 auto`, or None."""
    options = [f"{option} {assumed[name]}" for name, option in _OPTIONS.items() if name in assumed]
    return ", ".join(options) or None


def assumed_row(assumed: Mapping[str, str]) -> list[tuple[str, Any]]:
    """Return the row of an answer with the assumed options, none where nothing is assumed."""
    text = assumed_text(assumed)
    return [("assumed", text)] if text else []


def assumed_line(texts: Iterable[tuple[str, str | None]]) -> list[str]:
    """Return one line of the assumed options of devices, none where nothing is assumed.

    Args:
        texts: a device and the text of what is assumed for it (`assumed_text`).
    """
    by_text: dict[str, dict[str, None]] = {}
    for device, text in texts:
        by_text.setdefault(text or "", {})[device] = None
    parts = []
    for text, devices in by_text.items():
        names = ", ".join([*devices][:MAX_DEVICE_NAMES])
        if len(devices) > MAX_DEVICE_NAMES:
            names += f" and {len(devices) - MAX_DEVICE_NAMES} more"
        if text:
            parts.append(f"{text} ({names})" if len(by_text) > 1 else text)
    return [f"assumed: {'; '.join(parts)}"] if parts else []

"""The settings that decide a predicted time and were assumed, as values of their options."""

from collections.abc import Iterable, Mapping
from typing import Any

from steptime.prediction.calibrated.hosts import assumed_host
from steptime.prediction.step_model import StepModel

MAX_NAMED = 3  # devices that share what is assumed
_OPTIONS = {
    "stack": "--stack",
    "channels_last": "--channels-last",
    "tf32": "--tf32",
    "host": "--host",
}


def assumed_of(model: StepModel) -> dict[str, str]:
    """Return stack, layout of images, TF32 and host of a prediction, each as its option has it.

    A setting is left out where the method does not know it or the step does not depend on it.
    The same question with an option set to the value that stands here has the same answer.
    """
    known, kernels = model.method.options, model.lowered().kernels
    assumed = {"stack": model.settings.stack} if "stack" in known else {}
    images = [kernel for kernel in kernels if kernel.window and kernel.unit == "matrix"]
    if "channels_last" in known and images:
        is_last = any(kernel.channels_last for kernel in images)
        assumed["channels_last"] = "yes" if is_last else "no"
    products = [kernel for kernel in kernels if kernel.products and kernel.dtype == "float32"]
    if "tf32" in known and "tf32" in model.device.peak_flop_per_s and products:
        assumed["tf32"] = model.settings.tf32
        by_stack = "channels_last" in known and any(kernel.tf32 for kernel in products)
        if model.settings.tf32 == "auto" and not by_stack:
            assumed["tf32"] = "off"
    if "host" in known and not model.device.is_own_host and model.stack.host:
        assumed["host"] = model.settings.host_name or assumed_host(model.device)
    return assumed


def common_settings(settings: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the assumed settings of several predictions that do not contradict each other."""
    values: dict[str, set[str]] = {}
    for assumed in settings:
        for name, value in assumed.items():
            values.setdefault(name, set()).add(value)
    return {name: min(options) for name, options in values.items() if len(options) == 1}


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
        names = ", ".join([*devices][:MAX_NAMED])
        if len(devices) > MAX_NAMED:
            names += f" and {len(devices) - MAX_NAMED} more"
        if text:
            parts.append(f"{text} ({names})" if len(by_text) > 1 else text)
    return [f"assumed: {'; '.join(parts)}"] if parts else []

"""What decides a predicted time beside network and device, where nobody asked for it."""

from collections.abc import Iterable, Mapping
from typing import Any

from steptime.prediction.calibrated.hosts import usual_host
from steptime.prediction.step_model import StepModel

MOST_NAMED = 3  # devices that share what is assumed
_LAID = {"yes": "channels last", "no": "channels first"}


def assumed_of(model: StepModel) -> dict[str, str]:
    """Return stack, layout of images, TF32 and host that a prediction is of.

    Each only where the method knows of it, and the step has to do with it.
    """
    known, kernels = model.method.options, model.lowered().kernels
    found = {"stack": model.settings.stack} if "stack" in known else {}
    images = [one for one in kernels if one.window and one.unit == "matrix"]
    if "channels_last" in known and images:
        found["channels_last"] = "yes" if any(one.channels_last for one in images) else "no"
    if "tf32" in known and "tf32" in model.device.peak_flop_per_s:
        products = [one for one in kernels if one.products and one.dtype == "float32"]
        by_stack = "channels_last" in known and any(one.tf32 for one in products)
        if products:
            some = "convolutions" if by_stack else "no"
            found["tf32"] = "all products" if model.settings.tf32 == "on" else some
    if "host" in known and not model.device.is_own_host and model.stack.host:
        calibrated = "host.factor" in model.device.calibration.get("constants", {})
        usual = f"any {usual_host(model.device)}"
        found["host"] = model.settings.host_name or ("its own" if calibrated else usual)
    return found


def assumed_text(assumed: Mapping[str, str]) -> str | None:
    """Return what is assumed as people read it, None for nothing."""
    said = [assumed.get("stack"), _LAID.get(assumed.get("channels_last", ""))]
    if assumed.get("tf32", "no") != "no":
        said.append(f"TF32 in {assumed['tf32']}")
    if "host" in assumed:
        said.append(f"{assumed['host']} host")
    return ", ".join(filter(None, said)) or None


def assumed_row(assumed: Mapping[str, str]) -> list[tuple[str, Any]]:
    """Return the row of an answer that says what is assumed, none where nothing is."""
    return [("assumed", text)] if (text := assumed_text(assumed)) else []


def assumed_line(said: Iterable[tuple[str, str | None]]) -> list[str]:
    """Return a line of what is assumed for devices, each with its text; none where nothing is."""
    alike: dict[str, dict[str, None]] = {}
    for device, text in said:
        alike.setdefault(text or "", {})[device] = None
    words = []
    for text, devices in alike.items():
        more = f" and {len(devices) - MOST_NAMED} more" if len(devices) > MOST_NAMED else ""
        whose = f" ({', '.join([*devices][:MOST_NAMED])}{more})" if len(alike) > 1 else ""
        words += [text + whose] if text else []
    return [f"assumed: {'; '.join(words)}"] if words else []

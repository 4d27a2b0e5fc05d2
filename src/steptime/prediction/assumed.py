"""The settings that decide a predicted time and were assumed, as values of their options."""

from collections.abc import Iterable, Mapping

from steptime.hardware.defaults import assumed_step
from steptime.prediction.calibrated.hosts import assumed_host
from steptime.prediction.step_model import StepModel


def assumed_of(model: StepModel) -> dict[str, str]:
    """Return the assumed settings of a prediction, each as its option has it.

    They are stack, layout of images, TF32 and host, and data type and optimizer where nobody said
    them.

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
    if "host" in known and not model.device.is_cpu and model.stack.host:
        assumed["host"] = model.settings.host_name or assumed_host(model.device)
    return assumed | assumed_step(model.workload)


def common_settings(settings: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the assumed settings of several predictions that do not contradict each other."""
    values: dict[str, set[str]] = {}
    for assumed in settings:
        for name, value in assumed.items():
            values.setdefault(name, set()).add(value)
    return {name: min(options) for name, options in values.items() if len(options) == 1}

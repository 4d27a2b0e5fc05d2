"""The settings that decide a predicted time and were assumed, as values of their options."""

from collections.abc import Iterable, Mapping

from steptime.hardware.defaults import assumed_step
from steptime.prediction.calibrated.hosts import assumed_host
from steptime.prediction.steps.step_model import StepModel


def assumed_of(model: StepModel) -> dict[str, str]:
    """Return the assumed settings of a prediction, each as its option has it.

    They are stack, layout of images, TF32 and host, and data type and optimizer if the user named
    none. A setting is left out if the method does not know it or the step does not depend on it.
    The same question with an option set to the value that stands here has the same answer.
    """
    # A setting that is no option of the method plays no part in its prediction.
    options = model.method.options
    assumed = {"stack": model.settings.stack} if "stack" in options else {}
    if "channels_last" in options:
        assumed |= _image_layout(model)
    if "tf32" in options:
        assumed |= _tf32_setting(model)
    # A CPU is its own host; a stack without [host] has no time of one.
    if "host" in options and not model.device.is_cpu and model.stack.host:
        assumed["host"] = model.settings.host_name or assumed_host(model.device)
    return assumed | assumed_step(model.workload)


def _image_layout(model: StepModel) -> dict[str, str]:
    """Return the layout of images; nothing for a step without convolutions."""
    kernels = model.lower_step().kernels
    convolutions = [kernel for kernel in kernels if kernel.window and kernel.unit == "matrix"]
    if not convolutions:
        return {}
    is_channels_last = any(kernel.channels_last for kernel in convolutions)
    return {"channels_last": "yes" if is_channels_last else "no"}


def _tf32_setting(model: StepModel) -> dict[str, str]:
    """Return whether products run as TF32; nothing if the device or the step cannot."""
    kernels = model.lower_step().kernels
    products = [kernel for kernel in kernels if kernel.products and kernel.dtype == "float32"]
    if not products or "tf32" not in model.device.datasheet.peak_flop_per_s:
        return {}
    setting = model.settings.tf32
    # Methods that ignore the stack's layout (`channels_last`) ignore its TF32 setting as well.
    knows_stack = "channels_last" in model.method.options
    runs_as_tf32 = knows_stack and any(kernel.tf32 for kernel in products)
    # "auto" means TF32 only if the stack runs products so; else it is shown as "off".
    is_auto_off = setting == "auto" and not runs_as_tf32
    return {"tf32": "off" if is_auto_off else setting}


def common_settings(settings: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the assumed settings of several predictions that do not contradict each other."""
    values: dict[str, set[str]] = {}
    for assumed in settings:
        for name, value in assumed.items():
            values.setdefault(name, set()).add(value)
    return {name: min(options) for name, options in values.items() if len(options) == 1}

"""What the first step of a loop shows of its network, and the file that it is exported to."""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from steptime.core.workload import BASE_OPTIMIZERS, OPTIMIZERS

FLOAT_TYPES = ("float32", "float64", "bfloat16", "float16")
MAX_DEPTH = 8  # of trees of inputs

Inputs = dict[str, tuple[Any, str]]
"""Shape and type by name, or a number and its mark, as `from_module` takes them."""


class TimeLimitError(BaseException):
    """Work took longer than its limit; no `except Exception` of the work swallows it."""


@contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """Raise `TimeLimitError` in this thread where the block takes longer than `limit_s` seconds.

    It comes between two steps of Python, so that a single long call of a library ends first.
    """
    thread = ctypes.c_ulong(threading.get_ident())
    # Python raises the exception in that thread at its next instruction; None takes back one that
    # is not raised yet.
    raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
    lock = threading.Lock()
    is_running = True

    def interrupt() -> None:
        with lock:
            if is_running:
                raise_in_thread(thread, ctypes.py_object(TimeLimitError))

    timer = threading.Timer(limit_s, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            is_running = False
            raise_in_thread(thread, None)  # the block has ended in time


@dataclass
class FirstStep:
    """What the first step shows.

    Attributes:
        inputs: shape and type of each input of the first forward pass.
        batch: examples of the first forward pass; None where no input has a first size.
        forward_passes: number of forward passes.
        dtype: data type of the step as `--dtype` names it.
        phase: train where gradients are recorded, else infer.
        optimizer: the optimizer as `--optimizer` names it; None where unknown.
    """

    inputs: Inputs = field(default_factory=dict)
    batch: int | None = None
    forward_passes: int = 0
    dtype: str = "float32"
    phase: str = "train"
    optimizer: str | None = None


class ModelWatcher:
    """Hooks that see the first step of a model, and are taken off after it."""

    def __init__(self, model: Any) -> None:
        """Watch a `torch.nn.Module`.

        Raises:
            TypeError: for another object.
        """
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"a {type(model).__name__} is no torch.nn.Module")
        self.first_step = FirstStep()
        self._hooks = [
            model.register_forward_pre_hook(self._note_forward, with_kwargs=True),
            register_optimizer_step_post_hook(self._note_optimizer),
        ]
        leaf = next((module for module in model.modules() if _is_leaf(module)), None)
        if leaf is not None:  # accelerate begins autocast between the model's hooks and its layers
            self._hooks.append(leaf.register_forward_pre_hook(self._note_layer_dtype))

    def stop(self) -> FirstStep:
        """Take off the hooks, and return what they saw."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        return self.first_step

    def _note_forward(self, module: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Note the inputs of the first forward pass; whatever fails leaves the network unread."""
        step = self.first_step
        step.forward_passes += 1
        if step.forward_passes > 1:  # the first one shows all
            return
        try:
            import torch

            # A positional argument has its place as its name: "0".
            values = {str(index): value for index, value in enumerate(args)} | dict(kwargs)
            for name, value in values.items():
                step.inputs.update(_specs_by_name(name, value))
            step.batch = first_size(values)
            step.dtype = _step_dtype(module, torch)
            step.phase = "train" if torch.is_grad_enabled() else "infer"
        except Exception:  # noqa: BLE001  # objects of the user may raise anything
            step.inputs = {}  # without inputs the network is not exported

    def _note_layer_dtype(self, layer: Any, _args: Any) -> None:
        """Note the data type in which a layer computes."""
        try:
            import torch

            self.first_step.dtype = _step_dtype(layer, torch)
        except Exception:  # noqa: BLE001  # the type that the model shows stays
            return

    def _note_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self.first_step.optimizer is None:
            self.first_step.optimizer = _optimizer_name(optimizer)


def first_size(value: Any, depth: int = 0) -> int | None:
    """Return the first size of the first array in a tree of inputs: the number of examples."""
    shape = getattr(value, "shape", None)
    if shape is not None and len(shape) > 0:
        return int(shape[0])
    is_container = isinstance(value, Mapping | list | tuple)
    if depth == MAX_DEPTH or not is_container:
        return None
    items = value.values() if isinstance(value, Mapping) else value
    sizes = (first_size(item, depth + 1) for item in items)
    return next((size for size in sizes if size is not None), None)


def export_model(model: Any, first_step: FirstStep, limit_s: float) -> tuple[str, list[str]]:
    """Return the `.pt2` file of a model, and remarks on it; nothing is computed.

    Args:
        model: the module; of one that torch compiled or replicated, the module inside.
        first_step: its inputs.
        limit_s: seconds after which the export ends.

    Raises:
        InputError: as `from_module` does; torch raises other errors for what it cannot export.
        TimeoutError: beyond the limit.
    """
    from steptime.questions.module_file import from_module

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with time_limit(limit_s):
                path = from_module(unwrap(model), first_step.inputs)
        except TimeLimitError:
            raise TimeoutError(f"the export took longer than {limit_s:g} s") from None
    messages = [str(warning.message) for warning in caught]
    return path, [message for message in messages if "its batch is fixed" in message]


def unwrap(model: Any) -> Any:
    """Return the module inside of `torch.compile` and of data parallelism."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    while True:
        if hasattr(model, "_orig_mod"):  # of torch.compile
            model = model._orig_mod  # noqa: SLF001  # torch offers no other way
        elif isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        else:
            return model


def _specs_by_name(name: str, value: Any) -> Inputs:
    """Return shape and type of the tensors and numbers in a tree; others are left out."""
    from steptime.measure.backends.native.inputs import specs_of

    if value is None or isinstance(value, str | bytes):  # no tensor
        return {}
    if isinstance(value, list | tuple):
        item_by_key: Mapping[Any, Any] = dict(enumerate(value))
    elif isinstance(value, Mapping):
        item_by_key = value
    else:
        return specs_of({name: value})
    specs: Inputs = {}
    for key, item in item_by_key.items():
        specs |= _specs_by_name(f"{name}.{key}", item)
    return specs


def _is_leaf(module: Any) -> bool:
    has_weights = any(True for _ in module.parameters(recurse=False))
    return has_weights and not any(True for _ in module.children())


def _step_dtype(module: Any, torch: Any) -> str:
    """Return the data type of the weights; under autocast `bfloat16-mixed` or `float16-mixed`."""
    weight_types = (weight.dtype for weight in module.parameters() if weight.is_floating_point())
    dtype = str(next(weight_types, torch.float32)).removeprefix("torch.")
    device = next((weight.device.type for weight in module.parameters()), "cpu")
    # Autocast computes in a lower type, while the weights stay in float32.
    if dtype == "float32" and torch.is_autocast_enabled(device):
        return f"{torch.get_autocast_dtype(device)}-mixed".removeprefix("torch.")
    return dtype if dtype in FLOAT_TYPES else "float32"


def _optimizer_name(optimizer: Any) -> str | None:
    name = type(optimizer).__name__.lower()
    if name == "sgd" and optimizer.param_groups[0].get("momentum"):
        return "momentum"  # has a state of each weight, which plain SGD has not
    return name if name in OPTIMIZERS or name in BASE_OPTIMIZERS else None

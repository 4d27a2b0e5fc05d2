"""What a module gives back, as a list of tensors: `torch.export` knows few kinds of objects."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

_CALLS_CHECKPOINT = re.compile(r"\bcheckpoint(_sequential)?\(")
_DEEPEST = 8  # objects inside each other, as caches of layers in an output


def list_tensors(value: Any, depth: int = 0) -> list[Tensor]:
    """Return the tensors in an object: dicts, lists, named tuples, dataclasses, caches of keys."""
    if isinstance(value, Tensor):
        return [value]
    if depth > _DEEPEST or value is None or isinstance(value, str | bytes | int | float | type):
        return []
    if isinstance(value, Mapping):
        inner = list(value.values())
    elif isinstance(value, tuple | list):
        inner = list(value)
    elif dataclasses.is_dataclass(value):
        inner = [getattr(value, item.name) for item in dataclasses.fields(value)]
    else:
        inner = list(getattr(value, "__dict__", {}).values())
    tensors: list[Tensor] = []
    for item in inner:
        tensors += list_tensors(item, depth + 1)
    return tensors


@contextmanager
def tensors_alone(module: nn.Module) -> Iterator[None]:
    """Let a module give a list of tensors, in inference mode, while the block runs.

    Modules whose own code checkpoints layers in training alone stay in training mode, so that this
    is seen; the layers in them do not.
    """
    forward = module.forward
    training_by_module = {item: item.training for item in module.modules()}
    overrides_forward = "forward" in vars(module)  # in place of the class's

    @functools.wraps(forward)
    def return_tensors(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        return result if isinstance(result, Tensor) else tuple(unique_tensors(result))

    module.forward = return_tensors
    module.eval()
    for item in module.modules():
        item.training = _checkpoints_in_training(type(item).forward)
    try:
        yield
    finally:
        if overrides_forward:
            module.forward = forward
        else:
            del module.forward
        for item, training in training_by_module.items():
            item.training = training


@functools.cache  # modules run many times, and have few classes
def _checkpoints_in_training(forward: Callable[..., Any]) -> bool:
    """Whether the code of `forward` calls `torch.utils.checkpoint` and asks for the mode."""
    try:
        code = inspect.getsource(forward)
    except (OSError, TypeError):  # made without a file, or not by Python
        return False
    return _CALLS_CHECKPOINT.search(code) is not None and ".training" in code


def unique_tensors(value: Any) -> list[Tensor]:
    """Return the tensors in an object, each of them once."""
    return list({id(item): item for item in list_tensors(value)}.values())

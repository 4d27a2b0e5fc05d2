"""What a module gives back, as a list of tensors: `torch.export` knows few kinds of objects."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

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
    """Let a module give a list of tensors, in inference mode, while the block runs."""
    forward = module.forward
    training_by_module = {item: item.training for item in module.modules()}
    overrides_forward = "forward" in vars(module)  # in place of the class's

    @functools.wraps(forward)
    def return_tensors(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        return result if isinstance(result, Tensor) else tuple(unique_tensors(result))

    module.forward = return_tensors
    module.eval()
    try:
        yield
    finally:
        if overrides_forward:
            module.forward = forward
        else:
            del module.forward
        for item, training in training_by_module.items():
            item.training = training


def unique_tensors(value: Any) -> list[Tensor]:
    """Return the tensors in an object, each of them once."""
    return list({id(item): item for item in list_tensors(value)}.values())

"""Modules whose `forward` computes gradients itself, as for forces: they are refused by name."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from steptime.core.errors import InputError


def _refuse_gradient(*_: Any, **__: Any) -> Any:
    """Stand for `torch.autograd.grad` in a module that is traced; `torch.func.grad` calls it."""
    raise InputError("computes gradients inside of forward, which no export has")


@contextlib.contextmanager
def refused_gradients() -> Iterator[None]:
    """Refuse `torch.autograd.grad` while the block runs: its trace would lack what it computes."""
    before = torch.autograd.grad
    torch.autograd.grad = _refuse_gradient
    try:
        yield
    finally:
        torch.autograd.grad = before

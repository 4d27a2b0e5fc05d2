"""How other people's code makes a module: on the meta device, else on the CPU."""

import copy
import mmap
import sys
from typing import Any

import torch
from torch import nn

from steptime.core.errors import InputError

META = "meta"
MIN_MAPPED_BYTES = 2**30  # of a tensor that is mapped, not allocated
MAP_NORESERVE = 0x4000  # of Linux on x86 and Arm; Python names it from 3.13 on
MAX_COPIED = 1_000_000  # elements of a buffer whose values are copied


def make_module(make: Any, device: str, place: str) -> Any:
    """Return the module that a function makes on a device, on the CPU where `meta` does not do.

    Raises:
        InputError: in the words of the code that fails.
    """
    try:
        with torch.device(device):
            return make()
    except Exception as first:
        if device != META:
            raise InputError(f"{place}(): {describe_fault(first)}") from first
    return make_module(make, "cpu", place)  # some modules compute with values while they are made


def describe_fault(error: Exception) -> str:
    """Describe an error of other people's code in one line: `ValueError: 3 heads`."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def make_empty(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor on the CPU whose memory is not taken from the system, however large it is.

    A system may refuse an allocation above its memory even if nobody writes there; a mapping
    without a reserve is not counted.
    """
    size_bytes = shape.numel() * dtype.itemsize
    if size_bytes < MIN_MAPPED_BYTES or not sys.platform.startswith("linux"):
        return torch.empty(shape, dtype=dtype)
    # Pages that are never written take no memory. With MAP_NORESERVE the system allows more of
    # them than it has memory.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    mapping = mmap.mmap(-1, size_bytes, flags)
    return torch.frombuffer(mapping, dtype=dtype).reshape(shape)


def without_values(module: nn.Module) -> nn.Module:
    """Return a copy of a module on the CPU as `copy_without_values` makes it.

    A module that cannot be copied is returned itself, and so is one that runs functions which hold
    parts of it: they would hold the parts of the original.
    """
    if _runs_closures(module):  # a copy would run the functions that hold the original's tensors
        return module
    try:
        return copy_without_values(module)
    except Exception:  # noqa: BLE001  # old weight norms and locks do not allow it
        return module


def _runs_closures(module: nn.Module) -> bool:
    """Whether a hook or a `forward` of its own is a function that holds a module or a tensor."""
    for part in module.modules():
        # torch lists the hooks of a module nowhere else
        hooks = (*part._forward_hooks.values(), *part._forward_pre_hooks.values())  # noqa: SLF001
        for function in (*hooks, vars(part).get("forward")):
            cells = getattr(function, "__closure__", None) or ()
            if any(isinstance(cell.cell_contents, nn.Module | torch.Tensor) for cell in cells):
                return True
    return False


def copy_without_values(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """Return a copy of a module on the CPU whose large tensors have no values.

    Memory that nobody writes is not taken from the system. Small buffers keep their values.

    Args:
        module: the module.
        dtype: the type of all floating-point tensors of the copy, None for that of each.

    Raises:
        Exception: any, of a module that cannot be copied.
    """
    # `copy.deepcopy` takes the copy of an object from here: by the `id` of each tensor
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        copy_dtype = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        is_weight = isinstance(tensor, nn.Parameter)
        is_small = tensor.device.type != META and tensor.numel() <= MAX_COPIED
        if is_small and not is_weight:
            copied = tensor.detach().cpu().to(copy_dtype)
        else:
            copied = make_empty(tensor.shape, copy_dtype)
        memo[id(tensor)] = nn.Parameter(copied, tensor.requires_grad) if is_weight else copied
    return copy.deepcopy(module, memo)

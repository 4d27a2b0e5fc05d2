"""Values of tensors that a module makes of numbers alone, such as a mask of ones.

Tracing gives those tensors no values, and stops where one of them decides a branch, as in
`if mask.any():`. Here each has a stand-in with values at two batches. What is read of a tensor is
known where both stand-ins agree, since then it depends on no batch.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter, tree_leaves, tree_map

BATCHES = (2, 3)  # of the two stand-ins; tracing leaves only sizes from 2 on open
MAX_ELEMENTS = 1 << 18  # of a tensor that is computed: far more than the patches of a few images
_READS = (  # functions that give numbers, not tensors
    *(Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__),
    *(Tensor.__index__, torch.equal, Tensor.equal, torch.allclose, torch.is_nonzero),
)
_FILLS: dict[Callable[..., Any], int] = {  # what a new tensor is filled with
    **dict.fromkeys((torch.zeros, torch.zeros_like, Tensor.new_zeros), 0),
    **dict.fromkeys((torch.ones, torch.ones_like, Tensor.new_ones), 1),
}
_PLACE_OF_FILL: dict[Callable[..., Any], int] = {  # among the arguments
    torch.full: 1,
    torch.full_like: 1,
    Tensor.new_full: 2,
}
_NO_VALUES = ("empty", "rand", "multinomial", "bernoulli", "dropout", "uniform", "normal")


class StandIns:
    """The stand-ins of the tensors that are traced."""

    def __init__(self) -> None:
        """Start without a stand-in."""
        # By `id`; the tensor itself is kept, so that no `id` is given twice.
        self._by_id: dict[int, tuple[Tensor, Sequence[Tensor]]] = {}

    def read(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the number that a function reads of tensors, None where that is not known."""
        if func not in _READS or not self._has_all((args, kwargs)):
            return None
        number, other_number = self._compute(func, args, kwargs)
        return number if number == other_number else None

    def follow(self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        """Give the result of a function stand-ins where its arguments have them."""
        name = getattr(func, "__name__", "")
        try:
            if func in _FILLS or func in _PLACE_OF_FILL:
                self._keep(result, self._fill(func, args, kwargs, result))
            elif name.startswith(_NO_VALUES):
                return
            elif func is torch.arange or self._has_all((args, kwargs)):
                self._keep(result, self._compute(func, args, kwargs))
            elif _writes(name) and args:
                self._forget(args[0])
        except Exception:  # noqa: BLE001  # a stand-in is never worth a failure
            self._forget(args[0] if args else None)

    def _fill(self, func: Any, args: Any, kwargs: Any, result: Tensor) -> list[Tensor]:
        value = _FILLS.get(func)
        if value is None:
            place = _PLACE_OF_FILL[func]
            value = args[place] if len(args) > place else kwargs["fill_value"]
        with _disable_current_modes():
            return [
                torch.full(_compute_shape(result.shape, batch), value, dtype=result.dtype)
                for batch in BATCHES
            ]

    def _has_all(self, arguments: Any) -> bool:
        """Whether there are tensors among arguments, all of them with values."""
        tensors = [value for value in tree_iter(arguments) if isinstance(value, Tensor)]
        return bool(tensors) and all(map(self._has_values, tensors))

    def _has_values(self, tensor: Tensor) -> bool:
        return id(tensor) in self._by_id or has_values(tensor)

    def _compute(self, func: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
        """Compute a function of the stand-ins and sizes of each batch."""
        results = []
        with _disable_current_modes():
            for place in range(len(BATCHES)):
                find_value = functools.partial(self._find_value, place)
                values, keywords = tree_map(find_value, (args, kwargs))
                results.append(func(*values, **keywords))
        return results

    def _find_value(self, place: int, value: Any) -> Any:
        if isinstance(value, Tensor) and id(value) in self._by_id:
            return self._by_id[id(value)][1][place]
        return _compute_size(value, BATCHES[place])

    def _keep(self, result: Any, values: Sequence[Any]) -> None:
        """Keep the values of a result: of a tensor, or of each in a tuple."""
        for tensor, *stand_ins in zip(tree_leaves(result), *map(tree_leaves, values), strict=True):
            is_small = all(isinstance(x, Tensor) and x.numel() <= MAX_ELEMENTS for x in stand_ins)
            if isinstance(tensor, Tensor) and type(tensor) is not Tensor and is_small:
                self._by_id[id(tensor)] = (tensor, stand_ins)

    def _forget(self, tensor: Any) -> None:
        """Drop the stand-ins of a tensor, and of all that are views of the same memory."""
        if not isinstance(tensor, Tensor) or id(tensor) not in self._by_id:
            return
        memory = self._by_id[id(tensor)][1][0].untyped_storage().data_ptr()
        self._by_id = {
            key: (traced, stand_ins)
            for key, (traced, stand_ins) in self._by_id.items()
            if stand_ins[0].untyped_storage().data_ptr() != memory
        }


def has_values(tensor: Tensor) -> bool:
    """Whether a tensor is a plain small one on the CPU, not traced and not a weight."""
    return type(tensor) is Tensor and tensor.device.type == "cpu" and tensor.numel() <= MAX_ELEMENTS


def _writes(name: str) -> bool:
    """Whether a function of this name writes into its first argument: `add_`, `__iadd__`."""
    is_augmented = name.startswith("__i") and name.endswith("__")
    return is_augmented or name == "__setitem__" or (name.endswith("_") and name[-2:] != "__")


def _compute_shape(shape: Sequence[Any], batch: int) -> list[int]:
    """Return the sizes of a tensor at a batch; raises `ValueError` for a large tensor."""
    sizes = [int(_compute_size(size, batch)) for size in shape]
    if math.prod(sizes) > MAX_ELEMENTS:
        raise ValueError(f"{sizes}: too large for a stand-in")
    return sizes


def _compute_size(value: Any, batch: int) -> Any:
    """Return a size at a batch, any other value as it is.

    Raises:
        ValueError: for a size that values decide.
    """
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    if free_unbacked_symbols(value):
        raise ValueError(f"{value}: a size that values decide")
    expression = value.node.expr
    size = expression.xreplace(dict.fromkeys(expression.free_symbols, batch))
    return value.node.pytype(size)

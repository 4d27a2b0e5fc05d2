"""Values of tensors that a module makes of numbers alone, such as a mask of ones.

Tracing gives those tensors no values, and stops where one of them decides a branch, as in
`if mask.any():`. Here each has a stand-in with values at two batches. What is read of a tensor is
known where both stand-ins agree, since then it depends on no batch. Integer inputs have stand-ins
of ordinary values, and it is said where one of them was read.
"""

import functools
import math
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter, tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

BATCHES = (2, 3)  # of the two stand-ins; tracing leaves only sizes from 2 on open
MAX_ELEMENTS = 1 << 18  # of a tensor that is computed: far more than the patches of a few images
MAX_STAND_IN = 1 << 22  # elements of values: a mask of 1024 tokens by 1024 for each example
_READS = (  # functions that give numbers, not tensors
    *(Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__),
    *(
        Tensor.__index__,
        Tensor.__len__,
        Tensor.__contains__,
        torch.equal,
        Tensor.equal,
        torch.allclose,
        torch.is_nonzero,
    ),
)
_FILLS: dict[Callable[..., Any], int] = {  # what a new tensor is filled with
    **dict.fromkeys((torch.zeros, torch.zeros_like, Tensor.new_zeros), 0),
    **dict.fromkeys((torch.ones, torch.ones_like, Tensor.new_ones), 1),
}
_FILL_ARGUMENT: dict[Callable[..., Any], int] = {  # the index of the argument that is filled in
    torch.full: 1,
    torch.full_like: 1,
    Tensor.new_full: 2,
}
ORDINARY_ID = 7  # of a token: models reserve the lowest numbers, of padding and ends
MASK_ENDING = "mask"  # of the name of an input that is 1 where a token counts
_NO_VALUES = ("empty", "rand", "multinomial", "bernoulli", "dropout", "uniform", "normal")


class StandIn(NamedTuple):
    """The values of a traced tensor.

    Attributes:
        values: a tensor with values for each of `BATCHES`.
        is_assumed: whether they depend on values of inputs, which are assumed.
    """

    values: Sequence[Tensor]
    is_assumed: bool


class StandIns:
    """The stand-ins of the tensors that are traced.

    Attributes:
        has_read_inputs: whether a number was read that depends on values of inputs.
    """

    def __init__(self) -> None:
        """Start without a stand-in."""
        # By the traced tensor itself, whose values go when it does.
        self._by_tensor: MutableMapping[Tensor, StandIn] = WeakIdKeyDictionary()
        self.has_read_inputs = False

    def assume_input(self, name: str, tensor: Tensor) -> None:
        """Give an integer input stand-ins: tokens are ordinary ones, and none is masked."""
        is_integer = not (tensor.is_floating_point() or tensor.is_complex())
        if not is_integer or has_values(tensor):
            return
        is_mask = name.endswith(MASK_ENDING) or tensor.dtype == torch.bool
        values = _make_filled(tensor, 1 if is_mask else ORDINARY_ID)
        self._by_tensor[tensor] = StandIn(values, is_assumed=True)

    def read(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the number that a function reads of tensors, None where that is not known."""
        if func not in _READS or not self._has_all((args, kwargs)):
            return None
        if func is Tensor.__len__ and isinstance(args[0].shape[0], int):
            return None  # no value decides it
        number, number_of_other_batch = self._compute(func, args, kwargs)
        if number != number_of_other_batch:
            return None
        if self._is_assumed((args, kwargs)):
            self.has_read_inputs = True
        return number

    def follow(self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        """Give the result of a function stand-ins where its arguments have them."""
        name = getattr(func, "__name__", "")
        try:
            if func in _FILLS or func in _FILL_ARGUMENT:  # `torch.zeros`, `torch.full`
                values = _make_filled(result, _find_fill(func, args, kwargs))
                self._keep(result, values, is_assumed=False)
            elif name.startswith(_NO_VALUES):  # random or uninitialised: nothing to follow
                return
            elif func is torch.arange or self._has_all((args, kwargs)):
                values = self._compute(func, args, kwargs)
                self._keep(result, values, self._is_assumed((args, kwargs)))
            elif _writes(name) and args:  # something unknown is written into the first argument
                self._forget(args[0])
        except Exception:  # noqa: BLE001  # a stand-in is never worth a failure
            self._forget(args[0] if args else None)

    def _is_assumed(self, arguments: Any) -> bool:
        """Whether a tensor among arguments has values that are assumed."""
        tensors = (value for value in tree_iter(arguments) if isinstance(value, Tensor))
        stand_ins = (self._by_tensor.get(tensor) for tensor in tensors)
        return any(stand_in.is_assumed for stand_in in stand_ins if stand_in is not None)

    def _has_all(self, arguments: Any) -> bool:
        """Whether there are tensors among arguments, all of them with values."""
        tensors = [value for value in tree_iter(arguments) if isinstance(value, Tensor)]
        return bool(tensors) and all(map(self._has_values, tensors))

    def _has_values(self, tensor: Tensor) -> bool:
        return tensor in self._by_tensor or has_values(tensor)

    def _compute(self, func: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
        """Compute a function of the stand-ins and sizes of each batch."""
        results = []
        with _disable_current_modes():
            for batch_index in range(len(BATCHES)):
                find_value = functools.partial(self._find_value, batch_index)
                values, keywords = tree_map(find_value, (args, kwargs))
                results.append(func(*values, **keywords))
        return results

    def _find_value(self, batch_index: int, value: Any) -> Any:
        if isinstance(value, Tensor) and value in self._by_tensor:
            return self._by_tensor[value].values[batch_index]
        return _compute_size(value, BATCHES[batch_index])

    def _keep(self, result: Any, values: Sequence[Any], is_assumed: bool) -> None:
        """Keep the values of a result: of a tensor, or of each in a tuple."""
        for tensor, *copies in zip(tree_leaves(result), *map(tree_leaves, values), strict=True):
            is_small = all(isinstance(x, Tensor) and x.numel() <= MAX_STAND_IN for x in copies)
            if isinstance(tensor, Tensor) and type(tensor) is not Tensor and is_small:
                self._by_tensor[tensor] = StandIn(copies, is_assumed)

    def _forget(self, tensor: Any) -> None:
        """Drop the stand-ins of a tensor, and of all that are views of the same memory."""
        if not isinstance(tensor, Tensor) or tensor not in self._by_tensor:
            return
        # All views of the same memory change with it.
        memory = _find_memory(self._by_tensor[tensor])
        for traced, stand_in in list(self._by_tensor.items()):
            if _find_memory(stand_in) == memory:
                del self._by_tensor[traced]


def _find_memory(stand_in: StandIn) -> int:
    """Return the address of the memory of which the first of the values is a view."""
    return stand_in.values[0].untyped_storage().data_ptr()


def _find_fill(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return the number that a function fills a new tensor with."""
    if func in _FILLS:
        return _FILLS[func]
    argument_index = _FILL_ARGUMENT[func]
    return args[argument_index] if len(args) > argument_index else kwargs["fill_value"]


def _make_filled(tensor: Tensor, fill: Any) -> list[Tensor]:
    """Return values for a tensor that is filled with one number."""
    with _disable_current_modes():
        return [
            torch.full(_compute_shape(tensor.shape, batch), fill, dtype=tensor.dtype)
            for batch in BATCHES
        ]


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
    if math.prod(sizes) > MAX_STAND_IN:
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

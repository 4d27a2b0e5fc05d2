"""Small tensors whose values decide sizes: they keep their values while a module is traced.

Tracing gives every tensor a shape but no values, and stops where a value decides a size, such as
the grids of images or the padding of a convolution. Here an op that reads tensors with values alone
is computed, and only its result enters the graph, as a constant. A loop over the non-zero elements
of a vector, as over the experts that tokens chose, runs over all of them. Tensors that the module
makes of numbers alone, such as masks of ones, are traced, and have values beside (`StandIns`).
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, _check, nn
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter

from steptime.measure.backends.native.stand_ins import (
    MAX_ELEMENTS,
    ORDINARY_ID,
    StandIns,
    has_values,
)

MAX_BUFFER_ELEMENTS = 64  # of a buffer that decides sizes; larger ones are tables of positions
MAX_LOOP = 1024  # elements of a vector whose non-zero ones a loop runs over, such as experts
INPUTS_NOTE = (
    f"integer inputs are taken to be {ORDINARY_ID} and masks to be 1 where a value of them decides"
)
_MODULES_WITH_VALUES: WeakSet[nn.Module] = WeakSet()  # those that compute with values now
_FACTORIES = (torch.tensor, torch.as_tensor, torch.arange)
_POSITIONS_OF_NONZERO = (torch.nonzero, Tensor.nonzero)
_CHOICES_OF_ROWS = (*_POSITIONS_OF_NONZERO, torch.argwhere, torch.where)
_SIZE_METHODS = (  # methods of tensors whose further arguments are sizes
    *("view", "reshape", "expand", "repeat", "narrow", "split", "unflatten", "select"),
    *("new_zeros", "new_ones", "new_full", "new_empty"),
)


def list_value_buffers(module: nn.Module) -> list[str]:
    """Return the names of small integer buffers that have values: those that do not lie on meta."""
    return [
        name
        for name, buffer in module.named_buffers()
        if not buffer.is_floating_point()
        and not buffer.is_complex()
        and buffer.device.type != "meta"
        and buffer.numel() <= MAX_BUFFER_ELEMENTS
    ]


@contextlib.contextmanager
def keep_small_values(module: nn.Module, buffers: Collection[str]) -> Iterator[list[str]]:
    """Let a module compute with the values of small tensors while the block runs.

    Yields what is assumed of values that the module has not, which grows as it is traced.

    Args:
        module: the module, which changes in the block: its buffers become plain attributes.
        buffers: the names of buffers whose values count (`list_value_buffers`).
    """
    # Tracing replaces every registered buffer by a tensor without values. A plain attribute
    # keeps its values.
    moved_buffers: list[tuple[nn.Module, str, Tensor]] = []
    for path in buffers:
        owner_path, _, name = path.rpartition(".")
        owner = module.get_submodule(owner_path)
        buffer = owner._buffers.pop(name)  # noqa: SLF001  # `del` would forget if it is persistent
        if buffer is not None:
            owner.__dict__[name] = buffer
            moved_buffers.append((owner, name, buffer))
    assumptions: list[str] = []
    forward = module.forward
    overrides_forward = "forward" in vars(module)  # in place of the class's

    @functools.wraps(forward)
    def forward_with_values(*args: Any, **kwargs: Any) -> Any:
        with KnownValues() as mode, _skip_idle_casts():
            mode.assume_inputs(args, kwargs)
            result = forward(*args, **kwargs)
        assumptions[:] = mode.assumptions
        return result

    module.forward = forward_with_values
    _MODULES_WITH_VALUES.add(module)
    try:
        yield assumptions
    finally:
        _MODULES_WITH_VALUES.discard(module)
        if overrides_forward:
            module.forward = forward
        else:
            del module.forward
        for owner, name, buffer in moved_buffers:
            del owner.__dict__[name]
            owner._buffers[name] = buffer  # noqa: SLF001  # as it was before


@contextlib.contextmanager
def keep_values_of_copy(module: nn.Module, copied: nn.Module) -> Iterator[None]:
    """Let a copy of a module compute with values in the block, if the module does so now.

    Raises:
        ValueError: for a module whose `forward` is not that of its class, which a copy shares.
    """
    if module not in _MODULES_WITH_VALUES:
        yield
        return
    # `keep_small_values` has wrapped the module's `forward`, and the copy got the same wrapper,
    # which runs the module: the copy goes back to the `forward` of its class, and gets its own.
    wrapped_forward = getattr(module.forward, "__wrapped__", None)
    is_method_of_module = getattr(wrapped_forward, "__self__", None) is module
    if not is_method_of_module:
        raise ValueError("a forward of its own would run the module, not its copy")
    del copied.forward
    with keep_small_values(copied, ()):  # its buffers are plain attributes already
        yield


class KnownValues(TorchFunctionMode):
    """Computes functions of tensors with values; all others are traced as without it.

    Attributes:
        assumptions: what was assumed of values that a function needs and no tensor has.
    """

    def __init__(self) -> None:
        """Start without an assumption."""
        super().__init__()
        self.assumptions: list[str] = []
        self._stand_ins = StandIns()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function, with real values where all its tensors have them."""
        # 1. All tensors have values, or a small one is made of numbers: compute with real values.
        kwargs = kwargs or {}
        tensors = [value for value in tree_iter((args, kwargs)) if isinstance(value, Tensor)]
        has_real_tensor = any(map(has_values, tensors))
        if tensors:
            is_computed = all(map(has_values, tensors))
        else:
            is_computed = func in _FACTORIES and _are_small_numbers(args)
        if is_computed:
            with _disable_current_modes():
                return func(*args, **kwargs)
        # 2. The positions of non-zero elements decide how often a loop runs: assume all of them.
        if func in _POSITIONS_OF_NONZERO and _is_short_vector(args[0]):
            return self._assume_nonzero(args[0], kwargs.get("as_tuple", False))
        # 3. Traced and real tensors together: sizes and row numbers are passed as plain numbers.
        if has_real_tensor:
            takes_sizes = getattr(func, "__name__", "") in _SIZE_METHODS
            if func is Tensor.__getitem__:
                args = (args[0], _with_rows(args[1]))
            args = tuple(_with_sizes(value, takes_sizes) for value in args)
            kwargs = {name: _with_sizes(value, takes_sizes) for name, value in kwargs.items()}
        # 4. A number is read from a traced tensor: its stand-in knows the value.
        number = self._stand_ins.read(func, args, kwargs)
        if number is not None:
            if self._stand_ins.has_read_inputs:
                self._note(INPUTS_NOTE)
            return number
        result = func(*args, **kwargs)
        if func in _CHOICES_OF_ROWS:
            _assume_rows(result)
        self._stand_ins.follow(func, args, kwargs, result)
        return result

    def assume_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Let integer inputs have ordinary values (`StandIns.assume_input`)."""
        arguments = [*(("", value) for value in args), *kwargs.items()]
        for name, argument in arguments:
            for value in tree_iter(argument):
                if isinstance(value, Tensor):
                    with contextlib.suppress(ValueError):  # an input that is too large
                        self._stand_ins.assume_input(name, value)

    def _note(self, note: str) -> None:
        if note not in self.assumptions:
            self.assumptions.append(note)

    def _assume_nonzero(self, vector: Tensor, as_tuple: bool) -> Any:
        """Return the positions of the non-zero elements of a vector, which all are taken to be."""
        length = int(vector.shape[0])
        note = f"all {length} elements of a vector that a loop runs over are taken to be non-zero"
        self._note(note)
        with _disable_current_modes():
            positions = torch.arange(length)
            return (positions,) if as_tuple else positions.unsqueeze(1)


def _assume_rows(result: Any) -> None:
    """Take it that values choose a row, where code asks whether they choose any.

    How many rows they choose stays open.
    """
    for tensor in tree_iter(result):
        is_open = isinstance(tensor, Tensor) and tensor.dim() > 0
        if is_open and free_unbacked_symbols(tensor.shape[0]):
            _check(tensor.shape[0] != 0)


@contextlib.contextmanager
def _skip_idle_casts() -> Iterator[None]:
    """Let `Module.to` leave a module that has the type: traced weights cannot be swapped."""
    to_type = nn.Module.to

    # `Module.to` swaps the weights, which fails while they are traced: if they have the type
    # already, nothing needs to be done.
    def to_other_type(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        names_type_alone = len(args) == 1 and isinstance(args[0], torch.dtype) and not kwargs
        if names_type_alone and all(weight.dtype == args[0] for weight in module.parameters()):
            return module
        return to_type(module, *args, **kwargs)

    nn.Module.to = to_other_type  # type: ignore[method-assign, assignment]  # while it is traced
    try:
        yield
    finally:
        nn.Module.to = to_type  # type: ignore[method-assign]  # as it was before


def _is_short_vector(value: Any) -> bool:
    is_vector = isinstance(value, Tensor) and value.dim() == 1
    return is_vector and isinstance(value.shape[0], int) and value.shape[0] <= MAX_LOOP


def _are_small_numbers(args: Any) -> bool:
    """Whether arguments are plain integers (no symbols), none of them large."""
    numbers = list(tree_iter(args))
    return all(type(number) in (int, bool) and abs(number) <= MAX_ELEMENTS for number in numbers)


def _with_sizes(value: Any, takes_sizes: bool = False) -> Any:
    """Return an argument whose sizes are numbers: in lists of them, in slices, of size methods."""
    if isinstance(value, slice):
        return slice(*(_as_number(end) for end in (value.start, value.stop, value.step)))
    if isinstance(value, tuple | list):
        is_shape = all(isinstance(item, int | torch.SymInt) or _is_size(item) for item in value)
        if is_shape:
            return type(value)(_as_number(item) for item in value)
        return type(value)(_with_sizes(item) for item in value)
    # a single tensor is a size only as an argument of `view` and the like
    return _as_number(value) if takes_sizes else value


def _with_rows(index: Any) -> Any:
    """Return an index of one known row as a slice: its share of values is that of the whole."""
    is_row = isinstance(index, Tensor) and has_values(index) and tuple(index.shape) == (1,)
    if not is_row or index.is_floating_point():
        return index
    with _disable_current_modes():
        row = int(index)
    return slice(row, row + 1)


def _as_number(value: Any) -> Any:
    """Return the number that a tensor of one holds; any other value as it is."""
    if not _is_size(value):
        return value
    with _disable_current_modes():
        return value.item()


def _is_size(value: Any) -> bool:
    is_scalar = isinstance(value, Tensor) and has_values(value) and value.dim() == 0
    return is_scalar and not value.is_floating_point()

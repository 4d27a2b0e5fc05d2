"""A node of an exported program with its arguments looked up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from steptime.formats import elements
from steptime.formats.pytorch.program import FxNode
from steptime.formats.tensors import axis_of
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError

if TYPE_CHECKING:
    from steptime.formats.pytorch.walk import Walk

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ProgramConstant:
    """A tensor that follows from shapes and constants alone; its values do not matter here.

    Attributes:
        shape: its shape.
        dtype: its element type in the file.
        origin: the tensor that it is a view of, so that a table read by many layers is one buffer.
    """

    shape: Shape
    dtype: str
    origin: str

    def repeat(self, axis: int, size: int) -> "ProgramConstant":
        """Return a constant with another size of an axis."""
        return replace(self, shape=(*self.shape[:axis], size, *self.shape[axis + 1 :]))


Value = str | ProgramConstant
Result = Value | Sequence[Value | None]
Handler = Callable[["Call"], Result]
T = TypeVar("T")


def graph_dtype(file_dtype: str) -> str:
    """Return the element type that a tensor has in the graph; "" for that of the arithmetic."""
    if "complex" in file_dtype:
        return "complex64"
    if "float" in file_dtype:
        return ""
    return "bool" if file_dtype == "bool" else "int64"


def as_list(value: Any) -> list[Any]:
    """Return sizes or axes as a list; a single number is a list of one, None an empty list."""
    return [value] if isinstance(value, int) else list(value or [])


@dataclass(frozen=True)
class Call:
    """A node of the file and the walk that visits it."""

    walk: "Walk"
    node: FxNode

    @property
    def b(self) -> Builder:
        """The graph so far."""
        return self.walk.b

    @cached_property
    def name(self) -> str:
        """The name of the op that it appends: the module's path, then the op."""
        return f"{self.node.module_path}/{self.node.op}" if self.node.module_path else self.node.op

    @cached_property
    def shape(self) -> Shape:
        """The shape of its first output, as the file has it for this batch."""
        return self.walk.file_shape(self.node.outputs[0])

    @property
    def dtype(self) -> str:
        """The element type of its first output in the file."""
        return self.walk.program.specs[self.node.outputs[0]].dtype

    def argument(self, name: str, default: Any = None) -> Any:
        """Return an argument: a `Value`, a number, a text, a list of such, or the default."""
        value = self.walk.look_up(self.node.args.get(name))
        return default if value is None else value

    def __getitem__(self, name: str) -> Any:
        """Return an argument that must be there."""
        value = self.argument(name)
        if value is None:
            raise ShapeError(f"argument '{name}' is missing")
        return value

    def argument_name(self, first: str, second: str) -> str:
        """Choose between two names of an argument: `first` if the node has it."""
        return first if first in self.node.args else second

    def tensor(self, name: str = "self") -> str:
        """Return the tensor of an argument; a constant becomes a buffer."""
        return self.walk.tensor(self[name])

    def optional_tensor(self, name: str) -> str | None:
        """Return the tensor of an argument, or None if it is left out."""
        value = self.argument(name)
        return None if value is None else self.walk.tensor(value)

    @property
    def first_tensor(self) -> str:
        """The tensor of its first argument."""
        first_argument = next(iter(self.node.args.values()), None)
        return self.walk.tensor(self.walk.look_up(first_argument))

    def axis(self, axis: int) -> int:
        """Count an axis of `self` from the first."""
        return axis_of(self.b, self.tensor(), axis)

    def lower(
        self, function: Callable[..., T], *arguments: Any, suffix: str = "", **options: Any
    ) -> T:
        """Call a lowering function on the graph, its op named as this call with a suffix."""
        return function(self.b, *arguments, name=f"{self.name}{suffix}", **options)

    def tensor_in_output_type(self) -> str:
        """Return the tensor of `self`, cast if the call states a wider type (`dtype=`)."""
        x = self.tensor()
        output_dtype = self.walk.graph_dtype(self.dtype)  # "" for the workload's own floats
        is_wider = "float" in output_dtype
        states_wider_type = self.argument("dtype") is not None and is_wider
        if not states_wider_type:
            return x
        return self.lower(elements.cast, x, output_dtype, suffix="/cast")

    def index_output(self, i: int) -> ProgramConstant | None:
        """Return output `i` as indices that are found together with the values, if it is there."""
        if i >= len(self.node.outputs):
            return None
        shape = self.walk.file_shape(self.node.outputs[i])
        return ProgramConstant(shape, dtype="int64", origin=f"{self.name}/places")

    def expanded_shape(self, shape: Shape, file_shape: Sequence[int]) -> Shape:
        """Return the shape that this call repeats its input to (`Batches.expanded_shape`)."""
        input_has_grown = self.walk.file_shape(self.node.args["self"]) != self.walk.shape(
            self["self"]
        )
        # an input that has another shape than in the file has an axis of examples already
        is_expand = self.node.op != "repeat"
        # an expand that changes no size does not tell which axis is the batch
        is_unchanged_expand = is_expand and shape == tuple(file_shape)
        has_grown = input_has_grown or is_unchanged_expand
        output = self.node.outputs[0]
        return self.walk.batches.expanded_shape(output, shape, file_shape, has_grown)

"""The values that a node of an ONNX file reads: its attributes, numbers, and tensors."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from steptime.core.errors import shorten
from steptime.formats import elements
from steptime.formats.batch_search import BatchWalk
from steptime.formats.onnx.constant import FileConstant, Shape, Spec, ViewStep
from steptime.formats.onnx.fold import Value, axis_of, clean_name
from steptime.formats.onnx.model import OnnxNode
from steptime.formats.tensors import free_name
from steptime.network.ops.table import ShapeError, require


class RootTensor(NamedTuple):
    """The tensor of the graph that stands for a constant, seen through the first steps of views."""

    tensor: str
    view_steps: tuple[ViewStep, ...]


class NodeValues(BatchWalk):
    """A walk at one node: `value_by_name` holds tensors of `b` and constants.

    Attributes:
        file_batch_walk: the walk of this file at the batch that it was exported for. Its shapes
            tell what grows with the batch. None if that batch is the one that is built.
        node: the node that is lowered.
        input_values: the values that it reads.
        root_by_constant: the tensors of constants, by their name in the file.
    """

    def __init__(self, file_batch_walk: "NodeValues | None") -> None:
        # Its shapes, beside those of this walk, tell what grows with the batch. None if the batch
        # that the file was exported for is the one that is built.
        self.file_batch_walk = file_batch_walk
        # "" names an input that a node leaves out
        self.value_by_name: dict[str, Value] = {"": None}
        # an empty node, until the walk sets the first one that it lowers
        self.node = OnnxNode(
            name="", op="", inputs=(), outputs=(), attrs={}, opset=0, proto=NodeProto()
        )
        self.input_values: Sequence[Value] = ()
        # the weight or buffer in the graph that holds a constant of the file, by its name there
        self.root_by_constant: dict[str, RootTensor] = {}

    @property
    def name(self) -> str:
        """A name for the ops of this node."""
        return clean_name(self.node.name or self.node.op)

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute of this node; raises `ShapeError` for one of another type."""
        value = self.node.attrs.get(name, default)
        has_other_type = default is not None and type(value) is not type(default)
        if has_other_type:
            is_int_for_float = isinstance(default, float) and isinstance(value, int)
            require(is_int_for_float, f"{name} is {shorten(value)}")
        return value

    def axis(self, x: Value, default: int = 0) -> int:
        """Return the attribute `axis`, one of `x`'s counted from the front."""
        return axis_of(self.attr("axis", default), len(self.shape(x)))

    def spec(self, value: Value) -> Spec:
        """Return type and shape of a value."""
        require(value is not None, "an input is missing")
        if isinstance(value, FileConstant):
            return value.dtype, value.shape
        tensor = self.b.tensors[str(value)]
        return tensor.dtype, tensor.shape

    def shape(self, value: Value) -> Shape:
        """Return a value's shape."""
        _, shape = self.spec(value)
        return shape or ()

    def is_float(self, value: Value) -> bool:
        """Return whether a value is of floating-point numbers."""
        dtype, _ = self.spec(value)
        return "float" in dtype

    def list_numbers(self, value: Value) -> list[Any]:
        """Return the numbers of a constant, in one list; raises `ShapeError` if not known."""
        array = constant_values(value)
        require(array is not None, "a size follows from an array whose values are not known")
        numbers: list[Any] = [] if array is None else array.ravel().tolist()
        return numbers

    def read_integers(self, value: Value, attribute: str = "") -> tuple[int, ...] | None:
        """Return the integers of an input, or where it is left out of an attribute, None if none.

        Sizes that are inputs today were attributes in older opsets.
        """
        # sizes that are inputs today were attributes in older opsets
        is_stated_by_attribute = value is None
        if is_stated_by_attribute:
            stated = self.node.attrs.get(attribute)
            if stated is None:
                return None
            return (stated,) if isinstance(stated, int) else tuple(stated)
        numbers = self.list_numbers(value)
        are_finite = all(map(math.isfinite, numbers))
        require(are_finite, "a size is not a number")
        return tuple(map(int, numbers))

    def read_number(self, value: Value) -> float | None:
        """Return the number of a constant of one element, None for anything else."""
        array = constant_values(value)
        has_single_element = array is not None and array.size == 1
        return self.list_numbers(value)[0] if has_single_element else None

    def file_shape(self, name: str) -> Shape | None:
        """Return the shape that a tensor has with the file's own batch, None if not known."""
        if self.file_batch_walk is None:
            return None
        value = self.file_batch_walk.value_by_name.get(name)
        return None if value is None else self.file_batch_walk.shape(value)

    def tensor(self, value: Value) -> str:
        """Return the tensor of a value; a constant is a weight, or a buffer if it is derived."""
        if isinstance(value, str):
            return value
        if value is None:
            raise ShapeError("an input is missing")
        require(value.dtype != "text", "reads text")
        root = self.root_by_constant.get(value.name)
        if root is None:
            root = self._append_root(value)
            self.root_by_constant[value.name] = root
            needs_no_view = self.b.shape(root.tensor) == value.shape
            if needs_no_view:
                return root.tensor
        return self._view_root(root, value.view_steps)

    def _append_root(self, constant: FileConstant) -> RootTensor:
        """Append the weight or buffer of a constant, with the shape that its first reader sees.

        Rows that repeat are not part of it: they are repeated when they are read.
        """
        steps_before_repeat: list[ViewStep] = []
        shape = constant.shape
        for step in constant.view_steps:
            # repeated rows are no part of the weight
            if step.kind == "repeat":
                shape = step.shape_before
                break
            steps_before_repeat.append(step)
        name = free_name(self.b, clean_name(constant.name) or "constant")
        is_trained = constant.is_float and not constant.derived
        if is_trained:
            tensor = self.b.weight(name, shape)
        else:
            tensor = self.b.buffer(name, shape, "" if constant.is_float else constant.dtype)
        return RootTensor(tensor, tuple(steps_before_repeat))

    def _view_root(self, root: RootTensor, steps: Sequence[ViewStep]) -> str:
        """Return the tensor of a constant: its root's views undone, then those of `steps` made."""
        tensor = root.tensor
        # back to the tensor as the file stores it, then along the given steps
        for step in reversed(root.view_steps):
            inverse_argument = step.shape_before
            if step.kind == "transpose":
                order = step.argument
                inverse_argument = tuple(order.index(axis) for axis in range(len(order)))
            tensor = self._view_tensor(tensor, step.kind, inverse_argument)
        for step in steps:
            tensor = self._view_tensor(tensor, step.kind, step.argument)
        return tensor

    def _view_tensor(self, tensor: str, kind: str, argument: Sequence[int]) -> str:
        """Append the op of a view step, see `ViewStep`."""
        if kind == "repeat":
            return self.batches.repeat_tensor(self.b, tensor, argument[0], self.name)
        view = elements.transpose if kind == "transpose" else elements.reshape
        return view(self.b, tensor, argument, f"{self.name}/{kind}")

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        """Return a value with its axes in `order`; of a constant this is free."""
        if isinstance(value, FileConstant):
            return value.transpose(order)
        return self._view_tensor(self.tensor(value), "transpose", order)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Return a value seen with another shape; of a constant this is free."""
        if isinstance(value, FileConstant):
            return value.reshape(shape)
        return self._view_tensor(self.tensor(value), "reshape", shape)

    def constant(self, numbers: Any, dtype: str, derived: bool = False) -> FileConstant:
        """Return numbers that this node makes, as a constant."""
        values: NDArray[Any] = np.asarray(numbers, dtype)
        name = self.node.outputs[0] if self.node.outputs else ""
        return FileConstant(name, values.shape, dtype, values, derived=derived)


def constant_values(value: Value) -> NDArray[Any] | None:
    """Return the numbers of a constant, None for a tensor or where they are not known."""
    return value.values if isinstance(value, FileConstant) else None

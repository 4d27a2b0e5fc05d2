"""Constants of an ONNX file, and the views through which nodes read them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from numpy.typing import NDArray

from steptime.network.ops.table import require

Shape = tuple[int, ...]
Spec = tuple[str, Shape | None]  # type and shape, None for a shape that is not known


class ViewStep(NamedTuple):
    """One step from a constant of the file to what a node reads of it.

    Attributes:
        kind: `transpose`, `reshape` or `repeat`.
        argument: the order of axes, the new shape, or the axis along which rows repeat.
        shape_before: the shape that the step starts from.
    """

    kind: str
    argument: tuple[int, ...]
    shape_before: Shape


@dataclass(frozen=True, eq=False)
class FileConstant:
    """A constant of the file, or what follows from constants alone.

    Attributes:
        name: the name of the constant that it is a view of.
        shape: its shape, after `view_steps`.
        dtype: the type of its elements.
        values: its numbers, None where they are many or not read.
        view_steps: the views between the constant of the file and this one.
        derived: whether exporters work it out of sizes, positions and truth values: it is a table,
            which is not trained.
    """

    name: str
    shape: Shape
    dtype: str
    values: NDArray[Any] | None = None
    view_steps: tuple[ViewStep, ...] = ()
    derived: bool = False

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return "float" in self.dtype

    @property
    def is_weight(self) -> bool:
        """Whether it is a weight, whose numbers are not known."""
        return self.is_float and not self.derived and self.values is None

    def repeat(self, axis: int, size: int) -> "FileConstant":
        """Return the constant with `size` rows along an axis, which repeat its own in turn."""
        repeated_values = None
        if self.values is not None:
            # "wrap" begins again behind the last value
            repeated_values = self.values.take(range(size), axis, mode="wrap")
        shape = (*self.shape[:axis], size, *self.shape[axis + 1 :])
        step = ViewStep("repeat", (axis,), self.shape)
        return replace(
            self, shape=shape, values=repeated_values, view_steps=(*self.view_steps, step)
        )

    def transpose(self, order: Sequence[int]) -> "FileConstant":
        """Return the constant with its axes in `order`."""
        rank = len(self.shape)
        is_order = sorted(order) == list(range(rank))
        require(is_order, f"transpose {self.shape} by {tuple(order)}")
        shape = tuple(self.shape[i] for i in order)
        return self._with_view_step(ViewStep("transpose", tuple(order), self.shape), shape)

    def reshape(self, shape: Sequence[int]) -> "FileConstant":
        """Return the constant with another shape of as many elements."""
        new_shape = tuple(shape)
        keeps_size = math.prod(new_shape) == math.prod(self.shape)
        require(keeps_size, f"reshape {self.shape} to {new_shape}")
        return self._with_view_step(ViewStep("reshape", new_shape, self.shape), new_shape)

    def _with_view_step(self, step: ViewStep, shape: Shape) -> "FileConstant":
        values = self.values
        if values is not None:
            is_transpose = step.kind == "transpose"
            values = values.transpose(step.argument) if is_transpose else values.reshape(shape)
        return replace(self, shape=shape, values=values, view_steps=(*self.view_steps, step))

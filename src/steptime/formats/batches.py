"""Build a file that was exported for one batch at another: which axes grow, what is refused."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from steptime.core.errors import shorten
from steptime.core.units import first_of, format_count
from steptime.formats import elements
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder
from steptime.network.ops.reads import select_leading_ops
from steptime.network.ops.table import ShapeError, no_flop

Shape = Sequence[int]
BatchAxes = Mapping[str, int | None]  # a value's name in the file: its batch axis, None for none
MAX_BATCH_POWER = 3  # the batch appears in a product of sizes at most so often


@dataclass(frozen=True)
class Batches:
    """The batch that a file was written for, and the batch that its graph is built for.

    Attributes:
        file_batch: the batch of the shapes that the file states.
        new_batch: the batch of the graph that is built.
        is_fixed: whether the file states one batch. Where the file leaves it open, a size that
            equals `file_batch` is only that size, and never the batch.
        batch_axes: the batch axis of each value that a search (`find_batch_axes`) has decided on,
            because nothing at the value's place tells.
    """

    file_batch: int
    new_batch: int
    is_fixed: bool = True
    batch_axes: BatchAxes = field(default_factory=dict)

    @property
    def differs_from_file(self) -> bool:
        """Whether the graph is built for another batch than the file's."""
        return self.file_batch != self.new_batch

    def view_shape(
        self, file_input_shape: Shape, input_shape: Shape, file_view_shape: Shape
    ) -> tuple[int, ...]:
        """Return the shape of a view in the graph.

        Args:
            file_input_shape: shape of the viewed tensor in the file.
            input_shape: shape of the viewed tensor in the graph.
            file_view_shape: shape of the view in the file.

        Raises:
            ShapeError: if no shape has as many elements as `input_shape`.
        """
        if not self.differs_from_file:
            return tuple(file_view_shape)
        shape = infer_view_shape(file_input_shape, input_shape, file_view_shape, self.file_batch)
        if shape is None:
            raise ShapeError(f"a view made for batch {self.file_batch} fits no other batch")
        return shape

    def expanded_shape(
        self,
        name: str,
        shape: Shape,
        file_expanded: Shape,
        has_grown: bool,
        follows_batch: bool = False,
    ) -> tuple[int, ...]:
        """Return the shape to which a tensor is expanded in the graph.

        An expanded axis is the batch axis where it has the file's batch, and is either the first
        one or the only candidate of a tensor that has not grown yet.

        Args:
            name: the expanded value in the file.
            shape: shape of the tensor in the graph, before it is expanded.
            file_expanded: shape of the expanded value in the file.
            has_grown: whether the tensor is larger in the graph than in the file.
            follows_batch: whether the file computes the sizes from its batch, so that
                `file_expanded` has the new batch already.
        """
        if not self.differs_from_file:
            return tuple(file_expanded)
        new_axis_count = len(file_expanded) - len(shape)
        aligned_shape = (*(1,) * new_axis_count, *shape)  # as many axes as the expanded value
        # an axis of 1 gets the size that the file expands it to; all other axes keep their size
        expanded = [
            file_size if size == 1 else size
            for file_size, size in zip(file_expanded, aligned_shape, strict=True)
        ]
        # A size that equals the file's batch is not replaced by the new batch where the file leaves
        # its batch open (it is only that size), where the file computes it from the batch (it is
        # the new one already), and where the search has decided on the value.
        keeps_sizes = not self.is_fixed or follows_batch or name in self.batch_axes
        if keeps_sizes:
            return tuple(expanded)
        batch_axis = self._find_expanded_batch_axis(aligned_shape, file_expanded, has_grown)
        if batch_axis is not None:
            expanded[batch_axis] = self.new_batch
        return tuple(expanded)

    def _find_expanded_batch_axis(
        self, shape: Shape, file_expanded: Shape, has_grown: bool
    ) -> int | None:
        """Return the axis that becomes the batch when a tensor is expanded, None for none.

        Args:
            shape: shape of the tensor before it is expanded, with as many axes as after.
            file_expanded: shape of the expanded value in the file.
            has_grown: whether the tensor is larger in the graph than in the file.
        """
        if not file_expanded:
            return None
        # the batch is the first axis, or else the only axis of 1 that the file expands to its batch
        starts_with_file_batch = file_expanded[0] == self.file_batch
        can_hold_new_batch = shape[0] in {1, self.new_batch}
        if starts_with_file_batch and can_hold_new_batch:
            return 0
        # the batch is among its axes already
        if has_grown:
            return None
        candidate_axes = [
            axis
            for axis, (file_size, size) in enumerate(zip(file_expanded, shape, strict=True))
            if file_size == self.file_batch and size == 1
        ]
        return candidate_axes[0] if len(candidate_axes) == 1 else None

    def repeat_tensor(self, b: Builder, x: str, axis: int, name: str) -> str:
        """Return the first example of a tensor of the file's batch, expanded to the new batch."""
        example = elements.slice_(b, x, axis, start=0, stop=1, name=f"{name}/first")
        shape = [*b.shape(example)]
        shape[axis] = self.new_batch
        return elements.expand(b, example, shape, f"{name}/batch")

    def check_growth(self, file_shape: Shape, shape: Shape) -> None:
        """Raise `ShapeError` for a tensor that neither keeps its size nor grows with the batch.

        Where the file leaves its batch open, a product of the batch with itself grows with its
        square or its cube.
        """
        # The number of elements stays (power 0) or grows with the batch (1), where it is open also
        # with its square or more, as of all pairs of examples.
        powers = (0, 1) if self.is_fixed else range(MAX_BATCH_POWER + 1)
        if not any(self._grows_by(power, file_shape, shape) for power in powers):
            raise ShapeError(
                f"exported for batch {self.file_batch}, it cannot be made for {self.new_batch}: "
                f"{list(file_shape)} would be {list(shape)}"
            )

    def describe_output_fault(self, name: str, file_shape: Shape, shape: Shape) -> str:
        """Describe an output that does not grow with the batch; "" for one that does.

        Example: `exported for batch 1; output 'y' does not follow another one (--batch 1, ...)`.
        """
        is_scalar = file_shape == shape == ()
        if is_scalar or self.grows_with_batch(file_shape, shape):
            return ""
        # An output of all pairs of examples grows with the square of the batch.
        higher_powers = () if self.is_fixed else range(2, MAX_BATCH_POWER + 1)
        if any(self._grows_by(power, file_shape, shape) for power in higher_powers):
            return ""
        return (
            f"exported for batch {self.file_batch}; output {shorten(name)} does not follow "
            f"another one (--batch {self.file_batch}, or export it with its batch left open)"
        )

    def describe_constant_products(self, b: Builder) -> list[str]:
        """Return a remark on products of constants alone, in a file for one example.

        With a batch of one, such a file cannot tell whether a product is computed once a step or
        once for each example.

        Example: `exported for batch 1: 2 products of constants alone (a, b), counted once a step,
        not for each example`.
        """
        # with a batch of one nothing tells a product for each example from one for the step
        states_single_example = self.is_fixed and self.file_batch == 1
        if not (states_single_example and self.differs_from_file):
            return []
        input_dependent = {*b.inputs}
        constant_products: list[str] = []
        for op in b.ops:
            if not input_dependent.isdisjoint(op.inputs):
                input_dependent.update(op.outputs)
            elif op.kind in elements.PRODUCTS:
                constant_products.append(op.name)
        if not constant_products:
            return []
        count = format_count(len(constant_products), "product")
        products = f"{count} of constants alone ({first_of(constant_products, 2)})"
        return [f"exported for batch 1: {products}, counted once a step, not for each example"]

    def grows_with_batch(self, file_shape: Shape, shape: Shape) -> bool:
        """Whether the number of elements grows by the same factor as the batch."""
        return self._grows_by(1, file_shape, shape)

    def _grows_by(self, power: int, file_shape: Shape, shape: Shape) -> bool:
        """Whether the number of elements grows with a power of the batch."""
        file_element_count = math.prod(file_shape)
        element_count = math.prod(shape)
        # count / file count = (new batch / file batch) ** power, in whole numbers
        scaled_file_count = file_element_count * self.new_batch**power
        return bool(element_count * self.file_batch**power == scaled_file_count)


class _ViewAxis(NamedTuple):
    """An axis of a view.

    The products compare axes of two shapes with the same elements: two axes cover the same elements
    where their ranges from `product_before` to `product_through` overlap. Of [6, 5] viewed as
    [2, 3, 5], the 6 reaches from 1 to 6, the 2 from 1 to 2, and the 3 from 2 to 6.

    Attributes:
        axis: its place in the view.
        size: its size in the file.
        product_before: product of the sizes of all axes before it.
        product_through: the same product times its own size.
        is_last: whether no axis follows it.
    """

    axis: int
    size: int
    product_before: int
    product_through: int
    is_last: bool


def infer_view_shape(
    file_input_shape: Shape, input_shape: Shape, file_view_shape: Shape, file_batch: int
) -> tuple[int, ...] | None:
    """Return the shape of a view in the graph, None if none has as many elements.

    A view keeps the order of elements. For each axis of the input that has grown, the axis of the
    view grows that covers the same elements.

    Args:
        file_input_shape: shape of the viewed tensor in the file.
        input_shape: shape of the viewed tensor in the graph.
        file_view_shape: shape of the view in the file.
        file_batch: the batch that the file was written for.
    """
    if tuple(file_view_shape) == tuple(file_input_shape):
        return tuple(input_shape)
    # A view keeps the elements in order: where an axis of the input has grown, the axis of the view
    # grows that covers the same elements.
    view_axes = _list_view_axes(file_view_shape)
    view_shape = list(file_view_shape)
    product_before = 1  # of the sizes of the input's axes before this one
    for file_size, size in zip(file_input_shape, input_shape, strict=True):
        if size != file_size:
            grown_axis = _find_grown_axis(view_axes, product_before, file_size, file_batch)
            if grown_axis is not None:
                view_shape[grown_axis] = view_shape[grown_axis] * size // file_size
        product_before *= file_size
    keeps_elements = math.prod(view_shape) == math.prod(input_shape)
    return tuple(view_shape) if keeps_elements else None


def _list_view_axes(file_view_shape: Shape) -> list[_ViewAxis]:
    """Return the axes of a view."""
    view_axes: list[_ViewAxis] = []
    product_before = 1
    for axis, size in enumerate(file_view_shape):
        product_through = product_before * size
        is_last = axis == len(file_view_shape) - 1
        view_axes.append(_ViewAxis(axis, size, product_before, product_through, is_last))
        product_before = product_through
    return view_axes


def _find_grown_axis(
    view_axes: Sequence[_ViewAxis], product_before: int, file_size: int, file_batch: int
) -> int | None:
    """Return the axis of a view that grows where an axis of its input does, None for none.

    Args:
        view_axes: the axes of the view.
        product_before: product of the sizes of the input's axes before its grown one.
        file_size: size of the input's axis in the file.
        file_batch: the batch that the file was written for.
    """
    candidates = _list_overlapping_axes(view_axes, product_before, file_size, file_batch)
    # The batch mostly stays an axis of its own.
    batch_sized = [axis for axis in candidates if axis.size == file_batch]
    if len(batch_sized) == 1:
        return batch_sized[0].axis
    # A batch behind other axes may be merged with the heads of attention after it: of
    # [length, n, features] viewed as [length, n * heads, width], n * heads grows. It begins where
    # the batch does, and is not the last axis, which holds features.
    has_axes_before = product_before > 1
    for axis in candidates:
        begins_with_input_axis = axis.product_before == product_before
        if has_axes_before and begins_with_input_axis and not axis.is_last:
            return axis.axis
    return candidates[0].axis if candidates else None


def _list_overlapping_axes(
    view_axes: Sequence[_ViewAxis], product_before: int, file_size: int, file_batch: int
) -> list[_ViewAxis]:
    """Return the axes of a view inside an axis of its input, or around the batch at its front.

    Args are those of `_find_grown_axis`.
    """
    product_through = product_before * file_size
    # the input's axis may be the batch merged with what follows it, such as batch * length
    product_through_batch = product_before * file_batch
    overlapping_axes: list[_ViewAxis] = []
    for axis in view_axes:
        starts_outside = axis.product_before <= product_before
        is_around_batch = starts_outside and axis.product_through >= product_through_batch
        starts_inside = axis.product_before >= product_before
        is_inside = starts_inside and axis.product_through <= product_through
        if is_around_batch or is_inside:
            overlapping_axes.append(axis)
    return overlapping_axes


def find_main_output(b: Builder, outputs: Sequence[str]) -> str:
    """Return the output to which most computing ops lead."""
    if len(outputs) == 1:
        return outputs[0]
    return max(outputs, key=lambda output: _count_computing_ops(b, output))


def _count_computing_ops(b: Builder, output: str) -> int:
    """Count the ops with FLOP that lead to an output."""
    return sum(OPS[op.kind].flop is not no_flop for op in select_leading_ops(b.ops, [output]))

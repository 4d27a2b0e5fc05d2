"""One graph for any batch: sizes of a network as straight lines of its batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from steptime.core.graph import Graph, Op, TensorSpec

_FIXED_FIELDS = tuple(field.name for field in fields(Graph) if field.name not in ("tensors", "ops"))


class NotLinearError(ValueError):
    """Two graphs whose sizes do not follow from each other by the batch."""


@dataclass(frozen=True)
class SizeLine:
    """A whole number that is `intercept + slope * batch`."""

    intercept: int
    slope: int

    def value(self, batch: int) -> int:
        """Return the number at a batch."""
        return self.intercept + self.slope * batch


@dataclass(frozen=True)
class ReciprocalLine:
    """A number that is 1 over a whole number, such as the share of an element in a mean."""

    line: SizeLine

    def value(self, batch: int) -> float:
        """Return the number at a batch."""
        return 1 / self.line.value(batch)


Line = SizeLine | ReciprocalLine
AttributeLine = Line | tuple[Line, ...]


@dataclass(frozen=True)
class GraphTemplate:
    """A graph whose tensors and attributes are straight lines of the batch.

    Attributes:
        graph: the graph at `batches[0]`.
        tensors: the shapes that differ between batches, by tensor.
        attributes: the attributes that differ, by the index of the op.
        batches: the lowest and the highest batch at which the lines were checked.
    """

    graph: Graph
    tensors: Mapping[str, tuple[SizeLine, ...]]
    attributes: Mapping[int, Mapping[str, AttributeLine]]
    batches: tuple[int, int]

    def covers(self, batch: int) -> bool:
        """Whether a batch lies between those at which the lines were checked."""
        return self.batches[0] <= batch <= self.batches[1]

    def build_graph(self, batch: int) -> Graph:
        """Return the graph at a batch."""
        tensors = dict(self.graph.tensors)
        for name, lines in self.tensors.items():
            shape = tuple([line.value(batch) for line in lines])
            tensors[name] = TensorSpec(shape, tensors[name].dtype)
        ops = list(self.graph.ops)
        for op_index, attribute_lines in self.attributes.items():
            values = {name: _evaluate_lines(line, batch) for name, line in attribute_lines.items()}
            ops[op_index] = replace(ops[op_index], attrs={**ops[op_index].attrs, **values})
        return replace(self.graph, tensors=tensors, ops=tuple(ops))


def make_template(graphs: Mapping[int, Graph]) -> GraphTemplate:
    """Return the template of a network from its graphs at three or more batches.

    The lines go through the two lowest batches; the graphs at the others check them.

    Raises:
        NotLinearError: if ops differ, or a size is no straight line of the batch.
    """
    batches = sorted(graphs)
    low_batch, high_batch, *check_batches = batches
    low_graph = graphs[low_batch]
    high_graph = graphs[high_batch]
    _check_ops(low_graph, high_graph)
    tensors: dict[str, tuple[SizeLine, ...]] = {}
    for name, low_spec in low_graph.tensors.items():
        high_spec = high_graph.tensors[name]
        if low_spec.shape == high_spec.shape:
            continue
        axis_sizes = zip(low_spec.shape, high_spec.shape, strict=True)
        tensors[name] = tuple(
            [
                _fit_size_line(low_size, high_size, low_batch, high_batch)
                for low_size, high_size in axis_sizes
            ]
        )
    attributes: dict[int, dict[str, AttributeLine]] = {}
    for op_index, (low_op, high_op) in enumerate(zip(low_graph.ops, high_graph.ops, strict=True)):
        if low_op.attrs != high_op.attrs:
            attributes[op_index] = _fit_attribute_lines(low_op, high_op, low_batch, high_batch)
    template = GraphTemplate(
        graph=low_graph,
        tensors=tensors,
        attributes=attributes,
        batches=(low_batch, batches[-1]),
    )
    # the lines go through the two lowest batches, and the further ones check them
    if any(template.build_graph(batch) != graphs[batch] for batch in check_batches):
        raise NotLinearError("a size is no straight line of the batch")
    return template


def _check_ops(first: Graph, second: Graph) -> None:
    """Raise `NotLinearError` if two graphs differ in more than sizes and attributes."""
    if any(getattr(first, name) != getattr(second, name) for name in _FIXED_FIELDS):
        raise NotLinearError("inputs, weights or remarks differ")
    if first.tensors.keys() != second.tensors.keys() or len(first.ops) != len(second.ops):
        raise NotLinearError("tensors or ops differ")
    for name, first_spec in first.tensors.items():
        second_spec = second.tensors[name]
        has_equal_type = first_spec.dtype == second_spec.dtype
        has_equal_rank = len(first_spec.shape) == len(second_spec.shape)
        if not has_equal_type or not has_equal_rank:
            raise NotLinearError("types or ranks differ")
    for first_op, second_op in zip(first.ops, second.ops, strict=True):
        has_equal_attribute_names = first_op.attrs.keys() == second_op.attrs.keys()
        if not has_equal_attribute_names or _list_fixed_fields(first_op) != _list_fixed_fields(
            second_op
        ):
            raise NotLinearError(f"op {first_op.name} differs")


def _list_fixed_fields(op: Op) -> tuple[object, ...]:
    return (op.name, op.kind, op.inputs, op.outputs, op.part, op.forward_op)


def _fit_attribute_lines(
    low_op: Op, high_op: Op, low_batch: int, high_batch: int
) -> dict[str, AttributeLine]:
    """Return the lines of the attributes that differ between two batches."""
    lines: dict[str, AttributeLine] = {}
    for name, low_value in low_op.attrs.items():
        high_value = high_op.attrs[name]
        if low_value == high_value:
            continue
        if not isinstance(low_value, tuple) or not isinstance(high_value, tuple):
            lines[name] = _fit_line(low_value, high_value, low_batch, high_batch)
            continue
        if len(low_value) != len(high_value):
            raise NotLinearError("an attribute that is no size differs")
        sizes = zip(low_value, high_value, strict=True)
        lines[name] = tuple(
            _fit_line(low_size, high_size, low_batch, high_batch) for low_size, high_size in sizes
        )
    return lines


def _fit_line(low_value: Any, high_value: Any, low_batch: int, high_batch: int) -> Line:
    """Return the line through the values at two batches: whole numbers, or 1 over them."""
    are_floats = isinstance(low_value, float) and isinstance(high_value, float)
    if are_floats and low_value > 0 and high_value > 0:
        low_size, high_size = round(1 / low_value), round(1 / high_value)
        return ReciprocalLine(_fit_size_line(low_size, high_size, low_batch, high_batch))
    return _fit_size_line(low_value, high_value, low_batch, high_batch)


def _fit_size_line(low_size: Any, high_size: Any, low_batch: int, high_batch: int) -> SizeLine:
    if type(low_size) is not int or type(high_size) is not int:
        raise NotLinearError("an attribute that is no size differs")
    slope, remainder = divmod(high_size - low_size, high_batch - low_batch)
    if remainder:
        raise NotLinearError("a size grows by fractions")
    return SizeLine(low_size - slope * low_batch, slope)


def _evaluate_lines(lines: AttributeLine, batch: int) -> Any:
    """Return the value of an attribute, a number or a tuple of numbers, at a batch."""
    if isinstance(lines, tuple):
        return tuple(line.value(batch) for line in lines)
    return lines.value(batch)

"""One graph for any batch: sizes of a network as straight lines of its batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isclose
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
BatchPair = tuple[int, int]  # the two batches that lines go through, the lower one first


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
    line_batches = (low_batch, high_batch)
    template = GraphTemplate(
        graph=low_graph,
        tensors=_fit_shapes(low_graph, high_graph, line_batches),
        attributes=_fit_attributes(low_graph, high_graph, line_batches),
        batches=(low_batch, batches[-1]),
    )
    if any(template.build_graph(batch) != graphs[batch] for batch in check_batches):
        raise NotLinearError("a size is no straight line of the batch")
    return template


def _fit_shapes(low: Graph, high: Graph, batches: BatchPair) -> dict[str, tuple[SizeLine, ...]]:
    """Return the lines of the sizes of each tensor whose shape differs between two batches."""
    lines: dict[str, tuple[SizeLine, ...]] = {}
    for name, low_spec in low.tensors.items():
        high_spec = high.tensors[name]
        if low_spec.shape != high_spec.shape:
            axis_sizes = zip(low_spec.shape, high_spec.shape, strict=True)
            lines[name] = tuple([_fit_size_line(*sizes, batches) for sizes in axis_sizes])
    return lines


def _fit_attributes(
    low: Graph, high: Graph, batches: BatchPair
) -> dict[int, dict[str, AttributeLine]]:
    """Return the lines of the attributes that differ between two batches, by index of the op."""
    return {
        op_index: _fit_attribute_lines(low_op, high_op, batches)
        for op_index, (low_op, high_op) in enumerate(zip(low.ops, high.ops, strict=True))
        if low_op.attrs != high_op.attrs
    }


def _check_ops(first: Graph, second: Graph) -> None:
    """Raise `NotLinearError` if two graphs differ in more than sizes and attributes."""
    if any(getattr(first, name) != getattr(second, name) for name in _FIXED_FIELDS):
        raise NotLinearError("inputs, weights or remarks differ")
    if first.tensors.keys() != second.tensors.keys() or len(first.ops) != len(second.ops):
        raise NotLinearError("tensors or ops differ")
    for name, first_spec in first.tensors.items():
        if not _have_equal_types(first_spec, second.tensors[name]):
            raise NotLinearError("types or ranks differ")
    for first_op, second_op in zip(first.ops, second.ops, strict=True):
        if _list_fixed_fields(first_op) != _list_fixed_fields(second_op):
            raise NotLinearError(f"op {first_op.name} differs")


def _have_equal_types(first: TensorSpec, second: TensorSpec) -> bool:
    """Whether two tensors have one data type and equally many axes."""
    return first.dtype == second.dtype and len(first.shape) == len(second.shape)


def _list_fixed_fields(op: Op) -> tuple[object, ...]:
    """Return the fields of an op that are equal at all batches: all but values of attributes."""
    return (op.name, op.kind, op.inputs, op.outputs, op.part, op.forward_op, op.attrs.keys())


def _fit_attribute_lines(low_op: Op, high_op: Op, batches: BatchPair) -> dict[str, AttributeLine]:
    """Return the lines of the attributes that differ between two batches."""
    lines: dict[str, AttributeLine] = {}
    for name, low_value in low_op.attrs.items():
        high_value = high_op.attrs[name]
        if low_value == high_value:
            continue
        if not isinstance(low_value, tuple) or not isinstance(high_value, tuple):
            lines[name] = _fit_line(low_value, high_value, batches)
            continue
        if len(low_value) != len(high_value):
            raise NotLinearError("an attribute that is no size differs")
        sizes = zip(low_value, high_value, strict=True)
        lines[name] = tuple(_fit_line(low, high, batches) for low, high in sizes)
    return lines


def _fit_line(low_value: Any, high_value: Any, batches: BatchPair) -> Line:
    """Return the line through the values at two batches: whole numbers, or 1 over them."""
    if _is_share(low_value) and _is_share(high_value):
        return ReciprocalLine(_fit_size_line(round(1 / low_value), round(1 / high_value), batches))
    return _fit_size_line(low_value, high_value, batches)


def _is_share(value: Any) -> bool:
    """Whether a number is 1 over a whole number."""
    return isinstance(value, float) and 0 < value <= 1 and isclose(1 / value, round(1 / value))


def _fit_size_line(low_size: Any, high_size: Any, batches: BatchPair) -> SizeLine:
    """Return the line through two whole numbers, if it grows by a whole number for each example."""
    if type(low_size) is not int or type(high_size) is not int:
        raise NotLinearError("an attribute that is no size differs")
    low_batch, high_batch = batches
    slope, remainder = divmod(high_size - low_size, high_batch - low_batch)
    if remainder:
        raise NotLinearError("a size grows by fractions")
    return SizeLine(low_size - slope * low_batch, slope)


def _evaluate_lines(lines: AttributeLine, batch: int) -> Any:
    """Return the value of an attribute, a number or a tuple of numbers, at a batch."""
    if isinstance(lines, tuple):
        return tuple(line.value(batch) for line in lines)
    return lines.value(batch)

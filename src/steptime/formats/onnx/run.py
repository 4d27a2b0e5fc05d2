"""Walks an ONNX graph for one batch: constants are folded, everything else becomes ops."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from steptime.core.errors import shorten
from steptime.formats import READ_ERRORS, describe_error, elements
from steptime.formats.batches import Batches, infer_view_shape
from steptime.formats.onnx.constant import FileConstant, Shape, Spec
from steptime.formats.onnx.fold import (
    ROW_TAKING_OPS,
    WEIGHT_MOVING_OPS,
    Function,
    Quantised,
    Value,
    as_weight,
    fold_node,
    infer_outputs,
)
from steptime.formats.onnx.model import Model, OnnxNode, Subgraph
from steptime.formats.onnx.node_values import NodeValues
from steptime.formats.onnx.opaque import (
    TABLE,
    append_opaque,
    lower_unknown,
    may_hold_products,
    output_specs,
    scale_batch,
)
from steptime.formats.opaque import UnpricedOps
from steptime.formats.patterns import recognise_pattern
from steptime.formats.readers import FileNode, TensorReaders
from steptime.formats.tensors import find_producer
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError, require

MAX_FOLDED_VALUES = 1 << 24  # numbers that are worked out from constants of one file
MAX_NAME_IN_MESSAGE = 60
OPS_WITH_SUBGRAPHS = ("If", "Loop", "Scan")
OPS_NEVER_FOLDED = (  # operators that are lowered even where they read constants alone
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Shape", "Size"),
    *("Cast", "CastLike", "Dropout", "Constant"),
    *("DequantizeLinear", "QuantizeLinear", "DynamicQuantizeLinear", *OPS_WITH_SUBGRAPHS),
)
OPS_WITH_SIZE_INPUTS = (  # operators whose inputs but the first are sizes and indices
    *("Reshape", "Expand", "Tile", "Slice", "Pad", "Resize", "Squeeze", "Unsqueeze", "Split"),
)
T = TypeVar("T")


class OnnxWalk(NodeValues):
    """One walk over the nodes of a file, which appends their ops to a graph.

    Attributes:
        b: the graph so far.
        model: the file.
        handler_by_operator: functions that lower each operator, by its name.
        batches: the batch of the file, and the one that is built.
        allow_unknown: whether an unknown operator passes its input on.
        size_by_name: the sizes that the file has a name for.
        quantised_by_weight: weights that the file keeps in few bits, by their name in the file.
        unpriced: ops of unknown work.
    """

    def __init__(
        self,
        b: Builder,
        model: Model,
        handler_by_operator: Mapping[str, Function],
        batches: Batches,
        file_batch_walk: "OnnxWalk | None",
        allow_unknown: bool,
        size_by_name: Mapping[str, int],
    ) -> None:
        super().__init__(file_batch_walk)
        self.b = b
        self.model = model
        self.handler_by_operator = handler_by_operator
        self.batches = batches
        self.allow_unknown = allow_unknown
        self.size_by_name = size_by_name
        self.unpriced = UnpricedOps()
        self._tensor_readers = TensorReaders(
            [*_list_file_nodes(model.graph.nodes)], model.graph.outputs
        )
        self._folded_value_count = 0
        self.quantised_by_weight: dict[str, Quantised] = {}
        self.value_by_name |= model.graph.constants
        self.repeat_constants(model.graph.constants)

    def lower_graph(self, graph: Subgraph) -> None:
        """Lower the nodes in their order; raises `InputError` that names a node at fault."""
        for node in graph.nodes:
            self.node = node
            try:
                self._lower_and_set_outputs(node)
            except ShapeError as error:
                node_label = self.describe_node(node)
                raise self.make_batch_error(node_label, str(error), node.inputs) from None
            except READ_ERRORS as error:
                node_label = self.describe_node(node)
                fault = f"cannot be read: {describe_error(error)}"
                raise self.make_batch_error(node_label, fault, node.inputs) from None

    def _lower_and_set_outputs(self, node: OnnxNode) -> None:
        """Lower a node and set the values of its outputs in `value_by_name`.

        Outputs beyond those that its function returns get the value of the first, unless they have
        one.
        """
        for name in node.inputs:
            if name not in self.value_by_name:
                raise ShapeError(
                    f"reads {name[:MAX_NAME_IN_MESSAGE]!a}, which no earlier node makes"
                )
        results = self._lower_node(node)
        self.value_by_name.update(zip(node.outputs, results, strict=False))
        for name in node.outputs[len(results) :]:
            # an output that no function makes, such as a mask of dropout, is taken to be like the
            # first
            self.value_by_name.setdefault(name, results[0])
        # an output without a name may have been set above
        self.value_by_name[""] = None
        self.repeat_constants(node.outputs)
        self._record_output_names(node)
        self._check_batch(node)

    def list_inputs(self) -> list[str]:
        """Return the file's inputs."""
        return [graph_input.name for graph_input in self.model.graph.inputs]

    def list_nodes(self) -> list[FileNode]:
        """Return the nodes of the file; inputs that are sizes or indices are left out."""
        nodes: list[FileNode] = []
        for node in self.model.graph.nodes:
            inputs = node.inputs[:1] if node.op in OPS_WITH_SIZE_INPUTS else node.inputs
            nodes.append(FileNode(inputs, node.outputs))
        return nodes

    def describe_node(self, node: OnnxNode) -> str:
        """Return the place of a node in a message: `net.onnx: node 'o' (OneHot)`."""
        return f"{self.model.file_label}: node {shorten(node.name)} ({shorten(node.op)[1:-1]})"

    def _lower_node(self, node: OnnxNode) -> Sequence[Value]:
        """Return the values of a node's outputs: of constants alone, or by its operator's function.

        An operator whose function refuses its shapes, though ONNX allows them, counts by its bytes.
        """
        values = [self.value_by_name[name] for name in node.inputs]
        if node.op in ROW_TAKING_OPS and values:
            # rows of a small table of floats are still those of a weight, which is trained
            values[0] = as_weight(values[0])
        self.input_values = values
        lower_operator = self.handler_by_operator.get(node.op)
        if lower_operator is None:
            is_priced = node.op in TABLE  # by its bytes
            if self._reads_constants_only() and is_priced:
                return self.fold_constants()
            return lower_unknown(self, values)
        if self._is_constant_folded(node):
            return self.fold_constants()
        try:
            return _as_list(lower_operator(self, *values))
        except ShapeError:
            # what no function can lower is counted by the bytes that it moves, where that is
            # allowed
            specs = self._find_specs_for_bytes(node)
            if specs is None:
                raise
            return append_opaque(self, values, specs)

    def _reads_constants_only(self) -> bool:
        """Return whether the node reads at least one constant and nothing else."""
        inputs = [value for value in self.input_values if value is not None]
        return bool(inputs) and all(isinstance(value, FileConstant) for value in inputs)

    def _is_constant_folded(self, node: OnnxNode) -> bool:
        """Return whether the outputs of a known operator are worked out from constants alone.

        Moves of weights are not: they cost the step that makes them. Operators outside of ONNX's
        own domain, whose names have a dot, cannot be.
        """
        if not self._reads_constants_only():
            return False
        is_custom = "." in node.op
        if is_custom or node.op in OPS_NEVER_FOLDED:
            return False
        constants = [value for value in self.input_values if isinstance(value, FileConstant)]
        reads_weight = any(constant.is_weight for constant in constants)
        # moves of weights cost the step that makes them
        moves_weight = reads_weight and node.op in WEIGHT_MOVING_OPS
        return not moves_weight

    def _find_specs_for_bytes(self, node: OnnxNode) -> list[Spec] | None:
        """Return the outputs of a refused node that may count by its bytes, None if it may not."""
        # the fault may be of the batch, which the search for batch axes mends
        has_other_batch = self.batches.differs_from_file and self.batches.is_fixed
        if has_other_batch or may_hold_products(node.op):
            return None
        try:
            infer_outputs(self.node, self.input_values, self.spec)
        except ShapeError:  # ONNX does not allow these shapes either
            return None
        return output_specs(self, self.input_values)

    def fold_constants(self) -> list[FileConstant]:
        """Return the outputs of this node, which reads constants alone.

        Their numbers are dropped once a file made more than `MAX_FOLDED_VALUES`.
        """
        outputs = fold_node(self.node, self.input_values, self.spec)
        value_counts = [output.values.size for output in outputs if output.values is not None]
        self._folded_value_count += sum(value_counts)
        # beyond the limit of memory, constants have a shape alone
        has_room = self._folded_value_count <= MAX_FOLDED_VALUES
        return outputs if has_room else [replace(output, values=None) for output in outputs]

    def output_shape(self, output_index: int = 0) -> Shape:
        """Return the shape of an output of this node by ONNX; raises `ShapeError` if not known."""
        _, shape = infer_outputs(self.node, self.input_values, self.spec)[output_index]
        if shape is None:
            raise ShapeError("a size follows from numbers that are not known")
        return shape

    def lower_branch(self, graph: Subgraph, arguments: Sequence[Value] = ()) -> list[Value]:
        """Lower a branch that is taken, or one turn of a loop, and return its outputs."""
        outer_node = self.node
        input_names = [graph_input.name for graph_input in graph.inputs]
        fits = len(arguments) == len(input_names)
        require(fits, f"{len(arguments)} inputs of {len(input_names)}")
        self.value_by_name.update(zip(input_names, arguments, strict=True))
        self.value_by_name |= graph.constants
        self.lower_graph(graph)
        self.node = outer_node  # `lower_graph` went on to the nodes of the branch
        return [self.value_by_name[name] for name in graph.outputs]

    def recognise_pattern(self, tensor: str) -> str:
        """Return the output of one op if `tensor` ends a pattern of several, else `tensor`."""

        def is_read_outside(pieces: set[str]) -> bool:
            return self._tensor_readers.is_read_outside(
                self.value_by_name, pieces, tensor, self.node.outputs
            )

        return recognise_pattern(self.b, tensor, f"{self.name}/fused", is_read_outside)

    def stated_spec(self, name: str) -> Spec | None:
        """Return type and shape that the file states of a tensor, for the batch that is built.

        None if the file states none, or a size has a name that no input has.
        """
        stated = self.model.find_stated_input(name) if name else None
        if stated is None:
            return None
        # a named size is known if an input has it, too
        sizes = [
            self.size_by_name.get(size) if isinstance(size, str) else size for size in stated.sizes
        ]
        shape = tuple(size for size in sizes if size is not None)
        lacks_size = len(shape) < len(sizes)
        if lacks_size:
            return None
        if self.batches.is_fixed:
            shape = scale_batch(shape, self.batches.file_batch, self.batches.new_batch)
        return stated.dtype, shape

    def _record_output_names(self, node: OnnxNode) -> None:
        """Note the tensors of the graph that a node's outputs stand for."""
        for name in node.outputs:
            value = self.value_by_name.get(name)
            if name and isinstance(value, str):
                self._tensor_readers.add_name_in_file(value, name)

    def lower(
        self, function: Callable[..., T], *values: Any, suffix: str = "", **keywords: Any
    ) -> T:
        """Call a function of `lowering` and return its result.

        Args:
            function: it takes the graph, tensors, and the `name` of its op.
            *values: values of the file, of which constants become tensors, or plain arguments.
            suffix: what the op's name adds to the node's.
            **keywords: the same by keyword; None, an input that is left out, is not passed.
        """

        def to_argument(value: Any) -> Any:
            if isinstance(value, list):
                return [to_argument(element) for element in value]
            if value is None:
                raise ShapeError("an input is missing")
            return self.tensor(value) if isinstance(value, FileConstant) else value

        arguments = [to_argument(value) for value in values]
        # a keyword of None is left to the default of the function
        keyword_arguments = {
            keyword: to_argument(value) for keyword, value in keywords.items() if value is not None
        }
        return function(self.b, *arguments, name=f"{self.name}{suffix}", **keyword_arguments)

    def pointwise(self, function: str, *values: Value, **parameters: Any) -> Value:
        """Return a function of single elements.

        A constant of one element becomes a number of the op. It stays a tensor where it is the bias
        of a product. Axes that it has beyond those of the tensors lead the result, with size 1.
        """
        tensors = [value for value in values if isinstance(value, str)]
        adds_to_product = False
        if function == "add" and len(tensors) == 1:
            product = find_producer(self.b, tensors[0], *elements.PRODUCTS)
            adds_to_product = product is not None
        operands: list[str | float] = []
        for value in values:
            number = self.read_number(value)
            has_axes = bool(self.shape(value))
            # a bias of one element stays a tensor, as a product can add it
            may_be_bias = adds_to_product and has_axes
            if number is None or may_be_bias:
                operands.append(self.tensor(value))
            else:
                operands.append(number)
        has_tensor = any(isinstance(operand, str) for operand in operands)
        if not has_tensor:
            # an op has at least one tensor
            operands[0] = self.tensor(values[0])
        result = elements.pointwise(self.b, function, *operands, name=self.name, **parameters)
        shape = self.b.shape(result)
        rank = max(len(self.shape(value)) for value in values)
        # a constant that became a number lost its axes of 1: the result gets them back
        if rank > len(shape):
            leading_axes = (1,) * (rank - len(shape))
            return elements.reshape(self.b, result, (*leading_axes, *shape), f"{self.name}/axes")
        return self.recognise_pattern(result)

    def expanded_batch_shape(self, shape: Shape, stated_shape: Shape, follows_batch: bool) -> Shape:
        """Return the shape to which this node repeats its input (`Batches.expanded_shape`)."""
        # an input that has another shape than at the file's batch has an axis of examples already
        file_shape = self.file_shape(self.node.inputs[0])
        input_has_grown = file_shape is not None and file_shape != tuple(shape)
        output = self.node.outputs[0]
        # an Expand that changes no size does not tell which axis is the batch
        is_unchanged_expand = self.node.op == "Expand" and shape == self.file_shape(output)
        has_grown = input_has_grown or is_unchanged_expand
        return self.batches.expanded_shape(output, shape, stated_shape, has_grown, follows_batch)

    def reshape_as_in_file(self, x: Value, compute_shape: Callable[[], Shape]) -> Value:
        """Return `x` seen as the file has it for its own batch, scaled to the one that is built.

        Where the file's batch is built, or its view does not scale, it is `compute_shape()`.
        """
        file_input_shape = self.file_shape(self.node.inputs[0])
        file_view_shape = self.file_shape(self.node.outputs[0])
        input_shape = self.shape(x)
        # the view of the file, grown with the batch, else the shape by the node's own rule
        view_shape = None
        if file_input_shape is not None and file_view_shape is not None:
            view_shape = infer_view_shape(
                file_input_shape, input_shape, file_view_shape, self.batches.file_batch
            )
        if view_shape is None:
            try:
                view_shape = compute_shape()
            except ShapeError as error:
                raise ShapeError(f"{error}: written for another batch or size") from None
        keeps_elements = math.prod(input_shape) == math.prod(view_shape)
        shapes = f"{list(input_shape)} to {list(view_shape)}"
        require(keeps_elements, f"reshape {shapes}: written for another batch or size")
        return self.reshape(x, view_shape)

    def _check_batch(self, node: OnnxNode) -> None:
        """Raise `ShapeError` for an output that neither keeps its shape nor grows as the batch."""
        for name in node.outputs:
            value = self.value_by_name.get(name)
            file_shape = self.file_shape(name)
            if name and isinstance(value, str) and file_shape is not None:
                self.batches.check_growth(file_shape, self.b.shape(value))


def _as_list(result: Value | Sequence[Value]) -> list[Value]:
    """Return the outputs of a node as a list; a node of one output returns it alone."""
    if isinstance(result, list | tuple):
        return list(result)
    return [result]  # type: ignore[list-item]  # sequences of values are lists or tuples


def _list_file_nodes(nodes: Sequence[OnnxNode]) -> Iterator[FileNode]:
    """Yield the inputs and outputs of nodes; a node with graphs reads the inputs of those, too."""
    for node in nodes:
        graphs = [value for value in node.attrs.values() if isinstance(value, Subgraph)]
        names_read = [*node.inputs]
        # a node with graphs reads what their nodes read
        for graph in graphs:
            names_read += graph.outputs
            for inner_node in _list_file_nodes(graph.nodes):
                names_read += inner_node.inputs
                yield inner_node
        yield FileNode(names_read, node.outputs)

"""The walk through an exported program that builds its graph, node by node."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steptime.core.errors import shorten
from steptime.core.graph import Checkpoint, TensorSpec
from steptime.core.values import MAX_COUNT
from steptime.formats.batch_search import BatchWalk
from steptime.formats.batches import Batches
from steptime.formats.opaque import UnpricedOps
from steptime.formats.patterns import recognise_pattern
from steptime.formats.pytorch.call import (
    Call,
    Handler,
    ProgramConstant,
    Result,
    Shape,
    Value,
    graph_dtype,
)
from steptime.formats.pytorch.opaque import append_opaque, is_priced, may_hold_products
from steptime.formats.pytorch.program import (
    LOW_DTYPES,
    FxNode,
    NumberRef,
    Program,
    Size,
    TensorRef,
)
from steptime.formats.pytorch.symbols import evaluate_size
from steptime.formats.pytorch.unread import find_unread_ends
from steptime.formats.readers import FileNode, TensorReaders
from steptime.formats.tensors import free_name, is_float
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError, require

OPS_WITH_SIZES = (  # ops whose result has the sizes that their arguments state
    *("expand", "zeros", "ones", "full", "arange", "empty", "rand", "randn", "repeat", "tile"),
    *("new_zeros", "new_ones", "new_full", "new_empty"),
)
LAST_OPS_OF_PATTERNS = ("add", "mul", "matmul", "bmm", "einsum", "sum")
SKIPPED = ("sym_", "_assert", "_local_scalar", "copy_assert", "_guards_fn", "empty_cache")
FAULTS_OF_NODES = (ShapeError, ValueError, LookupError, TypeError, ArithmeticError)


@dataclass
class Walk(BatchWalk):
    """One building of a program's graph.

    Attributes:
        program: the exported program.
        b: the graph so far.
        handler_by_op: the op table: what appends the ops of a node, by the node's op.
        view_handlers: the part of it whose ops are views of what they read.
        base_rebuilders: how a write to a view changes the tensor that the view is of, by the view's
            op.
        value_by_symbol: the values of the program's symbols.
        file_label: the file, as messages name it.
        batches: the batch of the file and the one that is built; if they differ, and the file's is
            fixed, the walk follows what its first axis becomes.
        activates_dropout: whether dropout that was exported in inference mode is active all the
            same.
    """

    program: Program
    b: Builder
    handler_by_op: Mapping[str, Handler]
    view_handlers: Mapping[str, Handler]
    base_rebuilders: Mapping[str, Callable[[Call, Value], Value]]
    value_by_symbol: Mapping[str, int]
    file_label: str
    batches: Batches
    activates_dropout: bool

    def __post_init__(self) -> None:
        self.value_by_name: dict[str, Value] = {}
        self.unpriced = UnpricedOps()
        self._tensor_readers = TensorReaders(self.list_nodes(), self.program.outputs)
        names_read = {name for node in self.program.nodes for name in node.input_names}
        self._names_read = names_read | set(self.program.outputs)
        # truth values and integers that were computed of floats
        self._float_derived: set[str] = set()
        self._recomputed_ops_by_checkpoint: list[set[str]] = [
            set() for _ in self.program.checkpoints
        ]
        self._buffer_by_constant: dict[tuple[str, Shape, str], str] = {}
        # views: a write to one changes its base, too
        self._view_call_by_tensor: dict[str, Call] = {}
        self._file_shapes: dict[str, Shape] = {}
        # where all weights have 16 bits, float32 tensors are the network's own choice, and stay so
        computes_in_16_bits = self.b.precision.compute in LOW_DTYPES
        self._switches_types = computes_in_16_bits and self.program.has_low_weights()

    def evaluate(self, size: Size) -> int:
        """Return a size of the file with its symbols bound; raises `ShapeError`."""
        number = size if isinstance(size, int) else int(evaluate_size(size, self.value_by_symbol))
        require(0 <= number <= MAX_COUNT, f"a size {shorten(number)}")
        return number

    def file_shape(self, name: str) -> Shape:
        """Return the shape that the file states of a tensor, its symbols bound."""
        shape = self._file_shapes.get(name)
        if shape is None:
            shape = tuple(self.evaluate(size) for size in self.program.specs[name].sizes)
            self._file_shapes[name] = shape
        return shape

    def graph_dtype(self, file_dtype: str) -> str:
        """Return the element type that a tensor has in the graph; "" for that of the arithmetic.

        It is float32 if arithmetic of 16 bits is asked for and the network itself asks for more.
        """
        is_wide = self._switches_types and file_dtype not in LOW_DTYPES
        return graph_dtype(file_dtype) or ("float32" if is_wide else "")

    def scale_batch(self, shape: Shape) -> Shape:
        """Replace a first size that is the file's batch by the batch that is built."""
        if shape[:1] == (self.batches.file_batch,):
            return (self.batches.new_batch, *shape[1:])
        return shape

    def look_up(self, argument: Any) -> Any:
        """Return the value of an argument of a node."""
        if isinstance(argument, TensorRef):
            return self.value_by_name[argument]
        if isinstance(argument, NumberRef):
            return self.evaluate(self.program.shape_integers[argument])
        if isinstance(argument, list):
            return [self.look_up(element) for element in argument]
        return argument

    def tensor(self, value: Any) -> str:
        """Return the name of a tensor: a constant becomes a buffer, one for equal views of it."""
        if isinstance(value, str):
            return value
        if not isinstance(value, ProgramConstant):
            raise ShapeError(f"a tensor is wanted, not {shorten(value)}")
        is_scalar = value.shape == ()
        # PyTorch computes with a scalar in the type of the tensor beside it: it widens none.
        dtype = graph_dtype(value.dtype) if is_scalar else self.graph_dtype(value.dtype)
        key = value.origin, value.shape, dtype
        if key not in self._buffer_by_constant:
            name = free_name(self.b, value.origin)
            self._buffer_by_constant[key] = self.b.buffer(name, value.shape, dtype)
        return self._buffer_by_constant[key]

    def shape(self, value: Value) -> Shape:
        """Return the shape of a value."""
        return value.shape if isinstance(value, ProgramConstant) else self.b.shape(value)

    def list_inputs(self) -> list[str]:
        """Return the file's inputs."""
        return self.program.inputs

    def list_nodes(self) -> list[FileNode]:
        """Return the nodes of the file, with the tensors that they read and make."""
        return [FileNode([*node.input_names], node.outputs) for node in self.program.nodes]

    def is_read(self, name: str) -> bool:
        """Whether a node reads a tensor of the file, or the program outputs it."""
        return name in self._names_read

    def run(self) -> list[str]:
        """Build all nodes; return the tensors that the program outputs."""
        self._add_sources()
        for node in self.program.nodes:
            computes_nothing = not node.outputs or node.op.startswith(SKIPPED)
            if computes_nothing:
                continue
            op_count_before = len(self.b.ops)
            try:
                self._build_node(Call(self, node))
            except FAULTS_OF_NODES as error:
                # shortened, without the quotes
                fault = shorten(str(error) or type(error).__name__)[1:-1]
                raise self.make_batch_error(
                    self._describe_node(node), fault, [*node.input_names]
                ) from None
            self._record_output_names(node)
            self._record_recomputed_ops(node, op_count_before)
            self.repeat_constants(node.outputs)
        for op_names, checkpoint in zip(
            self._recomputed_ops_by_checkpoint, self.program.checkpoints, strict=True
        ):
            self.b.checkpoints.append(Checkpoint(frozenset(op_names), checkpoint.to_end))
        outputs = [self.value_by_name[name] for name in self.program.outputs]
        return [value for value in outputs if isinstance(value, str)]

    def list_unread_ends(self) -> list[str]:
        """Return the tensors in which products end that lead to no output of the program."""
        ends = [self.value_by_name.get(name) for name in find_unread_ends(self.program)]
        return [value for value in ends if isinstance(value, str)]

    def _add_sources(self) -> None:
        """Add weights (also those that no node reads), buffers and inputs to the graph."""
        program = self.program
        frozen_paths = program.find_frozen_paths() if self.b.training else set()
        for name, path in program.weight_paths.items():
            self.value_by_name[name] = path
            is_second_name = path in self.b.tensors
            if not is_second_name:
                add_weight = self.b.frozen_weight if path in frozen_paths else self.b.weight
                add_weight(path, self.file_shape(name))
        for name, path in program.buffer_paths.items():
            self.value_by_name[name] = ProgramConstant(
                self.file_shape(name), program.specs[name].dtype, path
            )
        for name in program.inputs:
            dtype = self.graph_dtype(program.specs[name].dtype)
            path = free_name(self.b, name)
            self.value_by_name[name] = self.b.input(
                path, self.scale_batch(self.file_shape(name)), dtype
            )
        self.repeat_constants([*program.weight_paths, *program.buffer_paths])

    def _describe_node(self, node: FxNode) -> str:
        """Say where a node is: `net.pt2: op 'torch.ops.aten.add.Tensor' in 'blocks.0'`."""
        scope = f" in {shorten(node.module_path)}" if node.module_path else ""
        return f"{self.file_label}: op {shorten(node.target)}{scope}"

    def _build_node(self, call: Call) -> None:
        """Append the ops of a node and note what its outputs are."""
        node = call.node
        # a later write to this view changes the tensor that it views, as well
        if node.op in self.base_rebuilders:
            self._view_call_by_tensor[node.outputs[0]] = call
        inputs = [self.value_by_name[name] for name in node.input_names]
        if self._has_constant_result(node, inputs):
            self._record_constants(call, inputs)
            return
        outputs = _list_outputs(self._lower(call, inputs))
        first_output = outputs[0]
        if node.op in LAST_OPS_OF_PATTERNS and isinstance(first_output, str):
            first_output = self._recognise_pattern(call, first_output)
            outputs[0] = first_output
        for name, value in zip(node.outputs, outputs, strict=False):
            if value is not None:
                self.value_by_name[name] = value
                self._check_shape(name, value)
        operand = node.args.get("self", node.args.get("input"))
        if node.is_in_place and isinstance(first_output, str) and isinstance(operand, TensorRef):
            self._set_tensor_and_base(operand, first_output)

    def _record_constants(self, call: Call, inputs: Sequence[Value]) -> None:
        """Note the outputs of a node that reads constants alone; a view keeps its origin."""
        node = call.node
        origin = call.name
        is_view = node.op in self.view_handlers
        if is_view and inputs and isinstance(inputs[0], ProgramConstant):
            origin = inputs[0].origin
        for name in node.outputs:
            shape = self._scale_constant_shape(node, inputs, self.file_shape(name))
            self.value_by_name[name] = ProgramConstant(
                shape, self.program.specs[name].dtype, origin
            )

    def _set_tensor_and_base(self, name: str, value: Value) -> None:
        """Let later readers of a tensor, and of what it is a view of, read its new value."""
        self.value_by_name[name] = value
        view_call = self._view_call_by_tensor.get(name)
        base = view_call.node.args.get("self") if view_call else None
        if view_call and isinstance(base, TensorRef):
            rebuild_base = self.base_rebuilders[view_call.node.op]
            self._set_tensor_and_base(base, rebuild_base(view_call, value))

    def _scale_constant_shape(
        self, node: FxNode, inputs: Sequence[Value], file_shape: Shape
    ) -> Shape:
        """Return a constant's shape for the new batch.

        Its first size grows if an input has grown, or if the node makes a tensor of stated sizes
        whose first is the file's batch.
        """
        if not self.batches.differs_from_file or not file_shape:
            return file_shape
        pairs = zip(node.input_names, inputs, strict=True)
        input_has_grown = any(self.shape(value) != self.file_shape(name) for name, value in pairs)
        # a constant grows with its inputs, or if its node states sizes that begin with the file's
        # batch
        if input_has_grown:
            first_size, *other_sizes = file_shape
            grown_size, remainder = divmod(
                first_size * self.batches.new_batch, self.batches.file_batch
            )
            is_multiple_of_batch = remainder == 0
            return (grown_size, *other_sizes) if is_multiple_of_batch else file_shape
        is_undecided = node.outputs[0] not in self.batches.batch_axes
        states_sizes = node.op in OPS_WITH_SIZES
        return self.scale_batch(file_shape) if states_sizes and is_undecided else file_shape

    def _has_constant_result(self, node: FxNode, inputs: Sequence[Value]) -> bool:
        """Whether no value that the network computes decides a node's result.

        Truth values and integers that follow from integer inputs (masks, positions) are constants:
        they cost next to nothing and have no gradient.
        """
        reads_constants_alone = all(isinstance(value, ProgramConstant) for value in inputs)
        if reads_constants_alone:
            return True
        # masks and positions that follow from integer inputs cost next to nothing, without a
        # gradient
        spec = self.program.specs.get(node.outputs[0])
        makes_integers = spec is not None and not spec.is_floating
        is_view = node.op in self.view_handlers
        if is_view or not makes_integers:
            return False
        return not any(isinstance(value, str) and self.depends_on_floats(value) for value in inputs)

    def depends_on_floats(self, tensor: str) -> bool:
        """Whether a tensor holds floats, or was computed of floats: gates, codes, choices."""
        return is_float(self.b, tensor) or tensor in self._float_derived

    def _lower(self, call: Call, inputs: Sequence[Value]) -> Result:
        """Append a node's ops by the table; an op that is not in it is priced by its bytes."""
        node = call.node
        lower_op = self.handler_by_op.get(node.op)
        is_priced_by_bytes = lower_op is None and is_priced(node.op)
        if is_priced_by_bytes or self._makes_complex_real(node, inputs):
            return append_opaque(call, inputs)
        if lower_op is not None:
            try:
                return lower_op(call)
            except ShapeError:
                # the fault may be of the batch, which the search for batch axes mends
                if self.batches.differs_from_file:
                    raise
                if is_priced(node.op):
                    return append_opaque(call, inputs)
        # an op of unknown work: counted by its bytes, which a remark says
        outputs = append_opaque(call, inputs)
        operator = node.target.removeprefix("torch.ops.")
        self.unpriced.add(outputs[0], operator, may_hold_products(node.target, node.op))
        return outputs

    def _makes_complex_real(self, node: FxNode, inputs: Sequence[Value]) -> bool:
        """Whether a node makes real numbers of complex ones, as `abs` does."""
        input_dtypes = [self.b.tensors[value].dtype for value in inputs if isinstance(value, str)]
        output_dtype = self.program.specs[node.outputs[0]].dtype
        return "float" in output_dtype and any("complex" in dtype for dtype in input_dtypes)

    def opaque_spec(
        self, name: str, inputs: Sequence[Value], node: FxNode, float_dtype: str
    ) -> TensorSpec:
        """Return the spec of an output of an op without a kind: as the file states it."""
        shape = self._scale_constant_shape(node, inputs, self.file_shape(name))
        return TensorSpec(shape, self.graph_dtype(self.program.specs[name].dtype) or float_dtype)

    def _recognise_pattern(self, call: Call, tensor: str) -> str:
        """Replace a tensor by that of a fused kind if it is the last op of a known pattern."""

        def is_read_outside(pieces: set[str]) -> bool:
            return self._tensor_readers.is_read_outside(
                self.value_by_name, pieces, tensor, call.node.outputs
            )

        return recognise_pattern(self.b, tensor, f"{call.name}/fused", is_read_outside)

    def _record_output_names(self, node: FxNode) -> None:
        """Note which tensors of the graph a node's outputs are, and which were computed."""
        inputs = [self.value_by_name.get(name) for name in node.input_names]
        tensors_read = [value for value in inputs if isinstance(value, str)]
        is_derived = any(map(self.depends_on_floats, tensors_read))
        for name in node.outputs:
            value = self.value_by_name.get(name)
            if isinstance(value, str):
                self._tensor_readers.add_name_in_file(value, name)
                if is_derived:
                    self._float_derived.add(value)

    def _record_recomputed_ops(self, node: FxNode, op_count_before: int) -> None:
        """Note the ops appended since `op_count` if the backward pass computes them again."""
        new_op_names = [op.name for op in self.b.ops[op_count_before:]]
        for op_names, checkpoint in zip(
            self._recomputed_ops_by_checkpoint, self.program.checkpoints, strict=True
        ):
            is_in_checkpoint = not checkpoint.names.isdisjoint(node.outputs)
            if is_in_checkpoint:
                op_names.update(new_op_names)

    def _check_shape(self, name: str, value: Value) -> None:
        """Raise `ShapeError` if a lowered op has another shape than the file states."""
        file_shape = self.file_shape(name)
        shape = self.shape(value)
        if self.batches.differs_from_file:
            self.batches.check_growth(file_shape, shape)
        elif file_shape != shape:
            difference = f"{list(shape)}, where the file has {list(file_shape)}"
            raise ShapeError(f"it is lowered to {difference}")


def _list_outputs(result: Result) -> list[Value | None]:
    """List the outputs of a row of the op table, of which one may stand alone."""
    return [result] if isinstance(result, str | ProgramConstant) else list(result)

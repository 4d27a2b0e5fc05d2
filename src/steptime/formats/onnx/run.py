"""Walks an ONNX graph for one batch: constants are worked out, everything else becomes ops."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from steptime.core.errors import shorten
from steptime.formats import READ_ERRORS, describe_error, elements
from steptime.formats.batch_search import BatchWalk
from steptime.formats.batches import Batches, infer_view_shape
from steptime.formats.onnx.fold import (
    REPEATS,
    WEIGHTS_MOVED,
    Function,
    Quantised,
    Spec,
    Value,
    as_weight,
    axis_of,
    cleaned,
    folded,
    inferred,
)
from steptime.formats.onnx.model import Model, OnnxNode, Shape, Static, Step, Subgraph
from steptime.formats.onnx.opaque import (
    TABLE,
    append_opaque,
    grown,
    lower_unknown,
    may_hold_products,
    output_specs,
)
from steptime.formats.opaque import UnpricedOps
from steptime.formats.patterns import recognise_pattern
from steptime.formats.readers import FileNode, TensorReaders
from steptime.formats.tensors import find_producer, free_name
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError, require

MAX_NUMBERS = 1 << 24  # numbers of a file that are worked out
WITH_GRAPHS = ("If", "Loop", "Scan")
AS_THEY_ARE = (  # operators whose row knows what becomes of a constant
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Shape", "Size"),
    *("Cast", "CastLike", "Dropout", "Constant"),
    *("DequantizeLinear", "QuantizeLinear", "DynamicQuantizeLinear", *WITH_GRAPHS),
)
READ_A_SIZE = (  # operators whose inputs but the first are sizes and places
    *("Reshape", "Expand", "Tile", "Slice", "Pad", "Resize", "Squeeze", "Unsqueeze", "Split"),
)
T = TypeVar("T")


class Visit(BatchWalk):
    """One walk: `env` holds what each name of the file stands for, tensors by their builder's name.

    `before` has the shapes of a walk with the file's own batch, None where that is built.
    """

    def __init__(
        self,
        b: Builder,
        model: Model,
        ops: Mapping[str, Function],
        batches: Batches,
        before: "Visit | None",
        allow_unknown: bool,
        named_sizes: Mapping[str, int],
    ) -> None:
        self.b, self.model, self.ops = b, model, ops
        self.named_sizes = named_sizes  # sizes that the file has a name for
        self.unpriced = UnpricedOps()
        self._readers = TensorReaders([*_file_nodes(model.graph.nodes)], model.graph.outputs)
        self.batches, self.before = batches, before
        self.allow_unknown = allow_unknown
        self.env: dict[str, Value] = {"": None}
        self.node = OnnxNode("", "", (), (), {}, 0, NodeProto())
        self.values: Sequence[Value] = ()  # what the node reads
        self.known = 0  # numbers that were worked out
        self.quantised: dict[str, Quantised] = {}  # by the name in the file
        self.roots: dict[str, tuple[str, tuple[Step, ...]]] = {}  # tensors of constants
        self.env |= model.graph.constants
        self.repeat_constants(model.graph.constants)

    def walk(self, graph: Subgraph) -> None:
        """Lower the nodes in their order; raises `InputError`, naming the node that cannot be."""
        for node in graph.nodes:
            self.node = node
            try:
                absent = next((name for name in node.inputs if name not in self.env), "")
                require(not absent, f"reads {absent[:60]!a}, which nothing makes before")
                made = self._made(node)
                self.env.update(zip(node.outputs, made, strict=False))
                for name in node.outputs[len(made) :]:
                    self.env.setdefault(name, made[0])
                self.env[""] = None
                self.repeat_constants(node.outputs)
                self._note_names(node)
                self._follow(node)
            except ShapeError as error:
                raise self.batch_error(self.where(node), str(error), node.inputs) from None
            except READ_ERRORS as error:
                fault = f"cannot be read: {describe_error(error)}"
                raise self.batch_error(self.where(node), fault, node.inputs) from None

    def list_links(self) -> tuple[list[str], list[tuple[Sequence[str], Sequence[str]]]]:
        """Return the file's inputs, and the tensors that each node reads and makes."""
        nodes = self.model.graph.nodes
        reads = [one.inputs[:1] if one.op in READ_A_SIZE else one.inputs for one in nodes]
        makes = [one.outputs for one in nodes]
        return [one.name for one in self.model.graph.inputs], [*zip(reads, makes, strict=True)]

    def where(self, node: OnnxNode) -> str:
        """Return the place of a node in a message: `net.onnx: node 'o' (OneHot)`."""
        return f"{self.model.place}: node {shorten(node.name)} ({shorten(node.op)[1:-1]})"

    def _made(self, node: OnnxNode) -> Sequence[Value]:
        values = [self.env[name] for name in node.inputs]
        if node.op in REPEATS:
            values[:1] = map(as_weight, values[:1])
        self.values = values
        constants = [value for value in values if isinstance(value, Static)]
        alone = 0 < len(constants) == sum(value is not None for value in values)
        function = self.ops.get(node.op)
        if function is None:
            return self.folded() if alone and node.op in TABLE else lower_unknown(self, values)
        moved = node.op in WEIGHTS_MOVED and any(value.is_weight for value in constants)
        if alone and not (moved or "." in node.op or node.op in AS_THEY_ARE):
            return self.folded()
        try:
            return _listed(function(self, *values))
        except ShapeError:
            is_priced = not (self._is_followed() or may_hold_products(node.op))
            specs = output_specs(self, values) if is_priced and self._is_valid(values) else None
            if specs is None:
                raise
            return append_opaque(self, values, specs)

    def _is_valid(self, values: Sequence[Value]) -> bool:
        """Whether the shapes that a node reads are such as ONNX allows."""
        try:
            inferred(self.node, values, self.spec)
        except ShapeError:
            return False
        return True

    def _is_followed(self) -> bool:
        """Whether a node is built for another batch than the one that the file fixes."""
        return self.batches.differ and self.batches.fixed

    def folded(self) -> list[Static]:
        """Return what this node makes of constants alone."""
        made = folded(self.node, self.values, self.spec)
        self.known += sum(0 if one.values is None else one.values.size for one in made)
        return made if self.known <= MAX_NUMBERS else [replace(one, values=None) for one in made]

    def out(self, place: int = 0) -> Shape:
        """Return the shape of an output of this node by ONNX; raises `ShapeError` if not known."""
        shape = inferred(self.node, self.values, self.spec)[place][1]
        require(shape is not None, "a size follows from numbers that are not known")
        return shape or ()

    def branch(self, graph: Subgraph, given: Sequence[Value] = ()) -> list[Value]:
        """Lower a branch that is taken, or a turn of a loop, and return its outputs."""
        node = self.node
        require(len(given) == len(graph.inputs), f"{len(given)} inputs of {len(graph.inputs)}")
        self.env.update(zip((one.name for one in graph.inputs), given, strict=True))
        self.env |= graph.constants
        self.walk(graph)
        self.node = node
        return [self.env[name] for name in graph.outputs]

    def recognise_pattern(self, tensor: str) -> str:
        """Return a tensor, that of a whole kind where it is the last piece of one."""
        return recognise_pattern(
            self.b,
            tensor,
            f"{self.name}/fused",
            lambda pieces: self._readers.is_read_outside(
                self.env, pieces, tensor, self.node.outputs
            ),
        )

    def stated_spec(self, name: str) -> Spec | None:
        """Return type and shape that the file states of a tensor, for the batch that is built.

        None if the file states none, or a size has a name that no input has.
        """
        stated = self.model.stated(name) if name else None
        if stated is None:
            return None
        sizes = [self.named_sizes.get(n) if isinstance(n, str) else n for n in stated.sizes]
        if any(size is None for size in sizes):
            return None
        shape = tuple(size for size in sizes if size is not None)
        if self.batches.fixed:
            shape = grown(shape, self.batches.file_batch, self.batches.new_batch)
        return stated.dtype, shape

    def _note_names(self, node: OnnxNode) -> None:
        """Note which tensors of the graph a node's outputs are."""
        for name in node.outputs:
            value = self.env.get(name)
            if name and isinstance(value, str):
                self._readers.note(value, name)

    @property
    def name(self) -> str:
        """A name for the ops of this node."""
        return cleaned(self.node.name or self.node.op)

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute of this node; raises `ShapeError` for one of another type."""
        value = self.node.attrs.get(name, default)
        if default is not None and type(value) is not type(default):
            require(
                isinstance(default, float) and isinstance(value, int), f"{name} is {shorten(value)}"
            )
        return value

    def axis(self, x: Value, default: int = 0) -> int:
        """Return the attribute `axis`, one of `x`'s counted from the front."""
        return axis_of(self.attr("axis", default), len(self.shape(x)))

    def spec(self, value: Value) -> Spec:
        """Return type and shape of a value."""
        require(value is not None, "an input is missing")
        known = value if isinstance(value, Static) else self.b.tensors[str(value)]
        return known.dtype, known.shape

    def shape(self, value: Value) -> Shape:
        """Return a value's shape."""
        return self.spec(value)[1] or ()

    def is_float(self, value: Value) -> bool:
        """Whether a value is of floating-point numbers."""
        return "float" in self.spec(value)[0]

    def numbers(self, value: Value) -> list[Any]:
        """Return the numbers of a constant, in one list; raises `ShapeError` if not known."""
        known = isinstance(value, Static) and value.values is not None
        require(known, "a size follows from an array whose values are not known")
        return value.values.ravel().tolist()  # type: ignore[union-attr]

    def whole(self, value: Value, attr: str = "") -> tuple[int, ...] | None:
        """Return whole numbers that an input says, or in old opsets an attribute, None if none."""
        if value is None:
            found = self.node.attrs.get(attr)
            return None if found is None else (found,) if isinstance(found, int) else tuple(found)
        values = self.numbers(value)
        require(all(map(math.isfinite, values)), "a size is not a number")
        return tuple(map(int, values))

    def number(self, value: Value) -> float | None:
        """Return the number that a constant of one element is, None for anything else."""
        known = isinstance(value, Static) and value.values is not None and value.values.size == 1
        return self.numbers(value)[0] if known else None

    def tensor(self, value: Value) -> str:
        """Return the tensor of a value; a constant is a weight, or a buffer if it is derived."""
        if isinstance(value, str):
            return value
        require(value is not None, "an input is missing")
        constant: Static = value  # type: ignore[assignment]
        require(constant.dtype != "text", "reads texts")
        if constant.name not in self.roots:
            name = free_name(self.b, cleaned(constant.name) or "constant")
            seen = constant.steps
            at = next((i for i, step in enumerate(seen) if step[0] == "repeat"), len(seen))
            shape = seen[at][2] if at < len(seen) else constant.shape
            if constant.is_float and not constant.derived:
                made = self.b.weight(name, shape)
            else:
                dtype = "" if constant.is_float else constant.dtype
                made = self.b.buffer(name, shape, dtype)
            self.roots[constant.name] = made, seen[:at]
            if shape == constant.shape:
                return made
        made, steps = self.roots[constant.name]
        for kind, how, shape in reversed(steps):
            back = tuple(how.index(i) for i in range(len(how))) if kind == "transpose" else shape
            made = self._seen(made, kind, back)
        for kind, how, _ in constant.steps:
            made = self._seen(made, kind, how)
        return made

    def do(self, function: Callable[..., T], *given: Any, at: str = "", **how: Any) -> T:
        """Return what a function of `lowering` makes of values, under this node's name and `at`.

        A keyword that is None, an input that a node may leave out, is not given.
        """

        def lowered(x: Any) -> Any:
            if isinstance(x, list):
                return [lowered(one) for one in x]
            return self.tensor(x) if x is None or isinstance(x, Static) else x

        tensors = [lowered(x) for x in given]
        more = {key: lowered(x) for key, x in how.items() if x is not None}
        return function(self.b, *tensors, name=f"{self.name}{at}", **more)

    def _seen(self, tensor: str, kind: str, how: Sequence[int]) -> str:
        if kind == "repeat":
            return self.batches.repeat_tensor(self.b, tensor, how[0], self.name)
        view = elements.transpose if kind == "transpose" else elements.reshape
        return view(self.b, tensor, how, f"{self.name}/{kind}")

    def view(self, value: Value, kind: str, how: Sequence[int]) -> Value:
        """Return a value transposed by `how` or seen with the shape `how`, which costs nothing."""
        if isinstance(value, Static):
            return value.viewed(kind, how)
        return self._seen(self.tensor(value), kind, how)

    def constant(self, numbers: Any, dtype: str, derived: bool = False) -> Static:
        """Return numbers that this node makes."""
        values: NDArray[Any] = np.asarray(numbers, dtype)
        name = self.node.outputs[0] if self.node.outputs else ""
        return Static(name, values.shape, dtype, values, derived=derived)

    def pointwise(self, function: str, *values: Value, **how: Any) -> Value:
        """Return a function of single elements."""
        tensors = [v for v in values if isinstance(v, str)]
        if function == "add" and len(tensors) == 1:  # one number is a bias after a product
            product = find_producer(self.b, tensors[0], *elements.PRODUCTS)
        else:
            product = None
        rank = max(len(self.shape(v)) for v in values)
        operands: list[str | float] = []
        for value in values:
            number = self.number(value)
            alone = (
                number is None or (product and self.shape(value)) or len(self.shape(value)) > rank
            )
            operands.append(self.tensor(value) if alone or number is None else number)
        if not any(isinstance(x, str) for x in operands):
            operands[0] = self.tensor(values[0])
        made = elements.pointwise(self.b, function, *operands, name=self.name, **how)
        return self.recognise_pattern(made)

    def widened(self, shape: Shape, told: Shape, follows: bool) -> Shape:
        """Return what this node repeats its input to (`Batches.expanded_shape`)."""
        grown = self.file_shape(self.node.inputs[0]) not in {None, tuple(shape)}
        stays = self.node.op == "Expand" and shape == self.file_shape(self.node.outputs[0])
        return self.batches.expanded_shape(
            self.node.outputs[0], shape, told, grown or stays, follows
        )

    def reshaped(self, x: Value, wanted: Callable[[], Shape]) -> Value:
        """Return `x` seen as the file has it for its own batch, else with the shape `wanted`."""
        file_input = self.file_shape(self.node.inputs[0])
        file_view = self.file_shape(self.node.outputs[0])
        shape = None
        if file_input is not None and file_view is not None:
            file_batch = self.batches.file_batch
            shape = infer_view_shape(file_input, self.shape(x), file_view, file_batch)
        try:
            shape = wanted() if shape is None else shape
        except ShapeError as error:
            raise ShapeError(f"{error}: written for another batch or size") from None
        own, new = list(self.shape(x)), list(shape)
        fits = math.prod(own) == math.prod(new)
        require(fits, f"reshape {own} to {new}: written for another batch or size")
        return self.view(x, "reshape", shape)

    def file_shape(self, name: str) -> Shape | None:
        """Return the shape that a tensor has with the file's own batch."""
        value = self.before.env.get(name) if self.before else None
        return None if self.before is None or value is None else self.before.shape(value)

    def _follow(self, node: OnnxNode) -> None:
        """Refuse what neither stays nor grows as the batch: the file has it for its own."""
        for name in node.outputs:
            value = self.env.get(name)
            told = self.file_shape(name)
            if name and isinstance(value, str) and told is not None:
                self.batches.check_growth(told, self.b.shape(value))


def _listed(made: Value | Sequence[Value]) -> list[Value]:
    return list(made) if isinstance(made, list | tuple) else [made]  # type: ignore[list-item]


def _file_nodes(nodes: Sequence[OnnxNode]) -> Iterator[FileNode]:
    """Yield the inputs and outputs of nodes; a node with graphs reads what those read, too."""
    for node in nodes:
        graphs = [value for value in node.attrs.values() if isinstance(value, Subgraph)]
        inner = [one for graph in graphs for one in _file_nodes(graph.nodes)]
        results = [name for graph in graphs for name in graph.outputs]
        yield from inner
        names = [name for one in inner for name in one.inputs]
        yield FileNode([*node.inputs, *names, *results], node.outputs)

"""An ONNX file as the package `onnx` reads it; its weights are left out before it is parsed.

Format: https://onnx.ai/onnx/repo-docs/IR.html, `onnx.proto`; Protocol Buffers, "Encoding"
(https://protobuf.dev/programming-guides/encoding).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from steptime.core.errors import InputError, shorten
from steptime.formats import READ_ERRORS, Source, describe_error
from steptime.formats.onnx.weightless import DTYPES, NoModelError, WeightlessCopy, is_read
from steptime.network.ops.table import require

try:
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto
except ModuleNotFoundError:
    raise InputError("an ONNX file is read by onnx: pip install 'steptime[onnx]'") from None

MAX_NODES = 300_000
_STANDARD = ("", "ai.onnx")
Shape = tuple[int, ...]
Step = tuple[str, tuple[int, ...], Shape]  # transpose, reshape or repeat, how, the shape before


@dataclass(frozen=True, eq=False)
class Static:
    """What follows from constants alone: a weight of the file, seen through `steps`.

    Its `values` are None where they are many or not read. `derived` is what exporters work out of
    sizes, positions and truth values: a table, not trained.
    """

    name: str
    shape: Shape
    dtype: str
    values: NDArray[Any] | None = None
    steps: tuple[Step, ...] = ()
    derived: bool = False

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return "float" in self.dtype

    @property
    def is_weight(self) -> bool:
        """Whether it is a weight, whose numbers are not known."""
        return self.is_float and not self.derived and self.values is None

    def repeated(self, axis: int, size: int) -> "Static":
        """Return the same weight with so many rows along an axis, its own again and again."""
        values = self.values
        if values is not None:
            values = values.take(range(size), axis, mode="wrap")
        shape = (*self.shape[:axis], size, *self.shape[axis + 1 :])
        steps: tuple[Step, ...] = (*self.steps, ("repeat", (axis,), self.shape))
        return replace(self, shape=shape, values=values, steps=steps)

    def viewed(self, kind: str, how: Sequence[int]) -> "Static":
        """Return the same weight, transposed by `how` or seen with the shape `how`."""
        before = self.shape
        order = tuple(how)
        if kind == "transpose":
            require(sorted(order) == list(range(len(before))), f"transpose {before} by {order}")
            shape = tuple(before[i] for i in order)
        else:
            require(math.prod(order) == math.prod(before), f"reshape {before} to {order}")
            shape = order
        values = None if self.values is None else getattr(self.values, kind)(order)
        steps = (*self.steps, (kind, order, before))
        return replace(self, shape=shape, values=values, steps=steps)


@dataclass(frozen=True)
class OnnxNode:
    """One node: its op, the names of what it reads ("" for none) and makes, its attributes."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    opset: int
    proto: NodeProto


@dataclass(frozen=True)
class OnnxInput:
    """An input: its type, and its sizes, a text where the file names one ("" if it does not)."""

    name: str
    dtype: str
    sizes: tuple[int | str, ...]


@dataclass(frozen=True)
class Subgraph:
    """Nodes in order, constants by name, inputs and outputs; a branch has them too."""

    nodes: tuple[OnnxNode, ...]
    constants: Mapping[str, Static]
    inputs: tuple[OnnxInput, ...]
    outputs: tuple[str, ...]


class Model:
    """An ONNX file: `graph` is what it says, `identity` its bytes without those of its weights."""

    def __init__(self, source: Source) -> None:
        self.place = shorten(source.name)[1:-1]
        content, self._nodes = source.content, 0
        copied = WeightlessCopy(source)
        try:
            proto = onnx.load_model_from_string(copied.copy("model", 0, len(content)))
            if not (proto.HasField("graph") and proto.opset_import):
                absent = "opsets" if proto.HasField("graph") else "graph"
                raise NoModelError(f"it has no {absent}")
            self._functions = {(one.domain, one.name): one for one in proto.functions}
            self.graph = self._graph(proto.graph, _versions(proto))
            values = (*proto.graph.value_info, *proto.graph.output)
            self._stated = {value.name: value for value in values}
        except (*READ_ERRORS, DecodeError) as error:
            reason = error if isinstance(error, NoModelError) else describe_error(error)
            lack = f"is not an ONNX file that can be read: {reason}"
            raise InputError(f"{self.place}: {lack}") from None
        parts, at = [], 0
        for start, end in sorted(copied.unread):
            parts.append(content[at:start])
            at = max(at, end)
        self.identity = b"".join([*parts, content[at:]])

    def stated(self, name: str) -> OnnxInput | None:
        """Return type and sizes that the file states of a tensor, None if it states none."""
        value = self._stated.get(name)
        try:
            is_tensor = value is not None and value.type.tensor_type.HasField("shape")
            return _input(value) if value is not None and is_tensor else None
        except NoModelError:
            return None

    def body(
        self, node: OnnxNode, specs: Sequence[tuple[str, Shape | None] | None]
    ) -> Subgraph | None:
        """Return the nodes that ONNX defines an operator by; None where it defines none.

        Args:
            node: a node of the file.
            specs: type and shape of each of its inputs, None for one that is left out.
        """
        function = _defined(node, specs)
        if function is None:
            return None
        names = dict.fromkeys(function.input, "") | dict(
            [
                *zip(function.input, node.inputs, strict=False),  # those left out stay ""
                *zip(function.output, node.outputs, strict=False),
            ]
        )
        defaults = _default_attributes(node)
        given = (*defaults, *function.attribute_proto, *node.proto.attribute)
        attributes = {one.name: one for one in given}
        opsets = _versions(function) or {"": node.opset}
        nodes = self._expanded(function.node, opsets, attributes, f"{node.name}/", 0, names)
        return Subgraph(tuple(nodes), {}, (), node.outputs)

    def _graph(self, graph: GraphProto, opsets: Mapping[str, int]) -> Subgraph:
        if graph.sparse_initializer:
            raise NoModelError("it has sparse weights")
        constants = {one.name: _constant(one) for one in graph.initializer}
        inputs = map(_input, graph.input)
        return Subgraph(
            tuple(self._expanded(graph.node, opsets, {}, "", 0)),
            constants,
            tuple(value for value in inputs if value.name not in constants),
            tuple(value.name for value in graph.output),
        )

    def _expanded(
        self,
        nodes: Sequence[NodeProto],
        opsets: Mapping[str, int],
        given: Mapping[str, AttributeProto],
        prefix: str,
        depth: int,
        names: Mapping[str, str] | None = None,
    ) -> Iterator[OnnxNode]:
        """Return nodes, local functions replaced by theirs; `names` renames what they read.

        `onnx.inliner` does not bound what a file doubles, nor take a function of another opset.
        """

        def named(name: str) -> str:
            return name if names is None or not name else names.get(name, f"{prefix}{name}")

        if depth > 16:
            raise NoModelError("local functions nest deeper than 16")
        opset = next((opsets[domain] for domain in _STANDARD if domain in opsets), 1)
        for node in nodes:
            self._nodes += 1
            if self._nodes > MAX_NODES:
                raise NoModelError(f"more than {MAX_NODES} nodes")
            proto = _resolved(node, given)
            inputs, outputs = tuple(map(named, node.input)), tuple(map(named, node.output))
            name = f"{prefix}{node.name or (outputs[0] if outputs else node.op_type)}"
            function = self._functions.get((node.domain, node.op_type))
            if function is None:
                op = node.op_type if node.domain in _STANDARD else f"{node.domain}.{node.op_type}"
                attrs = {one.name: self._value(one, opsets) for one in proto.attribute if one.name}
                yield OnnxNode(name, op, inputs, outputs, attrs, opset, proto)
                continue
            inner = dict.fromkeys(function.input, "") | dict(
                [
                    *zip(function.input, inputs, strict=False),  # those left out stay ""
                    *zip(function.output, outputs, strict=False),
                ]
            )
            attributes = {one.name: one for one in (*function.attribute_proto, *proto.attribute)}
            yield from self._expanded(
                function.node,
                _versions(function) or opsets,
                attributes,
                f"{name}/",
                depth + 1,
                inner,
            )

    def _value(self, attribute: AttributeProto, opsets: Mapping[str, int]) -> Any:
        """Return an attribute's value: a number, a text, a tuple, a graph, a constant."""
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, GraphProto):
            return self._graph(value, opsets)
        if isinstance(value, TensorProto):
            return _constant(value)
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, Sequence) and not isinstance(value, str):
            return tuple(one.decode() if isinstance(one, bytes) else one for one in value)
        return value


def _defined(
    node: OnnxNode, specs: Sequence[tuple[str, Shape | None] | None]
) -> FunctionProto | None:
    """Return the function that ONNX defines a node's operator by, None for none."""
    try:
        schema: Any = onnx.defs.get_schema(node.op, node.opset, "")
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        function: FunctionProto = schema.function_body
        return function
    if not schema.has_context_dependent_function:
        return None
    types = [_type_proto(spec).SerializeToString() for spec in specs]
    content = schema.get_context_dependent_function(node.proto.SerializeToString(), types)
    return FunctionProto.FromString(content) if content else None


def _default_attributes(node: OnnxNode) -> list[AttributeProto]:
    """Return the attributes of an operator that have a default."""
    attributes = onnx.defs.get_schema(node.op, node.opset, "").attributes.values()
    defaults = [attribute.default_value for attribute in attributes]
    return [default for default in defaults if default.name]


def _type_proto(spec: tuple[str, Shape | None] | None) -> onnx.TypeProto:
    """Return ONNX's form of type and shape, an empty one for an input that is left out."""
    if spec is None:
        return onnx.TypeProto()
    dtype = "float32" if "float" in spec[0] else spec[0]
    number = next((number for number, row in DTYPES.items() if row[0] == dtype), TensorProto.FLOAT)
    return onnx.helper.make_tensor_type_proto(number, spec[1])


def _constant(tensor: TensorProto) -> Static:
    dtype = DTYPES.get(tensor.data_type, ("text", 0, False))[0]
    values = onnx.numpy_helper.to_array(tensor) if is_read(tensor) else None
    return Static(tensor.name, tuple(tensor.dims), dtype, values)


def _resolved(node: NodeProto, given: Mapping[str, AttributeProto]) -> NodeProto:
    """Return a node of a function with the attributes that it takes from the function's."""
    if not any(one.ref_attr_name for one in node.attribute):
        return node
    resolved = NodeProto()
    resolved.CopyFrom(node)
    del resolved.attribute[:]
    for one in node.attribute:
        if not one.ref_attr_name:
            resolved.attribute.append(one)
        elif one.ref_attr_name in given:
            resolved.attribute.append(given[one.ref_attr_name])
            resolved.attribute[-1].name = one.name
    return resolved


def _versions(proto: onnx.ModelProto | FunctionProto) -> dict[str, int]:
    return {one.domain: one.version for one in proto.opset_import}


def _input(value: onnx.ValueInfoProto) -> OnnxInput:
    if not value.type.HasField("tensor_type"):
        raise NoModelError(f"input {shorten(value.name)} is not a tensor")
    tensor = value.type.tensor_type
    if tensor.elem_type not in DTYPES:
        raise NoModelError(f"input {shorten(value.name)} is not of numbers")
    sizes = tuple(max(one.dim_value, 0) or one.dim_param for one in tensor.shape.dim)
    if any(isinstance(text, bytes) for text in (value.name, *sizes)):
        raise NoModelError("a text that is not UTF-8")
    return OnnxInput(value.name, DTYPES[tensor.elem_type][0], sizes)


def model_of(source: Source) -> Model:
    """Return the model of a file, read once; raises `InputError` for what is not one."""
    return source.memoise(Model, lambda: Model(source))


def identity(source: Source) -> bytes:
    """Return the bytes of a file without those of its weights."""
    return model_of(source).identity

"""The program in a `.pt2` file: nodes, shapes, weights and inputs, by torch.export's schema."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from steptime.core.errors import shorten
from steptime.formats.pytorch.symbols import parse_size, symbol_of
from steptime.network.ops.builder import MAX_OPS

MAX_GRAPH_DEPTH = 20  # graphs within graphs
DTYPES = {
    **dict(enumerate(("uint8", "int8", "int16", "int32", "int64"), start=1)),
    **dict(enumerate(("float16", "float32", "float64"), start=6)),
    **dict(enumerate(("complex32", "complex64", "complex128", "bool", "bfloat16"), start=9)),
}
LOW_DTYPES = {"float16", "bfloat16"}
GRAPH_INDEX_BY_WRAPPER = {  # ops that only run a graph -> its index among their arguments
    "wrap_with_set_grad_enabled": 1,
    "wrap_with_autocast": 4,
    "tag_activation_checkpoint": 0,
    "wrap_activation_checkpoint": 0,
}
BRANCH_ARGUMENTS = (1, 2)  # the indices of the graphs of `cond` among its arguments
POSITIONAL = 1  # the kind of an argument that is passed by its place
OP_NAME_INDEX = 3  # among the words of `torch.ops.aten.add_.Tensor`
STACK_ENTRY_FIELDS = 3  # of an entry of `nn_module_stack`: key, path of the module, class
_KINDS_OF_PLAIN_VALUES = ("as_int", "as_bool", "as_string", "as_scalar_type")
_REFUSED_KINDS = ("as_graph", "as_custom_obj", "as_operator")

Size = int | ast.expr


class SizeLimits(NamedTuple):
    """The lowest and highest value of a symbol; None for no highest."""

    lowest: int
    highest: int | None


NO_LIMITS = SizeLimits(lowest=0, highest=None)


class TensorRef(str):
    """The name of a tensor among the arguments of a node."""

    __slots__ = ()


class NumberRef(str):
    """The name of an integer that follows from shapes, among the arguments of a node."""

    __slots__ = ()


@dataclass(frozen=True)
class Spec:
    """Element type and shape of a tensor, as the file states them."""

    dtype: str
    sizes: tuple[Size, ...]

    @property
    def is_floating(self) -> bool:
        """Whether elements are floating numbers, real or complex."""
        return "float" in self.dtype or "complex" in self.dtype


@dataclass(frozen=True)
class FxNode:
    """A call of an op.

    Attributes:
        target: the op, as the file names it: `torch.ops.aten.add_.Tensor`.
        module_path: the path of the module that calls it.
        args: its arguments by name.
        outputs: the names of the tensors that it makes.
    """

    target: str
    module_path: str
    args: Mapping[str, Any]
    outputs: tuple[str, ...]

    @property
    def op(self) -> str:
        """The op's name alone: `add` of `torch.ops.aten.add_.Tensor`."""
        words = self.target.split(".")
        has_namespaces = len(words) > OP_NAME_INDEX
        name = words[OP_NAME_INDEX] if has_namespaces else words[-1]
        return name if name.startswith("_") else name.rstrip("_")

    @property
    def is_in_place(self) -> bool:
        """Whether it writes into its first input, as `torch.ops.aten.add_.Tensor` does."""
        return self.target.rpartition(".")[0].endswith("_")  # without the overload

    @property
    def input_names(self) -> Iterator[str]:
        """The names of the tensors that it reads."""
        for argument in self.args.values():
            elements = argument if isinstance(argument, list) else [argument]
            for element in elements:
                if isinstance(element, TensorRef):
                    yield element


class CheckpointedTensors(NamedTuple):
    """The tensors of a checkpointed part of a network.

    The backward pass computes them again, up to the last that it needs, or all if `to_end`.
    """

    names: frozenset[str]
    to_end: bool


@dataclass
class Program:
    """An exported network. Tensors have the names of the graph; `path` is a module's own name.

    Attributes:
        nodes: its nodes in order, those of inner graphs in place of the node that runs them.
        specs: element types and shapes, by tensor.
        shape_integers: integers that follow from shapes, by name.
        inputs: its floating, integer and bool inputs.
        weight_paths: path of each parameter, by its tensor; tied weights have one path.
        frozen_weights: the parameters that ask for no gradient.
        buffer_paths: path of each buffer, by its tensor.
        outputs: the tensors that it gives.
        symbol_limits: the limits of each symbol.
        export_values: the value of each symbol at export.
        checkpoints: the parts under activation checkpointing.
        tie_doubt: what the file leaves open about its weights, "" for nothing.
        remarks: what else the reader should know.
    """

    nodes: list[FxNode] = field(default_factory=list)
    specs: dict[str, Spec] = field(default_factory=dict)
    shape_integers: dict[str, Size] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    weight_paths: dict[str, str] = field(default_factory=dict)
    frozen_weights: set[str] = field(default_factory=set)
    buffer_paths: dict[str, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    symbol_limits: dict[str, SizeLimits] = field(default_factory=dict)
    export_values: dict[str, int] = field(default_factory=dict)
    checkpoints: list[CheckpointedTensors] = field(default_factory=list)
    tie_doubt: str = ""
    remarks: list[str] = field(default_factory=list)

    def find_frozen_paths(self) -> set[str]:
        """Return the paths of weights without a gradient; none where all are frozen.

        A network whose weights are all frozen was exported for inference. A tied weight is frozen
        if all its names are.
        """
        trained_paths = {
            path for name, path in self.weight_paths.items() if name not in self.frozen_weights
        }
        is_for_inference = not trained_paths  # then no weight has a gradient, and none is frozen
        return set() if is_for_inference else set(self.weight_paths.values()) - trained_paths

    def has_low_weights(self) -> bool:
        """Whether all weights have 16 bits, so that the network itself asks for float32."""
        dtypes = {
            self.specs[name].dtype for name in self.weight_paths if self.specs[name].is_floating
        }
        return len(dtypes) == 1 and dtypes <= LOW_DTYPES

    def add_graph(self, graph: Mapping[str, Any], prefix: str = "", depth: int = 0) -> None:
        """Add the nodes of a graph, its tensors named with a prefix."""
        if depth > MAX_GRAPH_DEPTH:
            raise ValueError(f"more than {MAX_GRAPH_DEPTH} graphs in each other")
        for name, spec in graph["tensor_values"].items():
            sizes = tuple(self._read_size(size) for size in spec["sizes"])
            self.specs[prefix + name] = Spec(DTYPES[spec["dtype"]], sizes)
            is_frozen = spec.get("requires_grad") is False
            if is_frozen:
                self.frozen_weights.add(prefix + name)
        for name, size in graph["sym_int_values"].items():
            self.shape_integers[prefix + name] = self._read_size(size)
        for node in graph["nodes"]:
            if len(self.nodes) >= MAX_OPS:
                raise ValueError(f"more than {MAX_OPS} nodes")
            self._add_node(node, prefix, depth)

    def _add_node(self, node: Mapping[str, Any], prefix: str, depth: int) -> None:
        """Add a node; one that only runs a graph is replaced by the nodes of that graph."""
        target = str(node["target"])
        inputs = node["inputs"]
        output_names = [_list_names(output, prefix) for output in node["outputs"]]
        outputs = tuple(name for names in output_names for name in names)
        op_name = target.rpartition(".")[2]
        if op_name in GRAPH_INDEX_BY_WRAPPER:
            self._add_wrapped_graph(op_name, inputs, prefix, outputs, depth)
        elif op_name == "cond":
            self._add_larger_branch(inputs, prefix, outputs, depth)
        else:
            arguments = _read_arguments(inputs, prefix)
            self.nodes.append(FxNode(target, _module_path(node), arguments, outputs))

    def _add_wrapped_graph(
        self,
        wrapper: str,
        inputs: Sequence[Mapping[str, Any]],
        prefix: str,
        outputs: Sequence[str],
        depth: int,
    ) -> None:
        """Add the graph of a wrapper: a region without gradient, of autocast, or a checkpoint."""
        graph_index = GRAPH_INDEX_BY_WRAPPER[wrapper]
        # the operands of the graph follow it; arguments by keyword are settings of the wrapper
        operands = [
            argument["arg"]
            for argument in inputs[graph_index + 1 :]
            if argument.get("kind", POSITIONAL) == POSITIONAL
        ]
        first_inner_node = len(self.nodes)
        sets_gradients = "set_grad" in wrapper
        # the first argument of `set_grad` says whether its graph has gradients
        is_detached = sets_gradients and not _read_argument(inputs[0]["arg"], prefix)
        self._add_inner_graph(inputs[graph_index], operands, prefix, outputs, depth, is_detached)
        if "checkpoint" in wrapper:
            inner_nodes = self.nodes[first_inner_node:]
            names = frozenset(name for node in inner_nodes for name in node.outputs)
            # The backward pass repeats the ops up to the last one that it needs, not all of them.
            self.checkpoints.append(CheckpointedTensors(names, to_end=False))

    def _add_inner_graph(
        self,
        argument: Mapping[str, Any],
        operands: Sequence[Mapping[str, Any]],
        prefix: str,
        outputs: Sequence[str],
        depth: int,
        is_detached: bool = False,
    ) -> None:
        """Add the nodes of the graph in an argument of a node; its results may be detached."""
        graph_argument = argument["arg"]["as_graph"]
        graph = graph_argument["graph"]
        inner_prefix = f"{prefix}{graph_argument['name']}.{len(self.nodes)}."
        # the inputs of the inner graph are further names of the operands
        for inner_input, operand in zip(graph["inputs"], operands, strict=True):
            outer_value = _read_argument(operand, prefix)
            self._add_alias(outer_value, _read_argument(inner_input, inner_prefix))
        self.add_graph(graph, inner_prefix, depth + 1)
        alias_op = "detach" if is_detached else "alias"
        for inner_output, outer_name in zip(graph["outputs"], outputs, strict=True):
            inner_value = _read_argument(inner_output, inner_prefix)
            self._add_alias(inner_value, outer_name, alias_op)

    def _add_larger_branch(
        self, inputs: Sequence[Mapping[str, Any]], prefix: str, outputs: Sequence[str], depth: int
    ) -> None:
        """Add the branch of `cond` with more nodes, and a remark: values choose the branch."""
        branches = [inputs[index] for index in BRANCH_ARGUMENTS]
        larger_branch = max(branches, key=_count_inner_nodes)
        operands_index = BRANCH_ARGUMENTS[-1] + 1
        ((kind, value),) = inputs[operands_index]["arg"].items()  # a list, or one operand alone
        stated_operands = value if isinstance(value, list) else [{kind: value}]
        operands: list[Mapping[str, Any]] = []
        for operand in stated_operands:
            is_bare_tensor = "name" in operand  # an element of a list of tensors states no kind
            operands.append({"as_tensor": operand} if is_bare_tensor else operand)
        self._add_inner_graph(larger_branch, operands, prefix, outputs, depth)
        self.remarks.append("torch.cond: values choose the branch; the larger one is counted")

    def _add_alias(self, value: Any, name: str, op: str = "alias") -> None:
        """Give a value another name; for a tensor by a node."""
        if isinstance(value, TensorRef):
            self.nodes.append(FxNode(f"torch.ops.aten.{op}.default", "", {"self": value}, (name,)))
        elif isinstance(value, NumberRef):
            self.shape_integers[name] = self.shape_integers[value]

    def _read_size(self, size: Mapping[str, Any]) -> Size:
        """Return a size as a number or an expression; note the value of a symbol at export."""
        if "as_int" in size:
            number = size["as_int"]
            if type(number) is not int:
                raise ValueError(f"a size {shorten(number)}")
            return number
        stated = size["as_expr"]
        expression = parse_size(stated["expr_str"])
        symbol = symbol_of(expression)
        hint = stated.get("hint")  # the value at export
        if symbol and hint:
            self.export_values.setdefault(symbol, int(hint["as_int"]))
        return expression


def _count_inner_nodes(argument: Mapping[str, Any]) -> int:
    return len(argument["arg"]["as_graph"]["graph"]["nodes"])


def _module_path(node: Mapping[str, Any]) -> str:
    """Return the path of the innermost module that calls a node, "" where it is not stated."""
    stack = node["metadata"].get("nn_module_stack") or ""
    innermost = stack.split(";")[-1].split(",")
    return innermost[1] if len(innermost) == STACK_ENTRY_FIELDS else ""


def _list_names(output: Mapping[str, Any], prefix: str) -> list[str]:
    """Return the names of the tensors in an output of a node."""
    ((kind, value),) = output.items()  # an object of one key
    holds_tensors = kind.startswith("as_") and "tensor" in kind
    if not holds_tensors:
        return []
    is_list = kind in {"as_tensors", "as_optional_tensors"}
    tensors = value if is_list else [value]
    return [prefix + _tensor_name(tensor) for tensor in tensors]


def _tensor_name(tensor: Mapping[str, Any]) -> str:
    """Return the name of a tensor, which may stand in an object of its own, `as_tensor`."""
    name: str = (tensor.get("as_tensor") or tensor)["name"]
    return name


def _read_arguments(inputs: Sequence[Mapping[str, Any]], prefix: str) -> dict[str, object]:
    """Return the arguments of a node by name; one without a name has its position."""
    value_by_name: dict[str, object] = {}
    for position, argument in enumerate(inputs):
        name = argument["name"] or str(position)
        value_by_name[name] = _read_argument(argument["arg"], prefix)
    return value_by_name


def _read_argument(argument: Mapping[str, Any], prefix: str) -> Any:
    """Return a number, a text, a `TensorRef`, a `NumberRef`, a list of such, or None."""
    ((kind, value),) = argument.items()  # an object of one key
    if kind in _REFUSED_KINDS:
        # named without its "as_"
        raise ValueError(f"an argument of kind {kind[3:]}")
    if kind in _KINDS_OF_PLAIN_VALUES:
        return value
    if kind == "as_float":  # infinities and NaN are texts
        return float(value)
    if kind == "as_complex":
        # numbers do not change the cost
        return float(value["real"])
    if isinstance(value, list):
        return _read_list(kind, value, prefix)
    is_tensor = kind in {"as_tensor", "as_optional_tensor"} and value
    if is_tensor:
        return TensorRef(prefix + _tensor_name(value))
    if kind == "as_name":
        return NumberRef(prefix + value)
    if kind.startswith("as_sym_"):  # a number or the name of one
        return _read_argument(value, prefix)
    return None


def _read_list(kind: str, values: Sequence[Any], prefix: str) -> list[Any]:
    """Return the elements of a list, of which each states its kind or has that of the list."""
    singular_kind = kind[:-1]  # `as_tensors` holds elements of the kind `as_tensor`
    element_kind = singular_kind.replace("nested_", "")
    elements = [element if _has_kind(element) else {element_kind: element} for element in values]
    return [_read_argument(element, prefix) for element in elements]


def _has_kind(element: object) -> bool:
    """Whether an element of a list is an object `{kind: value}`."""
    return isinstance(element, dict) and "name" not in element

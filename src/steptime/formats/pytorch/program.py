"""What `models/model.json` of a `.pt2` file says: nodes, arguments, shapes, and what is a weight.

The schema is torch.export's (`torch/_export/serde/schema.py`), major version 8. Shapes are whole
numbers, or texts that `symbols` reads.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from steptime.core.errors import InputError, shorten
from steptime.core.units import first_of
from steptime.formats import Source, parse_json_file
from steptime.formats.archive import read_member
from steptime.formats.code import read_export_facts
from steptime.formats.pytorch.symbols import parsed, symbol_of
from steptime.network.ops.builder import MAX_OPS

MAJOR = 8
MOST_NESTED = 20
DTYPES = {
    **dict(enumerate(("uint8", "int8", "int16", "int32", "int64"), start=1)),
    **dict(enumerate(("float16", "float32", "float64"), start=6)),
    **dict(enumerate(("complex32", "complex64", "complex128", "bool", "bfloat16"), start=9)),
}
WRAPPERS = {  # ops that only run a graph -> the place of that graph among their arguments
    "wrap_with_set_grad_enabled": 1,
    "wrap_with_autocast": 4,
    "tag_activation_checkpoint": 0,
    "wrap_activation_checkpoint": 0,
}
BRANCHES = (1, 2)  # the places of the graphs of `cond`
POSITIONAL = 1  # the kind of an argument that is passed by its place
_PLAIN = ("as_int", "as_bool", "as_string", "as_scalar_type")
_CONFIG = re.compile(r"([^/]*/)?data/weights/model_weights_config\.json")
_REFUSED = ("as_graph", "as_custom_obj", "as_operator")

Size = int | ast.expr


class Ref(str):
    """The name of a tensor among the arguments of a node."""

    __slots__ = ()


class Sym(str):
    """The name of a whole number that follows from shapes, among the arguments of a node."""

    __slots__ = ()


@dataclass(frozen=True)
class Spec:
    """Element type and shape of a tensor, as the file says them."""

    dtype: str
    sizes: tuple[Size, ...]

    @property
    def is_floating(self) -> bool:
        """Whether elements are floating numbers, real or complex."""
        return "float" in self.dtype or "complex" in self.dtype


@dataclass(frozen=True)
class FxNode:
    """A call of an op: `target` as the file has it, `scope` the path of the module that calls.

    `outputs` are the names of tensors.
    """

    target: str
    scope: str
    args: Mapping[str, Any]
    outputs: tuple[str, ...]

    @property
    def op(self) -> str:
        """The op's name alone: `add` of `torch.ops.aten.add_.Tensor`."""
        parts = self.target.split(".")
        name = parts[3] if len(parts) > 3 else parts[-1]
        return name if name.startswith("_") else name.rstrip("_")

    @property
    def tensors(self) -> Iterator[str]:
        """The names of the tensors that it reads."""
        for value in self.args.values():
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, Ref):
                    yield one


class CheckpointedTensors(NamedTuple):
    """Tensors of a part of a network that is computed again, up to the last needed or `to_end`."""

    names: frozenset[str]
    to_end: bool


@dataclass
class Program:
    """An exported network; `weights` and `buffers` are its names for them -> their own.

    Tied weights have one name of their own. `doubt` is what the file leaves open about them.
    `frozen` are the weights, by the name of the file, that ask for no gradient.
    """

    nodes: list[FxNode] = field(default_factory=list)
    specs: dict[str, Spec] = field(default_factory=dict)
    numbers: dict[str, Size] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    weights: dict[str, str] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    buffers: dict[str, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    ranges: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    checkpoints: list[CheckpointedTensors] = field(default_factory=list)
    doubt: str = ""
    remarks: list[str] = field(default_factory=list)

    def add_graph(self, graph: Any, prefix: str = "", depth: int = 0) -> None:
        """Add the nodes of a graph, its tensors named behind `prefix`."""
        if depth > MOST_NESTED:
            raise ValueError(f"more than {MOST_NESTED} graphs in each other")
        for name, spec in graph["tensor_values"].items():
            sizes = tuple(self._size(size) for size in spec["sizes"])
            self.specs[prefix + name] = Spec(DTYPES[spec["dtype"]], sizes)
            if spec.get("requires_grad") is False:
                self.frozen.add(prefix + name)
        for name, size in graph["sym_int_values"].items():
            self.numbers[prefix + name] = self._size(size)
        for node in graph["nodes"]:
            if len(self.nodes) >= MAX_OPS:
                raise ValueError(f"more than {MAX_OPS} nodes")
            self._add_node(node, prefix, depth)

    def _add_node(self, node: Any, prefix: str, depth: int) -> None:
        target, given = str(node["target"]), node["inputs"]
        outputs = tuple(name for one in node["outputs"] for name in _names(one, prefix))
        kind = target.rpartition(".")[2]
        if kind in WRAPPERS:
            place = WRAPPERS[kind]
            operands = [one["arg"] for one in given[place + 1 :] if _is_positional(one)]
            start = len(self.nodes)
            detached = "set_grad" in kind and not _value(given[0]["arg"], prefix)
            self._add_inner(given[place], operands, prefix, outputs, depth, detached)
            if "checkpoint" in kind:
                self._add_checkpoint(start)
            return
        if kind == "cond":
            self._add_branches(given, prefix, outputs, depth)
            return
        stack = (node["metadata"].get("nn_module_stack") or "").split(";")[-1].split(",")
        scope = stack[1] if len(stack) == 3 else ""
        arguments = {
            one["name"] or str(i): _value(one["arg"], prefix) for i, one in enumerate(given)
        }
        self.nodes.append(FxNode(target, scope, arguments, outputs))

    def _add_inner(
        self,
        inner: Any,
        arguments: Sequence[Any],
        prefix: str,
        outputs: Sequence[str],
        depth: int,
        detached: bool = False,
    ) -> None:
        """Add the nodes of a graph that a node runs; its results may be `detached`."""
        called = inner["arg"]["as_graph"]
        graph = called["graph"]
        within = f"{prefix}{called['name']}.{len(self.nodes)}."
        for name, argument in zip(graph["inputs"], arguments, strict=True):
            self._alias(_value(argument, prefix), _value(name, within))
        self.add_graph(graph, within, depth + 1)
        for result, name in zip(graph["outputs"], outputs, strict=True):
            self._alias(_value(result, within), name, "detach" if detached else "alias")

    def _add_branches(
        self, given: Sequence[Any], prefix: str, outputs: Sequence[str], depth: int
    ) -> None:
        """Add the branch of `cond` that has more nodes, and a remark: values choose the branch."""
        branches = [given[place] for place in BRANCHES]
        larger = max(branches, key=lambda one: len(one["arg"]["as_graph"]["graph"]["nodes"]))
        operands = given[BRANCHES[-1] + 1]["arg"]
        ((kind, values),) = operands.items()
        arguments = [
            one if "name" not in one else {"as_tensor": one}
            for one in (values if isinstance(values, list) else [{kind: values}])
        ]
        self._add_inner(larger, arguments, prefix, outputs, depth)
        self.remarks.append("torch.cond: values choose the branch; the larger one is counted")

    def _add_checkpoint(self, start: int, to_end: bool = False) -> None:
        """Note that the nodes from `start` on are computed again in the backward pass."""
        names = frozenset(name for node in self.nodes[start:] for name in node.outputs)
        self.checkpoints.append(CheckpointedTensors(names, to_end))

    def _alias(self, value: Any, name: str, op: str = "alias") -> None:
        if isinstance(value, Ref):
            self.nodes.append(FxNode(f"torch.ops.aten.{op}.default", "", {"self": value}, (name,)))
        elif isinstance(value, Sym):
            self.numbers[name] = self.numbers[value]

    def _size(self, size: Any) -> Size:
        if "as_int" in size:
            if type(size["as_int"]) is not int:
                raise ValueError(f"a size {shorten(size['as_int'])}")
            return int(size["as_int"])
        expression = size["as_expr"]
        found = parsed(expression["expr_str"])
        if (symbol := symbol_of(found)) and expression.get("hint"):
            self.hints.setdefault(symbol, int(expression["hint"]["as_int"]))
        return found


def frozen_paths(program: Program) -> set[str]:
    """Return the weights that ask for no gradient; none where that is all of them.

    A network whose weights are all frozen was exported to infer. Of tied weights each must be.
    """
    trained = {path for name, path in program.weights.items() if name not in program.frozen}
    return set(program.weights.values()) - trained if trained else set()


def document_of(source: Source) -> Any:
    """Return the values of a file's `models/model.json`; raises `InputError`."""
    document = re.compile(r"([^/]*/)?models/model\.json")
    found = read_member(source, document.fullmatch, "models/model.json of torch.export.save")
    return parse_json_file(found, f"model {shorten(source.path)}: model.json")


def program_of(
    document: Any, ties: Mapping[str, str] | None, about: Mapping[str, Any] | None = None
) -> Program:
    """Return the program that a file holds.

    Args:
        document: the values of its `models/model.json`.
        ties: the second names of tied weights (`ties_of`).
        about: what our own export says of the code beside the program.
    """
    version = document["schema_version"]["major"]
    if version != MAJOR:
        raise InputError(f"version {shorten(version)} of torch.export's schema; this reads {MAJOR}")
    program, module = Program(), document["graph_module"]
    program.add_graph(module["graph"])
    for one in module["signature"]["input_specs"]:
        ((kind, spec),) = one.items()
        name = (spec["arg"].get("as_tensor") or spec["arg"]).get("name")
        if kind == "parameter":
            program.weights[name] = spec["parameter_name"]
        elif kind in {"buffer", "tensor_constant"}:
            program.buffers[name] = spec[f"{kind}_name"]
        elif kind == "user_input" and "as_tensor" in spec["arg"]:
            program.inputs.append(name)
    for one in module["signature"]["output_specs"]:
        ((kind, spec),) = one.items()
        if kind in {"user_output", "loss_output"} and "as_tensor" in spec["arg"]:
            program.outputs.append(spec["arg"]["as_tensor"]["name"])
    for symbol, limits in document["range_constraints"].items():
        least, most = limits["min_val"], limits["max_val"]
        program.ranges[symbol] = int(least or 0), None if most is None else int(most)
    for names, to_end in (about or {}).get("checkpoints", ()):
        program.checkpoints.append(CheckpointedTensors(frozenset(names), bool(to_end)))
    program.frozen &= program.weights.keys()
    if ties is None:
        program.doubt = _doubt(program)
    _tie(program, ties or {})
    return program


def _is_positional(argument: Any) -> bool:
    return bool(argument.get("kind", POSITIONAL) == POSITIONAL)


def _names(output: Any, prefix: str) -> list[str]:
    ((kind, value),) = output.items()
    several = value if kind in {"as_tensors", "as_optional_tensors"} else [value]
    named = kind.startswith("as_") and "tensor" in kind
    return [prefix + (one.get("as_tensor") or one)["name"] for one in several] if named else []


def _value(argument: Any, prefix: str) -> Any:
    """Return an argument: a number, a text, a `Ref`, a `Sym`, a list of such, or None."""
    ((kind, value),) = argument.items()
    if kind in _REFUSED:
        raise ValueError(f"an argument of kind {kind[3:]}")
    if kind in _PLAIN:
        return value
    if kind == "as_float":  # infinities and NaN are texts
        return float(value)
    if kind == "as_complex":
        return float(value["real"])
    if isinstance(value, list):
        single = kind[:-1].replace("nested_", "")
        wrapped = [
            one if isinstance(one, dict) and "name" not in one else {single: one} for one in value
        ]
        return [_value(one, prefix) for one in wrapped]
    if kind in {"as_tensor", "as_optional_tensor"} and value:
        return Ref(prefix + (value.get("as_tensor") or value)["name"])
    if kind == "as_name":
        return Sym(prefix + value)
    return _value(value, prefix) if kind.startswith("as_sym_") else None


def ties_of(source: Source) -> dict[str, str] | None:
    """Return second names of weights, each with the first one; None where the file cannot say.

    Our exports state them. torch.export keeps tied weights as one member of the archive, but so it
    does all weights on the meta device, which have no storage.
    """
    stated = read_export_facts(source)
    if "tied" in stated:
        return dict(stated["tied"])
    try:
        content = read_member(source, _CONFIG.fullmatch, "data/weights/model_weights_config.json")
    except InputError:
        return None
    first: dict[str, str] = {}
    ties: dict[str, str] = {}
    weights = parse_json_file(content, f"model {shorten(source.path)}: weights")
    for path, row in weights["config"].items():
        about = row["tensor_meta"]
        if about["device"]["type"] == "meta":
            return None
        view = [row["path_name"], *(about[key] for key in ("sizes", "strides", "storage_offset"))]
        kept = first.setdefault(json.dumps(view), path)
        if kept != path:
            ties[path] = kept
    return ties


def _tie(program: Program, ties: Mapping[str, str]) -> None:
    """Let tied weights have one path, that of the first which a node reads."""
    read = {name for node in program.nodes for name in node.tensors}
    groups: dict[str, list[str]] = {}
    for name, path in program.weights.items():
        groups.setdefault(ties.get(path, path), []).append(name)
    for path, names in groups.items():
        if len({program.specs[name] for name in names}) > 1:
            raise ValueError(f"tied weights of unlike shapes, {shorten(path)}")
        kept = program.weights[next((name for name in names if name in read), names[0])]
        program.weights.update(dict.fromkeys(names, kept))


def _doubt(program: Program) -> str:
    """Return what is not known of a file that states no ties, "" where it does not matter."""
    read = {name for node in program.nodes for name in node.tensors}
    specs = {program.specs[name] for name in program.weights if name in read}
    apart = [
        path
        for name, path in program.weights.items()
        if name not in read and program.specs[name] in specs
    ]
    if not apart:
        return ""
    names = first_of(map(shorten, apart), 3)
    return f"the file does not say whether {names}, which no op reads, are tied; counted apart"

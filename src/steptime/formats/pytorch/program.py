"""What `models/model.json` of a `.pt2` file says: nodes, arguments, shapes, and what is a weight.

The schema is torch.export's (`torch/_export/serde/schema.py`), major version 8. Shapes are whole
numbers, or texts that `symbols` reads.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.units import first_of
from steptime.formats import Source, told
from steptime.formats.archive import member
from steptime.formats.code import about_of
from steptime.formats.pytorch.symbols import parsed, symbol_of
from steptime.network.ops.builder import MOST_OPS

MAJOR = 8
MOST_NESTED = 20
DTYPES = {
    **dict(enumerate(("uint8", "int8", "int16", "int32", "int64"), start=1)),
    **dict(enumerate(("float16", "float32", "float64"), start=6)),
    **dict(enumerate(("complex32", "complex64", "complex128", "bool", "bfloat16"), start=9)),
}
WRAPPERS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}  # where their graph stands
_PLAIN = ("as_int", "as_float", "as_bool", "as_string", "as_scalar_type")
_CONFIG = re.compile(r"([^/]*/)?data/weights/model_weights_config\.json")
_REFUSED = ("as_graph", "as_custom_obj", "as_operator", "as_complex")

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


@dataclass
class Program:
    """An exported network; `weights` and `buffers` are its names for them -> their own.

    Tied weights have one name of their own. `doubt` is what the file leaves open about them.
    """

    nodes: list[FxNode] = field(default_factory=list)
    specs: dict[str, Spec] = field(default_factory=dict)
    numbers: dict[str, Size] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    weights: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    ranges: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    doubt: str = ""

    def add_graph(self, graph: Any, prefix: str = "", depth: int = 0) -> None:
        """Add the nodes of a graph, its tensors named behind `prefix`."""
        if depth > MOST_NESTED:
            raise ValueError(f"more than {MOST_NESTED} graphs in each other")
        for name, spec in graph["tensor_values"].items():
            sizes = tuple(self._size(size) for size in spec["sizes"])
            self.specs[prefix + name] = Spec(DTYPES[spec["dtype"]], sizes)
        for name, size in graph["sym_int_values"].items():
            self.numbers[prefix + name] = self._size(size)
        for node in graph["nodes"]:
            if len(self.nodes) >= MOST_OPS:
                raise ValueError(f"more than {MOST_OPS} nodes")
            self._add_node(node, prefix, depth)

    def _add_node(self, node: Any, prefix: str, depth: int) -> None:
        target, given = str(node["target"]), node["inputs"]
        outputs = tuple(name for one in node["outputs"] for name in _names(one, prefix))
        at = WRAPPERS.get(target.rpartition(".")[2])
        if at is not None:
            inner = given[at]["arg"]["as_graph"]
            graph, within = inner["graph"], f"{prefix}{inner['name']}.{len(self.nodes)}."
            for name, one in zip(graph["inputs"], given[at + 1 :], strict=True):
                self._alias(_value(one["arg"], prefix), _value(name, within))
            self.add_graph(graph, within, depth + 1)
            for made, new in zip(graph["outputs"], outputs, strict=True):
                self._alias(_value(made, within), new)
            return
        stack = (node["metadata"].get("nn_module_stack") or "").split(";")[-1].split(",")
        scope = stack[1] if len(stack) == 3 else ""
        arguments = {
            one["name"] or str(i): _value(one["arg"], prefix) for i, one in enumerate(given)
        }
        self.nodes.append(FxNode(target, scope, arguments, outputs))

    def _alias(self, value: Any, name: str) -> None:
        if isinstance(value, Ref):
            self.nodes.append(FxNode("torch.ops.aten.alias.default", "", {"self": value}, (name,)))
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


def document_of(source: Source) -> Any:
    """Return the values of a file's `models/model.json`; raises `InputError`."""
    document = re.compile(r"([^/]*/)?models/model\.json")
    found = member(source, document.fullmatch, "models/model.json of torch.export.save")
    return told(found, f"model {shorten(source.path)}: model.json")


def program_of(document: Any, ties: Mapping[str, str] | None) -> Program:
    """Return the program that the values say; `ties` are those of `ties_of`."""
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
    if ties is None:
        program.doubt = _doubt(program)
    _tie(program, ties or {})
    return program


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
    stated = about_of(source)
    if "tied" in stated:
        return dict(stated["tied"])
    try:
        content = member(source, _CONFIG.fullmatch, "data/weights/model_weights_config.json")
    except InputError:
        return None
    first: dict[str, str] = {}
    ties: dict[str, str] = {}
    for path, row in told(content, f"model {shorten(source.path)}: weights")["config"].items():
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

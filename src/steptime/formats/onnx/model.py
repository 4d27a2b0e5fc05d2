"""The graph of an ONNX file: nodes, constants and inputs; its weights are never read.

Format: https://onnx.ai/onnx/repo-docs/IR.html, `onnx.proto`.
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.toml_files import packaged
from steptime.formats import Source
from steptime.formats.constants import MOST, NdArray, Number
from steptime.formats.onnx.wire import Schema, Span, Wire, WireError

MOST_NODES = 300_000
MOST_FLOATS = 16  # a float tensor of more is a weight, and not read
DTYPES: Mapping[int, tuple[str, float, str]] = {
    int(number): tuple(row) for number, row in packaged("onnx.toml")["types"].items()
}
_STANDARD = ("", "ai.onnx")


def _schema() -> Schema:
    """Return the fields of a whole file, each of a message those of that message."""
    found: dict[str, Schema] = {name: {} for name in packaged("onnx.toml")["messages"]}
    for message, fields in packaged("onnx.toml")["messages"].items():
        for number, said in fields.items():
            name, kind = said.split()
            found[message][int(number)] = name, found.get(kind, kind)
    return found["Model"]


@dataclass(frozen=True)
class OnnxNode:
    """One node: its op, the names of what it reads ("" for none) and makes, its attributes."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    opset: int


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
    constants: Mapping[str, NdArray]
    inputs: tuple[OnnxInput, ...]
    outputs: tuple[str, ...]


@dataclass
class Model:
    """Reads an ONNX file: `graph` is what it says, `unread` the places of its weights' bytes."""

    source: Source
    unread: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.wire = Wire(self.source.content)
        self._nodes = 0
        try:
            table = self.wire.message(_schema(), 0, len(self.source.content))
            _has(table, "graph", "opsets")
            self._functions = {
                (f.get("domain", ""), f.get("name", "")): f for f in table["functions"]
            }
            self.graph = self._graph(table["graph"], _versions(table))
        except WireError as error:
            raise InputError(
                f"{self.place}: is not an ONNX file that can be read: {error}"
            ) from None

    @property
    def place(self) -> str:
        """The file's name, as errors say it."""
        return shorten(self.source.name)[1:-1]

    def _graph(self, table: Mapping[str, Any], opsets: Mapping[str, int]) -> Subgraph:
        if table["sparse"]:
            raise WireError("it has sparse weights")
        constants = {w.get("name", ""): self._tensor(w) for w in table["weights"]}
        inputs = (_input(value) for value in table["inputs"])
        return Subgraph(
            tuple(self._expanded(table["nodes"], opsets, {}, "", 0)),
            constants,
            tuple(value for value in inputs if value.name not in constants),
            tuple(value.get("name", "") for value in table["outputs"]),
        )

    def _expanded(
        self,
        nodes: list[dict[str, Any]],
        opsets: Mapping[str, int],
        given: Mapping[str, Any],
        prefix: str,
        depth: int,
        names: Mapping[str, str] | None = None,
    ) -> Iterator[OnnxNode]:
        """Return nodes, local functions replaced by theirs; `names` renames what they read."""

        def named(name: str) -> str:
            return name if names is None or not name else names.get(name, f"{prefix}{name}")

        if depth > 16:
            raise WireError("local functions nest deeper than 16")
        for table in nodes:
            self._nodes += 1
            if self._nodes > MOST_NODES:
                raise WireError(f"more than {MOST_NODES} nodes")
            domain, op = table.get("domain", ""), table.get("op", "")
            attrs = {
                name: value
                for one in table["attributes"]
                if (value := self._attribute(one, opsets, given)) is not None
                and (name := one.get("name", ""))
            }
            inputs, outputs = map(named, table["inputs"]), tuple(map(named, table["outputs"]))
            name = f"{prefix}{table.get('name') or (outputs[0] if outputs else op)}"
            function = self._functions.get((domain, op))
            if function is None:
                full = op if domain in _STANDARD else f"{domain}.{op}"
                opset = next((opsets[domain] for domain in _STANDARD if domain in opsets), 1)
                yield OnnxNode(name, full, tuple(inputs), outputs, attrs, opset)
                continue
            inner = dict(zip(function["inputs"], inputs, strict=False))
            inner |= dict.fromkeys(function["inputs"][len(inner) :], "")
            inner |= dict(zip(function["outputs"], outputs, strict=False))
            defaults = {
                one.get("name", ""): self._attribute(one, opsets, {})
                for one in function["defaults"]
            }
            own = _versions(function) or opsets
            yield from self._expanded(
                function["nodes"], own, defaults | attrs, f"{name}/", depth + 1, inner
            )

    def _attribute(
        self, table: Mapping[str, Any], opsets: Mapping[str, int], given: Mapping[str, Any]
    ) -> Any:
        """Return an attribute's value, that of the function's where it refers to one."""
        if "refers" in table:
            return given.get(table["refers"])
        if "g" in table:
            return self._graph(table["g"], opsets)
        if "t" in table:
            return self._tensor(table["t"])
        if "s" in table:
            return self.wire.text(table["s"])
        for name, form in (("ints", "varint"), ("floats", "f")):
            if table[name]:
                return tuple(self.wire.numbers(table[name], form, MOST))
        if table["strings"]:
            return tuple(self.wire.text(one) for one in table["strings"])
        empty: dict[int, Any] = {1: 0.0, 2: 0, 3: "", 6: (), 7: (), 8: ()}
        return table.get("f", table.get("i", empty.get(table.get("type", 0), 0)))

    def _tensor(self, table: Mapping[str, Any]) -> NdArray:
        """Return a constant; its values only if they are few, and lie in the file itself."""
        shape = tuple(self.wire.numbers(table["dims"], "varint", 16))
        dtype, width, form = DTYPES.get(table.get("dtype", 0), ("text", 0, ""))
        name = f"tensor {table.get('name', '')[:60]!a}"
        if not all(0 <= n < 2**53 for n in shape) or math.prod(shape) >= 2**53:
            raise WireError(f"{name}: of shape {shorten(list(shape))}")
        size = math.prod(shape)
        lists = [key for key in ("floats", "int32s", "int64s", "doubles", "uint64s") if table[key]]
        held: list[Span] = [table["raw"]] if "raw" in table else []
        held += [part for key in lists for wire, part in table[key] if wire == 2]
        if table.get("location", 0) == 1:
            self._external(table, name)
            return NdArray(shape, dtype)
        if "raw" in table and width:
            length = table["raw"][1] - table["raw"][0]
            if length != math.ceil(size * width):
                raise WireError(f"{name}: {length} bytes for {shorten(list(shape))}")
        elif dtype != "text":
            singles = sum(wire != 2 for key in lists for wire, _ in table[key])
            if size > singles + sum(end - start for start, end in held):
                raise WireError(f"{name}: of shape {shorten(list(shape))} without values")
        if size > (MOST_FLOATS if "float" in dtype else MOST) or not form:
            self.unread += held
            return NdArray(shape, dtype)
        return NdArray(shape, dtype, self._values(table, lists, dtype, form, size))

    def _values(
        self, table: Mapping[str, Any], lists: list[str], dtype: str, form: str, size: int
    ) -> tuple[Number, ...] | None:
        if "raw" in table:
            values = self.wire.numbers([(2, table["raw"])], form, size)
        elif lists in (["floats"], ["doubles"]):
            values = self.wire.numbers(
                [(2, part) for _, part in table[lists[0]]], lists[0][0], size
            )
        elif len(lists) == 1 and form != "e":
            values = self.wire.numbers(table[lists[0]], "varint", size)
        else:
            return None if size else ()
        if len(values) != size:
            raise WireError(f"{len(values)} numbers for {size}")
        return tuple(bool(v) if dtype == "bool" else v for v in values)

    def _external(self, table: Mapping[str, Any], name: str) -> None:
        """Refuse weights that lie outside of the file's folder; they are not opened anyway."""
        entries = {one.get("key", ""): one.get("value", "") for one in table["external"]}
        where = entries.get("location", "")
        parts = where.replace("\\", "/").split("/")
        inside = "\0" not in where and ".." not in parts and not Path(where).is_absolute()
        if not where or not inside:
            raise WireError(f"{name}: its data lies outside of the folder, in {shorten(where)}")
        path = Path(self.source.path)
        homes = path.absolute().parent, Path(os.path.realpath(path)).parent
        for home in homes:  # a file that is a link itself has its data beside what it leads to
            if Path(os.path.realpath(path.absolute().parent / where)).is_relative_to(
                os.path.realpath(home)
            ):
                return
        raise WireError(f"{name}: its data is a link out of the folder, {shorten(where)}")


def _has(table: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if not table.get(name):
            raise WireError(f"it has no {name}")


def _versions(table: Mapping[str, Any]) -> dict[str, int]:
    return {one.get("domain", ""): one.get("version", 0) for one in table["opsets"]}


def _input(table: Mapping[str, Any]) -> OnnxInput:
    tensor = table.get("type", {}).get("tensor")
    name = table.get("name", "")
    if tensor is None:
        raise WireError(f"input {shorten(name)} is not a tensor")
    sizes = (
        one.get("size") or one.get("name", "") for one in tensor.get("shape", {}).get("sizes", ())
    )
    if tensor.get("dtype", 0) not in DTYPES:
        raise WireError(f"input {shorten(name)} is not of numbers")
    return OnnxInput(name, DTYPES[tensor["dtype"]][0], tuple(sizes))


@lru_cache(maxsize=2)
def model_of(source: Source) -> Model:
    """Return the model of a file, read once; raises `InputError` for what is not one."""
    return Model(source)


def identity(source: Source) -> bytes:
    """Return the bytes of a file without those of its weights."""
    model = model_of(source)
    kept, at = [], 0
    for start, end in sorted(model.unread):
        kept.append(source.content[at:start])
        at = max(at, end)
    return b"".join([*kept, source.content[at:]])

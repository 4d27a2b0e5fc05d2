"""The walk through an exported program that builds its graph: values, constants, batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from steptime.core.errors import shorten
from steptime.core.graph import Checkpoint, TensorSpec
from steptime.core.values import MAX_COUNT
from steptime.formats.batch_search import BatchWalk
from steptime.formats.batches import Batches
from steptime.formats.opaque import UnpricedOps
from steptime.formats.patterns import recognise_pattern
from steptime.formats.pytorch.opaque import TABLE, append_opaque, may_hold_products
from steptime.formats.pytorch.program import (
    FxNode,
    Program,
    Ref,
    Size,
    Sym,
    frozen_paths,
)
from steptime.formats.pytorch.symbols import value_of
from steptime.formats.readers import FileNode, TensorReaders
from steptime.formats.tensors import axis_of, free_name, is_float
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError, require

Shape = tuple[int, ...]
MADE_FOR_A_SIZE = (
    *("expand", "zeros", "ones", "full", "arange", "empty", "rand", "randn", "repeat", "tile"),
    *("new_zeros", "new_ones", "new_full", "new_empty"),
)
ENDS = ("add", "mul", "matmul", "bmm", "einsum", "sum")  # of what is written out in pieces
SKIPPED = ("sym_", "_assert", "_local_scalar", "copy_assert", "_guards_fn", "empty_cache")


@dataclass(frozen=True)
class Const:
    """A tensor that follows from shapes and constants alone; its values do not matter here.

    `origin` names what it is a view of, so that one table that many layers read is one buffer.
    """

    shape: Shape
    dtype: str
    origin: str

    def repeated(self, axis: int, size: int) -> "Const":
        """Return it with another size of an axis."""
        return replace(self, shape=(*self.shape[:axis], size, *self.shape[axis + 1 :]))


Value = str | Const
T = TypeVar("T")


def held_as(dtype: str) -> str:
    """Return the type that a tensor of the file has here, "" for that of the arithmetic."""
    if "complex" in dtype:
        return "complex64"
    return "" if "float" in dtype else "bool" if dtype == "bool" else "int64"


def listed(value: Any) -> list[Any]:
    """Return sizes or axes as a list, which one alone is not."""
    return [value] if isinstance(value, int) else list(value or [])


Result = Value | Sequence[Value | None]
Handler = Callable[["Call"], Result]


@dataclass(frozen=True)
class Call:
    """A node with its arguments looked up: what a row of the table of ops is given."""

    walk: "Walk"
    node: FxNode

    @property
    def b(self) -> Builder:
        """The graph so far."""
        return self.walk.b

    @cached_property
    def name(self) -> str:
        """The name of what it makes: the path of the module, and the op."""
        return f"{self.node.scope}/{self.node.op}" if self.node.scope else self.node.op

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument by its name: a `Value`, a number, a text, or a list of such."""
        found = self.walk.looked_up(self.node.args.get(name))
        return default if found is None else found

    def __getitem__(self, name: str) -> Any:
        found = self.get(name)
        if found is None:
            raise ShapeError(f"argument '{name}' is missing")
        return found

    def x(self, name: str = "self") -> str:
        """Return the tensor of an argument, a constant as a buffer."""
        return self.walk.tensor(self[name])

    def axis(self, given: int) -> int:
        """Return an axis of `self`, counted from the first."""
        return axis_of(self.b, self.x(), given)

    def either(self, first: str, second: str) -> str:
        """Return which of two names an argument has here."""
        return first if first in self.node.args else second

    def do(self, function: Callable[..., T], *given: Any, at: str = "", **more: Any) -> T:
        """Return what a function of `lowering` makes, under the name of this call and `at`."""
        return function(self.b, *given, name=f"{self.name}{at}", **more)

    def places(self, i: int) -> Const | None:
        """Return the places that an op gives beside values, which are found with them."""
        if i >= len(self.node.outputs):
            return None
        return Const(self.walk.told(self.node.outputs[i]), "int64", f"{self.name}/places")

    def widened(self, shape: Shape, told: Sequence[int]) -> Shape:
        """Return what this call repeats its input to (`Batches.expanded_shape`)."""
        grown = self.walk.told(self.node.args["self"]) != self.walk.shape(self["self"])
        stays = self.node.op != "repeat" and shape == tuple(told)
        return self.walk.batches.expanded_shape(self.node.outputs[0], shape, told, grown or stays)

    @property
    def first(self) -> str:
        """The tensor of its first argument."""
        return self.walk.tensor(self.walk.looked_up(next(iter(self.node.args.values()), None)))

    def maybe(self, name: str) -> str | None:
        """Return the tensor of an argument that may be left out."""
        found = self.get(name)
        return None if found is None else self.walk.tensor(found)

    @cached_property
    def shape(self) -> Shape:
        """The shape of its first output, as the file has it for this batch."""
        return self.walk.told(self.node.outputs[0])

    @property
    def dtype(self) -> str:
        """The element type of its first output, as the file has it."""
        return self.walk.program.specs[self.node.outputs[0]].dtype


@dataclass
class Walk(BatchWalk):
    """One building of a program's graph.

    `bound` are the values of its symbols, `puts` what is written to views. A file whose batch is a
    number is made for another by following what its first axis becomes. Dropout that was exported
    in inference mode is there only if it `drops`.
    """

    program: Program
    b: Builder
    table: Mapping[str, Handler]
    views: Mapping[str, Handler]
    puts: Mapping[str, Callable[["Call", Value], Value]]
    bound: Mapping[str, int]
    place: str
    batches: Batches
    drops: bool

    def __post_init__(self) -> None:
        self.env: dict[str, Value] = {}
        self.unpriced = UnpricedOps()
        nodes = [FileNode([*one.tensors], one.outputs) for one in self.program.nodes]
        self._readers = TensorReaders(nodes, self.program.outputs)
        self._computed: set[str] = set()  # truth values and whole numbers made of floats
        self._repeated: list[set[str]] = [set() for _ in self.program.checkpoints]
        self._buffers: dict[tuple[str, Shape, str], str] = {}
        self._views: dict[str, Call] = {}

    def size(self, size: Size) -> int:
        """Return a size of the file with its symbols bound."""
        found = size if isinstance(size, int) else int(value_of(size, self.bound))
        require(0 <= found <= MAX_COUNT, f"a size {shorten(found)}")
        return found

    def told(self, name: str) -> Shape:
        """Return the shape that the file says of a tensor, its symbols bound."""
        return tuple(self.size(one) for one in self.program.specs[name].sizes)

    def scaled(self, shape: Shape) -> Shape:
        """Return a shape of the file for the batch that is built, its first size being that."""
        if shape[:1] == (self.batches.file_batch,):
            return (self.batches.new_batch, *shape[1:])
        return shape

    def looked_up(self, argument: Any) -> Any:
        """Return the value of an argument."""
        if isinstance(argument, Ref):
            return self.env[argument]
        if isinstance(argument, Sym):
            return self.size(self.program.numbers[argument])
        if isinstance(argument, list):
            return [self.looked_up(one) for one in argument]
        return argument

    def tensor(self, value: Any) -> str:
        """Return the name of a tensor: a constant becomes a buffer, once for each of its views."""
        if isinstance(value, str):
            return value
        if not isinstance(value, Const):
            raise ShapeError(f"a tensor is wanted, not {shorten(value)}")
        dtype = held_as(value.dtype)
        key = value.origin, value.shape, dtype
        if key not in self._buffers:
            name = free_name(self.b, value.origin)
            self._buffers[key] = self.b.buffer(name, value.shape, dtype)
        return self._buffers[key]

    def shape(self, value: Value) -> Shape:
        """Return the shape of a value."""
        return value.shape if isinstance(value, Const) else self.b.shape(value)

    def start(self) -> None:
        """Add what the graph starts from; weights that no node reads are weights, too."""
        program = self.program
        frozen = frozen_paths(program) if self.b.training else set()
        for name, path in program.weights.items():
            self.env[name] = path
            if path not in self.b.tensors:
                add = self.b.frozen_weight if path in frozen else self.b.weight
                add(path, self.told(name))
        for name, path in program.buffers.items():
            self.env[name] = Const(self.told(name), program.specs[name].dtype, path)
        for name in program.inputs:
            dtype = held_as(program.specs[name].dtype)
            path = free_name(self.b, name)
            self.env[name] = self.b.input(path, self.scaled(self.told(name)), dtype)
        self.repeat_constants([*program.weights, *program.buffers])

    def run(self) -> list[str]:
        """Build all nodes; return the tensors that the program gives."""
        self.start()
        for node in self.program.nodes:
            if not node.outputs or node.op.startswith(SKIPPED):
                continue
            start = len(self.b.ops)
            try:
                self._node(Call(self, node))
            except (ShapeError, ValueError, LookupError, TypeError, ArithmeticError) as error:
                fault = shorten(str(error) or type(error).__name__)[1:-1]
                raise self.batch_error(self._where(node), fault, [*node.tensors]) from None
            self._note_names(node)
            self._note_checkpoint(node, start)
            self.repeat_constants(node.outputs)
        for ops, checkpoint in zip(self._repeated, self.program.checkpoints, strict=True):
            self.b.checkpoints.append(Checkpoint(frozenset(ops), checkpoint.to_end))
        return [value for name in self.program.outputs if isinstance(value := self.env[name], str)]

    def list_links(self) -> tuple[list[str], list[tuple[Sequence[str], Sequence[str]]]]:
        """Return the file's inputs, and the tensors that each node reads and makes."""
        return self.program.inputs, [([*one.tensors], one.outputs) for one in self.program.nodes]

    def file_shape(self, name: str) -> Shape:
        """Return the shape that a tensor has with the file's own batch."""
        return self.told(name)

    def _where(self, node: FxNode) -> str:
        within = f" in {shorten(node.scope)}" if node.scope else ""
        return f"{self.place}: op {shorten(node.target)}{within}"

    def _node(self, call: Call) -> None:
        node = call.node
        if node.op in self.puts:
            self._views[node.outputs[0]] = call
        reads = [self.env[name] for name in node.tensors]
        if self._is_constant(node, reads):
            first = reads[0] if reads and node.op in self.views else None
            origin = first.origin if isinstance(first, Const) else call.name
            for name in node.outputs:
                shape = self._grown(node, reads, self.told(name))
                self.env[name] = Const(shape, self.program.specs[name].dtype, origin)
            return
        made = self._lowered(call, reads)
        several = made if isinstance(made, list | tuple) else [made]
        if node.op in ENDS and isinstance(several[0], str):
            several = [self._recognised(call, several[0])]
        for name, one in zip(node.outputs, several, strict=False):
            if one is not None:
                self.env[name] = one
                self._check(name, one)
        if node.target.rpartition(".")[0].endswith("_") and isinstance(several[0], str):
            changed = node.args.get("self", node.args.get("input"))
            if isinstance(changed, Ref):
                self._written(changed, several[0])

    def _written(self, name: str, value: Value) -> None:
        """Have who reads a tensor later, or what it is a view of, read what it has become."""
        self.env[name] = value
        call = self._views.get(name)
        whole = call.node.args.get("self") if call else None
        if call and isinstance(whole, Ref):
            self._written(whole, self.puts[call.node.op](call, value))

    def _grown(self, node: FxNode, reads: Sequence[Value], told: Shape) -> Shape:
        """Return a constant's shape; its first size grows where it is, or follows, the batch's."""
        if not self.batches.differ or not told:
            return told
        pairs = zip(node.tensors, reads, strict=True)
        if any(self.shape(one) != self.told(name) for name, one in pairs):
            first, rest = divmod(told[0] * self.batches.new_batch, self.batches.file_batch)
            return told if rest else (first, *told[1:])
        made = node.op in MADE_FOR_A_SIZE and node.outputs[0] not in self.batches.batch_axes
        return self.scaled(told) if made else told

    def _is_constant(self, node: FxNode, reads: Sequence[Value]) -> bool:
        if all(isinstance(one, Const) for one in reads):
            return True
        spec = self.program.specs.get(node.outputs[0])
        if spec is None or spec.is_floating or node.op in self.views:
            return False
        computed = [one for one in reads if isinstance(one, str) and self._is_computed(one)]
        return not computed

    def _is_computed(self, tensor: str) -> bool:
        """Whether a tensor holds floats, or what was computed of floats: gates, codes, choices."""
        return is_float(self.b, tensor) or tensor in self._computed

    def _lowered(self, call: Call, reads: Sequence[Value]) -> Result:
        """Return what the table makes of a node; without a row it is priced by its bytes."""
        node = call.node
        handler = self.table.get(node.op)
        if (handler is None and node.op in TABLE) or self._leaves_complex(node, reads):
            return append_opaque(call, reads)
        if handler is not None:
            try:
                return handler(call)
            except ShapeError:
                if self.batches.differ:
                    raise
                if node.op in TABLE:
                    return append_opaque(call, reads)
        outputs = append_opaque(call, reads)
        file_name = node.target.removeprefix("torch.ops.")
        self.unpriced.add(outputs[0], file_name, may_hold_products(node.target, node.op))
        return outputs

    def _leaves_complex(self, node: FxNode, reads: Sequence[Value]) -> bool:
        """Whether a node makes real numbers of complex ones, as `abs` does."""
        given = [self.b.tensors[one].dtype for one in reads if isinstance(one, str)]
        spec = self.program.specs[node.outputs[0]]
        return "float" in spec.dtype and any("complex" in dtype for dtype in given)

    def opaque_spec(self, name: str, reads: Sequence[Value], node: FxNode, wide: str) -> TensorSpec:
        """Return the spec of an output of an op that has no kind: as the file states it."""
        shape = self._grown(node, reads, self.told(name))
        return TensorSpec(shape, held_as(self.program.specs[name].dtype) or wide)

    def _recognised(self, call: Call, tensor: str) -> str:
        """Return a tensor, that of a whole kind where it is the last piece of one."""
        return recognise_pattern(
            self.b,
            tensor,
            f"{call.name}/fused",
            lambda pieces: self._readers.is_read_outside(
                self.env, pieces, tensor, call.node.outputs
            ),
        )

    def _note_names(self, node: FxNode) -> None:
        """Note which tensors of the graph a node's outputs are, and which were computed."""
        reads = [self.env.get(name) for name in node.tensors]
        computed = any(isinstance(one, str) and self._is_computed(one) for one in reads)
        for name in node.outputs:
            value = self.env.get(name)
            if isinstance(value, str):
                self._readers.note(value, name)
                if computed:
                    self._computed.add(value)

    def _note_checkpoint(self, node: FxNode, start: int) -> None:
        """Note the ops that a node appended if the network computes them again."""
        for ops, checkpoint in zip(self._repeated, self.program.checkpoints, strict=True):
            if not checkpoint.names.isdisjoint(node.outputs):
                ops.update(op.name for op in self.b.ops[start:])

    def _check(self, name: str, value: Value) -> None:
        """Raise `ShapeError` where a lowered op has another shape than the file says."""
        told, made = self.told(name), self.shape(value)
        if self.batches.differ:
            self.batches.check_growth(told, made)
        elif told != made:
            raise ShapeError(f"it is lowered to {list(made)}, where the file has {list(told)}")

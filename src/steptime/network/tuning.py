"""Fine-tuning as a change of the graph: what is frozen, adapters beside products, few-bit weights.

A frozen weight is a buffer: it has no gradient, no state and no update, and what is read only for
its gradient is not kept. LoRA (Hu et al. 2021, section 4.1) adds to a product x W^T the small ones
(x A^T) B^T, scaled; the data gradient of the frozen product stays. Weights of few bits (Dettmers et
al. 2023, section 3) are made wide before each product that reads them, in either pass, and dropped.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from math import ceil

from steptime.core.errors import InputError, shorten
from steptime.core.graph import Attr, Graph, Op, TensorSpec
from steptime.core.workload import FEW_BITS, Tuning
from steptime.network.ops import OPS
from steptime.network.products import find_head, is_attention_name
from steptime.network.stored_weights import SCALE_LAYOUTS, store_quantised

EXPERT_AXES = 3  # experts, rows, columns
SCALES = 256  # of these that share another, where they are quantised, too
BESIDE = ("/scale", "/scale_of_scales")  # names of what stands beside weights of few bits
SCALE = 2.0  # alpha over rank; its value costs nothing


def tuned(graph: Graph, tuning: Tuning) -> Graph:
    """Return a forward graph under a fine-tuning: the same output, other weights trained.

    Raises `InputError` where nothing is trained.
    """
    if tuning == Tuning():
        return graph
    if tuning.weights and tuning.stored and not tuning.freezes:
        return store_quantised(graph, tuning.weights, tuning.stored)
    trained = {
        name
        for name in graph.weights
        if not tuning.freezes or (tuning.train and fnmatchcase(name, tuning.train))
    }
    if tuning.train and not trained:
        few = ", ".join(graph.weights[:3])
        raise InputError(f"--train {shorten(tuning.train)}: no weight is named so; some are {few}")
    frozen = [name for name in graph.weights if name not in trained]
    changed = _Changed(graph, tuning, [*graph.frozen, *frozen])
    for op in graph.ops:
        changed.append(op)
    if not (trained or changed.adapters):
        raise InputError(f"--lora on={tuning.on}: {graph.name} has no such product; on=all has all")
    buffers = (*graph.buffers, *frozen, *changed.scales)
    return replace(
        graph,
        tensors=changed.tensors,
        ops=tuple(changed.ops),
        weights=(*(name for name in graph.weights if name in trained), *changed.adapters),
        outputs=tuple(changed.name_of.get(name, name) for name in graph.outputs),
        buffers=buffers,
        frozen=(*graph.frozen, *frozen, *changed.scales),
    )


_MERGED = ("q", "k", "v")  # parts of a product of all three, in their order


def adapts(op: Op, on: str, head: str) -> bool:
    """Whether LoRA stands beside an op: `attention`, `linear` (but for the head), `all`, or names.

    Names, `q+v`, are parts of the op's path, as they are or with `_proj` behind.
    """
    if op.kind != "linear":
        return False
    parts = set(re.split(r"[/.]", op.name))
    known = {
        "all": True,
        "linear": op.name != head,
        "attention": is_attention_name(op.name),
    }
    names = {*on.split("+"), *(f"{name}_proj" for name in on.split("+"))}
    return known.get(on, bool(names & parts or ("qkv" in parts and names & {*_MERGED})))


class _Changed:
    """The graph while ops are added to it; `name_of` are results that later ops read instead."""

    def __init__(self, graph: Graph, tuning: Tuning, frozen: Iterable[str]) -> None:
        self.tuning, self.tensors = tuning, dict(graph.tensors)
        self.ops: list[Op] = []
        self.adapters: list[str] = []
        self.scales: list[str] = []
        self.name_of: dict[str, str] = {}
        self.head = find_head(graph)
        shown = {op.outputs[0]: op.inputs[0] for op in graph.ops if op.kind == "bias"}
        self.cut = {
            shown.get(op.inputs[0], op.inputs[0]): op.attrs["sizes"]
            for op in graph.ops
            if op.kind == "split"
        }
        self.source = {
            op.outputs[0]: op.inputs[0]
            for op in graph.ops
            if op.kind == "cast" or OPS[op.kind].storage == "view"
        }
        self.few: set[str] = set()  # weights that are kept in few bits
        if tuning.weights:
            read = {self._weight(op) for op in graph.ops if op.name != self.head}
            tied = {self._weight(op) for op in graph.ops if op.name == self.head}
            left = set() if "head" in tuning.methods and not tuning.stored else tied
            experts = {name for op in graph.ops for name in self._expert_weights(op)}
            self.few = (read | tied | experts) & set(frozen) - left
            for weight in sorted(self.few):
                self._quantise(weight)

    def _weight(self, op: Op) -> str:
        """Return the weight of a product, "" of another op."""
        weight = op.inputs[1] if op.kind == "linear" else ""
        while weight in self.source:
            weight = self.source[weight]
        return weight

    def _expert_weights(self, op: Op) -> list[str]:
        """Return the matrices of experts that a stack keeps in few bits."""
        takes_experts = self.tuning.stored or "experts" in self.tuning.methods
        if op.kind != "experts" or not takes_experts:
            return []
        names = [self.source.get(name, name) for name in op.inputs]
        return [name for name in names if len(self.tensors[name].shape) == EXPERT_AXES]

    def _quantise(self, weight: str) -> None:
        spec = self.tensors[weight]
        layout = SCALE_LAYOUTS[self.tuning.weights]
        blocks = ceil(spec.size / layout.block_size)
        scales = {f"{weight}/scale": TensorSpec((blocks,), layout.dtype)}
        if self.tuning.weights == "nf4-dq":
            scales = {
                f"{weight}/scale": TensorSpec((blocks,), "int8"),
                f"{weight}/scale_of_scales": TensorSpec((ceil(blocks / SCALES),), "float32"),
            }
        self.tensors |= {**scales, weight: TensorSpec(spec.shape, FEW_BITS[self.tuning.weights])}
        self.scales += scales

    def append(self, op: Op) -> None:
        """Append an op of the network, and what stands before and beside it."""
        if op.kind == "cast" and op.inputs[0] in self.few:
            return  # made wide before each product
        weight = self._weight(op)
        inputs = [self.name_of.get(name, name) for name in op.inputs]
        if weight in self.few:
            x = self.tensors[inputs[0]]
            shape, inputs[1] = self.tensors[weight].shape, weight
            if "halves" in self.tuning.methods and x.dtype != "float16":
                half = TensorSpec(shape, "float16")
                inputs[1] = self._op(f"{op.name}/half", "cast", (weight,), half)
            wide = TensorSpec(shape, x.dtype)
            inputs[1] = self._op(f"{op.name}/wide", "cast", (inputs[1],), wide)
        for name in self._expert_weights(op):
            if name in self.few:
                place = [self.source.get(text, text) for text in op.inputs].index(name)
                wide = TensorSpec(self.tensors[name].shape, self.tensors[inputs[0]].dtype)
                inputs[place] = self._op(f"{op.name}/wide{place}", "cast", (name,), wide)
        op = replace(op, inputs=tuple(inputs))
        if self.tuning.packed and op.kind == "attention":
            self._pack(op)
            return
        self.ops.append(op)
        if self.tuning.rank and adapts(op, self.tuning.on, self.head):
            self.name_of[op.outputs[0]] = self._adapted(op, weight)

    def _adapted(self, op: Op, weight: str) -> str:
        """Append the two small products, their scaling and the sum, and return the sum."""
        x, y = self.tensors[op.inputs[0]], self.tensors[op.outputs[0]]
        columns, parts = self._part_of(op)
        rank, read = self.tuning.rank * parts, op.inputs[0]
        if self.tuning.dropout:
            read = self._op(
                f"{op.name}/lora_dropout", "dropout", (read,), x, {"p": self.tuning.dropout}
            )
        down = self._adapter(f"{op.name}/lora_a", (rank, x.shape[-1]), weight, x.dtype)
        up = self._adapter(f"{op.name}/lora_b", (columns, self.tuning.rank), weight, x.dtype)
        small = TensorSpec((*x.shape[:-1], rank), x.dtype)
        made = self._op(f"{op.name}/lora_down", "linear", (read, down), small)
        if parts > 1:  # each from columns of its own
            own = TensorSpec((*x.shape[:-1], self.tuning.rank), x.dtype)
            cut = {"axis": -1, "start": 0, "stop": self.tuning.rank}
            made = self._op(f"{op.name}/lora_own", "slice", (made,), own, cut)
        wide = TensorSpec((*x.shape[:-1], columns), x.dtype)
        made = self._op(f"{op.name}/lora_up", "linear", (made, up), wide)
        if columns < y.shape[-1]:
            made = self._padded(op, made, wide, y)
        how: dict[str, Attr] = {"function": "mul", "scalar": SCALE}
        made = self._op(f"{op.name}/lora_scaled", "pointwise", (made,), y, how)
        return self._op(f"{op.name}/lora_sum", "add", (op.outputs[0], made), y)

    def _pack(self, op: Op) -> None:
        """Append attention within each document of a sequence: these are as examples there."""
        y = self.tensors[op.outputs[0]]
        n, length, _ = y.shape
        about = length / min(length, self.tuning.packed)
        parts = min(
            (k for k in range(1, length + 1) if not length % k), key=lambda k: abs(k - about)
        )
        inputs = list(op.inputs)
        for i, name in enumerate(op.inputs[:3]):
            x = self.tensors[name]
            shape = (n * parts, x.shape[1] // parts, x.shape[2])
            how = {"shape": shape}
            inputs[i] = self._op(
                f"{op.name}/packed{i}", "reshape", (name,), TensorSpec(shape, x.dtype), how
            )
        cut = TensorSpec((n * parts, length // parts, y.shape[2]), y.dtype)
        self.tensors[f"{op.name}/packed"] = cut
        self.ops.append(replace(op, inputs=tuple(inputs), outputs=(f"{op.name}/packed",)))
        whole = self._op(
            f"{op.name}/whole", "reshape", (f"{op.name}/packed",), y, {"shape": y.shape}
        )
        self.name_of[op.outputs[0]] = whole

    def _part_of(self, op: Op) -> tuple[int, int]:
        """Return the columns of a product that are adapted, and of how many parts these are."""
        sizes = self.cut.get(op.outputs[0])
        names = self.tuning.on.split("+")
        if not isinstance(sizes, tuple) or not {*names} & {*_MERGED}:
            return self.tensors[op.outputs[0]].shape[-1], 1
        own = [int(size) for name, size in zip(_MERGED, sizes, strict=True) if name in names]
        return sum(own), len(own)

    def _padded(self, op: Op, made: str, wide: TensorSpec, y: TensorSpec) -> str:
        """Return what some columns have been adapted by, beside zeros for the others."""
        rest = y.shape[-1] - wide.shape[-1]
        zeros = f"lora_zeros{rest}"
        if zeros not in self.tensors:
            self.tensors[zeros] = TensorSpec((*y.shape[:-1], rest), y.dtype)
            self.scales.append(zeros)
        return self._op(f"{op.name}/lora_padded", "concat", (made, zeros), y, {"axis": -1})

    def _adapter(self, name: str, shape: tuple[int, int], weight: str, dtype: str) -> str:
        """Return a new weight as products read it; it is kept in the type of the network's own."""
        kept = self.tensors[weight].dtype
        self.tensors[name] = TensorSpec(shape, kept if "float" in kept else dtype)
        self.adapters.append(name)
        if self.tensors[name].dtype == dtype:
            return name
        return self._op(f"{name}/cast", "cast", (name,), TensorSpec(shape, dtype))

    def _op(
        self,
        name: str,
        kind: str,
        inputs: tuple[str, ...],
        made: TensorSpec,
        attrs: Mapping[str, Attr] | None = None,
    ) -> str:
        self.tensors[name] = made
        how: Mapping[str, Attr] = {"dtype": made.dtype} if kind == "cast" else attrs or {}
        self.ops.append(Op(name, kind, inputs, (name,), how))
        return name

"""A forward graph while a fine-tuning is put into it: frozen weights in few bits, and adapters."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from steptime.core.adapters import ADAPTERS, FEW_BITS
from steptime.core.errors import InputError
from steptime.core.graph import Attr, Graph, Op, TensorSpec
from steptime.core.registry import load
from steptime.core.workload import Tuning
from steptime.network.ops import OPS
from steptime.network.products import find_head, is_attention_name

CONSTANT = "constant"  # what the names of tensors end with that an adapter reads and never changes
EXPERT_AXES = 3  # experts, rows, columns
MERGED_PRODUCTS = ("q", "k", "v")  # parts of a product of all three, in their order


def find_head_weight(graph: Graph) -> str:
    """Return the weight of the product that makes the logits, "" where none does."""
    sources = _sources_of(graph)
    head = find_head(graph)
    weight = next((op.inputs[1] for op in graph.ops if op.name == head), "")
    # back through casts and views to the stored weight
    while weight in sources:
        weight = sources[weight]
    return weight


def _sources_of(graph: Graph) -> dict[str, str]:
    """Return the source of each cast or view, by the name of its result."""
    return {
        op.outputs[0]: op.inputs[0]
        for op in graph.ops
        if op.kind == "cast" or OPS[op.kind].storage == "view"
    }


def _find_weight_type(graph: Graph) -> str:
    """Return the data type of the first weight with a floating-point type, "" without one."""
    weight_types = (graph.tensors[name].dtype for name in graph.weights)
    return next((dtype for dtype in weight_types if "float" in dtype), "")


def product_names(on: str) -> set[str]:
    """Return the names of products that a text such as `q+o_proj` means: q, q_proj, o, o_proj, out.

    Files of transformers write `q_proj` where a network of ours has `q`.
    """
    short_names = {name.removesuffix("_proj") for name in on.split("+")}
    long_names = {f"{name}_proj" for name in short_names}
    # our networks name the product of the attention's output `out`
    output_names = {"out"} if "o" in short_names else set()
    return short_names | long_names | output_names


def adapts(op: Op, on: str, head: str) -> bool:
    """Whether an adapter is for an op: `attention`, `linear` (but for the head), `all`, or names.

    Names, `q+v`, are parts of the op's path, as they are or with `_proj` behind.
    """
    if op.kind != "linear":
        return False
    if on == "all":
        return True
    if on == "linear":
        return op.name != head
    if on == "attention":
        return is_attention_name(op.name)
    # else `on` names products, such as `q+v`: one of them must be in the op's path
    path_parts = set(re.split(r"[/.]", op.name))
    names = product_names(on)
    has_name = bool(names & path_parts)
    is_merged_product = "qkv" in path_parts and bool(names & {*MERGED_PRODUCTS})
    return has_name or is_merged_product


class GraphEditor:
    """A forward graph to which the ops of a fine-tuning are appended.

    Attributes:
        tuning: the fine-tuning.
        tensors: the shape and type of every tensor.
        ops: the ops so far.
        weights: trained weights that were added.
        buffers: tensors that were added and are not trained.
        results: tensors of the network that later ops read changed, by their names.
        read_name_by_weight: weights that were added as ops read them, by their names.
        split_sizes: the sizes of the parts that a product's result is split into, by its name.
        split_sources: tensors that are split into such parts.
    """

    def __init__(self, graph: Graph, tuning: Tuning, frozen: Iterable[str]) -> None:
        """Quantise the frozen weights of products that a fine-tuning keeps in few bits."""
        self.tuning = tuning
        self.tensors = dict(graph.tensors)
        self.ops: list[Op] = []
        self.weights: list[str] = []
        self.buffers: list[str] = []
        self.results: dict[str, str] = {}
        self.read_name_by_weight: dict[str, str] = {}
        self.split_sizes: dict[str, Attr] = {}
        self.split_sources: set[str] = set()
        self._head = find_head(graph)
        self._sources = _sources_of(graph)
        # the weight in few bits from which a wide tensor was cast, by the tensor's name
        self._wide_sources: dict[str, str] = {}
        self._weight_type = _find_weight_type(graph)
        self._find_splits(graph)
        self._quantised = self._find_quantised(graph, set(frozen))
        for weight in sorted(self._quantised):
            self._store_in_few_bits(weight)
        self._adapt = load(ADAPTERS[tuning.adapter].code) if tuning.has_adapter else None

    def _find_splits(self, graph: Graph) -> None:
        """Note which products, and which biased results of merged ones, are split into parts."""
        product_by_biased = {op.outputs[0]: op.inputs[0] for op in graph.ops if op.kind == "bias"}
        # products named qkv make queries, keys and values together; "q" finds any that make queries
        merged_products = {
            op.outputs[0] for op in graph.ops if adapts(op, on="q", head="") and "qkv" in op.name
        }
        for op in graph.ops:
            if op.kind != "split":
                continue
            source = op.inputs[0]
            product = product_by_biased.get(source, source)
            self.split_sizes[product] = op.attrs["sizes"]
            if product in merged_products:
                self.split_sources.add(source)

    def append(self, op: Op) -> None:
        """Append an op of the network, and what stands before and beside it."""
        if op.kind == "cast" and op.inputs[0] in self._quantised:
            return  # a quantised weight is dequantised before each product instead
        op = replace(op, inputs=self._append_dequantised(op))
        if self.tuning.packed and op.kind == "attention":
            self._append_packed(op)
        elif self._adapt is not None:
            self._adapt(self, op)
        else:
            self.ops.append(op)

    def _append_dequantised(self, op: Op) -> tuple[str, ...]:
        """Append casts of an op's quantised weights, and return the inputs that it reads now."""
        inputs = [self.results.get(name, name) for name in op.inputs]
        compute_type = self.tensors[inputs[0]].dtype if inputs else ""
        weight = self.weight_of(op)
        if weight in self._quantised:
            # the weight of a product is its second input
            inputs[1] = self._append_wide(op, weight, compute_type, "wide")
        stored_inputs = self._stored_inputs(op)
        for expert_weight in self._expert_weights(op):
            if expert_weight in self._quantised:
                input_index = stored_inputs.index(expert_weight)
                wide = TensorSpec(self.tensors[expert_weight].shape, compute_type)
                name = f"{op.name}/wide{input_index}"
                inputs[input_index] = self.append_op(name, "cast", (expert_weight,), wide)
        return tuple(inputs)

    def _stored_inputs(self, op: Op) -> list[str]:
        """Return the inputs of an op, casts and views by the names of their sources."""
        return [self._sources.get(name, name) for name in op.inputs]

    def is_target(self, op: Op) -> bool:
        """Whether the adapter stands beside an op."""
        return adapts(op, self.tuning.on, self._head)

    def append_op(
        self,
        name: str,
        kind: str,
        inputs: tuple[str, ...],
        spec: TensorSpec,
        attrs: Mapping[str, Attr] | None = None,
    ) -> str:
        """Append an op with one result of its own name, and return this name."""
        self.tensors[name] = spec
        settings: Mapping[str, Attr] = {"dtype": spec.dtype} if kind == "cast" else attrs or {}
        self.ops.append(Op(name, kind, inputs, (name,), settings))
        return name

    def append_wide_weight(self, op: Op, suffix: str) -> str:
        """Return the weight of a product as it reads it, made wide once more where it is narrow."""
        weight = self.weight_of(op)
        if weight not in self._quantised:
            return op.inputs[1]
        return self._append_wide(op, weight, self.tensors[op.inputs[0]].dtype, suffix)

    def add_weight(self, name: str, shape: tuple[int, ...], op: Op, dtype: str) -> str:
        """Add a trained weight beside an op, and return it as ops read it.

        It is kept in the type of the op's own weight, or without one of the network's.

        Args:
            name: its name.
            shape: its shape.
            op: the op that it stands beside.
            dtype: the type in which ops compute.
        """
        # A new weight has the type of the op's own weight, unless that is quantised.
        op_weight = self.weight_of(op)
        op_dtype = self.tensors[op_weight].dtype if op_weight else self._weight_type
        stored_dtype = op_dtype if "float" in op_dtype else dtype
        self.tensors[name] = TensorSpec(shape, stored_dtype)
        self.weights.append(name)
        read_name = name
        if stored_dtype != dtype:
            spec = TensorSpec(shape, dtype)
            read_name = self.append_op(f"{name}/cast", "cast", (name,), spec)
        self.read_name_by_weight[name] = read_name
        return read_name

    def add_buffer(self, name: str, spec: TensorSpec) -> str:
        """Add a tensor that is not trained, once for all ops, and return its name."""
        if name not in self.tensors:
            self.tensors[name] = spec
            self.buffers.append(name)
        return name

    def weight_of(self, op: Op) -> str:
        """Return the weight of a product, "" of another op."""
        weight = op.inputs[1] if op.kind == "linear" else ""
        # back through casts and views to the stored weight
        while weight in self._sources:
            weight = self._sources[weight]
        return self._wide_sources.get(weight, weight)

    def _find_quantised(self, graph: Graph, frozen: set[str]) -> set[str]:
        """Return the frozen weights that are kept in few bits; the head's where software does."""
        if not self.tuning.weights:
            return set()
        expert_weights = {name for op in graph.ops for name in self._expert_weights(op)}
        # "experts" for MXFP4, which leaves the other products as they are
        if FEW_BITS[self.tuning.weights].places == "experts":
            if not expert_weights:
                raise InputError(
                    f"--weights {self.tuning.weights}: of experts, and {graph.name} has none; "
                    "nearest: --weights int4"
                )
            product_weights: set[str] = set()
        else:
            product_weights = {self.weight_of(op) for op in graph.ops}
        weights = (product_weights | expert_weights) & frozen
        # A file holds the head in 16 bits. Software that quantises while it loads may include it.
        is_read_from_file = self.tuning.stored
        quantises_head = "head" in self.tuning.methods and not is_read_from_file
        if quantises_head:
            return weights
        head_weights = {self.weight_of(op) for op in graph.ops if op.name == self._head}
        return weights - head_weights

    def _expert_weights(self, op: Op) -> list[str]:
        """Return the matrices of experts that are kept in few bits."""
        if op.kind != "experts" or not self._quantises_experts():
            return []
        stored_inputs = self._stored_inputs(op)
        return [name for name in stored_inputs if len(self.tensors[name].shape) == EXPERT_AXES]

    def _quantises_experts(self) -> bool:
        """Whether the weights of experts are kept in few bits."""
        weight_format = FEW_BITS.get(self.tuning.weights)
        if weight_format is None:
            return False
        if weight_format.places:  # the format says which weights it is for
            return weight_format.places != "products"
        # stored in a file, or quantised by software that knows experts
        return bool(self.tuning.stored) or "experts" in self.tuning.methods

    def _store_in_few_bits(self, weight: str) -> None:
        """Make a weight one of few bits, and add its scales."""
        weight_format = FEW_BITS[self.tuning.weights]
        shape = self.tensors[weight].shape
        self.tensors[weight] = TensorSpec(shape, weight_format.type)
        for suffix, (size, dtype) in weight_format.extra_tensors(shape).items():
            self.add_buffer(f"{weight}/{suffix}", TensorSpec((size,), dtype))

    def _append_wide(self, op: Op, weight: str, dtype: str, suffix: str) -> str:
        """Append the casts that make a weight of few bits wide, and return the result."""
        shape = self.tensors[weight].shape
        source = weight
        # some software makes few bits float16 first, and then the type that it multiplies in
        passes_float16 = "halves" in self.tuning.methods and dtype != "float16"
        if passes_float16:
            half = TensorSpec(shape, "float16")
            name = f"{op.name}/half" if suffix == "wide" else f"{op.name}/{suffix}_half"
            source = self.append_op(name, "cast", (weight,), half)
        wide = TensorSpec(shape, dtype)
        result = self.append_op(f"{op.name}/{suffix}", "cast", (source,), wide)
        self._wide_sources[result] = weight
        return result

    def _append_packed(self, op: Op) -> None:
        """Append attention within each document of a sequence: these are as examples there."""
        output = self.tensors[op.outputs[0]]
        _, length, _ = output.shape
        document_count = _count_documents(length, self.tuning.packed)
        inputs = list(op.inputs)
        for i, name in enumerate(op.inputs[:3]):  # queries, keys and values
            packed_input = _pack(self.tensors[name], document_count)
            inputs[i] = self._append_reshape(f"{op.name}/packed{i}", name, packed_input)
        packed = f"{op.name}/packed"
        self.tensors[packed] = _pack(output, document_count)
        self.ops.append(replace(op, inputs=tuple(inputs), outputs=(packed,)))
        # later ops of the network read whole sequences again
        self.results[op.outputs[0]] = self._append_reshape(f"{op.name}/whole", packed, output)

    def _append_reshape(self, name: str, x: str, spec: TensorSpec) -> str:
        """Append a view of `x` with the shape of `spec`, and return its name."""
        return self.append_op(name, "reshape", (x,), spec, {"shape": spec.shape})


def _count_documents(length: int, document_length: int) -> int:
    """Return the number of documents of equal length that a sequence is cut into.

    It is the divisor of the sequence's length by which documents come nearest to their length.
    """
    ideal_count = length / min(length, document_length)
    divisors = [count for count in range(1, length + 1) if length % count == 0]
    return min(divisors, key=lambda count: abs(count - ideal_count))


def _pack(x: TensorSpec, document_count: int) -> TensorSpec:
    """Return sequences `[n, l, width]` with each document as an example, `[n*documents, ...]`.

    No token attends to another document then.
    """
    examples, length, width = x.shape
    return TensorSpec((examples * document_count, length // document_count, width), x.dtype)

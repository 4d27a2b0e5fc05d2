"""Inference on the quantised weights of a file: products read them in their few bits.

Kernels of such formats (Marlin for AWQ and GPTQ, block-scaled FP8, MXFP4) scale the weights inside
the product, so nothing is written wide. The head, embeddings, norms and the routers of experts keep
the data type of the step, as the files have them.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from steptime.core.adapters import FEW_BITS
from steptime.core.graph import Graph, Op, TensorSpec
from steptime.core.workload import STORED_EXPERTS
from steptime.network.ops import OPS
from steptime.network.products import find_head, is_left_wide

EXPERT_MATRICES = (2, 3)  # inputs of an `experts` op that are matrices of weights
ROUTER_LOGITS = 1  # input of an `experts` op that chooses the experts
LINEAR_WEIGHT = 1  # input of a `linear` op that is its weight


def store_quantised(graph: Graph, weights_format: str, stored: str) -> Graph:
    """Return an inference graph whose products read weights of few bits.

    Args:
        graph: the forward graph.
        weights_format: a name of `FEW_BITS`.
        stored: which weights the file keeps so: all of the layers, those outside attention, or
            those of experts.
    """
    sources = _find_sources(graph)
    quantised = _find_quantised(graph, sources, stored)
    has_experts = any(op.kind == "experts" for op in graph.ops)
    if weights_format == "mxfp4" and has_experts:  # a format of experts alone
        quantised &= _find_quantised(graph, sources, STORED_EXPERTS)
    tensors = dict(graph.tensors)
    # scales, zero points and the like of each weight
    scale_names_by_weight = {
        weight: _store_weight(tensors, weight, weights_format) for weight in sorted(quantised)
    }
    ops = [
        _read_few_bits(op, sources, scale_names_by_weight)
        for op in graph.ops
        # casts and views of quantised weights go: products read the weights themselves
        if sources.get(op.outputs[0]) not in quantised
    ]
    buffers = (*graph.buffers, *chain.from_iterable(scale_names_by_weight.values()))
    return replace(graph, tensors=tensors, ops=tuple(ops), buffers=buffers)


def _store_weight(
    tensors: dict[str, TensorSpec], weight: str, weights_format: str
) -> tuple[str, ...]:
    """Make a weight among the tensors one of few bits, add its scales, and return their names."""
    few_bits = FEW_BITS[weights_format]
    shape = tensors[weight].shape
    scale_specs = few_bits.extra_tensors(shape)
    tensors[weight] = TensorSpec(shape, few_bits.type)
    for suffix, (size, dtype) in scale_specs.items():
        tensors[f"{weight}/{suffix}"] = TensorSpec((size,), dtype)
    return tuple(f"{weight}/{suffix}" for suffix in scale_specs)


def _find_sources(graph: Graph) -> dict[str, str]:
    """Return the weight that a cast or a view of a weight stands for, by the result's name."""
    sources: dict[str, str] = {}
    weights = set(graph.weights)
    for op in graph.ops:
        if op.kind == "cast" or OPS[op.kind].storage == "view":
            weight = sources.get(op.inputs[0], op.inputs[0])
            if weight in weights:
                sources.update(dict.fromkeys(op.outputs, weight))
    return sources


def _find_quantised(graph: Graph, sources: Mapping[str, str], stored: str) -> set[str]:
    """Return the weights that products alone read, and that a file keeps in few bits."""
    head = find_head(graph)
    router_logits = {op.inputs[ROUTER_LOGITS] for op in graph.ops if op.kind == "experts"}
    # names of weights, and of the other tensors that ops read, which fall out at the end
    readable_in_few_bits: set[str] = set()
    needed_wide = {sources.get(name, name) for name in graph.outputs}
    for op in graph.ops:
        is_cast_or_view = op.outputs[0] in sources
        if is_cast_or_view:
            continue
        matrix_input_indices = _matrix_input_indices(op, head, router_logits, stored)
        for input_index, name in enumerate(op.inputs):
            weight = sources.get(name, name)
            # a view of another shape cannot be replaced by the weight and its scales
            has_weight_shape = graph.tensors[weight].shape == graph.tensors[name].shape
            if input_index in matrix_input_indices and has_weight_shape:
                readable_in_few_bits.add(weight)
            else:
                needed_wide.add(weight)
    return (readable_in_few_bits - needed_wide) & {*graph.weights}


def _matrix_input_indices(
    op: Op, head: str, router_logits: set[str], stored: str
) -> tuple[int, ...]:
    """Return the inputs of an op that are matrices of weights in few bits."""
    if op.kind == "experts":
        return EXPERT_MATRICES
    is_head_or_router = op.name == head or op.outputs[0] in router_logits
    if op.kind != "linear" or is_head_or_router or is_left_wide(op.name, op.kind, stored):
        return ()
    return (LINEAR_WEIGHT,)


def _read_few_bits(
    op: Op, sources: Mapping[str, str], scale_names_by_weight: Mapping[str, tuple[str, ...]]
) -> Op:
    """Return an op that reads quantised weights in place of their casts, with their scales."""
    inputs = []
    scale_names: list[str] = []
    reads_quantised = False
    for name in op.inputs:
        weight = sources.get(name, name)  # the weight behind a cast or a view
        if weight in scale_names_by_weight:
            reads_quantised = True
            inputs.append(weight)
            scale_names += scale_names_by_weight[weight]
        else:
            inputs.append(name)
    if not reads_quantised:
        return op
    if op.kind == "linear":  # an op of another kind has no inputs for scales
        inputs += scale_names
    return replace(op, inputs=tuple(inputs))

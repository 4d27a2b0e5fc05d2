"""Biases that are added by the product before them, as the layer of a library has it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from steptime.core.graph import Graph, Op


def joined_ops(graph: Graph, takes_bias: Mapping[str, int]) -> Iterator[tuple[Op, Op]]:
    """Yield each op that has a result of its own, and what runs for it.

    That is the op itself; for a bias that alone reads the output of a product, the product with a
    third input. `takes_bias` names the kinds that can add one, and the axis along which they do.
    """
    makers = {name: op for op in graph.ops for name in op.outputs[:1]}
    users = Counter(chain(graph.outputs, *(op.inputs for op in graph.ops)))
    products: dict[str, Op] = {}  # of which a bias alone reads the output, by its op's name
    for op in graph.ops:
        product = makers.get(op.inputs[0]) if op.kind == "bias" else None
        if product is None or product.kind not in takes_bias:
            continue
        rank = len(graph.tensors[op.inputs[0]].shape)
        axis = op.attrs.get("axis", -1)
        along = isinstance(axis, int) and axis % rank == takes_bias[product.kind] % rank
        if along and users[op.inputs[0]] == 1:
            products[op.name] = product
    joined = {op.name for op in products.values()}
    for op in graph.ops:
        if (product := products.get(op.name)) is not None:
            yield op, replace(product, inputs=(*product.inputs, op.inputs[1]))
        elif op.name not in joined:
            yield op, op

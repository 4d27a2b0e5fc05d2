"""Products of one input that stacks which serve make as one."""

from collections.abc import Iterator, Sequence

from steptime.core.graph import Graph
from steptime.plans.pieces import FIRST, LAST, piece_of
from steptime.predict.kernel import Kernel


def merged(graph: Graph, kernels: Sequence[Kernel]) -> Iterator[Kernel]:
    """Yield kernels, products of one input made by one: queries, keys and values, gate and up.

    Stacks that serve keep such weights side by side.
    """
    ops = {op.name: op for op in graph.ops}
    first: dict[tuple[str, str], int] = {}
    found: list[Kernel] = []
    for kernel in kernels:
        op = ops[kernel.op]
        scope = (op.inputs[0], op.name.rsplit("/", 2)[0])
        if op.kind != "linear" or piece_of(op.name) in (FIRST, LAST) or scope not in first:
            if op.kind == "linear":
                first[scope] = len(found)
            found.append(kernel)
            continue
        one = found[first[scope]]
        (batch, m, n, k), (_, _, more, _) = one.products[0], kernel.products[0]
        moved = one.bytes + kernel.bytes - graph.tensors[op.inputs[0]].size_bytes
        found[first[scope]] = one._replace(
            flop=one.flop + kernel.flop, bytes=moved, products=((batch, m, n + more, k),)
        )
    yield from found

"""Products of an exported program that lead to no output: a step runs them all the same."""

from collections.abc import Collection, Iterator, Sequence

from steptime.core.graph import Op
from steptime.core.units import first_of, format_count
from steptime.formats.opaque import cost_of_op
from steptime.formats.pytorch.program import FxNode, Program
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder
from steptime.network.ops.reads import select_leading_ops

NOTED_SHARE = 0.01  # of the FLOP of a forward pass, from which on they are worth a note
PRODUCT_OPS = frozenset(
    (
        *("linear", "matmul", "linalg_matmul", "mm", "bmm", "mv", "dot", "addmm", "baddbmm"),
        *("einsum", "bilinear", "scaled_dot_product_attention", "convolution"),
        *(f"conv{n}d" for n in (1, 2, 3)),
        *(f"conv_transpose{n}d" for n in (1, 2, 3)),
        *("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"),
    )
)
"""ATen ops that are or hold matrix products."""


def find_unread_ends(program: Program) -> Iterator[str]:
    """Yield the results that nobody reads of products that lead to no output, or behind those.

    Ops that write into a tensor count as read, since later ops may read what they have written.
    """
    needed_names = set(program.outputs)
    unread_nodes: list[FxNode] = []
    for node in reversed(program.nodes):
        if needed_names.isdisjoint(node.outputs) and not node.is_in_place:
            unread_nodes.append(node)
        else:
            needed_names.update(node.input_names)
    names_read = {name for node in unread_nodes for name in node.input_names}
    names_behind_products: set[str] = set()
    for node in reversed(unread_nodes):
        is_behind_product = not names_behind_products.isdisjoint(node.input_names)
        if is_behind_product or node.op in PRODUCT_OPS:
            names_behind_products.update(node.outputs)
            if names_read.isdisjoint(node.outputs):
                yield from node.outputs[:1]


def describe_unread(b: Builder, outputs: Collection[str]) -> list[str]:
    """Describe the products of a finished forward pass that lead to none of its outputs.

    Example: `3 products lead to no output (layout/query, ...), 2.5 % of the FLOP: PyTorch runs
    them, a compiler leaves them out`.
    """
    needed_names = {op.name for op in select_leading_ops(b.ops, outputs)}
    unread_ops = [op for op in b.ops if op.name not in needed_names]
    products = [op for op in unread_ops if OPS[op.kind].work]
    share = _count_flop(b, unread_ops) / max(1, _count_flop(b, b.ops))
    if not products or share < NOTED_SHARE:
        return []
    verb = "leads" if len(products) == 1 else "lead"
    names = first_of([op.name for op in products], 2)
    fact = f"{format_count(len(products), 'product')} {verb} to no output ({names})"
    return [f"{fact}, {share:.1%} of the FLOP: PyTorch runs them, a compiler leaves them out"]


def _count_flop(b: Builder, ops: Sequence[Op]) -> int:
    return sum(cost_of_op(b, op)[0] for op in ops)

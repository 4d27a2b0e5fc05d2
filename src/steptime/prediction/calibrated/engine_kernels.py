"""Single ops by the kernels of inference engines: figures of heads, and the routing of experts.

Steps of networks and of servers have neither: their constants were fitted with library kernels.
"""

from math import prod

from steptime.core.dtypes import SIZE_BYTES
from steptime.core.graph import Graph, Op
from steptime.hardware.stack import Stack
from steptime.network.ops.sequence import describe_heads
from steptime.prediction.kernel import Kernel

ROUTED_PASSES = 2  # a tensor between two kernels is written and read


def adapt_to_engine(kernels: tuple[Kernel, ...], graph: Graph, stack: Stack) -> tuple[Kernel, ...]:
    """Return the kernels of a graph of one op as a stack runs them that brings its own."""
    (op,) = graph.ops
    if op.kind == "attention" and "kernels.attention_s" in stack.kernels:
        return tuple(_describe_attention(kernel, op) for kernel in kernels)
    if op.kind == "experts" and "kernels.experts_s" in stack.kernels:
        return (_make_routing(kernels[0], op, graph), *kernels)
    return kernels


def _describe_attention(kernel: Kernel, op: Op) -> Kernel:
    """Return a kernel of attention with the figures of its heads; others as they are."""
    if kernel.kind != "attention" or not kernel.products:
        return kernel
    return kernel._replace(figures=describe_heads(op, kernel.products[0]))


def _make_routing(kernel: Kernel, op: Op, graph: Graph) -> Kernel:
    """Return the traffic of a layer of experts beside its products.

    Each row of a token and an expert is gathered, multiplied, activated, multiplied and summed,
    by kernels of their own; `kernels.routed_moves` says how often what lies between them is moved.
    """
    x, _logits, up, down, *_biases = (graph.tensors[name] for name in op.inputs)
    rows = float(str(op.attrs["per_token"])) * prod(x.shape[:-1])
    row_width = x.shape[-1] + up.shape[1] + down.shape[2]
    moved_bytes = ROUTED_PASSES * SIZE_BYTES[x.dtype] * rows * row_width
    return Kernel(kernel.op, "route", kernel.pass_, x.dtype, "vector", flop=0, bytes=moved_bytes)

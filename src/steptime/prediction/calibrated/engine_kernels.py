"""Single ops by the kernels of inference engines: figures of kernels, and the routing of experts.

Steps of networks and of servers have neither: their constants were fitted with library kernels.
"""

from steptime.core.dtypes import OPERAND_BYTES, SIZE_BYTES
from steptime.core.graph import Graph, Op
from steptime.hardware.stack import Stack
from steptime.network.ops.experts import load_of_op
from steptime.network.ops.sequence import describe_heads
from steptime.prediction.kernel import Kernel

ROUTED_PASSES = 2  # a tensor between two kernels is written and read
SINGLE_OP = (1.0,)  # figures of a product that is no part of a step
GATHERED_MIN_BYTES = 1.0  # of a number that threads of grouped kernels gather; 4 bit is copied


def adapt_to_engine(kernels: tuple[Kernel, ...], graph: Graph, stack: Stack) -> tuple[Kernel, ...]:
    """Return the kernels of a graph of one op as a stack runs them that brings its own."""
    (op,) = graph.ops
    if op.kind == "attention" and "kernels.attention_s" in stack.kernels:
        return tuple(_describe_attention(kernel, op) for kernel in kernels)
    if op.kind == "linear" and "kernels.persistent" in stack.kernels:
        return tuple(
            kernel._replace(figures=SINGLE_OP) if kernel.products else kernel for kernel in kernels
        )
    if op.kind == "experts" and "kernels.experts_s" in stack.kernels:
        products = next(kernel for kernel in kernels if kernel.products)
        routing = _make_routing(products, op, graph)
        return (routing, *(_describe_loads(kernel) for kernel in kernels))
    return kernels


def _describe_attention(kernel: Kernel, op: Op) -> Kernel:
    """Return a kernel of attention with the figures of its heads; others as they are."""
    if kernel.kind != "attention" or not kernel.products:
        return kernel
    return kernel._replace(figures=describe_heads(op, kernel.products[0]))


def _describe_loads(kernel: Kernel) -> Kernel:
    """Return grouped products with the bytes of an operand's number; others as they are.

    Operands of 4 bit are copied by kernels of their own, and have no figure.
    """
    element_bytes = _operand_bytes(kernel)
    if not kernel.products or element_bytes < GATHERED_MIN_BYTES:
        return kernel
    return kernel._replace(figures=(element_bytes,))


def _operand_bytes(kernel: Kernel) -> float:
    return OPERAND_BYTES.get(kernel.dtype) or SIZE_BYTES[kernel.dtype]


def _make_routing(products: Kernel, op: Op, graph: Graph) -> Kernel:
    """Return the traffic of a layer of experts beside its products.

    Each row of a token and an expert is gathered, multiplied, activated, multiplied and summed,
    by kernels of their own. What a product reads has the type of its operands, what it writes that
    of the layer. The figures are the bytes that rows of other ranks' experts move where kernels do
    not leave them out (`kernels.remote_rows`), and the bytes of an operand's number.
    """
    x, _logits, up, down, *_biases = (graph.tensors[name] for name in op.inputs)
    load = load_of_op(op, graph)
    width, first_width, second_width = x.shape[-1], up.shape[1], down.shape[2]
    operand_bytes = _operand_bytes(products)
    result_bytes = SIZE_BYTES[x.dtype]
    # Of both products: the first reads a token and writes `first_width` numbers, the second reads
    # `second_width` of them, activated, and writes a token.
    row_bytes = operand_bytes * (width + second_width) + result_bytes * (first_width + width)
    moved_bytes = ROUTED_PASSES * load.rows * row_bytes
    # Both products write zeros for a row of another rank; the activation and the sum read these.
    remote_row_bytes = result_bytes * (ROUTED_PASSES * (first_width + width) + second_width)
    return Kernel(
        products.op,
        "route",
        products.pass_,
        x.dtype,
        "vector",
        flop=0,
        bytes=moved_bytes,
        figures=(load.remote_rows * remote_row_bytes, operand_bytes),
    )

"""Products of linear layers and experts whose operands have 8 or 4 bit."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from steptime.core.dtypes import OPERAND_BYTES, SIZE_BYTES
from steptime.core.graph import Graph, Op, TensorSpec
from steptime.hardware.architectures import has_trait
from steptime.hardware.constants import Constant
from steptime.hardware.device import Device
from steptime.hardware.stack import Stack
from steptime.prediction.kernel import Kernel
from steptime.prediction.lower import Lowered

LOW_KINDS = ("linear", "experts")  # ops whose products may run in 8 or 4 bit
LOW_WEIGHT_TYPE = (
    "float8"  # in which trainings keep weights; those in 4 bit keep them in 16 bit, too
)
LAYER_PREFIX = "block"  # of the rows of a language model's layers
SCALE_READS = {  # of an operand before its cast, by its type: AIConfigurator's tables time both
    "float8": 1,  # the largest number of all scales them
    "float4": 0,  # a block has its scale while it is cast
}


def in_layer(row: str) -> bool:
    """Return whether a row of a language model belongs to one of its layers, `block1` and on."""
    return row.startswith(LAYER_PREFIX)


def find_low_ops(graph: Graph, low: str) -> frozenset[str]:
    """Return the names of the ops whose products run in the type `low`; none without one.

    In a language model they are those of its layers, not its head; elsewhere all linear layers.
    """
    if not low:
        return frozenset()
    names = {op.name for op in graph.ops if op.kind in LOW_KINDS and op.part == "forward"}
    names_in_layers = {name for name in names if in_layer(name)}
    # The layers of a language model, without its head; elsewhere all linear layers.
    return frozenset(names_in_layers or names)


def find_low_weights(graph: Graph, low: str) -> frozenset[str]:
    """Return the names of the weights that the ops of `find_low_ops` read."""
    low_ops = find_low_ops(graph, low)
    weights = {*graph.weights, *graph.frozen}
    return frozenset(
        name for op in graph.ops if op.name in low_ops for name in op.inputs if name in weights
    )


def find_low_weight_bytes(stack: Stack, device: Device, low: str) -> float | None:
    """Return the bytes of a weight that a training keeps in the type of products alone.

    Devices whose products read operands in one layout keep a transposed copy, too.

    Args:
        stack: says by `training.low_weights` whether it keeps weights so.
        device: the device.
        low: the type of products, "" for none.

    Returns:
        None if weights are kept in 16 bit, too.
    """
    flag = stack.training.get("training.low_weights")
    if low != LOW_WEIGHT_TYPE or flag is None or not flag.value:
        return None
    # Products that read operands in one layout need a transposed copy, too.
    copies = 2 if has_trait(device, "one_layout") else 1
    return copies * OPERAND_BYTES[low]


def lower_products(step: Lowered, graph: Graph, low: str, stack: Stack | None = None) -> Lowered:
    """Return a step whose linear layers and experts multiply operands of 8 or 4 bit.

    What such ops read is cast once for all of them. Weights are kept as their operands are, so
    that nothing casts them.

    Args:
        step: the kernels of the step.
        graph: the graph of the step.
        low: the type of the operands; "" changes nothing.
        stack: whose kernels scale and cast the operands of a layer on its own; None for the
            kernel that casts most quickly, which steps take that know their scales.
    """
    names = find_low_ops(graph, low)
    if not names:
        return step
    ops = {op.name: op for op in graph.ops if op.name in names}
    scaling = {} if stack is None else stack.kernels
    return replace(step, kernels=tuple(_lower_kernels(step.kernels, graph, ops, low, scaling)))


def _lower_kernels(
    kernels: Iterable[Kernel],
    graph: Graph,
    ops: dict[str, Op],
    low: str,
    scaling: Mapping[str, Constant],
) -> Iterator[Kernel]:
    """Yield kernels with products in the low type, and the casts of their inputs before them."""
    cast_inputs: set[tuple[str, str]] = set()
    for kernel in kernels:
        if kernel.op not in ops or kernel.unit != "matrix":
            yield kernel
            continue
        op = ops[kernel.op]
        source = graph.tensors[op.inputs[0]]
        # An operand that several products of a pass read is cast once.
        if (op.inputs[0], kernel.pass_) not in cast_inputs:
            cast_inputs.add((op.inputs[0], kernel.pass_))
            yield from _make_scaled_casts(kernel, source, low, scaling)
        yield lower_kernel(kernel, source.dtype, low)


def _make_scaled_casts(
    kernel: Kernel, source: TensorSpec, low: str, scaling: Mapping[str, Constant]
) -> tuple[Kernel, ...]:
    """Return the kernels that scale and cast an operand, as the constants of a stack say.

    With `kernels.scale_s` the largest number is found by kernels of their own before the cast; with
    `kernels.cast_row_s` a block of threads scales and casts a row, and `figures` are rows and
    width. Operands in 4 bit have a scale for each block of numbers, which is found in the cast.
    """
    cast = make_cast(kernel, source.size, source.dtype, low)
    if not SCALE_READS[low]:
        return (cast,)
    if "kernels.scale_s" in scaling:  # a kernel of its own finds the largest number first
        scale_bytes = SCALE_READS[low] * SIZE_BYTES[source.dtype] * source.size
        scale = cast._replace(kind="scale", bytes=scale_bytes)
        return scale, cast._replace(bytes=cast.bytes - scale_bytes)
    if "kernels.cast_row_s" in scaling:  # a block of threads scales and casts a row
        width = source.shape[-1]
        return (cast._replace(figures=(source.size / width, float(width))),)
    return (cast,)


def make_cast(kernel: Kernel, size: int, dtype: str, low: str) -> Kernel:
    """Return the kernel that scales so many numbers of an operand and casts them to a type."""
    reads = 1 + SCALE_READS[low]
    moved_bytes = (reads * SIZE_BYTES[dtype] + OPERAND_BYTES[low]) * size
    return Kernel(kernel.op, "cast", kernel.pass_, dtype, "vector", flop=0, bytes=moved_bytes)


def lower_kernel(kernel: Kernel, dtype: str, low: str) -> Kernel:
    """Return a product whose operands have the type `low`; its result stays in `dtype`."""
    result_bytes = SIZE_BYTES[dtype] * sum(
        batch * rows * columns for batch, rows, columns, _ in kernel.products
    )
    # Only the operands shrink: the result stays in `dtype`.
    operand_bytes = max(0.0, kernel.bytes - result_bytes)
    lower_bytes = operand_bytes * OPERAND_BYTES[low] / SIZE_BYTES[dtype]
    return kernel._replace(dtype=low, bytes=lower_bytes + min(result_bytes, kernel.bytes))

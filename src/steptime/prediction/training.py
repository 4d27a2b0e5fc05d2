"""The changes that a software stack makes to a training step: kernels, types and sizes."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from steptime.core.dtypes import HALVES, SIZE_BYTES, precision
from steptime.core.graph import Graph, Op, Part
from steptime.hardware import catalog
from steptime.hardware.architectures import has_trait
from steptime.hardware.constants import split_flags, value_of
from steptime.hardware.device import Device
from steptime.network.ops.training import SCALES
from steptime.prediction.calibrated.power import limit_of
from steptime.prediction.kernel import Kernel
from steptime.prediction.low_products import find_low_ops, in_layer
from steptime.prediction.lower import Lowered

USE = "training"
LOW_BYTES = {"float8": 1.0, "float4": 0.5}  # a copy of weights in the type of products alone
FIRST, LAST = "first", "last"  # pieces of a language model beside its layers
_ROWS_BEFORE_LAYERS = ("embedding", "position", "add_", "segment")
OPTIMIZER_FLOP = 13  # of Adam a parameter (`network/ops/loss.py`)
EXPERT_INPUTS = 4  # of an op of experts before its biases: tokens, router, weights of both products
LOGIT_CAST_BYTES = 6.0  # a logit: 2 read and 4 written, or back


class TrainingConstants(NamedTuple):
    """The constants of a stack's trainings: numbers and flags, without the prefix `training.`."""

    numbers: dict[str, float]
    flags: dict[str, bool]


def training_constants(
    constants: Mapping[str, float], dtype: str, master_weights: bool
) -> TrainingConstants:
    """Return the constants of a stack's trainings in a data type.

    Without `master_weights` beside those in 16 bit, weights, gradients and states are of one type:
    Adam keeps two states a parameter, a fused update moves its share of the bytes that it moves in
    float32, and logits of 4 bytes have no copy.
    """
    numbers, flags = split_flags(USE, constants)
    types = precision(dtype)
    # Without master weights there is one type: Adam's two states, and gradients, are of it.
    if not (types.mixed and master_weights):
        weight_bytes = SIZE_BYTES[types.weights]
        float32_bytes = SIZE_BYTES["float32"]
        numbers["state_bytes"] = 2 * weight_bytes
        numbers["gradient_bytes"] = weight_bytes
        # The constants of stacks are stated for float32.
        numbers["update_bytes"] *= weight_bytes / float32_bytes
        # Logits of 32 bits need no copy in 32 bits.
        if weight_bytes >= float32_bytes:
            numbers["logit_bytes"] = 0.0
    return TrainingConstants(numbers, flags)


def graph_dtype(dtype: str, master_weights: bool) -> str:
    """Return the type in which a step's graph is built: with `master_weights`, that of 16 bit."""
    return precision(dtype).compute if master_weights else dtype


def in_training(device: Device) -> Device:
    """Return an effective device with the factors by which a training slows its kernels down.

    The factors are `step.product` and `step.attention`; grouped products of experts reach the share
    `step.grouped` of the rate of dense ones. `attention.softmax` may change, too.
    """
    constants = device.constants
    # A method without constants knows no such factors.
    if not constants:
        return device
    product_factor = value_of("training.products", constants)
    attention_factor = 1.0
    if has_trait(device, "copied_tensors"):
        product_factor *= value_of("training.products_new", constants)
        clock_factor = _attention_clock_factor(device)
        attention_factor = value_of("training.attention", constants) * clock_factor
    changed = {
        "step.product": product_factor,
        "step.attention": attention_factor,
        "step.grouped": value_of("training.grouped_share", constants),
    }
    if "training.softmax" in constants:
        changed["attention.softmax"] = constants["training.softmax"]
    return replace(device, constants={**constants, **changed})


def _attention_clock_factor(device: Device) -> float:
    """Return the slow-down of attention by the power limit; 0 if the limit is unknown.

    Clocks fall under the limit, and the joules of a FLOP with them (`capped_s`).
    """
    limit = limit_of(device, device.constants, "matrix", "bfloat16")
    if limit is None:
        return 1.0  # without a limit of power no clocks fall
    # Attention at the share of the peak that it reaches: how many times the limit it would draw.
    peak_share = catalog.constants_of("gpu")["attention.published"].value
    power_ratio = peak_share * limit.peak_flop_per_s * limit.flop_j / limit.isolated_limit_w
    # Power falls with clock^(1 + clock_exponent).
    clock_factor = float(power_ratio ** (1 / (1 + limit.clock_exponent)))
    return max(1.0, clock_factor)


def lower_training(
    step: Lowered,
    graph: Graph,
    constants: Mapping[str, float],
    dtype: str,
    master_weights: bool,
    low_dtype: str = "",
) -> Lowered:
    """Return the kernels of a training step as its stack runs them; other steps unchanged.

    With `master_weights` the loss is computed in 32 bit, of logits that are cast, and a fused Adam
    updates all weights at once. Rows are sorted by experts, and back. Products of layers run in
    `low_dtype` where it names a type: an operand that several products read is cast once, and a
    gradient for the two that read it.
    """
    is_training = any(op.part == "backward" for op in graph.ops)
    if not constants or not is_training:
        return step
    numbers = training_constants(constants, dtype, master_weights).numbers
    casts_loss = master_weights and precision(dtype).compute in HALVES
    kinds = {op.name: op.kind for op in graph.ops}
    low_ops = find_low_ops(graph, low_dtype)
    network_kernels = [
        _change_dtype(kernel, kinds, casts_loss, low_dtype if kernel.op in low_ops else "")
        for kernel in step.kernels
        if kernel.pass_ != "update"
    ]
    extra_kernels = _extra_kernels(graph, numbers, casts_loss, low_ops)
    kernels = _insert_kernels(network_kernels, extra_kernels)
    kernels += _update_kernels(step, graph, numbers["update_bytes"])
    gradient_bytes = round(numbers["gradient_bytes"] * _count_trained(graph))
    return replace(step, kernels=tuple(kernels), gradient_bytes=gradient_bytes)


def _insert_kernels(kernels: Iterable[Kernel], extra_kernels: Iterable[Kernel]) -> list[Kernel]:
    """Return kernels with those that a stack adds to an op, behind the op's first one of a pass."""
    extra_of_op: dict[tuple[str, Part], list[Kernel]] = {}
    for kernel in extra_kernels:
        extra_of_op.setdefault((kernel.op, kernel.pass_), []).append(kernel)
    all_kernels: list[Kernel] = []
    for kernel in kernels:
        all_kernels.append(kernel)
        all_kernels += extra_of_op.pop((kernel.op, kernel.pass_), ())
    # Those of ops that have no kernel in the pass come last.
    for further_kernels in extra_of_op.values():
        all_kernels += further_kernels
    return all_kernels


def _update_kernels(step: Lowered, graph: Graph, update_bytes: float) -> list[Kernel]:
    """Return the kernels that update the weights.

    `update_bytes` are those of a stack's fused Adam, for each parameter. Stacks without it (0), and
    other optimizers, have an update kernel for each weight.
    """
    is_adam = any(op.kind in ("adam", "adamw") for op in graph.ops)
    if update_bytes > 0 and is_adam:
        parameters = _count_trained(graph)
        return [fused_update(update_bytes * parameters, parameters)]
    return [kernel for kernel in step.kernels if kernel.pass_ == "update"]


def _count_trained(graph: Graph) -> int:
    """Return the number of parameters that a training step updates."""
    return sum(graph.tensors[op.inputs[0]].size for op in graph.ops if op.part == "update")


def fused_update(moved_bytes: float, parameters: float) -> Kernel:
    """Return the kernel of a fused Adam that moves so many bytes for so many parameters."""
    flop = OPTIMIZER_FLOP * parameters
    return Kernel(
        op="",
        kind="adam",
        pass_="update",  # noqa: S106  # a pass of a step
        dtype="float32",
        unit="vector",
        flop=flop,
        bytes=moved_bytes,
    )


def _change_dtype(
    kernel: Kernel, kinds: Mapping[str, str], casts_loss: bool, low_dtype: str
) -> Kernel:
    """Return a kernel in the type that it runs in: float32 for the loss, with twice the bytes."""
    kind = kinds.get(kernel.op)
    if casts_loss and kind == "cross_entropy" and kernel.dtype in HALVES:
        # It computes in 32 bits instead of 16: twice the bytes.
        return kernel._replace(bytes=2 * kernel.bytes, dtype="float32")
    if low_dtype and kernel.unit == "matrix":
        return kernel._replace(dtype=low_dtype)
    return kernel


def piece_of(row: str) -> str:
    """Return the piece of a language model that a row belongs to: a layer, `first` or `last`."""
    head = row.partition("/")[0]
    if in_layer(head):
        return head
    return FIRST if head.startswith(_ROWS_BEFORE_LAYERS) else LAST


def _extra_kernels(
    graph: Graph, numbers: Mapping[str, float], casts_loss: bool, low_ops: Collection[str]
) -> Iterator[Kernel]:
    """Yield the kernels that a stack runs beside those of the graph."""
    if casts_loss:
        yield from _logit_casts(graph)
    yield from _expert_kernels(graph, numbers, low_ops)
    yield from _operand_casts(graph, numbers, low_ops)
    if numbers["accumulate_bytes"]:
        yield from _gradient_sums(graph, numbers["accumulate_bytes"])


def _logit_casts(graph: Graph) -> Iterator[Kernel]:
    """Yield the casts of logits to 32 bit, and of their gradients back."""
    passes: Sequence[Part] = ("forward", "backward")
    for op in graph.ops:
        if op.kind != "cross_entropy":
            continue
        logits = graph.tensors[op.inputs[0]]
        if logits.dtype not in HALVES:
            continue
        cast_bytes = LOGIT_CAST_BYTES * logits.size
        for pass_ in passes:
            yield Kernel(op.name, "cast", pass_, "float32", "vector", flop=0, bytes=cast_bytes)


def _operand_casts(
    graph: Graph, numbers: Mapping[str, float], low_ops: Collection[str]
) -> Iterator[Kernel]:
    """Yield the casts of operands to 8 or 4 bit, each tensor once."""
    passes: Sequence[Part] = ("forward", "backward")
    cast_names: set[str] = set()
    for op in graph.ops:
        if op.name not in low_ops:
            continue
        # Forward the input is cast, backward the gradient, which is as large as the output.
        for pass_, name in zip(passes, (op.inputs[0], op.outputs[0]), strict=True):
            if name not in cast_names:
                cast_names.add(name)
                cast_bytes = numbers["quantised_bytes"] * graph.tensors[name].size
                yield Kernel(op.name, "cast", pass_, "bfloat16", "vector", flop=0, bytes=cast_bytes)


def _gradient_sums(graph: Graph, accumulate_bytes: float) -> Iterator[Kernel]:
    """Yield the sums of gradients with those of other microbatches, one kernel for each piece."""
    # A piece is a part of the network as its graph names it: the embedding, a block, the head.
    parameters: Counter[str] = Counter()  # of each piece
    op_of_piece: dict[str, str] = {}  # the first op of the piece, in whose row its sum counts
    for op in graph.ops:
        if op.part == "update":
            weight = op.inputs[0]
            piece = piece_of(weight)
            parameters[piece] += graph.tensors[weight].size
            op_of_piece.setdefault(piece, op.forward_op)
    for piece, size in parameters.items():
        sum_bytes = accumulate_bytes * size
        yield Kernel(
            op_of_piece[piece], "add", "backward", "float32", "vector", flop=0, bytes=sum_bytes
        )


def _expert_kernels(
    graph: Graph, numbers: Mapping[str, float], low_ops: Collection[str]
) -> Iterator[Kernel]:
    """Yield the kernels of experts beside their products, forward and backward."""
    passes: Sequence[Part] = ("forward", "backward")
    for op in graph.ops:
        if op.kind == "experts":
            is_low = op.name in low_ops
            for pass_ in passes:
                yield from _kernels_of_experts(graph, op, pass_, numbers, is_low)


def _kernels_of_experts(
    graph: Graph, op: Op, pass_: Part, numbers: Mapping[str, float], is_low: bool
) -> Iterator[Kernel]:
    """Yield the kernels of experts beside their products, in one pass.

    Rows are sorted by experts, activated, and cast between the products. Forward the activation
    reads the result of the first product and writes the operand of the second; backward it reads
    both halves of the first and the gradient, and writes the gradient of the first. The limits of a
    clamped activation run beside it.
    """
    sizes = _expert_sizes(graph, op)
    dtype = graph.tensors[op.inputs[0]].dtype
    is_backward = pass_ == "backward"

    def traffic(kind: str, dtype: str, moved_bytes: float) -> Kernel:
        return Kernel(op.name, kind, pass_, dtype, "vector", flop=0, bytes=moved_bytes)

    has_bias = len(op.inputs) > EXPERT_INPUTS
    element_bytes = numbers["routed_bytes"] + (numbers["expert_bias_bytes"] if has_bias else 0)
    if element_bytes:
        yield traffic("gather", "bfloat16", element_bytes * sizes.rows * sizes.width)
    first_accesses = 2 if is_backward else 1  # backward it is read, and its gradient written
    activation_elements = sizes.first_result * first_accesses + sizes.second_operand
    yield traffic("mul", dtype, SIZE_BYTES[dtype] * activation_elements)
    is_clamped = str(op.attrs["activation"]).startswith("clamped")
    if is_clamped:
        yield traffic("pointwise", dtype, numbers["clamped_bytes"] * sizes.first_result)
    if is_low:
        cast_elements = sizes.first_result if is_backward else sizes.second_operand
        yield traffic("cast", "bfloat16", numbers["quantised_bytes"] * cast_elements)


class _ExpertSizes(NamedTuple):
    """The tensors of a layer of experts.

    Attributes:
        rows: rows that are sent to experts, one for each expert of a token.
        width: numbers of a row.
        first_result: elements of the result of the first product.
        second_operand: elements of the operand of the second product.
    """

    rows: float
    width: int
    first_result: float
    second_operand: float


def _expert_sizes(graph: Graph, op: Op) -> _ExpertSizes:
    """Return the sizes of the tensors between the products of a layer of experts."""
    x, _router, up, down = (graph.tensors[name] for name in op.inputs[:EXPERT_INPUTS])
    width = x.shape[-1]
    rows = x.size / width * float(str(op.attrs["per_token"]))
    return _ExpertSizes(rows, width, rows * up.shape[1], rows * down.shape[2])


def states_of(graph: Graph) -> list[str]:
    """Return the names of the tensors that an optimizer keeps for each weight."""
    states = [name for op in graph.ops if op.part == "update" for name in op.inputs[1:-1]]
    return [*states, *(name for name in graph.buffers if name.endswith(SCALES))]


def training_sizes(
    graph: Graph, constants: Mapping[str, float], dtype: str, master_weights: bool
) -> dict[str, int]:
    """Return the bytes of tensors and ops that a stack with `master_weights` holds, by name.

    They differ from those of the graph: states (the optimizer's weights among them), gradients,
    temporaries of an update, and copies of logits (`count.live_bytes`).
    """
    if not (constants and master_weights and precision(dtype).mixed):
        return {}
    numbers = training_constants(constants, dtype, master_weights).numbers
    sizes: dict[str, int] = {}
    for op in graph.ops:
        if op.part == "update":
            weight, *states, gradient = op.inputs
            parameters = graph.tensors[weight].size
            sizes[op.name] = 0  # the stack updates in place
            sizes[gradient] = round(numbers["gradient_bytes"] * parameters)
            for state in states:
                # `state_bytes` are those of all states of a parameter.
                sizes[state] = round(numbers["state_bytes"] / len(states) * parameters)
        elif op.kind == "cross_entropy":
            # Under the name of the loss: its copy of the logits.
            logits = graph.tensors[op.inputs[0]]
            sizes[op.name] = round(numbers["logit_bytes"] * logits.size)
    return sizes

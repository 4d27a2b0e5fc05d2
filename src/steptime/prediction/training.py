"""What a software stack adds to the graph of a training step, by its constants of trainings."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from steptime.core.dtypes import HALVES, SIZE_BYTES, precision
from steptime.core.graph import Graph, Op, Part
from steptime.hardware import catalog
from steptime.hardware.architectures import has_trait
from steptime.hardware.constants import split_flags, value_of
from steptime.hardware.device import Device
from steptime.network.ops.training import SCALES
from steptime.prediction.calibrated.power import limit_of
from steptime.prediction.kernel import Kernel
from steptime.prediction.lower import Lowered

USE = "training"
LOW_BYTES = {"float8": 1.0, "float4": 0.5}  # a copy of weights in the type of products alone
LOW_KINDS = ("linear", "experts")  # rows whose products may run in 8 or 4 bit
FIRST, LAST = "first", "last"  # pieces of a language model beside its layers
_BEFORE = ("embedding", "position", "add_", "segment")  # rows before the layers
OPTIMIZER_FLOP = 13  # of Adam a parameter (`network/ops/loss.py`)


def numbers(
    said: Mapping[str, float], dtype: str, master_weights: bool
) -> tuple[dict[str, float], dict[str, bool]]:
    """Return the numbers and the flags of trainings in a type, by the names that they have inside.

    Without `master_weights` beside those in 16 bit, weights, gradients and states are of one type:
    Adam keeps two states a parameter, a fused update moves its share of what it moves in float32,
    and logits of 4 bytes have no copy.
    """
    found, flags = split_flags(USE, said)
    kind = precision(dtype)
    if not (kind.mixed and master_weights):
        size, whole = SIZE_BYTES[kind.weights], SIZE_BYTES["float32"]
        found |= {"state_bytes": 2 * size, "gradient_bytes": size}
        found["update_bytes"] *= size / whole
        found |= {"logit_bytes": 0.0} if size >= whole else {}
    return found, flags


def graph_dtype(dtype: str, master_weights: bool) -> str:
    """Return the type in which a step's graph is built: with `master_weights`, that of 16 bit."""
    return precision(dtype).compute if master_weights else dtype


def in_training(device: Device) -> Device:
    """Return a device as the kernels of a training find it: its stack says what they take longer.

    It is as a method sees it: `step.product` and `step.attention` are the factors of its kernels.
    """
    said = device.constants
    if not said:
        return device
    slower, of_attention = value_of("training.products", said), 1.0
    if has_trait(device, "copied_tensors"):
        slower *= value_of("training.products_new", said)
        published = catalog.constants_of("gpu")["attention.published"].value
        limit = limit_of(device, said, "matrix", "bfloat16")
        late = 0.0
        if limit is not None:  # clocks fall, and joules with them (`capped_s`)
            late = published * limit.peak_flop_per_s * limit.flop_j / limit.alone_w
            late **= 1 / (1 + limit.clock)
        of_attention = value_of("training.attention", said) * max(1.0, late)
    found = {"step.product": slower, "step.attention": of_attention}
    if "training.softmax" in said:
        found["attention.softmax"] = said["training.softmax"]
    return replace(device, constants={**said, **found})


def as_trained(
    step: Lowered,
    graph: Graph,
    said: Mapping[str, float],
    dtype: str,
    master_weights: bool,
    low: str = "",
) -> Lowered:
    """Return the kernels of a training step as its stack runs them, by the constants that it says.

    With `master_weights` the loss is computed in 32 bit, of logits that are cast, and a fused Adam
    updates all weights at once. Rows are sorted by experts, and back. Products of layers run in a
    type of their own where `low` names one: what several of them read is cast once, and a gradient
    for the two that read it.
    """
    if not said or not any(op.part == "backward" for op in graph.ops):
        return step
    constants, _ = numbers(said, dtype, master_weights)
    master = master_weights and precision(dtype).compute in HALVES
    kinds = {op.name: op.kind for op in graph.ops}
    update_bytes = constants["update_bytes"]
    fused = update_bytes and any(op.kind in ("adam", "adamw") for op in graph.ops)
    added: dict[tuple[str, Part], list[Kernel]] = {}
    for one in _added(graph, constants, master, low):
        added.setdefault((one.op, one.pass_), []).append(one)
    kernels: list[Kernel] = []
    updates: list[Kernel] = []
    for kernel in step.kernels:
        if kernel.pass_ == "update":
            updates.append(kernel)
            continue
        kernels += [_typed(kernel, kinds, master, low), *added.pop((kernel.op, kernel.pass_), ())]
    kernels += [one for some in added.values() for one in some]
    count = sum(graph.tensors[op.inputs[0]].size for op in graph.ops if op.part == "update")
    updates = [fused_update(update_bytes * count, count)] if fused else updates
    gradients = round(constants["gradient_bytes"] * count)
    return replace(step, kernels=(*kernels, *updates), gradient_bytes=gradients)


def fused_update(moved: float, parameters: float) -> Kernel:
    """Return the kernel of a fused Adam that moves so many bytes for so many parameters."""
    flop = OPTIMIZER_FLOP * parameters
    return Kernel("", "adam", "update", "float32", "vector", flop, moved)


def _typed(kernel: Kernel, kinds: Mapping[str, str], master: bool, low: str) -> Kernel:
    """Return a kernel in the type that it runs in: of the loss 32 bit, twice the bytes of 16."""
    kind = kinds.get(kernel.op)
    if master and kind == "cross_entropy" and kernel.dtype in HALVES:
        return kernel._replace(bytes=2 * kernel.bytes, dtype="float32")
    if low and kernel.unit == "matrix" and kind in LOW_KINDS and in_layer(kernel.op):
        return kernel._replace(dtype=low)
    return kernel


def in_layer(row: str) -> bool:
    """Whether a row of a language model belongs to one of its layers, `block1` and on."""
    return row.startswith("block")


def piece_of(row: str) -> str:
    """Return the piece that a row belongs to: what is no layer's stands before or after them."""
    head = row.partition("/")[0]
    if in_layer(head):
        return head
    return FIRST if head.startswith(_BEFORE) else LAST


def _added(
    graph: Graph, constants: Mapping[str, float], master: bool, low: str
) -> Iterator[Kernel]:
    """Yield kernels that a stack adds.

    They are casts of logits and of operands, what experts do beside their products, and the sums of
    gradients with those of other microbatches, of each layer at once.
    """
    passes: Sequence[Part] = ("forward", "backward")
    seen: set[str] = set()
    for op in graph.ops:
        if op.kind not in (*LOW_KINDS, "cross_entropy"):
            continue
        x = graph.tensors[op.inputs[0]]
        is_low = low and op.kind in LOW_KINDS and in_layer(op.name)
        for pass_, name in zip(passes, (op.inputs[0], op.outputs[0]), strict=True):
            if op.kind == "cross_entropy" and master and x.dtype in HALVES:
                moved = 6.0 * x.size  # 2 read and 4 written, or back
                yield Kernel(op.name, "cast", pass_, "float32", "vector", 0, moved)
            if op.kind == "experts":
                yield from _of_experts(graph, op, pass_, constants, is_low)
            if is_low and name not in seen:
                seen.add(name)
                moved = constants["quantised_bytes"] * graph.tensors[name].size
                yield Kernel(op.name, "cast", pass_, "bfloat16", "vector", 0, moved)
    if constants["accumulate_bytes"]:
        sizes: Counter[str] = Counter()
        rows: dict[str, str] = {}
        for op in (one for one in graph.ops if one.part == "update"):
            piece = piece_of(op.inputs[0])
            sizes[piece] += graph.tensors[op.inputs[0]].size
            rows.setdefault(piece, op.of)
        for piece, size in sizes.items():
            moved = constants["accumulate_bytes"] * size
            yield Kernel(rows[piece], "add", "backward", "float32", "vector", 0, moved)


def _of_experts(
    graph: Graph, op: Op, pass_: Part, constants: Mapping[str, float], is_low: object
) -> Iterator[Kernel]:
    """Yield what experts do beside their products: rows are sorted, activated, and cast between.

    Limits of a clamped activation run beside it.

    Forward the activation reads what the first product made, and writes what the second reads;
    backward it reads both of the first and the gradient, and writes that of the first's.
    """
    x, _, up, down = (graph.tensors[name] for name in op.inputs[:4])
    rows = x.size / x.shape[-1] * float(str(op.attrs["per_token"]))
    moved = constants["routed_bytes"] + constants["expert_bias_bytes"] * (len(op.inputs) > 4)
    if moved:
        size = moved * rows * x.shape[-1]
        yield Kernel(op.name, "gather", pass_, "bfloat16", "vector", 0, size)
    outer, inner = rows * up.shape[1], rows * down.shape[2]
    back = pass_ == "backward"
    moved = SIZE_BYTES[x.dtype] * (outer * (2 if back else 1) + inner)
    yield Kernel(op.name, "mul", pass_, x.dtype, "vector", 0, moved)
    if str(op.attrs["activation"]).startswith("clamped"):
        moved = constants["clamped_bytes"] * outer
        yield Kernel(op.name, "pointwise", pass_, x.dtype, "vector", 0, moved)
    if is_low:
        moved = constants["quantised_bytes"] * (outer if back else inner)
        yield Kernel(op.name, "cast", pass_, "bfloat16", "vector", 0, moved)


def states_of(graph: Graph) -> list[str]:
    """Return the names of what an optimizer keeps for each weight."""
    kept = [name for op in graph.ops if op.part == "update" for name in op.inputs[1:-1]]
    return [*kept, *(name for name in graph.buffers if name.endswith(SCALES))]


def sizes_of(
    graph: Graph, said: Mapping[str, float], dtype: str, master_weights: bool
) -> dict[str, int]:
    """Return the bytes of what a stack with `master_weights` holds otherwise than the graph has it.

    Those are states, the optimizer's weights among them, gradients, what an update drops inside,
    and beside logits their copies, by the names of tensors and ops (`count.live_bytes`).
    """
    if not (said and master_weights and precision(dtype).mixed):
        return {}
    constants, _ = numbers(said, dtype, master_weights)
    found: dict[str, int] = {}
    for op in graph.ops:
        size = graph.tensors[op.inputs[0]].size if op.inputs else 0
        if op.part == "update":
            found[op.name] = 0
            found[op.inputs[-1]] = round(constants["gradient_bytes"] * size)
            for name in op.inputs[1:-1]:
                found[name] = round(constants["state_bytes"] / (len(op.inputs) - 2) * size)
        elif op.kind == "cross_entropy":
            found[op.name] = round(constants["logit_bytes"] * size)
    return found

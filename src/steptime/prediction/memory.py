"""What a device holds in a step: its tensors, and what driver, libraries and allocator add."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from steptime.core.graph import Graph, Op
from steptime.core.units import size
from steptime.hardware.architectures import family_of
from steptime.hardware.device import Device
from steptime.hardware.stack import Stack
from steptime.network.count import always_living, live_bytes, lives, scratch_bytes, storages
from steptime.network.ops.execution import execution_of
from steptime.network.ops.gradient_tape import FORMER

MIB = 2**20
# c10/cuda/CUDACachingAllocator.cpp: requests are multiples of 512 bytes; those of at most 1 MiB
# share segments of 2 MiB, those below 10 MiB segments of 20 MiB, larger ones are multiples of 2 MiB
ROUNDED, SMALL, SHARED, LARGE = 512, MIB, 10 * MIB, 2 * MIB
SEGMENTS = (2 * MIB, 20 * MIB)
HANDLES = {"train": 2, "infer": 1}  # of cuBLAS: one a thread, and autograd has its own


class Needs(NamedTuple):
    """Bytes of a device's memory in a step: of all tensors at the worst moment, and beside them.

    `blocks_bytes` are what the allocator's blocks hold beyond tensors, `workspace_bytes` those of
    the library of matrix products, `context_bytes` those of driver and kernels; None where nobody
    says. Workspaces of convolutions, and what lies between blocks, are not known.
    """

    peak_bytes: int
    blocks_bytes: int | None = None
    workspace_bytes: int | None = None
    context_bytes: int | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes in all, as far as they are known."""
        peak, blocks, workspace, context = self
        return peak + (blocks or 0) + (workspace or 0) + (context or 0)

    def fit(self, device: Device) -> bool:
        """Whether a device has as much, True where its memory is unknown."""
        return self.within(device.usable_bytes)

    def within(self, usable_bytes: int | None) -> bool:
        """Whether so many bytes are enough, True where they are unknown."""
        return usable_bytes is None or self.total_bytes <= usable_bytes

    def too_large(self, device: Device) -> str:
        """Return the remark of a step that does not fit."""
        return describe_lack(device, self.total_bytes)


def describe_lack(device: Device, needed_bytes: int) -> str:
    """Describe by how much a device is too small: `out of memory by 1 GB: needs 17 GB, ...`."""
    capacity_bytes = device.usable_bytes or 0.0
    excess = f"out of memory by {size(needed_bytes - capacity_bytes)}"
    return f"{excess}: needs {size(needed_bytes)}, {device.name} has {size(capacity_bytes)}"


LOGIT_CHUNKS = "training.logit_chunks"
LOSS, LOSS_GRADIENTS = "cross_entropy", ("pick_grad", "log_softmax_grad")


class ProcessMemory(NamedTuple):
    """Bytes that a process has on a device beside its tensors; None where nobody says.

    Args:
        workspace_bytes: workspaces of the library of matrix products.
        context_bytes: the context of driver and kernels.
    """

    workspace_bytes: int | None
    context_bytes: int | None

    def needs(self, peak_bytes: int, blocks_bytes: float) -> Needs:
        """Return the memory that a step needs whose tensors and allocator blocks are known."""
        if any(self):
            return Needs(peak_bytes, round(blocks_bytes), *self)
        return Needs(peak_bytes)


def find_process_memory(device: Device, stack: Stack, phase: str) -> ProcessMemory:
    """Find what a process has on a device beside its tensors.

    `[memory]` of a stack's file says context and workspaces by maker of the device, or by its
    architecture (`workspace_hopper_bytes`).
    """
    if device.kind != "gpu" or not stack.memory:
        return ProcessMemory(None, None)
    names = [name.lower().replace(" ", "_") for name in (family_of(device), device.maker or "")]
    workspace_bytes = _find_memory_constant(stack, "workspace", names)
    if workspace_bytes is not None:
        workspace_bytes *= HANDLES[phase]
    return ProcessMemory(workspace_bytes, _find_memory_constant(stack, "context", names))


def _find_memory_constant(stack: Stack, part: str, names: Iterable[str]) -> int | None:
    """Find the constant `memory.PART_NAME_bytes` of the first name that has one."""
    constants = (stack.memory.get(f"memory.{part}_{name}_bytes") for name in names)
    constant = next(filter(None, constants), None)
    return None if constant is None else int(constant.value)


class Allocation(NamedTuple):
    """Sizes of tensors that a moment of a step allocates and frees, in bytes.

    `allocated` live on after the moment, `scratch` only during it; `freed` are freed after it.
    """

    allocated: list[int]
    scratch: list[int]
    freed: list[int]


def list_allocations(
    graph: Graph, stack: Stack, sizes: Mapping[str, int] | None = None
) -> list[Allocation]:
    """Return the allocations before the first op of a step, then those of each op.

    `sizes` are as those of `live_bytes`. The order of the sizes does not depend on the batch.
    """
    overrides = dict(sizes or {})
    bytes_of = {name: spec.size_bytes for name, spec in graph.tensors.items()} | overrides
    resident = Allocation([bytes_of[name] for name in sorted(always_living(graph))], [], [])
    scratch = scratch_bytes(graph, stack) | overrides
    return [
        resident,
        *(
            Allocation(allocated, [scratch.get(op.name, 0)], freed)
            for op, (allocated, freed) in zip(graph.ops, lives(graph, sizes), strict=True)
        ),
    ]


def blocks_bytes(
    graph: Graph, stack: Stack, peak_bytes: int, sizes: Mapping[str, int] | None = None
) -> int:
    """Return what PyTorch's allocator takes at most beyond the `peak_bytes` of tensors, in bytes.

    Three tensors of 100 bytes lie in one segment of 2 MiB; one of 11 MiB in one of 12. No gap
    between tensors that live is counted. `sizes` are as those of `live_bytes`.
    """
    pools, highest = [0, 0, 0], 0
    for allocation in list_allocations(graph, stack, sizes):
        _put(allocation.allocated, pools, 1)
        _put(allocation.scratch, pools, 1)
        highest = max(highest, _taken(pools))
        _put(allocation.scratch, pools, -1)
        _put(allocation.freed, pools, -1)
    return highest - peak_bytes


def _put(sizes: Iterable[int], pools: list[int], sign: int) -> None:
    """Add tensors to the pools of small, middle and large ones, or take them out."""
    for size_bytes in sizes:
        if size_bytes > SHARED:
            pools[2] += sign * -(-size_bytes // LARGE) * LARGE
        else:
            pools[size_bytes > SMALL] += sign * -(-size_bytes // ROUNDED) * ROUNDED


def _taken(pools: list[int]) -> int:
    few = zip(pools, SEGMENTS, strict=False)
    return pools[2] + sum(-(-held // segment) * segment for held, segment in few)


def kept_sizes(graph: Graph, stack: Stack) -> dict[str, int]:
    """Return the bytes of tensors that a stack holds otherwise than the op table has them.

    Of some it keeps more for gradients, of others a chunk at a time. A loss that is fused with the
    head (`training.logit_chunks`) has the logits, and their gradients, of a chunk of tokens alone.
    """
    found: dict[str, int] = _logit_sizes(graph, stack)
    for op in graph.ops:
        how = execution_of(op, stack)
        if how.keeps and len(op.outputs) > 1:
            *_, saved = op.outputs
            added_bytes = how.keeps * graph.tensors[op.inputs[0]].size_bytes
            found[saved] = graph.tensors[saved].size_bytes + round(added_bytes)
        if how.chunks > 1:
            found[op.outputs[0]] = graph.tensors[op.outputs[0]].size_bytes // how.chunks
        if how.in_place and op.part == "backward":
            found[op.outputs[0]] = 0
    return found


def _logit_sizes(graph: Graph, stack: Stack) -> dict[str, int]:
    """Return the bytes of logits, of what the loss keeps of them, and of their gradients."""
    constant = stack.training.get(LOGIT_CHUNKS)
    chunks = int(constant.value) if constant is not None else 0
    if chunks <= 1:
        return {}
    names: set[str] = set()
    for op in graph.ops:
        if op.kind == LOSS:
            names |= {op.inputs[0], *op.outputs[1:]}
        elif op.kind in LOSS_GRADIENTS:
            names.add(op.outputs[0])
    return {name: graph.tensors[name].size_bytes // chunks for name in names}


class Moment(NamedTuple):
    """The worst moment of a step: when it is, and what its tensors are for, in bytes.

    `weights`, `state` (an optimizer's and that of norms) and `inputs` live always, `gradients` are
    those of weights, `copies` weights in another type, `activations` what the forward pass makes,
    `temporaries` what lives for a moment in the backward pass and inside ops, such as an
    optimizer's. They add up to the bytes of all tensors.
    """

    name: str
    parts: Mapping[str, int]


def worst_moment(graph: Graph, stack: Stack, sizes: Mapping[str, int] | None = None) -> Moment:
    """Return when most tensors live in a step, and what they are for.

    `sizes` are as those of `live_bytes`.
    """
    own = {name: spec.size_bytes for name, spec in graph.tensors.items()} | dict(sizes or {})
    living = live_bytes(graph, stack, sizes)
    worst = max(range(len(living)), key=living.__getitem__)
    of, made, ended = storages(graph)
    lives_now = always_living(graph)
    for i in range(worst):
        lives_now |= set(made[i])
        lives_now -= set(ended[i]) if i + 1 < worst else set()
    what = {of.get(op.inputs[-1], ""): "gradients" for op in graph.ops if op.part == "update"}
    for op in graph.ops:
        copies = op.kind == "cast" and op.inputs[0] in graph.weights
        part = "copies" if copies else "activations"
        for name in op.outputs:
            what.setdefault(name, part if op.part == "forward" else "temporaries")
    for names, part in ((graph.inputs, "inputs"), (graph.weights, "weights")):
        what |= dict.fromkeys(names, part)
    what |= dict.fromkeys(graph.buffers, "state") | dict.fromkeys(graph.frozen, "weights")
    what |= {name: "activations" for name in graph.buffers if name.endswith(FORMER)}
    parts = dict.fromkeys(PARTS, 0)
    for name in lives_now:
        parts[what[name]] += own[name]
    parts["temporaries"] += living[worst] - sum(parts.values())
    return Moment("before the step" if not worst else _when(graph.ops[worst - 1]), parts)


PARTS = ("weights", "state", "inputs", "gradients", "copies", "activations", "temporaries")


def _when(op: Op) -> str:
    if op.part == "update":
        return "at the optimizer step"
    return f"in the {op.part} pass, at {op.of or op.name}"


UNIT = 25 * MIB  # of weights that FSDP gathers at once, at least


def memory_of(
    graph: Graph,
    stack: Stack,
    zero: int = 0,
    shards: int = 1,
    fused: bool = False,
    state_bytes: int | None = None,
    accumulates: bool = False,
    own: Mapping[str, int] | None = None,
) -> int:
    """Return the bytes of all tensors of a rank at the worst moment of its step.

    ZeRO shares out optimizer states (1), gradients (2) and weights (3) over `shards` ranks; the
    largest weight, or 25 MiB of them, is whole for a moment, with the one that is gathered next. A
    `fused` optimizer makes no temporaries; `state_bytes` are those of an element of its states. A
    step that `accumulates` holds the gradients of former microbatches from its start. What has
    sizes of its `own` has them before it is shared out (`training.sizes_of`).
    """
    tensors, ops = graph.tensors, [op for op in graph.ops if op.part == "update"]
    of = storages(graph).of
    states = {n for op in ops for n in op.inputs if n in graph.buffers and tensors[n].size > 1}
    gradients = {of.get(op.inputs[-1], op.inputs[-1]) for op in ops}
    sizes = dict(own or {})
    sizes |= {n: tensors[n].size * state_bytes for n in states} if state_bytes else {}
    inside = scratch_bytes(graph, stack) | dict(own or {})
    sizes |= {op.name: 0 if fused else inside.get(op.name, 0) for op in ops}
    shared = [*states, *(op.name for op in ops)] if zero >= 1 else []
    shared += [*gradients] if zero >= 2 else []
    shared += [*graph.weights] if zero >= 3 else []
    for name in shared:
        whole = sizes.get(name)
        sizes[name] = -(-(tensors[name].size_bytes if whole is None else whole) // shards)
    weights = [tensors[name].size_bytes for name in graph.weights]
    unit = min(sum(weights), max([UNIT, *weights])) if zero >= 2 and shards > 1 else 0
    standing = 0
    if accumulates:
        each = {n: sizes.get(n, tensors[n].size_bytes) for n in gradients}
        standing, sizes = sum(each.values()), sizes | dict.fromkeys(gradients, 0)
    return standing + max(live_bytes(graph, stack, sizes)) + unit * (1 if zero == 2 else 3)

"""The memory of a step on a device: its tensors, and the share of driver, libraries, allocator."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from steptime.core.graph import Graph, Op
from steptime.core.units import format_bytes
from steptime.hardware.architectures import format_constant_suffixes
from steptime.hardware.device import Device
from steptime.hardware.stack import Stack
from steptime.network.count import live_bytes, permanent_tensors, scratch_bytes, storages
from steptime.network.ops.execution import execution_of
from steptime.network.ops.gradient_tape import FORMER

MIB = 2**20
HANDLES = {"train": 2, "infer": 1}  # of cuBLAS: one a thread, and autograd has its own
UNSHARDED_BYTES = 25 * MIB  # of weights that FSDP gathers at once, at least
FOUR_DIGITS = 1e3  # the smallest number of four digits
POWERS_OF_TEN = tuple(10.0**power for power in range(17))
PARTS = ("weights", "state", "inputs", "gradients", "copies", "activations", "temporaries")


class Needs(NamedTuple):
    """Bytes of a device's memory in a step; None where unknown.

    Workspaces of convolutions, and gaps between blocks, are not known.

    Attributes:
        peak_bytes: all tensors at the worst moment.
        blocks_bytes: the allocator's blocks beyond tensors.
        workspace_bytes: workspaces of the library of matrix products.
        context_bytes: the context of driver and kernels.
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
        return self.fits_in(device.datasheet.usable_bytes)

    def fits_in(self, usable_bytes: int | None) -> bool:
        """Whether so many bytes are enough, True where they are unknown."""
        return usable_bytes is None or self.total_bytes <= usable_bytes

    def too_large(self, device: Device) -> str:
        """Return the remark of a step that does not fit."""
        return describe_lack(device, self.total_bytes)


def describe_lack(device: Device, needed_bytes: int) -> str:
    """Describe by how much a device is too small: `out of memory by 1 GB: needs 17 GB, ...`."""
    (text,) = describe_lacks(device, [needed_bytes])
    return text


def describe_lacks(device: Device, needed_bytes: Sequence[int]) -> list[str]:
    """Return the text of `describe_lack` for each of many needs."""
    capacity_bytes = device.datasheet.usable_bytes or 0
    has = f"{device.name} has {format_bytes(capacity_bytes)}"
    excess_texts = format_many_bytes([needed - capacity_bytes for needed in needed_bytes])
    return [
        f"out of memory by {excess}: needs {needed}, {has}"
        for excess, needed in zip(excess_texts, format_many_bytes(needed_bytes), strict=True)
    ]


def format_many_bytes(values: Sequence[float]) -> list[str]:
    """Return the text of each of many sizes, as `format_bytes` does.

    Sizes of one text are formatted once. They have at most 2^53 bytes, up to which whole numbers
    are exact.
    """
    numbers = np.array(values, dtype=float)
    # From 1,000 on a text has four digits: 1,234,567 is a multiple of 1,000.
    magnitudes = np.maximum(np.abs(numbers), FOUR_DIGITS)
    digit_counts = np.searchsorted(POWERS_OF_TEN, magnitudes, side="right")
    multiples = np.array(POWERS_OF_TEN)[digit_counts - 4]
    rounded = np.where(
        np.abs(numbers) < FOUR_DIGITS, numbers, np.rint(numbers / multiples) * multiples
    )
    return list(map(format_bytes, rounded.tolist()))


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
        return ProcessMemory(workspace_bytes=None, context_bytes=None)
    names = format_constant_suffixes(device)
    workspace_bytes = _find_memory_constant(stack, "workspace", names)
    if workspace_bytes is not None:
        workspace_bytes *= HANDLES[phase]  # a handle of the library has a workspace of its own
    context_bytes = _find_memory_constant(stack, "context", names)
    return ProcessMemory(workspace_bytes, context_bytes)


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
    stated_bytes = dict(sizes or {})
    tensor_bytes = {name: spec.size_bytes for name, spec in graph.tensors.items()} | stated_bytes
    resident_bytes = [tensor_bytes[name] for name in sorted(permanent_tensors(graph))]
    allocations = [Allocation(allocated=resident_bytes, scratch=[], freed=[])]
    # `sizes` may have an op's name, too: the bytes of its scratch.
    scratch_by_op = scratch_bytes(graph, stack) | stated_bytes
    step_storages = storages(graph)
    for op, allocated_names, freed_names in zip(
        graph.ops, step_storages.allocated, step_storages.freed, strict=True
    ):
        allocated = [tensor_bytes[name] for name in allocated_names]
        freed = [tensor_bytes[name] for name in freed_names]
        op_scratch = [scratch_by_op.get(op.name, 0)]
        allocations.append(Allocation(allocated=allocated, scratch=op_scratch, freed=freed))
    return allocations


def stack_sizes(graph: Graph, stack: Stack) -> dict[str, int]:
    """Return the bytes of tensors that a stack holds unlike the op table, by name.

    It saves more of some for gradients, and holds some a chunk at a time. A loss that is fused with
    the head (`training.logit_chunks`) holds logits, and their gradients, of a chunk of tokens.
    """
    sizes: dict[str, int] = _logit_sizes(graph, stack)
    for op in graph.ops:
        execution = execution_of(op, stack)
        if execution.keeps and len(op.outputs) > 1:
            # By convention the last output of an op is what it saves for the backward pass.
            *_, saved = op.outputs
            extra_bytes = execution.keeps * graph.tensors[op.inputs[0]].size_bytes
            sizes[saved] = graph.tensors[saved].size_bytes + round(extra_bytes)
        # Of an op that runs chunk by chunk, one chunk of the result lives at a time.
        if execution.chunks > 1:
            sizes[op.outputs[0]] = graph.tensors[op.outputs[0]].size_bytes // execution.chunks
        # A gradient in place needs no bytes: it overwrites the one that came in.
        if execution.in_place and op.part == "backward":
            sizes[op.outputs[0]] = 0
    return sizes


def _logit_sizes(graph: Graph, stack: Stack) -> dict[str, int]:
    """Return the bytes of logits, of the loss's saved tensors, and of the gradients of logits."""
    constant = stack.training.get(LOGIT_CHUNKS)
    chunks = int(constant.value) if constant is not None else 0
    if chunks <= 1:
        return {}
    names: set[str] = set()
    for op in graph.ops:
        if op.kind == LOSS:
            # The logits, and what the loss saves for the backward pass (its outputs but the loss).
            names |= {op.inputs[0], *op.outputs[1:]}
        elif op.kind in LOSS_GRADIENTS:
            names.add(op.outputs[0])
    return {name: graph.tensors[name].size_bytes // chunks for name in names}


class Moment(NamedTuple):
    """The worst moment of a step, with the purposes of its tensors.

    Attributes:
        name: when it is: `in the forward pass, at conv1`.
        bytes_by_purpose: they add up to the bytes of all tensors. `weights`, `state` (of an
            optimizer and of norms) and `inputs` always live; `gradients` are those of weights;
            `copies` are weights in another type; `activations` are outputs of the forward pass;
            `temporaries` live for a moment in the backward pass and inside ops.
    """

    name: str
    bytes_by_purpose: Mapping[str, int]


def worst_moment(graph: Graph, stack: Stack, sizes: Mapping[str, int] | None = None) -> Moment:
    """Return the moment at which most bytes of tensors live, with their purposes.

    `sizes` are as those of `live_bytes`.
    """
    tensor_bytes = {name: spec.size_bytes for name, spec in graph.tensors.items()}
    tensor_bytes |= sizes or {}
    living_bytes = live_bytes(graph, stack, sizes)  # before the step, then after each op
    worst = max(range(len(living_bytes)), key=living_bytes.__getitem__)
    purposes = _tensor_purposes(graph)
    bytes_by_purpose = dict.fromkeys(PARTS, 0)
    for tensor in _living_tensors(graph, worst):
        bytes_by_purpose[purposes[tensor]] += tensor_bytes[tensor]
    # What no tensor accounts for is scratch of the op that runs.
    bytes_by_purpose["temporaries"] += living_bytes[worst] - sum(bytes_by_purpose.values())
    # Entry 0 of `living_bytes` is before the first op, so that entry i is after op i - 1.
    moment = _describe_moment(graph.ops[worst - 1]) if worst else "before the step"
    return Moment(moment, bytes_by_purpose)


def _living_tensors(graph: Graph, moment: int) -> set[str]:
    """Return the tensors that live at a moment of a step: 0 before it, then one for each op."""
    step_storages = storages(graph)
    living = permanent_tensors(graph)
    for op_index in range(moment):
        living |= set(step_storages.allocated[op_index])
        is_running = op_index == moment - 1  # its inputs still live
        if not is_running:
            living -= set(step_storages.freed[op_index])
    return living


def _tensor_purposes(graph: Graph) -> dict[str, str]:
    """Return the purpose of each tensor, one of `PARTS`."""
    storage_of = storages(graph).storage_by_tensor
    # By convention the last input of an update is the gradient of its weight.
    purposes = {
        storage_of.get(op.inputs[-1], ""): "gradients" for op in graph.ops if op.part == "update"
    }
    for op in graph.ops:
        is_copy = op.kind == "cast" and op.inputs[0] in graph.weights
        forward_purpose = "copies" if is_copy else "activations"
        purpose = forward_purpose if op.part == "forward" else "temporaries"
        for name in op.outputs:
            purposes.setdefault(name, purpose)
    # These overwrite what is above: permanent tensors keep their purpose whatever op writes them.
    purposes |= dict.fromkeys(graph.inputs, "inputs")
    purposes |= dict.fromkeys(graph.weights, "weights")
    purposes |= dict.fromkeys(graph.buffers, "state")
    purposes |= dict.fromkeys(graph.frozen, "weights")
    # Tensors of the microbatch before, which the loop still holds, are buffers in the graph.
    return purposes | {name: "activations" for name in graph.buffers if name.endswith(FORMER)}


def _describe_moment(op: Op) -> str:
    """Describe the moment of an op: `in the backward pass, at conv1`."""
    if op.part == "update":
        return "at the optimizer step"
    # `op.forward_op` is the op of the forward pass that a backward op belongs to, empty for others.
    return f"in the {op.part} pass, at {op.forward_op or op.name}"


class Sharding(NamedTuple):
    """The sharing of a rank's tensors by ZeRO.

    Attributes:
        zero: shares optimizer states (1), gradients (2) and weights (3), too.
        shards: number of ranks that share.
    """

    zero: int
    shards: int


UNSHARDED = Sharding(0, 1)


def rank_peak_bytes(
    graph: Graph,
    stack: Stack,
    sharding: Sharding = UNSHARDED,
    fused: bool = False,
    state_bytes: int | None = None,
    accumulates: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> int:
    """Return the bytes of all tensors of a rank at the worst moment of its step.

    The largest weight, or 25 MiB of weights, is gathered for a moment, beside the next one.

    Args:
        graph: the graph of the rank's step.
        stack: the software that runs it.
        sharding: the sharing of states, gradients and weights.
        fused: whether the optimizer makes no temporaries.
        state_bytes: bytes of an element of an optimizer state; None as the graph has it.
        accumulates: whether gradients of earlier microbatches live from the start of the step.
        sizes: bytes of tensors and ops that differ from the graph's, before they are shared
            (`training.training_sizes`).
    """
    changed_sizes = dict(sizes or {})
    updates = [op for op in graph.ops if op.part == "update"]
    if state_bytes:
        states = _optimizer_states(graph, updates)
        changed_sizes |= {name: graph.tensors[name].size * state_bytes for name in states}
    scratch = scratch_bytes(graph, stack) | dict(sizes or {})
    # Under the name of an op stand the bytes of its scratch: a fused optimizer has none.
    changed_sizes |= {op.name: 0 if fused else scratch.get(op.name, 0) for op in updates}
    gradients = _weight_gradients(graph, updates)
    for name in _list_sharded(graph, updates, gradients, sharding.zero):
        # A shard: a ceil division, since shards are padded to equal sizes.
        size_bytes = _size_of(graph, changed_sizes, name)
        changed_sizes[name] = -(-size_bytes // sharding.shards)
    accumulated_bytes = 0
    if accumulates:
        # Accumulated gradients live all the time, so they are added to the peak of all others.
        accumulated_bytes = sum(_size_of(graph, changed_sizes, name) for name in gradients)
        changed_sizes |= dict.fromkeys(gradients, 0)
    peak_bytes = max(live_bytes(graph, stack, changed_sizes))
    return accumulated_bytes + peak_bytes + _gathered_bytes(graph, sharding)


def _weight_gradients(graph: Graph, updates: Iterable[Op]) -> set[str]:
    """Return the storages of the gradients of weights: by convention an update's last input."""
    storage_of = storages(graph).storage_by_tensor
    return {storage_of.get(op.inputs[-1], op.inputs[-1]) for op in updates}


def _list_sharded(
    graph: Graph, updates: Sequence[Op], gradients: Iterable[str], zero: int
) -> list[str]:
    """Return the tensors that ranks share under a stage of ZeRO, and ops by their scratch."""
    sharded_names: list[str] = []
    if zero >= 1:
        sharded_names += [*_optimizer_states(graph, updates), *(op.name for op in updates)]
    if zero >= 2:
        sharded_names += gradients
    if zero >= 3:
        sharded_names += graph.weights
    return sharded_names


def _size_of(graph: Graph, sizes: Mapping[str, int], name: str) -> int:
    """Return the bytes of a tensor, or of an op that has a size of its own."""
    size_bytes = sizes.get(name)
    return graph.tensors[name].size_bytes if size_bytes is None else size_bytes


def _optimizer_states(graph: Graph, updates: Iterable[Op]) -> set[str]:
    """Return the states of an optimizer that are as large as weights."""
    return {
        name
        for op in updates
        for name in op.inputs
        if name in graph.buffers and graph.tensors[name].size > 1  # no counter of steps
    }


def _gathered_bytes(graph: Graph, sharding: Sharding) -> int:
    """Return the bytes of weights, and of their gradients, that are whole for a moment."""
    if sharding.zero < 2 or sharding.shards <= 1:
        return 0
    weights = [graph.tensors[name].size_bytes for name in graph.weights]
    # FSDP gathers units of at least UNSHARDED_BYTES, or all weights where these are fewer.
    unit_bytes = min(sum(weights), max([UNSHARDED_BYTES, *weights]))
    # ZeRO 2 has a unit's whole gradient at once; ZeRO 3 its weights and those of the next one,
    # fetched ahead, too.
    unit_count = 1 if sharding.zero == 2 else 3
    return unit_bytes * unit_count

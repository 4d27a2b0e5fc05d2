"""What a device holds in a step: its tensors, and what driver, libraries and allocator add."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from steptime.core.graph import Graph
from steptime.core.hardware import Device
from steptime.core.stack import Stack
from steptime.core.units import size
from steptime.count import always_living, live_bytes, lives, scratch_bytes

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
        return device.memory_bytes is None or self.total_bytes <= device.memory_bytes

    def too_large(self, device: Device) -> str:
        """Return the remark of a step that does not fit."""
        return f"needs {size(self.total_bytes)}, {device.name} has {size(device.memory_bytes or 0)}"


def needs_of(
    peak_bytes: int, blocks_bytes: float, device: Device, stack: Stack, phase: str
) -> Needs:
    """Return what a step needs on a device, whose allocator is that of the stack.

    `[memory]` of a stack's file says context and workspaces by maker of the device, or by its
    architecture (`workspace_hopper_bytes`).
    """
    if device.kind != "gpu" or not stack.memory:
        return Needs(peak_bytes)
    of = device.architecture or ""  # such as "CDNA 3.0", "Blackwell 2.0"
    words = (of.partition(".")[0], of.partition(" ")[0], device.maker or "")
    names = [word.lower().replace(" ", "_") for word in words]
    held: list[int | None] = []
    for what, times in (("workspace", HANDLES[phase]), ("context", 1)):
        known = (stack.memory.get(f"memory.{what}_{name}_bytes") for name in names)
        first = next(filter(None, known), None)
        held.append(None if first is None else int(first.value) * times)
    return Needs(peak_bytes, round(blocks_bytes), *held) if any(held) else Needs(peak_bytes)


def blocks_bytes(graph: Graph, stack: Stack, peak_bytes: int) -> int:
    """Return what PyTorch's allocator takes at most beyond the `peak_bytes` of tensors, in bytes.

    Three tensors of 100 bytes lie in one segment of 2 MiB; one of 11 MiB in one of 12. No gap
    between tensors that live is counted.
    """
    pools = [0, 0, 0]
    _put([graph.tensors[name].size_bytes for name in always_living(graph)], pools, 1)
    inside, most = scratch_bytes(graph, stack), _taken(pools)
    for op, (made, ended) in zip(graph.ops, lives(graph), strict=True):
        _put(made, pools, 1)
        held = [inside.get(op.name, 0)]
        _put(held, pools, 1)
        most = max(most, _taken(pools))
        _put(held, pools, -1)
        _put(ended, pools, -1)
    return most - peak_bytes


def _put(sizes: Iterable[int], pools: list[int], sign: int) -> None:
    """Add tensors to the pools of small, middle and large ones, or take them out."""
    for one in sizes:
        if one > SHARED:
            pools[2] += sign * -(-one // LARGE) * LARGE
        else:
            pools[one > SMALL] += sign * -(-one // ROUNDED) * ROUNDED


def _taken(pools: list[int]) -> int:
    few = zip(pools, SEGMENTS, strict=False)
    return pools[2] + sum(-(-held // segment) * segment for held, segment in few)


def memory_parts(graph: Graph, stack: Stack, peak_bytes: int) -> Mapping[str, int]:
    """Return what the tensors of a step are for at its worst moment, in bytes; they add up to it.

    `weights`, `state` (an optimizer's and that of norms) and `inputs` live always; `gradients` are
    those of weights that are made by then and not used up; `activations` are all other tensors.
    `other` is what a `peak_bytes` holds beside all tensors.
    """
    living = live_bytes(graph, stack)
    worst = max(range(len(living)), key=living.__getitem__)

    def of(names: Iterable[str]) -> int:
        return sum(graph.tensors[name].size_bytes for name in set(names))

    made = {name: i for i, op in enumerate(graph.ops, start=1) for name in op.outputs}
    parts = {
        "weights": of(graph.weights),
        "state": of(graph.buffers),
        "inputs": of(graph.inputs),
        "gradients": of(
            op.inputs[-1]
            for i, op in enumerate(graph.ops, start=1)
            if op.part == "update" and made.get(op.inputs[-1], worst + 1) <= worst <= i
        ),
    }
    rest = living[worst] - sum(parts.values())
    return {**parts, "activations": rest, "other": peak_bytes - living[worst]}

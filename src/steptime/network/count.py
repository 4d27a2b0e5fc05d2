"""The cost of a network: FLOP and bytes of each op, and the memory at its worst moment."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from steptime.core.graph import Graph, Op, Part
from steptime.hardware import catalog
from steptime.hardware.stack import Execution, Stack
from steptime.network.ops import OPS, cost_of, saved_of, scratch_of
from steptime.network.ops.execution import execution_of, list_launches


@dataclass(frozen=True)
class OpCost:
    """FLOP and bytes of one op; `forward_op` is the op it belongs to (itself if forward)."""

    name: str
    kind: str
    part: Part
    forward_op: str
    flop: int
    traffic_bytes: int
    output_shape: tuple[int, ...]


@dataclass(frozen=True)
class Count:
    """Costs of one step of a graph, forward alone or training.

    `traffic_bytes` is a bound: every op reads its inputs once and writes its outputs once.
    `executed_flop`, `executed_traffic_bytes` and `kernels` are what a software stack runs and
    launches. `activation_bytes` is the sum of the forward ops' outputs that have memory of their
    own.
    """

    parameters: int
    flop: int
    traffic_bytes: int
    activation_bytes: int
    peak_bytes: int
    ops: tuple[OpCost, ...]
    executed_flop: float
    executed_traffic_bytes: float
    kernels: int


def op_work(graph: Graph, op: Op) -> tuple[int, int]:
    """Return the FLOP and the bytes of one op of `graph`."""
    return cost_of(*graph.cases[op.name])


def op_cost(graph: Graph, op: Op) -> OpCost:
    """Return the cost of one op of `graph`."""
    shape = graph.tensors[op.outputs[0]].shape
    return OpCost(op.name, op.kind, op.part, op.forward_op or op.name, *op_work(graph, op), shape)


def count(graph: Graph, stack: Stack | None = None) -> Count:
    """Return FLOP, bytes, parameters, activation bytes and peak memory of one step of `graph`.

    `stack` says what is executed; without one it is `catalog.DEFAULT_STACK`.
    """
    launches = list_launches(graph, stack or catalog.stack())
    ops = tuple(op_cost(graph, op) for op in graph.ops)
    frozen_parameters = sum(graph.tensors[name].size for name in graph.frozen)
    return Count(
        parameters=graph.parameters + frozen_parameters,
        flop=sum(op.flop for op in ops),
        traffic_bytes=sum(op.traffic_bytes for op in ops),
        activation_bytes=_activation_bytes(graph),
        peak_bytes=peak_bytes(graph, stack),
        ops=ops,
        executed_flop=sum(launch.flop for launch in launches),
        executed_traffic_bytes=sum(launch.traffic_bytes for launch in launches),
        kernels=sum(launch.kernels for launch in launches),
    )


def _activation_bytes(graph: Graph) -> int:
    """Return the bytes of the forward ops' outputs that have memory of their own."""
    return sum(
        graph.tensors[op.outputs[0]].size_bytes
        for op in graph.ops
        if op.part == "forward" and OPS[op.kind].storage == "new"
    )


def peak_bytes(graph: Graph, stack: Stack | None = None) -> int:
    """Return the bytes that live at the worst moment of a step, run in order.

    Inputs, weights and buffers (optimizer states too) live always. Other tensors live from the op
    that makes them to the last op that reads them, the graph's outputs to the end. Scratch lives
    while its op runs; an optimizer that `stack` runs over all weights together holds the scratch of
    all of them. A view or an op in place takes no memory of its own. Copies of weights in another
    type live to the end of the forward pass, as autocast keeps them. Not counted: workspace of
    kernels, fragmentation.
    Three ops a -> b -> c of 1 byte each, no weights: 1, 2, then 2 (a is gone): the peak is 2.
    """
    return max(live_bytes(graph, stack))


def live_bytes(
    graph: Graph, stack: Stack | None = None, sizes: Mapping[str, int] | None = None
) -> list[int]:
    """Return the bytes that live before the first op of a step and during each op.

    The peak of `peak_bytes` is the largest of them. `sizes` replaces the bytes of tensors, which
    follow from their shapes, and of the scratch of ops, by the op's name.
    """
    # `sizes` states bytes in place of a tensor's own, by its name, and of an op's scratch
    stated_bytes = dict(sizes or {})
    op_scratch_bytes = scratch_bytes(graph, stack or catalog.stack()) | stated_bytes
    permanent_bytes = sum(
        stated_bytes.get(name, graph.tensors[name].size_bytes) for name in permanent_tensors(graph)
    )
    # what is allocated, used as scratch, and freed: before the first op, and at each op
    moments: list[tuple[list[int], list[int], list[int]]] = [([permanent_bytes], [], [])]
    bytes_of_ops = allocated_and_freed_bytes(graph, sizes)
    for op, (allocated, freed) in zip(graph.ops, bytes_of_ops, strict=True):
        moments.append((allocated, [op_scratch_bytes.get(op.name, 0)], freed))
    return sum_living_bytes(moments)


def sum_living_bytes(
    moments: Iterable[tuple[Sequence[int], Sequence[int], Sequence[int]]],
) -> list[int]:
    """Return the bytes that live at each moment of a step.

    Args:
        moments: sizes that a moment allocates, that are its scratch, and that it frees at its end.
    """
    living_bytes: list[int] = []
    current_bytes = 0
    for allocated, scratch, freed in moments:
        current_bytes += sum(allocated)
        living_bytes.append(current_bytes + sum(scratch))
        current_bytes -= sum(freed)
    return living_bytes


def permanent_tensors(graph: Graph) -> set[str]:
    """Return the names of the tensors that live through all steps."""
    return {*graph.inputs, *graph.weights, *graph.buffers}


class Storages(NamedTuple):
    """The memory of tensors: views and results in place share the storage of their source.

    Attributes:
        storage_by_tensor: the storage of each tensor: the name of the tensor that it was allocated
            for.
        allocated: storages that each op allocates.
        freed: storages that are freed after each op.
    """

    storage_by_tensor: dict[str, str]
    allocated: list[list[str]]
    freed: list[list[str]]


def allocated_and_freed_bytes(
    graph: Graph, sizes: Mapping[str, int] | None = None
) -> list[tuple[list[int], list[int]]]:
    """Return the bytes of each tensor that an op allocates, and of each that is freed after it.

    `sizes` are as those of `live_bytes`.
    """
    bytes_by_name = {name: spec.size_bytes for name, spec in graph.tensors.items()}
    bytes_by_name |= dict(sizes or {})
    graph_storages = storages(graph)
    bytes_of_ops = []
    for allocated, freed in zip(graph_storages.allocated, graph_storages.freed, strict=True):
        allocated_bytes = [bytes_by_name[name] for name in allocated]
        freed_bytes = [bytes_by_name[name] for name in freed]
        bytes_of_ops.append((allocated_bytes, freed_bytes))
    return bytes_of_ops


@lru_cache(maxsize=1)
def storages(graph: Graph) -> Storages:
    """Return the storages that each op of a graph allocates, and those that are freed after it."""
    storage_by_tensor = _find_storage(graph)
    freed: list[list[str]] = [[] for _ in graph.ops]
    permanent_names = permanent_tensors(graph)
    for name, last_use in _find_last_use_indices(graph, storage_by_tensor).items():
        # outputs of the graph have their last use behind all ops, and are not freed
        if name not in permanent_names and last_use < len(graph.ops):
            freed[last_use].append(name)
    allocated = [
        [name for name in op.outputs if storage_by_tensor[name] == name] for op in graph.ops
    ]
    return Storages(storage_by_tensor, allocated, freed)


def _find_storage(graph: Graph) -> dict[str, str]:
    """Return the storage of the outputs of all ops."""
    storage_by_tensor: dict[str, str] = {}
    for op in graph.ops:
        rule = OPS[op.kind].storage
        for i, name in enumerate(op.outputs):
            if rule == "view":
                source = op.inputs[0]
            elif rule == "in_place" and i < len(op.inputs):  # output i overwrites input i
                source = op.inputs[i]
            else:  # new memory
                source = name
            storage_by_tensor[name] = storage_by_tensor.get(source, source)
    return storage_by_tensor


def _find_last_use_indices(graph: Graph, storage_by_tensor: Mapping[str, str]) -> dict[str, int]:
    """Return the index of the last op that uses each storage, behind all ops for outputs.

    Casts of weights live to the end of the forward pass, as autocast keeps them.
    """
    last_use_by_storage: dict[str, int] = {}
    behind_all_ops = len(graph.ops)
    for op_index, op in enumerate(graph.ops):
        for name in (*op.inputs, *op.outputs):
            last_use_by_storage[storage_by_tensor.get(name, name)] = op_index
    for name in graph.outputs:
        last_use_by_storage[storage_by_tensor.get(name, name)] = behind_all_ops
    # autocast keeps the casts of weights to the end of the forward pass
    weights = set(graph.weights)
    forward_count = sum(op.part == "forward" for op in graph.ops)
    for op in graph.ops[:forward_count]:
        if op.kind == "cast" and op.inputs[0] in weights:
            name = op.outputs[0]
            last_use_by_storage[name] = max(last_use_by_storage[name], forward_count - 1)
    return last_use_by_storage


MAPPED_BYTES = 32 * 2**20  # glibc's largest threshold: such a tensor is mapped each time
MIN_THRESHOLD_BYTES = 8 * 2**20  # size of tensors that a framework has freed by itself before
NEW_SHARE = 0.5  # of free heap: the part above all live tensors is cut off; from 63 networks


def fresh_bytes(graph: Graph) -> dict[str, float]:
    """Return, per op, the bytes of its output that land in new pages, which the kernel zeroes.

    As glibc's malloc does (mallopt(3), dynamic thresholds): tensors of 32 MiB and more are mapped
    each time. Others lie in a heap, which grows with the live tensors and is cut back if more than
    twice the largest of them is free; of that `NEW_SHARE` is new the next time. The second of two
    steps counts, its heap as the first left it. A step of one op that allocates 40 MiB: 40 MiB.
    """
    bytes_of_ops = allocated_and_freed_bytes(graph)
    first_step = _run_on_heap(bytes_of_ops, heap_bytes=0)
    second_step = _run_on_heap(bytes_of_ops, first_step.heap_bytes)
    return dict(zip((op.name for op in graph.ops), second_step.fresh_bytes, strict=True))


class _HeapStep(NamedTuple):
    """One step's use of the heap: bytes of each op in new pages, and the heap's size at the end."""

    fresh_bytes: list[float]
    heap_bytes: int


def _run_on_heap(
    bytes_of_ops: Sequence[tuple[Sequence[int], Sequence[int]]], heap_bytes: int
) -> _HeapStep:
    """Return a step's use of a heap that has `heap_bytes` before the first op.

    `bytes_of_ops` has the bytes of each tensor that an op allocates, and that are freed after it.
    """
    # glibc cuts the heap back when twice its mmap threshold is free; the threshold grows to the
    # largest tensor that was freed.
    heap_sizes = [size for sizes, _ in bytes_of_ops for size in sizes if size < MAPPED_BYTES]
    max_free_bytes = 2 * max([*heap_sizes, MIN_THRESHOLD_BYTES])
    fresh_bytes_of_ops: list[float] = []
    live_heap_bytes = 0
    for allocated, freed in bytes_of_ops:
        mapped_bytes = sum([size for size in allocated if size >= MAPPED_BYTES])
        live_heap_bytes += sum(allocated) - mapped_bytes
        growth_bytes = max(0, live_heap_bytes - heap_bytes)
        # A mapped tensor always lies in new pages; of the bytes by which the heap grows only a
        # share does.
        fresh_bytes_of_ops.append(mapped_bytes + NEW_SHARE * growth_bytes)
        heap_bytes += growth_bytes
        live_heap_bytes -= sum([size for size in freed if size < MAPPED_BYTES])
        if heap_bytes - live_heap_bytes > max_free_bytes:
            heap_bytes = live_heap_bytes
    if heap_bytes > max_free_bytes:  # the outputs of the step are dropped, too
        heap_bytes = 0
    return _HeapStep(fresh_bytes_of_ops, heap_bytes)


def scratch_bytes(graph: Graph, stack: Stack) -> dict[str, int]:
    """Return the bytes that each op allocates and frees inside, by the op's name.

    Ops that are launched together hold their scratch at once: the first has the bytes of all.
    """
    bytes_by_op: dict[str, int] = {}
    first_op_of_kind: dict[str, str] = {}
    for op in graph.ops:
        execution = execution_of(op, stack)
        op_row = OPS[op.kind]
        has_scratch = execution.temporaries is not None or op_row.scratch is not None
        if not has_scratch and not op_row.always_saves:
            continue
        scratch_owner = op.name
        if execution.together:  # one launch for all ops of the kind: all scratch at the first
            scratch_owner = first_op_of_kind.setdefault(op.kind, op.name)
        op_bytes = _scratch_bytes_of(op, graph, execution)
        bytes_by_op[scratch_owner] = bytes_by_op.get(scratch_owner, 0) + op_bytes
    return bytes_by_op


def _scratch_bytes_of(op: Op, graph: Graph, execution: Execution) -> int:
    """Return the bytes that an op allocates and frees inside, and what it saves for no gradient."""
    op_row = OPS[op.kind]
    specs = tuple([graph.tensors[name] for name in op.inputs])
    op_bytes = 0
    if execution.temporaries is not None:  # the stack's figure wins over the op table's
        op_bytes = execution.temporaries * specs[0].size_bytes
    elif op_row.scratch:
        op_bytes = scratch_of(op.kind, specs, op.settings)
    is_differentiated = len(op.outputs) > 1  # then what it saves is an output already
    if op_row.always_saves and not is_differentiated:
        saved_specs = saved_of(op.kind, specs, op.settings)
        op_bytes += sum(spec.size_bytes for spec in saved_specs)
    return op_bytes

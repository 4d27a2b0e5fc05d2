"""What a network costs: FLOP and bytes of every op, and the memory at its worst moment."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from steptime.core.graph import Graph, Op, Part
from steptime.hardware import catalog
from steptime.hardware.stack import Stack
from steptime.network.ops import OPS, cost_of, saved_of, scratch_of
from steptime.network.ops.execution import executed, execution_of


@dataclass(frozen=True)
class OpCost:
    """FLOP and bytes of one op; `of` is the forward op it belongs to (itself if forward)."""

    name: str
    kind: str
    part: Part
    of: str
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
    return OpCost(op.name, op.kind, op.part, op.of or op.name, *op_work(graph, op), shape)


def count(graph: Graph, stack: Stack | None = None) -> Count:
    """Return FLOP, bytes, parameters, activation bytes and peak memory of one step of `graph`.

    `stack` says what is executed; without one it is `catalog.DEFAULT_STACK`.
    """
    launches = executed(graph, stack or catalog.stack())
    ops = tuple(op_cost(graph, op) for op in graph.ops)
    activations = sum(
        graph.tensors[op.outputs[0]].size_bytes
        for op in graph.ops
        if op.part == "forward" and OPS[op.kind].storage == "new"
    )
    return Count(
        parameters=graph.parameters + sum(graph.tensors[name].size for name in graph.frozen),
        flop=sum(op.flop for op in ops),
        traffic_bytes=sum(op.traffic_bytes for op in ops),
        activation_bytes=activations,
        peak_bytes=peak_bytes(graph, stack),
        ops=ops,
        executed_flop=sum(launch.flop for launch in launches),
        executed_traffic_bytes=sum(launch.traffic_bytes for launch in launches),
        kernels=sum(launch.kernels for launch in launches),
    )


def peak_bytes(graph: Graph, stack: Stack | None = None) -> int:
    """Return the bytes that live at the worst moment of a step, run in order.

    Inputs, weights and buffers (optimizer state with them) live always; any other tensor from the
    op that makes it to the last op that reads it, the graph's outputs to the end; what an op makes
    and drops inside lives while it runs; an optimizer that `stack` runs over all weights together
    holds what it drops for all of them. A view or an op in place takes no memory of its own. Copies
    of weights in another type live to the end of the forward pass, as autocast keeps them. Not
    counted: workspace of kernels, fragmentation.
    Three ops a -> b -> c of 1 byte each, no weights: 1, 2, then 2 (a is gone): the peak is 2.
    """
    return max(live_bytes(graph, stack))


def live_bytes(
    graph: Graph, stack: Stack | None = None, sizes: Mapping[str, int] | None = None
) -> list[int]:
    """Return the bytes that live before the first op of a step and during each op.

    The peak of `peak_bytes` is the largest of them. `sizes` are the bytes of tensors that
    take others than their shape says, and of what ops drop inside, by the op's name.
    """
    taken = dict(sizes or {})
    live = sum(taken.get(n, graph.tensors[n].size_bytes) for n in always_living(graph))
    result = [live]
    scratch = scratch_bytes(graph, stack or catalog.stack()) | taken
    for op, (made, ended) in zip(graph.ops, lives(graph, sizes), strict=True):
        live += sum(made)
        result.append(live + scratch.get(op.name, 0))
        live -= sum(ended)
    return result


def always_living(graph: Graph) -> set[str]:
    """Return the names of the tensors that live through all steps."""
    return {*graph.inputs, *graph.weights, *graph.buffers}


class Storages(NamedTuple):
    """Where tensors lie: the storage of each, those that each op makes, and drops after it."""

    of: dict[str, str]
    made: list[list[str]]
    ended: list[list[str]]


def lives(
    graph: Graph, sizes: Mapping[str, int] | None = None
) -> list[tuple[list[int], list[int]]]:
    """Return the bytes of each tensor that an op makes, and of each that is dropped after it.

    `sizes` are as those of `live_bytes`.
    """
    own = {name: spec.size_bytes for name, spec in graph.tensors.items()} | dict(sizes or {})
    _, *both = storages(graph)
    made, ended = ([[own[name] for name in names] for names in some] for some in both)
    return [*zip(made, ended, strict=True)]


@lru_cache(maxsize=1)
def storages(graph: Graph) -> Storages:
    """Return which tensors an op makes and drops; a view and a result in place are their source."""
    weights = set(graph.weights)
    storage: dict[str, str] = {}
    for op in graph.ops:
        storage_of = OPS[op.kind].storage
        for i, name in enumerate(op.outputs):
            source = op.inputs[0] if storage_of == "view" else name
            if storage_of == "in_place" and i < len(op.inputs):
                source = op.inputs[i]
            storage[name] = storage.get(source, source)
    last = {
        storage.get(name, name): i
        for i, op in enumerate(graph.ops)
        for name in (*op.inputs, *op.outputs)
    }
    for name in graph.outputs:
        last[storage.get(name, name)] = len(graph.ops)
    forward = sum(op.part == "forward" for op in graph.ops)
    for op in graph.ops[:forward]:
        if op.kind == "cast" and op.inputs[0] in weights:
            last[op.outputs[0]] = max(last[op.outputs[0]], forward - 1)
    ending: dict[int, list[str]] = {}
    for name, i in last.items():
        ending.setdefault(i, []).append(name)
    always = always_living(graph)
    return Storages(
        storage,
        [[name for name in op.outputs if storage[name] == name] for op in graph.ops],
        [[n for n in ending.get(i, ()) if n not in always] for i in range(len(graph.ops))],
    )


MAPPED_BYTES = 32 * 2**20  # glibc's largest threshold: such a tensor is mapped each time
LEAST_KEPT = 8 * 2**20  # what a framework has freed by itself before
GIVEN_BACK = 0.5  # of free heap: what lies below a tensor that lives is not cut off; 63 networks


def fresh_bytes(graph: Graph) -> dict[str, float]:
    """Return the bytes that each op, by its name, writes into pages that the system zeroes before.

    As glibc's malloc does (mallopt(3), dynamic thresholds): tensors of 32 MiB and more are mapped
    each time. Others lie in a heap, which grows with what lives and is cut back where more than
    twice the largest of them is free; of that `GIVEN_BACK` is new the next time. The second of two
    steps counts, its heap as the first left it. A step of one op that makes 40 MiB: 40 MiB.
    """
    living = lives(graph)
    sizes = [size for made, _ in living for size in made]
    most_free = 2 * max(size for size in (*sizes, LEAST_KEPT) if size < MAPPED_BYTES)
    heap = 0
    found: list[float] = []
    for _ in range(2):
        live = 0
        for made, ended in living:
            mapped = sum([size for size in made if size >= MAPPED_BYTES])
            live += sum(made) - mapped
            found.append(mapped + GIVEN_BACK * max(0, live - heap))
            heap = max(heap, live)
            live -= sum([size for size in ended if size < MAPPED_BYTES])
            heap = live if heap - live > most_free else heap
        heap = heap if heap <= most_free else 0  # what the step gives is dropped, too
    return dict(zip((op.name for op in graph.ops), found[len(living) :], strict=True))


def scratch_bytes(graph: Graph, stack: Stack) -> dict[str, int]:
    """Return the bytes that each op makes and drops inside, by the op's name."""
    result: dict[str, int] = {}
    together: dict[str, str] = {}  # a kind: its first op, which holds those of all
    for op in graph.ops:
        how, row = execution_of(op, stack), OPS[op.kind]
        if how.temporaries is None and not (row.scratch or row.always_saves):
            continue
        specs = tuple([graph.tensors[name] for name in op.inputs])
        if how.temporaries is not None:
            size = how.temporaries * specs[0].size_bytes
        else:
            size = scratch_of(op.kind, specs, op.settings) if row.scratch else 0
        if row.always_saves and len(op.outputs) == 1:  # not differentiated
            size += sum(spec.size_bytes for spec in saved_of(op.kind, specs, op.settings))
        holder = together.setdefault(op.kind, op.name) if how.together else op.name
        result[holder] = result.get(holder, 0) + size
    return result

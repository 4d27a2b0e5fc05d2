"""One rank's graph in pieces: an end of the network, or a layer, for one microbatch.

A network's layers are few kinds, so one of each is built, differentiated, lowered and priced, and a
stage is arithmetic over them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from steptime.build import differentiated
from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import PLACE, Graph, Op
from steptime.core.workload import FULL_TRAINING, Plan, Tuning
from steptime.hardware.stack import Stack
from steptime.network.families.family import Family
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError
from steptime.network.recompute import needed
from steptime.network.tuning import ADDED_NAMES, tuned
from steptime.prediction.calibrated.power import joules_of
from steptime.prediction.host import calls_of, host_of
from steptime.prediction.kernel import Kernel
from steptime.prediction.kernels import Kernels, added
from steptime.prediction.memory import kept_sizes
from steptime.prediction.step_model import StepModel
from steptime.prediction.training import FIRST, LAST, piece_of

GROUPS = {  # of ranks, by what exchanges: the last part of a row's name, else tensor ranks
    **dict.fromkeys(("dispatch", "combine"), "expert"),
    **dict.fromkeys(("gather_k", "gather_v"), "context"),
    **dict.fromkeys(("spread_q", "spread_k", "spread_v", "join_y"), "context"),
}


class Trade(NamedTuple):
    """An exchange of a microbatch: pass, op kind, group of ranks (`stages.groups`), and bytes.

    What `goes_out` are tokens on their way to experts, or gradients to those that made the sum.
    """

    pass_: str
    kind: str
    group: str
    bytes: float
    goes_out: bool = False


class Kept(NamedTuple):
    """Bytes of activations: kept, of attention's core, of the input, and live for a moment."""

    kept: int = 0
    core: int = 0
    input: int = 0
    working: int = 0


class Piece(NamedTuple):
    """What a layer, or an end of the network, takes of one rank for one microbatch.

    `forward_s` and `backward_s` are those of kernels, without exchanges; `weight_s` of the
    backward ones make gradients of weights, `core_s` (forward, backward) are attention itself and
    `last_s` the last product, which those need not repeat who stop at what is needed. The host
    takes `host_s` (forward, backward). `parameters` are the rank's, `routed` those of them that
    experts share out; `frozen` are those beside them that are not trained, of `frozen_bytes`.
    `held` are bytes of activations, `joules` those of both passes. An update takes `update_s`,
    where each weight has its own. With full recomputation the backward pass takes `again_s` more,
    None where that follows from the forward pass.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    weight_s: float = 0.0
    core_s: tuple[float, float] = (0.0, 0.0)
    last_s: float = 0.0
    host_s: tuple[float, float] = (0.0, 0.0)
    trades: tuple[Trade, ...] = ()
    parameters: int = 0
    routed: int = 0
    frozen: int = 0
    frozen_bytes: int = 0
    held: Kept = Kept()
    joules: float = 0.0
    update_s: float = 0.0
    again_s: float | None = None


def rank_of_one(
    family: Family,
    params: Mapping[str, Any],
    plan: Plan,
    dtype: str,
    b: int,
    tuning: Tuning = FULL_TRAINING,
    whole: bool = False,
    optimizer: str = "adam",
) -> Graph:
    """Return a rank's graph of a training step, differentiated and updated by an optimizer.

    Where it is not the `whole` one its layers stand for others, before which weights are trained.
    Raises `InputError` where the plan does not divide what it shares.
    """
    builder = Builder(family.name, precision(dtype), training=True, plan=plan)
    try:
        graph = tuned(builder.graph(family.build(builder, params, b)), tuning)
    except ShapeError as error:
        raise InputError(f"plan: {error}") from None
    trains_layers = {*map(piece_of, graph.weights)} - {FIRST, LAST}
    how = (*tuning.methods, "inside") if trains_layers and not whole else tuning.methods
    return differentiated(graph, optimizer, replace(tuning, methods=how))


def pieces(
    model: StepModel, regathers: tuple[str, ...], imbalance: float = 1.0
) -> dict[str, Piece]:
    """Return the pieces of a rank's graph by name: first, last, and `block1`, ... of its layers.

    Of what it gathered from groups that it `regathers` from, a rank keeps its own part. Experts
    have `imbalance` times the tokens of the mean; joules are those of the mean.
    """
    graph = model.graph()
    kinds = {op.name: op.kind for op in graph.ops}
    again = {op.name for ops in needed(graph).values() for op in ops} if graph.frozen else set()
    by: dict[str, list[Kernel]] = {}
    trades: dict[str, list[Trade]] = {}
    for kernel in model.lowered().kernels:
        name = piece_of(kernel.op)
        if kernel.exchange is None:
            by.setdefault(name, []).append(kernel)
            continue
        out = kernel.op.endswith("/dispatch") == (kernel.pass_ == "forward")
        trade = Trade(kernel.pass_, kernel.kind, group_of(kernel.op), kernel.bytes, out)
        trades.setdefault(name, []).append(trade)
    columns = Kernels([kernel for some in by.values() for kernel in some])
    times = model.priced(columns).at(columns.which)
    cells = np.array(
        [3 * i + PLACE[one.pass_] for i, some in enumerate(by.values()) for one in some]
    )
    of_experts = [kinds.get(one.op) == "experts" for some in by.values() for one in some]
    values = times.value * np.where(of_experts, imbalance, 1.0)
    sums = added(values, cells, 3 * len(by)).reshape(-1, 3).tolist()
    joules = added(joules_of(columns, model.seen)[columns.which], cells, 3 * len(by))
    seconds = iter(values.tolist())
    held = held_of(graph, model.stack, regathers, model.low, imbalance=imbalance)
    params = _parameters(graph)
    return {
        name: Piece(
            fore_s,
            back_s,
            *_parts(list(zip(some, seconds, strict=False)), kinds, again),
            _host_s(some, model.seen.constants),
            tuple(trades.get(name, ())),
            *params[name],
            held[name],
            joules_j,
            update_s,
        )
        for (name, some), (fore_s, back_s, update_s), joules_j in zip(
            by.items(), sums, joules.reshape(-1, 3)[:, :2].sum(axis=1).tolist(), strict=True
        )
    }


def _parts(
    timed: Sequence[tuple[Kernel, float]], kinds: Mapping[str, str], again: Collection[str]
) -> tuple[float, tuple[float, float], float]:
    """Return the seconds of gradients of weights, of attention, and of the last product forward.

    Beside frozen weights that is every product whose result no gradient reads: not in `again`.
    """
    fore, back = ([one for one in timed if one[0].pass_ == p] for p in ("forward", "backward"))

    def core_s(some: Sequence[tuple[Kernel, float]]) -> float:
        return sum(took for one, took in some if kinds[one.op] == "attention")

    def products(some: Sequence[tuple[Kernel, float]]) -> dict[str, float]:
        """Return the seconds of the last product of each row but attention."""
        matrix = ((one.op, took) for one, took in some if one.unit == "matrix")
        return {row: took for row, took in matrix if kinds[row] != "attention"}

    made = products(fore)
    last_s = [0.0, *made.values()][-1]
    if again:
        last_s = sum(took for row, took in made.items() if row not in again)
    return sum(products(back).values()), (core_s(fore), core_s(back)), last_s


def _host_s(kernels: Sequence[Kernel], constants: Mapping[str, float]) -> tuple[float, float]:
    """Return the seconds in which a host issues the kernels of each pass."""
    host = host_of(calls_of(kernels), constants)
    if host is None:
        return 0.0, 0.0
    forward_s, backward_s, _ = host.issued_s
    return forward_s - host.base_s, backward_s - forward_s


Where = Callable[[str], str]


def group_of(row: str) -> str:
    """Return the group of ranks that a row exchanges with."""
    return GROUPS.get(row.rpartition("/")[2], "tensor")


def held_of(
    graph: Graph,
    stack: Stack,
    regathers: tuple[str, ...],
    low: str,
    where: Where = piece_of,
    imbalance: float = 1.0,
) -> dict[str, Kept]:
    """Return what each piece keeps from its forward for its backward pass, and needs besides.

    Views and results in place are what they are made of. What products alone read that run in a
    lower type is kept in 8 bit. `where` says which piece a row belongs to.
    """
    source: dict[str, str] = {}
    maker: dict[str, Op] = {}
    for op in graph.ops:
        shared = {"new": 0, "view": 1, "in_place": len(op.inputs)}[OPS[op.kind].storage]
        if op.kind == "all_gather" and op.part == "forward":
            shared = int(group_of(op.name) in regathers)
        for i, name in enumerate(op.outputs):
            source[name] = source.get(op.inputs[i], op.inputs[i]) if i < shared else name
            if i >= shared:
                maker[name] = op
    read = {
        source.get(name, name) for op in graph.ops if op.part == "backward" for name in op.inputs
    }
    narrow = _narrow(graph, source) if low else set()
    sizes = {name: spec.size_bytes for name, spec in graph.tensors.items()}
    sizes |= kept_sizes(graph, stack)
    for op in graph.ops if imbalance != 1 else ():
        if op.kind == "experts" or op.name.endswith("/dispatch"):
            sizes |= {name: round(sizes[name] * imbalance) for name in op.outputs}
    kept: dict[str, list[int]] = {}
    for name in read & maker.keys() - _inside(graph, stack):
        op = maker[name]
        copies = op.kind == "cast" and op.inputs[0] in (*graph.weights, *graph.frozen)
        if op.part == "forward" and not copies:
            into = kept.setdefault(where(op.name), [0, 0])
            ends = where(op.name) in (FIRST, LAST)
            size = sizes[name] // (1 if ends or name not in narrow else 2)
            into[0] += size
            into[1] += size if op.kind == "attention" and name != op.outputs[0] else 0
    _add_scores(graph, stack, kept, where)
    result = {}
    for piece, (size, working) in _moments(graph, where, sizes).items():
        all_kept, core = kept.get(piece, (0, 0))
        result[piece] = Kept(all_kept, core, size, working)
    return result


def _inside(graph: Graph, stack: Stack) -> set[str]:
    """Return what only fused pointwise ops read in the forward pass: they work it out again."""
    if "vector" not in stack.fuses:
        return set()
    forward = [op for op in graph.ops if op.part == "forward"]
    products = {name for op in forward if OPS[op.kind].pointwise for name in op.outputs}
    by_pointwise = {n for op in forward if OPS[op.kind].pointwise for n in op.inputs}
    by_others = {n for op in forward if not OPS[op.kind].pointwise for n in op.inputs}
    return products & by_pointwise - by_others


def _narrow(graph: Graph, source: Mapping[str, str]) -> set[str]:
    """Return the tensors that only products of layers read in the backward pass.

    Of what experts read that is their input, and the gradient of their output.
    """
    kinds = {op.name: op.kind for op in graph.ops}
    by_products: set[str] = set()
    by_others: set[str] = set()
    for op in graph.ops:
        if op.part == "backward":
            linear = op.kind == "matmul" and kinds.get(op.of) == "linear"
            names = [source.get(name, name) for name in op.inputs]
            many = len(names) if linear else int(op.kind == "experts_grad")
            by_products.update(names[:many])
            by_others.update(names[many:])
    return by_products - by_others


def _add_scores(graph: Graph, stack: Stack, kept: Mapping[str, list[int]], where: Where) -> None:
    """Add the scores of attention that a stack runs unfused, which keeps no sums of softmax.

    They are the result of softmax in 16 bit, and with dropout its mask of 8 and its result.
    """
    how = stack.kinds.get("attention")
    if how is None or not how.scores:
        return
    drops = any(op.kind == "dropout" for op in graph.ops)
    for op in graph.ops:
        if op.kind == "attention":
            q, k = (graph.tensors[name] for name in op.inputs[:2])
            scores = q.shape[0] * int(str(op.attrs["heads"])) * q.shape[1] * k.shape[1]
            into = kept[where(op.name)]
            more = scores * (5 if drops else 2) - into[1]
            into[0] += more
            into[1] += more


def _moments(graph: Graph, where: Where, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return of each piece the bytes of its input, and of gradients that live at its worst moment.

    Gradients of weights are not among them: they live on.
    """
    of_weights = {op.inputs[-1] for op in graph.ops if op.part == "update"}
    last = {name: i for i, op in enumerate(graph.ops) for name in op.inputs}
    live: dict[str, int] = {}
    worst: dict[str, int] = {}
    inputs: dict[str, int] = {}
    for i, op in enumerate(graph.ops):
        piece = where(op.of or op.name)
        if op.part == "forward":
            inputs.setdefault(piece, sizes[op.inputs[0]])
        if op.part != "backward":
            continue
        if OPS[op.kind].storage == "new":
            names = (name for name in op.outputs if name not in of_weights)
            live.update({name: sizes[name] for name in names})
        worst[piece] = max(worst.get(piece, 0), sum(live.values()))
        for name in op.inputs:
            if last[name] == i:
                live.pop(name, None)
    return {piece: (size, worst.get(piece, 0)) for piece, size in inputs.items()}


def _parameters(graph: Graph) -> dict[str, tuple[int, int, int, int]]:
    """Return of each piece its parameters, those of routed experts, frozen ones and their bytes."""
    result: dict[str, tuple[int, int, int, int]] = {FIRST: (0,) * 4, LAST: (0,) * 4}
    of_experts = {name for op in graph.ops if op.kind == "experts" for name in op.inputs}
    for name in (*graph.weights, *graph.frozen):
        piece, spec = piece_of(name), graph.tensors[name]
        trained = spec.size * (name in graph.weights)
        is_parameter = name.rpartition("/")[2] not in ADDED_NAMES
        more = (
            trained,
            trained * (name in of_experts),
            (spec.size - trained) * is_parameter,
            spec.size_bytes * (not trained),
        )
        before = result.get(piece, (0,) * 4)
        a, b, c, d = (one + other for one, other in zip(before, more, strict=True))
        result[piece] = a, b, c, d
    return result

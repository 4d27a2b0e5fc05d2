"""One rank's graph in pieces: an end of the network, or a layer, for one micro-batch.

A network's layers are few kinds, so one of each is built, differentiated, lowered and priced, and a
stage is arithmetic over them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph, Op
from steptime.core.workload import Plan
from steptime.hardware.device import Device
from steptime.network.families.family import Family
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError
from steptime.network.ops.training import training_graph
from steptime.prediction.calibrated.power import joules_of
from steptime.prediction.host import calls_of, host_of
from steptime.prediction.kernel import Interval, Kernel
from steptime.prediction.kernels import Kernels, added
from steptime.prediction.lower import stack_of
from steptime.prediction.method import Method
from steptime.prediction.step_model import StepModel
from steptime.prediction.training import FIRST, LAST, piece_of

GROUPS = {  # of ranks, by what exchanges: the last part of a row's name, else tensor ranks
    **dict.fromkeys(("dispatch", "combine"), "expert"),
    **dict.fromkeys(("gather_k", "gather_v"), "context"),
    **dict.fromkeys(("spread_q", "spread_k", "spread_v", "join_y"), "context"),
}


class Trade(NamedTuple):
    """An exchange of a micro-batch: pass, op kind, group of ranks (`stages.groups`), and bytes."""

    pass_: str
    kind: str
    group: str
    bytes: float


class Kept(NamedTuple):
    """Bytes of activations: kept, of attention's core, of the input, and live for a moment."""

    kept: int = 0
    core: int = 0
    input: int = 0
    working: int = 0


@dataclass(frozen=True)
class Piece:
    """What a layer, or an end of the network, takes of one rank for one micro-batch.

    `forward` and `backward` are the seconds of kernels, without exchanges; `weight_s` of the
    backward ones make gradients of weights, `core_s` (forward, backward) are attention itself and
    `last_s` the last product, which those need not repeat who stop at what is needed. The host
    takes `host_s` (forward, backward). `parameters` are the rank's, `routed` those of them that
    experts share out. `held` are bytes of activations, `flop` are executed (forward, backward),
    `joules` are those of `kernels`. An update takes `update_s`, where each weight has its own.
    """

    forward: Interval
    backward: Interval
    weight_s: float
    core_s: tuple[float, float]
    last_s: float
    host_s: tuple[float, float]
    trades: tuple[Trade, ...]
    parameters: int
    routed: int
    held: Kept
    flop: tuple[float, float]
    kernels: tuple[Kernel, ...]
    joules: float
    update_s: float = 0.0


def rank_of_one(family: Family, params: Mapping[str, Any], plan: Plan, dtype: str, b: int) -> Graph:
    """Return a rank's graph of a training step, differentiated and updated by Adam.

    Raises `InputError` where the plan does not divide what it shares.
    """
    builder = Builder(family.name, precision(dtype), training=True, plan=plan)
    try:
        return training_graph(builder.graph(family.build(builder, params, b)), "adam")
    except ShapeError as error:
        raise InputError(f"plan: {error}") from None


def pieces(model: StepModel, regathers: tuple[str, ...]) -> dict[str, Piece]:
    """Return the pieces of a rank's graph by name: first, last, and `block1`, ... of its layers.

    Of what it gathered from groups that it `regathers` from, a rank keeps its own part.
    """
    graph, device = model.graph(), model.seen
    kinds = {op.name: op.kind for op in graph.ops}
    by: dict[str, list[Kernel]] = {}
    trades: dict[str, list[Trade]] = {}
    updates: dict[str, list[Kernel]] = {}
    for kernel in model.lowered().kernels:
        if kernel.pass_ == "update":
            updates.setdefault(piece_of(kernel.op), []).append(kernel)
            continue
        own = by.setdefault(name := piece_of(kernel.op), [])
        if kernel.exchange is None:
            own.append(kernel)
            continue
        trade = Trade(kernel.pass_, kernel.kind, group_of(kernel.op), kernel.bytes)
        trades.setdefault(name, []).append(trade)
    mine = [kernel for some in by.values() for kernel in some]
    columns = Kernels(mine)
    times = model.priced(columns).at(columns.which)
    place = {name: 2 * i for i, name in enumerate(by)}
    index = [place[piece_of(one.op)] + (one.pass_ == "backward") for one in mine]
    sums = times.sums(np.array(index), 2 * len(by)).intervals()
    joules = added(joules_of(columns, device)[columns.which], np.array(index) // 2, len(by))
    seconds = iter(times.value.tolist())
    held, params = held_of(graph, model.method, regathers, model.low), _parameters(graph)
    return {
        name: _piece(
            list(zip(some, seconds, strict=False)),
            sums[place[name] : place[name] + 2],
            kinds,
            device,
            tuple(trades.get(name, ())),
            held[name],
            params[name],
            joules[place[name] // 2],
            _seconds(model, updates.get(name, ())),
        )
        for name, some in by.items()
    }


def _seconds(model: StepModel, kernels: Sequence[Kernel]) -> float:
    columns = Kernels(kernels)  # which prices kernels that are alike once
    return float(model.priced(columns).value[columns.which].sum())


def _piece(
    timed: Sequence[tuple[Kernel, float]],
    sums: Sequence[Interval],
    kinds: Mapping[str, str],
    device: Device,
    trades: tuple[Trade, ...],
    held: Kept,
    params: tuple[int, int],
    joules: float,
    update_s: float,
) -> Piece:
    """Return a piece of kernels and their seconds, whose passes take `sums`."""
    fore, back = ([one for one in timed if one[0].pass_ == p] for p in ("forward", "backward"))

    def core_s(some: Iterable[tuple[Kernel, float]]) -> float:
        return sum(seconds for one, seconds in some if kinds[one.op] == "attention")

    def products(some: Iterable[tuple[Kernel, float]]) -> list[tuple[str, float]]:
        own = ((one, seconds) for one, seconds in some if one.unit == "matrix")
        return [(one.op, seconds) for one, seconds in own if kinds[one.op] != "attention"]

    mine = tuple([one for one, _ in timed])
    host = host_of(calls_of(mine), device.constants)
    ends = (0.0, 0.0, 0.0) if host is None else (host.base_s, *host.issued_s[:2])
    return Piece(
        sums[0],
        sums[1],
        sum(dict(products(back)).values()),  # of each row its last product
        (core_s(fore), core_s(back)),
        [("", 0.0), *products(fore)][-1][1],
        (ends[1] - ends[0], ends[2] - ends[1]),
        trades,
        *params,
        held,
        (sum(one.flop for one, _ in fore), sum(one.flop for one, _ in back)),
        mine,
        float(joules),
        update_s,
    )


Where = Callable[[str], str]


def group_of(row: str) -> str:
    """Return the group of ranks that a row exchanges with."""
    return GROUPS.get(row.rpartition("/")[2], "tensor")


def held_of(
    graph: Graph, method: Method, regathers: tuple[str, ...], low: str, where: Where = piece_of
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
    kept: dict[str, list[int]] = {}
    for name in read & maker.keys() - _inside(graph, method):
        made = maker[name]
        copies = made.kind == "cast" and made.inputs[0] in graph.weights
        if made.part == "forward" and not copies:
            into = kept.setdefault(where(made.name), [0, 0])
            ends = where(made.name) in (FIRST, LAST)
            size = graph.tensors[name].size_bytes // (1 if ends or name not in narrow else 2)
            into[0] += size
            into[1] += size if made.kind == "attention" and name != made.outputs[0] else 0
    _add_scores(graph, method, kept, where)
    found = {}
    for piece, (size, working) in _moments(graph, where).items():
        all_kept, core = kept.get(piece, (0, 0))
        found[piece] = Kept(all_kept, core, size, working)
    return found


def _inside(graph: Graph, method: Method) -> set[str]:
    """Return what only fused pointwise ops read in the forward pass: they work it out again."""
    if "vector" not in stack_of(method.settings).fuses:
        return set()
    forward = [op for op in graph.ops if op.part == "forward"]
    made = {name for op in forward if OPS[op.kind].pointwise for name in op.outputs}
    by_pointwise = {n for op in forward if OPS[op.kind].pointwise for n in op.inputs}
    by_others = {n for op in forward if not OPS[op.kind].pointwise for n in op.inputs}
    return made & by_pointwise - by_others


def _narrow(graph: Graph, source: Mapping[str, str]) -> set[str]:
    """Return the tensors that only products of linear layers read in the backward pass."""
    kinds = {op.name: op.kind for op in graph.ops}
    by_products: set[str] = set()
    by_others: set[str] = set()
    for op in graph.ops:
        if op.part == "backward":
            linear = op.kind == "matmul" and kinds.get(op.of) == "linear"
            into = by_products if linear else by_others
            into.update(source.get(name, name) for name in op.inputs)
    return by_products - by_others


def _add_scores(graph: Graph, method: Method, kept: Mapping[str, list[int]], where: Where) -> None:
    """Add the scores of attention that a stack runs unfused, which keeps no sums of softmax.

    They are the result of softmax in 16 bit, and with dropout its mask of 8 and its result.
    """
    how = stack_of(method.settings).kinds.get("attention")
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


def _moments(graph: Graph, where: Where) -> dict[str, tuple[int, int]]:
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
            inputs.setdefault(piece, graph.tensors[op.inputs[0]].size_bytes)
        if op.part != "backward":
            continue
        if OPS[op.kind].storage == "new":
            made = (name for name in op.outputs if name not in of_weights)
            live.update({name: graph.tensors[name].size_bytes for name in made})
        worst[piece] = max(worst.get(piece, 0), sum(live.values()))
        for name in op.inputs:
            if last[name] == i:
                live.pop(name, None)
    return {piece: (size, worst.get(piece, 0)) for piece, size in inputs.items()}


def _parameters(graph: Graph) -> dict[str, tuple[int, int]]:
    """Return of each piece its parameters, and those of them that belong to routed experts."""
    found: dict[str, tuple[int, int]] = {FIRST: (0, 0), LAST: (0, 0)}
    of_experts = {name for op in graph.ops if op.kind == "experts" for name in op.inputs}
    for name in graph.weights:
        piece, size = piece_of(name), graph.tensors[name].size
        whole, routed = found.get(piece, (0, 0))
        found[piece] = whole + size, routed + (size if name in of_experts else 0)
    return found

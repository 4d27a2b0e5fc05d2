"""The best plan: all ways of splitting a network over devices, those that none beats in all."""

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from operator import le
from typing import NamedTuple, TypeVar

from steptime.core.errors import InputError
from steptime.core.workload import Plan
from steptime.planning.ends import most_held
from steptime.planning.faults import Asked
from steptime.planning.memory import in_flight, least_bytes
from steptime.planning.passes import Step
from steptime.planning.planner import Planner
from steptime.planning.space import Way
from steptime.planning.step import BUSY, WHOLE, Quick, busiest_s, holds_of, quick

Kind = TypeVar("Kind")
MOST_PLANS = 1_000_000
MEMORY = "memory"
GROWS = 1 - 1e-9  # of what microbatches keep, beside their size: whole bytes are rounded


class Cap(NamedTuple):
    """A limit of a plan: its name, the most, and the value of a plan's step (unknown: infinity)."""

    name: str
    value: Callable[[Quick], float]
    most: float

    def holds(self, result: Quick) -> bool:
        """Whether a plan is known to stay within it."""
        return self.value(result) <= self.most


class Near(NamedTuple):
    """How far a plan is beyond a limit: how many times the most; its name, its value, the most."""

    ratio: float
    name: str
    value: float
    most: float


class Search(NamedTuple):
    """What a search found: plans that none beats in time, memory and energy, the fastest first.

    `steps_s` are the seconds of those plans that fit, stay within the limits and are not told apart
    from the fastest; `refused` counts the others by limit, `nearest` of them is least beyond one,
    where all are. `full` compute all layers again.
    """

    front: list[Quick]
    steps_s: list[float]
    considered: int
    refused: Counter[str]
    nearest: Near | None
    full: Sequence[Asked] = ()


def search(
    planner: Planner,
    ways: Iterable[Way],
    global_batch: int,
    caps: Sequence[Cap] = (),
    alike: float = 1.0,
) -> Search:
    """Return the plans within the caps that no other one beats in time, memory and energy.

    Beside them are the seconds of those that take at most `alike` times as long as the fastest.
    Raises `InputError` for more plans than can be tried.
    """
    collects = gc.isenabled()
    gc.disable()  # nothing that is made here is garbage: looking for it takes half of the time
    try:
        return _search(planner, ways, global_batch, caps, alike)
    finally:
        if collects:
            gc.enable()


def _search(
    planner: Planner, ways: Iterable[Way], global_batch: int, caps: Sequence[Cap], alike: float
) -> Search:
    kept: list[Quick] = []
    refused: Counter[str] = Counter()
    large: list[tuple[float, Asked]] = []  # by their parameters alone
    least, near = inf, Near(inf, "", inf, inf)
    considered = 0
    for way in ways:
        considered += len(way.sizes)
        if considered > MOST_PLANS:
            raise InputError(f"more than {MOST_PLANS:,} plans: fix --tensor or --microbatch")
        if (floor := _floor(planner, way.plan)) > planner.room_bytes:
            refused[MEMORY] += len(way.sizes)
            large.append((floor, Asked(way.plan, way.sizes[0], global_batch)))
            continue
        try:
            sizes = [*_sizes(planner, way, global_batch)]
        except InputError:
            considered -= len(way.sizes)
            continue  # a rank's graph that the plan does not divide
        refused[MEMORY] += len(way.sizes) - len(sizes)
        for asked in sizes:
            result = quick(planner, asked, WHOLE if caps else BUSY)
            if result.step_s == inf:
                refused[MEMORY] += 1
                least = min(least, result.bytes)
                continue
            values = [(one.value(result), one) for one in caps]
            beyond = [
                Near(value / m, name, value, m) for value, (name, _, m) in values if value > m
            ]
            if beyond:
                refused.update(one.name for one in beyond)
                near = min(near, max(beyond))
            else:
                kept.append(result)
    if considered and refused[MEMORY] == considered:
        least = _least_held(planner, large, least)
        near = Near(least / planner.room_bytes, MEMORY, least, planner.room_bytes)
    nearest = None if kept or near.ratio == inf else near
    front, steps_s = _front(planner, kept, WHOLE if caps else BUSY, alike)
    full = [one.asked for one in kept if one.asked.plan.recompute == "full"]
    return Search(front, steps_s, considered, refused, nearest, full)


def _floor(planner: Planner, plan: Plan) -> float:
    split = (plan.tensor, plan.expert, plan.pipeline, plan.virtual, plan.stages)
    key = ("floor", *split, plan.zero, plan.shards, plan.offload)
    return planner.once(key, lambda: least_bytes(planner, plan))


def _sizes(planner: Planner, way: Way, global_batch: int) -> Iterable[Asked]:
    """Yield the plans of a way but for those whose layers need not be priced to know their memory.

    What the microbatches in flight keep grows with them, but where more than a round of them, of
    interleaved stages, are no whole rounds: the last one is longer.
    """
    plan, known = way.plan, None
    grows = planner.shape.batch is None  # others have other stages
    for b in way.sizes:
        asked = Asked(plan, b, global_batch)
        if known is not None:
            m = asked.rounds
            most = most_held(plan.schedule, plan.pipeline, plan.virtual, m)
            holds, times = known[0], b / known[1] * GROWS
            held = max([still + times * in_flight(kept, most, m) for still, kept in holds])
            if held > planner.room_bytes:
                if plan.virtual == 1 or m <= plan.pipeline or not m % plan.pipeline:
                    return
                continue
        if grows:
            known = holds_of(planner, asked), b
        yield asked


def _least_held(planner: Planner, large: Sequence[tuple[float, Asked]], least: float) -> float:
    """Return the least bytes of a fullest device, where none has room."""
    for floor, asked in sorted(large, key=lambda one: one[0]):
        if floor >= least:
            break
        try:
            least = min(least, quick(planner, asked).bytes)
        except InputError:
            continue  # a rank's graph that the plan does not divide
    return least


def _front(
    planner: Planner, kept: Sequence[Quick], known: int, alike: float
) -> tuple[list[Quick], list[float]]:
    """Return the plans that none beats, of some whose seconds and joules are `known` so nearly.

    Beside them are the seconds of those that are at most `alike` times as long as the fastest. They
    come in the order of what they take at least; who is not beaten by those before is priced
    more nearly, and comes again.
    """
    heap = [(_spent(one), at, known, one) for at, one in enumerate(kept)]
    heapify(heap)
    front: list[tuple[tuple[float, ...], Quick]] = []
    steps_s: list[float] = []
    while heap:
        spent, at, near, one = heappop(heap)
        is_alike = not front or spent[0] <= alike * front[0][0][0]
        if any(all(map(le, other, spent)) for other, _ in front):
            if not is_alike:
                continue
            if near != BUSY:
                steps_s.append(one.step_s)
                continue
        elif near == WHOLE:
            front.append((spent, one))
            if is_alike:
                steps_s.append(one.step_s)
            continue
        nearer = quick(planner, one.asked, near + 1)
        heappush(heap, (_spent(nearer), at, near + 1, nearer))
    return [one for _, one in front], steps_s


def _spent(one: Quick) -> tuple[float, ...]:
    return one.step_s, one.bytes, one.energy_j or 0.0


def with_fewer_again(planner: Planner, result: Search, caps: Sequence[Cap]) -> Search:
    """Return a search with the fewest layers computed again that fit, of plans that do so with all.

    They leave as much of the memory as predictions miss, since fewer always fill it up. The fewer
    there are, the less time a plan takes and the more memory: they are found by halving, for plans
    that none beats, and for those that would be the fastest with none.
    """
    more: list[Quick] = []
    best_s = result.front[0].step_s if result.front else inf
    unbeaten_ = {one.asked for one in result.front}
    for least_s, asked in sorted(
        [(_without_s(planner, one), one) for one in result.full], key=lambda one: one[0]
    ):
        if least_s >= best_s and asked not in unbeaten_:
            continue
        fewest = _with_fewest(planner, asked)
        if fewest is not None and all(cap.holds(fewest) for cap in caps):
            more.append(fewest)
            best_s = min(best_s, fewest.step_s)
    return result._replace(
        front=unbeaten([*result.front, *more], _spent),
        steps_s=[*result.steps_s, *(one.step_s for one in more)],
        considered=result.considered + len(more),
    )


def _without_s(planner: Planner, asked: Asked) -> float:
    """Return the seconds below which a plan is not that computes nothing again."""
    none = asked.but({"recompute": "none"})
    return planner.whole_s(none.rounds * busiest_s(Step(planner, none)), none.plan.device_count)


def _with_fewest(planner: Planner, asked: Asked) -> Quick | None:
    plan, least, most = asked.plan, None, (1 - planner.spare) * planner.room_bytes
    low, high = 1, max(planner.layout(plan, asked.microbatch).layers) - 1
    while low <= high:
        n = (low + high) // 2
        at = quick(planner, asked.but({"recompute_layers": n}), BUSY)
        low, high = (low, n - 1) if at.bytes <= most else (n + 1, high)
        least = at if at.bytes <= most else least
    return None if least is None else quick(planner, least.asked)


def unbeaten(result: Iterable[Kind], amounts: Callable[[Kind], tuple[float, ...]]) -> list[Kind]:
    """Return those that no other is as good as in all amounts, and better in one, least first."""
    front: list[tuple[tuple[float, ...], Kind]] = []
    for spent, one in sorted(((amounts(one), one) for one in result), key=lambda pair: pair[0]):
        if not any(all(map(le, other, spent)) for other, _ in front):
            front.append((spent, one))
    return [one for _, one in front]

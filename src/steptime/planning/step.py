"""One plan: the time of a step, what of it waits for exchanges, and the memory of each device."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from math import inf
from operator import add
from typing import Literal, NamedTuple

from steptime.planning.ends import Least, ends_of, least, most_held, paired
from steptime.planning.energy import energy_of
from steptime.planning.faults import Asked
from steptime.planning.memory import (
    Kept,
    Memory,
    host_bytes,
    in_flight,
    memory_of,
    parameters_of,
    parts_of,
    shared_of,
)
from steptime.planning.passes import Step, Wait
from steptime.planning.pipeline import MOST_EVENTS, Flow, Stage, busy_s, simulate
from steptime.planning.planner import Planner
from steptime.planning.stages import Group, Load
from steptime.prediction.collectives import StepEnds, with_links
from steptime.prediction.states import host_memory, on_host
from steptime.prediction.training import FIRST


class Pipeline(NamedTuple):
    """A pipeline: its schedule, stages and devices, and the seconds from a stage to the next."""

    schedule: str
    stages: tuple[Stage, ...]
    devices: int
    send_s: float

    def of(self, microbatches: int) -> tuple[str, tuple[Stage, ...], int, int, float]:
        """Return what `simulate` and `ends_of` ask for."""
        return *self[:3], microbatches, self.send_s


@dataclass(frozen=True)
class PlanTime:
    """A plan's step: seconds between `low_s` and `high_s` (80 %), memory by device of the pipeline.

    `compute_s` are the seconds of kernels of the busiest device, `update_s` those of its optimizer,
    `host_s` what it waits for the host, `recompute_s` what it computes again, `bubble_s` what it
    waits for the others: with `rest_s`, outside of the layers, they add up to the step. `bubble` is
    the share of their time in which the devices of the pipeline wait, in the mean. `tails_s` are,
    by device of it, what it waits for the exchange of gradients and takes for its update. A device
    has at most `host_bytes` in its host's memory.
    """

    asked: Asked
    step_s: float
    low_s: float
    high_s: float
    compute_s: float
    recompute_s: float
    update_s: float
    host_s: float
    bubble: float
    bubble_s: float
    rest_s: float
    exposures: tuple[Wait, ...]
    memory: tuple[Memory, ...]
    host_bytes: float
    layers: tuple[int, ...]
    energy_j: float | None
    pipeline: Pipeline
    tails_s: tuple[tuple[float, float], ...]

    @cached_property
    def flow(self) -> Flow | None:
        """The pipeline's run part by part; None for one of very many parts, and for dualpipe."""
        many = 2 * len(self.pipeline.stages) * self.asked.rounds > MOST_EVENTS
        return (
            None
            if many or self.asked.plan.goes_both_ways
            else simulate(*self.pipeline.of(self.asked.rounds))
        )

    @property
    def fullest(self) -> int:
        """The place of the device that holds most."""
        return max(range(len(self.memory)), key=lambda d: self.memory[d].total)

    @property
    def exposed_s(self) -> float:
        """Seconds in which the busiest device waits for exchanges."""
        return sum(one.exposed_s for one in self.exposures)


def plan_time(planner: Planner, asked: Asked) -> PlanTime:
    """Return time and memory of a step."""
    one, plan, m = Step(planner, asked), asked.plan, asked.rounds
    times, send, devices = one.stages, one.send, plan.pipeline
    runs = pipeline_of(one)
    ends, idle = ends_of(*runs.of(m)), [0.0]
    if devices > 1:
        busy = paired(times) if plan.goes_both_ways else busy_s(times, devices)
        idle = [max(0.0, end - m * own) for end, own in zip(ends, busy, strict=True)]
    most = most_held(plan.schedule, devices, plan.virtual, m)
    tails = [tail_of(one, load) for load in one.shape.devices]
    end_s = max(end + tail.seconds for end, tail in zip(ends, tails, strict=True))
    step_s = planner.whole_s(end_s, plan.device_count)
    waited = [idle[d] + (end_s - (ends[d] + tails[d].seconds)) for d in range(devices)]
    last = min(range(devices), key=waited.__getitem__)
    load = one.shape.devices[last]
    own = one.own_share * m
    passes = [(one.passes(part), count * own) for part, count in load]
    exposures, waits = _exposures(one, load, own, tails[last]), 0.0
    if devices > 1:
        sent = 2 * m * plan.virtual
        waits = min(waited[last], 2 * (len(times) - 1) * send.total_s)
        moved, all_s, open_ = (value * sent for value in send[3:])
        exposures.append(Wait(*send[:3], moved, all_s, waits + open_))
    exposed_s = sum(wait.exposed_s for wait in exposures)
    return PlanTime(
        asked,
        step_s,
        *step_ends(planner, asked, step_s, exposed_s),
        sum((f.compute + b.compute) * count for (f, b), count in passes),
        sum((f.recompute + b.recompute) * count for (f, b), count in passes),
        tails[last].update_s,
        m * sum(stage.host_s for stage in times[last::devices]),
        sum(waited) / devices / end_s,
        waited[last] - waits,
        step_s - end_s,
        tuple(exposures),
        tuple(memory_of(one, d, most, m) for d in range(devices)),
        max(host_bytes(one, d, most, m) for d in range(devices)),
        one.shape.layers,
        energy_of(planner, asked, step_s, loads_of(one)),
        runs,
        tuple((tail.seconds - tail.update_s, tail.update_s) for tail in tails),
    )


_LINK_ENDS: tuple[Literal["quick", "slow"], ...] = ("quick", "slow")


def step_ends(
    planner: Planner, asked: Asked, step_s: float, exposed_s: float
) -> tuple[float, float]:
    """Return the ends of a plan's step (80 %): its kernels, and its links, are off independently.

    The step with links at an end of the rates that they reach is planned anew, so that exchanges
    that are hidden may come to light.
    """
    plan, microbatch, rounds = asked.plan, asked.microbatch, asked.rounds
    low_s, high_s = planner.within(plan, microbatch, step_s, exposed_s, rounds)
    if plan.device_count == 1:
        return low_s, high_s
    quick_s, slow_s = (_step_s(planner.planner_of_links(end), asked) for end in _LINK_ENDS)
    ends = StepEnds(low_s, high_s)
    wide = with_links(step_s, ends, min(quick_s, step_s), max(slow_s, step_s))
    return (
        low_s if wide.low_s is None else wide.low_s,
        high_s if wide.high_s is None else wide.high_s,
    )


def _step_s(planner: Planner, asked: Asked) -> float:
    """Return the seconds of a plan's step, whether the device has room for it or not."""
    runs = _takes(Step(planner, asked))
    end_s = max(map(add, ends_of(*runs.pipeline.of(asked.rounds)), runs.tails_s))
    return planner.whole_s(end_s, asked.plan.device_count)


class Quick(NamedTuple):
    """A plan's step at a glance: seconds, bytes of the fullest device, joules (None: unknown)."""

    step_s: float
    bytes: float
    energy_j: float | None
    asked: Asked


class Run(NamedTuple):
    """What a plan takes whatever the number of its microbatches.

    `tails_s` follow the pipeline on each of its devices. `loads` are how many of these have the
    same to do, and the joules of a microbatch on one.
    """

    pipeline: Pipeline
    tails_s: tuple[float, ...]
    least: Least
    loads: list[tuple[int, float]]


BUSY, CHAIN, WHOLE = range(3)  # how near to a step its seconds at a glance are


def quick(planner: Planner, asked: Asked, near: int = WHOLE) -> Quick:
    """Return what `plan_time` says, at a glance.

    Where the device has not room for a plan, its seconds are infinite. Less `near` than `WHOLE`
    they, and the joules, are those that a step takes at least: what the busiest device does
    (`BUSY`), or the longest chain of parts that wait for each other (`CHAIN`).
    """
    plan, m = asked.plan, asked.rounds
    key = _key(planner, asked)
    most = most_held(plan.schedule, plan.pipeline, plan.virtual, m)
    held = max([still + in_flight(kept, most, m) for still, kept in holds_of(planner, asked)])
    if held > planner.room_bytes:
        return Quick(inf, held, None, asked)
    if near == BUSY:
        one = Step(planner, asked)
        end_s, loads = m * busiest_s(one), loads_of(one)
    else:
        runs = planner.once(("takes", *key), lambda: _takes(Step(planner, asked)))
        loads = runs.loads
        if near == WHOLE:
            end_s = max(map(add, ends_of(*runs.pipeline.of(m)), runs.tails_s))
        else:
            end_s = runs.least.after_s(m)
    step_s = planner.whole_s(end_s, plan.device_count)
    return Quick(step_s, held, energy_of(planner, asked, step_s, loads), asked)


def busiest_s(one: Step) -> float:
    """Return what a microbatch takes of the device that has most to do, wherever its host is."""

    def most() -> float:
        unlike = {*one.shape.devices}
        loads = ([(one.passes(part), count) for part, count in load] for load in unlike)
        sums = [sum([(f.seconds + b.seconds) * n for (f, b), n in load]) for load in loads]
        return max(sums) * one.own_share

    return one.planner.once(("busiest", *one.as_stages), most)


def holds_of(planner: Planner, asked: Asked) -> list[tuple[float, Kept]]:
    """Return what unlike devices of a pipeline hold: beside microbatches, and of each."""
    return planner.once(("holds", *_key(planner, asked)), lambda: _holds(Step(planner, asked)))


def _key(planner: Planner, asked: Asked) -> tuple[object, ...]:
    """Return the cache key of a plan: the number of its microbatches where its pieces depend on it.

    A device that runs the whole network waits for its host by the number of microbatches.
    """
    rounds = asked.rounds if planner.is_whole(asked.plan) else asked.rounds > 1
    return asked.order, asked.microbatch, rounds, *vars(asked.plan).values()


def _holds(one: Step) -> list[tuple[float, Kept]]:
    parts = [parts_of(one, d) for d in one.shape.unlike]
    return [(sum(still), kept) for still, kept in parts]


def _takes(one: Step) -> Run:
    runs = pipeline_of(one)
    tails = {load: tail_of(one, load).seconds for load in {*one.shape.devices}}
    tails_s = tuple([tails[load] for load in one.shape.devices])
    return Run(runs, tails_s, least(*runs, tails_s), loads_of(one))


def pipeline_of(one: Step) -> Pipeline:
    """Return the pipeline of a plan."""
    way = one.plan.schedule
    return one.planner.once(
        ("pipeline", way, *one.as_stages),
        lambda: Pipeline(way, tuple(one.stages), one.plan.pipeline, one.send.total_s),
    )


def loads_of(one: Step) -> list[tuple[int, float]]:
    """Return how many devices have the same to do, and the joules of a microbatch on one."""

    def counted() -> list[tuple[int, float]]:
        loads = Counter(one.shape.devices).items()
        return [(count, dynamic_of(one, load)) for load, count in loads]

    return one.planner.once(("loads", one.of_layers), counted)


class _Tail(NamedTuple):
    """What comes once a step: exchange of gradients and weights, and the update."""

    seconds: float
    update_s: float
    exposures: tuple[Wait, ...]


def tail_of(one: Step, load: Load) -> _Tail:
    """Return what a device's step ends, and begins, with."""
    plan = one.plan
    sizes = (plan.zero, plan.data, plan.pipeline, plan.virtual, plan.shard, plan.offload)
    how = (one.order, plan.goes_both_ways, plan.overlaps)
    key = ("tail", id(one.pieces), load, *how, *sizes)
    return one.planner.once(key, lambda: _tail(one, load))


def _exposed_s(planner: Planner, exchange_s: float, hidden_s: float, piece_count: int) -> float:
    """Return the seconds of an exchange that outlast `hidden_s` of computation beside it.

    The last of its pieces is never hidden. What is hidden slows the computation by `slowed`.
    """
    exposed_s = max(exchange_s - hidden_s, exchange_s / max(2, piece_count))
    exposed_s = min(exchange_s, exposed_s)
    if hidden_s:
        exposed_s += planner.constant("slowed") * (exchange_s - exposed_s)
    return exposed_s


def _tail(one: Step, load: Load) -> _Tail:
    plan, planner, groups = one.plan, one.planner, one.groups
    last_s = sum(one.pieces[part.name].backward_s * count for part, count in load)
    first_s = sum(one.pieces[part.name].forward_s * count for part, count in load)
    parts = sum(count for _, count in load)
    pieces, times = parts, 1
    if plan.virtual > 1:  # a stage of the device is done with a round of microbatches at a time
        pieces, times = plan.virtual, plan.pipeline
    moves: list[Wait] = []

    def exchange(to: str, kind: str, size: float, ranks: Group, beside: float) -> float:
        result = planner.exchange(kind, size, ranks)
        exposed = planner.open_s(plan, kind, size, ranks, load, one.microbatch)
        if exposed is None:
            hidden_s = planner.constant("data_hidden") * beside * times * (1 - 1 / pieces)
            exposed = _exposed_s(planner, result.seconds, hidden_s, pieces)
        if result.seconds:
            moves.append(Wait(to, kind, result.link, size, result.seconds, exposed))
        return result.seconds

    counts = parameters_of(one, load)
    counts = (sum(counts), 0) if planner.is_whole(plan) else counts  # of the same replicas
    for count, of in zip(counts, ("", "expert_"), strict=True):
        size = planner.constant("gradient_bytes") * count
        if not plan.zero:
            exchange("data", "all_reduce", size, groups[f"{of}replicas"], last_s)
            continue
        shard, left = groups[f"{of}shard"], last_s
        if plan.zero == 1:
            left -= exchange("data", "reduce_scatter", size, shard, last_s)
        copies, share = groups[f"{of}copies"], size / len(shard)
        exchange("copies", "all_reduce", share, copies, max(0.0, left))
        if plan.zero < 3:
            exchange("data", "all_gather", planner.weight_bytes * count, shard, first_s)
    if planner.shape.tied and plan.pipeline > 1 and any(part.is_end for part, _ in load):
        size = planner.constant("gradient_bytes") * one.pieces[FIRST].parameters
        result = planner.exchange("all_reduce", size, groups["ends"])
        moves.append(
            Wait("embedding", "all_reduce", result.link, size, result.seconds, result.seconds)
        )
    sharded = shared_of(one, load, 1)
    bytes_ = planner.constant("update_bytes") * sharded
    update_s = planner.update_s(plan, bytes_, sharded, one.microbatch, one.rounds)
    if alone_s := one.alone_s(load):
        moves.append(Wait("expert", "all_to_all", "", 0.0, 0.0, alone_s))
    if plan.offload in ("optimizer", "both"):
        update_s, moved = _on_host(one, sharded, last_s * (1 - 1 / parts))
        moves.append(moved)
    return _Tail(update_s + sum(move.exposed_s for move in moves), update_s, tuple(moves))


def _on_host(one: Step, sharded: float, beside: float) -> tuple[float, Wait]:
    """Return the seconds of an update on the host, and what moves there and back."""
    planner = one.planner
    sizes = (planner.constant("gradient_bytes") * sharded, planner.weight_bytes * sharded)
    near = planner.cluster.ladder[0].size if planner.cluster.levels else 1  # on the same host
    rate, devices = host_memory()
    update_s = planner.constant("update_bytes") * sharded / (rate / min(near, devices))
    made = on_host(sizes, update_s, beside, lambda size: planner.moved(size).seconds)
    link = planner.moved(0.0).link
    return made.update_s, Wait("host", "states", link, sum(sizes), made.moved_s, made.exposed_s)


def _exposures(one: Step, load: Load, microbatches: float, tail: _Tail) -> list[Wait]:
    result: dict[tuple[str, str, str], Wait] = {}
    for part, count in load:
        for wait in (wait for pass_ in one.passes(part) for wait in pass_.waits):
            key, more = wait[:3], (count * microbatches * value for value in wait[3:])
            before = result.get(key, (*key, 0.0, 0.0, 0.0))[3:]
            result[key] = Wait(*key, *map(add, before, more))
    return [*result.values(), *tail.exposures]


def dynamic_of(one: Step, load: Load) -> float:
    """Return the joules of a microbatch on a device beyond those of waiting."""
    full, result = one.plan.recompute == "full", 0.0
    for part, count in load:
        again = 4 / 3 if part.again and full else 1
        result += one.pieces[part.name].joules * again * count
    return result * one.own_share

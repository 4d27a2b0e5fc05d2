"""One plan: the time of a step, what of it waits for exchanges, and the memory of each device."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from operator import add
from typing import NamedTuple

from steptime.prediction.calibrated.power import drawn_of
from steptime.questions.plan.faults import Asked
from steptime.questions.plan.memory import (
    Kept,
    Memory,
    host_bytes,
    in_flight,
    memory_of,
    parameters_of,
    parts_of,
    shared_of,
)
from steptime.questions.plan.passes import Step, Wait
from steptime.questions.plan.pieces import FIRST
from steptime.questions.plan.pipeline import MOST_EVENTS, Flow, Pace, busy_s, pace, simulate
from steptime.questions.plan.planner import HOST_BYTES_PER_S, HOST_DEVICES, Planner
from steptime.questions.plan.stages import Group, Load


@dataclass(frozen=True)
class PlanTime:
    """A plan's step: seconds between `low` and `high` (80 %), memory by device of the pipeline.

    `compute_s` are the seconds of kernels of the busiest device, `update_s` those of its optimizer,
    `host_s` what it waits for the host, `recompute_s` what it computes again, `bubble_s` what it
    waits for the others: with `rest_s`, outside of the layers, they add up to the step. `bubble` is
    the share of their time in which the devices of the pipeline wait, in the mean. `tails_s` are,
    by device of it, what it waits for the exchange of gradients and takes for its update. A device
    has at most `host_bytes` in its host's memory.
    """

    asked: Asked
    step_s: float
    low: float
    high: float
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
    flow: Flow | None
    tails_s: tuple[tuple[float, float], ...]

    @property
    def fullest(self) -> int:
        """The place of the device that holds most."""
        return max(range(len(self.memory)), key=lambda d: self.memory[d].total)

    @property
    def exposed_s(self) -> float:
        """Seconds in which the busiest device waits for exchanges."""
        return sum(one.exposed_s for one in self.exposures)


def plan_time(planner: Planner, asked: Asked) -> PlanTime:
    """Return time and memory of a step, whose pipeline is simulated unless it is very large."""
    one, plan, m, flow = Step(planner, asked), asked.plan, asked.rounds, None
    times, send, devices = one.stages, one.send, plan.pipeline
    if len(times) * m * 2 <= MOST_EVENTS:
        flow = simulate(plan.schedule, times, devices, m, send.total_s)
        ends, idle, most = flow.ends_s, flow.idle_s, flow.most_held
    else:
        whole = pace(plan.schedule, times, devices, send.total_s).length_s(m)
        ends, most = (whole,) * devices, most_held(plan.schedule, devices, plan.virtual, m)
        idle = tuple(whole - m * busy for busy in busy_s(times, devices))
    tails = [tail_of(one, load) for load in one.shape.devices]
    end_s = max(end + tail.seconds for end, tail in zip(ends, tails, strict=True))
    step_s = planner.whole_s(end_s, plan.devices)
    waited = [idle[d] + (end_s - (ends[d] + tails[d].seconds)) for d in range(devices)]
    last = min(range(devices), key=waited.__getitem__)
    load = one.shape.devices[last]
    passes = [(one.passes(part), count * m) for part, count in load]
    exposures, waits = _exposures(one, load, m, tails[last]), 0.0
    if devices > 1:
        sent = 2 * m * plan.virtual
        waits = min(waited[last], 2 * (len(times) - 1) * send.total_s)
        moved, all_s, open_ = (value * sent for value in send[3:])
        exposures.append(Wait(*send[:3], moved, all_s, waits + open_))
    exposed_s = sum(wait.exposed_s for wait in exposures)
    return PlanTime(
        asked, step_s, *planner.within(step_s, exposed_s, asked.micro_batch),
        sum((f.compute + b.compute) * count for (f, b), count in passes),
        sum((f.recompute + b.recompute) * count for (f, b), count in passes),
        tails[last].update_s,
        sum((f.host + b.host) * count for (f, b), count in passes),
        sum(waited) / devices / end_s,
        waited[last] - waits,
        step_s - end_s,
        tuple(exposures),
        tuple(memory_of(one, d, most, m) for d in range(devices)),
        max(host_bytes(one, d, most, m) for d in range(devices)),
        one.shape.layers,
        _energy(one, m, step_s),
        flow,
        tuple((tail.seconds - tail.update_s, tail.update_s) for tail in tails),
    )  # fmt: skip


class Quick(NamedTuple):
    """A plan's step at a glance: seconds, bytes of the fullest device, joules (None: unknown)."""

    step_s: float
    bytes: float
    energy_j: float | None
    asked: Asked


def quick(planner: Planner, asked: Asked) -> Quick:
    """Return what `plan_time` says inexactly, at a glance.

    What does not depend on the number of micro-batches is kept. Where the device has not room for
    a plan, its seconds are infinite.
    """
    plan = asked.plan
    m = asked.batch // (asked.micro_batch * plan.data)
    key = (asked.order, asked.micro_batch, m > 1, *vars(plan).values())
    holds = planner.once(("holds", *key), lambda: _holds(Step(planner, asked)))
    most = most_held(plan.schedule, plan.pipeline, plan.virtual, m)
    held = max([still + in_flight(kept, most, m) for still, kept in holds])
    if held > planner.room_bytes:
        return Quick(inf, held, None, asked)
    takes = planner.once(("takes", *key), lambda: _takes(Step(planner, asked)))
    runs, last_s, loads = takes
    step_s = planner.whole_s(runs.length_s(m) + last_s, plan.devices)
    if (draws := planner.draws) is None:
        return Quick(step_s, held, None, asked)
    waiting_w, more, most_w = draws
    least, cap = waiting_w * step_s, most_w * step_s
    spent = [count * min(least + dynamic_j * m * more, cap) for count, dynamic_j in loads]
    return Quick(step_s, held, sum(spent) * (plan.devices // plan.pipeline), asked)


def _holds(one: Step) -> list[tuple[float, Kept]]:
    """Return what unlike devices of a pipeline hold: beside micro-batches, and of each."""
    parts = [parts_of(one, d) for d in one.shape.unlike]
    return [(sum(still), kept) for still, kept in parts]


def _takes(one: Step) -> tuple[Pace, float, list[tuple[int, float]]]:
    """Return how a pipeline runs, seconds of a step beside it, and joules of a micro-batch.

    The joules are of one device and come with the number of those that have the same to do.
    """
    runs = pace(one.plan.schedule, one.stages, one.plan.pipeline, one.send.total_s)
    loads = Counter(one.shape.devices).items()
    last_s = max(tail_of(one, load).seconds for load, _ in loads)
    return runs, last_s, [(count, dynamic_of(one, load)) for load, count in loads]


@lru_cache(maxsize=1 << 12)
def most_held(schedule: str, devices: int, virtual: int, micro_batches: int) -> tuple[int, ...]:
    """Return how many micro-batches each stage holds at most, of equal stages."""
    m = micro_batches
    if schedule == "gpipe":
        return (m,) * devices * virtual
    if schedule == "zero-bubble":
        return (min(m, devices),) * devices
    if virtual == 1:
        return tuple(min(m, devices - d) for d in range(devices))
    found = []
    group = min(devices, m)
    for k in range(devices * virtual):
        chunk, device = divmod(k, devices)
        ahead = min(m * virtual, 2 * (devices - 1 - device) + (virtual - 1) * group + 1)
        round_ = group * virtual
        full, rest = divmod(ahead, round_)
        found.append(min(m, full * group + min(group, max(0, rest - chunk * group))))
    return tuple(found)


class _Tail(NamedTuple):
    """What comes once a step: exchange of gradients and weights, and the update."""

    seconds: float
    update_s: float
    exposures: tuple[Wait, ...]


def tail_of(one: Step, load: Load) -> _Tail:
    """Return what a device's step ends, and begins, with."""
    plan = one.plan
    sizes = (plan.zero, plan.data, plan.pipeline, plan.virtual, plan.shard, plan.offload)
    key = ("tail", id(one.found), load, one.order, *sizes)
    return one.planner.once(key, lambda: _tail(one, load))


def _tail(one: Step, load: Load) -> _Tail:
    plan, planner, groups = one.plan, one.planner, one.groups
    last_s = sum(one.found[part.name].backward.value * count for part, count in load)
    first_s = sum(one.found[part.name].forward.value * count for part, count in load)
    parts = sum(count for _, count in load)
    pieces, times = parts, 1
    if plan.virtual > 1:  # a stage of the device is done with a round of micro-batches at a time
        pieces, times = plan.virtual, plan.pipeline
    moves: list[Wait] = []

    def exchange(to: str, kind: str, size: float, ranks: Group, beside: float) -> float:
        found = planner.exchange(kind, size, ranks)
        exposed = planner.open_s(kind, size, ranks, load, one.micro_batch)
        if exposed is None:
            hides = planner.constant("data_hidden") * beside * times * (1 - 1 / pieces)
            exposed = max(found.seconds - hides, found.seconds / max(2, pieces))
            exposed = min(found.seconds, exposed)
            if hides:
                exposed += planner.constant("slowed") * (found.seconds - exposed)
        if found.seconds:
            moves.append(Wait(to, kind, found.link, size, found.seconds, exposed))
        return found.seconds

    for count, of in zip(parameters_of(one, load), ("", "expert_"), strict=True):
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
        size = planner.constant("gradient_bytes") * one.found[FIRST].parameters
        found = planner.exchange("all_reduce", size, groups["ends"])
        moves.append(
            Wait("embedding", "all_reduce", found.link, size, found.seconds, found.seconds)
        )
    sharded = shared_of(one, load, 1)
    bytes_ = planner.constant("update_bytes") * sharded
    if plan.zero < 3:
        bytes_ += planner.constant("refresh_bytes") * sum(parameters_of(one, load))
    update_s = planner.update_s(bytes_, sharded, one.micro_batch)
    if plan.offload in ("optimizer", "both"):
        update_s, moved = _on_host(one, sharded, last_s * (1 - 1 / parts))
        moves.append(moved)
    return _Tail(update_s + sum(move.exposed_s for move in moves), update_s, tuple(moves))


def _on_host(one: Step, sharded: float, beside: float) -> tuple[float, Wait]:
    """Return the seconds of an update on the host, and what moves there and back.

    Gradients go out beside the last backward pass; weights come back in 16 bit, part by part while
    the host works on the next one (Ren and others 2021, ZeRO-Offload).
    """
    planner = one.planner
    sizes = (planner.constant("gradient_bytes") * sharded, planner.weight_bytes * sharded)
    out, back = (planner.moved(size) for size in sizes)
    near = planner.cluster.ladder[0].size if planner.cluster.levels else 1  # on the same host
    rate = HOST_BYTES_PER_S / min(near, HOST_DEVICES)
    update_s = planner.constant("update_bytes") * sharded / rate
    exposed = max(0.0, out.seconds - beside) + max(0.0, back.seconds - update_s)
    moved_s = out.seconds + back.seconds
    return update_s, Wait("host", "states", out.link, sum(sizes), moved_s, exposed)


def _exposures(one: Step, load: Load, micro_batches: int, tail: _Tail) -> list[Wait]:
    found: dict[tuple[str, str, str], Wait] = {}
    for part, count in load:
        for wait in (wait for pass_ in one.passes(part) for wait in pass_.waits):
            key, more = wait[:3], (count * micro_batches * value for value in wait[3:])
            before = found.get(key, (*key, 0.0, 0.0, 0.0))[3:]
            found[key] = Wait(*key, *map(add, before, more))
    return [*found.values(), *tail.exposures]


def _energy(one: Step, micro_batches: int, step_s: float) -> float | None:
    """Return the joules of a step of all devices, None where their power is not known."""
    whole = 0.0
    for load in one.shape.devices:
        dynamic = micro_batches * dynamic_of(one, load)
        drawn = drawn_of(dynamic, (step_s, step_s, step_s), one.planner.seen)
        if drawn is None:
            return None
        whole += drawn[0]
    return whole * one.plan.devices / len(one.shape.devices)


def dynamic_of(one: Step, load: Load) -> float:
    """Return the joules of a micro-batch on a device beyond those of waiting."""
    full, found = one.plan.recompute == "full", 0.0
    for part, count in load:
        again = 4 / 3 if part.again and full else 1
        found += one.found[part.name].joules * again * count
    return found

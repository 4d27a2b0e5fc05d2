"""A pipeline's schedule as a graph of stage, microbatch and direction, and when each part runs.

A device runs its own parts in the order of the schedule, each as soon as what it needs is there. Of
`devices` devices, device d has the stages d, d + devices, ... (one, or `virtual` ones interleaved).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from steptime.core.errors import check_choice

FORWARD, BACKWARD, WEIGHT = "forward", "backward", "weight"
MOST_EVENTS = 400_000  # simulated; larger pipelines repeat what they do


class Stage(NamedTuple):
    """Seconds of a stage for a microbatch: `weight_s` of `backward_s` make weights' gradients.

    For `host_s` of both passes it waits for its host.
    """

    forward_s: float
    backward_s: float
    weight_s: float = 0.0
    host_s: float = 0.0


class Event(NamedTuple):
    """What a device does: a stage's direction of a microbatch, from `start_s` to `end_s`."""

    device: int
    stage: int
    microbatch: int
    direction: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Flow:
    """A pipeline's run, and when each of its devices has done its last part."""

    events: tuple[Event, ...]
    ends_s: tuple[float, ...]


Step = tuple[str, int, int]  # direction, stage, microbatch


def gpipe(device: int, devices: int, virtual: int, microbatches: int) -> Iterator[Step]:
    """Yield all forward parts, then all backward ones (Huang and others 2019)."""
    stages = range(device, devices * virtual, devices)
    yield from ((FORWARD, stage, i) for stage in stages for i in range(microbatches))
    yield from (
        (BACKWARD, stage, i) for stage in reversed(stages) for i in reversed(range(microbatches))
    )


def one_forward_one_backward(
    device: int, devices: int, virtual: int, microbatches: int
) -> Iterator[Step]:
    """Yield forward parts until the pipeline is full, then one of each (Narayanan 2021).

    With several stages a device takes `devices` microbatches through each before the next stage,
    the last time those that are left over with them.
    """
    forward, backward = [], []
    rounds = max(1, microbatches // devices)
    for number in range(rounds):
        end = (number + 1) * devices if number + 1 < rounds else microbatches
        group = range(number * devices, end)
        for place in range(virtual):
            forward += [(FORWARD, place * devices + device, i) for i in group]
            back = (virtual - 1 - place) * devices + device
            backward += [(BACKWARD, back, i) for i in group]
    ahead = devices - 1 - device
    if virtual > 1:
        ahead = 2 * ahead + (virtual - 1) * len(group)
    ahead = min(ahead, len(forward))
    yield from forward[:ahead]
    for one, other in zip(forward[ahead:], backward, strict=False):
        yield from (one, other)
    yield from backward[len(forward) - ahead :]


def zero_bubble(device: int, devices: int, _virtual: int, microbatches: int) -> Iterator[Step]:
    """Yield 1F1B, with gradients of weights as far behind as devices are from the first.

    This is zero bubble H1 (Qi and others 2024): a device holds as many microbatches as the first
    one does in 1F1B.
    """
    ahead, late = min(devices - device, microbatches), 0
    yield from ((FORWARD, device, i) for i in range(ahead))
    for i in range(microbatches):
        yield BACKWARD, device, i
        if i >= device:
            yield WEIGHT, device, late
            late += 1
        if i + ahead < microbatches:
            yield FORWARD, device, i + ahead
    yield from ((WEIGHT, device, k) for k in range(late, microbatches))


Order = Callable[[int, int, int, int], Iterator[Step]]
ORDERS: dict[str, Order] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": one_forward_one_backward,
    "zero-bubble": zero_bubble,
}


def simulate(
    schedule: str, stages: Sequence[Stage], devices: int, microbatches: int, send_s: float = 0.0
) -> Flow:
    """Return when each device does what; `send_s` is between neighbouring stages.

    Raises `InputError` for an unknown schedule.
    """
    check_choice("schedule", schedule, ORDERS)
    virtual = len(stages) // devices
    splits = schedule == "zero-bubble"
    takes = [
        {FORWARD: fore, BACKWARD: back - weight * splits, WEIGHT: weight}
        for fore, back, weight, _ in stages
    ]
    orders = [list(ORDERS[schedule](d, devices, virtual, microbatches)) for d in range(devices)]
    done: dict[Step, float] = {}
    free, next_, events = [0.0] * devices, [0] * devices, []
    waiting: dict[Step, int] = {}
    ready = list(range(devices))
    last = len(stages) - 1
    while ready:
        device = ready.pop()
        order, at, now = orders[device], next_[device], free[device]
        while at < len(order):
            direction, stage, i = step = order[at]
            needed = _needed(direction, stage, i, last)
            if needed is not None and needed not in done:
                waiting[needed] = device
                break
            start = now
            if needed is not None:
                start = max(now, done[needed] + (send_s if needed[1] != stage else 0.0))
            now = start + takes[stage][direction]
            done[step] = now
            events.append(Event(device, stage, i, direction, start, now))
            at += 1
            if step in waiting:
                ready.append(waiting.pop(step))
        next_[device], free[device] = at, now
    if waiting:
        raise RuntimeError(f"{schedule}: devices wait for each other at {min(waiting)}")
    return Flow(tuple(events), tuple(free))


def _needed(direction: str, stage: int, i: int, last: int) -> Step | None:
    if direction == FORWARD:
        return (FORWARD, stage - 1, i) if stage else None
    if direction == WEIGHT:
        return (BACKWARD, stage, i)
    return (BACKWARD, stage + 1, i) if stage < last else (FORWARD, last, i)


def busy_s(stages: Sequence[Stage], devices: int) -> list[float]:
    """Return the seconds in which each device computes a microbatch."""
    both = [stage.forward_s + stage.backward_s for stage in stages]
    return [sum(both[d::devices]) for d in range(devices)]

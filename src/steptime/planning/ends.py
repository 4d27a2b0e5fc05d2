"""When the devices of a pipeline have done their last part: exactly, and at the earliest.

What `pipeline.simulate` works out part by part is here a few numbers a device, step by step. Where
all devices do the same again and again, later by the same time, the rest is skipped.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf
from operator import sub
from typing import NamedTuple

from steptime.planning.pipeline import FORWARD, ORDERS, Stage, busy_s, simulate

SAME = 1e-12  # of a period: two of them differ by less
ROUNDS = 6  # of microbatches: later ones hold no more
IN_TURN = ("1f1b", "interleaved", "zero-bubble")
State = tuple[float, ...]


@lru_cache(maxsize=1 << 12)
def ends_of(
    schedule: str, stages: tuple[Stage, ...], devices: int, microbatches: int, send_s: float
) -> tuple[float, ...]:
    """Return when each device of a pipeline has done its last part, as `simulate` does.

    Raises `InputError` for an unknown schedule.
    """
    if schedule == "dualpipe":
        return _both_ways(stages, microbatches)
    if schedule in IN_TURN and len(stages) == devices:
        return _in_turn(schedule == "zero-bubble", stages, microbatches, send_s)
    if schedule in IN_TURN and devices > 1 and not microbatches % devices:
        return _interleaved(stages, devices, microbatches, send_s)
    return simulate(schedule, stages, devices, microbatches, send_s).ends_s


def _both_ways(stages: Sequence[Stage], microbatches: int) -> tuple[float, ...]:
    """Return the ends of a pipeline whose devices each have a stage of both directions.

    Half of the microbatches enter at either end, and a pass forward of one runs beside a pass back
    of another. With F, B and W of a stage, W the part of B that makes gradients of weights, all
    devices wait (p / 2 - 1) (F + B + B - 3 W) (DeepSeek-AI 2024, DeepSeek-V3, table 2).
    """
    wait, each = bubble(stages), max(paired(stages))
    return (microbatches * each + wait,) * len(stages)


def paired(stages: Sequence[Stage]) -> list[float]:
    """Return the seconds of a microbatch on devices that have half of those of two stages."""
    both = [one.forward_s + one.backward_s for one in stages]
    return [(one + other) / 2 for one, other in zip(both, both[::-1], strict=True)]


def bubble(stages: Sequence[Stage]) -> float:
    """Return the seconds that a pipeline waits whose microbatches enter at both ends."""
    many = len(stages)
    fore, back, weight = (sum(stage[i] for stage in stages) / many for i in range(3))
    return (many / 2 - 1) * max(0.0, fore + 2 * back - 3 * weight)


def _in_turn(splits: bool, stages: Sequence[Stage], m: int, send_s: float) -> tuple[float, ...]:
    """Return the ends of one stage a device: at step j, device d goes back with j - p + d first.

    Then it goes forward with j; where it `splits` them, it makes gradients of weights in between.
    """
    p, every = len(stages), range(len(stages))
    weights = [stage.weight_s if splits else 0.0 for stage in stages]
    fores = [stage.forward_s for stage in stages]
    backs = [stage.backward_s - own for stage, own in zip(stages, weights, strict=True)]
    fore, back, free = [0.0] * p, [0.0] * (p + 1), [0.0] * p
    back[p] = -inf  # the last device waits for itself
    states: list[State] = []
    j = 0
    while j < m + p:
        handed = -inf
        for d in every:
            i, now = j - p + d, free[d]
            if 0 <= i < m:
                now = max(now, back[d + 1] + send_s) + backs[d]
                back[d] = now
                if j >= p:
                    now += weights[d]
            if j < m:
                now = max(now, handed) + fores[d]
                fore[d] = now
                handed = now + send_s
            free[d] = now
        j += 1
        if p < j < m:
            states.append((*free, *back[:p]))
            result = _period(states, range(1, p + 1)) if j % p == 0 else None
            if result is not None:
                period, later_s = result
                times = (m - j) // period
                fore, back, free = (
                    [value + times * later_s for value in some] for some in (fore, back, free)
                )
                j, states = j + times * period, []
    return tuple(end + min(m, d) * weights[d] for d, end in enumerate(free))


def _interleaved(stages: Sequence[Stage], p: int, m: int, send_s: float) -> tuple[float, ...]:
    """Return the ends of several stages a device, whose microbatches go in groups of p.

    At step j, device d goes forward with its part j - d, and back with one that is as many parts
    behind as it was ahead at first.
    """
    virtual = len(stages) // p
    parts, whole = m * virtual, p * virtual
    fores, backs = (
        [[stages[place * p + d][at] for place in range(virtual)] for d in range(p)] for at in (0, 1)
    )
    ahead = [2 * (p - 1 - d) + (virtual - 1) * p for d in range(p)]
    fore, back, free = [-inf] * p, [-inf] * p, [0.0] * p
    states: list[State] = []
    j, end = 0, parts + ahead[0] + p
    while j < end:
        fore_, back_ = fore[:], back[:]
        for d in range(p):
            k = j - d
            if k < 0:
                break
            now = free[d]
            if k < parts:
                place = k % whole // p
                ready = (fore[d - 1] if d or place else -inf) + send_s
                now = max(now, ready) + fores[d][place]
                fore_[d] = now
            k -= ahead[d]
            if 0 <= k < parts:
                place = k % whole // p
                after = back[(d + 1) % p] if d < p - 1 or place else -inf
                now = max(now, after + send_s) + backs[d][virtual - 1 - place]
                back_[d] = now
            free[d] = now
        fore, back = fore_, back_
        j += 1
        if ahead[0] < j < parts and j % whole == 0:
            states.append((*free, *fore, *back))
            result = _period(states, (1,))
            if result is not None:
                times = (parts - j) // whole
                fore, back, free = (
                    [value + times * result[1] for value in some] for some in (fore, back, free)
                )
                j, states = j + times * whole, []
    return tuple(free)


def _period(states: Sequence[State], periods: Sequence[int]) -> tuple[int, float] | None:
    """Return after how many states all is as it was, and how much later; None where it never is.

    What comes next hangs on the last state alone, so that it is as it was from then on.
    """
    last = states[-1]
    for period in periods:
        if len(states) <= period:
            return None
        later = [*map(sub, last, states[-1 - period])]
        if max(later) - min(later) <= SAME * max(later):
            return period, later[0]
    return None


class Least(NamedTuple):
    """Seconds below which no run of a pipeline is, with what follows it on each device.

    Each line is the seconds of a chain of parts that wait for each other: once, and for each
    microbatch; `full` are those of pipelines that have more microbatches than devices.
    """

    lines: tuple[tuple[float, float], ...]
    full: tuple[tuple[float, float], ...]
    devices: int

    def after_s(self, microbatches: int) -> float:
        """Return the least seconds of so many microbatches."""
        lines = self.full if microbatches > self.devices else self.lines
        return max([once + microbatches * each for once, each in lines])


def least(
    schedule: str, stages: Sequence[Stage], devices: int, send_s: float, tails_s: Sequence[float]
) -> Least:
    """Return what a run takes at least, with what each device does after its last part.

    A chain goes forward to a device, has its part in all microbatches, and goes back to one that
    ends with it. It is what equal stages take whose sends hide.
    """
    if schedule == "dualpipe":
        line = (bubble(stages) + max(tails_s), max(paired(stages)))
        return Least((line,), (line,), devices)
    splits, virtual = schedule == "zero-bubble", len(stages) // devices
    weights = [stage.weight_s if splits else 0.0 for stage in stages]
    backs = [stage.backward_s - own for stage, own in zip(stages, weights, strict=True)]
    fores = [stage.forward_s for stage in stages]
    busy = busy_s(stages, devices)
    lines, waits = [], []
    there, home, left = 0.0, -inf, sum(fores) + sum(backs)
    for j in range(len(stages)):
        both, behind = fores[j] + backs[j], len(stages) - 1 - j
        left -= both
        if j < devices:
            last = weights[j] + tails_s[j]
            once = max(last - weights[j], home - (1 + j) * weights[j])
            lines.append((there + once, busy[j]))
            around = left + 2 * behind * send_s
            waits.append(
                max(0.0, around - behind * fores[j]) + max(0.0, around - behind * backs[j])
                if schedule == "1f1b" and virtual == 1
                else 0.0
            )
            if splits:  # gradients of weights are late, where there are few microbatches
                lines.append((there + max(home, 0.0), both))
                waits.append(0.0)
            home = max(last, home)
        elif not behind:
            lines.append((there + home, both))
            waits.append(0.0)
        there += fores[j] + send_s
        home += backs[j] + send_s
    full = [(once + more, each) for (once, each), more in zip(lines, waits, strict=True)]
    return Least(_highest(lines), _highest(full), devices)


def _highest(lines: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return the lines that are the highest somewhere, or next to it, from one microbatch on."""
    result: list[tuple[float, float]] = []
    for once, each in sorted(lines, key=lambda line: line[::-1], reverse=True):
        if not result or once + each > max(first + more for first, more in result):
            result.append((once, each))
    return tuple(result)


@lru_cache(maxsize=1 << 12)
def most_held(schedule: str, devices: int, virtual: int, microbatches: int) -> tuple[int, ...]:
    """Return how many microbatches each stage holds when its device holds most, as `simulate`."""
    m = microbatches
    if schedule == "gpipe":
        return (m,) * devices * virtual
    if schedule == "zero-bubble":
        return (min(m, devices),) * devices
    if virtual == 1:
        return tuple(min(m, devices - d) for d in range(devices))
    if m > devices and m % devices:
        return _counted(schedule, devices, virtual, m)
    result = []
    group = min(devices, m)
    for k in range(devices * virtual):
        chunk, device = divmod(k, devices)
        ahead = min(m * virtual, 2 * (devices - 1 - device) + (virtual - 1) * group + 1)
        round_ = group * virtual
        full, rest = divmod(ahead, round_)
        result.append(min(m, full * group + min(group, max(0, rest - chunk * group))))
    return tuple(result)


def _counted(schedule: str, devices: int, virtual: int, m: int) -> tuple[int, ...]:
    """Return what stages hold at most, in the order of their parts, whose middle repeats."""
    m -= devices * max(0, m // devices - ROUNDS)
    result = [0] * devices * virtual
    for d in range(devices):
        held, most, now = [0] * virtual, 0, 0
        for direction, stage, _ in ORDERS[schedule](d, devices, virtual, m):
            more = 1 if direction == FORWARD else -1
            held[stage // devices] += more
            now += more
            if now > most:
                most, result[d::devices] = now, held
    return tuple(result)

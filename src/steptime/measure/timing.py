"""Timed samples of a step: the first step, warm-up until steady, then samples of at least 10 ms.

How a step is timed
    1. The first step is timed alone (`first_step_s`): it compiles and allocates. It is not part of
       the time budget.
    2. Warm-up: samples until the medians of two windows of 5 samples in a row agree, for at most a
       third of the budget. They agree if they differ by no more than 1 %, or by no more than twice
       the standard error of their difference (from the median absolute deviation). Every sample up
       to there is kept apart in `warmup_s`. Where the step after the first is longer than the whole
       budget, it is a sample already.
    3. Samples, each of as many steps as fill 10 ms, until there are 20 and the 95 % interval of
       their median is narrower than +-1 %, or the budget is spent. There are never fewer than 3.
    4. `steady` says whether the first and the second half of the samples agree, by the same rule.

A training of a stated number of steps is timed as it goes: all its steps, and no others, are in
one block or another. No budget ends it, so warm-up is told afterwards, by the rule of 2.

Georges, Buytaert and Eeckhout (2007) end warm-up where the coefficient of variation of a window
falls below 1 or 2 %. On a shared machine it never does, so two windows are compared here.
"""

import math
import time
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from steptime.measure.disturbance import Watch, changes

WINDOW = 5
TOLERANCE = 0.01  # windows that differ less are taken as equal
WARM_UP_SHARE = 1 / 3  # of the budget
NARROW = 0.01  # half-width of the median's interval that ends sampling
MARGIN = 1.1  # samples aim at 10 % more than the shortest that counts
MOST_BLOCKS = 1000  # of a training: a long one has longer samples, not more

WARM_UP_RULE = (
    "two windows of 5 samples whose medians differ by at most 1 % or twice their standard error; "
    "at most a third of the budget"
)

Step = Callable[[], None]
Clock = Callable[[], float]
Timer = Callable[[Step, int], float]  # seconds of so many steps


@dataclass(frozen=True)
class Samples:
    """Times of a step in seconds; a sample is the mean over the steps in it.

    `columns` has one entry a sample under each name: `steps`, and what the watch saw. `input_s`
    is the part of each that the step waited for its input; empty where that is resident.
    """

    step_s: tuple[float, ...]
    steps_per_sample: int
    first_step_s: float
    warmup_s: tuple[float, ...]
    steady: bool
    few_samples: bool
    input_s: tuple[float, ...] = ()
    columns: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


class _Taker:
    """Takes samples of a step: how long, with what disturbance, and how much of it input was."""

    def __init__(
        self,
        step: Step,
        seconds_of: Timer,
        watch: Watch | None,
        waited: Callable[[], float] | None,
    ) -> None:
        self._step, self._seconds_of, self._watch, self._waited = step, seconds_of, watch, waited
        self._counted = watch.read() if watch else {}

    def take(self, steps: int) -> tuple[float, dict[str, Any]]:
        """Return the seconds of `steps` steps, and the row of columns of this sample."""
        if self._waited:
            self._waited()
        total_s = self._seconds_of(self._step, steps)
        row: dict[str, Any] = {"steps": steps}
        if self._waited:
            row["input_s"] = self._waited() / steps
        if self._watch:
            before, self._counted = self._counted, self._watch.read()  # one a sample: no gap
            row |= changes(before, self._counted, total_s)
        return total_s, row


def take_samples(
    step: Step,
    sync: Callable[[], object],
    *,
    clock: Clock = time.perf_counter,
    budget_s: float = 3.0,
    wanted: int = 20,
    least: int = 3,
    sample_s: float = 0.010,
    watch: Watch | None = None,
    timer: Timer | None = None,
    waited: Callable[[], float] | None = None,
    started: Callable[[float, float], object] | None = None,
) -> Samples:
    """Return the samples of `step`, in seconds a step, as this module's page says.

    `sync` returns when the device has finished. `timer(step, n)`, if given, gives the seconds of
    `n` steps by a backend's own means (CUDA events); else `clock` is read around them. `waited`
    gives the seconds that steps waited for input since it was last asked. After the second step
    `started` is told the seconds of the first, and those that the rest may take.
    `few_samples` says that there are fewer than `wanted`. What `step` raises passes through.
    """
    seconds_of = timer or timer_of(sync, clock)
    first_step_s = timer_of(sync, clock)(step, 1)
    start_s = clock()

    total_s, row = _Taker(step, seconds_of, watch, waited).take(1)
    if started:  # the second tells how long a step is where the first compiled
        started(first_step_s, max(budget_s - total_s, (least - 1) * total_s))
    step_s, rows = ([total_s], [row]) if total_s >= budget_s else ([], [])
    warmup_s: list[float] = []
    ordered, steps = list(step_s), 1
    if not step_s:
        warmup_s, steps = _fill(step, seconds_of, sample_s, total_s)
    if warmup_s and warmup_s[-1] * steps < WARM_UP_SHARE * budget_s:
        warmup_s += _warm_up(
            lambda n: seconds_of(step, n) / n, steps, clock, start_s + WARM_UP_SHARE * budget_s
        )
        steps = _steps_for(sample_s, min(warmup_s[-WINDOW:]))

    taker = _Taker(step, seconds_of, watch, waited)
    while True:
        total_s, row = taker.take(steps)
        left_s = start_s + budget_s - clock()
        if total_s < sample_s and left_s > 0:  # the step became faster: it was not warm
            warmup_s.append(total_s / steps)
            steps = max(steps + 1, _steps_for(sample_s, total_s / steps))
            continue
        step_s.append(total_s / steps)
        insort(ordered, total_s / steps)
        rows.append(row)
        if len(step_s) >= least and total_s > left_s:
            break
        if len(step_s) >= max(wanted, least) and median_half_width(ordered) <= NARROW:
            break
    return _samples(step_s, rows, first_step_s, warmup_s, wanted)


def take_training(
    step: Step,
    sync: Callable[[], object],
    total: int,
    *,
    clock: Clock = time.perf_counter,
    wanted: int = 20,
    least: int = 3,
    sample_s: float = 0.010,
    watch: Watch | None = None,
    timer: Timer | None = None,
    waited: Callable[[], float] | None = None,
    started: Callable[[float, float], object] | None = None,
) -> Samples:
    """Run `step` exactly `total` times (at least 10) and return the samples of that.

    Blocks grow until one fills a sample; the last may hold up to twice as many steps. Samples are
    those after warm-up, at most two thirds of them, at least `least`.
    """
    first_step_s = timer_of(sync, clock)(step, 1)
    if started:
        started(first_step_s, first_step_s * (total - 1))
    taker = _Taker(step, timer or timer_of(sync, clock), watch, waited)
    times_s: list[float] = []
    rows: list[dict[str, Any]] = []
    left, steps = total - 1, 1
    filled: int | None = None  # the first block that fills a sample
    while left:
        taken = steps if left >= 2 * steps else left
        total_s, row = taker.take(taken)
        left -= taken
        times_s.append(total_s / taken)
        rows.append(row)
        if filled is None and total_s >= sample_s:
            filled = len(times_s) - 1
            steps = max(steps, -(-left // MOST_BLOCKS))
        elif filled is None:
            grown = min(10 * steps, max(steps + 1, _steps_for(sample_s, times_s[-1])))
            steps = max(1, min(grown, left // least))
    cold = filled or 0
    first = min(cold + _warm_blocks(times_s[cold:]), max(0, len(times_s) - least))
    return _samples(times_s[first:], rows[first:], first_step_s, times_s[:first], wanted)


def _warm_blocks(times_s: Sequence[float]) -> int:
    """Return how many of these are warm-up: up to the first two windows that agree, or a third."""
    most = int(len(times_s) * WARM_UP_SHARE)
    for end in range(2 * WINDOW, most + 1, WINDOW):
        if agree(times_s[end - 2 * WINDOW : end - WINDOW], times_s[end - WINDOW : end]):
            return end
    return most


def _samples(
    step_s: Sequence[float],
    rows: Sequence[Mapping[str, Any]],
    first_step_s: float,
    warmup_s: Sequence[float],
    wanted: int,
) -> Samples:
    half = len(step_s) // 2
    columns = {name: tuple(row[name] for row in rows) for name in rows[0]}
    return Samples(
        step_s=tuple(step_s),
        steps_per_sample=rows[-1]["steps"],
        first_step_s=first_step_s,
        warmup_s=tuple(warmup_s),
        steady=half > 0 and agree(step_s[:half], step_s[-half:]),
        few_samples=len(step_s) < wanted,
        input_s=columns.pop("input_s", ()),
        columns=columns,
    )


def agree(earlier: Sequence[float], later: Sequence[float]) -> bool:
    """Return whether two groups of times have the same median, within 1 % or within their noise."""
    middles = median(earlier), median(later)
    variance = sum(_sigma(group) ** 2 / len(group) for group in (earlier, later))
    error = math.sqrt(math.pi / 2 * variance)  # of a median, for normal noise
    return abs(middles[0] - middles[1]) <= max(TOLERANCE * min(middles), 2 * error)


def median_half_width(ordered: Sequence[float]) -> float:
    """Return half the 95 % interval of the median of sorted times, as a share of the median.

    Its ends have the ranks (n - 1.96 sqrt(n)) / 2 and 1 + (n + 1.96 sqrt(n)) / 2, counted from 1,
    rounded outwards (Le Boudec 2010, chapter 2; Hoefler and Belli 2015).
    """
    n = len(ordered)
    low = max(0, math.floor((n - 1.96 * math.sqrt(n)) / 2) - 1)
    high = min(n - 1, math.ceil((n + 1.96 * math.sqrt(n)) / 2))
    return (ordered[high] - ordered[low]) / 2 / median(ordered)


def timer_of(sync: Callable[[], object], clock: Clock = time.perf_counter) -> Timer:
    """Return a timer of steps by `clock`, the work of the device that `sync` awaits included."""

    def seconds_of(step: Step, steps: int) -> float:
        sync()
        start_s = clock()
        for _ in range(steps):
            step()
        sync()
        return clock() - start_s

    return seconds_of


def _fill(
    step: Step, seconds_of: Timer, sample_s: float, first_s: float
) -> tuple[list[float], int]:
    """Return the times of ever more steps after one of `first_s`, and how many fill a sample."""
    times_s = [first_s]
    total_s, steps = first_s, 1
    while total_s < sample_s:
        steps = min(10 * steps, max(steps + 1, _steps_for(sample_s, total_s / steps)))
        total_s = seconds_of(step, steps)
        times_s.append(total_s / steps)
    return times_s, steps


def _warm_up(
    sample: Callable[[int], float], steps: int, clock: Clock, until_s: float
) -> list[float]:
    times_s: list[float] = []
    while clock() + (times_s[-1] if times_s else 0.0) * steps < until_s:
        times_s.append(sample(steps))
        earlier, later = times_s[-2 * WINDOW : -WINDOW], times_s[-WINDOW:]
        if len(times_s) % WINDOW == 0 and len(earlier) == WINDOW and agree(earlier, later):
            break
    return times_s


def _steps_for(sample_s: float, step_s: float) -> int:
    """Return how many steps fill a sample; very many if the clock saw no time pass."""
    return max(1, math.ceil(MARGIN * sample_s / max(step_s, 1e-9)))


def _sigma(times: Sequence[float]) -> float:
    middle = median(times)
    return 1.4826 * median([abs(t - middle) for t in times])

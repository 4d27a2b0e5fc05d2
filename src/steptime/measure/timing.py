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

from steptime.core.json_types import JsonObject
from steptime.measure.disturbance import CounterWatch, changes

WINDOW = 5
TOLERANCE = 0.01  # windows that differ less are taken as equal
WARM_UP_SHARE = 1 / 3  # of the budget
NARROW = 0.01  # half-width of the median's interval that ends sampling
MARGIN = 1.1  # samples aim at 10 % more than the shortest that counts
MAX_BLOCKS = 1000  # of a training: a long one has longer samples, not more

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


@dataclass
class _Taker:
    """Takes the first step of a measurement, and then samples, each a mean over its steps.

    `sync` returns when the device has finished. `timer(step, n)`, if given, gives the seconds of
    `n` steps by a backend's own means (CUDA events); else `clock` is read around them. `waited`
    gives the seconds that steps waited for input since it was last asked. `started` is told the
    seconds of the first step, and those that the rest may take. There are never fewer samples than
    `min_samples`, and `few_samples` says that there are fewer than `target_samples`.
    """

    step: Step
    sync: Callable[[], object]
    clock: Clock = time.perf_counter
    target_samples: int = 20
    min_samples: int = 3
    sample_s: float = 0.010
    watch: CounterWatch | None = None
    timer: Timer | None = None
    waited: Callable[[], float] | None = None
    started: Callable[[float, float], object] = lambda *_: None

    def __post_init__(self) -> None:
        by_host = timer_of(self.sync, self.clock)
        self.seconds_of = self.timer or by_host
        self.first_step_s = by_host(self.step, 1)
        self.begin()

    def begin(self) -> None:
        """Begin without samples: what disturbs from here on is of the first one."""
        self.step_s: list[float] = []
        self.rows: list[JsonObject] = []
        self._counted = self.watch.read() if self.watch else {}

    def take(self, steps: int) -> float:
        """Take a sample of `steps` steps with its row of columns, and return its seconds."""
        if self.waited:
            self.waited()
        total_s = self.seconds_of(self.step, steps)
        row: JsonObject = {"steps": steps}
        if self.waited:
            row["input_s"] = self.waited() / steps
        if self.watch:
            before, self._counted = self._counted, self.watch.read()  # one a sample: no gap
            row |= changes(before, self._counted, total_s)
        self.step_s.append(total_s / steps)
        self.rows.append(row)
        return total_s

    def steps_for(self, step_s: float) -> int:
        """Return the number of steps that fill a sample; very many if no time passed."""
        return max(1, math.ceil(MARGIN * self.sample_s / max(step_s, 1e-9)))

    def increase_steps(self, steps: int, step_s: float) -> int:
        """Return the number of steps of the next sample after one that was too short."""
        return min(10 * steps, max(steps + 1, self.steps_for(step_s)))

    def warm_up(self, total_s: float, start_s: float, budget_s: float) -> tuple[list[float], int]:
        """Return the times of steps until they are steady, and how many fill a sample."""
        times_s = [total_s]
        steps = 1
        while total_s < self.sample_s:
            steps = self.increase_steps(steps, total_s / steps)
            total_s = self.seconds_of(self.step, steps)
            times_s.append(total_s / steps)
        if total_s >= budget_s:
            return times_s, steps
        warm_s: list[float] = []
        end_s = start_s + budget_s
        block_s = 0.0  # of the last block, which the next one is expected to take, too
        while self.clock() + block_s < end_s:
            warm_s.append(self.seconds_of(self.step, steps) / steps)
            block_s = warm_s[-1] * steps
            fills_window = len(warm_s) % WINDOW == 0
            has_two_windows = len(warm_s) >= 2 * WINDOW
            if fills_window and has_two_windows:
                window_before = warm_s[-2 * WINDOW : -WINDOW]
                if agree(window_before, warm_s[-WINDOW:]):
                    break
        times_s += warm_s
        return times_s, self.steps_for(min(times_s[-WINDOW:]))

    def samples(self, warmup_s: Sequence[float], first: int = 0) -> Samples:
        """Return the samples from the one with this number on."""
        step_s = self.step_s[first:]
        sample_rows = self.rows[first:]
        half = len(step_s) // 2
        columns = {name: tuple(row[name] for row in sample_rows) for name in sample_rows[0]}
        return Samples(
            step_s=tuple(step_s),
            steps_per_sample=sample_rows[-1]["steps"],
            first_step_s=self.first_step_s,
            warmup_s=tuple(warmup_s),
            steady=half > 0 and agree(step_s[:half], step_s[-half:]),
            few_samples=len(step_s) < self.target_samples,
            input_s=columns.pop("input_s", ()),
            columns=columns,
        )


def take_samples(
    step: Step, sync: Callable[[], object], *, budget_s: float = 3.0, **settings: Any
) -> Samples:
    """Return samples of `step` in seconds a step; `settings` are fields of `_Taker`."""
    taker = _Taker(step, sync, **settings)
    start_s = taker.clock()
    total_s = taker.take(1)
    # the second step tells how long one is where the first compiled
    taker.started(taker.first_step_s, max(budget_s - total_s, (taker.min_samples - 1) * total_s))
    steps = 1
    warmup_s: list[float] = []
    if total_s < budget_s:
        warmup_s, steps = taker.warm_up(total_s, start_s, WARM_UP_SHARE * budget_s)
        taker.begin()
    ordered = list(taker.step_s)
    while True:
        total_s = taker.take(steps)
        left_s = start_s + budget_s - taker.clock()
        if total_s < taker.sample_s and left_s > 0:  # the step became faster: it was not warm
            warmup_s.append(taker.step_s.pop())
            taker.rows.pop()
            steps = max(steps + 1, taker.steps_for(total_s / steps))
            continue
        insort(ordered, total_s / steps)
        if len(ordered) >= taker.min_samples and total_s > left_s:
            break
        enough = len(ordered) >= max(taker.target_samples, taker.min_samples)
        if enough and median_half_width(ordered) <= NARROW:
            break
    return taker.samples(warmup_s)


def take_training(step: Step, sync: Callable[[], object], total: int, **settings: Any) -> Samples:
    """Run `step` exactly `total` times (at least 10) and return the samples of that.

    Blocks grow until one fills a sample; the last may hold up to twice as many steps. Samples are
    those after warm-up, at most two thirds of them, at least `min_samples`.
    """
    taker = _Taker(step, sync, **settings)
    taker.started(taker.first_step_s, taker.first_step_s * (total - 1))
    remaining_steps = total - 1
    steps = 1  # of a block
    first_full_block: int | None = None  # the first one that fills a sample
    while remaining_steps:
        is_last_block = remaining_steps < 2 * steps
        block_steps = remaining_steps if is_last_block else steps
        block_s = taker.take(block_steps)
        remaining_steps -= block_steps
        if first_full_block is None and block_s >= taker.sample_s:
            first_full_block = len(taker.step_s) - 1
            min_steps = math.ceil(remaining_steps / MAX_BLOCKS)
            steps = max(steps, min_steps)
        elif first_full_block is None:
            larger_steps = taker.increase_steps(steps, taker.step_s[-1])
            max_steps = remaining_steps // taker.min_samples
            steps = max(1, min(larger_steps, max_steps))
    times_s = taker.step_s
    growing_blocks = first_full_block or 0
    warmup_blocks = growing_blocks + _warm_blocks(times_s[growing_blocks:])
    max_warmup_blocks = max(0, len(times_s) - taker.min_samples)
    first_sample = min(warmup_blocks, max_warmup_blocks)
    return taker.samples(times_s[:first_sample], first_sample)


def _warm_blocks(times_s: Sequence[float]) -> int:
    """Count the warm-up blocks: up to the first two windows that agree, or a third of all."""
    max_blocks = int(len(times_s) * WARM_UP_SHARE)
    for end in range(2 * WINDOW, max_blocks + 1, WINDOW):
        if agree(times_s[end - 2 * WINDOW : end - WINDOW], times_s[end - WINDOW : end]):
            return end
    return max_blocks


def part_seconds(
    parts: Mapping[str, Step], sync: Callable[[], object], clock: Clock = time.perf_counter
) -> dict[str, float]:
    """Run the parts of a step, synchronised after each, and return the seconds of each."""
    seconds = {}
    for name, part in parts.items():
        began = clock()
        part()
        sync()
        seconds[name] = clock() - began
    return seconds


def agree(earlier: Sequence[float], later: Sequence[float]) -> bool:
    """Return whether two groups of times have the same median, within 1 % or within their noise."""
    earlier_s = median(earlier)
    later_s = median(later)
    variance = 0.0  # of the difference of the means
    for group, middle_s in ((earlier, earlier_s), (later, later_s)):
        sigma = 1.4826 * median([abs(time_s - middle_s) for time_s in group])
        variance += sigma**2 / len(group)
    error_s = math.sqrt(math.pi / 2 * variance)  # of medians, for normal noise
    return abs(earlier_s - later_s) <= max(TOLERANCE * min(earlier_s, later_s), 2 * error_s)


def median_half_width(ordered: Sequence[float]) -> float:
    """Return half the 95 % interval of the median of sorted times, as a share of the median.

    Its ends have the ranks (n - 1.96 sqrt(n)) / 2 and 1 + (n + 1.96 sqrt(n)) / 2, counted from 1,
    rounded outwards (Le Boudec 2010, chapter 2; Hoefler and Belli 2015).
    """
    n = len(ordered)
    low_rank = max(0, math.floor((n - 1.96 * math.sqrt(n)) / 2) - 1)
    high_rank = min(n - 1, math.ceil((n + 1.96 * math.sqrt(n)) / 2))
    half_width_s = (ordered[high_rank] - ordered[low_rank]) / 2
    return half_width_s / median(ordered)


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

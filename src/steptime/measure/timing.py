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
from steptime.measure.disturbance import CounterWatch, counter_changes

WINDOW = 5
TOLERANCE = 0.01  # windows that differ less are taken as equal
WARM_UP_SHARE = 1 / 3  # of the budget
MAX_HALF_WIDTH = 0.01  # half-width of the median's interval that ends sampling
MARGIN = 1.1  # samples aim at 10 % more than the shortest that counts
SIGMA_PER_DEVIATION = 1.4826  # standard over median absolute deviation, of normal noise
MAX_BLOCKS = 1000  # of a training: a long one has longer samples, not more
NORMAL_95 = 1.96  # standard deviations on either side that hold 95 % of a normal distribution

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
class _StepSampler:
    """Takes the first step of a measurement, and then samples, each a mean over its steps.

    `sync` returns when the device has finished. `timer(step, n)`, if given, gives the seconds of
    `n` steps by a backend's own means (CUDA events); else `clock` is read around them.
    `take_wait_s` gives the seconds that steps waited for input since it was last called.
    `report_start` gets the seconds of the first step, and those that the others may take. A sample
    takes `min_sample_s` at least. There are never fewer samples than `min_samples`, and
    `few_samples` says that there are fewer than `target_samples`.
    """

    step: Step
    sync: Callable[[], object]
    clock: Clock = time.perf_counter
    target_samples: int = 20
    min_samples: int = 3
    min_sample_s: float = 0.010
    watch: CounterWatch | None = None
    timer: Timer | None = None
    take_wait_s: Callable[[], float] | None = None
    report_start: Callable[[float, float], object] = lambda *_: None

    def __post_init__(self) -> None:
        time_by_host = timer_of(self.sync, self.clock)
        self.time_steps = self.timer or time_by_host
        self.first_step_s = time_by_host(self.step, 1)
        self.restart()

    def restart(self) -> None:
        """Begin without samples: what disturbs from here on is of the first one."""
        self.step_s: list[float] = []
        self.sample_rows: list[JsonObject] = []
        self._counters_before = self.watch.read() if self.watch else {}

    def take_sample(self, steps: int) -> float:
        """Take a sample of `steps` steps with its row of columns, and return its seconds."""
        if self.take_wait_s:
            self.take_wait_s()  # drops the wait since the sample before
        total_s = self.time_steps(self.step, steps)
        row: JsonObject = {"steps": steps}
        if self.take_wait_s:
            row["input_s"] = self.take_wait_s() / steps
        if self.watch:
            counters = self.watch.read()  # one a sample: no gap
            row |= counter_changes(self._counters_before, counters, total_s)
            self._counters_before = counters
        self.step_s.append(total_s / steps)
        self.sample_rows.append(row)
        return total_s

    def steps_in_sample(self, step_s: float) -> int:
        """Return the number of steps that fill a sample; very many if no time passed."""
        return max(1, math.ceil(MARGIN * self.min_sample_s / max(step_s, 1e-9)))

    def increase_steps(self, steps: int, step_s: float) -> int:
        """Return the number of steps of the next sample after one that was too short."""
        return min(10 * steps, max(steps + 1, self.steps_in_sample(step_s)))

    def warm_up(self, total_s: float, start_s: float, budget_s: float) -> tuple[list[float], int]:
        """Return the times of steps until they are steady, and how many fill a sample."""
        times_s = [total_s]
        steps = 1
        while total_s < self.min_sample_s:
            steps = self.increase_steps(steps, total_s / steps)
            total_s = self.time_steps(self.step, steps)
            times_s.append(total_s / steps)
        if total_s >= budget_s:  # no time is left for two windows
            return times_s, steps
        block_step_s: list[float] = []  # of blocks that fill a sample
        end_s = start_s + budget_s
        block_s = 0.0  # of the last block, which the next one is expected to take, too
        while self.clock() + block_s < end_s:
            block_step_s.append(self.time_steps(self.step, steps) / steps)
            block_s = block_step_s[-1] * steps
            fills_window = len(block_step_s) % WINDOW == 0
            has_two_windows = len(block_step_s) >= 2 * WINDOW
            if fills_window and has_two_windows:
                window_before = block_step_s[-2 * WINDOW : -WINDOW]
                if medians_agree(window_before, block_step_s[-WINDOW:]):
                    break
        times_s += block_step_s
        # By the fastest of the last window, so that every sample is long enough.
        return times_s, self.steps_in_sample(min(times_s[-WINDOW:]))

    def make_samples(self, warmup_s: Sequence[float], first_sample: int = 0) -> Samples:
        """Return the samples from `first_sample` on."""
        step_s = self.step_s[first_sample:]
        sample_rows = self.sample_rows[first_sample:]
        half = len(step_s) // 2
        is_steady = half > 0 and medians_agree(step_s[:half], step_s[-half:])
        columns = {name: tuple(row[name] for row in sample_rows) for name in sample_rows[0]}
        input_s = columns.pop("input_s", ())
        return Samples(
            step_s=tuple(step_s),
            steps_per_sample=sample_rows[-1]["steps"],
            first_step_s=self.first_step_s,
            warmup_s=tuple(warmup_s),
            steady=is_steady,
            few_samples=len(step_s) < self.target_samples,
            input_s=input_s,
            columns=columns,
        )


def take_samples(
    step: Step, sync: Callable[[], object], *, budget_s: float = 3.0, **settings: Any
) -> Samples:
    """Return samples of `step` in seconds a step; `settings` are fields of `_StepSampler`."""
    sampler = _StepSampler(step, sync, **settings)
    start_s = sampler.clock()
    # The sampler has run the first step, which compiled: the second one tells how long a step is.
    total_s = sampler.take_sample(1)
    min_remaining_s = (sampler.min_samples - 1) * total_s
    sampler.report_start(sampler.first_step_s, max(budget_s - total_s, min_remaining_s))
    steps = 1
    warmup_s: list[float] = []
    if total_s < budget_s:  # else this step is a sample already, and there is no warm-up
        warmup_s, steps = sampler.warm_up(total_s, start_s, WARM_UP_SHARE * budget_s)
        sampler.restart()
    sorted_step_s = list(sampler.step_s)  # holds the step above, if there was no warm-up
    while True:
        total_s = sampler.take_sample(steps)
        remaining_s = start_s + budget_s - sampler.clock()
        # Steps are faster than in the warm-up if as many no longer fill a sample.
        was_not_warm = total_s < sampler.min_sample_s
        if was_not_warm and remaining_s > 0:
            warmup_s.append(sampler.step_s.pop())
            sampler.sample_rows.pop()
            steps = max(steps + 1, sampler.steps_in_sample(total_s / steps))
            continue
        insort(sorted_step_s, total_s / steps)
        next_exceeds_budget = total_s > remaining_s  # if it takes as long as this one
        if len(sorted_step_s) >= sampler.min_samples and next_exceeds_budget:
            break
        has_target = len(sorted_step_s) >= max(sampler.target_samples, sampler.min_samples)
        is_precise = has_target and median_half_width(sorted_step_s) <= MAX_HALF_WIDTH
        if is_precise:
            break
    return sampler.make_samples(warmup_s)


def take_training(step: Step, sync: Callable[[], object], total: int, **settings: Any) -> Samples:
    """Run `step` exactly `total` times (at least 10) and return the samples of that.

    Blocks grow until one fills a sample; the last may hold up to twice as many steps. Samples are
    those after warm-up, at most two thirds of them, at least `min_samples`.
    """
    sampler = _StepSampler(step, sync, **settings)
    sampler.report_start(sampler.first_step_s, sampler.first_step_s * (total - 1))
    remaining_steps = total - 1
    steps_per_block = 1
    first_full_block: int | None = None  # the first one that fills a sample
    while remaining_steps:
        # the last block takes all steps that are left, so that it is not a short one
        is_last_block = remaining_steps < 2 * steps_per_block
        steps = remaining_steps if is_last_block else steps_per_block
        block_s = sampler.take_sample(steps)
        remaining_steps -= steps
        if first_full_block is not None:
            continue  # from there on all blocks have as many steps
        if block_s >= sampler.min_sample_s:
            first_full_block = len(sampler.step_s) - 1
            min_steps = math.ceil(remaining_steps / MAX_BLOCKS)  # a long training has longer blocks
            steps_per_block = max(steps_per_block, min_steps)
        else:
            larger_steps = sampler.increase_steps(steps_per_block, sampler.step_s[-1])
            max_steps = remaining_steps // sampler.min_samples  # enough blocks must follow
            steps_per_block = max(1, min(larger_steps, max_steps))
    times_s = sampler.step_s
    growing_blocks = first_full_block or 0
    warmup_blocks = growing_blocks + _count_warm_up_blocks(times_s[growing_blocks:])
    max_warmup_blocks = max(0, len(times_s) - sampler.min_samples)
    first_sample = min(warmup_blocks, max_warmup_blocks)
    return sampler.make_samples(times_s[:first_sample], first_sample)


def _count_warm_up_blocks(times_s: Sequence[float]) -> int:
    """Count the warm-up blocks: up to the first two windows that agree, or a third of all."""
    max_blocks = int(len(times_s) * WARM_UP_SHARE)
    for end in range(2 * WINDOW, max_blocks + 1, WINDOW):  # of the second of two windows
        window_before = times_s[end - 2 * WINDOW : end - WINDOW]
        if medians_agree(window_before, times_s[end - WINDOW : end]):
            return end
    return max_blocks


def part_seconds(
    parts: Mapping[str, Step], sync: Callable[[], object], clock: Clock = time.perf_counter
) -> dict[str, float]:
    """Run the parts of a step, synchronised after each, and return the seconds of each."""
    seconds = {}
    for name, part in parts.items():
        start_s = clock()
        part()
        sync()
        seconds[name] = clock() - start_s
    return seconds


def medians_agree(earlier: Sequence[float], later: Sequence[float]) -> bool:
    """Return whether two groups of times have the same median, within 1 % or within their noise."""
    earlier_s = median(earlier)
    later_s = median(later)
    variance = 0.0  # of the difference of the means
    for times_s, middle_s in ((earlier, earlier_s), (later, later_s)):
        deviation_s = median([abs(time_s - middle_s) for time_s in times_s])
        sigma_s = SIGMA_PER_DEVIATION * deviation_s
        variance += sigma_s**2 / len(times_s)
    error_s = math.sqrt(math.pi / 2 * variance)  # medians of normal noise vary pi/2 times as much
    return abs(earlier_s - later_s) <= max(TOLERANCE * min(earlier_s, later_s), 2 * error_s)


def median_half_width(sorted_step_s: Sequence[float]) -> float:
    """Return half the 95 % interval of the median of sorted times, as a share of the median.

    Its ends have the ranks (n - 1.96 sqrt(n)) / 2 and 1 + (n + 1.96 sqrt(n)) / 2, counted from 1,
    rounded outwards (Le Boudec 2010, chapter 2; Hoefler and Belli 2015).
    """
    # The ends of the 95 % interval are the times of these ranks (Le Boudec 2010, chapter 2).
    n = len(sorted_step_s)
    low_rank = max(0, math.floor((n - NORMAL_95 * math.sqrt(n)) / 2) - 1)
    high_rank = min(n - 1, math.ceil((n + NORMAL_95 * math.sqrt(n)) / 2))
    half_width_s = (sorted_step_s[high_rank] - sorted_step_s[low_rank]) / 2
    return half_width_s / median(sorted_step_s)


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

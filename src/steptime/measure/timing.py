"""Timed samples of a step: the first step, warm-up until steady, then samples of at least 10 ms.

How a step is timed
    1. The first step is timed alone (`first_step_s`): it compiles and allocates. It is not part of
       the time budget.
    2. Warm-up: samples until the medians of two windows of 5 samples in a row agree, for at most a
       third of the budget. They agree if they differ by no more than 1 %, or by no more than twice
       the standard error of their difference (from the median absolute deviation). Every sample up
       to there is kept apart in `warmup_s`.
    3. Samples, each of as many steps as fill 10 ms, until there are 20 and the 95 % interval of
       their median is narrower than +-1 %, or the budget is spent. There are never fewer than 3.
    4. `steady` says whether the first and the second half of the samples agree, by the same rule.

Georges, Buytaert and Eeckhout (2007) end warm-up where the coefficient of variation of a window
falls below 1 or 2 %. On a shared machine it never does, so two windows are compared here.
"""

from __future__ import annotations

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

WARM_UP_RULE = (
    "two windows of 5 samples whose medians differ by at most 1 % or twice their standard error; "
    "at most a third of the budget"
)

Step = Callable[[], None]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Samples:
    """Times of a step in seconds; a sample is the mean over the steps in it.

    `columns` has one entry a sample under each name: `steps`, and what the watch saw.
    """

    step_s: tuple[float, ...]
    steps_per_sample: int
    first_step_s: float
    warmup_s: tuple[float, ...]
    steady: bool
    few_samples: bool
    columns: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


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
    timer: Callable[[Step, int], float] | None = None,
) -> Samples:
    """Give the samples of `step`, in seconds a step, as this module's page says.

    `sync` returns when the device has finished. `timer(step, n)`, if given, gives the seconds of
    `n` steps by a backend's own means (CUDA events); else `clock` is read around them.
    `few_samples` says that there are fewer than `wanted`. What `step` raises passes through.
    """
    seconds_of = timer or _timer(sync, clock)
    first_step_s = _timer(sync, clock)(step, 1)
    start_s = clock()

    warmup_s, steps = _fill(step, seconds_of, sample_s)
    if warmup_s[-1] * steps < WARM_UP_SHARE * budget_s:
        warmup_s += _warm_up(
            lambda n: seconds_of(step, n) / n, steps, clock, start_s + WARM_UP_SHARE * budget_s
        )
        steps = _steps_for(sample_s, min(warmup_s[-WINDOW:]))

    step_s: list[float] = []
    ordered: list[float] = []
    rows: list[dict[str, Any]] = []
    counted = watch.read() if watch else {}
    while True:
        total_s = seconds_of(step, steps)
        row: dict[str, Any] = {"steps": steps}
        if watch:
            before, counted = counted, watch.read()  # one reading a sample: the gap is nothing
            row |= changes(before, counted, total_s)
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

    half = len(step_s) // 2
    return Samples(
        step_s=tuple(step_s),
        steps_per_sample=steps,
        first_step_s=first_step_s,
        warmup_s=tuple(warmup_s),
        steady=half > 0 and agree(step_s[:half], step_s[-half:]),
        few_samples=len(step_s) < wanted,
        columns={name: tuple(row[name] for row in rows) for name in rows[0]},
    )


def agree(earlier: Sequence[float], later: Sequence[float]) -> bool:
    """Say whether two groups of times have the same median, within 1 % or within their noise."""
    middles = median(earlier), median(later)
    variance = sum(_sigma(group) ** 2 / len(group) for group in (earlier, later))
    error = math.sqrt(math.pi / 2 * variance)  # of a median, for normal noise
    return abs(middles[0] - middles[1]) <= max(TOLERANCE * min(middles), 2 * error)


def median_half_width(ordered: Sequence[float]) -> float:
    """Give half the 95 % interval of the median of sorted times, as a share of the median.

    Its ends have the ranks (n - 1.96 sqrt(n)) / 2 and 1 + (n + 1.96 sqrt(n)) / 2, counted from 1,
    rounded outwards (Le Boudec 2010, chapter 2; Hoefler and Belli 2015).
    """
    n = len(ordered)
    low = max(0, math.floor((n - 1.96 * math.sqrt(n)) / 2) - 1)
    high = min(n - 1, math.ceil((n + 1.96 * math.sqrt(n)) / 2))
    return (ordered[high] - ordered[low]) / 2 / median(ordered)


def _timer(sync: Callable[[], object], clock: Clock) -> Callable[[Step, int], float]:
    def seconds_of(step: Step, steps: int) -> float:
        sync()
        start_s = clock()
        for _ in range(steps):
            step()
        sync()
        return clock() - start_s

    return seconds_of


def _fill(
    step: Step, seconds_of: Callable[[Step, int], float], sample_s: float
) -> tuple[list[float], int]:
    """Give the times of ever more steps, and how many it takes to fill a sample."""
    times_s: list[float] = []
    steps = 1
    while True:
        total_s = seconds_of(step, steps)
        times_s.append(total_s / steps)
        if total_s >= sample_s:
            return times_s, steps
        steps = min(10 * steps, max(steps + 1, _steps_for(sample_s, total_s / steps)))


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
    """Give how many steps fill a sample; very many if the clock saw no time pass."""
    return max(1, math.ceil(MARGIN * sample_s / max(step_s, 1e-9)))


def _sigma(times: Sequence[float]) -> float:
    middle = median(times)
    return 1.4826 * median([abs(t - middle) for t in times])

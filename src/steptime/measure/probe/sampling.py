"""Timing many cases in turns within one budget, and the curves that come of it.

`sample` visits the cases in turns, so that a neighbour's burst on a shared machine hits every
curve a little and none wholly. The least time of a case is the ceiling, the median says how noisy
it was.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from steptime.records.row import group_by

Timer = Callable[[int], float]  # gives the seconds that so many calls took, device work included
SAMPLE_S = 0.005  # a sample lasts about this long: far above the clock's resolution
MIN_SAMPLES = 3
MAX_SAMPLES = 60
SMALLEST = 2  # cases of a group that are taken unasked: the pace of the others needs two
MAX_CALLS = 1 << 20  # of one sample
PATIENCE = 10  # samples of a case at whose pace the next would not fit
WARM_UP_CALLS = 2  # of a case that no sample has shown yet
MIN_PACE_SHARE = 1 / 4  # of the mean pace, where larger cases hardly took longer than smaller ones
SHARES = {"gemm": 0.5, "memory": 0.35, "dispatch": 0.1}  # of the budget, preparing included


@dataclass
class ProbeCase:
    """One thing to time. `work` is what a call does (FLOP, bytes, ops), `columns` say what it is.

    `prepare` makes its data, of about `data_bytes`, and gives its timer. A sample has `calls`.
    """

    group: str
    columns: Mapping[str, int | str]
    work: float
    data_bytes: float
    prepare: Callable[[], Timer]
    timer: Timer = field(init=False)
    calls: int = field(init=False, default=0)
    samples: list[float] = field(init=False, default_factory=list)  # seconds a call

    @property
    def sample_s(self) -> float:
        """Seconds that one more sample takes."""
        return self.calls * min(self.samples)

    def warm_up(self) -> None:
        """Run until a sample has as many calls as it needs."""
        self.timer(1)  # loads and compiles
        calls = 1
        while self.calls != calls:  # until so many calls fill a sample
            self.calls, calls = calls, _next_call_count(calls, self.timer(calls))

    def visit(self) -> None:
        """Take a sample."""
        self.samples.append(self.timer(self.calls) / self.calls)
        self.calls = _next_call_count(self.calls, self.sample_s)


def _next_call_count(calls: int, spent_s: float) -> int:
    """Return the same calls where they filled half a sample, else more, up to ten times as many."""
    if spent_s >= SAMPLE_S / 2:
        return calls
    needed = max(calls + 1, int(calls * min(10.0, SAMPLE_S / max(spent_s, 1e-9))))
    return min(MAX_CALLS, needed)


Curves = dict[str, dict[str, list[Any]]]  # by group: columns, one entry a case


class RefusedError(Exception):
    """A device that cannot do a case; the message says why."""


def sample(
    cases: Iterable[ProbeCase], budget_s: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[Curves, dict[str, list[str]]]:
    """Time the cases within the budget in seconds, and return their curves, and why some lack.

    The cases of a group come in ascending order of work. Each group has its share of the budget.
    Its `SMALLEST` cases, and those of no more work than the first, are sampled at least once,
    however slow the machine is. Any other is admitted if, at the pace of those before it, its
    warm-up and `MIN_SAMPLES` fit in what is left; the first that is not ends its group, which
    also bounds what a slow type costs.
    """
    start_s = clock()
    cases_by_group = group_by(cases, lambda case: case.group)
    left_s_by_group = _divide_budget(budget_s, list(cases_by_group))
    admitted_by_group: dict[str, list[ProbeCase]] = {}
    skipped: dict[str, list[str]] = {}
    for group, group_cases in cases_by_group.items():
        admitted, left_s, obstacle = _admit(group_cases, left_s_by_group[group], clock)
        admitted_by_group[group] = admitted
        left_s_by_group[group] = left_s
        if obstacle:
            skipped[group] = [obstacle]
    all_admitted = list(chain(*admitted_by_group.values()))
    while clock() - start_s < budget_s:
        case = _next_case(all_admitted, left_s_by_group)
        if case is None:  # every case has its samples, or no time is left for one more
            break
        visit_start_s = clock()
        case.visit()
        left_s_by_group[case.group] -= clock() - visit_start_s
    return {group: _curve(admitted) for group, admitted in admitted_by_group.items()}, skipped


def _divide_budget(budget_s: float, groups: Sequence[str]) -> dict[str, float]:
    """Return the seconds of each group of cases.

    A kind such as `gemm` has groups by type (`gemm.bf16`), which share its seconds equally.
    """
    kinds = [group.partition(".")[0] for group in groups]
    return {
        group: budget_s * SHARES[kind] / kinds.count(kind)
        for group, kind in zip(groups, kinds, strict=True)
    }


def _next_case(
    cases: Iterable[ProbeCase], left_s_by_group: Mapping[str, float]
) -> ProbeCase | None:
    """Return the case with the fewest samples of those whose group has time for one more."""
    candidates = []
    for case in cases:
        lacks_samples = len(case.samples) < MAX_SAMPLES
        if lacks_samples and case.sample_s <= left_s_by_group[case.group]:
            candidates.append(case)
    return min(candidates, key=lambda case: len(case.samples), default=None)


def _admit(
    cases: Iterable[ProbeCase], left_s: float, clock: Callable[[], float]
) -> tuple[list[ProbeCase], float, str]:
    """Prepare, warm up and sample once each case that fits; return them, what is left, and a lack.

    Before larger cases are given up the last gets more samples, if these are cheap: neighbours slow
    a few.
    """
    admitted: list[ProbeCase] = []
    end_s = clock() + left_s  # when the time of this group is over

    def remaining_s() -> float:
        return end_s - clock()

    prepare_s = 0.0  # of the case before
    for case in cases:
        name = " ".join(f"{key}={value}" for key, value in case.columns.items())
        # The smallest cases are timed however long they take: they tell the pace of the others.
        must_fit = len(admitted) >= SMALLEST and case.work > admitted[0].work
        missing_s = _find_missing_time(case, admitted, prepare_s, remaining_s) if must_fit else None
        if missing_s is not None:
            reason = f"{name} and larger: no time, it needs {missing_s:.2g} s"
            return admitted, remaining_s(), reason
        prepare_start_s = clock()
        try:
            case.timer = case.prepare()
            prepare_s = clock() - prepare_start_s
            case.warm_up()
        except RefusedError as refusal:  # larger ones would be refused, too
            return admitted, remaining_s(), f"{name} and larger: {refusal}"
        case.visit()
        admitted.append(case)
    return admitted, remaining_s(), ""


def _find_missing_time(
    case: ProbeCase,
    admitted: Sequence[ProbeCase],
    prepare_s: float,
    remaining_s: Callable[[], float],
) -> float | None:
    """Return the seconds that a case needs if the group has not as many left, None if it fits.

    The last admitted case is sampled on as long as a shorter sample might show that the case fits.
    """
    last = admitted[-1]
    while True:
        needed_s = _expected_s(case, admitted, prepare_s)
        left_s = remaining_s()
        if needed_s <= left_s:
            return None
        has_enough_samples = len(last.samples) >= PATIENCE
        is_expensive = last.sample_s >= left_s / PATIENCE  # no time for so many more
        if has_enough_samples or is_expensive:
            return needed_s
        last.visit()


def _expected_s(case: ProbeCase, admitted: Sequence[ProbeCase], prepare_s: float) -> float:
    """Return the seconds of a case's visits, and those that the cases before it still need.

    A call is expected to grow as it did between the last two cases, so that the cost of a call as
    such is not taken for work, but at least at a quarter of the last one's mean pace.
    """
    before_last, last = admitted[-2:]
    last_call_s = min(last.samples)
    # A part of a call's time does not grow with work: the pace is that between the last two cases.
    s_per_work = MIN_PACE_SHARE * last_call_s / last.work
    if last.work > before_last.work:
        added_s = last_call_s - min(before_last.samples)
        s_per_work = max(s_per_work, added_s / (last.work - before_last.work))
    call_s = last_call_s + (case.work - last.work) * s_per_work
    case_prepare_s = prepare_s * (case.data_bytes / last.data_bytes)
    promised_s = 0.0  # the samples that the admitted cases still lack
    for admitted_case in admitted:
        missing_samples = max(0, MIN_SAMPLES - len(admitted_case.samples))
        promised_s += admitted_case.sample_s * missing_samples
    return promised_s + case_prepare_s + call_s * (WARM_UP_CALLS + MIN_SAMPLES)


def _curve(visited: Iterable[ProbeCase]) -> dict[str, list[Any]]:
    rows = [
        {
            **case.columns,
            "work": case.work,
            "min_s": min(case.samples),
            "median_s": statistics.median(case.samples),
            "samples": len(case.samples),
        }
        for case in visited
    ]
    return {key: [row[key] for row in rows] for key in rows[0]} if rows else {}

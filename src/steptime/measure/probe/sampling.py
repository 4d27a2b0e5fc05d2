"""Timing many cases in turns within one budget, and the curves that come of it.

`sample` visits the cases in turns, so that a neighbour's burst on a shared machine hits every
curve a little and none wholly. The least time of a case is the ceiling, the median says how noisy
it was.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Timer = Callable[[int], float]  # gives the seconds that so many calls took, device work included
SAMPLE_S = 0.005  # a sample lasts about this long: far above the clock's resolution
MIN_SAMPLES = 3
MAX_SAMPLES = 60
SMALLEST = 2  # cases of a group that are taken unasked: the pace of the others needs two
PATIENCE = 10  # samples of a case at whose pace the next would not fit
SHARES = {"gemm": 0.5, "memory": 0.35, "dispatch": 0.1}  # of the budget, preparing included


@dataclass(frozen=True)
class Case:
    """One thing to time. `work` is what a call does (FLOP, bytes, ops), `columns` say what it is.

    `prepare` makes its data, of about `data_bytes`, and gives its timer; `max_calls` bounds the
    calls of one sample.
    """

    group: str
    columns: Mapping[str, int | str]
    work: float
    data_bytes: int
    prepare: Callable[[], Timer]
    max_calls: int = 1 << 20


@dataclass
class _Visited:
    case: Case
    timer: Timer
    calls: int
    samples: list[float] = field(default_factory=list)  # seconds a call

    @property
    def sample_s(self) -> float:
        """Seconds that one more sample takes."""
        return self.calls * min(self.samples)


Curves = dict[str, dict[str, list[Any]]]  # by group: columns, one entry a case


class RefusedError(Exception):
    """A device that cannot do a case; the message says why."""


def sample(
    cases: Iterable[Case], budget_s: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[Curves, dict[str, list[str]]]:
    """Time the cases within the budget in seconds, and return their curves, and why some lack.

    The cases of a group come in ascending order of work. Each group has its share of the budget.
    Its `SMALLEST` cases, and those of no more work than the first, are sampled at least once,
    however slow the machine is. Any other is admitted if, at the pace of those before it, its
    warm-up and `MIN_SAMPLES` fit in what is left; the first that is not ends its group, which
    also bounds what a slow type costs.
    """
    started = clock()
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    kinds = [name.partition(".")[0] for name in groups]
    left_s = {
        name: budget_s * SHARES[kind] / kinds.count(kind)
        for name, kind in zip(groups, kinds, strict=True)
    }
    visited: list[_Visited] = []
    skipped: dict[str, list[str]] = {}
    for name, members in groups.items():
        admitted, refusals = _admit(members, left_s, clock)
        visited += admitted
        if refusals:
            skipped[name] = refusals
    while clock() - started < budget_s:
        wanted = (v for v in visited if len(v.samples) < MAX_SAMPLES)
        ready = [v for v in wanted if v.sample_s <= left_s[v.case.group]]
        if not ready:
            break
        _visit(min(ready, key=lambda v: len(v.samples)), left_s, clock)
    return {name: _curve(name, visited) for name in groups}, skipped


def _visit(visited: _Visited, left_s: dict[str, float], clock: Callable[[], float]) -> None:
    started = clock()
    visited.samples.append(visited.timer(visited.calls) / visited.calls)
    visited.calls = _enough(visited.calls, visited.sample_s, visited.case.max_calls)
    left_s[visited.case.group] -= clock() - started


def _admit(
    cases: Iterable[Case], left_s: dict[str, float], clock: Callable[[], float]
) -> tuple[list[_Visited], list[str]]:
    """Prepare, warm up and sample once each case that fits; say why the others do not."""
    admitted: list[_Visited] = []
    refusals: list[str] = []
    prepare_s = 0.0
    for case in cases:
        if len(admitted) >= SMALLEST and case.work > admitted[0].case.work:
            expected_s = _expected_s(case, admitted, prepare_s)
            while expected_s > left_s[case.group] and _may_be_a_hiccup(admitted[-1], left_s):
                _visit(admitted[-1], left_s, clock)
                expected_s = _expected_s(case, admitted, prepare_s)
            if expected_s > left_s[case.group]:
                refusals.append(f"{_name(case)} and larger: no time, it needs {expected_s:.2g} s")
                break
        started = clock()
        try:
            timer = case.prepare()
            prepare_s = clock() - started
            admitted.append(_Visited(case, timer, _warm_calls(timer, case.max_calls)))
        except RefusedError as refusal:
            refusals.append(f"{_name(case)} and larger: {refusal}")
            break
        finally:
            left_s[case.group] -= clock() - started
        _visit(admitted[-1], left_s, clock)
    return admitted, refusals


def _expected_s(case: Case, admitted: Sequence[_Visited], prepare_s: float) -> float:
    """Return the seconds of a case's visits, and those that the cases before it still need.

    A call is expected to grow as it did between the last two cases, so that the cost of a call as
    such is not taken for work, but at least at a quarter of the last one's mean pace.
    """
    before, last = admitted[-2:]
    work, call_s = last.case.work, min(last.samples)
    pace = call_s / work / 4
    if work > before.case.work:
        pace = max(pace, (call_s - min(before.samples)) / (work - before.case.work))
    promised_s = sum(v.sample_s * max(0, MIN_SAMPLES - len(v.samples)) for v in admitted)
    grown_s = call_s + (case.work - work) * pace
    larger = case.data_bytes / last.case.data_bytes
    return promised_s + prepare_s * larger + grown_s * (2 + MIN_SAMPLES)


def _may_be_a_hiccup(last: _Visited, left_s: Mapping[str, float]) -> bool:
    """Whether more samples, before larger cases are given up, are cheap: neighbours slow a few."""
    return len(last.samples) < PATIENCE and last.sample_s < left_s[last.case.group] / PATIENCE


def _warm_calls(timer: Timer, most: int) -> int:
    """Warm up, and return the calls that make a sample of about `SAMPLE_S`, at most `most`."""
    timer(1)
    calls, enough = 0, 1
    while calls != enough:
        calls = enough
        enough = _enough(calls, timer(calls), most)
    return calls


def _enough(calls: int, spent_s: float, most: int) -> int:
    """Return the same calls where they filled half a sample, else more, up to ten times as many."""
    if spent_s >= SAMPLE_S / 2:
        return calls
    return min(most, max(calls + 1, int(calls * min(10.0, SAMPLE_S / max(spent_s, 1e-9)))))


def _name(case: Case) -> str:
    return " ".join(f"{key}={value}" for key, value in case.columns.items())


def _curve(group: str, visited: Iterable[_Visited]) -> dict[str, list[Any]]:
    rows = [
        {
            **one.case.columns,
            "work": one.case.work,
            "min_s": min(one.samples),
            "median_s": statistics.median(one.samples),
            "samples": len(one.samples),
        }
        for one in visited
        if one.case.group == group
    ]
    return {key: [row[key] for row in rows] for key in rows[0]} if rows else {}

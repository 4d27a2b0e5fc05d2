"""The step of a plan under each stack that may be meant, if the user named none."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.hardware.software import Software
from steptime.planning.caches import Caches
from steptime.planning.problem import PlanProblem
from steptime.planning.step import PlanTime, time_plan
from steptime.prediction.calibrated.interval import mix_intervals
from steptime.prediction.kernel import Interval

DEFAULT_YEARS = 1.0  # the weight of a stack that was never the newest one


class StackStep(NamedTuple):
    """The step of a plan under a stack, with its 80 % interval."""

    stack: str
    step_s: float
    low_s: float
    high_s: float


class StackSteps(NamedTuple):
    """The steps of a plan under all stacks that may be meant.

    Attributes:
        assumed: the stack that is assumed.
        nearest: the newest other stack; None if it has no such plan.
        alternatives: the steps under the other stacks.
    """

    assumed: str
    nearest: str | None
    alternatives: tuple[StackStep, ...]


def widen_over_stacks(
    problem: PlanProblem, plan_time: PlanTime
) -> tuple[PlanTime, StackSteps | None]:
    """Return a plan's step with an interval that covers every stack released for the device.

    The stacks are returned beside it; None if the user named one. The weight of a stack is the
    number of years in which it was the newest one since the device was released.
    """
    software = problem.software
    if software is None:  # the user named the stack
        return plan_time, None
    # The predicted stack comes first: `mix_intervals` always keeps its value in the interval.
    times = {software.stack: plan_time}
    for stack in software.years_by_stack:
        if stack == software.stack:
            continue
        try:
            times[stack] = time_plan(problem_under_stack(problem, stack), plan_time.step)
        except InputError:  # the stack has no such plan
            continue
    if len(times) > 1:
        weighted_intervals = []
        for stack, time in times.items():
            # A stack that was the newest for longer is more likely to be the one that is meant.
            weight = software.years_by_stack.get(stack, DEFAULT_YEARS)
            weighted_intervals.append((weight, Interval(time.step_s, time.low_s, time.high_s)))
        low_s, high_s = mix_intervals(weighted_intervals)
        plan_time = replace(plan_time, low_s=low_s, high_s=high_s)
    steps = [
        StackStep(stack, time.step_s, time.low_s, time.high_s) for stack, time in times.items()
    ]
    return plan_time, _compare_stacks(software, steps)


def _compare_stacks(software: Software, steps: list[StackStep]) -> StackSteps:
    alternatives = tuple(step for step in steps if step.stack != software.stack)
    has_nearest = any(step.stack == software.newest_alternative for step in steps)
    return StackSteps(
        software.stack, software.newest_alternative if has_nearest else None, alternatives
    )


def problem_under_stack(problem: PlanProblem, stack: str) -> PlanProblem:
    """Return the problem of the same devices under another stack."""
    method = problem.method.with_options({"stack": stack})
    rank = replace(problem.rank, method=method, caches=Caches())
    return PlanProblem(rank, problem.cluster, problem.host_link)

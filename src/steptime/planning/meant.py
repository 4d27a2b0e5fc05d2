"""What a step takes under each stack that could be meant, where nobody names one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from steptime.core.errors import InputError
from steptime.core.units import seconds
from steptime.hardware.software import Software
from steptime.planning.planner import Planner
from steptime.planning.step import PlanTime, plan_time
from steptime.prediction.calibrated.interval import mixed
from steptime.prediction.kernel import Interval

Assumed = dict[str, Any]


def meant(planner: Planner, result: PlanTime) -> tuple[PlanTime, Assumed | None]:
    """Return a plan's step between what it takes under all stacks that could be meant.

    Beside it these, as JSON values; None where a stack is named. Each weighs as many years as it
    was the newest since such a device came.
    """
    software = planner.software
    if software is None:
        return result, None
    times = {software.stack: result}
    for name in (name for name in software.years if name != software.stack):
        try:
            times[name] = plan_time(under(planner, name), result.asked)
        except InputError:  # it has no such plan
            continue
    parts = [
        (software.years.get(name, 1.0), Interval(one.step_s, one.low_s, one.high_s))
        for name, one in times.items()
    ]
    if len(parts) > 1:
        low, high = mixed(parts)
        result = replace(result, low_s=low, high_s=high)
    step_times = {
        name: {"step_s": time.step_s, "low_s": time.low_s, "high_s": time.high_s}
        for name, time in times.items()
    }
    return result, assumed(software, step_times)


def assumed(software: Software, every: Mapping[str, Mapping[str, float | None]]) -> Assumed:
    """Return the stack that is assumed, the newest other one, and the times of all others."""
    nearest = software.other if software.other in every else None
    others = [{"stack": name, **one} for name, one in every.items() if name != software.stack]
    return {"stack": software.stack, "nearest": nearest, "others": others}


def under(planner: Planner, stack: str) -> Planner:
    """Return the planner of the same devices under another stack."""
    method = planner.method.under({"stack": stack})
    of, how = (planner.shape, planner.cluster), (planner.dtype, planner.gradients)
    result = Planner(
        *of, method, *how, use=planner.use, tuning=planner.tuning, optimizer=planner.optimizer
    )
    result.host = planner.host
    return result


def in_words(told: Mapping[str, Any] | None, key: str = "step_s") -> str:
    """Return which stack is assumed, and what the newest other one takes."""
    if told is None:
        return ""
    other = next((one for one in told["others"] if one["stack"] == told["nearest"]), None)
    near = f", with --stack {other['stack']} {seconds(other[key])}" if other else ""
    return f"assumed {told['stack']}{near}"

"""The plans on each number of devices of each type, and why there may be none."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import exp, inf, log, sqrt
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.hardware.prices import Offer
from steptime.planning.answer import find_offer
from steptime.planning.estimate import PlanEstimate
from steptime.planning.faults import check_step, option_of
from steptime.planning.plan_space import PlanSpace
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem
from steptime.planning.ranks.shape import Shape
from steptime.planning.request import Request, make_plan
from steptime.planning.search import (
    MEMORY,
    LimitExcess,
    Search,
    SearchLimit,
    find_best_plans,
    with_partial_recompute,
)

LIMIT_WORDS = {
    MEMORY: ("do not fit", "GB"),
    "budget_per_hour": ("cost more than --budget-per-hour", "per hour"),
    "days": ("take more than --days", "days"),
    "watts": ("draw more than --watts", "W"),
}
"""By limit: what the plans beyond it do, and its unit."""
DAY_S = 86400
GB = 1e9
LARGER_CLUSTERS = (2, 4, 8)  # times the devices, of which the first that has room is named


class DeviceGroup(NamedTuple):
    """The plans on one number of devices of one type.

    Args:
        request: the request, at the site of these devices.
        device_count: the number of devices.
        problem: prices plans on them.
        offer: the price of the device; None where unknown.
        limits: the limits of the search.
        result: the plans that none beats by closed forms, and counts of the others.
        space: what was searched, in words.
    """

    request: Request
    device_count: int
    problem: PlanProblem
    offer: Offer | None
    limits: Sequence[SearchLimit]
    result: Search
    space: str

    @property
    def key(self) -> tuple[str, int]:
        """The device's name and the number of devices."""
        return self.problem.device.name, self.device_count


def search_groups(request: Request, shape: Shape) -> Iterator[DeviceGroup]:
    """Search the plans on each number of devices of each type."""
    global_batch = request.global_batch or 1
    fixed_fields = dict(request.split)
    if request.microbatch is not None:
        fixed_fields["microbatch"] = request.microbatch
    is_recompute_fixed = not fixed_fields.keys().isdisjoint({"recompute", "recompute_layers"})
    compares_devices = bool(request.other_sites)
    sites = (request.site, *request.other_sites)
    for site in sites:
        # Each site's request names all sites: devices that are compared run the same stack.
        site_request = replace(request, site=site, other_sites=sites if compares_devices else ())
        problem: PlanProblem | None = None
        for device_count in sorted(set(request.device_counts)):
            # The problem before has priced the layers, which do not depend on the device count.
            problem = site_request.make_problem(shape, device_count, problem)
            offer = find_offer(problem, request.prices)
            tokens_of_step = global_batch * shape.text_length(request.tuning)
            limits = _search_limits(request, device_count, tokens_of_step, offer)
            space = PlanSpace(problem, device_count, global_batch, site.per_node, fixed_fields)
            # Two plans whose times differ by less than this ratio cannot be told apart.
            tie_ratio = error_ratio(problem)
            if compares_devices:
                # Plans on different devices share no error, so that their ratio is uncertain by the
                # intervals of both: the square.
                step_bounds = problem.rank.step_bounds
                tie_ratio = max(tie_ratio, step_bounds.high / step_bounds.low) ** 2
            result = find_best_plans(problem, space.families(), global_batch, limits, tie_ratio)
            if not is_recompute_fixed:
                result = with_partial_recompute(problem, result, limits)
            yield DeviceGroup(
                site_request, device_count, problem, offer, limits, result, space.describe()
            )


def _search_limits(
    request: Request, device_count: int, tokens_of_step: int, offer: Offer | None
) -> list[SearchLimit]:
    """Return the limits of a request; a budget does not hold devices without a price."""
    training_steps = (request.tokens or 0.0) / tokens_of_step
    cost_per_hour = 0.0 if offer is None else offer.price * device_count
    # An unknown power is beyond any limit; without a price there is no limit on the cost.
    amount_of_plan: dict[str, Callable[[PlanEstimate], float]] = {
        "budget_per_hour": lambda _: cost_per_hour,
        "days": lambda plan: plan.step_s * training_steps / DAY_S,
        "watts": lambda plan: inf if plan.energy_j is None else plan.energy_j / plan.step_s,
    }
    maximum_by_name = dict(request.limits)
    if offer is None:
        maximum_by_name.pop("budget_per_hour", None)
    return [
        SearchLimit(name, amount_of_plan[name], maximum)
        for name, maximum in maximum_by_name.items()
        if maximum is not None
    ]


def count_refused(groups: Sequence[DeviceGroup]) -> Counter[str]:
    """Return the number of plans that each limit refuses."""
    return sum((group.result.refused_counts for group in groups), Counter[str]())


def check_any_plan(request: Request, groups: Sequence[DeviceGroup]) -> None:
    """Raise `InputError` where no group of devices has a plan, with the nearest that has one."""
    if any(group.result.front for group in groups):
        return
    shape = request.shape
    considered_count = sum(group.result.considered_count for group in groups)
    if not considered_count:
        microbatch = request.microbatch or 1
        global_batch = request.global_batch or 1
        # Raises with the fault of the fields that the user chose, if they alone leave no plan.
        check_step(shape, PlanStep(make_plan(request.split), microbatch, global_batch))
        options = [
            option_of(name) if value is True else f"{option_of(name)} {value}"
            for name, value in request.split.items()
        ]
        words = f"plan: no split of these devices divides {shape.label} and its batch"
        raise InputError(f"{words} with {' '.join(options)}" if options else words)
    refused = count_refused(groups)
    does_no_plan_fit = refused[MEMORY] == considered_count
    larger = _describe_larger_cluster(request, shape) if does_no_plan_fit else ""
    raise InputError(_describe_refusal(groups, considered_count, refused) + larger)


def _describe_refusal(
    groups: Sequence[DeviceGroup], considered_count: int, refused: Counter[str]
) -> str:
    """Describe why there is no plan: the plans that each limit refuses, and the nearest plan."""
    # `nearest`: the plan of a group that is least beyond a limit.
    nearest_plans = [(group, group.result.nearest) for group in groups if group.result.nearest]
    # Only an unknown power cannot be compared with its limit.
    if not nearest_plans:
        return "plan: the power of these devices is not known"

    def distance(group_and_excess: tuple[DeviceGroup, LimitExcess]) -> tuple[bool, float]:
        # A plan that fits but breaks a limit is nearer than any that does not fit.
        _group, excess = group_and_excess
        return excess.limit_name == MEMORY, excess.ratio

    group, excess = min(nearest_plans, key=distance)
    devices = f"{group.device_count} {group.problem.device.name}"
    if excess.limit_name == MEMORY:
        lacking_gb = (excess.value - excess.maximum) / GB
        lack = f"the nearest needs {lacking_gb:,.1f} GB more ({devices})"
        return f"plan: none of {considered_count:,} splits fits; {lack}"
    refusals = []
    for limit_name, plan_count in refused.items():
        if plan_count:
            reason, _unit = LIMIT_WORDS[limit_name]
            refusals.append(f"{plan_count:,} {reason}")
    _reason, unit = LIMIT_WORDS[excess.limit_name]
    amount = f"{excess.value:,.4g} {unit}, not {excess.maximum:,.4g} ({devices})"
    summary = f"plan: none of {considered_count:,} splits is within the limits"
    return f"{summary}: {', '.join(refusals)}; the nearest has {amount}"


def _describe_larger_cluster(request: Request, shape: Shape) -> str:
    """Describe the least of 2, 4 and 8 times as many devices that have room for a plan."""
    for factor in LARGER_CLUSTERS:
        device_count = factor * max(request.device_counts)
        larger = replace(request, device_counts=(device_count,))
        try:
            if any(group.result.front for group in search_groups(larger, shape)):
                return f"; nearest: --device-count {device_count}"
        except InputError as error:  # no link joins so many devices
            return f"; {device_count} devices: {error}"
    return ""


def error_ratio(problem: PlanProblem) -> float:
    """Return the ratio beyond which two plans of a device differ by more than predictions do.

    What they share cancels; sqrt(2) of what is each one's own is left: with 0.08 a ratio of 1.12.
    """
    bounds = problem.rank.plan_bounds
    log_error = log(bounds.high)  # of the high end over the predicted time
    # `shared`: the share of an error that both plans have in common, and that cancels. The
    # remainders are independent, so their squares add.
    independent_log_error = log_error * sqrt(1 - bounds.shared**2)
    log_error_of_difference = sqrt(2) * independent_log_error
    return exp(log_error_of_difference)

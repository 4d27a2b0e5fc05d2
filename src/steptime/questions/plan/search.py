"""The best plan of what a request leaves open, over types and numbers of devices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec

from steptime.core.errors import InputError
from steptime.core.units import format_percent, format_seconds
from steptime.hardware.prices import NO_PRICE
from steptime.planning.estimate import PlanEstimate
from steptime.planning.faults import check_step
from steptime.planning.request import Request
from steptime.planning.search import MEMORY, pareto_front
from steptime.planning.step import PlanTime, time_plan
from steptime.questions.plan.answer import PlanAnswer
from steptime.questions.plan.device_groups import (
    DeviceGroup,
    check_any_plan,
    count_refused,
    error_ratio,
    search_groups,
)
from steptime.questions.plan.price import price_plan
from steptime.questions.plan.search_answer import (
    BestPlan,
    PlanRow,
    PlanSearchAnswer,
    RefusedPlans,
)
from steptime.questions.plan.wording import describe_bottleneck, describe_split

SPLIT = (
    "tensor",
    "context",
    "pipeline",
    "virtual",
    "data",
    "expert",
    "zero",
    "recompute",
    "recompute_layers",
    "schedule",
    "shard",
    "offload",
    "sequence",
)
MAX_SIMULATED = 12  # plans of a search, beside the fastest of each number of devices
DAY_HOURS = 24
HOUR_S = 3600
Item = TypeVar("Item")


class Amounts(NamedTuple):
    """The amounts of a plan of which less is better; None where unknown."""

    step_s: float
    cost_per_step: float | None
    energy_j: float | None
    needed_bytes: float
    device_count: int


@dataclass(frozen=True)
class PricedPlan:
    """A plan of a group of devices, simulated.

    Args:
        group: the group of devices.
        step: its step.
        answer: its answer under the assumed stack.
        is_within: whether it is within the limits.
    """

    group: DeviceGroup
    step: PlanTime
    answer: PlanAnswer
    is_within: bool

    @property
    def amounts(self) -> Amounts:
        """The amounts of the plan as simulated."""
        answer = self.answer
        return Amounts(
            step_s=answer.step_s,
            cost_per_step=answer.cost_per_step,
            energy_j=answer.energy_j,
            needed_bytes=answer.memory.needed_bytes,
            device_count=answer.device_count,
        )

    @property
    def memory_share(self) -> float:
        """The share of the usable memory that its fullest device needs; 0 where unknown."""
        memory = self.answer.memory
        return memory.needed_bytes / memory.usable_bytes if memory.usable_bytes else 0.0


class PlanKey(NamedTuple):
    """The index of a group of devices, and a plan on it as closed forms price it."""

    group_index: int
    estimate: PlanEstimate


def search_plans(request: Request) -> PlanSearchAnswer:
    """Return the best plan and those that no plan beats in all of its `Amounts`.

    Raises:
        InputError: for a request without a batch, and where no plan is left.
    """
    if request.global_batch is None:
        raise InputError("--device-count: a search needs --global-batch, the sequences of a step")
    if request.limits.get("days") is not None and request.tokens is None:
        raise InputError("--days needs --tokens, those of the training")
    groups = list(search_groups(request, request.shape))
    check_any_plan(request, groups)
    fastest_keys = [
        PlanKey(group_index, group.result.front[0])  # the front begins with the fastest
        for group_index, group in enumerate(groups)
        if group.result.front
    ]
    simulated_keys = dict.fromkeys([*fastest_keys, *_choose_simulated(groups)])
    plans = {key: _simulate_plan(groups[key.group_index], key.estimate) for key in simulated_keys}
    # A simulation may take longer than the closed form that found the plan within the limits.
    front = _unbeaten_plans([plan for plan in plans.values() if plan.is_within])
    if not front:
        raise InputError("plan: what fits by closed forms is beyond the limits once simulated")
    fastest = [plans[key] for key in fastest_keys if plans[key].is_within]
    return _search_answer(request, groups, front, fastest)


def _search_answer(
    request: Request,
    groups: Sequence[DeviceGroup],
    front: Sequence[PricedPlan],
    fastest: Sequence[PricedPlan],
) -> PlanSearchAnswer:
    best = _price_best(front[0], request, groups)  # the front begins with its fastest plan
    limits_s = _as_fast_limits(groups, best)
    as_fast_count = 0
    for group in groups:
        limit_s = limits_s[group.key]
        as_fast_count += sum(step_s <= limit_s for step_s in group.result.steps_s)
    best_plans = _find_best(front, [plan.amounts for plan in front])
    considered_count = sum(group.result.considered_count for group in groups)
    refused = count_refused(groups)
    is_single_device = not request.other_sites
    # Equal for all groups.
    memory_error_share = groups[0].problem.rank.memory_error_share
    return PlanSearchAnswer(
        headline=(
            *best.headline,
            *_describe_room(front, memory_error_share),
        ),
        considered_count=considered_count,
        fitting_count=considered_count - refused[MEMORY],
        refused=tuple(RefusedPlans(name=name, plan_count=refused[name]) for name in refused),
        as_fast_count=as_fast_count,
        # The groups of a site end with its largest number of devices.
        space=groups[-1].space,
        bound_by=describe_bottleneck(best),
        assumed={
            name: value
            for name, value in best.assumed.items()
            # Several devices share one stack and optimizer; links and types are their own.
            if is_single_device or name in ("stack", "optimizer")
        },
        best=best,
        best_by=tuple(
            BestPlan(name=amount_name, row=_plan_row(plan, best, limits_s))
            for amount_name, plan in best_plans.items()
        ),
        by_device_count=_with_efficiency([_plan_row(plan, best, limits_s) for plan in fastest]),
        rows=tuple(_plan_row(plan, best, limits_s) for plan in front),
        notes=best.notes,
    )


def _describe_room(front: Sequence[PricedPlan], error_share: float) -> tuple[str, ...]:
    """Describe how full the fastest plan is, if so, and the fastest one that leaves a share."""
    fastest = front[0]
    safe_share = 1 - error_share
    if fastest.memory_share <= safe_share:
        return ()
    fills = f"fills {format_percent(fastest.memory_share)} of the memory"
    safe_plans = [plan.answer for plan in front if plan.memory_share <= safe_share]
    if not safe_plans:
        return (f"{fills}, and no plan leaves {format_percent(error_share)}",)
    fastest_safe = safe_plans[0]
    split = describe_split(fastest_safe.plan.to_dict(), fastest_safe.microbatch)
    step = format_seconds(fastest_safe.step_s)
    return fills, f"{split} leaves {format_percent(error_share)} and takes {step}"


def _choose_simulated(groups: Sequence[DeviceGroup]) -> list[PlanKey]:
    """Return the plans that none beats by closed forms, the best in each amount first."""
    keys: list[PlanKey] = []
    amounts_by_key: dict[PlanKey, Amounts] = {}
    for group_index, group in enumerate(groups):
        for estimate in group.result.front:
            key = PlanKey(group_index, estimate)
            keys.append(key)
            amounts_by_key[key] = _estimated_amounts(group, estimate)
    names = _comparable_amounts(list(amounts_by_key.values()))
    front = pareto_front(keys, lambda key: _select_amounts(amounts_by_key[key], names))
    best_by_amount = _find_best(front, [amounts_by_key[key] for key in front])
    return [*best_by_amount.values(), *front[:MAX_SIMULATED]]


def _estimated_amounts(group: DeviceGroup, estimate: PlanEstimate) -> Amounts:
    cost_per_step = None
    if group.offer is not None:
        cost_per_step = group.offer.price * group.device_count * estimate.step_s / HOUR_S
    return Amounts(
        step_s=estimate.step_s,
        cost_per_step=cost_per_step,
        energy_j=estimate.energy_j,
        needed_bytes=estimate.needed_bytes,
        device_count=group.device_count,
    )


def _comparable_amounts(amounts_of_plans: Sequence[Amounts]) -> list[str]:
    """Return the names of the amounts that are known of all plans.

    An amount that is unknown of one plan, such as a cost without a price, compares none.
    """
    return [
        name
        for name in Amounts._fields
        if all(getattr(amounts, name) is not None for amounts in amounts_of_plans)
    ]


def _select_amounts(amounts: Amounts, names: Sequence[str]) -> tuple[float, ...]:
    return tuple(float(getattr(amounts, name)) for name in names)


def _unbeaten_plans(plans: Sequence[PricedPlan]) -> list[PricedPlan]:
    """Return the plans that none beats in the amounts that are known of all, fastest first."""
    names = _comparable_amounts([plan.amounts for plan in plans])
    return pareto_front(plans, lambda plan: _select_amounts(plan.amounts, names))


def _find_best(plans: Sequence[Item], amounts_of_plans: Sequence[Amounts]) -> dict[str, Item]:
    """Return, for each amount, the plan with its smallest value; none where no value is known."""
    best_by_amount: dict[str, Item] = {}
    for name in Amounts._fields:
        plan_by_amount: dict[float, Item] = {}
        for plan, amounts in zip(plans, amounts_of_plans, strict=True):
            amount = getattr(amounts, name)
            if amount is not None:
                plan_by_amount.setdefault(amount, plan)  # of equal plans the first
        if plan_by_amount:
            best_by_amount[name] = plan_by_amount[min(plan_by_amount)]
    return best_by_amount


def _simulate_plan(group: DeviceGroup, estimate: PlanEstimate) -> PricedPlan:
    plan_time = time_plan(group.problem, check_step(group.problem.shape, estimate.step))
    answer = price_plan(group.request, group.problem, plan_time, group.offer)
    # The limits hold for the simulated time and energy; the memory is that of the closed form.
    simulated = PlanEstimate(
        plan_time.step_s, estimate.needed_bytes, answer.energy_j, plan_time.step
    )
    is_within_limits = all(limit.is_met(simulated) for limit in group.limits)
    return PricedPlan(group, plan_time, answer, is_within_limits)


def _price_best(plan: PricedPlan, request: Request, groups: Sequence[DeviceGroup]) -> PlanAnswer:
    """Return the answer of the best plan, its interval over all stacks that could be meant."""
    group = plan.group
    best = price_plan(group.request, group.problem, plan.step, group.offer, any_stack=True)
    has_budget = request.limits.get("budget_per_hour") is not None
    if not has_budget:
        return best
    unpriced_devices = {group.problem.device.name for group in groups if group.offer is None}
    unpriced_notes = tuple(
        f"{device}: {NO_PRICE}, so no budget holds it" for device in sorted(unpriced_devices)
    )
    return msgspec.structs.replace(best, notes=best.notes + unpriced_notes)


def _as_fast_limits(
    groups: Sequence[DeviceGroup], best: PlanAnswer
) -> dict[tuple[str, int], float]:
    """Return, by group, the seconds up to which a plan is as fast as the best within the error.

    Plans of one type of device share the error of that device; plans of different types are as
    fast if their intervals overlap.
    """
    limits_s: dict[tuple[str, int], float] = {}
    for group in groups:
        problem = group.problem
        if problem.device.name == best.device:
            limits_s[group.key] = best.step_s * error_ratio(problem)
        else:
            # The intervals overlap if the low end of the plan is below the high end of the best.
            low_end_over_step = problem.rank.step_bounds.low
            limits_s[group.key] = best.any_stack_high_s / low_end_over_step
    return limits_s


def _plan_row(
    plan: PricedPlan, best: PlanAnswer, limits_s: dict[tuple[str, int], float]
) -> PlanRow:
    """Return the row of a plan; other stacks move its interval as they move that of the best."""
    answer = plan.answer
    training = answer.training
    split = {name: getattr(answer.plan, name) for name in SPLIT}
    return PlanRow(
        device=answer.device,
        **split,
        microbatch=answer.microbatch,
        step_s=answer.step_s,
        cost_per_step=answer.cost_per_step,
        energy_j=answer.energy_j,
        needed_bytes=answer.memory.needed_bytes,
        device_count=answer.device_count,
        low_s=answer.low_s,
        high_s=answer.high_s,
        # Other stacks are priced for the best plan alone: they widen the others in proportion.
        any_stack_low_s=answer.low_s * best.any_stack_low_s / best.low_s,
        any_stack_high_s=answer.high_s * best.any_stack_high_s / best.high_s,
        examples_per_s_per_device=answer.examples_per_s_per_device,
        tokens_per_s_per_device=answer.tokens_per_s_per_device,
        bound_by=describe_bottleneck(answer),
        cost_total=answer.cost_total,
        training_days=None if training is None else training.train_h / DAY_HOURS,
        is_as_fast=answer.step_s <= limits_s[answer.device, answer.device_count],
        efficiency=None,
    )


def _with_efficiency(rows: Sequence[PlanRow]) -> tuple[PlanRow, ...]:
    """Return rows with their throughput per device over that of the smallest number of devices."""
    # Rows grow in the number of devices: the first of a device is its reference.
    reference_by_device: dict[str, float] = {}
    rows_with_efficiency = []
    for row in rows:
        device_seconds = row.step_s * row.device_count
        reference = reference_by_device.setdefault(row.device, device_seconds)
        efficiency = reference / device_seconds
        rows_with_efficiency.append(msgspec.structs.replace(row, efficiency=efficiency))
    return tuple(rows_with_efficiency)

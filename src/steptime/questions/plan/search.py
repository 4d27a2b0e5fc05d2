"""The best plan of what a request leaves open, over types and numbers of devices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

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

AMOUNTS = ("step_s", "cost_per_step", "energy_j", "needed_bytes", "device_count")
"""The amounts of a plan of which less is better."""
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
Amounts = tuple[float | None, ...]
"""The values of `AMOUNTS` of a plan, None where unknown."""
Item = TypeVar("Item")


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
        """The values of `AMOUNTS`, None where unknown."""
        answer = self.answer
        return (  # in the order of `AMOUNTS`
            answer.step_s,
            answer.cost_per_step,
            answer.energy_j,
            answer.memory.needed_bytes,
            answer.device_count,
        )

    @property
    def memory_share(self) -> float:
        """The share of the usable memory that its fullest device needs; 0 where unknown."""
        memory = self.answer.memory
        return memory.needed_bytes / memory.usable_bytes if memory.usable_bytes else 0.0


PlanKey = tuple[int, PlanEstimate]
"""The place of a group of devices, and a plan of it priced by closed forms."""


def search_plans(request: Request) -> PlanSearchAnswer:
    """Return the best plan and those that no plan beats in all of `AMOUNTS`.

    Raises:
        InputError: for a request without a batch, and where no plan is left.
    """
    if request.global_batch is None:
        raise InputError("--device-count: a search needs --global-batch, the sequences of a step")
    if request.limits.get("days") is not None and request.tokens is None:
        raise InputError("--days needs --tokens, those of the training")
    groups = list(search_groups(request, request.shape))
    check_any_plan(request, groups)
    # A key is the index of a group and a plan of its front, which begins with the fastest.
    fastest_keys = [
        (group_index, group.result.front[0])
        for group_index, group in enumerate(groups)
        if group.result.front
    ]
    keys = dict.fromkeys([*fastest_keys, *_choose_simulated(groups)])
    plans = {}
    for group_index, plan in keys:
        # A simulation may take longer than the closed form that found the plan within the limits.
        plans[group_index, plan] = _simulate_plan(groups[group_index], plan)
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
    # By identity: the fastest plans are among those of the front, or apart from it.
    rows = {id(plan): _plan_row(plan, best, limits_s) for plan in (*front, *fastest)}
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
        as_fast_count=sum(
            step_s <= limits_s[group.key] for group in groups for step_s in group.result.steps_s
        ),
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
            BestPlan(name=name, row=rows[id(plan)])
            for name, plan in _find_best(front, [plan.amounts for plan in front]).items()
        ),
        by_device_count=_with_efficiency([rows[id(plan)] for plan in fastest]),
        rows=tuple(rows[id(plan)] for plan in front),
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
        for plan in group.result.front:
            keys.append((group_index, plan))
            amounts_by_key[group_index, plan] = _quick_amounts(group, plan)
    # An amount that is unknown of any plan (such as a cost without a price) compares no plans.
    amount_indices = _indices_of_complete_amounts(list(amounts_by_key.values()))
    front = pareto_front(keys, lambda key: _select_amounts(amounts_by_key[key], amount_indices))
    best_by_amount = _find_best(front, [amounts_by_key[key] for key in front])
    return [*best_by_amount.values(), *front[:MAX_SIMULATED]]


def _quick_amounts(group: DeviceGroup, plan: PlanEstimate) -> Amounts:
    cost_per_step = None
    if group.offer is not None:
        cost_per_step = group.offer.price * group.device_count * plan.step_s / HOUR_S
    return plan.step_s, cost_per_step, plan.energy_j, plan.needed_bytes, group.device_count


def _indices_of_complete_amounts(amounts_of_plans: Sequence[Amounts]) -> list[int]:
    """Return the places in `AMOUNTS` of those that are known of all plans."""
    return [
        amount_index
        for amount_index in range(len(AMOUNTS))
        if all(amounts[amount_index] is not None for amounts in amounts_of_plans)
    ]


def _select_amounts(amounts: Amounts, amount_indices: Sequence[int]) -> tuple[float, ...]:
    return tuple(float(amounts[amount_index] or 0) for amount_index in amount_indices)


def _unbeaten_plans(plans: Sequence[PricedPlan]) -> list[PricedPlan]:
    """Return the plans that none beats in the amounts that are known of all, fastest first."""
    amount_indices = _indices_of_complete_amounts([plan.amounts for plan in plans])
    return pareto_front(plans, lambda plan: _select_amounts(plan.amounts, amount_indices))


def _find_best(plans: Sequence[Item], amounts_of_plans: Sequence[Amounts]) -> dict[str, Item]:
    """Return the plan with the smallest value of each amount that is known of a plan."""
    best_by_amount: dict[str, Item] = {}
    for amount_index, amount_name in enumerate(AMOUNTS):
        candidates: list[tuple[float, int]] = []
        for plan_index, amounts in enumerate(amounts_of_plans):
            amount = amounts[amount_index]
            if amount is not None:
                candidates.append((amount, plan_index))
        if candidates:
            _smallest_amount, plan_index = min(candidates)
            best_by_amount[amount_name] = plans[plan_index]
    return best_by_amount


def _simulate_plan(group: DeviceGroup, plan: PlanEstimate) -> PricedPlan:
    step = time_plan(group.problem, check_step(group.problem.shape, plan.step))
    answer = price_plan(group.request, group.problem, step, group.offer)
    simulated = PlanEstimate(step.step_s, plan.needed_bytes, answer.energy_j, step.step)
    is_within_limits = all(limit.is_met(simulated) for limit in group.limits)
    return PricedPlan(group, step, answer, is_within_limits)


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
        is_device_of_best = problem.device.name == best.device
        # Plans of one type of device share its error; of two types, their intervals may overlap:
        # `step_bounds.low` is the low end of a step over its predicted time.
        if is_device_of_best:
            limits_s[group.key] = best.step_s * error_ratio(problem)
        else:
            limits_s[group.key] = best.any_stack_high_s / problem.rank.step_bounds.low
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

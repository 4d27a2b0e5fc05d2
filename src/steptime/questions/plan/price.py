"""One plan priced: from a planner and its step to the answer."""

from dataclasses import replace
from math import inf
from typing import TypedDict

import msgspec

from steptime.core.workload import Plan
from steptime.hardware import catalog
from steptime.hardware.device import Level
from steptime.hardware.prices import Offer
from steptime.planning.answer import KWH_J, fits, mfu, offer_of, plan_notes, timed
from steptime.planning.faults import Asked
from steptime.planning.meant import Assumed, meant
from steptime.planning.memory import Memory
from steptime.planning.nearest import find_nearest
from steptime.planning.planner import Planner
from steptime.planning.request import Request
from steptime.planning.step import PlanTime
from steptime.planning.trace import write_trace
from steptime.prediction import conformal
from steptime.questions.plan.answer import (
    ExposedCollective,
    JoinedLevel,
    MemoryParts,
    NearestPlan,
    PeakShare,
    PlanAnswer,
    PlanMemory,
    PlanParts,
    StackTime,
    StageMemory,
    TrainingRun,
    split_fields,
)
from steptime.questions.plan.assumed import assumed_settings
from steptime.questions.plan.wording import describe_headline

ENERGY_SCOPE = "devices alone: nodes add 20 to 40 %"
HOUR_S = 3600
MILLION = 1e6


class PlanCosts(TypedDict):
    """The costs of a plan by the fields of `PlanAnswer`."""

    cost_per_step: float | None
    cost_per_hour: float | None
    cost_per_million_tokens: float | None
    cost_total: float | None
    currency: str | None
    price_offer: str | None
    price_date: str | None


def answer_plan(request: Request) -> PlanAnswer:
    """Return the answer to one plan; write its pipeline's run to `request.trace`.

    Raises:
        InputError: for a plan that cannot be, with the nearest that can.
    """
    planner, step = timed(request)
    if request.trace is not None:
        label = f"{planner.shape.label} on {planner.device.name}"
        write_trace(step, label, request.trace)
    return price_plan(request, planner, step, offer_of(planner, request.prices), any_stack=True)


def price_plan(
    request: Request,
    planner: Planner,
    step: PlanTime,
    offer: Offer | None,
    any_stack: bool = False,
) -> PlanAnswer:
    """Return a plan's step as an answer.

    Args:
        request: the request that the plan answers.
        planner: what priced the step.
        step: the step.
        offer: the price of the device; None where unknown.
        any_stack: widen the interval to all stacks that could be meant, where none was named.
    """
    wide, stacks = meant(planner, step) if any_stack else (step, None)
    shape, split = planner.shape, step.asked
    device_count = split.plan.device_count
    tokens_of_step = split.global_batch * shape.text_length(planner.tuning)
    examples_per_s = split.global_batch / step.step_s
    tokens_per_s = tokens_of_step / step.step_s if shape.unit == "tokens" else None
    energy_j = step.energy_j
    does_fit = fits(planner, step)
    answer = PlanAnswer(
        headline=(),
        model=shape.label,
        device=planner.device.name,
        device_count=device_count,
        levels=tuple(_level_row(level) for level in planner.cluster.ladder),
        parameters=planner.parameters,
        plan=split_fields(split.plan, split.order),
        microbatch=split.microbatch,
        global_batch=split.global_batch,
        length=shape.length if shape.unit == "tokens" else None,
        unit=shape.unit,
        dtype=planner.dtype,
        tuning=planner.tuning.text or None,
        method=planner.method.name,
        stack=planner.method.settings.stack,
        assumed=assumed_settings(request, planner),
        other_stacks=_other_stacks(stacks),
        nearest_stack=None if stacks is None else stacks["nearest"],
        step_s=step.step_s,
        low_s=step.low_s,
        high_s=step.high_s,
        any_stack_low_s=wide.low_s,
        any_stack_high_s=wide.high_s,
        bubble_share=step.bubble,
        examples_per_s=examples_per_s,
        examples_per_s_per_device=examples_per_s / device_count,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=None if tokens_per_s is None else tokens_per_s / device_count,
        parts=_step_parts(step),
        fits=does_fit,
        usable_bytes=planner.device.usable_bytes,
        memory=_plan_memory(planner, step),
        exposed_communication=_exposed_communication(planner, step),
        mfu=tuple(PeakShare(name=key, share=share) for key, share in mfu(planner, step).items()),
        **_costs(offer, step, tokens_of_step, request.tokens),
        energy_j=energy_j,
        **_power_fields(planner, energy_j and energy_j / step.step_s / device_count),
        energy_scope=None if energy_j is None else ENERGY_SCOPE,
        training=_training_run(step, wide, tokens_of_step, request.tokens),
        notes=tuple(plan_notes(planner, step)),
        nearest_fitting=None if does_fit else _nearest_plan(planner, split),
    )
    return msgspec.structs.replace(answer, headline=describe_headline(answer))


def request_of(request: Request, answer: PlanAnswer) -> Request:
    """Return the request of the very plan of an answer, such as the best plan of a search."""
    names = vars(Plan()).keys() - {"microbatches"}
    split = {name: getattr(answer.plan, name) for name in names}
    sites = (request.site, *request.others)
    site = next(site for site in sites if catalog.device(site.device).name == answer.device)
    return replace(
        request,
        site=site,
        others=(),
        split=split,
        device_counts=(),
        global_batch=answer.global_batch,
        microbatch=answer.microbatch,
        length=answer.length,
        order=answer.plan.order,
        stack=answer.stack,
    )


def _level_row(level: Level) -> JoinedLevel:
    return JoinedLevel(size=level.size, link=level.link.name, links=level.links)


def _other_stacks(stacks: Assumed | None) -> tuple[StackTime, ...]:
    return () if stacks is None else tuple(StackTime(**row) for row in stacks["others"])


def _step_parts(step: PlanTime) -> PlanParts:
    return PlanParts(
        compute_s=step.compute_s,
        recompute_s=step.recompute_s,
        host_s=step.host_s,
        bubble_s=step.bubble_s,
        update_s=step.update_s,
        exposed_communication_s=step.exposed_s,
        outside_layers_s=step.rest_s,
    )


def _memory_sizes(memory: Memory) -> dict[str, float]:
    return {f"{name}_bytes": size_bytes for name, size_bytes in memory._asdict().items()}


class _PowerFields(TypedDict):
    """The power of a device with its interval, by the fields of an answer."""

    device_power_w: float | None
    device_power_low_w: float | None
    device_power_high_w: float | None


def _power_fields(planner: Planner, device_w: float | None) -> _PowerFields:
    power = None if device_w is None else planner.interval_of(conformal.POWER, device_w)
    return {
        "device_power_w": device_w,
        "device_power_low_w": None if power is None else power.low,
        "device_power_high_w": None if power is None else power.high,
    }


def _plan_memory(planner: Planner, step: PlanTime) -> PlanMemory:
    fullest = step.memory[step.fullest]
    usable_bytes = planner.room_bytes if planner.room_bytes < inf else None
    needed = conformal.find_ends(conformal.MEMORY, planner.device).of(fullest.total)
    stage_count = step.asked.plan.pipeline
    stages = tuple(
        StageMemory(
            stage=stage,
            layers=sum(step.layers[stage::stage_count]),
            needed_bytes=memory.total,
            **_memory_sizes(memory),
        )
        for stage, memory in enumerate(step.memory)
    )
    return PlanMemory(
        needed_bytes=fullest.total,
        needed_low_bytes=needed.low or 0.0,
        needed_high_bytes=needed.high or 0.0,
        usable_bytes=usable_bytes,
        over_bytes=max(0.0, fullest.total - usable_bytes) if usable_bytes else None,
        host_bytes=step.host_bytes,
        fullest_stage=step.fullest,
        by_part=MemoryParts(**_memory_sizes(fullest)),
        by_stage=stages,
    )


def _exposed_communication(planner: Planner, step: PlanTime) -> tuple[ExposedCollective, ...]:
    times = [planner.interval_of(conformal.COLLECTIVES, wait.total_s) for wait in step.exposures]
    return tuple(
        ExposedCollective(
            collective=wait.collective,
            group=wait.group,
            link=wait.link,
            size_bytes=wait.bytes,
            communication_s=wait.total_s,
            communication_low_s=time.low,
            communication_high_s=time.high,
            exposed_communication_s=wait.exposed_s,
        )
        for wait, time in zip(step.exposures, times, strict=True)
    )


def _costs(
    offer: Offer | None, step: PlanTime, tokens_of_step: int, tokens: float | None
) -> PlanCosts:
    """Return the costs of a plan, None where no price is known."""
    if offer is None:
        return {
            "cost_per_step": None,
            "cost_per_hour": None,
            "cost_per_million_tokens": None,
            "cost_total": None,
            "currency": None,
            "price_offer": None,
            "price_date": None,
        }
    cost_per_hour = offer.price * step.asked.plan.device_count
    cost_per_step = cost_per_hour * step.step_s / HOUR_S
    hours = None if tokens is None else tokens / tokens_of_step * step.step_s / HOUR_S
    return {
        "cost_per_step": cost_per_step,
        "cost_per_hour": cost_per_hour,
        "cost_per_million_tokens": cost_per_step / tokens_of_step * MILLION,
        "cost_total": None if hours is None else hours * cost_per_hour,
        "currency": offer.currency,
        "price_offer": offer.name,
        "price_date": offer.date,
    }


def _training_run(
    step: PlanTime, wide: PlanTime, tokens_of_step: int, tokens: float | None
) -> TrainingRun | None:
    if tokens is None:
        return None
    steps = tokens / tokens_of_step
    train_h = steps * step.step_s / HOUR_S
    return TrainingRun(
        tokens=tokens,
        steps=steps,
        train_h=train_h,
        low_h=steps * step.low_s / HOUR_S,
        high_h=steps * step.high_s / HOUR_S,
        any_stack_low_h=steps * wide.low_s / HOUR_S,
        any_stack_high_h=steps * wide.high_s / HOUR_S,
        device_hours=train_h * step.asked.plan.device_count,
        energy_kwh=None if step.energy_j is None else step.energy_j * steps / KWH_J,
    )


def _nearest_plan(planner: Planner, request: Asked) -> NearestPlan | None:
    nearest = find_nearest(planner, request)
    if nearest is None:
        return None
    return NearestPlan(
        change=nearest.change,
        plan=split_fields(nearest.plan_step.plan, nearest.plan_step.order),
        microbatch=nearest.plan_step.microbatch,
        step_s=nearest.step_s,
        needed_bytes=nearest.needed_bytes,
    )

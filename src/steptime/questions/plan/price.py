"""One plan priced: from a problem and a step to the answer."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import TypedDict

import msgspec

from steptime.core.workload import Plan
from steptime.hardware import catalog
from steptime.hardware.device import Level
from steptime.hardware.prices import Offer
from steptime.planning.answer import KWH_J, compute_mfu, find_offer, fits, plan_notes, time_request
from steptime.planning.assumed_stack import StackSteps, widen_over_stacks
from steptime.planning.memory import Memory
from steptime.planning.nearest import find_nearest
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem
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
    problem, plan_time = time_request(request)
    if request.trace is not None:
        label = f"{problem.shape.label} on {problem.device.name}"
        write_trace(plan_time, label, request.trace)
    offer = find_offer(problem, request.prices)
    return price_plan(request, problem, plan_time, offer, any_stack=True)


def price_plan(
    request: Request,
    problem: PlanProblem,
    plan_time: PlanTime,
    offer: Offer | None,
    any_stack: bool = False,
) -> PlanAnswer:
    """Return a plan's step as an answer.

    Args:
        request: the request that the plan answers.
        problem: the network and its links.
        plan_time: the step.
        offer: the price of the device; None where unknown.
        any_stack: widen the interval to all stacks that could be meant, where none was named.
    """
    # The same step with an interval over all stacks that could be meant, and its time under each.
    any_stack_time = plan_time
    stacks: StackSteps | None = None
    if any_stack:
        any_stack_time, stacks = widen_over_stacks(problem, plan_time)
    shape = problem.shape
    is_language_model = shape.unit == "tokens"
    step = plan_time.step  # the plan with its microbatch and global batch
    device_count = step.plan.device_count
    tokens_of_step = step.global_batch * shape.text_length(problem.rank.tuning)
    examples_per_s = step.global_batch / plan_time.step_s
    tokens_per_s = tokens_of_step / plan_time.step_s if is_language_model else None
    energy_j = plan_time.energy_j
    device_w = None if energy_j is None else energy_j / plan_time.step_s / device_count
    does_fit = fits(problem, plan_time)
    assumed = assumed_settings(request, problem)
    answer = PlanAnswer(
        headline=(),  # described below, from the whole answer
        model=shape.label,
        device=problem.device.name,
        device_count=device_count,
        levels=tuple(_level_row(level) for level in problem.cluster.ladder),
        parameters=problem.rank.parameters,
        plan=split_fields(step.plan, step.order),
        microbatch=step.microbatch,
        global_batch=step.global_batch,
        length=shape.length if is_language_model else None,
        unit=shape.unit,
        dtype=problem.rank.dtype,
        tuning=problem.rank.tuning.text or None,
        method=problem.method.name,
        stack=problem.method.settings.stack,
        assumed=assumed,
        other_stacks=_other_stacks(stacks),
        nearest_stack=None if stacks is None else stacks.nearest,
        step_s=plan_time.step_s,
        low_s=plan_time.low_s,
        high_s=plan_time.high_s,
        any_stack_low_s=any_stack_time.low_s,
        any_stack_high_s=any_stack_time.high_s,
        bubble_share=plan_time.bubble_share,
        examples_per_s=examples_per_s,
        examples_per_s_per_device=examples_per_s / device_count,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=None if tokens_per_s is None else tokens_per_s / device_count,
        parts=_step_parts(plan_time),
        fits=does_fit,
        usable_bytes=problem.device.datasheet.usable_bytes,
        memory=_plan_memory(problem, plan_time),
        exposed_communication=_exposed_communication(problem, plan_time),
        mfu=_peak_shares(problem, plan_time),
        **_costs(offer, plan_time, tokens_of_step, request.tokens),
        energy_j=energy_j,
        **_power_fields(problem, device_w),
        energy_scope=None if energy_j is None else ENERGY_SCOPE,
        training=_training_run(plan_time, any_stack_time, tokens_of_step, request.tokens),
        notes=(*plan_notes(problem, plan_time), *_note_assumed_software(problem, assumed)),
        nearest_fitting=None if does_fit else _nearest_plan(problem, step),
    )
    return msgspec.structs.replace(answer, headline=describe_headline(answer))


def _note_assumed_software(problem: PlanProblem, assumed: Mapping[str, str]) -> Iterator[str]:
    """Yield the remark on a fine-tuning on one device whose stack is assumed, as of `predict`."""
    is_single_device = not problem.cluster.levels
    is_stack_assumed = "stack" in assumed and problem.method.name == "calibrated"
    if problem.rank.tuning.has_frozen_weights and is_single_device and is_stack_assumed:
        yield conformal.describe_assumed_software(assumed["stack"])


def request_of(request: Request, answer: PlanAnswer) -> Request:
    """Return the request of the very plan of an answer, such as the best plan of a search."""
    # The number of microbatches follows from the batches.
    field_names = vars(Plan()).keys() - {"microbatches"}
    split = {name: getattr(answer.plan, name) for name in field_names}
    # A request that compares devices has a site for each.
    sites = (request.site, *request.other_sites)
    site = next(site for site in sites if catalog.device(site.device).name == answer.device)
    return replace(
        request,
        site=site,
        other_sites=(),
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


def _other_stacks(stacks: StackSteps | None) -> tuple[StackTime, ...]:
    if stacks is None:
        return ()
    return tuple(StackTime(**step._asdict()) for step in stacks.alternatives)


def _peak_shares(problem: PlanProblem, plan_time: PlanTime) -> tuple[PeakShare, ...]:
    shares = compute_mfu(problem, plan_time)
    return tuple(PeakShare(name=convention, share=share) for convention, share in shares.items())


def _step_parts(plan_time: PlanTime) -> PlanParts:
    return PlanParts(
        compute_s=plan_time.compute_s,
        recompute_s=plan_time.recompute_s,
        host_s=plan_time.host_s,
        bubble_s=plan_time.bubble_s,
        update_s=plan_time.update_s,
        exposed_communication_s=plan_time.exposed_s,
        outside_layers_s=plan_time.outside_layers_s,
    )


def _memory_sizes(memory: Memory) -> dict[str, float]:
    return {f"{name}_bytes": size_bytes for name, size_bytes in memory._asdict().items()}


class _PowerFields(TypedDict):
    """The power of a device with its interval, by the fields of an answer."""

    device_power_w: float | None
    device_power_low_w: float | None
    device_power_high_w: float | None


def _power_fields(problem: PlanProblem, device_w: float | None) -> _PowerFields:
    power = None if device_w is None else problem.rank.widen(conformal.POWER, device_w)
    return {
        "device_power_w": device_w,
        "device_power_low_w": None if power is None else power.low,
        "device_power_high_w": None if power is None else power.high,
    }


def _plan_memory(problem: PlanProblem, plan_time: PlanTime) -> PlanMemory:
    """Return the memory of a plan: of its fullest device, and of every stage."""
    fullest = plan_time.peak_memory
    room_bytes = problem.rank.room_bytes
    usable_bytes = room_bytes if room_bytes < inf else None
    lacking_bytes = None
    if usable_bytes:
        lacking_bytes = max(0.0, fullest.total - usable_bytes)
    needed = conformal.find_ends(conformal.MEMORY, problem.device).interval_around(fullest.total)
    return PlanMemory(
        needed_bytes=fullest.total,
        needed_low_bytes=needed.low or 0.0,
        needed_high_bytes=needed.high or 0.0,
        usable_bytes=usable_bytes,
        over_bytes=lacking_bytes,
        host_bytes=plan_time.host_bytes,
        fullest_stage=plan_time.fullest_device,
        by_part=MemoryParts(**_memory_sizes(fullest)),
        by_stage=_stage_memories(plan_time),
    )


def _stage_memories(plan_time: PlanTime) -> tuple[StageMemory, ...]:
    """Return the memory and the layers of each device of the pipeline."""
    device_count = plan_time.step.plan.pipeline
    stages = []
    for device, memory in enumerate(plan_time.memory):
        # Interleaved: device d of p holds the virtual stages d, d + p, d + 2 p, ...
        layer_counts = plan_time.layers[device::device_count]
        stages.append(
            StageMemory(
                stage=device,
                layers=sum(layer_counts),
                needed_bytes=memory.total,
                **_memory_sizes(memory),
            )
        )
    return tuple(stages)


def _exposed_communication(
    problem: PlanProblem, plan_time: PlanTime
) -> tuple[ExposedCollective, ...]:
    """Return the collectives of a plan with intervals of their seconds."""
    rows = []
    for collective in plan_time.collectives:
        interval = problem.rank.widen_by_spread(
            conformal.COLLECTIVES, collective.total_s, collective.spread
        )
        rows.append(
            ExposedCollective(
                collective=collective.collective,
                group=collective.group,
                link=collective.link,
                size_bytes=collective.size_bytes,
                communication_s=collective.total_s,
                communication_low_s=interval.low,
                communication_high_s=interval.high,
                exposed_communication_s=collective.exposed_s,
            )
        )
    return tuple(rows)


def _costs(
    offer: Offer | None, plan_time: PlanTime, tokens_of_step: int, training_tokens: float | None
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
    cost_per_hour = offer.price * plan_time.step.plan.device_count
    cost_per_step = cost_per_hour * plan_time.step_s / HOUR_S
    cost_total = None
    if training_tokens is not None:
        training_h = training_tokens / tokens_of_step * plan_time.step_s / HOUR_S
        cost_total = training_h * cost_per_hour
    return {
        "cost_per_step": cost_per_step,
        "cost_per_hour": cost_per_hour,
        "cost_per_million_tokens": cost_per_step / tokens_of_step * MILLION,
        "cost_total": cost_total,
        "currency": offer.currency,
        "price_offer": offer.name,
        "price_date": offer.date,
    }


def _training_run(
    plan_time: PlanTime,
    any_stack_time: PlanTime,
    tokens_of_step: int,
    training_tokens: float | None,
) -> TrainingRun | None:
    if training_tokens is None:
        return None
    step_count = training_tokens / tokens_of_step
    train_h = step_count * plan_time.step_s / HOUR_S
    return TrainingRun(
        tokens=training_tokens,
        steps=step_count,
        train_h=train_h,
        low_h=step_count * plan_time.low_s / HOUR_S,
        high_h=step_count * plan_time.high_s / HOUR_S,
        any_stack_low_h=step_count * any_stack_time.low_s / HOUR_S,
        any_stack_high_h=step_count * any_stack_time.high_s / HOUR_S,
        device_hours=train_h * plan_time.step.plan.device_count,
        energy_kwh=None if plan_time.energy_j is None else plan_time.energy_j * step_count / KWH_J,
    )


def _nearest_plan(problem: PlanProblem, plan_step: PlanStep) -> NearestPlan | None:
    nearest = find_nearest(problem, plan_step)
    if nearest is None:
        return None
    return NearestPlan(
        change=nearest.change,
        plan=split_fields(nearest.plan_step.plan, nearest.plan_step.order),
        microbatch=nearest.plan_step.microbatch,
        step_s=nearest.step_s,
        needed_bytes=nearest.needed_bytes,
    )

"""The fastest plan that fits, one or two changes from a plan that does not."""

from collections.abc import Iterator, Mapping
from math import inf
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.core.workload import RECOMPUTES, Plan
from steptime.planning.estimate import estimate_plan
from steptime.planning.faults import check_step, describe_change, find_fault
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem

Change = Mapping[str, object]


class FittingPlan(NamedTuple):
    """A changed plan that fits: the changed options in words, the plan, and its step."""

    change: str
    plan_step: PlanStep
    step_s: float
    needed_bytes: float


def find_nearest(problem: PlanProblem, step: PlanStep) -> FittingPlan | None:
    """Return the fastest changed plan that fits, with one change before two; None without any.

    The changes are recomputation (the first layers of each stage, or all), smaller microbatches,
    states, gradients and weights shared by replicas, offloading where the host is joined, and the
    same devices with more tensor, pipeline or context parallelism.
    """
    single_changes = list(_changes(problem, step))
    double_changes: list[tuple[Change, PlanStep]] = [
        ({**first, **second}, changed)
        for first, first_step in single_changes
        for second, changed in _changes(problem, first_step)
    ]
    for changes in (single_changes, double_changes):
        fitting = list(_price_changes(problem, step, changes))
        if fitting:
            return min(fitting, key=lambda plan: plan.step_s)
    return None


def _price_changes(
    problem: PlanProblem, step: PlanStep, changes: list[tuple[Change, PlanStep]]
) -> Iterator[FittingPlan]:
    for change, changed in changes:
        try:
            price = estimate_plan(problem, check_step(problem.shape, changed))
        except InputError:
            continue
        if price.step_s < inf:
            words = describe_change(step, change)
            yield FittingPlan(words, price.step, price.step_s, price.needed_bytes)


def _changes(problem: PlanProblem, step: PlanStep) -> Iterator[tuple[Change, PlanStep]]:
    """Yield changes of one option or two by which a plan needs less memory, and the plans."""
    changes = [
        *_recompute_changes(problem, step.plan),
        *_microbatch_changes(step),
        *_sharing_changes(step.plan),
        *_offload_changes(problem, step.plan),
        *_wider_changes(step.plan),
    ]
    for change in changes:
        changed_step = step.change(change)
        if find_fault(problem.shape, changed_step) is None:
            yield change, changed_step


def _recompute_changes(problem: PlanProblem, plan: Plan) -> Iterator[Change]:
    for name in RECOMPUTES[RECOMPUTES.index(plan.recompute) + 1 :]:
        yield {"recompute": name, "recompute_layers": 0}
    layers = len(problem.shape.kinds) // (plan.pipeline * plan.virtual)
    if plan.recompute == "none":
        for count in (2**k for k in range(layers.bit_length()) if 2**k < layers):
            yield {"recompute": "full", "recompute_layers": count}
    elif plan.recompute_layers:
        yield {"recompute_layers": 0}


def _microbatch_changes(step: PlanStep) -> Iterator[Change]:
    for power in range(1, step.microbatch.bit_length()):
        size = step.microbatch >> power
        if step.microbatch % size == 0:
            yield {"microbatch": size}


def _sharing_changes(plan: Plan) -> Iterator[Change]:
    if plan.replicas > 1:
        for zero in range(plan.zero + 1, 4):
            yield {"zero": zero}
    if plan.zero and plan.shards < plan.replicas:
        yield {"shard": 2 * plan.shard}
        yield {"shard": 0}
    if plan.tensor > 1 and not plan.sequence:
        yield {"sequence": True}


def _offload_changes(problem: PlanProblem, plan: Plan) -> Iterator[Change]:
    if problem.host_link is not None and plan.offload != "both":
        next_steps = {"none": ("optimizer", "activations")}
        for offload in next_steps.get(plan.offload, ("both",)):
            yield {"offload": offload}


def _wider_changes(plan: Plan) -> Iterator[Change]:
    if plan.data % 2 == 0:
        yield {"tensor": 2 * plan.tensor, "data": plan.data // 2}
        yield {"pipeline": 2 * plan.pipeline, "data": plan.data // 2}
        yield {"context": 2 * plan.context, "data": plan.data // 2}

"""The fastest plan that fits, one or two changes from a plan that does not."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.core.workload import RECOMPUTES, Plan
from steptime.planning.estimate import estimate_plan
from steptime.planning.faults import check_step, describe_change, find_fault
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem

Change = Mapping[str, object]


class ChangedPlan(NamedTuple):
    """A changed plan: the changed options by name, and the plan with them."""

    change: Change
    step: PlanStep


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
    once_changed = list(_changes(problem, step))
    twice_changed = [
        ChangedPlan({**first.change, **second.change}, second.step)
        for first in once_changed
        for second in _changes(problem, first.step)
    ]
    for changed_plans in (once_changed, twice_changed):
        fitting_plans = list(_price_changes(problem, step, changed_plans))
        if fitting_plans:
            return min(fitting_plans, key=lambda plan: plan.step_s)
    return None


def _price_changes(
    problem: PlanProblem, step: PlanStep, changed_plans: Sequence[ChangedPlan]
) -> Iterator[FittingPlan]:
    """Yield the changed plans that are valid and fit into memory, priced."""
    for changed in changed_plans:
        try:
            price = estimate_plan(problem, check_step(problem.shape, changed.step))
        except InputError:  # not a valid plan
            continue
        # A plan that does not fit has infinite seconds.
        fits = price.step_s < inf
        if fits:
            yield FittingPlan(
                change=describe_change(step, changed.change),
                plan_step=price.step,
                step_s=price.step_s,
                needed_bytes=price.needed_bytes,
            )


def _changes(problem: PlanProblem, step: PlanStep) -> Iterator[ChangedPlan]:
    """Yield the plans in which one option or two are changed to need less memory."""
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
            yield ChangedPlan(change, changed_step)


def _recompute_changes(problem: PlanProblem, plan: Plan) -> Iterator[Change]:
    """Yield changes that recompute more layers: the first ones of each stage, or all."""
    # `RECOMPUTES` are in ascending order. 0 recomputed layers stand for all layers.
    stronger_recomputes = RECOMPUTES[RECOMPUTES.index(plan.recompute) + 1 :]
    for name in stronger_recomputes:
        yield {"recompute": name, "recompute_layers": 0}
    stage_layers = len(problem.shape.kinds) // (plan.pipeline * plan.virtual)
    if plan.recompute == "none":  # only the first layers of each stage: 1, 2, 4, ...
        recomputed_layers = 1
        while recomputed_layers < stage_layers:
            yield {"recompute": "full", "recompute_layers": recomputed_layers}
            recomputed_layers *= 2
    elif plan.recompute_layers:  # all layers instead of the first ones
        yield {"recompute_layers": 0}  # 0: all


def _microbatch_changes(step: PlanStep) -> Iterator[Change]:
    for power in range(1, step.microbatch.bit_length()):
        size = step.microbatch >> power
        if step.microbatch % size == 0:
            yield {"microbatch": size}


def _sharing_changes(plan: Plan) -> Iterator[Change]:
    """Yield changes that share states, gradients or weights among more ranks."""
    if plan.replicas > 1:
        for zero in range(plan.zero + 1, 4):
            yield {"zero": zero}
    if plan.zero and plan.shards < plan.replicas:
        # Over twice as many replicas, or over all of them (0).
        yield {"shard": 2 * plan.shard}
        yield {"shard": 0}
    if plan.tensor > 1 and not plan.sequence:
        yield {"sequence": True}


def _offload_changes(problem: PlanProblem, plan: Plan) -> Iterator[Change]:
    """Yield changes that move states or activations to the host's memory."""
    if problem.host_link is None:  # without a link there is nothing to offload over
        return
    if plan.offload == "none":
        yield {"offload": "optimizer"}
        yield {"offload": "activations"}
    elif plan.offload != "both":
        yield {"offload": "both"}


def _wider_changes(plan: Plan) -> Iterator[Change]:
    """Yield changes that split the network over twice the devices, with half the replicas."""
    half_data, remainder = divmod(plan.data, 2)
    if remainder:  # an odd number of replicas cannot be halved
        return
    # Of the same devices, half as many replicas that are twice as wide.
    yield {"tensor": 2 * plan.tensor, "data": half_data}
    yield {"pipeline": 2 * plan.pipeline, "data": half_data}
    yield {"context": 2 * plan.context, "data": half_data}

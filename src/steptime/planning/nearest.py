"""The fastest plan that fits, one or two changes from a plan that does not."""

from collections.abc import Iterator, Mapping
from math import inf
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.core.workload import RECOMPUTES, Plan
from steptime.planning.faults import Asked, checked, fault, words_of_change
from steptime.planning.planner import Planner
from steptime.planning.step import quick

Change = Mapping[str, object]


class FittingPlan(NamedTuple):
    """A changed plan that fits: the changed options in words, the plan, and its step."""

    change: str
    plan_step: Asked
    step_s: float
    needed_bytes: float


def find_nearest(planner: Planner, step: Asked) -> FittingPlan | None:
    """Return the fastest changed plan that fits, with one change before two; None without any.

    The changes are recomputation (the first layers of each stage, or all), smaller microbatches,
    states, gradients and weights shared by replicas, offloading where the host is joined, and the
    same devices with more tensor, pipeline or context parallelism.
    """
    single_changes = list(_changes(planner, step))
    double_changes: list[tuple[Change, Asked]] = [
        ({**first, **second}, changed)
        for first, plan in single_changes
        for second, changed in _changes(planner, plan)
    ]
    for changes in (single_changes, double_changes):
        fitting = list(_price_changes(planner, step, changes))
        if fitting:
            return min(fitting, key=lambda plan: plan.step_s)
    return None


def _price_changes(
    planner: Planner, step: Asked, changes: list[tuple[Change, Asked]]
) -> Iterator[FittingPlan]:
    for change, changed in changes:
        try:
            price = quick(planner, checked(planner.shape, changed))
        except InputError:
            continue
        if price.step_s < inf:
            words = words_of_change(step, change)
            yield FittingPlan(words, price.asked, price.step_s, price.bytes)


def _changes(planner: Planner, step: Asked) -> Iterator[tuple[Change, Asked]]:
    """Yield plans that need less memory by one option or two, each after its change."""
    changes = [
        *_recompute_changes(planner, step.plan),
        *_microbatch_changes(step),
        *_sharing_changes(step.plan),
        *_offload_changes(planner, step.plan),
        *_wider_changes(step.plan),
    ]
    plans = ((change, step.but(change)) for change in changes)
    return (pair for pair in plans if fault(planner.shape, pair[1]) is None)


def _recompute_changes(planner: Planner, plan: Plan) -> Iterator[Change]:
    for name in RECOMPUTES[RECOMPUTES.index(plan.recompute) + 1 :]:
        yield {"recompute": name, "recompute_layers": 0}
    layers = len(planner.shape.kinds) // (plan.pipeline * plan.virtual)
    if plan.recompute == "none":
        for count in (2**k for k in range(layers.bit_length()) if 2**k < layers):
            yield {"recompute": "full", "recompute_layers": count}
    elif plan.recompute_layers:
        yield {"recompute_layers": 0}


def _microbatch_changes(step: Asked) -> Iterator[Change]:
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


def _offload_changes(planner: Planner, plan: Plan) -> Iterator[Change]:
    if planner.host is not None and plan.offload != "both":
        next_steps = {"none": ("optimizer", "activations")}
        for offload in next_steps.get(plan.offload, ("both",)):
            yield {"offload": offload}


def _wider_changes(plan: Plan) -> Iterator[Change]:
    if plan.data % 2 == 0:
        yield {"tensor": 2 * plan.tensor, "data": plan.data // 2}
        yield {"pipeline": 2 * plan.pipeline, "data": plan.data // 2}
        yield {"context": 2 * plan.context, "data": plan.data // 2}

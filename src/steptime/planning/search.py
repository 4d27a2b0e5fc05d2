"""The best plans: all splits of a network over devices, and those that no other plan dominates."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from operator import le
from typing import NamedTuple, TypeVar

from steptime.core.errors import InputError
from steptime.core.garbage import no_collection
from steptime.planning.estimate import PlanEstimate, ScheduleAccuracy, estimate_plan
from steptime.planning.memory import (
    DeviceMemory,
    activation_bytes,
    distinct_device_memories,
    min_device_bytes,
)
from steptime.planning.pipelines.pipeline_bound import microbatches_in_flight
from steptime.planning.plan_cost import cost_plan
from steptime.planning.plan_space import PlanFamily
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem

Choice = TypeVar("Choice")
Amounts = tuple[float, ...]
MAX_PLANS = 1_000_000
MEMORY = "memory"
"""The name of the limit that the memory of the device sets."""
ROUNDING = 1 - 1e-9  # saved activations grow with the microbatch, but for bytes that are rounded


class SearchLimit(NamedTuple):
    """A limit that a user sets.

    Attributes:
        name: its name.
        value_of: returns the value of a plan, infinite where it is unknown.
        maximum: the largest value within the limit.
    """

    name: str
    value_of: Callable[[PlanEstimate], float]
    maximum: float

    def is_met(self, estimate: PlanEstimate) -> bool:
        """Return whether a plan is known to be within the limit."""
        return self.value_of(estimate) <= self.maximum


class LimitExcess(NamedTuple):
    """A plan beyond a limit: value over maximum, the name of the limit, the value, the maximum."""

    ratio: float
    limit_name: str
    value: float
    maximum: float


NO_EXCESS = LimitExcess(inf, "", inf, inf)


class Search(NamedTuple):
    """The result of a search.

    Attributes:
        front: the plans that no other plan dominates in time, memory and energy, fastest first.
        steps_s: the seconds of the plans within all limits that predictions cannot tell apart from
            the fastest one.
        considered_count: the number of plans.
        refused_counts: by limit, the number of plans beyond it.
        nearest: the plan least beyond a limit; None if a plan is within all of them.
        full_recompute_steps: the plans within all limits that recompute all layers.
    """

    front: list[PlanEstimate]
    steps_s: list[float]
    considered_count: int
    refused_counts: Counter[str]
    nearest: LimitExcess | None
    full_recompute_steps: Sequence[PlanStep] = ()


def find_best_plans(
    problem: PlanProblem,
    families: Iterable[PlanFamily],
    global_batch: int,
    limits: Sequence[SearchLimit] = (),
    tie_ratio: float = 1.0,
) -> Search:
    """Return the plans within the limits that no other plan dominates in time, memory and energy.

    Args:
        problem: the network and its links.
        families: the plans.
        global_batch: the sequences of a step.
        limits: the limits.
        tie_ratio: two steps whose ratio is at most this cannot be told apart.

    Raises:
        InputError: for more plans than `MAX_PLANS`.
    """
    with no_collection():  # all objects made here stay alive
        plans = _FittingPlans(problem, global_batch, limits)
        for family in families:
            plans.add(family)
        # Limits need the exact time of each plan; else lower bounds are compared first.
        accuracy = ScheduleAccuracy.SCHEDULE if limits else ScheduleAccuracy.BUSIEST_DEVICE
        front, steps_s = _find_front(problem, plans.estimates, accuracy, tie_ratio)
        return Search(
            front=front,
            steps_s=steps_s,
            considered_count=plans.considered_count,
            refused_counts=plans.refused_counts,
            nearest=plans.find_nearest(),
            full_recompute_steps=[
                estimate.step
                for estimate in plans.estimates
                if estimate.step.plan.recompute == "full"
            ],
        )


class _FittingPlans:
    """Collects the plans within all limits, and counts the others by limit."""

    def __init__(
        self, problem: PlanProblem, global_batch: int, limits: Sequence[SearchLimit]
    ) -> None:
        self.problem = problem
        self.global_batch = global_batch
        self.limits = limits
        self.estimates: list[PlanEstimate] = []
        self.considered_count = 0
        self.refused_counts: Counter[str] = Counter()  # by the name of the limit
        self.excess = NO_EXCESS  # of the plan that is the least beyond its limits
        self.min_bytes = inf  # of a plan that does not fit
        self.unpriced: list[tuple[float, PlanStep]] = []  # too large by parameters alone

    def add(self, family: PlanFamily) -> None:
        """Add the plans of a family; raises `InputError` for more plans than `MAX_PLANS`."""
        size_count = len(family.microbatch_sizes)
        self.considered_count += size_count
        if self.considered_count > MAX_PLANS:
            raise InputError(f"more than {MAX_PLANS:,} plans: fix --tensor or --microbatch")
        # Parameters alone are a lower bound that needs no pricing.
        parameter_bytes = min_device_bytes(self.problem.rank, family.plan)
        if parameter_bytes > self.problem.rank.room_bytes:
            self.refused_counts[MEMORY] += size_count
            step = PlanStep(family.plan, family.microbatch_sizes[0], self.global_batch)
            self.unpriced.append((parameter_bytes, step))
            return
        try:
            steps = list(_steps_of_family(self.problem, family, self.global_batch))
        except InputError:  # the plan does not divide the graph of a rank
            self.considered_count -= size_count
            return
        self.refused_counts[MEMORY] += size_count - len(steps)
        for step in steps:
            self._add_step(step)

    def _add_step(self, step: PlanStep) -> None:
        """Estimate a step, and add it to the plans or to the counts of refused ones."""
        accuracy = ScheduleAccuracy.SCHEDULE if self.limits else ScheduleAccuracy.BUSIEST_DEVICE
        estimate = estimate_plan(self.problem, step, accuracy)
        if estimate.step_s == inf:  # it does not fit
            self.refused_counts[MEMORY] += 1
            self.min_bytes = min(self.min_bytes, estimate.needed_bytes)
            return
        excesses = []
        for limit in self.limits:
            value = limit.value_of(estimate)
            if value > limit.maximum:
                ratio = value / limit.maximum
                excesses.append(LimitExcess(ratio, limit.name, value, limit.maximum))
        if not excesses:
            self.estimates.append(estimate)
            return
        self.refused_counts.update(excess.limit_name for excess in excesses)
        # A plan is as far off as its worst limit; the nearest plan is the least far off.
        self.excess = min(self.excess, max(excesses))

    def find_nearest(self) -> LimitExcess | None:
        """Return the plan least beyond a limit; None if a plan is within all of them."""
        if self.estimates:  # a plan keeps all limits
            return None
        excess = self.excess
        is_memory_limit = self.refused_counts[MEMORY] == self.considered_count
        if self.considered_count and is_memory_limit:  # of all plans, so that none was priced
            min_bytes = self._find_min_bytes()
            room_bytes = self.problem.rank.room_bytes
            excess = LimitExcess(min_bytes / room_bytes, MEMORY, min_bytes, room_bytes)
        has_nearest_plan = excess.ratio < inf
        return excess if has_nearest_plan else None

    def _find_min_bytes(self) -> float:
        """Return the smallest memory of a plan, where none fits."""
        min_bytes = self.min_bytes
        for parameter_bytes, step in sorted(self.unpriced, key=lambda pair: pair[0]):
            # Sorted by a lower bound: no later plan can need less.
            if parameter_bytes >= min_bytes:
                break
            try:
                min_bytes = min(min_bytes, estimate_plan(self.problem, step).needed_bytes)
            except InputError:  # the plan does not divide the graph of a rank
                continue
        return min_bytes


class _PricedSize(NamedTuple):
    """The memory of a plan's devices at a microbatch."""

    memories: Sequence[DeviceMemory]
    microbatch: int


def _steps_of_family(
    problem: PlanProblem, family: PlanFamily, global_batch: int
) -> Iterator[PlanStep]:
    """Yield the steps of a family but those that cannot fit.

    The saved activations of a microbatch grow with its size, so a larger microbatch than one that
    does not fit does not fit either, and its layers are not priced. Only interleaved stages with
    microbatches that do not divide into groups may hold fewer of them.
    """
    plan = family.plan
    has_fixed_layout = problem.shape.is_language_model
    smaller_size: _PricedSize | None = None  # the last one that may fit, as a bound of larger ones
    for microbatch in family.microbatch_sizes:
        step = PlanStep(plan, microbatch, global_batch)
        room_bytes = problem.rank.room_bytes
        if smaller_size is not None and _min_needed_bytes(smaller_size, step) > room_bytes:
            microbatches = step.microbatches
            has_full_groups = microbatches <= plan.pipeline or microbatches % plan.pipeline == 0
            if plan.virtual == 1 or has_full_groups:  # a larger microbatch needs still more
                return
            continue  # the last group is not full: larger microbatches may be fewer in flight
        # Where the cuts between stages move with the microbatch, no bound can be derived.
        if has_fixed_layout:
            memories = distinct_device_memories(problem, cost_plan(problem, step))
            smaller_size = _PricedSize(memories, microbatch)
        yield step


def _min_needed_bytes(priced: _PricedSize, step: PlanStep) -> float:
    """Return a lower bound of the memory of a step from that with a smaller microbatch."""
    plan = step.plan
    microbatches = step.microbatches
    in_flight = microbatches_in_flight(plan.schedule, plan.pipeline, plan.virtual, microbatches)
    # Saved activations grow with the microbatch, and the fixed memory does not shrink.
    size_ratio = step.microbatch / priced.microbatch * ROUNDING
    return max(
        [
            memory.fixed_bytes
            + size_ratio * activation_bytes(memory.stage_bytes, in_flight, microbatches)
            for memory in priced.memories
        ]
    )


def _find_front(
    problem: PlanProblem,
    estimates: Sequence[PlanEstimate],
    accuracy: ScheduleAccuracy,
    tie_ratio: float,
) -> tuple[list[PlanEstimate], list[float]]:
    """Return the plans that no other one dominates, and the seconds of ties of the fastest.

    Best-first Pareto search: pop the smallest lower bound; if it is not dominated, price it one
    accuracy level higher and push it back.

    Args:
        problem: the network and its links.
        estimates: the plans, with lower bounds of their time and energy.
        accuracy: the accuracy of these estimates.
        tie_ratio: two steps whose ratio is at most this cannot be told apart.
    """
    heap = [
        (_minimised_amounts(estimate), number, accuracy, estimate)
        for number, estimate in enumerate(estimates)
    ]
    heapify(heap)
    front: list[PlanEstimate] = []
    front_amounts: list[Amounts] = []
    steps_s: list[float] = []
    while heap:
        amounts, number, estimate_accuracy, estimate = heappop(heap)
        # The heap is ordered by time: the first of the front is the fastest plan.
        is_tie = not front or estimate.step_s <= tie_ratio * front[0].step_s
        is_dominated = _is_dominated(amounts, front_amounts)
        if is_dominated and not is_tie:
            continue
        # Dominated plans as fast as the fastest one are counted as ties, but not returned.
        if is_dominated and estimate_accuracy != ScheduleAccuracy.BUSIEST_DEVICE:
            steps_s.append(estimate.step_s)
            continue
        if not is_dominated and estimate_accuracy == ScheduleAccuracy.SCHEDULE:
            front.append(estimate)
            front_amounts.append(amounts)
            if is_tie:
                steps_s.append(estimate.step_s)
            continue
        # Its lower bound may still be too low: price it more exactly and compare again.
        next_accuracy = ScheduleAccuracy(estimate_accuracy + 1)
        refined = estimate_plan(problem, estimate.step, next_accuracy)
        heappush(heap, (_minimised_amounts(refined), number, next_accuracy, refined))
    return front, steps_s


def _minimised_amounts(estimate: PlanEstimate) -> Amounts:
    """Return time, memory and energy of a plan; an unknown energy counts as 0."""
    return estimate.step_s, estimate.needed_bytes, estimate.energy_j or 0.0


def _is_dominated(amounts: Amounts, front: Sequence[Amounts]) -> bool:
    """Return whether amounts of the front are all at most as large."""
    return any(all(map(le, front_amounts, amounts)) for front_amounts in front)


def with_partial_recompute(
    problem: PlanProblem, search: Search, limits: Sequence[SearchLimit]
) -> Search:
    """Return a search with the plans that recompute only as many layers as they must.

    The fewer layers are recomputed, the faster a plan is and the more memory it needs. The fewest
    that leave the error of predictions free are found by bisection: for the plans of the front,
    and for those that would be the fastest without recomputation.

    Args:
        problem: the network and its links.
        search: the result of a search.
        limits: the limits of the search.
    """
    partial_plans: list[PlanEstimate] = []
    best_s = search.front[0].step_s if search.front else inf
    front_steps = {estimate.step for estimate in search.front}
    bounded_steps = [
        (_step_without_recompute_s(problem, step), step) for step in search.full_recompute_steps
    ]
    bounded_steps.sort(key=lambda pair: pair[0])  # the most promising first
    for bound_s, step in bounded_steps:
        can_be_fastest = bound_s < best_s
        # No later plan can be the fastest either, but one of the front may still be improved.
        if not can_be_fastest and step not in front_steps:
            continue
        estimate = _recompute_fewest_layers(problem, step)
        if estimate is not None and all(limit.is_met(estimate) for limit in limits):
            partial_plans.append(estimate)
            best_s = min(best_s, estimate.step_s)
    return search._replace(
        front=pareto_front([*search.front, *partial_plans], _minimised_amounts),
        steps_s=[*search.steps_s, *(estimate.step_s for estimate in partial_plans)],
        considered_count=search.considered_count + len(partial_plans),
    )


def _step_without_recompute_s(problem: PlanProblem, step: PlanStep) -> float:
    """Return a lower bound of a step that recomputes no layer."""
    saving_step = step.change({"recompute": "none"})
    end_s = step.microbatches * cost_plan(problem, saving_step).busiest_s
    return problem.rank.add_stragglers(end_s, step.plan.device_count)


def _recompute_fewest_layers(problem: PlanProblem, step: PlanStep) -> PlanEstimate | None:
    """Return the plan that recomputes the fewest layers of each stage and fits, or None."""
    # A margin for the error of predictions, so that the plan also fits where these are too low.
    room_bytes = (1 - problem.rank.memory_error_share) * problem.rank.room_bytes
    # Bisection: more recomputed layers need less memory.
    low_layers = 1
    high_layers = max(problem.rank.layout(step.plan, step.microbatch).layers) - 1
    fewest: PlanStep | None = None
    while low_layers <= high_layers:
        layers = (low_layers + high_layers) // 2
        candidate = step.change({"recompute_layers": layers})
        estimate = estimate_plan(problem, candidate, ScheduleAccuracy.BUSIEST_DEVICE)
        if estimate.needed_bytes <= room_bytes:
            fewest = candidate
            high_layers = layers - 1
        else:
            low_layers = layers + 1
    return None if fewest is None else estimate_plan(problem, fewest)


def pareto_front(
    choices: Iterable[Choice], amounts_of: Callable[[Choice], Amounts]
) -> list[Choice]:
    """Return the choices that no other one dominates, those with the smallest amounts first.

    A choice dominates another one if all its amounts are at most as large.
    """
    pairs = [(amounts_of(choice), choice) for choice in choices]
    front: list[Choice] = []
    front_amounts: list[Amounts] = []
    for amounts, choice in sorted(pairs, key=lambda pair: pair[0]):
        if not _is_dominated(amounts, front_amounts):
            front.append(choice)
            front_amounts.append(amounts)
    return front

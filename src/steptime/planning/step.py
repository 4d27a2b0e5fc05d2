"""The step of a plan: its time with its parts, the memory of each device, and its energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from steptime.planning.energy import step_energy_j
from steptime.planning.estimate import plan_run
from steptime.planning.memory import Memory, host_bytes_of_device, memory_of_device
from steptime.planning.pass_settings import GroupCollective
from steptime.planning.pipelines.pipeline import MAX_EVENTS, PipelineRun, busy_s, simulate
from steptime.planning.pipelines.pipeline_bound import microbatches_in_flight
from steptime.planning.pipelines.pipeline_end import PipelineTimes, end_times, paired_busy_s
from steptime.planning.pipelines.stages import Load
from steptime.planning.plan_cost import PlanCost, cost_plan
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem
from steptime.planning.step_tail import StepTail, step_tail
from steptime.prediction.collectives import StepEnds, widen_by_links


class TailTimes(NamedTuple):
    """The seconds of a device after its pipeline: exposed communication, then the update."""

    exchange_s: float
    update_s: float

    @property
    def seconds(self) -> float:
        """Seconds in all."""
        return self.exchange_s + self.update_s


@dataclass(frozen=True)
class PlanTime:
    """The step of a plan.

    The parts of the step are those of the device of the pipeline that waits least. `compute_s`,
    `recompute_s`, `update_s`, `host_s`, `bubble_s`, exposed communication and `outside_layers_s`
    add up to `step_s`.

    Attributes:
        step: the plan and its batch.
        step_s: seconds of the step.
        low_s: the low end of its 80 % interval.
        high_s: the high end.
        compute_s: kernels.
        recompute_s: kernels that the backward pass repeats.
        update_s: the update of the weights.
        host_s: waits for the host.
        bubble_share: the share of their time in which the devices of the pipeline wait for each
            other, in the mean.
        bubble_s: waits for other devices.
        outside_layers_s: time outside the layers, and for the slowest of all devices.
        collectives: the collectives of the device.
        memory: the memory of each device of the pipeline.
        host_bytes: the largest memory of a device on its host.
        layers: the layers of each stage.
        energy_j: joules of all devices; None where their power is unknown.
        pipeline: the stages and their schedule.
        tails: the end of the step on each device of the pipeline.
    """

    step: PlanStep
    step_s: float
    low_s: float
    high_s: float
    compute_s: float
    recompute_s: float
    update_s: float
    host_s: float
    bubble_share: float
    bubble_s: float
    outside_layers_s: float
    collectives: tuple[GroupCollective, ...]
    memory: tuple[Memory, ...]
    host_bytes: float
    layers: tuple[int, ...]
    energy_j: float | None
    pipeline: PipelineTimes
    tails: tuple[TailTimes, ...]

    @cached_property
    def run(self) -> PipelineRun | None:
        """The simulated run of the pipeline; None with too many tasks, and for DualPipe."""
        microbatches = self.step.microbatches
        task_count = 2 * len(self.pipeline.stages) * microbatches
        # `simulate` has no order of tasks for DualPipe (`goes_both_ways`).
        if task_count > MAX_EVENTS or self.step.plan.goes_both_ways:
            return None
        schedule, stages, device_count, send_s = self.pipeline
        return simulate(schedule, stages, device_count, microbatches, send_s)

    @property
    def fullest_device(self) -> int:
        """The device of the pipeline with the largest memory."""
        return max(range(len(self.memory)), key=lambda device: self.memory[device].total)

    @property
    def peak_memory(self) -> Memory:
        """The memory of the fullest device."""
        return self.memory[self.fullest_device]

    @property
    def exposed_s(self) -> float:
        """Seconds of exposed communication."""
        return sum(collective.exposed_s for collective in self.collectives)


class _DeviceWaits(NamedTuple):
    """The end of a pipeline's slowest device, and the seconds that each device waits until then."""

    end_s: float
    waits_s: Sequence[float]


def time_plan(problem: PlanProblem, step: PlanStep) -> PlanTime:
    """Return time, memory and energy of a step under a plan."""
    plan = step.plan
    cost = cost_plan(problem, step)
    microbatches = step.microbatches
    layout = cost.layout
    tails = [step_tail(cost, load) for load in layout.devices]
    end_s, waits_s = _device_waits(cost, microbatches, tails)
    devices = range(plan.pipeline)
    device = min(devices, key=waits_s.__getitem__)  # the busiest, whose parts are reported
    tail = tails[device]
    load = layout.devices[device]
    step_s = problem.rank.add_stragglers(end_s, plan.device_count)
    collectives = _device_collectives(cost, load, microbatches, tail)
    bubble_s = waits_s[device]
    if plan.pipeline > 1:
        sends = _pipeline_sends(cost, microbatches, bubble_s)
        # The way through the pipeline is reported with the sends, not with the bubble.
        bubble_s -= sends.pipeline_wait_s
        collectives.append(sends.collective)
    exposed_s = sum(collective.exposed_s for collective in collectives)
    low_s, high_s = step_interval(problem, step, step_s, exposed_s)
    in_flight = microbatches_in_flight(plan.schedule, plan.pipeline, plan.virtual, microbatches)
    compute_s, recompute_s = _device_kernels(cost, load, microbatches)
    device_stages = cost.stages[device :: plan.pipeline]
    return PlanTime(
        step=step,
        step_s=step_s,
        low_s=low_s,
        high_s=high_s,
        compute_s=compute_s,
        recompute_s=recompute_s,
        update_s=tail.update_s,
        host_s=microbatches * sum(stage.host_s for stage in device_stages),
        bubble_share=sum(waits_s) / plan.pipeline / end_s,
        bubble_s=bubble_s,
        outside_layers_s=step_s - end_s,  # what `add_stragglers` adds
        collectives=tuple(collectives),
        memory=tuple(memory_of_device(cost, d, in_flight, microbatches) for d in devices),
        host_bytes=max(host_bytes_of_device(cost, d, in_flight, microbatches) for d in devices),
        layers=layout.layers,
        energy_j=step_energy_j(cost, step, step_s),
        pipeline=cost.pipeline,
        tails=tuple(TailTimes(tail.seconds - tail.update_s, tail.update_s) for tail in tails),
    )


def _device_waits(cost: PlanCost, microbatches: int, tails: Sequence[StepTail]) -> _DeviceWaits:
    """Return the waits of each device of the pipeline: in its schedule, and for slower devices."""
    plan = cost.plan
    ends_s = end_times(cost.pipeline, microbatches)
    # Waits inside the schedule: the end of the last task less the device's own work.
    idle_s = [0.0]  # a single device waits for no other one
    if plan.pipeline > 1:
        if plan.goes_both_ways:
            microbatch_s = paired_busy_s(cost.stages)
        else:
            microbatch_s = busy_s(cost.stages, plan.pipeline)
        idle_s = [
            max(0.0, device_end_s - microbatches * device_s)
            for device_end_s, device_s in zip(ends_s, microbatch_s, strict=True)
        ]
    tail_ends_s = [
        device_end_s + tail.seconds for device_end_s, tail in zip(ends_s, tails, strict=True)
    ]
    end_s = max(tail_ends_s)
    waits_s = [
        device_idle_s + (end_s - tail_end_s)
        for device_idle_s, tail_end_s in zip(idle_s, tail_ends_s, strict=True)
    ]
    return _DeviceWaits(end_s, waits_s)


def _device_kernels(cost: PlanCost, load: Load, microbatches: int) -> tuple[float, float]:
    """Return the seconds of a device's kernels in a step, and of the kernels that it repeats."""
    compute_s = 0.0  # without recomputation, which only backward passes have
    recompute_s = 0.0
    for part, count in load:  # layers of each kind with their number, and ends
        forward, backward = cost.passes(part)
        # With DualPipe a device has the parts of both directions, each with half of the
        # microbatches.
        device_microbatches = microbatches * cost.microbatch_share
        pass_count = count * device_microbatches
        compute_s += (forward.compute_s + backward.compute_s) * pass_count
        recompute_s += (forward.recompute_s + backward.recompute_s) * pass_count
    return compute_s, recompute_s


def _device_collectives(
    cost: PlanCost, load: Load, microbatches: int, tail: StepTail
) -> list[GroupCollective]:
    """Return the collectives of a device in a step, those of equal group, kind and link summed."""
    sums: dict[tuple[str, str, str], GroupCollective] = {}
    for part, count in load:  # layers of each kind with their number, and ends
        # With DualPipe each direction has half of the microbatches.
        device_microbatches = microbatches * cost.microbatch_share
        repeats = count * device_microbatches
        forward, backward = cost.passes(part)
        for collective in (*forward.collectives, *backward.collectives):
            key = (collective.group, collective.collective, collective.link)
            empty_sum = GroupCollective(*key, size_bytes=0.0, total_s=0.0, exposed_s=0.0)
            sums[key] = sums.get(key, empty_sum).add(collective, repeats)
    return [*sums.values(), *tail.collectives]


class _PipelineSends(NamedTuple):
    """The sends of a device between stages, and its waits for the first and the last of them."""

    collective: GroupCollective
    pipeline_wait_s: float


def _pipeline_sends(cost: PlanCost, microbatches: int, waits_s: float) -> _PipelineSends:
    """Return the sends between stages; part of a device's waits is the way through the pipeline."""
    # Two passes of each microbatch through each stage of the device.
    send_count = 2 * microbatches * cost.plan.virtual
    send = cost.stage_send
    # The first microbatch goes forward and back through all stages before the device is busy.
    round_trip_s = 2 * (len(cost.stages) - 1) * send.total_s
    pipeline_wait_s = min(waits_s, round_trip_s)
    collective = send._replace(
        size_bytes=send.size_bytes * send_count,
        total_s=send.total_s * send_count,
        exposed_s=send.exposed_s * send_count + pipeline_wait_s,
    )
    return _PipelineSends(collective, pipeline_wait_s)


def step_interval(
    problem: PlanProblem, step: PlanStep, step_s: float, exposed_s: float
) -> tuple[float, float]:
    """Return the 80 % interval of a step; errors of kernels and of links are independent.

    With links at either end of their rates the step is timed anew, since a hidden collective may
    become exposed.

    Args:
        problem: the network and its links.
        step: the plan and its batch.
        step_s: the predicted seconds.
        exposed_s: the part of `step_s` that is exposed communication.
    """
    low_s, high_s = problem.rank.step_interval(
        step.plan, step.microbatch, step_s, exposed_s, step.microbatches
    )
    if step.plan.device_count == 1:
        return low_s, high_s
    quick_s = _step_s(problem.with_link_rates("high"), step)
    slow_s = _step_s(problem.with_link_rates("low"), step)
    kernel_ends = StepEnds(low_s, high_s)
    # A quicker link never makes the step slower, whatever the schedule does.
    link_ends = widen_by_links(step_s, kernel_ends, min(quick_s, step_s), max(slow_s, step_s))
    # Both ends are known here: None is for other callers of `widen_by_links`.
    return (
        low_s if link_ends.low_s is None else link_ends.low_s,
        high_s if link_ends.high_s is None else link_ends.high_s,
    )


def _step_s(problem: PlanProblem, step: PlanStep) -> float:
    """Return the seconds of a step, whether or not it fits."""
    run = plan_run(problem, cost_plan(problem, step))
    return problem.rank.add_stragglers(run.end_s(step.microbatches), step.plan.device_count)

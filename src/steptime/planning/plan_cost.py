"""The costs of a plan that do not depend on the number of its microbatches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from steptime.core.workload import Plan
from steptime.planning.caches import cached_by_owner
from steptime.planning.pass_settings import (
    GroupCollective,
    PartPasses,
    PassSettings,
    settings_of_passes,
)
from steptime.planning.passes import price_passes
from steptime.planning.pipelines.pipeline import Stage
from steptime.planning.pipelines.pipeline_end import PipelineTimes
from steptime.planning.pipelines.stages import Layout, Load, Part, RankGroups, rank_groups
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem
from steptime.planning.ranks.pieces import RankPieces
from steptime.planning.ranks.rank_model import RankModel
from steptime.prediction.host import Host, wait_for_host
from steptime.prediction.training import LAST

RECOMPUTE_ENERGY_FACTOR = 4 / 3  # with full recomputation a step has four passes, not three


class DeviceEnergy(NamedTuple):
    """Devices of a pipeline with equal parts: their number, and the joules of a microbatch."""

    device_count: int
    microbatch_j: float


@dataclass(frozen=True, eq=False)
class PlanCost:
    """The costs of a plan, each computed when it is first read.

    Costs are cached and hashed by identity.

    Attributes:
        problem: the network and its links.
        plan: the plan.
        microbatch: the sequences of a microbatch.
        order: the order in which dimensions of the plan number the ranks.
        microbatches: the microbatches of a step where passes depend on it, otherwise 1 or 2 (for
            more than one).
    """

    problem: PlanProblem
    plan: Plan
    microbatch: int
    order: str
    microbatches: int

    @property
    def rank(self) -> RankModel:
        """One rank of the network."""
        return self.problem.rank

    @cached_property
    def pieces(self) -> RankPieces:
        """The pieces of a rank."""
        return self.rank.pieces(self.plan, self.microbatch, self.microbatches)

    @cached_property
    def layout(self) -> Layout:
        """The layers of stages and devices."""
        return self.rank.layout(self.plan, self.microbatch)

    @cached_property
    def groups(self) -> RankGroups:
        """The groups of ranks with which a rank communicates."""
        plan = self.plan
        widths = (plan.tensor, plan.context, plan.data, plan.pipeline)
        return rank_groups(widths, plan.expert, plan.shards, self.order, plan.routers)

    @cached_property
    def pass_settings(self) -> PassSettings:
        """The settings that passes depend on."""
        return settings_of_passes(self.rank, self.plan, self.pieces, self.groups)

    def passes(self, part: Part) -> PartPasses:
        """Return the forward and the backward pass of a part for one microbatch."""
        return price_passes(self.problem, self.pass_settings, part)

    @property
    def microbatch_share(self) -> float:
        """The share of the microbatches that pass each layer of a device: half with DualPipe."""
        return 0.5 if self.plan.goes_both_ways else 1.0

    @cached_property
    def stage_send(self) -> GroupCollective:
        """The send of a microbatch from a stage to the next."""
        plan = self.plan
        if plan.pipeline == 1:
            return GroupCollective(
                "pipeline", "send", link="", size_bytes=0.0, total_s=0.0, exposed_s=0.0
            )
        # By convention the input of LAST is what a stage sends on.
        size_bytes = float(self.pieces[LAST].activations.input_bytes)
        if plan.tensor > 1 and not plan.sequence:
            size_bytes /= plan.tensor  # scattered for the send, and gathered again
        neighbours = self.problem.farthest_neighbours(self.groups.pipeline)
        time = self.problem.collective_time("send", size_bytes, neighbours)
        exposed_s = time.seconds * (1 - self.rank.constant("send_hidden"))
        return GroupCollective(
            "pipeline", "send", time.link, size_bytes, time.seconds, exposed_s, time.spread
        )

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The seconds of each stage for one microbatch."""
        stage_of_load = {load: self._stage(load) for load in set(self.layout.stages)}
        return tuple([stage_of_load[load] for load in self.layout.stages])

    def _stage(self, load: Load) -> Stage:
        """Return the seconds of a stage, whose parts the host issues one after the other."""
        forward_s = backward_s = weight_s = forward_host_s = backward_host_s = 0.0
        for part, count in load:  # layers of each kind with their number, and ends
            forward, backward = self.passes(part)
            forward_s += forward.seconds * count
            backward_s += backward.seconds * count
            forward_host_s += forward.host_s * count
            backward_host_s += backward.host_s * count
            weight_s += self.pieces[part.name].weight_s * count
        issue_s = forward_host_s + backward_host_s
        host_wait_s = max(0.0, issue_s - forward_s - backward_s)
        is_host_slower = issue_s > forward_s + backward_s
        # Kernels then start when the host has issued them; the host does not wait between steps.
        if is_host_slower:
            no_update_s = 0.0  # a microbatch has none
            host = Host((forward_host_s, issue_s, issue_s), waits=False)
            passes_s = wait_for_host((forward_s, backward_s, no_update_s), host)
            forward_s, backward_s, _ = map(float, passes_s)
        # Each pass ends with the exposed part of a send.
        send_s = self.stage_send.exposed_s
        return Stage(forward_s + send_s, backward_s + send_s, weight_s, host_wait_s)

    @cached_property
    def pipeline(self) -> PipelineTimes:
        """The stages with their schedule."""
        return PipelineTimes(
            self.plan.schedule, self.stages, self.plan.pipeline, self.stage_send.total_s
        )

    @cached_property
    def busiest_s(self) -> float:
        """The seconds of a microbatch on the busiest device, without waits for its host."""
        busiest_s = _busiest_device_s(self.problem, self.pass_settings, self.layout)
        return busiest_s * self.microbatch_share

    @cached_property
    def device_energies(self) -> list[DeviceEnergy]:
        """The joules of a microbatch by devices with equal parts, beyond those of waiting."""
        repeats_all = self.plan.recompute == "full"
        energies = _device_energies(self.rank, self.pieces, self.layout, repeats_all)
        # DualPipe has both directions on each device, which share the microbatches.
        if self.microbatch_share == 1:
            return energies
        return [
            DeviceEnergy(count, microbatch_j * self.microbatch_share)
            for count, microbatch_j in energies
        ]

    def warmup_exchange_s(self, load: Load) -> float:
        """Return the exposed exchange of tokens of pipeline warm-up and drain.

        There no other microbatch overlaps with it: a device has a forward and a backward pass of
        each stage alone, with DualPipe one backward pass of half of the devices less one.
        """
        plan = self.plan
        if not plan.overlaps:
            return 0.0
        # `overlap_s` is what a pass hides behind another microbatch. Here it is exposed.
        exposed_s = 0.0
        for part, count in load:
            forward, backward = self.passes(part)
            exposed_s += count * backward.overlap_s
            if not plan.goes_both_ways:
                exposed_s += count * forward.overlap_s
        # DualPipe: the load has the stages of both directions, of which one is exposed.
        if plan.goes_both_ways:
            return exposed_s / 2 * (plan.pipeline / 2 - 1)
        # The load has all `virtual` stages of a device. One of them is exposed for each device of
        # the pipeline.
        return exposed_s * plan.pipeline / plan.virtual


def cost_plan(problem: PlanProblem, step: PlanStep) -> PlanCost:
    """Return the costs of a plan, shared by all steps that differ only in their microbatches."""
    microbatches = step.microbatches
    if not problem.rank.depends_on_microbatches(step.plan):
        microbatches = min(microbatches, 2)
    return _plan_cost(problem, step.plan, step.microbatch, step.order, microbatches)


@cached_by_owner
def _plan_cost(
    problem: PlanProblem, plan: Plan, microbatch: int, order: str, microbatches: int
) -> PlanCost:
    return PlanCost(problem, plan, microbatch, order, microbatches)


@cached_by_owner
def _busiest_device_s(problem: PlanProblem, settings: PassSettings, layout: Layout) -> float:
    """Return the seconds of both passes on the device with the longest ones."""
    busiest_s = 0.0
    for load in set(layout.devices):  # equal devices once
        device_s = 0.0
        for part, count in load:  # layers of each kind with their number, and ends
            forward, backward = price_passes(problem, settings, part)
            device_s += (forward.seconds + backward.seconds) * count
        busiest_s = max(busiest_s, device_s)
    return busiest_s


@cached_by_owner
def _device_energies(
    _rank: RankModel,  # owns the cache
    pieces: RankPieces,
    layout: Layout,
    repeats_all: bool,
) -> list[DeviceEnergy]:
    """Return the joules of a microbatch by devices with equal parts.

    A forward pass has about a third of the joules of a step; with full recomputation there are two.
    """
    energies = []
    for load, device_count in Counter(layout.devices).items():
        microbatch_j = 0.0
        for part, count in load:
            # A backward pass is worth two forward ones: full recomputation makes three into four.
            factor = RECOMPUTE_ENERGY_FACTOR if part.recomputes and repeats_all else 1
            microbatch_j += pieces[part.name].joules * factor * count
        energies.append(DeviceEnergy(device_count, microbatch_j))
    return energies

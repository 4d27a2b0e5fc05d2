"""The costs of one rank of a network on one kind of device, whatever joins the devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, log1p
from typing import NamedTuple

from steptime.core.graph import Graph
from steptime.core.workload import Plan
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.network.count import op_work
from steptime.network.ops import OPS
from steptime.planning.caches import cached_by_owner
from steptime.planning.pipelines.stages import Layout, Load, layout_of_plan
from steptime.planning.ranks import single_device
from steptime.planning.ranks.pieces import (
    Piece,
    RankPieces,
    RankSettings,
    build_rank_graph,
    price_pieces,
)
from steptime.planning.ranks.rank_setup import RankSetup
from steptime.prediction import conformal
from steptime.prediction.calibrated.interval import Bounds
from steptime.prediction.calibrated.power import power_draw
from steptime.prediction.kernel import Interval, Kernel
from steptime.prediction.kernels import Kernels
from steptime.prediction.steps.step_model import StepModel
from steptime.prediction.training import (
    FIRST,
    LAST,
    fused_update,
    graph_dtype,
    piece_of,
)

FORWARD_PASSES = 3.0  # the FLOP of a training step over those of its forward pass


class ForwardFlop(NamedTuple):
    """FLOP of the forward pass of a sequence; a multiply-add is 2, attention has no mask."""

    products: float
    attention: float


@dataclass(frozen=True, eq=False)
class RankModel(RankSetup):
    """One rank of a network on one kind of device: the costs of its pieces and of its update."""

    @cached_by_owner
    def full_step(self, microbatch: int, recompute: str = "none") -> StepModel:
        """Return the step of the whole network on one device, for one microbatch."""
        graph = self._build_graph(Plan(), microbatch, recompute, is_full=True)
        return self.step_model.with_graph(graph, microbatch)

    @cached_by_owner
    def graph_of_kinds(self) -> Graph:
        """Return the graph of a step on one device, with one layer of each kind."""
        return self._build_graph(Plan(), 1)

    def _build_graph(
        self, plan: Plan, microbatch: int, recompute: str = "none", is_full: bool = False
    ) -> Graph:
        """Return the graph of a rank, with all layers or one of each kind."""
        tuning = replace(self.tuning, recompute=recompute)
        return build_rank_graph(
            self.shape.family,
            self.shape.settings if is_full else self.shape.kind_settings,
            plan,
            graph_dtype(self.workload_dtype, self.stack.master_weights),
            microbatch,
            tuning.with_methods(self.stack.tuning_rules),
            is_full,
            # Weights of inference are priced as those of training; no update of them is used.
            self.optimizer if self.is_training else "adam",
        )

    def runs_full_network(self, plan: Plan) -> bool:
        """Return whether each device trains the whole network and shares nothing of it."""
        is_split = plan.tensor > 1 or plan.pipeline > 1 or plan.context > 1
        shares_states = plan.zero > 0 or plan.expert > 1 or plan.offload != "none"
        holds_all_states = plan.data == 1 or not shares_states
        return self.is_training and not is_split and holds_all_states

    def exchanges_in_buckets(self, plan: Plan) -> bool:
        """Return whether gradients are exchanged in buckets during the last backward pass."""
        return self.runs_full_network(plan) and self.constant("data_hidden") > 0

    def depends_on_microbatches(self, plan: Plan) -> bool:
        """Return whether the passes of a microbatch depend on the number of microbatches.

        A device that runs the whole network waits for its host by that number.
        """
        return self.runs_full_network(plan)

    def layout(self, plan: Plan, _microbatch: int) -> Layout:
        """Return the layout of layers under a plan."""
        return layout_of_plan(self.shape.kinds, plan)

    def rows_of(self, _load: Load) -> Container[str] | None:
        """Return the rows of the graph that a device has; None for all."""
        return None

    def pieces(self, plan: Plan, microbatch: int, microbatches: int = 1) -> RankPieces:
        """Return the pieces of a rank under a plan.

        Args:
            plan: the plan.
            microbatch: the sequences of a microbatch.
            microbatches: the microbatches of a step. A device that runs the whole network has the
                seconds of that step.
        """
        # As `predict` has it. If some layers alone recompute, their parts say so (`recomputes`).
        if self.runs_full_network(plan):
            recomputes_all = plan.recompute == "full" and not plan.recompute_layers
            return self.full_network_pieces(microbatch, microbatches, recomputes_all)
        # What has no effect gets one value, so that equal graphs have equal cache keys.
        is_sequence_split = plan.sequence and plan.tensor > 1
        context_method = plan.context_method if plan.context > 1 else "gather"
        settings = RankSettings(
            microbatch=microbatch,
            tensor=plan.tensor,
            context=plan.context,
            expert=plan.expert,
            expert_tensor=plan.expert_tensor,
            sequence=is_sequence_split,
            context_method=context_method,
            imbalance=plan.imbalance,
        )
        return self.rank_pieces(settings)

    @cached_by_owner
    def rank_pieces(self, settings: RankSettings) -> RankPieces:
        """Return the pieces of a rank's graph, which has one layer of each kind."""
        plan = Plan(
            tensor=settings.tensor,
            context=settings.context,
            expert=settings.expert,
            expert_tensor=settings.expert_tensor,
            sequence=settings.sequence,
            context_method=settings.context_method,
            data=settings.expert,  # the ranks of experts lie inside the data ranks
        )
        # What the backward pass gathers again from these groups is saved as a share alone.
        regathered_groups = ("tensor", "context") if settings.sequence else ()
        if settings.context_method == "ring":
            regathered_groups = ("context", *regathered_groups)
        graph = self._build_graph(plan, settings.microbatch)
        model = self.step_model.with_graph(graph, settings.microbatch)
        pieces = price_pieces(model, regathered_groups, settings.imbalance)
        return RankPieces(pieces)

    @cached_by_owner
    def full_network_pieces(
        self, microbatch: int, microbatches: int, recomputes_all: bool
    ) -> RankPieces:
        """Return the pieces of a device that runs the whole network.

        Args:
            microbatch: the sequences of a microbatch.
            microbatches: the microbatches of a step.
            recomputes_all: whether all layers recompute their activations.
        """
        pieces = self._timed_pieces(microbatch, microbatches, "none")
        # Recomputation is what the backward pass takes longer than without it.
        if recomputes_all:
            recomputing_pieces = self._timed_pieces(microbatch, microbatches, "full")
            pieces = single_device.split_off_recompute(pieces, recomputing_pieces)
        return RankPieces(pieces)

    def _timed_pieces(self, microbatch: int, microbatches: int, recompute: str) -> dict[str, Piece]:
        pieces = self.price_unsplit_pieces(microbatch)
        model = self.full_step(microbatch, recompute)
        return single_device.time_pieces(pieces, model, microbatch, self.shape.kinds, microbatches)

    def price_unsplit_pieces(self, microbatch: int) -> Mapping[str, Piece]:
        """Return the pieces of a rank that shares no layer with others."""
        unsplit = RankSettings(
            microbatch=microbatch,
            tensor=1,
            context=1,
            expert=1,
            expert_tensor=0,
            sequence=False,
            context_method="gather",
            imbalance=1.0,
        )
        return self.rank_pieces(unsplit).by_name

    def update_s(
        self, plan: Plan, size_bytes: float, parameters: float, microbatch: int, microbatches: int
    ) -> float:
        """Return the seconds in which a device updates its parameters.

        Args:
            plan: the plan.
            size_bytes: the bytes that a fused update reads and writes.
            parameters: the parameters that the device updates.
            microbatch: the sequences of a microbatch.
            microbatches: the microbatches of a step.
        """
        if self.runs_full_network(plan):
            return single_device.update_s(self.full_step(microbatch), microbatch, microbatches)
        has_fused_update = self.constant("update_bytes") > 0  # one kernel for all weights
        if has_fused_update:
            (fused_update_s,) = self.kernel_seconds([fused_update(size_bytes, parameters)])
            return fused_update_s
        # A kernel for each weight: a device takes its share of the whole network's seconds.
        network_update_s = sum(
            self.unsplit_pieces[name].update_s * count for name, count in self.piece_counts.items()
        )
        trained_parameters = self.sum_over_pieces(lambda piece: piece.parameters)
        return network_update_s * parameters / max(1, trained_parameters)

    def step_interval(
        self, plan: Plan, microbatch: int, step_s: float, exposed_s: float, microbatches: int
    ) -> tuple[float, float]:
        """Return the 80 % interval of a step whose links reach their predicted rates.

        For the whole network on each device it follows from kernels and host; otherwise from the
        published steps of other plans.

        Args:
            plan: the plan.
            microbatch: the sequences of a microbatch.
            step_s: the predicted seconds of the step.
            exposed_s: the part of `step_s` that is exposed communication.
            microbatches: the microbatches of a step.
        """
        if not self.runs_full_network(plan):
            return step_s * self.step_bounds.low, step_s * self.step_bounds.high
        model = self.full_step(microbatch, "full" if plan.recompute == "full" else "none")
        return single_device.step_interval(model, microbatch, step_s, exposed_s, microbatches)

    @cached_property
    def step_bounds(self) -> Bounds:
        """The interval of a step, as shares of it; wider for devices that were never measured."""
        has_experts = bool(self.shape.experts)
        return single_device.step_bounds(self.calibrated_device, self.tuning, has_experts)

    @cached_property
    def plan_bounds(self) -> Bounds:
        """The difference between plans on this device, as shares of a step."""
        return single_device.plan_bounds(self.calibrated_device, bool(self.shape.experts))

    def widen(self, kind: str, value: float) -> Interval:
        """Return a value with the interval of a kind of work; other methods know no interval."""
        if self.method.name != "calibrated":
            return Interval(value)
        return conformal.find_ends(kind, self.calibrated_device).interval_around(value)

    def widen_by_spread(self, kind: str, value: float, spread: float) -> Interval:
        """Return a value that may be off by a spread, in ln, with the interval of a kind of work.

        Other methods know no interval.
        """
        if self.method.name != "calibrated":
            return Interval(value)
        ends = conformal.find_ends(kind, self.calibrated_device)
        return ends.scale(spread).interval_around(value)

    def single_device_memory(
        self, plan: Plan, microbatch: int, microbatches: int
    ) -> Mapping[str, float] | None:
        """Return the memory of a device that trains the whole network in one microbatch, by part.

        None for all other plans.
        """
        is_single_step = plan.device_count == 1 and microbatches == 1
        recomputes_partly = plan.recompute_layers > 0 or plan.recompute == "selective"
        is_plain_plan = is_single_step and plan.offload == "none" and not recomputes_partly
        is_plain_training = self.is_training and not self.low_dtype
        # `predict` knows the memory of these alone; that of others is summed up by part.
        if not (is_plain_plan and is_plain_training):
            return None
        model = self.full_step(microbatch, plan.recompute)
        return single_device.memory_by_part(model, microbatch)

    def add_stragglers(self, end_s: float, device_count: int) -> float:
        """Return the seconds of a step whose pipeline ends at `end_s` on a usual device.

        The slowest of many devices ends later; the time outside the layers is added.
        """
        # The slowest of n devices is later the larger n is, but ever less so: by its logarithm.
        log_devices = log1p((device_count - 1) / self.constant("straggling_devices"))
        slowdown = 1 + self.constant("straggling") * log_devices
        return end_s * slowdown + self.constant("step_s")

    @cached_by_owner
    def traffic_s(self, kind: str, size_bytes: float, flop: float = 0.0) -> float:
        """Return the seconds of a kernel that moves bytes in float32, such as an update."""
        kernel = Kernel(
            op="",
            kind=kind,
            pass_="update",  # noqa: S106  # a pass of a step
            dtype="float32",
            unit="vector",
            flop=flop,
            bytes=size_bytes,
        )
        (kernel_s,) = self.kernel_seconds([kernel])
        return kernel_s

    def kernel_seconds(
        self, kernels: Sequence[Kernel], device: Device | None = None
    ) -> list[float]:
        """Return the seconds of each kernel on the calibrated device, or on another device."""
        columns = Kernels(kernels)
        prices = self.method.prices(columns, device or self.calibrated_device)
        seconds: list[float] = prices.value[columns.distinct_of_kernel].tolist()
        return seconds

    @cached_property
    def room_bytes(self) -> float:
        """The memory that a process may use, infinite where it is unknown."""
        usable_bytes = self.device.datasheet.usable_bytes
        return inf if usable_bytes is None else usable_bytes

    @cached_property
    def memory_error_share(self) -> float:
        """The share of the device's memory by which predictions of memory are off."""
        return catalog.constants_of("gpu")["plan.spare"].value

    @property
    def peak_flop_per_s(self) -> float:
        """FLOP/s of the device in the type of products."""
        return self.device.datasheet.peak_flop_per_s[self.low_dtype or self.compute_dtype]

    @cached_property
    def power_limits_w(self) -> tuple[float, float] | None:
        """The power of a waiting device and its limit; None where they are unknown."""
        return power_draw(self.calibrated_device)

    @cached_property
    def unsplit_pieces(self) -> Mapping[str, Piece]:
        """The pieces of the network on one device, for one sequence."""
        return self.price_unsplit_pieces(1)

    @cached_property
    def piece_counts(self) -> Mapping[str, int]:
        """How often each piece occurs in the network."""
        return {**Counter(self.shape.kinds), FIRST: 1, LAST: 1}

    @cached_property
    def parameters(self) -> int:
        """The parameters of the network, trained or frozen."""
        return self.sum_over_pieces(lambda piece: piece.parameters + piece.frozen_parameters)

    @cached_property
    def active_parameters(self) -> float:
        """The parameters that a token reaches, with its share of the experts."""
        expert_parameters = self.sum_over_pieces(lambda piece: piece.expert_parameters)
        return self.parameters - expert_parameters * (1 - self.shape.expert_share)

    def sum_over_pieces(self, count_of: Callable[[Piece], int]) -> int:
        """Return the sum of a count over all pieces of the network."""
        return sum(
            count_of(self.unsplit_pieces[name]) * count for name, count in self.piece_counts.items()
        )

    @cached_property
    def forward_flop(self) -> ForwardFlop:
        """FLOP of the forward pass of a sequence."""
        graph = self.graph_of_kinds()
        products = attention = 0.0
        for op in graph.ops:
            work = OPS[op.kind].work
            is_forward_product = op.part == "forward" and bool(work)
            if not is_forward_product:
                continue
            op_flop, *_ = op_work(graph, op)
            flop = op_flop * self.piece_counts.get(piece_of(op.name), 0)
            if work == "attention":
                attention += flop
            else:
                products += flop
        return ForwardFlop(products, attention)

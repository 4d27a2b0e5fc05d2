"""A network on a cluster, ready to be asked for plans: pieces and exchanges are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import pairwise
from math import exp, inf, log1p
from typing import Any, Literal, NamedTuple, TypeVar, cast

from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import InputError, check_choice
from steptime.core.graph import Graph
from steptime.core.workload import FULL_TRAINING, NO_OPTIMIZER, Plan, Tuning, Workload
from steptime.hardware import catalog
from steptime.hardware.constants import split_flags
from steptime.hardware.device import Cluster, Device, Link
from steptime.hardware.software import Software
from steptime.network.count import op_work
from steptime.network.ops import OPS
from steptime.planning import alone
from steptime.planning.pieces import Piece, pieces, rank_of_one
from steptime.planning.shape import Shape
from steptime.planning.stages import Layout, Load, layout_of
from steptime.prediction import conformal
from steptime.prediction.calibrated.interval import Bounds
from steptime.prediction.calibrated.power import draws
from steptime.prediction.collectives import (
    EXCHANGES,
    Collective,
    Fabric,
    Startup,
    all_reduce,
    fabric_of_group,
)
from steptime.prediction.exposed import exposed_exchange_s
from steptime.prediction.kernel import Interval, Kernel
from steptime.prediction.kernels import Kernels
from steptime.prediction.method import Method
from steptime.prediction.routing import once_a_part
from steptime.prediction.step_model import StepModel
from steptime.prediction.training import (
    FIRST,
    LAST,
    LOW_BYTES,
    fused_update,
    graph_dtype,
    numbers,
    piece_of,
)

T = TypeVar("T")
_UNKNOWN = object()


class Exchanged(NamedTuple):
    """Seconds of an exchange, and the link that it crosses."""

    seconds: float
    link: str


class Flops(NamedTuple):
    """FLOP of a sequence's forward pass, a multiply-add as 2: products, attention in full."""

    products: float
    attention: float


class Planner:
    """Prices what plans are made of, once.

    The `optimizer` is that of a training. `levels` say how the devices are joined, from the inside
    out; `host` joins a device to its host's memory, None where nobody says; `software` could be
    meant where nobody names a stack.
    """

    def __init__(
        self,
        shape: Shape,
        cluster: Cluster,
        method: Method,
        dtype: str,
        gradients: int = 0,
        use: str = "training",
        tuning: Tuning = FULL_TRAINING,
        optimizer: str = "adam",
    ) -> None:
        self.host: Link | None = None
        self.software: Software | None = None
        self.use, self.tuning, self.shape = use, tuning, shape
        self.optimizer = optimizer
        self.method, self.dtype, self.gradients = method, dtype, gradients
        self.low = dtype if dtype in LOW_BYTES else ""
        self.device: Device = cluster.device
        trains = use == "training"
        short = "bfloat16" if self.low else dtype.removesuffix("-mixed")
        mixed = trains and (self.low or precision(dtype).mixed)
        self.typed = f"{short}-mixed" if mixed else short  # as a workload says it
        self.stack = self.step.stack
        self.seen, master = self.step.seen, self.stack.master_weights
        self.in_memory = precision(graph_dtype(self.typed, master)).weights
        self.computes = precision(self.typed).compute
        if trains:
            self._constants, self._flags = numbers(self.seen.constants, self.typed, master)
            self._constants["state_bytes"] -= alone.spared(tuning, "float32" if mixed else short)
        else:
            self._constants, self._flags = split_flags(use, self.seen.constants)
        self.weight_bytes = float(SIZE_BYTES[self.in_memory])
        copies = self.in_memory != self.computes
        self.copy_bytes = copies * float(SIZE_BYTES[self.computes])  # of a weight
        own = self.constant("low_gradient_bytes") if self.low and trains else 0.0
        if gradients or own:
            self._constants["gradient_bytes"] = gradients / 8 or own
        self._pieces: dict[tuple[Any, ...], dict[str, Piece]] = {}
        self.traffic_s = cache(self._traffic_s)
        self.join(cluster)

    @cached_property
    def step(self) -> StepModel:
        """What prices the graphs of ranks on the device."""
        trains = self.use == "training"
        phase, optimizer = ("train", self.optimizer) if trains else ("infer", NO_OPTIMIZER)
        name, how = self.shape.family.name, (self.typed, phase, optimizer)
        workload = Workload(name, {}, 1, *how, tuning=self.tuning)
        return StepModel(workload, self.device, method=self.method, low=self.low)

    def alone(self, batch: int, recompute: str = "none") -> StepModel:
        """Return the step of the whole network on one device, on a microbatch."""
        graph = partial(self._rank, True, Plan(), batch, recompute)
        return self.once(("alone", batch, recompute), lambda: self.step.of(graph(), batch))

    def graph_of_kinds(self) -> Graph:
        """Return the graph of a step on one device, with one layer of each kind."""
        return self.once(("kinds",), lambda: self._rank(False, Plan(), 1))

    def _rank(self, whole: bool, plan: Plan, batch: int, recompute: str = "none") -> Graph:
        shape, dtype = self.shape, graph_dtype(self.typed, self.stack.master_weights)
        tuning, of = replace(self.tuning, recompute=recompute), shape.whole if whole else shape.one
        how = batch, tuning.under(self.stack.tuning_ways)
        optimizer = self.optimizer if self.use == "training" else "adam"
        return rank_of_one(shape.family, of, plan, dtype, *how, whole, optimizer)

    def on(self, cluster: Cluster) -> Planner:
        """Return the planner of another number of these devices, whose layers are priced."""
        result = copy(self)
        result.join(cluster)
        return result

    def join(self, cluster: Cluster) -> None:
        """Forget what depends on the links, and take those of a cluster."""
        levels = list(cluster.ladder)
        direct = catalog.constants_of("link")["exchange.direct_bytes_per_s"].value
        if self.use == "serving" and levels and levels[0].link.bytes_per_s > direct:
            levels[0] = levels[0]._replace(link=replace(levels[0].link, latency_s=0.0))
        self.cluster = Cluster(self.device, tuple(levels))
        rungs = [(size, link.name, links) for size, link, links in cluster.ladder]
        self.levels = [dict(zip(("size", "link", "links"), rung, strict=True)) for rung in rungs]
        names = [name for _, name, _ in rungs]
        self.names = [
            name if names.count(name) == 1 else f"{name}, level {i + 1}"
            for i, name in enumerate(names)
        ]
        self._exchanged: dict[tuple[Any, ...], Exchanged] = {}
        self._known: dict[tuple[Any, ...], Any] = {}  # what `passes`, `memory`, `step` work out

    def planner_of_links(self, end: Literal["slow", "quick"]) -> Planner:
        """Return the planner whose links reach the lower or the upper end of their rates."""

        def planner() -> Planner:
            sign = -1 if end == "slow" else 1
            levels = [
                level._replace(link=level.link.scale_rates(exp(sign * level.link.spread)))
                for level in self.cluster.ladder
            ]
            return self.on(Cluster(self.device, tuple(levels)))

        return self.once(("links", end), planner)

    @property
    def link_slowdown(self) -> float:
        """How many times longer exchanges take at the slow end of what all links reach."""
        return exp(max((level.link.spread for level in self.cluster.ladder), default=0.0))

    def once(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Return what `make` works out, once for a key, until the links are others."""
        result: Any = self._known.get(key, _UNKNOWN)  # a key is long: it is looked up once
        if result is _UNKNOWN:
            result = self._known[key] = make()
        return cast("T", result)

    def layout(self, plan: Plan, _microbatch: int) -> Layout:
        """Return who has which layers under a plan."""
        return layout_of(self.shape.kinds, plan)

    def update_s(
        self, plan: Plan, moved: float, parameters: float, batch: int, rounds: int
    ) -> float:
        """Return the seconds in which a device applies so many gradients.

        A stack that says no bytes of an update has kernels of its own for each weight.
        """
        if self.is_whole(plan):
            return alone.update_s(self.alone(batch), batch, rounds)
        if self.constant("update_bytes"):
            return self.seconds([fused_update(moved, parameters)])[0]
        all_s = sum(self.whole[name].update_s * count for name, count in self.often.items())
        return all_s * parameters / max(1, self.added(lambda piece: piece.parameters))

    @cached_property
    def often(self) -> Mapping[str, int]:
        """How often each piece comes in the network."""
        return {**Counter(self.shape.kinds), FIRST: 1, LAST: 1}

    def is_whole(self, plan: Plan) -> bool:
        """Whether each device runs the step of the whole network, and shares nothing of it."""
        trains = self.use == "training" and plan.tensor == plan.pipeline == plan.context == 1
        shares = plan.zero or plan.expert > 1 or plan.offload != "none"
        return trains and (plan.data == 1 or not shares)

    def in_buckets(self, plan: Plan) -> bool:
        """Whether gradients are exchanged in buckets while the last backward pass still runs."""
        return self.is_whole(plan) and self.constant("data_hidden") > 0

    def rows_of(self, _load: Load) -> Container[str] | None:
        """Return the rows that a device has, None for all."""
        return None

    def open_s(
        self, plan: Plan, kind: str, size: float, group: Sequence[int], load: Load, batch: int
    ) -> float | None:
        """Return the seconds that are waited for an exchange, None for the stack's share."""
        if not self.in_buckets(plan):
            return None
        whole_s = self.exchange(kind, size, group).seconds
        if kind == "all_gather" or not whole_s:
            return whole_s
        step, rows = self.alone(batch), self.rows_of(load)
        each = exposed_exchange_s(
            step, batch, lambda part: self.exchange(kind, part, group).seconds, row_names=rows
        )
        return min(whole_s, each)

    def within(
        self, plan: Plan, batch: int, step_s: float, exposed_s: float, rounds: int
    ) -> tuple[float, float]:
        """Return between which seconds a step lies whose links reach what is predicted.

        Of the whole network its kernels and its host say it, else the published steps of others.
        The step waits `exposed_s` of `step_s` for exchanges.
        """
        if not self.is_whole(plan):
            low, high, _ = self.bounds
            return step_s * low, step_s * high
        step = self.alone(batch, "full" if plan.recompute == "full" else "none")
        return alone.between(step, batch, step_s, exposed_s, rounds)

    @cached_property
    def bounds(self) -> Bounds:
        """The interval of a step, as shares of it: wider on devices that nobody measured."""
        return alone.step_bounds(self.seen, self.tuning, bool(self.shape.experts))

    @cached_property
    def plan_bounds(self) -> Bounds:
        """By how much plans of this device differ from each other, as shares of a step."""
        return alone.plan_bounds(self.seen, bool(self.shape.experts))

    def interval_of(self, kind: str, value: float) -> Interval:
        """Return a value with the interval of a kind of work; without one by other methods."""
        if self.method.name != "calibrated":
            return Interval(value)
        return conformal.find_ends(kind, self.seen).of(value)

    def held_alone(self, plan: Plan, batch: int, rounds: int) -> Mapping[str, float] | None:
        """Return what one device holds that runs the whole step at once; None for other plans."""
        one = (
            plan.device_count == rounds == 1
            and plan.offload == "none"
            and not plan.recompute_layers
        )
        if not one or plan.recompute == "selective" or self.low or self.use != "training":
            return None
        return alone.held_alone(self.alone(batch, plan.recompute), batch)

    def whole_s(self, end_s: float, devices: int) -> float:
        """Return the seconds of a step of devices that are done at `end_s`, the slowest later."""
        many = self.constant("straggling_devices")
        late = self.constant("straggling") * log1p((devices - 1) / many)
        return end_s * (1 + late) + self.constant("step_s")

    def constant(self, name: str) -> float:
        """Return a number of the planner's use, what changes nothing where nobody says it.

        Raises `InputError` for a name that no such number has.
        """
        if name not in self._constants:
            check_choice("constant", name, self._constants, self.use)
        return self._constants[name]

    def flag(self, name: str) -> bool:
        """Whether a stack does what a constant that is true or false says."""
        return self._flags[check_choice("flag", name, self._flags, self.use)]

    def pieces(self, plan: Plan, microbatch: int, rounds: int = 1) -> dict[str, Piece]:
        """Return the pieces of a rank under a plan, for microbatches of so many sequences.

        Of the whole network their seconds are those of its step of so many `rounds`.
        """
        if not self.is_whole(plan):
            return self.of_rank(plan, microbatch)
        is_full = plan.recompute == "full" and not plan.recompute_layers
        return self.of_all(microbatch, rounds, is_full)

    def of_rank(self, plan: Plan, microbatch: int) -> dict[str, Piece]:
        """Return the pieces of a rank's graph, which has one layer of each kind."""
        has_sequence = plan.sequence and plan.tensor > 1
        context_method = plan.context_method if plan.context > 1 else "gather"
        ranks = (plan.tensor, plan.context, plan.expert, plan.expert_tensor)
        key = (microbatch, plan.imbalance, ranks, has_sequence, context_method)
        if key not in self._pieces:
            rank_plan = Plan(
                tensor=plan.tensor,
                context=plan.context,
                expert=plan.expert,
                expert_tensor=plan.expert_tensor,
                sequence=has_sequence,
                context_method=context_method,
                data=plan.expert,  # experts lie inside the data ranks
            )
            graph = self._rank(False, rank_plan, microbatch)
            regathers = ("tensor", "context") if has_sequence else ()
            regathers = ("context", *regathers) if context_method == "ring" else regathers
            model = self.step.of(graph, microbatch)
            self._pieces[key] = pieces(model, regathers, plan.imbalance)
        return self._pieces[key]

    def of_all(self, batch: int, rounds: int, recomputes: bool) -> dict[str, Piece]:
        """Return the pieces of the whole network on one device.

        Args:
            batch: the sequences of a microbatch.
            rounds: the microbatches of a step.
            recomputes: whether all layers compute their activations again.
        """
        kinds = self.shape.kinds

        def timed(recompute: str) -> dict[str, Piece]:
            pieces = self.of_rank(Plan(), batch)
            return alone.as_timed(pieces, self.alone(batch, recompute), batch, kinds, rounds)

        def pieces() -> dict[str, Piece]:
            kept = timed("none")
            return alone.as_recomputed(kept, timed("full")) if recomputes else kept

        return self.once(("of all", batch, rounds, recomputes), pieces)

    def exchange(self, kind: str, size_bytes: float, group: Sequence[int]) -> Exchanged:
        """Return the seconds of an exchange among ranks; raises `InputError` without a link."""
        if len(group) == 1 or not size_bytes:
            return Exchanged(0.0, "")
        key = (kind, size_bytes, group)
        if key not in self._exchanged:
            fabric, link = self.once(("fabric", group), partial(self._fabric, group))
            once = partial(once_a_part, spread=self.shape.reaches)
            ways: Mapping[str, Collective] = {"all_reduce": all_reduce, "once": once, **EXCHANGES}
            moved_s = ways[kind](size_bytes, len(group), fabric)
            start = Startup(*(self.constant(f"exchange_{name}") for name in Startup._fields))
            if kind == "send":
                start = start._replace(s=min(start.s, self.constant("send_s")))
            self._exchanged[key] = Exchanged(start.after(moved_s, fabric), link)
        return self._exchanged[key]

    def neighbours(self, group: Sequence[int]) -> Sequence[int]:
        """Return two ranks of a group that follow each other, over the outermost link there is."""
        apart = partial(max, pairwise(group), key=lambda two: self.cluster.level_of(two) or 0)
        return self.once(("neighbours", group), apart)

    def moved(self, size_bytes: float) -> Exchanged:
        """Return the seconds of moving bytes between a device and its host, one way."""
        if (link := self.host) is None:
            what = "what joins a device to its host, such as pcie-5-x16"
            raise InputError(f"plan: --offload needs --host-link LINK, {what}")
        return Exchanged(self.method.copies(link).message_s(size_bytes), link.name)

    def _fabric(self, group: Sequence[int]) -> tuple[Fabric, str]:
        place, fabric = self.cluster.level_of(group), fabric_of_group(self.cluster, group)
        if place is None or fabric is None:
            raise InputError("several devices need a link: --link LINK (steptime list links)")
        return self.method.joins(fabric, self.device.memory_bytes_per_s), self.names[place]

    def _traffic_s(self, kind: str, moved: float, flop: float = 0.0) -> float:
        """Return the seconds of a kernel that moves bytes in float32, such as an optimizer's."""
        return self.seconds([Kernel("", kind, "update", "float32", "vector", flop, moved)])[0]

    def seconds(self, kernels: Sequence[Kernel], device: Device | None = None) -> list[float]:
        """Return the seconds of each kernel on the device as the method sees it, or on another."""
        columns = Kernels(kernels)
        result = self.method.prices(columns, self.seen if device is None else device)
        seconds: list[float] = result.value[columns.which].tolist()
        return seconds

    @cached_property
    def room_bytes(self) -> float:
        """The bytes that a device has, infinite where that is not known."""
        usable = self.device.usable_bytes
        return inf if usable is None else usable

    @cached_property
    def spare(self) -> float:
        """The share of its memory by which predictions of what a device holds miss."""
        return catalog.constants_of("gpu")["plan.spare"].value

    @property
    def peak(self) -> float:
        """FLOP/s of a device in the type that products compute in."""
        return self.device.peak_flop_per_s[self.low or self.computes]

    @cached_property
    def draws(self) -> tuple[float, float] | None:
        """Watts of a device that waits, and its most; None where not known."""
        return draws(self.seen)

    @cached_property
    def whole(self) -> dict[str, Piece]:
        """The pieces of the network on one device, a sequence at a time."""
        return self.of_rank(Plan(), 1)

    @cached_property
    def parameters(self) -> int:
        """Parameters of the whole network, trained or not."""
        return self.added(lambda piece: piece.parameters + piece.frozen)

    @cached_property
    def active(self) -> float:
        """Parameters that a token reaches: of experts, its share."""
        return self.parameters - self.added(lambda piece: piece.routed) * (1 - self.shape.reached)

    def added(self, what: Callable[[Piece], int]) -> int:
        """Return the sum of something over all pieces of the network."""
        return sum(what(self.whole[name]) * count for name, count in self.often.items())

    @cached_property
    def flops(self) -> Flops:
        """FLOP of the forward pass of a sequence."""
        graph = self._rank(False, Plan(), 1)
        result = [0.0, 0.0]
        for op in (op for op in graph.ops if op.part == "forward" and OPS[op.kind].work):
            times = self.often.get(piece_of(op.name), 0)  # none stands for a layer of no kind
            result[OPS[op.kind].work == "attention"] += op_work(graph, op)[0] * times
        return Flops(*result)

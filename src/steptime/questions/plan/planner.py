"""A network on a cluster, ready to be asked for plans: pieces and exchanges are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import pairwise
from math import hypot, inf, log1p
from typing import Any, NamedTuple, TypeVar, cast

from steptime.core.dtypes import PRECISIONS, SIZE_BYTES, precision
from steptime.core.errors import InputError, one_of
from steptime.core.table import picked
from steptime.core.workload import Plan
from steptime.hardware import catalog
from steptime.hardware.constants import typed
from steptime.hardware.device import Cluster, Device, Link
from steptime.network.count import op_work
from steptime.network.families.family import Family
from steptime.network.ops import OPS
from steptime.prediction.calibrated.interval import Bounds, bounds
from steptime.prediction.calibrated.power import draws
from steptime.prediction.collectives import EXCHANGES, Fabric, fabric_of_group, ring
from steptime.prediction.kernel import Kernel, interval_of
from steptime.prediction.kernels import Kernels
from steptime.prediction.method import Method
from steptime.questions.plan.pieces import (
    FIRST,
    LAST,
    LOW_BYTES,
    Piece,
    piece_of,
    pieces,
    rank_of_one,
    seen_by_plan,
)
from steptime.questions.plan.stages import Layout, Load, layout_of

_HOST = catalog.constants_of("host")
HOST_BYTES_PER_S = _HOST["memory.bytes_per_s"].value
HOST_DEVICES = int(_HOST["memory.devices"].value)
OPTIMIZER_FLOP = 13  # of Adam a parameter (`network/ops/loss.py`)
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


@dataclass(frozen=True)
class Shape:
    """A language model as plans need it: its layers' kinds, in order, and its parameters.

    `one` are hyperparameters of the same network with one layer of each kind, `length` the tokens
    of a sequence, `tied` whether first and last stage share a table; a token reaches the share
    `reached` of the routed `experts`.
    """

    family: Family
    one: Mapping[str, Any]
    kinds: tuple[str, ...]
    length: int
    vocabulary: int
    tied: bool
    experts: int
    reached: float
    label: str
    unit: str = "tokens"
    batch: int | None = None  # usual, of networks that are no language models


def whole_model(weight_bytes: float, update_bytes: float) -> dict[str, float]:
    """Return the constants of a training whose weights, gradients and states are of one type.

    Adam keeps two states a parameter; its update moves the share of `update_bytes`, of float32.
    Logits of 4 bytes have no copy in float32.
    """
    whole = SIZE_BYTES["float32"]
    return {
        "state_bytes": 2 * weight_bytes,
        "gradient_bytes": weight_bytes,
        "update_bytes": update_bytes * weight_bytes / whole,
        **dict.fromkeys(("refresh_bytes", "cast_bytes"), 0.0),
        **({"logit_bytes": 0.0} if weight_bytes >= whole else {}),
    }


class Planner:
    """Prices what plans are made of, once.

    `levels` say how the devices are joined, from the inside out; `host` joins a device to the
    memory of its host, None where nobody says.
    """

    weight_bytes = 2.0  # of a weight where it computes, beside which states have one in 32 bit

    def __init__(
        self,
        shape: Shape,
        cluster: Cluster,
        method: Method,
        dtype: str,
        gradients: int = 0,
        use: str = "training",
    ) -> None:
        self.host: Link | None = None
        self.use = use
        self.shape = shape
        self.method = method
        self.dtype = dtype
        self.low = dtype if dtype in LOW_BYTES else ""
        self.in_memory = "bfloat16" if self.low else dtype.removesuffix("-mixed")
        self.device: Device = cluster.device
        self.seen = seen_by_plan(method, self.device, self.in_memory)
        self._constants, self._flags = typed(use, self.seen.constants)
        if use == "training" and dtype in PRECISIONS and not precision(dtype).mixed:
            self.weight_bytes = float(SIZE_BYTES[dtype])
            self._constants |= whole_model(self.weight_bytes, self.constant("update_bytes"))
        own = self.constant("low_gradient_bytes") if self.low and use == "training" else 0.0
        if gradients or own:
            self._constants["gradient_bytes"] = gradients / 8 or own
        self._pieces: dict[tuple[Any, ...], dict[str, Piece]] = {}
        self.traffic_s = cache(self._traffic_s)
        self.join(cluster)

    def on(self, cluster: Cluster) -> Planner:
        """Return the planner of another number of these devices, whose layers are priced."""
        found = copy(self)
        found.join(cluster)
        return found

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

    def once(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Return what `make` works out, once for a key, until the links are others."""
        found: Any = self._known.get(key, _UNKNOWN)  # a key is long: it is looked up once
        if found is _UNKNOWN:
            found = self._known[key] = make()
        return cast("T", found)

    def layout(self, plan: Plan, _micro_batch: int) -> Layout:
        """Return who has which layers under a plan."""
        return layout_of(self.shape.kinds, plan)

    def update_s(self, moved: float, parameters: float, _micro_batch: int) -> float:
        """Return the seconds in which a device applies so many gradients."""
        return self.traffic_s("adam", moved, OPTIMIZER_FLOP * parameters)

    def open_s(
        self, _kind: str, _size: float, _group: Sequence[int], _load: Load, _b: int
    ) -> float | None:
        """Return the seconds of an exchange that are waited for, None for the stack's share."""
        return None

    def within(self, step_s: float, _exposed_s: float, _b: int) -> tuple[float, float]:
        """Return between which seconds a step lies, of which so many are waited for exchanges."""
        low, high, _ = self.bounds
        return step_s * low, step_s * high

    @cached_property
    def bounds(self) -> Bounds:
        """The interval of a step, as shares of it: wider where its stack saw no such device."""
        constants, seen = self.seen.constants, catalog.stack(self.method.settings.stack).seen
        like = {catalog.device(name).architecture for name in seen.get("devices", ())}
        if like and self.device.architecture not in like and self.device.kind == "gpu":
            wider = hypot(constants["interval.beyond"], constants["interval.plan_unseen"])
            constants = {**constants, "interval.beyond": wider}
        return bounds("experts" if self.shape.experts else "plan", constants)

    def held_alone(self, _plan: Plan, _b: int, _rounds: int) -> Mapping[str, float] | None:
        """Return the parts of one device's memory where a prediction says them, None elsewhere."""
        return None

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
            one_of("constant", name, self._constants, self.use)
        return self._constants[name]

    def flag(self, name: str) -> bool:
        """Whether a stack does what a constant that is true or false says."""
        return self._flags[one_of("flag", name, self._flags, self.use)]

    def pieces(self, plan: Plan, micro_batch: int) -> dict[str, Piece]:
        """Return the pieces of a rank under a plan, for micro-batches of so many sequences."""
        sequence = plan.sequence and plan.tensor > 1
        way = plan.context_method if plan.context > 1 else "gather"
        key = (plan.tensor, plan.context, plan.expert, sequence, micro_batch, way)
        if key not in self._pieces:
            sizes = picked(plan, "tensor context expert")
            sizes |= {"data": plan.expert}  # inside which experts lie
            one = Plan(**sizes, sequence=sequence, context_method=way)
            shape = self.shape
            graph = rank_of_one(shape.family, shape.one, one, self.in_memory, micro_batch)
            regathers = ("tensor", "context") if sequence else ()
            regathers = ("context", *regathers) if way == "ring" else regathers
            self._pieces[key] = pieces(
                graph, self.method, self.seen, self.in_memory, self.low, regathers
            )
        return self._pieces[key]

    def exchange(self, kind: str, size_bytes: float, group: Sequence[int]) -> Exchanged:
        """Return the seconds of an exchange among ranks; raises `InputError` without a link."""
        if len(group) == 1 or not size_bytes:
            return Exchanged(0.0, "")
        key = (kind, size_bytes, group)
        if key not in self._exchanged:
            fabric, link = self.once(("fabric", group), partial(self._fabric, group))
            one = ring if kind == "all_reduce" else EXCHANGES[kind]
            moved_s = one(size_bytes, len(group), fabric)
            large_s, slow = (self.constant(f"exchange_{name}") for name in ("large_s", "slow"))
            seconds = moved_s * max(1.0, slow) + self.constant("exchange_s")
            if large_s:  # by a protocol that starts later and reaches the link's rate
                seconds = min(seconds, moved_s + large_s)
            self._exchanged[key] = Exchanged(seconds, link)
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
        return Exchanged(self.method.joins(link).message_s(size_bytes), link.name)

    def _fabric(self, group: Sequence[int]) -> tuple[Fabric, str]:
        place, fabric = self.cluster.level_of(group), fabric_of_group(self.cluster, group)
        if place is None or fabric is None:
            raise InputError("several devices need a link: --link LINK (steptime list links)")
        return self.method.joins(fabric, self.device.memory_bytes_per_s), self.names[place]

    def _traffic_s(self, kind: str, moved: float, flop: float = 0.0) -> float:
        """Return the seconds of a kernel that moves bytes in float32, such as an optimizer's."""
        kernel = Kernel("", kind, "update", "float32", "vector", flop, moved)
        return float(interval_of(self.method.price(kernel, self.seen)).value)

    def seconds(self, kernels: Sequence[Kernel], device: Device | None = None) -> list[float]:
        """Return the seconds of each kernel on the device as the method sees it, or on another."""
        columns = Kernels(kernels)
        found = self.method.prices(columns, self.seen if device is None else device)
        seconds: list[float] = found.value[columns.which].tolist()
        return seconds

    @cached_property
    def room_bytes(self) -> float:
        """The bytes that a device has, infinite where that is not known."""
        usable = self.device.usable_bytes
        return inf if usable is None else usable

    @property
    def peak(self) -> float:
        """FLOP/s of a device in the type that products compute in."""
        return self.device.peak_flop_per_s[self.low or precision(self.in_memory).compute]

    @cached_property
    def draws(self) -> tuple[float, float] | None:
        """Watts of a device that waits, and its most; None where not known."""
        return draws(self.seen)

    @cached_property
    def whole(self) -> dict[str, Piece]:
        """The pieces of the network on one device, a sequence at a time."""
        return self.pieces(Plan(), 1)

    @cached_property
    def parameters(self) -> int:
        """Parameters of the whole network."""
        return self.of_all(lambda piece: piece.parameters)

    @cached_property
    def active(self) -> float:
        """Parameters that a token reaches: of experts, its share."""
        return self.parameters - self.of_all(lambda piece: piece.routed) * (1 - self.shape.reached)

    def of_all(self, what: Callable[[Piece], int]) -> int:
        """Return the sum of something over all pieces of the network."""
        times = {**Counter(self.shape.kinds), FIRST: 1, LAST: 1}
        return sum(what(self.whole[name]) * count for name, count in times.items())

    @cached_property
    def flops(self) -> Flops:
        """FLOP of the forward pass of a sequence."""
        graph = rank_of_one(self.shape.family, self.shape.one, Plan(), self.in_memory, 1)
        times, found = Counter(self.shape.kinds), [0.0, 0.0]
        for op in graph.ops:
            work = OPS[op.kind].work
            if op.part == "forward" and work:
                often = times.get(piece_of(op.name), 1)
                found[work == "attention"] += op_work(graph, op)[0] * often
        return Flops(*found)

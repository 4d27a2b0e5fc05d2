"""A piece of one rank under a plan: its forward and backward pass, and what they wait for."""

from __future__ import annotations

from typing import NamedTuple

from steptime.core.workload import Plan
from steptime.plans.pieces import FIRST, LAST, Piece, Trade
from steptime.plans.planner import Planner
from steptime.plans.stages import strides

HALF = 2  # bytes of a weight or an activation in 16 bit


class Pass(NamedTuple):
    """A piece's forward or backward pass: seconds in all, and what they are made of."""

    seconds: float
    compute: float
    recompute: float
    host: float
    exposed: float


class Step:
    """The arithmetic of one plan."""

    def __init__(self, planner: Planner, plan: Plan, micro_batch: int, order: str) -> None:
        self.planner, self.plan, self.micro_batch = planner, plan, micro_batch
        self.strides = strides(plan, order)
        self.found = planner.pieces(plan, micro_batch)
        self.replicas = plan.data * plan.context

    def exposed(self, trade: Trade) -> float:
        """Return the seconds that a rank waits for an exchange of a micro-batch."""
        share = self.hidden(trade)
        return self.seconds(trade) * (1 - share)

    def seconds(self, trade: Trade) -> float:
        """Return the seconds of an exchange of a micro-batch."""
        return self.planner.exchange(trade.kind, trade.bytes, trade.ranks, trade.stride).seconds

    def hidden(self, trade: Trade) -> float:
        """Return the share of an exchange that is computed beside."""
        if trade.stride < self.plan.tensor:
            return self.planner.constant("tensor_hidden")
        return self.planner.constant("expert_hidden") if trade.kind == "all_to_all" else 0.0

    def sharded(self, piece: Piece) -> tuple[float, float]:
        """Return the seconds of gathering a piece's weights, and of scattering its gradients."""
        if self.plan.zero < 3:
            return 0.0, 0.0
        planner, size = self.planner, piece.parameters
        stride = self.strides["context"]
        gather = planner.exchange("all_gather", HALF * size, self.replicas, stride).seconds
        of_gradients = planner.constant("gradient_bytes") * size
        scatter = planner.exchange("reduce_scatter", of_gradients, self.replicas, stride).seconds
        cast = planner.traffic_s("cast", planner.constant("cast_bytes") * size / self.replicas)
        return gather + cast.value, scatter

    def passes(self, name: str) -> tuple[Pass, Pass]:
        """Return the forward and the backward pass of a piece."""
        shards = (self.replicas, self.strides["context"]) if self.plan.zero == 3 else ()
        key = (id(self.found), name, self.plan.recompute, *shards)
        if key not in self.planner.passes:
            self.planner.passes[key] = self.computed(name)
        found: tuple[Pass, Pass] = self.planner.passes[key]
        return found

    def computed(self, name: str) -> tuple[Pass, Pass]:
        """Return the forward and the backward pass of a piece, worked out."""
        piece, planner = self.found[name], self.planner
        ends = name in (FIRST, LAST)
        again = 0.0 if ends else self.again_s(piece)
        gather, scatter = self.sharded(piece)
        layer_s = 0.0 if ends else planner.constant("layer_s")
        layer_s += planner.constant("routed_s") if piece.routed else 0.0
        waits = [
            sum(self.exposed(one) for one in piece.trades if one.pass_ == pass_)
            for pass_ in ("forward", "backward")
        ]
        grown = planner.constant("accumulate_bytes") * piece.parameters
        grow_s = planner.traffic_s("add", grown).value if grown > 1 else 0.0
        host = [one + layer_s for one in piece.host_s]
        recomputes = again and self.plan.recompute == "full"
        if recomputes:
            waits[1] += waits[0]
            host[1] += host[0]
        fore = self.one(piece.forward.value, 0.0, waits[0], host[0], gather)
        back = self.one(piece.backward.value + grow_s, again, waits[1], host[1], gather + scatter)
        return fore, back

    def one(self, compute: float, again: float, waits: float, host: float, shards: float) -> Pass:
        """Return a pass of which exchanges of weights run beside, and the host ahead."""
        beside = shards * self.planner.constant("shard_hidden")
        busy = compute + again
        slowed = self.planner.constant("slowed") * min(beside, busy)
        exposed = waits + max(0.0, beside - busy) + shards - beside
        device = busy + slowed + exposed
        late = max(0.0, host - device)
        return Pass(device + late, compute + slowed, again, late, exposed)

    def again_s(self, piece: Piece) -> float:
        """Return the seconds of the kernels that the backward pass repeats."""
        whole = piece.forward.value - piece.last_s * self.planner.constant("stops_early")
        share = self.planner.constant("selective_again")
        some = piece.core_s + share * (piece.forward.value - piece.core_s)
        return {"none": 0.0, "selective": some, "full": whole}[self.plan.recompute]

"""One rank under a plan: its stages, and the passes of their parts, with what they wait for."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from steptime.core.dtypes import SIZE_BYTES
from steptime.planning.faults import Asked
from steptime.planning.pieces import Piece, Trade
from steptime.planning.pipeline import Stage
from steptime.planning.planner import Exchanged, Planner
from steptime.planning.stages import Group, Layout, Load, Part, groups
from steptime.prediction.host import Host, behind_host
from steptime.prediction.training import LAST


class Wait(NamedTuple):
    """An exchange: the group of ranks, its kind and link, bytes of a device, and seconds.

    It takes `total_s`, for which the device waits `exposed_s`.
    """

    group: str
    collective: str
    link: str
    bytes: float
    total_s: float
    exposed_s: float


class Pass(NamedTuple):
    """A part's forward or backward pass: seconds, what they are made of, and its host's.

    By `saved_s` it is shorter than without another microbatch beside it.
    """

    seconds: float
    compute: float
    recompute: float
    host: float
    waits: tuple[Wait, ...]
    saved_s: float = 0.0


class Step:
    """The arithmetic of one plan."""

    def __init__(self, planner: Planner, asked: Asked) -> None:
        self.planner, self.plan, self.order = planner, asked.plan, asked.order
        self.microbatch, self.rounds = asked.microbatch, asked.rounds
        self.pieces = planner.pieces(self.plan, self.microbatch, self.rounds)

    @cached_property
    def shape(self) -> Layout:
        """Who has which layers."""
        return self.planner.layout(self.plan, self.microbatch)

    @property
    def own_share(self) -> float:
        """The share of microbatches that pass each of a device's layers."""
        return 0.5 if self.plan.goes_both_ways else 1.0

    @property
    def of_layers(self) -> tuple[object, ...]:
        """What tells apart who has which layers, and what they do again, of the same pieces."""
        plan = self.plan
        again = (plan.recompute, plan.recompute_layers, plan.goes_both_ways, plan.overlaps)
        return id(self.pieces), plan.pipeline, plan.virtual, plan.stages, *again

    @property
    def as_stages(self) -> tuple[object, ...]:
        """What tells apart the seconds of the stages."""
        plan = self.plan
        shards = (plan.zero, plan.shards, plan.replicas) if plan.zero >= 2 else ()
        return *self.of_layers, plan.offload, self.order, *shards

    @cached_property
    def send(self) -> Wait:
        """What a stage hands to the next for a microbatch, and how long it computes nothing."""
        if self.plan.pipeline == 1:
            return Wait("pipeline", "send", "", 0.0, 0.0, 0.0)
        size = float(self.pieces[LAST].held.input)
        if self.plan.tensor > 1 and not self.plan.sequence:
            size /= self.plan.tensor  # scattered, and gathered again inside
        one = self.planner.exchange("send", size, self.planner.neighbours(self.groups["pipeline"]))
        open_ = one.seconds * (1 - self.planner.constant("send_hidden"))
        return Wait("pipeline", "send", one.link, size, one.seconds, open_)

    @cached_property
    def stages(self) -> list[Stage]:
        """The seconds of each stage of the pipeline for a microbatch."""
        of_load = {load: self.stage(load) for load in {*self.shape.stages}}
        return [of_load[load] for load in self.shape.stages]

    def stage(self, load: Load) -> Stage:
        """Return the seconds of a stage, of whose parts the host issues one after the other."""
        sums = [0.0] * 5
        for part, count in load:
            fore, back = self.passes(part)
            weight = self.pieces[part.name].weight_s
            each = (fore.seconds, back.seconds, fore.host, back.host, weight)
            sums = [whole + own * count for whole, own in zip(sums, each, strict=True)]
        fore_s, back_s, fore_host, back_host, weight = sums
        late, host_s, send_s = 0.0, fore_host + back_host, self.send.exposed_s
        if host_s > fore_s + back_s:
            late = host_s - fore_s - back_s
            ahead = Host((fore_host, host_s, host_s), waits=False)
            fore_s, back_s = map(float, behind_host((fore_s, back_s, 0.0), ahead)[:2])
        return Stage(fore_s + send_s, back_s + send_s, weight, late)

    @cached_property
    def groups(self) -> Mapping[str, Group]:
        """The ranks that a rank exchanges with, by what for."""
        plan = self.plan
        sizes = (plan.tensor, plan.context, plan.data, plan.pipeline)
        return groups(sizes, plan.expert, plan.shards, self.order, plan.routers)

    def exchanges(self, name: str, pass_: str) -> list[Wait]:
        """Return what a piece exchanges in a pass of a microbatch, and what of it is not hidden.

        What goes round a ring is sent once for keys and values.
        """
        piece, result, in_rings = self.pieces[name], [], 0.0
        for trade in (one for one in piece.trades if one.pass_ == pass_):
            if trade.group == "context" and self.plan.context_method == "ring":
                in_rings += trade.bytes
                continue
            size, one = trade.bytes, None
            if trade.group == "expert":
                size, one = self.routed(trade)
            one = one or self.planner.exchange(trade.kind, size, self.groups[trade.group])
            open_ = one.seconds * (1 - self.hidden(trade))
            result.append(Wait(trade.group, trade.kind, one.link, size, one.seconds, open_))
        if in_rings:
            result.append(self.in_a_ring(piece, pass_, in_rings))
        return result

    def routed(self, trade: Trade) -> tuple[float, Exchanged | None]:
        """Return the bytes of tokens on their way to experts or back, and their exchange.

        It is None where each expert's copy is sent by itself. The busiest rank has `imbalance`
        times the tokens of the mean.
        """
        planner, plan = self.planner, self.plan
        size = trade.bytes * plan.imbalance
        if plan.sequence and not plan.routes_per_rank:  # each sends its own tokens
            size /= plan.tensor
        if trade.goes_out and planner.low and planner.constant("dispatch_bytes"):
            size *= planner.constant("dispatch_bytes") / SIZE_BYTES[planner.computes]
        if not planner.flag("sent_once"):
            return size, None
        one = planner.exchange("once", size / planner.shape.per_token, self.groups["expert"])
        return size, one

    def in_a_ring(self, piece: Piece, pass_: str, whole: float) -> Wait:
        """Return what a ring sends of all ranks' keys and values, `whole` bytes.

        In a pass forward these go round once; backward once more, and their gradients, too. Each
        of the ranks' rounds is beside the attention to one rank's part.
        """
        ranks, backward = len(self.groups["context"]), pass_ == "backward"
        rounds, each = ranks - 1, whole / ranks * (2 if backward else 1)
        one = self.planner.exchange("send", each, self.planner.neighbours(self.groups["context"]))
        open_ = max(0.0, one.seconds - piece.core_s[backward] / ranks)
        moved, seconds = rounds * each, rounds * one.seconds
        return Wait("context", "send", one.link, moved, seconds, rounds * open_)

    def hidden(self, trade: Trade) -> float:
        """Return the share of an exchange that is computed beside.

        What adds up gradients of inputs may run beside the products that make those of weights.
        """
        if trade.group != "tensor":
            return 0.0
        share = self.planner.constant("tensor_hidden")
        adds = trade.pass_ == "backward" and trade.kind in ("all_reduce", "reduce_scatter")
        return max(share, self.planner.constant("backward_hidden")) if adds else share

    def gathered(self, piece: Piece) -> tuple[list[Wait], list[Wait]]:
        """Return what gathers a piece's weights, and what scatters its gradients."""
        planner, zero = self.planner, self.plan.zero
        gathers, scatters = list[Wait](), list[Wait]()
        if zero < 2:
            return gathers, scatters
        routed = piece.routed if self.plan.expert > 1 else 0
        dense = (piece.parameters - routed, piece.frozen_bytes, self.groups["shard"])
        for size, frozen, group in (dense, (routed, 0, self.groups["expert_shard"])):
            if len(group) == 1 or not size + frozen:
                continue
            if zero == 3:
                moved = planner.weight_bytes * size + frozen
                one = planner.exchange("all_gather", moved, group)
                gathers.append(Wait("data", "all_gather", one.link, moved, one.seconds, 0.0))
            moved = planner.constant("gradient_bytes") * size
            one = planner.exchange("reduce_scatter", moved, group)
            scatters.append(Wait("data", "reduce_scatter", one.link, moved, one.seconds, 0.0))
        return gathers, scatters

    def passes(self, part: Part) -> tuple[Pass, Pass]:
        """Return the forward and the backward pass of a part."""
        plan = self.plan
        shards = (plan.zero, plan.shards, plan.replicas) if plan.zero >= 2 else ()
        how = (plan.recompute, plan.offload, plan.overlaps, self.order)
        key = ("pass", id(self.pieces), part, *how, *shards)
        return self.planner.once(key, lambda: self.computed(part))

    def computed(self, part: Part) -> tuple[Pass, Pass]:
        """Return the forward and the backward pass of a part, worked out."""
        piece = self.pieces[part.name]
        again = self.again_s(piece) if part.again else 0.0
        gathers, scatters = self.gathered(piece)
        waits = [self.exchanges(part.name, pass_) for pass_ in ("forward", "backward")]
        host = [one + self.called_s(part) for one in piece.host_s]
        if again and self.plan.recompute == "full":
            waits[1] += waits[0]
            host[1] += host[0]
        away = self.plan.offload in ("activations", "both") and not part.is_end
        moved = self.kept(part) if away else 0.0  # to the host, and back in the backward pass
        fore = self.one(piece.forward_s, 0.0, waits[0], host[0], gathers, moved)
        back = self.one(piece.backward_s, again, waits[1], host[1], [*gathers, *scatters], moved)
        return self.beside(fore, back) if self.plan.overlaps else (fore, back)

    def called_s(self, part: Part) -> float:
        """Return the seconds of what many devices call beside a layer's ops, in a pass."""
        plan, planner = self.plan, self.planner
        if part.is_end or plan.device_count == 1 or planner.is_whole(plan):
            return 0.0
        seconds = planner.constant("layer_s")
        if self.pieces[part.name].routed:
            experts = planner.shape.experts / plan.expert
            seconds += planner.constant("routed_layer_s") + planner.constant("expert_s") * experts
        return seconds

    def beside(self, fore: Pass, back: Pass) -> tuple[Pass, Pass]:
        """Return both passes where tokens of one are exchanged beside the other's kernels.

        These are of another microbatch. Of exchanges longer than all else the rest is waited for;
        what is hidden slows kernels down.
        """
        both = [[one for one in pass_.waits if one.group == "expert"] for pass_ in (fore, back)]
        waits = [sum(one.exposed_s for one in some) for some in both]
        rest = fore.seconds + back.seconds - sum(waits)
        open_ = max(0.0, 1 - rest / sum(waits)) if sum(waits) else 0.0
        result = []
        for pass_, waited in zip((fore, back), waits, strict=True):
            hidden = waited * (1 - open_)
            slowed = self.planner.constant("slowed") * hidden
            every = [
                one._replace(exposed_s=one.exposed_s * open_) if one.group == "expert" else one
                for one in pass_.waits
            ]
            seconds, compute = pass_.seconds - hidden + slowed, pass_.compute + slowed
            result.append(Pass(seconds, compute, *pass_[2:4], tuple(every), hidden - slowed))
        return result[0], result[1]

    def alone_s(self, load: Load) -> float:
        """Return what is waited for tokens of microbatches that have no other one beside them.

        While a pipeline fills and drains its devices have a pass forward and one back of a
        microbatch alone, with dualpipe one of half of the devices' less one back.
        """
        plan, saved = self.plan, 0.0
        for part, count in load if plan.overlaps else ():
            fore, back = self.passes(part)
            saved += count * (back.saved_s if plan.goes_both_ways else fore.saved_s + back.saved_s)
        if plan.goes_both_ways:
            return saved / 2 * (plan.pipeline / 2 - 1)
        return saved * plan.pipeline / plan.virtual

    def kept(self, part: Part) -> float:
        """Return the bytes that a part keeps of a microbatch for its backward pass."""
        held = self.pieces[part.name].held
        if not part.again:
            return held.kept
        if self.plan.recompute == "full":
            return held.input
        return (held.kept - held.core) * self.planner.constant("selective_kept")

    def one(
        self,
        compute: float,
        again: float,
        waits: Sequence[Wait],
        host: float,
        shards: Sequence[Wait],
        moved: float,
    ) -> Pass:
        """Return a pass beside which exchanges of weights run.

        So does what goes to the host's memory: of both the longer is waited for.
        """
        exchanged = sum(one.total_s for one in shards)
        busy = compute + again
        slowed = self.planner.constant("slowed") * min(exchanged, busy)
        open_ = max(0.0, exchanged - busy)
        share = open_ / exchanged if exchanged else 0.0
        every = [*waits, *(one._replace(exposed_s=one.total_s * share) for one in shards)]
        if moved:
            time = self.planner.moved(moved)
            more = max(0.0, time.seconds - busy - slowed - open_)
            every.append(Wait("host", "activations", time.link, moved, time.seconds, more))
        device = busy + slowed + sum([one.exposed_s for one in every])
        return Pass(device, compute + slowed, again, host, tuple(every))

    def again_s(self, piece: Piece) -> float:
        """Return the seconds of the kernels that the backward pass repeats."""
        if self.plan.recompute == "full" and piece.again_s is not None:
            return piece.again_s
        whole = piece.forward_s - piece.last_s * self.planner.flag("stops_early")
        rest = piece.forward_s - piece.core_s[0]
        repeated = self.planner.constant("selective_repeated")
        share = 1 - self.planner.constant("selective_kept")
        some = repeated * rest if repeated else piece.core_s[0] + share * rest
        return {"none": 0.0, "selective": some, "full": whole}[self.plan.recompute]

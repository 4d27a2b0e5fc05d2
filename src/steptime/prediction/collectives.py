"""Seconds that a group of devices needs to exchange tensors: one function a scheme.

`COLLECTIVES` are the schemes by which a gradient is added up (all-reduce), `EXCHANGES` what else is
exchanged. Every message takes latency + bytes / bandwidth (the alpha-beta model of Thakur,
Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in MPICH"), a device
sends and receives one message at a time, both at once, and one device alone exchanges nothing.
Adding up takes the time of memory traffic, two bytes read and one written for each that is added,
where the rate of the memory is known: seconds that libraries hide in part. How the share of a
link's rate that a protocol reaches depends on the size of a message is not known without measuring
it (`steptime calibrate --only link`).

Devices are alone on their links, or several to a node: `Fabric`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, inf, prod
from typing import NamedTuple

from steptime.core.errors import InputError, shorten
from steptime.core.exchange import BUCKET_BYTES, ring_messages
from steptime.hardware.device import Cluster, Link
from steptime.hardware.topology import effective_link

GROUP = 8  # devices a node: those of the common servers, and the groups of Paleo's forks
BYTES_TO_ADD = 3  # moved for each byte that is added to another: two read, one written


@dataclass(frozen=True)
class Fabric:
    """What joins the devices of a group.

    `between` is the link of a device. With `inside`, with several `links_per_node` or with several
    `groups`, devices are `per_node` to a node: they reach each other over `inside` (None: over
    `between`), and other nodes over the `links_per_node` links of the node, which `groups` such
    groups share at once. Only `hierarchical` has nodes without these. `servers` belongs to
    `parameter-server`. Every bandwidth is multiplied by `efficiency`, the share of it that software
    reaches (Paleo's ppp of communication). `memory_bytes_per_s` is the rate of a device's memory,
    None where adding up takes no time: because it is not known, or because the link was measured,
    whose rate is that of whole all-reduces. Raises `InputError` for a number out of its range.
    """

    between: Link
    inside: Link | Fabric | None = None
    per_node: int = GROUP
    links_per_node: int = 1
    servers: int = 1
    efficiency: float = 1.0
    groups: int = 1
    memory_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("per_node", "links_per_node", "servers", "groups"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {shorten(getattr(self, name))}")
        if not 0 < self.efficiency < inf:
            raise InputError(
                f"the efficiency of a link must be positive, not {shorten(self.efficiency)}"
            )

    @property
    def links(self) -> tuple[Link, ...]:
        """The links of the fabric, from the outermost one in."""
        inner = self.inside
        if inner is None:
            return (self.between,)
        return (self.between, *(inner.links if isinstance(inner, Fabric) else (inner,)))

    @property
    def spread(self) -> float:
        """The widest of the spreads of its links: how far its rates may be off, in ln."""
        return max(link.spread for link in self.links)

    def link_end(self, sign: int) -> Fabric:
        """Return the fabric at an end of what its links reach: -1 the slow one, 1 the quick one."""
        between = self.between.scale_rates(exp(sign * self.between.spread))
        inner = self.inside
        if isinstance(inner, Link):
            return replace(
                self, between=between, inside=inner.scale_rates(exp(sign * inner.spread))
            )
        return replace(self, between=between, inside=inner and inner.link_end(sign))

    @property
    def slowest(self) -> float:
        """How many times longer exchanges take at the slow end of its rates."""
        return exp(self.spread)

    @property
    def without_latency(self) -> tuple[str, ...]:
        """Names of the links whose latency nobody publishes: it is counted as 0, to be noted."""
        return tuple({link.name: 0 for link in self.links if link.latency_s is None})

    def near_and_nodes(self, devices: int, always: bool = False) -> tuple[int, int]:
        """Return the devices of a group in a node, and the nodes of the group.

        A last node that is not full counts as a full one. `always` has nodes in any case.
        """
        alone = self.inside is None and self.links_per_node == 1 and self.groups == 1
        per_node = 1 if alone and not always else self.per_node
        return min(devices, per_node), -(-devices // per_node)

    def message_s(self, size_bytes: float, senders: int = 1) -> float:
        """Return the seconds of one message over `between`.

        That many `senders` of a node, of each group, send one at once over its links.
        """
        return self._message_s(self.between, size_bytes * self.share(senders))

    def inside_message_s(self, size_bytes: float, senders: int = 1) -> float:
        """Return the seconds of one message inside a node; of a rack, between its nodes."""
        inner = self.inside
        if isinstance(inner, Fabric):
            return self._message_s(inner.between, size_bytes * inner.share(senders))
        return self._message_s(inner or self.between, size_bytes)

    def share(self, senders: int) -> float:
        """Return the number of a node's messages that pass each of its links at once."""
        return senders * self.groups / self.links_per_node

    def _message_s(self, link: Link, size_bytes: float) -> float:
        return (link.latency_s or 0.0) + size_bytes / link.bytes_per_s / self.efficiency

    def add_s(self, size_bytes: float) -> float:
        """Return the seconds in which a device adds so many bytes to others."""
        rate = self.memory_bytes_per_s
        return BYTES_TO_ADD * size_bytes / rate if rate else 0.0

    def slowest_s(self, size_bytes: float, near: int, nodes: int) -> float:
        """Return the seconds of bytes through the slowest of the links that a group uses.

        Latency apart: that of messages in a pipeline, or of a ring, in which all links are busy.
        """
        rates = [self.between.bytes_per_s / self.share(1)] if nodes > 1 else []
        inner = self.inside
        while isinstance(inner, Fabric):
            rates.append(inner.between.bytes_per_s / inner.share(1))
            near, inner = inner.per_node, inner.inside
        rates += [(inner or self.between).bytes_per_s] if near > 1 else []
        return size_bytes / min(rates, default=inf) / self.efficiency

    def latencies_s(self, inside: int, between: int) -> float:
        """Return the seconds of the latency of so many messages of either kind."""
        return inside * self.inside_message_s(0.0) + between * self.message_s(0.0)


def rounds(replicas: int) -> int:
    """Return ceil(log2(replicas)), exactly: the height of a binary tree, rounds of a butterfly."""
    return (replicas - 1).bit_length()


def one_to_all(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """Everyone sends its gradient to one replica and gets the sum back, one after the other."""
    near, _ = fabric.near_and_nodes(replicas)
    inside = (near - 1) * fabric.inside_message_s(size_bytes)
    between = (replicas - near) * fabric.message_s(size_bytes)
    return 2 * (inside + between) + fabric.add_s((replicas - 1) * size_bytes)


def tree(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """Two binary trees add up half of the gradient each, in small pieces one after the other.

    Who is a leaf of one tree is an inner node of the other, so that every device receives and sends
    the gradient twice, and pieces wait for no level but the first: 2 log2(n) latencies and twice
    the gradient's time, however many devices. NCCL's "tree" (Sanders, Speck, Traeff 2009,
    "Two-tree algorithms for full bandwidth broadcast, reduction and scan").
    """
    near, nodes = fabric.near_and_nodes(replicas)
    latencies = fabric.latencies_s(2 * rounds(near), 2 * rounds(nodes))
    added = fabric.add_s(size_bytes) if replicas > 1 else 0.0
    return latencies + fabric.slowest_s(2 * size_bytes, near, nodes) + added


def butterfly(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """Partners exchange their whole sums, in each round with one twice as far (doubling).

    Paleo's count of rounds, ceil(log2 n), is short of what other n than powers of two need.
    """
    near, nodes = fabric.near_and_nodes(replicas)
    inside = rounds(near) * fabric.inside_message_s(size_bytes)
    between = rounds(nodes) * fabric.message_s(size_bytes, near)
    return inside + between + fabric.add_s((rounds(near) + rounds(nodes)) * size_bytes)


def butterfly_mixing(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """One round of the butterfly a step, with the farthest partner (Zhao and Canny 2013)."""
    return send(size_bytes, replicas, fabric) + fabric.add_s(size_bytes if replicas > 1 else 0.0)


def ring(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """Each of n replicas passes 1/n of the gradient on, n - 1 times to add and n - 1 to gather.

    2 (n - 1) messages of bytes / n, of which 2 (m - 1) cross between the m nodes: only these wait
    for the latency between nodes, and all go at the rate of the slowest link of the ring.
    """
    messages, share = ring_messages(replicas)
    near, nodes = fabric.near_and_nodes(replicas)
    crossing = 2 * (nodes - 1)
    moved = fabric.slowest_s(messages * (size_bytes * share), near, nodes)
    added = fabric.add_s(messages / 2 * (size_bytes * share))
    return fabric.latencies_s(messages - crossing, crossing) + moved + added


def in_switch(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """A switch adds up: each of n replicas sends its gradient to it once, and gets the sum back.

    Beside its own part, 1/n, which it reads back for the others, a replica sends and receives the
    gradient once: (1 + 1/n) of it pass each link. Infinite where a group is not joined by one
    such switch. NCCL's "NVLS"; H100 x 4 and x 8 add up 512 MiB at 350 and 445 GB/s of bus
    bandwidth, 343 and 445 by this at one rate (ai-dynamo/aiconfigurator@095f58a).
    """
    if replicas == 1:
        return 0.0
    near, nodes = fabric.near_and_nodes(replicas)
    link = fabric.between if nodes > 1 or fabric.inside is None else fabric.inside
    if isinstance(link, Fabric) or link.switch_bytes_per_s is None or min(near, nodes) > 1:
        return inf
    rate = link.switch_bytes_per_s * fabric.efficiency
    return 2 * (link.latency_s or 0.0) + size_bytes * (1 + 1 / replicas) / rate


def all_reduce(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """The faster of a ring and a switch that adds up, as libraries choose."""
    ways = (ring, in_switch)
    return min(way(size_bytes, replicas, fabric) for way in ways)


def halving_doubling(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """Partners exchange halves, quarters, ... of the sum, and gather them on the way back.

    For p = 2^h replicas h messages each way, of bytes/2, bytes/4, ..., bytes/p, together
    2 (p - 1) / p of the gradient (Rabenseifner; Thakur, Rabenseifner, Gropp 2005). For other
    numbers p is the power of two below: each replica too many first gives its whole gradient to a
    partner and gets the sum at the end, two more messages. The largest messages are to the nearest.
    """
    rounds = replicas.bit_length() - 1
    near, _ = fabric.near_and_nodes(replicas)
    inside = near.bit_length() - 1
    seconds = added = 0.0
    for step in range(1, rounds + 1):
        half = size_bytes / 2**step
        added += half
        within = step <= inside
        seconds += fabric.inside_message_s(half) if within else fabric.message_s(half, near)
    if replicas > 2**rounds:
        added += size_bytes
        near_by = near > 1
        seconds += fabric.inside_message_s(size_bytes) if near_by else fabric.message_s(size_bytes)
    return 2 * seconds + fabric.add_s(added)


def hierarchical(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """Rings inside each node add, rings between the nodes finish, rings inside spread the sum.

    With g = `per_node` and m nodes: g - 1 messages inside of bytes / g; then each of the g devices
    adds its 1/g up with those of the other nodes, 2 (m - 1) messages of bytes / g / m, g of them at
    once over the `links_per_node` links of a node (own links: `links_per_node = per_node`; more
    than one for a device are of no use); then g - 1 messages inside again.
    """
    near, nodes = fabric.near_and_nodes(replicas, always=True)
    messages, share = ring_messages(nodes)
    used = replace(fabric, links_per_node=min(fabric.links_per_node, near * fabric.groups))
    within = 2 * (near - 1) * fabric.inside_message_s(size_bytes / near)
    between = messages * used.message_s(size_bytes / near * share, near)
    added = (near - 1) / near * size_bytes + messages / 2 * share * size_bytes / near
    return within + between + fabric.add_s(added)


def parameter_server(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """All replicas push their gradients to k servers, which hold 1/k each; then all pull the sum.

    The servers are machines of their own, whose adding up is not counted. Each way a replica has k
    messages of bytes / k and a server n of them; who has more is the bottleneck: the servers with
    n > k replicas (2 n / k of the gradient's time), else the replicas (2). Nobody pulls before all
    have pushed (Li and others 2014, "Scaling Distributed Machine Learning with the Parameter
    Server", with synchronous steps). Replicas of one node share its links.
    """
    if replicas == 1:
        return 0.0
    near, _ = fabric.near_and_nodes(replicas)
    busiest = max(replicas, near * fabric.servers)
    return 2 * busiest * fabric.message_s(size_bytes / fabric.servers)


Collective = Callable[[float, int, Fabric], float]  # bytes, devices, fabric

COLLECTIVES: Mapping[str, Collective] = {
    "one-to-all": one_to_all,
    "tree": tree,
    "butterfly": butterfly,
    "butterfly-mixing": butterfly_mixing,
    "ring": ring,
    "in-switch": in_switch,
    "halving-doubling": halving_doubling,
    "hierarchical": hierarchical,
    "parameter-server": parameter_server,
}


def all_gather(size_bytes: float, devices: int, fabric: Fabric) -> float:
    """Each of n devices holds 1/n of `size_bytes` and gets the rest: the second half of a ring."""
    added = fabric.add_s((devices - 1) / devices * size_bytes)  # by a ring
    return (ring(size_bytes, devices, fabric) - added) / 2


def reduce_scatter(size_bytes: float, devices: int, fabric: Fabric) -> float:
    """Each device holds `size_bytes` and gets 1/n of the sum: the first half of a ring."""
    added = fabric.add_s((devices - 1) / devices * size_bytes)
    return all_gather(size_bytes, devices, fabric) + added


def all_to_all(size_bytes: float, devices: int, fabric: Fabric) -> float:
    """Each device holds `size_bytes` and sends 1/n of them to each other one.

    All messages of a device are posted at once: the latency of each kind of link is paid once, and
    the messages share its rate. Those to the g - 1 devices of its own node go inside; g devices at
    once share a node's links.

    Source: NCCL's `ncclGroupStart`, by which PyTorch's `all_to_all_single` posts all sends and
    receives; DeepEP's published 194 us for a dispatch over 256 ranks.
    """
    near, _ = fabric.near_and_nodes(devices)
    part = size_bytes / devices
    far_bytes = (devices - near) * part * fabric.between.hops
    seconds = fabric.message_s(far_bytes, near) if devices > near else 0.0
    outer = fabric
    while isinstance(outer.inside, Fabric):
        inner = outer.inside
        rack_bytes = (near - inner.per_node) * part * inner.between.hops
        seconds += outer.inside_message_s(rack_bytes, inner.per_node) if rack_bytes else 0.0
        near, outer = inner.per_node, replace(inner, efficiency=fabric.efficiency)
    innermost = outer.inside if isinstance(outer.inside, Link) else outer.between
    near_bytes = (near - 1) * part * innermost.hops
    return seconds + (outer.inside_message_s(near_bytes) if near > 1 else 0.0)


def send(size_bytes: float, devices: int, fabric: Fabric) -> float:
    """One device sends `size_bytes` to another one of the group, the farthest in doubt."""
    if devices == 1:
        return 0.0
    near, nodes = fabric.near_and_nodes(devices)
    return fabric.message_s(size_bytes, near) if nodes > 1 else fabric.inside_message_s(size_bytes)


EXCHANGES: Mapping[str, Collective] = {  # by the kind of op: what is not an all-reduce
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "send": send,
}


def overlapped(
    ready: Sequence[tuple[float, float]],
    one: Callable[[float], float],
    backward_s: float,
    bucket_bytes: float = BUCKET_BYTES,
) -> float:
    """Return the seconds for which a step waits for exchanges after its backward pass.

    `ready` are the gradients in the order of the backward pass: (seconds after its start, bytes).
    They fill buckets in that order; a bucket that holds `bucket_bytes` or more is full, and the
    last is full at its end. A full bucket is exchanged, `one(its bytes)` seconds, when the one
    before is done. An exchange slows no computation down.

    Gradients of 10, 10 and 4 bytes after 1, 2 and 3 s in buckets of 10 bytes, 1.5 s each: the first
    exchange runs from 1 to 2.5, the second waits for it until 4, the third until 5.5; of a backward
    pass of 3 s the step waits 2.5 s.

    PyTorch's DistributedDataParallel does this; its first bucket is smaller (1 MiB), which is left
    out. Source: Li and others, VLDB 2020, "PyTorch Distributed", and the documentation of
    `bucket_cap_mb` (25 MiB).
    """
    gradients = [(ready_s, size_bytes) for ready_s, size_bytes in ready if size_bytes]
    done_s = filled = 0.0
    for place, (ready_s, size_bytes) in enumerate(gradients, start=1):
        filled += size_bytes
        if filled >= bucket_bytes or place == len(gradients):
            done_s = max(done_s, ready_s) + one(filled)
            filled = 0.0
    return max(0.0, done_s - backward_s)


class StepEnds(NamedTuple):
    """The ends of the interval of a step [s], None where the method has none."""

    low_s: float | None
    high_s: float | None

    def later(self, wait_s: float) -> StepEnds:
        """Return the ends of the step if it waits so many seconds more."""
        low_s, high_s = (None if end_s is None else end_s + wait_s for end_s in self)
        return StepEnds(low_s, high_s)


def with_links(step_s: float, ends: StepEnds, quick_s: float, slow_s: float) -> StepEnds:
    """Return the ends of a step whose kernels and whose links are off independently.

    Args:
        step_s: the step.
        ends: where it lies if its exchanges take what is predicted.
        quick_s: the step with links at the upper end of the rates that they reach.
        slow_s: the step with links at the lower end.
    """
    low_s = None if ends.low_s is None else step_s - hypot(step_s - ends.low_s, step_s - quick_s)
    high_s = None
    if ends.high_s is not None:
        high_s = step_s + hypot(ends.high_s - step_s, slow_s - step_s)
    return StepEnds(low_s, high_s)


class Startup(NamedTuple):
    """What software adds to the messages of an exchange: `s` seconds, at a rate `slow` times less.

    Where it has another protocol, that starts `large_s` later, the messages keep the link's rate.
    """

    s: float = 0.0
    slow: float = 1.0
    large_s: float = 0.0

    def after(self, moved_s: float, fabric: Fabric) -> float:
        """Return the seconds of an exchange whose messages take `moved_s`; 0 s is none.

        The times of a link that was measured hold what starts them.
        """
        if not moved_s or fabric.between.measured.keys() - {"bus"}:
            return moved_s
        seconds = moved_s * max(1.0, self.slow) + self.s
        return min(seconds, moved_s + self.large_s) if self.large_s else seconds


def as_reached(fabric: Fabric) -> Fabric:
    """Return a fabric at the rates that its links reach, adding up included."""
    inner, between = fabric.inside, fabric.between.for_collectives
    inside = as_reached(inner) if isinstance(inner, Fabric) else inner and inner.for_collectives
    adds = None if between.measured else fabric.memory_bytes_per_s
    return replace(fabric, between=between, inside=inside, memory_bytes_per_s=adds)


def fabric_of(
    link: Link | Fabric, efficiency: float, memory_bytes_per_s: float | None = None
) -> Fabric:
    """Return the fabric of replicas; the rate of a measured link is that of whole all-reduces."""
    fabric = link if isinstance(link, Fabric) else Fabric(link)
    adds = None if fabric.between.measured else memory_bytes_per_s
    return replace(fabric, efficiency=efficiency, memory_bytes_per_s=adds)


def link_of_group(cluster: Cluster, ranks: Sequence[int]) -> Link | None:
    """Return the outermost link that a group of ranks crosses as it has it; None for one rank."""
    place = cluster.level_of(ranks)
    if place is None:
        return None
    level, devices = cluster.ladder[place], prod(one.size for one in cluster.ladder[:place])
    return effective_link(level.link, level.size, len({rank // devices for rank in ranks}))


def fabric_of_group(cluster: Cluster, ranks: Sequence[int]) -> Fabric | None:
    """Return the fabric of a group of ranks, None for a single rank.

    Between nodes it is the link of the outermost level that the group crosses, and inside them that
    of the levels below. A node is one part of that level; all of its devices exchange at
    once, in as many groups as this one, which share its links. Ranks 0, 8, 16, ... of nodes of 8
    are alone in each node, where 8 such groups share its links. Raises `InputError` for ranks that
    the cluster does not have.
    """
    place = cluster.level_of(ranks)
    if place is None:
        return None
    level = cluster.ladder[place]
    link = link_of_group(cluster, ranks)
    devices = prod(below.size for below in cluster.ladder[:place])
    members = [rank for rank in ranks if rank // devices == ranks[0] // devices]
    below = cluster.level_of(members)
    return Fabric(
        link or level.link,
        fabric_of_group(cluster, members) if below else link_of_group(cluster, members),
        per_node=len(members),
        links_per_node=level.links,
        groups=devices // len(members),
    )

"""The fabric of a group of devices: links, nodes, and the seconds of a message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, inf, prod

from steptime.core.errors import InputError, shorten
from steptime.hardware.device import Cluster, Link
from steptime.hardware.topology import effective_link

GROUP = 8  # devices a node: those of the common servers, and the groups of Paleo's forks
BYTES_TO_ADD = 3  # moved for each byte that is added to another: two read, one written


@dataclass(frozen=True)
class Fabric:
    """The links that join the devices of a group.

    With `inside`, with several `links_per_node` or with several `groups`, devices are `per_node` to
    a node: they reach each other over `inside`, and other nodes over the links of the node. Only
    `hierarchical` has nodes without these.

    Attributes:
        between: the link of a device, or of a node.
        inside: the link or fabric inside a node; None for `between`.
        per_node: devices of a node.
        links_per_node: links of a node to other nodes.
        servers: number of servers of `parameter-server`.
        efficiency: share of every bandwidth that software reaches (Paleo's ppp of communication).
        groups: number of groups that share the links of a node at once.
        memory_bytes_per_s: rate of a device's memory. None where adding up takes no time: it is not
            known, or the link was measured, whose rate is that of whole all-reduces.

    Raises:
        InputError: for a number out of its range.
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
        """Raise `InputError` for a number out of its range."""
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

    def with_link_rates(self, sign: int) -> Fabric:
        """Return the fabric at an end of what its links reach: -1 the slow one, 1 the quick one."""
        # -1 and 1 are the slow and the quick end of what links reach; `spread` is their distance
        # from the usual rate, in ln.
        between = self.between.scale_rates(exp(sign * self.between.spread))
        inside = self.inside
        if isinstance(inside, Link):
            inside = inside.scale_rates(exp(sign * inside.spread))
        elif inside is not None:  # a fabric, whose links are scaled, too
            inside = inside.with_link_rates(sign)
        return replace(self, between=between, inside=inside)

    @property
    def link_slowdown(self) -> float:
        """How many times longer exchanges take at the slow end of its rates."""
        return exp(self.spread)

    @property
    def without_latency(self) -> tuple[str, ...]:
        """Names of the links whose latency nobody publishes: it is counted as 0, to be noted."""
        return tuple({link.name: 0 for link in self.links if link.latency_s is None})

    def node_size_and_count(self, devices: int, counts_nodes: bool = False) -> tuple[int, int]:
        """Return the devices of a group in a node, and the nodes of the group.

        A last node that is not full counts as a full one. A flat fabric has one device a node,
        unless `counts_nodes`.
        """
        # One kind of link for one group: what lies in a node makes no difference.
        is_flat = self.inside is None and self.links_per_node == 1 and self.groups == 1
        # A flat fabric counts as nodes of one device, so that all messages go over `between`.
        per_node = 1 if is_flat and not counts_nodes else self.per_node
        node_devices = min(devices, per_node)
        nodes = ceil(devices / per_node)
        return node_devices, nodes

    def message_s(self, size_bytes: float, senders: int = 1) -> float:
        """Return the seconds of one message over `between`.

        That many `senders` of a node, of each group, send one at once over its links.
        """
        return self._message_s(self.between, size_bytes * self.link_load(senders))

    def inside_message_s(self, size_bytes: float, senders: int = 1) -> float:
        """Return the seconds of one message inside a node; of a rack, between its nodes."""
        inner = self.inside
        if isinstance(inner, Fabric):
            return self._message_s(inner.between, size_bytes * inner.link_load(senders))
        return self._message_s(inner or self.between, size_bytes)

    def link_load(self, senders: int) -> float:
        """Return the number of a node's messages that pass each of its links at once."""
        return senders * self.groups / self.links_per_node

    def _message_s(self, link: Link, size_bytes: float) -> float:
        return (link.latency_s or 0.0) + size_bytes / link.bytes_per_s / self.efficiency

    def add_s(self, size_bytes: float) -> float:
        """Return the seconds in which a device adds so many bytes to others."""
        rate = self.memory_bytes_per_s
        return BYTES_TO_ADD * size_bytes / rate if rate else 0.0

    def slowest_link_s(self, size_bytes: float, node_devices: int, nodes: int) -> float:
        """Return the seconds of bytes through the slowest of the links that a group uses.

        Latency apart: that of messages in a pipeline, or of a ring, in which all links are busy.
        """
        rates_per_s = []
        if nodes > 1:
            # The rate that one device gets of its node's links, which all groups share.
            rates_per_s.append(self.between.bytes_per_s / self.link_load(senders=1))
        innermost_devices = node_devices
        inside = self.inside
        while isinstance(inside, Fabric):  # a node that has nodes itself
            rates_per_s.append(inside.between.bytes_per_s / inside.link_load(senders=1))
            innermost_devices = inside.per_node
            inside = inside.inside
        if innermost_devices > 1:
            innermost_link = inside or self.between  # None inside: one kind of link for all
            rates_per_s.append(innermost_link.bytes_per_s)
        return size_bytes / min(rates_per_s, default=inf) / self.efficiency

    def latencies_s(self, inside: int, between: int) -> float:
        """Return the seconds of the latency of so many messages of either kind."""
        return inside * self.inside_message_s(0.0) + between * self.message_s(0.0)


def derate_fabric(fabric: Fabric) -> Fabric:
    """Return a fabric at the rates that its links reach, and the rate of adding up."""
    inner, between = fabric.inside, fabric.between.for_collectives
    inside = derate_fabric(inner) if isinstance(inner, Fabric) else inner and inner.for_collectives
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
    level_index = cluster.level_of(ranks)
    if level_index is None:
        return None
    level = cluster.ladder[level_index]
    # A part is what the level joins: devices of all levels below it (a node, of racks).
    part_size = prod(below.size for below in cluster.ladder[:level_index])
    part_count = len({rank // part_size for rank in ranks})
    return effective_link(level.link, level.size, part_count)


def fabric_of_group(cluster: Cluster, ranks: Sequence[int]) -> Fabric | None:
    """Return the fabric of a group of ranks, None for a single rank.

    Between nodes it is the link of the outermost level that the group crosses, and inside them that
    of the levels below. A node is one part of that level; all of its devices exchange at
    once, in as many groups as this one, which share its links. Ranks 0, 8, 16, ... of nodes of 8
    are alone in each node, where 8 such groups share its links. Raises `InputError` for ranks that
    the cluster does not have.
    """
    # The outermost level that joins them all; None for a single rank.
    level_index = cluster.level_of(ranks)
    if level_index is None:
        return None
    level = cluster.ladder[level_index]
    link = link_of_group(cluster, ranks)
    # A part is what the level joins: devices of all levels below it (a node, of racks).
    part_size = prod(below.size for below in cluster.ladder[:level_index])
    # The ranks of the group that lie in the same part as its first rank.
    members = [rank for rank in ranks if rank // part_size == ranks[0] // part_size]
    inner_index = cluster.level_of(members)
    inside: Link | Fabric | None
    has_levels_inside = inner_index is not None and inner_index > 0
    if has_levels_inside:
        inside = fabric_of_group(cluster, members)
    else:
        inside = link_of_group(cluster, members)  # None of a single member
    return Fabric(
        link or level.link,
        inside,
        per_node=len(members),
        links_per_node=level.links,
        # Devices of the part that are not in this group are in equal groups that run at once.
        groups=part_size // len(members),
    )

"""The frozen question of a plan: a network on devices, and the links that join them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from math import exp
from typing import Literal, NamedTuple

from steptime.core.errors import InputError
from steptime.core.workload import Plan
from steptime.hardware import catalog
from steptime.hardware.device import DEFAULT_SPREAD, Cluster, Device, Link
from steptime.hardware.software import Software
from steptime.planning.caches import Caches, cached_by_owner
from steptime.planning.pipelines.stages import Group, Load
from steptime.planning.ranks.rank_model import RankModel
from steptime.planning.ranks.shape import Shape
from steptime.prediction.collectives import (
    EXCHANGES,
    Collective,
    Startup,
    all_reduce,
    collective_spread,
)
from steptime.prediction.exposed import exposed_exchange_s
from steptime.prediction.fabric import Fabric, fabric_of_group
from steptime.prediction.method import Method
from steptime.prediction.routing import dispatch_s


class LinkTime(NamedTuple):
    """A transfer between devices, or between a device and its host.

    Attributes:
        seconds: its seconds.
        link: the name of the link that it crosses.
        spread: how far it may be off, in ln, before campaigns widen it
            (`collectives.collective_spread`).
    """

    seconds: float
    link: str
    spread: float = DEFAULT_SPREAD


class GroupFabric(NamedTuple):
    """The links of a group of ranks, and the name of the outermost one."""

    fabric: Fabric
    link: str


@dataclass(frozen=True, eq=False)
class PlanProblem:
    """A network on a cluster: all that the costs of a plan depend on but the plan.

    Attributes:
        rank: one rank of the network on its device.
        cluster: the devices and their links, from the inside out.
        host_link: joins a device to the memory of its host; None where it is unknown.
        software: the stacks that may be meant if the user named none; None if one was named.
        caches: the caches of functions of this problem.
    """

    rank: RankModel
    cluster: Cluster
    host_link: Link | None = None
    software: Software | None = None
    caches: Caches = field(default_factory=Caches, repr=False, kw_only=True)

    @property
    def shape(self) -> Shape:
        """The network."""
        return self.rank.shape

    @property
    def device(self) -> Device:
        """The device."""
        return self.rank.device

    @property
    def method(self) -> Method:
        """The prediction method, under its options."""
        return self.rank.method

    def on_cluster(self, cluster: Cluster) -> PlanProblem:
        """Return the problem on another cluster of the same device; priced layers are kept."""
        return replace(self, cluster=cluster, caches=Caches(self.caches.is_enabled))

    @cached_by_owner
    def with_link_rates(self, end: Literal["low", "high"]) -> PlanProblem:
        """Return the problem whose links reach the low or the high end of their rates."""
        sign = -1 if end == "low" else 1
        levels = [
            level._replace(link=level.link.scale_rates(exp(sign * level.link.spread)))
            for level in self.cluster.ladder
        ]
        return self.on_cluster(Cluster(self.device, tuple(levels)))

    @property
    def link_slowdown(self) -> float:
        """The factor by which collectives take longer at the low end of all links' rates."""
        return exp(max((level.link.spread for level in self.cluster.ladder), default=0.0))

    @cached_property
    def level_names(self) -> list[str]:
        """The name of each level's link, with its level where links have the same name."""
        names = [level.link.name for level in self.cluster.ladder]
        return [
            name if names.count(name) == 1 else f"{name}, level {i + 1}"
            for i, name in enumerate(names)
        ]

    @cached_by_owner
    def collective_time(self, kind: str, size_bytes: float, group: Group) -> LinkTime:
        """Return the seconds of a collective among ranks.

        Args:
            kind: the kind of the collective; "once" sends each token once to every node that it
                reaches.
            size_bytes: the bytes of one rank.
            group: the ranks.

        Raises:
            InputError: if no link joins the ranks.
        """
        if len(group) == 1 or not size_bytes:
            return LinkTime(seconds=0.0, link="")
        fabric, link = self.group_fabric(group)
        collective = self._find_collective(kind)
        messages_s = collective(size_bytes, len(group), fabric)
        latencies_s = collective(0.0, len(group), fabric)
        seconds = self._find_startup(kind).add_to(messages_s, fabric)
        # Only the seconds that go by the link's rate are as uncertain as this rate.
        transfer_share = (messages_s - latencies_s) / seconds
        spread = collective_spread(transfer_share, fabric)
        return LinkTime(seconds, link, spread)

    def _find_collective(self, kind: str) -> Collective:
        """Return the function that prices a kind of collective."""
        # "once": each token is sent once to each node, however many of its experts are there.
        send_once = partial(dispatch_s, expected_part_count=self.shape.expected_expert_groups)
        collectives: Mapping[str, Collective] = {
            "all_reduce": all_reduce,
            "once": send_once,
            **EXCHANGES,
        }
        return collectives[kind]

    def _find_startup(self, kind: str) -> Startup:
        """Return the costs of starting a collective with this stack."""
        startup = Startup(*(self.rank.constant(f"exchange_{name}") for name in Startup._fields))
        if kind == "send":
            startup = startup._replace(s=min(startup.s, self.rank.constant("send_s")))
        return startup

    @cached_by_owner
    def group_fabric(self, group: Group) -> GroupFabric:
        """Return the links of a group of ranks.

        Raises:
            InputError: if no link joins the ranks.
        """
        level = self.cluster.level_of(group)  # the outermost level of links that it crosses
        fabric = fabric_of_group(self.cluster, group)
        if level is None or fabric is None:
            raise InputError("several devices need a link: --link LINK (steptime list links)")
        effective_fabric = self.method.join_devices(
            fabric, self.device.datasheet.memory_bytes_per_s
        )
        return GroupFabric(effective_fabric, self.level_names[level])

    @cached_by_owner
    def farthest_neighbours(self, group: Group) -> Sequence[int]:
        """Return two successive ranks of a group that are joined by the outermost link."""
        return max(pairwise(group), key=lambda pair: self.cluster.level_of(pair) or 0)

    def host_transfer(self, size_bytes: float) -> LinkTime:
        """Return the seconds of a transfer between a device and its host, one way.

        Raises:
            InputError: if it is unknown how devices are joined to their host.
        """
        if self.host_link is None:
            joins = "what joins a device to its host, such as pcie-5-x16"
            raise InputError(f"plan: --offload needs --host-link LINK, {joins}")
        fabric = self.method.join_host(self.host_link)
        return LinkTime(fabric.message_s(size_bytes), self.host_link.name, fabric.spread)

    def exposed_bucket_s(
        self, plan: Plan, kind: str, size_bytes: float, group: Group, load: Load, microbatch: int
    ) -> float | None:
        """Return the exposed seconds of a gradient exchange in buckets; None without buckets.

        Args:
            plan: the plan.
            kind: the kind of the collective.
            size_bytes: the bytes of one rank.
            group: the ranks.
            load: the parts of the device.
            microbatch: the sequences of a microbatch.
        """
        if not self.rank.exchanges_in_buckets(plan):
            return None
        total_s = self.collective_time(kind, size_bytes, group).seconds
        # Gathered weights come after the update, when nothing is left to hide them.
        if kind == "all_gather" or not total_s:
            return total_s
        bucketed_s = exposed_exchange_s(
            self.rank.full_step(microbatch),
            microbatch,
            lambda bucket_bytes: self.collective_time(kind, bucket_bytes, group).seconds,
            row_names=self.rank.rows_of(load),
        )
        return min(total_s, bucketed_s)


def without_direct_latency(cluster: Cluster) -> Cluster:
    """Return the cluster as servers use it: fast links inside a node have no latency.

    Servers exchange directly over the memory of the other devices (one-shot all-reduce).
    """
    levels = list(cluster.ladder)
    direct_bytes_per_s = catalog.constants_of("link")["exchange.direct_bytes_per_s"].value
    # Over links this fast, devices read each other's memory directly: no message has to start.
    if levels and levels[0].link.bytes_per_s > direct_bytes_per_s:
        levels[0] = levels[0]._replace(link=replace(levels[0].link, latency_s=0.0))
    return Cluster(cluster.device, tuple(levels))

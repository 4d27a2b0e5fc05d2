"""A forward or backward pass of a part, and the settings of a plan that it depends on."""

from __future__ import annotations

from typing import NamedTuple

from steptime.core.workload import Plan
from steptime.hardware.device import DEFAULT_SPREAD
from steptime.planning.pipelines.stages import Group, RankGroups
from steptime.planning.ranks.pieces import RankPieces
from steptime.planning.ranks.rank_model import RankModel


class GroupCollective(NamedTuple):
    """A collective of a device in a pass or a step.

    Attributes:
        group: the group of ranks: "tensor", "data", "pipeline", ...
        collective: its kind.
        link: the link that it crosses.
        size_bytes: the bytes of one rank.
        total_s: its seconds.
        exposed_s: the part of them that no computation hides.
        spread: how far its seconds may be off, in ln (`LinkTime`).
    """

    group: str
    collective: str
    link: str
    size_bytes: float
    total_s: float
    exposed_s: float
    spread: float = DEFAULT_SPREAD

    def add(self, other: GroupCollective, repeats: float) -> GroupCollective:
        """Return the sum with another one of its kind that runs so many times.

        Their seconds are off together, so the spread is the mean by seconds.
        """
        other_s = other.total_s * repeats
        total_s = self.total_s + other_s
        # Errors of links go together: the spread of the sum is the mean, weighted by seconds.
        error_s = self.spread * self.total_s + other.spread * other_s
        return self._replace(
            size_bytes=self.size_bytes + other.size_bytes * repeats,
            total_s=total_s,
            exposed_s=self.exposed_s + other.exposed_s * repeats,
            spread=error_s / total_s if total_s else other.spread,
        )


class Pass(NamedTuple):
    """A forward or backward pass of a part for one microbatch.

    Attributes:
        seconds: its time on the device, with exposed communication.
        compute_s: its kernels, slowed by hidden communication.
        recompute_s: kernels that it repeats.
        host_s: the time in which the host issues it.
        collectives: its collectives.
        overlap_s: the time that it saves by overlap with another microbatch.
    """

    seconds: float
    compute_s: float
    recompute_s: float
    host_s: float
    collectives: tuple[GroupCollective, ...]
    overlap_s: float = 0.0


class PartPasses(NamedTuple):
    """Both passes of a part."""

    forward: Pass
    backward: Pass


class PassSettings(NamedTuple):
    """All that the passes of a part depend on but the part.

    Attributes:
        pieces: the pieces of the rank.
        recompute: how much of the forward pass is repeated.
        offload: what lies in the memory of the host.
        overlaps: whether tokens are exchanged while another microbatch is computed.
        sequence: whether activations between tensor-parallel products are split, too.
        context_method: how context ranks see each other's keys and values.
        imbalance: the tokens of the busiest expert rank over the mean.
        routes_per_rank: whether each tensor rank routes its own tokens.
        has_layer_calls: whether each layer calls code of parallel training on the host.
        zero: 2 or 3 if gradients, or weights too, are sharded; otherwise 0.
        tensor: the tensor-parallel ranks.
        context: the ranks that share a sequence.
        expert: the ranks that share the routed experts.
        shard: the replicas that share gradients and weights; empty without.
        expert_shard: the replicas that share those of routed experts; empty without.
    """

    pieces: RankPieces
    recompute: str
    offload: str
    overlaps: bool
    sequence: bool
    context_method: str
    imbalance: float
    routes_per_rank: bool
    has_layer_calls: bool
    zero: int
    tensor: Group
    context: Group
    expert: Group
    shard: Group
    expert_shard: Group

    @property
    def offloads_activations(self) -> bool:
        """Whether saved activations lie in the memory of the host."""
        return self.offload in ("activations", "both")

    def group(self, name: str) -> Group:
        """Return the ranks of a piece's collective."""
        return {"tensor": self.tensor, "context": self.context, "expert": self.expert}[name]


def settings_of_passes(
    rank: RankModel, plan: Plan, pieces: RankPieces, groups: RankGroups
) -> PassSettings:
    """Return the settings of a plan that its passes depend on."""
    # ZeRO 1 communicates after the passes only. What no pass depends on has one value, so that
    # equal passes have equal cache keys.
    shards_gradients = plan.zero >= 2
    return PassSettings(
        pieces=pieces,
        recompute=plan.recompute,
        offload=plan.offload,
        overlaps=plan.overlaps,
        sequence=plan.sequence,
        context_method=plan.context_method,
        imbalance=plan.imbalance,
        routes_per_rank=plan.routes_per_rank,
        has_layer_calls=plan.device_count > 1 and not rank.runs_full_network(plan),
        zero=plan.zero if shards_gradients else 0,
        tensor=groups.tensor,
        context=groups.context,
        expert=groups.expert,
        shard=groups.shard if shards_gradients else (),
        expert_shard=groups.expert_shard if shards_gradients else (),
    )

"""The parameters of a device, and the bytes of their weights, gradients and states."""

from __future__ import annotations

from typing import NamedTuple

from steptime.core.workload import Plan
from steptime.planning.pipelines.stages import Load
from steptime.planning.ranks.pieces import RankPieces
from steptime.planning.ranks.rank_model import RankModel


class StateSharding(NamedTuple):
    """How replicas share states, gradients and weights.

    Attributes:
        zero: the ZeRO level.
        shards: the replicas that share.
        expert_shards: the replicas that share those of the same experts.
        goes_both_ways: whether another device has the same stages (DualPipe), and shares, too.
    """

    zero: int
    shards: int
    expert_shards: int
    goes_both_ways: bool

    def count_local_parameters(self, counts: ParameterCounts, shared_from_zero: int) -> float:
        """Return the parameters of a device of which it holds something.

        Args:
            counts: the parameters of its layers.
            shared_from_zero: the lowest ZeRO level that shares it (states, gradients, weights).
        """
        if self.zero < shared_from_zero:
            return counts.dense + counts.expert
        # With DualPipe two devices have each weight. They share out what ranks share out.
        devices = 2 if self.goes_both_ways else 1
        return counts.dense / self.shards / devices + counts.expert / self.expert_shards / devices


def sharding_of(plan: Plan) -> StateSharding:
    """Return the sharing of states, gradients and weights among the replicas of a plan."""
    return StateSharding(plan.zero, plan.shards, plan.expert_shards, plan.goes_both_ways)


class ParameterCounts(NamedTuple):
    """The parameters of a device.

    Attributes:
        dense: those that all replicas have.
        expert: those of its routed experts.
        end: those of `dense` in embedding and head.
    """

    dense: float
    expert: float
    end: float

    def split(self, dense_split: int, expert_split: int) -> ParameterCounts:
        """Return the parameters of one of the ranks that share them out evenly."""
        return ParameterCounts(
            self.dense / dense_split, self.expert / expert_split, self.end / dense_split
        )


def count_parameters(pieces: RankPieces, load: Load) -> ParameterCounts:
    """Return the parameters of a device."""
    parameters = expert_parameters = end_parameters = 0
    for part, count in load:  # layers of each kind with their number, and ends
        piece = pieces[part.name]
        parameters += piece.parameters * count
        expert_parameters += piece.expert_parameters * count
        if part.is_end:
            end_parameters += piece.parameters * count
    return ParameterCounts(parameters - expert_parameters, expert_parameters, end_parameters)


class ParameterBytes(NamedTuple):
    """Bytes of a device for its parameters."""

    weights: float
    gradients: float
    states: float


def bytes_of_parameters(
    rank: RankModel, sharding: StateSharding, offload: str, counts: ParameterCounts
) -> ParameterBytes:
    """Return the bytes of weights, gradients and states of a device's parameters."""
    offloads_states = offload in ("optimizer", "both")
    layer_weight_bytes = rank.layer_weight_bytes
    end_weight_bytes = rank.end_weight_bytes
    if sharding.zero == 3:
        # Products read a copy that is made when weights are gathered. If the optimizer has master
        # weights, which count as its states, a device keeps no further weights.
        are_weights_states = rank.has_master_states and not offloads_states
        layer_weight_bytes = end_weight_bytes = 0.0 if are_weights_states else rank.weight_bytes
    # ZeRO 1 shards the states alone, 2 the gradients as well, 3 the weights as well.
    end_counts = ParameterCounts(dense=counts.end, expert=0.0, end=counts.end)
    end_weights = sharding.count_local_parameters(end_counts, shared_from_zero=3)
    layer_weights = sharding.count_local_parameters(counts, shared_from_zero=3) - end_weights
    gradients = sharding.count_local_parameters(counts, shared_from_zero=2)
    states = sharding.count_local_parameters(counts, shared_from_zero=1)
    state_bytes = 0.0 if offloads_states else rank.constant("state_bytes")
    return ParameterBytes(
        weights=layer_weights * layer_weight_bytes + end_weights * end_weight_bytes,
        gradients=gradients * rank.constant("gradient_bytes"),
        states=states * state_bytes,
    )

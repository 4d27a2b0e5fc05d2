"""The end of a step on a device: gradients are exchanged and weights updated."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from steptime.planning.memory import updated_parameters
from steptime.planning.parameter_memory import count_parameters
from steptime.planning.pass_settings import GroupCollective
from steptime.planning.pipelines.stages import Group, Load
from steptime.planning.plan_cost import PlanCost
from steptime.planning.ranks.rank_model import RankModel
from steptime.prediction.steps.states import host_memory, time_host_update
from steptime.prediction.training import FIRST


class StepTail(NamedTuple):
    """The work of a device once in a step, after its pipeline.

    Attributes:
        seconds: exposed communication and update.
        update_s: the update of the weights.
        collectives: the collectives.
    """

    seconds: float
    update_s: float
    collectives: tuple[GroupCollective, ...]


class _LastPasses(NamedTuple):
    """The last passes of a device, which hide the exchange of gradients.

    Attributes:
        forward_s: a forward pass of all its parts.
        backward_s: a backward pass of all its parts.
        bucket_count: the buckets in which its gradients become ready.
        microbatches: the microbatches that pass its last stage at a time.
    """

    forward_s: float
    backward_s: float
    bucket_count: int
    microbatches: int


def step_tail(cost: PlanCost, load: Load) -> StepTail:
    """Return the end of a step on a device with a load."""
    last_passes = _last_passes(cost, load)
    collectives = [
        *_replica_collectives(cost, load, last_passes),
        *_embedding_collectives(cost, load),
    ]
    parameters = updated_parameters(cost, load)
    warmup_s = cost.warmup_exchange_s(load)
    if warmup_s:
        # Only its exposed seconds count here: its bytes are counted in the passes.
        warmup = GroupCollective(
            "expert", "all_to_all", link="", size_bytes=0.0, total_s=0.0, exposed_s=warmup_s
        )
        collectives.append(warmup)
    if cost.plan.offload in ("optimizer", "both"):
        part_count = sum(count for _, count in load)
        # Gradients of all parts but the last can move while the backward pass goes on.
        hiding_s = last_passes.backward_s * (1 - 1 / part_count)
        update_s, transfer = _host_update(cost, parameters, hiding_s)
        collectives.append(transfer)
    else:
        update_bytes = cost.rank.constant("update_bytes") * parameters
        update_s = cost.rank.update_s(
            cost.plan, update_bytes, parameters, cost.microbatch, cost.microbatches
        )
    exposed_s = sum(collective.exposed_s for collective in collectives)
    return StepTail(update_s + exposed_s, update_s, tuple(collectives))


def _last_passes(cost: PlanCost, load: Load) -> _LastPasses:
    """Return the last passes of a device, which hide the exchange of its gradients."""
    plan = cost.plan
    forward_s = sum(cost.pieces[part.name].forward_s * count for part, count in load)
    backward_s = sum(cost.pieces[part.name].backward_s * count for part, count in load)
    # Gradients are exchanged bucket by bucket while these passes go on. Microbatches pass several
    # stages of a device in groups of as many as the pipeline has devices; the gradients of a stage,
    # a bucket, are ready after its last group.
    if plan.virtual > 1:
        return _LastPasses(
            forward_s, backward_s, bucket_count=plan.virtual, microbatches=plan.pipeline
        )
    part_count = sum(count for _, count in load)  # a bucket for each layer and end
    return _LastPasses(forward_s, backward_s, bucket_count=part_count, microbatches=1)


class _ReplicaGroup(NamedTuple):
    """Parameters of a device, and the groups of ranks that have them, too."""

    parameters: float
    replicas: Group
    shard: Group
    copies: Group


def _replica_groups(cost: PlanCost, load: Load) -> list[_ReplicaGroup]:
    """Return the parameters of a device by the ranks that share them: dense, then of experts."""
    groups = cost.groups
    counts = count_parameters(cost.pieces, load)
    if cost.rank.runs_full_network(cost.plan):  # all parameters have the same replicas
        counts = counts._replace(dense=counts.dense + counts.expert, expert=0)
    dense_group = _ReplicaGroup(counts.dense, groups.replicas, groups.shard, groups.copies)
    expert_group = _ReplicaGroup(
        counts.expert, groups.expert_replicas, groups.expert_shard, groups.expert_copies
    )
    return [dense_group, expert_group]


def _replica_collectives(
    cost: PlanCost, load: Load, last_passes: _LastPasses
) -> list[GroupCollective]:
    """Return the collectives of gradients and weights among replicas.

    Without ZeRO gradients are summed by an all-reduce. With ZeRO 1 they are scattered, with ZeRO 1
    and 2 weights are gathered after the update; copies of a shard sum their shares.
    """
    price_collective = partial(_price_collective, cost, load, last_passes)
    collectives = []
    for group in _replica_groups(cost, load):
        gradient_bytes = cost.rank.constant("gradient_bytes") * group.parameters
        weight_bytes = cost.rank.weight_bytes * group.parameters
        # What a rank has of the gradients once they are scattered.
        share_bytes = gradient_bytes / len(group.shard)
        hiding_s = last_passes.backward_s
        # ZeRO 2 and 3 scatter gradients within the passes, ZeRO 3 gathers weights there, too.
        if cost.plan.zero == 0:
            collectives.append(
                price_collective("data", "all_reduce", gradient_bytes, group.replicas, hiding_s)
            )
            continue
        if cost.plan.zero == 1:
            scatter = price_collective(
                "data", "reduce_scatter", gradient_bytes, group.shard, hiding_s
            )
            collectives.append(scatter)
            # The all-reduce hides behind what the scatter leaves of the backward pass.
            hiding_s = max(0.0, hiding_s - scatter.total_s)
        collectives.append(
            price_collective("copies", "all_reduce", share_bytes, group.copies, hiding_s)
        )
        if cost.plan.zero < 3:  # weights are gathered beside the next forward pass
            forward_s = last_passes.forward_s
            collectives.append(
                price_collective("data", "all_gather", weight_bytes, group.shard, forward_s)
            )
    return [collective for collective in collectives if collective.total_s]


def _price_collective(
    cost: PlanCost,
    load: Load,
    last_passes: _LastPasses,
    group_name: str,
    kind: str,
    size_bytes: float,
    group: Group,
    pass_s: float,
) -> GroupCollective:
    """Return a collective of gradients or weights, and its exposed seconds.

    Args:
        cost: the costs of the plan.
        load: the parts of the device.
        last_passes: the last passes of the device.
        group_name: the name of the group.
        kind: the kind of the collective.
        size_bytes: the bytes of one rank.
        group: the ranks.
        pass_s: the pass with which the collective overlaps, if the stack overlaps it.
    """
    problem = cost.problem
    time = problem.collective_time(kind, size_bytes, group)
    exposed_s = problem.exposed_bucket_s(cost.plan, kind, size_bytes, group, load, cost.microbatch)
    # Without real buckets: the backward pass hides all but the last of so many equal buckets.
    if exposed_s is None:
        hidden_share = cost.rank.constant("data_hidden")
        bucket_count = last_passes.bucket_count
        earlier_buckets = 1 - 1 / bucket_count
        hiding_s = hidden_share * pass_s * last_passes.microbatches * earlier_buckets
        exposed_s = _exposed_s(cost.rank, time.seconds, hiding_s, bucket_count)
    return GroupCollective(
        group_name,
        kind,
        time.link,
        size_bytes,
        total_s=time.seconds,
        exposed_s=exposed_s,
        spread=time.spread,
    )


def _exposed_s(rank: RankModel, exchange_s: float, hiding_s: float, bucket_count: int) -> float:
    """Return the seconds of an exchange that outlast `hiding_s` of computation.

    The last of its buckets is never hidden. Hidden buckets slow the computation by `slowed`.
    """
    # The last bucket is ready when the pass ends. A single one counts as two.
    last_bucket_s = exchange_s / max(2, bucket_count)
    exposed_s = min(exchange_s, max(exchange_s - hiding_s, last_bucket_s))
    if hiding_s:
        hidden_s = exchange_s - exposed_s
        exposed_s += rank.constant("slowed") * hidden_s
    return exposed_s


def _embedding_collectives(cost: PlanCost, load: Load) -> list[GroupCollective]:
    """Return the all-reduce of an embedding that the first and the last stage share."""
    has_end = any(part.is_end for part, _ in load)
    is_on_two_stages = cost.problem.shape.tied and cost.plan.pipeline > 1
    if not is_on_two_stages or not has_end:
        return []
    # The embedding is the head as well: both stages sum their gradients of it.
    size_bytes = cost.rank.constant("gradient_bytes") * cost.pieces[FIRST].parameters
    time = cost.problem.collective_time("all_reduce", size_bytes, cost.groups.ends)
    all_reduce = GroupCollective(
        "embedding",
        "all_reduce",
        time.link,
        size_bytes,
        total_s=time.seconds,
        exposed_s=time.seconds,
        spread=time.spread,
    )
    return [all_reduce]


def _host_update(
    cost: PlanCost, parameters: float, hiding_s: float
) -> tuple[float, GroupCollective]:
    """Return the seconds of an update on the host, and the transfer of gradients and weights.

    Args:
        cost: the costs of the plan.
        parameters: the parameters that the device updates.
        hiding_s: the computation with which the transfer of gradients overlaps.
    """
    problem = cost.problem
    gradient_bytes = cost.rank.constant("gradient_bytes") * parameters
    weight_bytes = cost.rank.weight_bytes * parameters
    # The innermost level of links joins the devices of a node, which have one host.
    host_device_count = problem.cluster.ladder[0].size if problem.cluster.levels else 1
    memory_bytes_per_s, usual_device_count = host_memory()
    # The devices of a node share the memory bandwidth of their host.
    device_bytes_per_s = memory_bytes_per_s / min(host_device_count, usual_device_count)
    update_s = cost.rank.constant("update_bytes") * parameters / device_bytes_per_s
    host_update = time_host_update(
        gradient_bytes,
        weight_bytes,
        update_s,
        hiding_s,
        lambda size_bytes: problem.host_transfer(size_bytes).seconds,
    )
    transfer = GroupCollective(
        "host",
        "states",
        problem.host_transfer(0.0).link,  # for its name alone
        gradient_bytes + weight_bytes,
        host_update.transfers_s,
        host_update.exposed_s,
    )
    return host_update.update_s, transfer

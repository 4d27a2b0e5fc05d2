"""The forward and the backward pass of a part of a stage, with their exposed communication."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from steptime.core.dtypes import SIZE_BYTES
from steptime.planning.caches import cached_by_owner
from steptime.planning.pass_settings import GroupCollective, PartPasses, Pass, PassSettings
from steptime.planning.pipelines.stages import Group, Part
from steptime.planning.problem import LinkTime, PlanProblem
from steptime.planning.ranks.pieces import Piece, PieceCollective
from steptime.planning.ranks.rank_model import RankModel


@cached_by_owner
def price_passes(problem: PlanProblem, settings: PassSettings, part: Part) -> PartPasses:
    """Return the forward and the backward pass of a part for one microbatch."""
    piece = settings.pieces[part.name]
    forward_collectives = _piece_collectives(problem, settings, piece, "forward")
    backward_collectives = _piece_collectives(problem, settings, piece, "backward")
    call_s = _layer_call_s(problem.rank, settings, part)
    forward_host_s = piece.host_s.forward_s + call_s
    backward_host_s = piece.host_s.backward_s + call_s
    repeated_s = recompute_s(problem.rank, settings.recompute, piece) if part.recomputes else 0.0
    # A full repetition of the forward pass repeats its collectives and its launches, too.
    if repeated_s and settings.recompute == "full":
        backward_collectives = [*backward_collectives, *forward_collectives]
        backward_host_s += forward_host_s
    gathers = _weight_gathers(problem, settings, piece)
    scatters = _gradient_scatters(problem, settings, piece)
    offloaded_bytes = 0.0
    if settings.offloads_activations and not part.is_end:  # ends stay on the device
        offloaded_bytes = saved_bytes(problem.rank, settings.recompute, piece, part)
    forward_kernels = Pass(
        seconds=piece.forward_s,
        compute_s=piece.forward_s,
        recompute_s=0.0,
        host_s=forward_host_s,
        collectives=tuple(forward_collectives),
    )
    backward_kernels = Pass(
        seconds=piece.backward_s + repeated_s,
        compute_s=piece.backward_s,
        recompute_s=repeated_s,
        host_s=backward_host_s,
        collectives=tuple(backward_collectives),
    )
    weight_collectives = [*gathers, *scatters]
    passes = PartPasses(
        forward=_add_communication(problem, forward_kernels, gathers, offloaded_bytes),
        backward=_add_communication(problem, backward_kernels, weight_collectives, offloaded_bytes),
    )
    return _overlap_experts(problem.rank, passes) if settings.overlaps else passes


def recompute_s(rank: RankModel, recompute: str, piece: Piece) -> float:
    """Return the seconds of the forward kernels that the backward pass of a piece repeats."""
    if recompute == "none":
        return 0.0
    if recompute == "full":
        if piece.recompute_s is not None:
            return piece.recompute_s
        # The backward pass does not read a layer's result, so the last product need not run again.
        skips_last_product = rank.flag("stops_early")
        return piece.forward_s - (piece.last_product_s if skips_last_product else 0.0)
    # Selective: some stacks repeat a share of the kernels beside attention (`selective_repeated`).
    # The others repeat attention, and the other kernels but for the share whose results are kept.
    attention_s = piece.attention_s.forward_s
    other_s = piece.forward_s - attention_s
    repeated_share = rank.constant("selective_repeated")
    if repeated_share:
        return repeated_share * other_s
    return attention_s + (1 - rank.constant("selective_kept")) * other_s


def saved_bytes(rank: RankModel, recompute: str, piece: Piece, part: Part) -> float:
    """Return the bytes that a part saves for the backward pass of one microbatch."""
    activations = piece.activations
    if not part.recomputes:
        return activations.saved_bytes
    if recompute == "full":
        return activations.input_bytes
    # Selective: attention is computed again, and of the others a share is kept.
    other_bytes = activations.saved_bytes - activations.attention_bytes
    return other_bytes * rank.constant("selective_kept")


def _layer_call_s(rank: RankModel, settings: PassSettings, part: Part) -> float:
    """Return the host's seconds in a pass for the code of parallel training around a layer."""
    if part.is_end or not settings.has_layer_calls:
        return 0.0
    # The wrapper of a layer; with routed experts the router, and a call for each expert.
    call_s = rank.constant("layer_s")
    if settings.pieces[part.name].expert_parameters:
        experts_of_rank = rank.shape.experts / len(settings.expert)
        call_s += rank.constant("routed_layer_s") + rank.constant("expert_s") * experts_of_rank
    return call_s


def _piece_collectives(
    problem: PlanProblem, settings: PassSettings, piece: Piece, pass_: str
) -> list[GroupCollective]:
    """Return the collectives of a piece in a pass; those of a ring are joined into one."""
    group_collectives = []
    ring_bytes = 0.0
    for collective in piece.collectives:
        if collective.pass_ != pass_:
            continue
        if collective.group == "context" and settings.context_method == "ring":
            ring_bytes += collective.size_bytes  # keys and values, which go round together
        else:
            group_collectives.append(_price_collective(problem, settings, collective))
    if ring_bytes:
        group_collectives.append(_price_ring(problem, settings, piece, pass_, ring_bytes))
    return group_collectives


def _price_collective(
    problem: PlanProblem, settings: PassSettings, collective: PieceCollective
) -> GroupCollective:
    """Return a collective of a piece with its total and its exposed seconds."""
    is_token_exchange = collective.group == "expert"
    size_bytes = collective.size_bytes
    if is_token_exchange:
        size_bytes = _routed_bytes(problem.rank, settings, collective)
    # Such stacks send a token once to each node, however many of its experts are there.
    if is_token_exchange and problem.rank.flag("sent_once"):
        time = _token_exchange(problem, settings, size_bytes)
    else:
        ranks = settings.group(collective.group)
        time = problem.collective_time(collective.kind, size_bytes, ranks)
    exposed_s = time.seconds * (1 - _hidden_share(problem.rank, collective))
    return GroupCollective(
        collective.group,
        collective.kind,
        time.link,
        size_bytes,
        time.seconds,
        exposed_s,
        time.spread,
    )


def _routed_bytes(rank: RankModel, settings: PassSettings, collective: PieceCollective) -> float:
    """Return the bytes of the busiest rank's tokens on their way to experts or back."""
    # The busiest rank decides.
    size_bytes = collective.size_bytes * settings.imbalance
    if settings.sequence and not settings.routes_per_rank:  # each rank sends its own tokens
        size_bytes /= len(settings.tensor)
    # With low products tokens go out to experts in fewer bytes; results come back in all.
    dispatch_element_bytes = rank.constant("dispatch_bytes")
    if collective.is_dispatch and rank.low_dtype and dispatch_element_bytes:
        size_bytes *= dispatch_element_bytes / SIZE_BYTES[rank.compute_dtype]
    return size_bytes


def _token_exchange(problem: PlanProblem, settings: PassSettings, size_bytes: float) -> LinkTime:
    """Return the time of an exchange that sends a token once to each node that it reaches."""
    token_bytes = size_bytes / problem.shape.experts_per_token
    return problem.collective_time("once", token_bytes, settings.expert)


def _price_ring(
    problem: PlanProblem, settings: PassSettings, piece: Piece, pass_: str, all_bytes: float
) -> GroupCollective:
    """Return the sends of ring attention.

    Keys and values of all ranks go round once in the forward pass; in the backward pass they go
    round again, with their gradients. Each round overlaps with the attention to one rank's part.

    Args:
        problem: the network and its links.
        settings: the settings of the pass.
        piece: the piece.
        pass_: "forward" or "backward".
        all_bytes: the keys and values of all ranks.
    """
    rank_count = len(settings.context)
    is_backward = pass_ == "backward"
    # Backward, keys and values go round again, beside their gradients.
    sends_of_round = 2 if is_backward else 1
    round_bytes = all_bytes / rank_count * sends_of_round
    neighbours = problem.farthest_neighbours(settings.context)
    time = problem.collective_time("send", round_bytes, neighbours)
    attention_s = piece.attention_s.backward_s if is_backward else piece.attention_s.forward_s
    # A round is hidden by the attention to one rank's keys and values.
    exposed_s = max(0.0, time.seconds - attention_s / rank_count)
    rounds = rank_count - 1
    return GroupCollective(
        "context",
        "send",
        time.link,
        size_bytes=rounds * round_bytes,
        total_s=rounds * time.seconds,
        exposed_s=rounds * exposed_s,
        spread=time.spread,
    )


def _hidden_share(rank: RankModel, collective: PieceCollective) -> float:
    """Return the share of a collective that overlaps with computation.

    The sum over gradients of inputs may overlap with the products that make gradients of weights.
    """
    if collective.group != "tensor":
        return 0.0
    hidden_share = rank.constant("tensor_hidden")
    # Backward, sums over gradients of inputs overlap with the products for gradients of weights.
    is_sum = collective.kind in ("all_reduce", "reduce_scatter")
    if is_sum and collective.pass_ == "backward":
        return max(hidden_share, rank.constant("backward_hidden"))
    return hidden_share


class _WeightGroup(NamedTuple):
    """Parameters of a piece that a group of replicas shares."""

    parameters: int
    frozen_bytes: int
    ranks: Group


def _weight_groups(settings: PassSettings, piece: Piece) -> list[_WeightGroup]:
    """Return the sharded parameters of a piece: those of all replicas, and of routed experts."""
    if not settings.zero:
        return []
    # Experts that no ranks share are replicated as all other parameters are.
    expert_parameters = piece.expert_parameters if len(settings.expert) > 1 else 0
    dense_parameters = piece.parameters - expert_parameters
    groups = [
        _WeightGroup(dense_parameters, piece.frozen_bytes, settings.shard),
        _WeightGroup(expert_parameters, 0, settings.expert_shard),
    ]
    # A single rank shares with nobody, and a group without weights has nothing to exchange.
    return [
        group
        for group in groups
        if len(group.ranks) > 1 and (group.parameters or group.frozen_bytes)
    ]


def _weight_gathers(
    problem: PlanProblem, settings: PassSettings, piece: Piece
) -> list[GroupCollective]:
    """Return the collectives that gather the sharded weights of a piece (ZeRO 3)."""
    shards_weights = settings.zero == 3
    if not shards_weights:
        return []
    gathers = []
    for group in _weight_groups(settings, piece):
        size_bytes = problem.rank.weight_bytes * group.parameters + group.frozen_bytes
        gathers.append(_weight_collective(problem, "all_gather", size_bytes, group.ranks))
    return gathers


def _gradient_scatters(
    problem: PlanProblem, settings: PassSettings, piece: Piece
) -> list[GroupCollective]:
    """Return the collectives that sum and scatter the sharded gradients of a piece (ZeRO 2, 3)."""
    scatters = []
    for group in _weight_groups(settings, piece):
        size_bytes = problem.rank.constant("gradient_bytes") * group.parameters
        scatters.append(_weight_collective(problem, "reduce_scatter", size_bytes, group.ranks))
    return scatters


def _weight_collective(
    problem: PlanProblem, kind: str, size_bytes: float, ranks: Group
) -> GroupCollective:
    """Return a collective of the replicas that share the weights of a piece."""
    time = problem.collective_time(kind, size_bytes, ranks)
    return GroupCollective(
        "data",
        kind,
        time.link,
        size_bytes,
        total_s=time.seconds,
        exposed_s=0.0,  # until `_add_communication` compares it with the pass
        spread=time.spread,
    )


def _add_communication(
    problem: PlanProblem,
    kernels: Pass,
    weight_collectives: Sequence[GroupCollective],
    offloaded_bytes: float,
) -> Pass:
    """Return a pass with its communication.

    Collectives of weights and transfers to the host overlap with the kernels; what outlasts them
    is exposed. Hidden collectives slow the kernels.

    Args:
        problem: the network and its links.
        kernels: the kernels of the pass and the collectives between them.
        weight_collectives: gathers of weights and scatters of gradients.
        offloaded_bytes: saved activations that go to the host or come back.
    """
    # In parallel run: the kernels, the collectives of weights, and the transfer to the host. Only
    # what outlasts the kernels is exposed; collectives between kernels hide nothing.
    busy_s = kernels.seconds  # kernels alone; the returned pass holds exposed communication, too
    weights_s = sum(collective.total_s for collective in weight_collectives)
    hidden_weights_s = min(weights_s, busy_s)
    slowdown_s = problem.rank.constant("slowed") * hidden_weights_s  # of kernels beside them
    exposed_weights_s = max(0.0, weights_s - busy_s)
    exposed_share = exposed_weights_s / weights_s if weights_s else 0.0  # the same share of each
    collectives = list(kernels.collectives)
    collectives += [
        collective._replace(exposed_s=collective.total_s * exposed_share)
        for collective in weight_collectives
    ]
    if offloaded_bytes:
        transfer = problem.host_transfer(offloaded_bytes)
        hiding_s = busy_s + slowdown_s + exposed_weights_s  # all that runs beside the transfer
        exposed_s = max(0.0, transfer.seconds - hiding_s)
        collectives.append(
            GroupCollective(
                "host",
                "activations",
                transfer.link,
                offloaded_bytes,
                transfer.seconds,
                exposed_s,
                transfer.spread,
            )
        )
    device_s = busy_s + slowdown_s + sum([collective.exposed_s for collective in collectives])
    compute_s = kernels.compute_s + slowdown_s
    return Pass(
        seconds=device_s,
        compute_s=compute_s,
        recompute_s=kernels.recompute_s,
        host_s=kernels.host_s,
        collectives=tuple(collectives),
    )


def _overlap_experts(rank: RankModel, passes: PartPasses) -> PartPasses:
    """Return passes whose exchanges of tokens overlap with the kernels of another microbatch.

    What outlasts these kernels stays exposed. Hidden exchanges slow the kernels.
    """
    forward_exchange_s = _expert_exposed_s(passes.forward)
    backward_exchange_s = _expert_exposed_s(passes.backward)
    exchange_s = forward_exchange_s + backward_exchange_s
    # What is left of both passes of another microbatch, behind which the exchange can hide.
    other_s = passes.forward.seconds + passes.backward.seconds - exchange_s
    exposed_share = max(0.0, 1 - other_s / exchange_s) if exchange_s else 0.0
    return PartPasses(
        _hide_experts(rank, passes.forward, forward_exchange_s, exposed_share),
        _hide_experts(rank, passes.backward, backward_exchange_s, exposed_share),
    )


def _expert_exposed_s(pass_: Pass) -> float:
    return sum(
        collective.exposed_s for collective in pass_.collectives if collective.group == "expert"
    )


def _hide_experts(rank: RankModel, pass_: Pass, exchange_s: float, exposed_share: float) -> Pass:
    """Return a pass of which only a share of the exchange of tokens is exposed."""
    hidden_s = exchange_s * (1 - exposed_share)
    # Hidden exchanges take a share of the kernels' speed.
    slowdown_s = rank.constant("slowed") * hidden_s
    collectives = tuple(
        collective._replace(exposed_s=collective.exposed_s * exposed_share)
        if collective.group == "expert"
        else collective
        for collective in pass_.collectives
    )
    return pass_._replace(
        seconds=pass_.seconds - hidden_s + slowdown_s,
        compute_s=pass_.compute_s + slowdown_s,
        collectives=collectives,
        overlap_s=hidden_s - slowdown_s,  # what the pass gains by the overlap
    )

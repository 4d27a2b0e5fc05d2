"""The memory of each device of a plan at the worst moment of a step, by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from steptime.core.workload import Plan
from steptime.planning.caches import cached_by_owner
from steptime.planning.parameter_memory import (
    StateSharding,
    bytes_of_parameters,
    count_parameters,
    sharding_of,
)
from steptime.planning.passes import saved_bytes
from steptime.planning.pipelines.stages import Layout, Load
from steptime.planning.plan_cost import PlanCost
from steptime.planning.problem import PlanProblem
from steptime.planning.ranks.pieces import RankPieces
from steptime.planning.ranks.rank_model import RankModel
from steptime.prediction.training import FIRST, LAST


class Memory(NamedTuple):
    """Bytes of a device by part, at the worst moment of a step.

    Attributes:
        weights: weights and their copies.
        gradients: gradients of weights.
        states: states of the optimizer.
        activations: saved by all microbatches in flight, and gradients live in a layer's backward.
        gathered: gathered weights of sharded layers.
        logits: head and loss.
        buffers: buffers of the framework.
        context: driver and libraries.
        inputs: inputs of a network that is no language model, on one device.
        temporaries: temporaries of such a network.
        blocks: unused parts of the allocator's blocks for such a network.
    """

    weights: float
    gradients: float
    states: float
    activations: float
    gathered: float
    logits: float
    buffers: float
    context: float
    inputs: float = 0.0
    temporaries: float = 0.0
    blocks: float = 0.0

    @property
    def total(self) -> float:
        """Bytes in all."""
        return sum(self)


class DeviceMemory(NamedTuple):
    """The memory of a device of the pipeline for any number of microbatches in flight.

    Attributes:
        fixed: the memory without saved activations of microbatches in flight.
        fixed_bytes: the total of `fixed`.
        stage_bytes: by stage of the device, the activations that a microbatch in flight saves.
    """

    fixed: Memory
    fixed_bytes: float
    stage_bytes: Mapping[int, float]


def updated_parameters(cost: PlanCost, load: Load) -> float:
    """Return the parameters whose states a device holds, and which it updates."""
    counts = count_parameters(cost.pieces, load)
    return sharding_of(cost.plan).count_local_parameters(counts, shared_from_zero=1)


def memory_of_device(
    cost: PlanCost, device: int, in_flight: Sequence[int], microbatches: int
) -> Memory:
    """Return the memory of a device of the pipeline.

    Args:
        cost: the costs of the plan.
        device: the device.
        in_flight: the microbatches that each stage holds at most.
        microbatches: the microbatches of a step.
    """
    memory = device_memory(cost, _memory_settings(cost), device)
    saved = activation_bytes(memory.stage_bytes, in_flight, microbatches)
    return memory.fixed._replace(activations=memory.fixed.activations + saved)


def activation_bytes(
    stage_bytes: Mapping[int, float], in_flight: Sequence[int], microbatches: int
) -> float:
    """Return the saved activations of the microbatches in flight on a device.

    Args:
        stage_bytes: by stage of the device, the activations that a microbatch saves.
        in_flight: the microbatches that each stage of the pipeline holds at most.
        microbatches: the microbatches of a step.
    """
    return sum(
        [
            microbatch_bytes * min(in_flight[stage], microbatches)
            for stage, microbatch_bytes in stage_bytes.items()
        ]
    )


@cached_by_owner
def distinct_device_memories(_problem: PlanProblem, cost: PlanCost) -> list[DeviceMemory]:
    """Return the memory of one device of each kind of the pipeline."""
    settings = _memory_settings(cost)
    return [device_memory(cost, settings, device) for device in cost.layout.distinct_devices]


def _memory_settings(cost: PlanCost) -> MemorySettings:
    plan = cost.plan
    return MemorySettings(
        pieces=cost.pieces,
        microbatch=cost.microbatch,
        tensor=plan.tensor,
        context=plan.context,
        recompute=plan.recompute,
        offload=plan.offload,
        sharding=sharding_of(plan),
    )


def device_memory(cost: PlanCost, settings: MemorySettings, device: int) -> DeviceMemory:
    """Return the memory of a device of the pipeline for any number of microbatches.

    Args:
        cost: the costs of the plan.
        settings: what all devices of the plan have in common.
        device: the device.
    """
    bytes_by_part = cost.rank.single_device_memory(cost.plan, cost.microbatch, cost.microbatches)
    if bytes_by_part is not None:  # they hold the activations of the only microbatch already
        memory = Memory(**bytes_by_part)
        return DeviceMemory(fixed=memory, fixed_bytes=memory.total, stage_bytes={})
    layout = cost.layout
    memory = _fixed_memory(cost.rank, settings, layout.devices[device])
    stage_bytes = {
        stage: _saved_of_stage(cost, layout.stages[stage]).device_bytes
        for stage in _stages_of_device(cost, device)
    }
    return DeviceMemory(fixed=memory, fixed_bytes=memory.total, stage_bytes=stage_bytes)


def _stages_of_device(cost: PlanCost, device: int) -> Sequence[int]:
    plan = cost.plan
    if plan.goes_both_ways:
        return (device, plan.pipeline - 1 - device)  # DualPipe: and the mirror image of it
    return range(device, len(cost.layout.stages), plan.pipeline)  # dealt out in turn


class SavedBytes(NamedTuple):
    """The bytes that a microbatch saves in a stage: on the device, and on the host."""

    device_bytes: float
    host_bytes: float


def _saved_of_stage(cost: PlanCost, load: Load) -> SavedBytes:
    return _saved_of_load(cost.rank, cost.pieces, load, cost.plan.recompute, cost.plan.offload)


@cached_by_owner
def _saved_of_load(
    rank: RankModel, pieces: RankPieces, load: Load, recompute: str, offload: str
) -> SavedBytes:
    """Return the saved activations of a stage for one microbatch; fragments are added."""
    first_bytes = layer_bytes = 0.0
    for part, count in load:  # layers of each kind with their number, and ends
        part_bytes = saved_bytes(rank, recompute, pieces[part.name], part) * count
        if part.name == FIRST:
            first_bytes += part_bytes
        elif part.name != LAST:  # the head is counted by `_logit_bytes`
            layer_bytes += part_bytes
    fragmentation = 1 + rank.constant("fragmented")  # gaps that the allocator leaves
    offloads_layers = offload in ("activations", "both")
    if offloads_layers:  # the embedding's activations stay on the device
        return SavedBytes(device_bytes=first_bytes * fragmentation, host_bytes=layer_bytes)
    device_bytes = (first_bytes + layer_bytes) * fragmentation
    return SavedBytes(device_bytes=device_bytes, host_bytes=0.0)


def host_bytes_of_device(
    cost: PlanCost, device: int, in_flight: Sequence[int], microbatches: int
) -> float:
    """Return the bytes of a device of the pipeline in the memory of its host.

    Args:
        cost: the costs of the plan.
        device: the device.
        in_flight: the microbatches that each stage holds at most.
        microbatches: the microbatches of a step.
    """
    state_bytes = 0.0
    if cost.plan.offload in ("optimizer", "both"):
        parameters = updated_parameters(cost, cost.layout.devices[device])
        state_bytes = parameters * cost.rank.constant("state_bytes")
    stage_bytes = {
        stage: _saved_of_stage(cost, cost.layout.stages[stage]).host_bytes
        for stage in range(device, len(in_flight), cost.plan.pipeline)  # dealt out in turn
    }
    return state_bytes + activation_bytes(stage_bytes, in_flight, microbatches)


class MemorySettings(NamedTuple):
    """All that the fixed memory of a device depends on but its parts.

    Attributes:
        pieces: the pieces of the rank.
        microbatch: the sequences of a microbatch.
        tensor: the tensor-parallel ranks.
        context: the ranks that share a sequence.
        recompute: how much of the forward pass is repeated.
        offload: what lies in the memory of the host.
        sharding: how replicas share states, gradients and weights.
    """

    pieces: RankPieces
    microbatch: int
    tensor: int
    context: int
    recompute: str
    offload: str
    sharding: StateSharding


@cached_by_owner
def _fixed_memory(rank: RankModel, settings: MemorySettings, load: Load) -> Memory:
    """Return the memory of a device without saved activations of microbatches in flight."""
    pieces = settings.pieces
    working_bytes = _working_bytes(rank, settings, load)
    counts = count_parameters(pieces, load)
    parameter_bytes = bytes_of_parameters(rank, settings.sharding, settings.offload, counts)
    frozen_bytes = float(sum(pieces[part.name].frozen_bytes * count for part, count in load))
    if settings.sharding.zero == 3:  # frozen weights are sharded like trained ones
        frozen_bytes /= settings.sharding.shards
    gathered_bytes = _gathered_bytes(rank, settings, load)
    logit_bytes = _logit_bytes(rank, settings, load, working_bytes)
    # A step that is compiled as a whole gathers single weights, not layers. It has the loss and the
    # layers' backward pass in the same memory: only the excess of the loss counts.
    if rank.flag("one_program"):
        gathered_bytes = _next_weights_bytes(rank, settings, load)
        layer_bytes = parameter_bytes.gradients + working_bytes + gathered_bytes
        logit_bytes = max(0.0, _loss_bytes(rank, settings, load) - layer_bytes)
    return Memory(
        weights=parameter_bytes.weights + frozen_bytes,
        gradients=parameter_bytes.gradients,
        states=parameter_bytes.states,
        activations=working_bytes * (1 + rank.constant("fragmented")),
        gathered=gathered_bytes,
        logits=logit_bytes,
        buffers=rank.constant("buffer_bytes"),
        context=rank.constant("context_bytes"),
    )


def _working_bytes(rank: RankModel, settings: MemorySettings, load: Load) -> float:
    """Return the peak of gradients and recomputed activations in the backward pass of a layer."""
    pieces = settings.pieces
    layers = [part for part, _ in load if not part.is_end]
    all_layers = [pieces[part.name].activations for part in layers]
    recomputed_layers = [pieces[part.name].activations for part in layers if part.recomputes]
    working_bytes = float(max((layer.working_bytes for layer in all_layers), default=0))
    if settings.recompute == "full":
        working_bytes += max((layer.saved_bytes for layer in recomputed_layers), default=0)
    elif settings.recompute == "selective":  # attention alone is computed again
        working_bytes += max((layer.attention_bytes for layer in recomputed_layers), default=0)
    offloads_layers = settings.offload in ("activations", "both")
    if offloads_layers:  # the device holds two layers: one is computed, one transferred
        offloaded_bytes = [
            saved_bytes(rank, settings.recompute, pieces[part.name], part) for part in layers
        ]
        working_bytes += 2 * max(offloaded_bytes, default=0)
    return working_bytes


def _gathered_bytes(rank: RankModel, settings: MemorySettings, load: Load) -> float:
    """Return the gathered weights of a layer and the next one, and its unscattered gradients."""
    if settings.sharding.zero < 2:  # gradients are not sharded
        return 0.0
    # ZeRO 3 gathers the weights of a layer, and those of the next one ahead.
    gathered_layers = 2 if settings.sharding.zero == 3 else 0
    # Beside these lie the gradients of a layer until they are scattered.
    bytes_per_parameter = gathered_layers * rank.weight_bytes + rank.constant("gradient_bytes")
    pieces = [settings.pieces[part.name] for part, _ in load]
    return max(
        bytes_per_parameter * piece.parameters + gathered_layers * piece.frozen_bytes
        for piece in pieces
    )


def _logit_bytes(
    rank: RankModel, settings: MemorySettings, load: Load, working_bytes: float
) -> float:
    """Return the memory of head and loss, beyond the working memory of layers where chunked."""
    if not any(part.name == LAST for part, _ in load):
        return 0.0
    head = settings.pieces[LAST].activations
    tokens = settings.microbatch * rank.shape.length / settings.context
    logits = tokens * rank.shape.vocabulary / settings.tensor
    chunk_count = rank.constant("logit_chunks")  # 0 or 1: all logits at once
    chunk_bytes = logits * rank.constant("logit_bytes") / max(1.0, chunk_count)
    head_bytes = head.saved_bytes + head.working_bytes + chunk_bytes
    # With chunks the head is done before the layers' backward pass begins: on top comes only what
    # it needs beyond the layers' `working_bytes`, which are counted already.
    if chunk_count > 1:
        return max(0.0, head_bytes - working_bytes)
    return head_bytes


def _next_weights_bytes(rank: RankModel, settings: MemorySettings, load: Load) -> float:
    """Return the weights that a compiled step has gathered in a layer, and one's gradient.

    It gathers weight by weight: one is read while the next one comes. Gradients have the type of
    the weights until they are scattered.
    """
    if settings.sharding.zero < 2:
        return 0.0
    gathered_weights = 2 if settings.sharding.zero == 3 else 0  # one in use, and the next one
    layers = [settings.pieces[part.name] for part, _ in load if not part.is_end]
    largest_weight = max((layer.largest_weight for layer in layers), default=0)
    tensor_count = gathered_weights + 1  # and the gradient of one, not yet scattered
    return tensor_count * rank.weight_bytes * largest_weight


def _loss_bytes(rank: RankModel, settings: MemorySettings, load: Load) -> float:
    """Return the memory of the loss in a compiled step, before the layers' backward pass begins.

    Casts, softmax and its gradient are made inside the products that read them.
    """
    if not any(part.name == LAST for part, _ in load):
        return 0.0
    pieces = settings.pieces.by_name
    ends = [pieces[name] for name in (FIRST, LAST) if name in pieces]
    head_weight = max(end.largest_weight for end in ends)  # which may be the embedding
    # Sharded, it lies there gathered, or later its gradient until that is scattered.
    copies = 1 if settings.sharding.zero >= 2 else 0
    tokens = settings.microbatch * rank.shape.length / settings.context
    logits = tokens * rank.shape.vocabulary / settings.tensor
    logit_bytes = logits * rank.constant("logit_bytes") / max(1.0, rank.constant("logit_chunks"))
    return logit_bytes + copies * rank.weight_bytes * head_weight


def min_device_bytes(rank: RankModel, plan: Plan) -> float:
    """Return a lower bound of the fullest device's memory, without pricing its layers.

    It counts parameters alone: tensor and expert ranks share at most all of them.
    """
    if not rank.shape.is_language_model:
        return 0.0
    expert_split = plan.expert if plan.routes_per_rank else plan.tensor * plan.expert
    layout = rank.layout(plan, 1)
    return _min_bytes(rank, layout, sharding_of(plan), plan.offload, plan.tensor, expert_split)


@cached_by_owner
def _min_bytes(
    rank: RankModel,
    layout: Layout,
    sharding: StateSharding,
    offload: str,
    dense_split: int,
    expert_split: int,
) -> float:
    pieces = RankPieces(rank.unsplit_pieces)
    max_bytes = 0.0
    for load in set(layout.devices):
        counts = count_parameters(pieces, load)
        split_counts = counts.split(dense_split, expert_split)
        parameter_bytes = bytes_of_parameters(rank, sharding, offload, split_counts)
        max_bytes = max(max_bytes, sum(parameter_bytes))  # weights, gradients and states
    return max_bytes + rank.constant("buffer_bytes") + rank.constant("context_bytes")

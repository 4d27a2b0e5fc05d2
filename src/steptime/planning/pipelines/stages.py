"""Which layers each stage of a pipeline has, and where groups of ranks lie on the network."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.core.workload import Plan
from steptime.prediction.training import FIRST, LAST

DIMENSIONS = ("tensor", "context", "data", "pipeline")
ORDERS = {"-".join(order): order for order in permutations(DIMENSIONS)}
"""By name, the orders in which the dimensions of a plan number the ranks, innermost first."""
DEFAULT_ORDER = "-".join(DIMENSIONS)


def split_layers(layer_count: int, stage_count: int) -> tuple[int, ...]:
    """Return the number of layers of each stage, in the order of the network.

    If the stages do not divide the layers, but would with embedding and head counted as layers (126
    layers, 16 stages: 128), these count as one layer each, and have a stage each where there are
    128 stages. Otherwise the stages in the middle have one layer more.

    Raises:
        InputError: if a stage would be empty.
    """
    if stage_count == layer_count + 2:  # embedding and head have a stage each, without layers
        return (0, *[1] * layer_count, 0)
    if stage_count > layer_count:
        words = f"{stage_count} stages (pipeline x virtual)"
        raise InputError(f"plan: {words} of {layer_count} layers: at most {layer_count}")
    per_stage_with_ends, remainder_with_ends = divmod(layer_count + 2, stage_count)
    per_stage, extra_layers = divmod(layer_count, stage_count)
    divides_only_with_ends = extra_layers > 0 and remainder_with_ends == 0
    # Not where the ends would have no layer left.
    leaves_layers_to_ends = per_stage_with_ends > 1 and stage_count > 1
    if divides_only_with_ends and leaves_layers_to_ends:  # embedding and head count as a layer
        end_layers = per_stage_with_ends - 1
        middle_layers = [per_stage_with_ends] * (stage_count - 2)
        return (end_layers, *middle_layers, end_layers)
    # The stages in the middle have one layer more.
    first_middle = (stage_count - extra_layers) // 2
    middle_stages = range(first_middle, first_middle + extra_layers)
    return tuple(
        per_stage + 1 if stage in middle_stages else per_stage for stage in range(stage_count)
    )


Group = Sequence[int]
"""Ranks, ascending."""


@dataclass(frozen=True)
class RankGroups:
    """The groups of ranks with which rank 0 communicates.

    Attributes:
        tensor: the tensor-parallel ranks of a layer.
        context: the ranks that share a sequence.
        pipeline: one rank of each stage.
        ends: the ranks of the first and the last stage.
        expert: the ranks that share the routed experts.
        replicas: the ranks with the same layers.
        shard: the replicas that share states.
        copies: the replicas with the same share of the states, one of each shard group.
        expert_replicas: the ranks with the same routed experts.
        expert_shard: those of them that share states.
        expert_copies: those of them with the same share of the states.
    """

    tensor: Group
    context: Group
    pipeline: Group
    ends: Group
    expert: Group
    replicas: Group
    shard: Group
    copies: Group
    expert_replicas: Group
    expert_shard: Group
    expert_copies: Group


@lru_cache(maxsize=1 << 14)
def rank_groups(
    widths: tuple[int, int, int, int],
    expert: int,
    shards: int,
    order: str = DEFAULT_ORDER,
    routers: int = 0,
) -> RankGroups:
    """Return the groups of ranks with which rank 0 communicates.

    Args:
        widths: the ranks of the tensor, context, data and pipeline dimension.
        expert: the ranks that share the routed experts.
        shards: the replicas that share states.
        order: the order in which dimensions number the ranks, a key of `ORDERS`.
        routers: the ranks of a stage among which experts are shared; more than there are replicas
            if tensor ranks have experts of their own, 0 for the replicas.
    """
    ranks_of = _ranks_along_dimensions(dict(zip(DIMENSIONS, widths, strict=True)), order)
    replicas = _as_range(_combine_ranks(ranks_of["data"], ranks_of["context"]))
    # The ranks among which experts are shared: the replicas, and those of the other tensor ranks
    # where these have experts of their own.
    expert_ranks = replicas
    has_experts_per_tensor_rank = routers > len(replicas)
    if has_experts_per_tensor_rank:
        expert_ranks = tuple(_combine_ranks(ranks_of["tensor"], replicas))
    # Neighbours hold different experts: with `expert` 4, ranks 0 to 3 of these have all experts
    # together, and 0, 4, 8, ... have the same ones.
    expert_group = expert_ranks[:expert]
    expert_replicas = expert_ranks[::expert]
    # A group of shards has so many of the expert ranks, of which one in `expert` has the same.
    expert_rank_count = routers or len(replicas)
    ranks_of_shards = shards * expert_rank_count // len(replicas)
    expert_shards = max(1, ranks_of_shards // expert)
    return RankGroups(
        tensor=ranks_of["tensor"],
        context=ranks_of["context"],
        pipeline=ranks_of["pipeline"],
        ends=(0, ranks_of["pipeline"][-1]),
        expert=expert_group,
        replicas=replicas,
        # Likewise neighbours hold different shares of the states: with `shards` 4, replicas 0 to 3
        # have all states together, and 0, 4, 8, ... have copies of the same ones.
        shard=replicas[:shards],
        copies=replicas[::shards],
        expert_replicas=expert_replicas,
        expert_shard=expert_replicas[:expert_shards],
        expert_copies=expert_replicas[::expert_shards],
    )


def _ranks_along_dimensions(width_of: Mapping[str, int], order: str) -> dict[str, range]:
    """Return, by dimension, the ranks that differ from rank 0 in this dimension alone.

    A rank is the sum over the dimensions of index * stride; the first of the order has stride 1.
    """
    ranks_of: dict[str, range] = {}
    stride = 1
    for name in ORDERS[order]:
        ranks_of[name] = range(0, stride * width_of[name], stride)
        stride *= width_of[name]
    return ranks_of


def _combine_ranks(first: Iterable[int], second: Iterable[int]) -> list[int]:
    """Return the ranks that differ from rank 0 in two dimensions alone, given those of each."""
    return sorted(x + y for x, y in product(first, second))


def _as_range(ranks: Sequence[int]) -> Group:
    """Return ranks from 0 on as a range if they are evenly spaced, else as a tuple."""
    stride = ranks[1] if len(ranks) > 1 else 1
    even = range(0, len(ranks) * stride, stride)
    return even if list(ranks) == list(even) else tuple(ranks)


class Part(NamedTuple):
    """A piece of the network in a stage.

    Attributes:
        name: the name of the piece.
        recomputes: whether the backward pass repeats its forward pass.
    """

    name: str
    recomputes: bool = False

    @property
    def is_end(self) -> bool:
        """Whether it is the embedding or the head, and no layer."""
        return self.name in (FIRST, LAST)


Load = tuple[tuple[Part, int], ...]
"""The parts of a stage or a device, and the number of each."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The layers of a pipeline's stages and devices.

    Layouts are cached, and compared and hashed by identity, so that they are cheap cache keys.

    Attributes:
        layers: the number of layers of each stage.
        stages: the parts of each stage.
        devices: the parts of each device.
        distinct_devices: the first device of each kind (equal parts in equal stages), which holds
            the most microbatches of its kind.
    """

    layers: tuple[int, ...]
    stages: tuple[Load, ...]
    devices: tuple[Load, ...]
    distinct_devices: tuple[int, ...]


@lru_cache(maxsize=1 << 12)
def lay_out(
    kinds: tuple[str, ...],
    pipeline: int,
    virtual: int,
    recomputed_layers: int = 0,
    layer_counts: tuple[int, ...] = (),
    goes_both_ways: bool = False,
) -> Layout:
    """Return the layout of layers over the stages and devices of a pipeline.

    Args:
        kinds: the kind of each layer, in the order of the network.
        pipeline: the devices of the pipeline.
        virtual: the stages of a device.
        recomputed_layers: the first layers of each stage, which recompute their activations.
        layer_counts: the layers of each stage; () for an even split.
        goes_both_ways: whether each device has a stage of both directions (DualPipe).

    Raises:
        InputError: if a stage would be empty.
    """
    layer_counts = layer_counts or split_layers(len(kinds), pipeline * virtual)
    stage_parts = _list_stage_parts(kinds, layer_counts, recomputed_layers)
    # Stages are dealt out in turn: device d has d, d + pipeline, ...
    device_parts = [sum(stage_parts[d::pipeline], Counter[Part]()) for d in range(pipeline)]
    if goes_both_ways:  # DualPipe: a device has the stages of its opposite as well
        device_parts = [
            parts + opposite_parts
            for parts, opposite_parts in zip(device_parts, reversed(device_parts), strict=True)
        ]
    stages = tuple(tuple(parts.items()) for parts in stage_parts)
    devices = tuple(tuple(parts.items()) for parts in device_parts)
    # Devices with equal parts and stages cost the same: one of each kind is enough.
    first_of_kind: dict[tuple[Load, tuple[Load, ...]], int] = {}
    for d, load in enumerate(devices):
        stages_of_device = stages[d::pipeline]
        first_of_kind.setdefault((load, stages_of_device), d)
    # Of devices of a kind the first one holds the most microbatches.
    distinct_devices = tuple(first_of_kind.values())
    return Layout(
        layers=layer_counts,
        stages=stages,
        devices=devices,
        distinct_devices=distinct_devices,
    )


def _list_stage_parts(
    kinds: tuple[str, ...], layer_counts: Sequence[int], recomputed_layers: int
) -> list[Counter[Part]]:
    """Return the number of each part in each stage, with embedding and head at the ends."""
    stage_parts: list[Counter[Part]] = []
    start = 0
    for layer_count in layer_counts:
        stage_kinds = kinds[start : start + layer_count]
        start += layer_count
        parts = [Part(kind, recomputes=i < recomputed_layers) for i, kind in enumerate(stage_kinds)]
        stage_parts.append(Counter(parts))
    stage_parts[0][Part(FIRST)] += 1
    stage_parts[-1][Part(LAST)] += 1
    return stage_parts


def layout_of_plan(kinds: tuple[str, ...], plan: Plan) -> Layout:
    """Return the layout of layers under a plan."""
    recomputed_layers = 0
    if plan.recompute != "none":
        recomputed_layers = plan.recompute_layers or len(kinds)
    return lay_out(
        kinds, plan.pipeline, plan.virtual, recomputed_layers, plan.stages, plan.goes_both_ways
    )

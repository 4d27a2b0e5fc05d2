"""Which layers a stage of a pipeline has, and where groups of ranks lie on the network."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.core.workload import Plan
from steptime.prediction.training import FIRST, LAST

SIZES = ("tensor", "context", "data", "pipeline")
ORDERS = {"-".join(order): order for order in permutations(SIZES)}  # from the inside out
USUAL = "-".join(SIZES)


def layers_of(layers: int, stages: int) -> tuple[int, ...]:
    """Return how many layers each stage has, in the order of the network.

    Where they do not divide, and with embedding and head would (126 layers, 16 stages: 128), these
    stand for a layer each, alone in their stages where there are 128; else the stages in the middle
    have one more. Raises `InputError` where a stage would be empty.
    """
    if stages == layers + 2:
        return (0, *[1] * layers, 0)
    if stages > layers:
        made = f"{stages} stages (pipeline x virtual)"
        raise InputError(f"plan: {made} of {layers} layers: at most {layers}")
    each, left = divmod(layers + 2, stages)
    if layers % stages and not left and min(each, stages) > 1:
        return (each - 1, *[each] * (stages - 2), each - 1)
    each, more = divmod(layers, stages)
    start = (stages - more) // 2
    return tuple(each + (start <= k < start + more) for k in range(stages))


Group = Sequence[int]  # ranks


@lru_cache(maxsize=1 << 14)
def groups(
    sizes: tuple[int, int, int, int],
    expert: int,
    shards: int,
    order: str = USUAL,
    routers: int = 0,
) -> Mapping[str, Group]:
    """Return the ranks that rank 0 exchanges with, by what for.

    `sizes` are those of tensor, context, data and pipeline. `replicas` hold the same layers;
    `shard` are those of them that share states, and `copies` those of other such groups that have
    the same share. Of routed experts, which `expert` ranks share out, these are `expert_replicas`,
    `expert_shard` and `expert_copies`; where there are as many `routers` as replicas of tensor
    ranks, these are among them. `pipeline` are the stages, `ends` the first and the last.
    """
    stride, apart = 1, {}
    widths = dict(zip(SIZES, sizes, strict=True))
    for name in ORDERS[order]:
        apart[name] = range(0, stride * widths[name], stride)
        stride *= widths[name]
    replicas: Group = sorted(d + c for d in apart["data"] for c in apart["context"])
    step = replicas[1] if len(replicas) > 1 else 1
    even = range(0, len(replicas) * step, step)
    replicas = even if replicas == list(even) else tuple(replicas)
    among, few = replicas, max(1, shards * (routers or len(replicas)) // len(replicas) // expert)
    if routers > len(replicas):
        among = tuple(sorted(t + one for t in apart["tensor"] for one in replicas))
    routed = among[::expert]
    return {
        **{name: apart[name] for name in ("tensor", "context", "pipeline")},
        "expert": among[:expert],
        "replicas": replicas,
        "shard": replicas[:shards],
        "copies": replicas[::shards],
        "expert_replicas": routed,
        "expert_shard": routed[:few],
        "expert_copies": routed[::few],
        "ends": (0, apart["pipeline"][-1]),
    }


class Part(NamedTuple):
    """A piece of the network where it runs: whether its forward pass is computed `again`."""

    name: str
    again: bool = False

    @property
    def is_end(self) -> bool:
        """Whether it is no layer, but what stands before or after them."""
        return self.name in (FIRST, LAST)


Load = tuple[tuple[Part, int], ...]  # parts, and how many of each


class Layout(NamedTuple):
    """Which layers a pipeline's stages have: their number, and the parts of stages and devices.

    `unlike` are the first devices of each load, and of each of its stages: they hold most of those
    that have these.
    """

    layers: tuple[int, ...]
    stages: tuple[Load, ...]
    devices: tuple[Load, ...]
    unlike: tuple[int, ...]


@lru_cache(maxsize=1 << 12)
def layout(
    kinds: tuple[str, ...],
    pipeline: int,
    virtual: int,
    again: int = 0,
    counts: tuple[int, ...] = (),
    both_ways: bool = False,
) -> Layout:
    """Return who has which layers of these kinds; raises `InputError` for an empty stage.

    The first `again` layers of each stage are computed again; `counts` are the stages' layers where
    they are chosen. Where microbatches go `both_ways`, devices have the stages of both.
    """
    counts = counts or layers_of(len(kinds), pipeline * virtual)
    result, start = [], 0
    for count in counts:
        own = kinds[start : start + count]
        result.append(Counter(Part(name, i < again) for i, name in enumerate(own)))
        start += count
    result[0][Part(FIRST)] += 1
    result[-1][Part(LAST)] += 1
    sums = [sum(result[d::pipeline], Counter()) for d in range(pipeline)]
    sums = [one + other for one, other in zip(sums, sums[::-1], strict=True)] if both_ways else sums
    stages, devices = (tuple(tuple(one.items()) for one in some) for some in (result, sums))
    each = [(load, stages[d::pipeline]) for d, load in enumerate(devices)]
    unlike = {own: d for d, own in reversed(list(enumerate(each)))}
    return Layout(counts, stages, devices, tuple(unlike.values()))


def layout_of(kinds: tuple[str, ...], plan: Plan) -> Layout:
    """Return who has which layers under a plan."""
    repeats = 0 if plan.recompute == "none" else plan.recompute_layers or len(kinds)
    sizes = plan.pipeline, plan.virtual, repeats, plan.stages
    return layout(kinds, *sizes, plan.goes_both_ways)

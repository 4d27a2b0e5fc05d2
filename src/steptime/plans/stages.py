"""Which layers a stage of a pipeline has, and where groups of ranks lie on the network."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.core.workload import Plan
from steptime.plans.pieces import FIRST, LAST

ORDERS = {  # of groups, from the inside out
    "tensor-context-data-pipeline": ("tensor", "context", "data", "pipeline"),
    "tensor-context-pipeline-data": ("tensor", "context", "pipeline", "data"),
}
USUAL = "tensor-context-data-pipeline"


def layers_of(layers: int, stages: int) -> tuple[int, ...]:
    """Return how many layers each stage has, in the order of the network.

    Where they do not divide, and with embedding and head would (126 layers, 16 stages: 128), these
    stand for a layer each; else the stages in the middle have one more. Raises `InputError` where
    a stage would be empty.
    """
    if stages > layers:
        raise InputError(
            f"plan: {stages} stages (pipeline x virtual) of {layers} layers: at most {layers}"
        )
    if layers % stages and not (layers + 2) % stages and stages > 1:
        each = (layers + 2) // stages
        if each > 1:
            return (each - 1, *[each] * (stages - 2), each - 1)
    each, more = divmod(layers, stages)
    start = (stages - more) // 2
    return tuple(each + (start <= k < start + more) for k in range(stages))


def strides(plan: Plan, order: str = USUAL) -> dict[str, int]:
    """Return how far apart the ranks of each group are: 8 and 16 after a tensor width of 8."""
    found, stride = {}, 1
    for name in ORDERS[order]:
        found[name] = stride
        stride *= int(getattr(plan, name))
    return found


Load = tuple[tuple[str, int], ...]  # names of pieces, and how many of each


class Layout(NamedTuple):
    """Which layers a pipeline's stages have: their number, and the pieces of stages and devices.

    `unlike` are the first devices of each load, which hold most of those that have it.
    """

    layers: tuple[int, ...]
    stages: tuple[Load, ...]
    devices: tuple[Load, ...]
    unlike: tuple[int, ...]


@lru_cache(maxsize=1 << 12)
def layout(kinds: tuple[str, ...], pipeline: int, virtual: int) -> Layout:
    """Return who has which layers of these kinds; raises `InputError` for an empty stage."""
    counts = layers_of(len(kinds), pipeline * virtual)
    found, start = [], 0
    for count in counts:
        found.append(Counter(kinds[start : start + count]))
        start += count
    found[0][FIRST] += 1
    found[-1][LAST] += 1
    sums = [sum(found[d::pipeline], Counter()) for d in range(pipeline)]
    stages, devices = (tuple(tuple(one.items()) for one in some) for some in (found, sums))
    unlike = {load: d for d, load in reversed(list(enumerate(devices)))}
    return Layout(counts, stages, devices, tuple(unlike.values()))

"""Tokens on their way to experts: how many nodes and devices each reaches, and what that takes."""

from collections.abc import Callable
from dataclasses import replace
from math import comb

from steptime.prediction.collectives import Fabric


def reached(
    parts: int, experts: int, chosen: int, groups: int = 1, groups_chosen: int = 1
) -> float:
    """Return how many of equal `parts` a token is expected to reach, that chooses some experts.

    It chooses groups first (1 of 1: none), then experts of these, all alike. A part that has j
    experts of the a that may be chosen is missed with probability C(a - j, k) / C(a, k), and has j
    with that of the hypergeometric distribution, where it has several groups; where it is a part of
    a group, it has all its experts, or none. Of 256 experts in 8 groups, 8 of 4 groups chosen, 8
    nodes: 8 / 2 (1 - C(96, 8) / C(128, 8)) = 3.63.
    """
    own, allowed = experts // parts, experts // groups * groups_chosen

    def missed(has: int) -> float:
        return comb(allowed - has, chosen) / comb(allowed, chosen)

    if parts >= groups:
        return parts * groups_chosen / groups * (1 - missed(own))
    several, each = groups // parts, experts // groups
    ways = comb(groups, groups_chosen)
    hits = (
        comb(several, n) * comb(groups - several, groups_chosen - n) * (1 - missed(n * each))
        for n in range(min(several, groups_chosen) + 1)
    )
    return parts * sum(hits) / ways


def once_a_part(
    size_bytes: float, devices: int, fabric: Fabric, spread: Callable[[int], float], above: int = 1
) -> float:
    """Each device sends `size_bytes`, of them each token once to every part that it reaches.

    Parts are nodes, or racks of them, then the devices inside: a token crosses to each of the
    `spread(parts)` that it reaches but its own, and is copied on from there while the next arrive,
    so that the slowest level counts (DeepSeek-AI 2024, section 3.2.2).
    """
    near, parts = fabric.near_and_nodes(devices)

    def level_s(many: int, every: int, hops: float, message: Callable[[float], float]) -> float:
        crossing = size_bytes * spread(every) / many  # to each of the others
        return (many - 1) * message(crossing * hops) if many > 1 else 0.0

    between_s = level_s(
        parts, above * parts, fabric.between.hops, lambda part: fabric.message_s(part, near)
    )
    if isinstance(inner := fabric.inside, Fabric):
        inner = replace(inner, efficiency=fabric.efficiency)
        return max(between_s, once_a_part(size_bytes, near, inner, spread, above * parts))
    hops = (inner or fabric.between).hops
    inside_s = level_s(near, above * parts * near, hops, fabric.inside_message_s)
    return max(between_s, inside_s)

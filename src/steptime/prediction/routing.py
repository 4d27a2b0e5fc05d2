"""Tokens on their way to experts: the nodes and devices that each reaches, and the time of it."""

from collections.abc import Callable
from dataclasses import replace
from math import comb

from steptime.prediction.fabric import Fabric


def expected_parts(
    parts: int, experts: int, active: int, groups: int = 1, active_groups: int = 1
) -> float:
    """Return the expected number of parts that a token reaches, of equal parts of the experts.

    A token chooses groups first (1 of 1: none), then experts of these, all alike. A part that has j
    of the a experts that may be chosen is missed with probability C(a - j, k) / C(a, k). A part of
    several groups has j experts with the probability of the hypergeometric distribution; a part of
    a group has all its experts among them, or none. For 256 experts in 8 groups, 8 of 4 groups
    chosen, 8 nodes: 8 / 2 (1 - C(96, 8) / C(128, 8)) = 3.63.

    Args:
        parts: number of parts, such as nodes or devices.
        experts: number of experts.
        active: experts of a token.
        groups: groups of experts.
        active_groups: groups of a token.
    """
    # The experts of the active groups, among which those of a token are chosen.
    allowed_experts = experts // groups * active_groups

    def miss_probability(part_experts: int) -> float:
        """Return the probability that none of the active experts is among these."""
        return comb(allowed_experts - part_experts, active) / comb(allowed_experts, active)

    if parts >= groups:  # a part lies in one group: it can be reached if that group is active
        allowed_parts = parts * active_groups / groups
        return allowed_parts * (1 - miss_probability(experts // parts))
    # A part has several groups, of which n are active: hypergeometric.
    part_groups = groups // parts
    group_experts = experts // groups
    hits = 0.0
    for n in range(min(part_groups, active_groups) + 1):
        choices = comb(part_groups, n) * comb(groups - part_groups, active_groups - n)
        hits += choices * (1 - miss_probability(n * group_experts))
    return parts * hits / comb(groups, active_groups)


def dispatch_s(
    size_bytes: float,
    devices: int,
    fabric: Fabric,
    expected_part_count: Callable[[int], float],
    fabric_count: int = 1,
) -> float:
    """Return the seconds in which each device sends its tokens, once to every part they reach.

    Parts are nodes, or racks of them, then the devices inside. A token crosses to each part that it
    reaches but its own, and is copied on from there while the next arrive, so that the slowest
    level counts (DeepSeek-AI 2024, section 3.2.2).

    Args:
        size_bytes: bytes that each device sends.
        devices: number of devices.
        fabric: the fabric that joins them.
        expected_part_count: the expected number of parts that a token reaches, by their number.
        fabric_count: number of such fabrics, of a larger one.
    """
    node_devices, nodes = fabric.node_size_and_count(devices)
    all_nodes = fabric_count * nodes  # of all such fabrics
    between_s = 0.0
    if nodes > 1:
        # The tokens of a device reach so many of all nodes in the mean; of the copies that they
        # need there, one in `nodes` goes to each node of this fabric.
        node_bytes = size_bytes * expected_part_count(all_nodes) / nodes * fabric.between.hops
        between_s = (nodes - 1) * fabric.message_s(node_bytes, node_devices)
    # A rack, or any fabric of fabrics: one level further in, with the nodes as its fabrics.
    if isinstance(fabric.inside, Fabric):
        inner = replace(fabric.inside, efficiency=fabric.efficiency)
        inside_s = dispatch_s(size_bytes, node_devices, inner, expected_part_count, all_nodes)
        return max(between_s, inside_s)
    inside_s = 0.0
    if node_devices > 1:
        all_devices = all_nodes * node_devices
        inside_link = fabric.inside or fabric.between
        device_bytes = size_bytes * expected_part_count(all_devices) / node_devices
        inside_s = (node_devices - 1) * fabric.inside_message_s(device_bytes * inside_link.hops)
    # Copies are sent on inside a node while the next ones arrive: the slower level counts.
    return max(between_s, inside_s)

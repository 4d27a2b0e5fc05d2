"""The seconds of collectives among a group of devices: a function for each algorithm.

`COLLECTIVES` are the algorithms of an all-reduce, by which gradients are added up; `EXCHANGES` are
the other collectives. Every message takes latency + bytes / bandwidth (the alpha-beta model of
Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication Operations in MPICH"). A
device sends and receives one message at a time, both at once; a single device exchanges nothing.
Adding up takes the time of memory traffic, two bytes read and one written for each that is added,
where the rate of the memory is known: seconds that libraries hide in part. How the share of a
link's rate that a protocol reaches depends on the size of a message is not known without measuring
it (`steptime calibrate --only link`).

Devices are alone on their links, or several to a node: `Fabric` (`fabric.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import hypot, inf
from typing import NamedTuple

from steptime.core.exchange import BUCKET_BYTES, ring_messages
from steptime.hardware.device import Link
from steptime.prediction.fabric import Fabric


def rounds(replicas: int) -> int:
    """Return ceil(log2(replicas)), exactly: the height of a binary tree, rounds of a butterfly."""
    return (replicas - 1).bit_length()


def gather_to_root(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """All replicas send their gradients to one and get the sum back, one after the other."""
    node_devices, _ = fabric.node_size_and_count(replicas)
    inside_s = (node_devices - 1) * fabric.inside_message_s(size_bytes)
    between_s = (replicas - node_devices) * fabric.message_s(size_bytes)
    return 2 * (inside_s + between_s) + fabric.add_s((replicas - 1) * size_bytes)


def tree(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """Two binary trees add up half of the gradient each, in small pieces one after the other.

    Who is a leaf of one tree is an inner node of the other, so that every device receives and sends
    the gradient twice, and pieces wait for no level but the first: 2 log2(n) latencies and twice
    the gradient's time, however many devices. NCCL's "tree" (Sanders, Speck, Traeff 2009,
    "Two-tree algorithms for full bandwidth broadcast, reduction and scan").
    """
    node_devices, nodes = fabric.node_size_and_count(replicas)
    # Up the tree to add and down it to spread, each over its height, inside nodes and between.
    latencies_s = fabric.latencies_s(2 * rounds(node_devices), 2 * rounds(nodes))
    # Each device receives and sends the gradient twice; pieces are pipelined over the levels.
    transfer_s = fabric.slowest_link_s(2 * size_bytes, node_devices, nodes)
    added_s = fabric.add_s(size_bytes) if replicas > 1 else 0.0
    return latencies_s + transfer_s + added_s


def butterfly(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """Partners exchange their whole sums, in each round with one twice as far (doubling).

    Paleo's count of rounds, ceil(log2 n), is short of what other n than powers of two need.
    """
    node_devices, nodes = fabric.node_size_and_count(replicas)
    # In each round partners exchange the whole gradient: inside nodes first, then between them.
    inside_s = rounds(node_devices) * fabric.inside_message_s(size_bytes)
    between_s = rounds(nodes) * fabric.message_s(size_bytes, node_devices)
    added_bytes = (rounds(node_devices) + rounds(nodes)) * size_bytes
    return inside_s + between_s + fabric.add_s(added_bytes)


def butterfly_mixing(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """One round of the butterfly a step, with the farthest partner (Zhao and Canny 2013)."""
    return send(size_bytes, replicas, fabric) + fabric.add_s(size_bytes if replicas > 1 else 0.0)


def ring(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """Each of n replicas passes 1/n of the gradient on, n - 1 times to add and n - 1 to gather.

    2 (n - 1) messages of bytes / n, of which 2 (m - 1) cross between the m nodes: only these wait
    for the latency between nodes, and all go at the rate of the slowest link of the ring.
    """
    messages, share = ring_messages(replicas)
    node_devices, nodes = fabric.node_size_and_count(replicas)
    node_crossings = 2 * (nodes - 1)  # messages of the ring that leave a node
    transfer_s = fabric.slowest_link_s(messages * (size_bytes * share), node_devices, nodes)
    # Half of the messages add up, the other half gather the sums.
    added_s = fabric.add_s(messages / 2 * (size_bytes * share))
    latencies_s = fabric.latencies_s(messages - node_crossings, node_crossings)
    return latencies_s + transfer_s + added_s


def in_switch(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """A switch adds up: each of n replicas sends its gradient to it once, and gets the sum back.

    Beside its own part, 1/n, which it reads back for the others, a replica sends and receives the
    gradient once: (1 + 1/n) of it pass each link. Infinite where a group is not joined by one
    such switch. NCCL's "NVLS"; H100 x 4 and x 8 add up 512 MiB at 350 and 445 GB/s of bus
    bandwidth, 343 and 445 by this at one rate (ai-dynamo/aiconfigurator@095f58a).
    """
    if replicas == 1:
        return 0.0
    node_devices, nodes = fabric.node_size_and_count(replicas)
    link = fabric.between if nodes > 1 or fabric.inside is None else fabric.inside
    has_several_levels = node_devices > 1 and nodes > 1
    # A switch adds up only for devices that it joins by itself. Otherwise the time is infinite, so
    # that the callers' minimum takes another algorithm.
    if isinstance(link, Fabric) or link.switch_bytes_per_s is None or has_several_levels:
        return inf
    bytes_per_s = link.switch_bytes_per_s * fabric.efficiency
    # It sends and receives the gradient, and reads its own share back for the others.
    replica_bytes = size_bytes * (1 + 1 / replicas)
    return 2 * (link.latency_s or 0.0) + replica_bytes / bytes_per_s


def all_reduce(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """The faster of a ring and a switch that adds up, as libraries choose."""
    ring_s = ring(size_bytes, replicas, fabric)
    return min(ring_s, in_switch(size_bytes, replicas, fabric))


def halving_doubling(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """Partners exchange halves, quarters, ... of the sum, and gather them on the way back.

    For p = 2^h replicas h messages each way, of bytes/2, bytes/4, ..., bytes/p, together
    2 (p - 1) / p of the gradient (Rabenseifner; Thakur, Rabenseifner, Gropp 2005). For other
    numbers p is the power of two below: each replica too many first gives its whole gradient to a
    partner and gets the sum at the end, two more messages. The largest messages are to the nearest.
    """
    # log2 of the largest power of two that is not above the number.
    round_count = replicas.bit_length() - 1
    node_devices, _ = fabric.node_size_and_count(replicas)
    inside_rounds = node_devices.bit_length() - 1
    half_s = added_bytes = 0.0
    for i in range(1, round_count + 1):
        message_bytes = size_bytes / 2**i
        added_bytes += message_bytes
        if i <= inside_rounds:
            half_s += fabric.inside_message_s(message_bytes)
        else:
            half_s += fabric.message_s(message_bytes, node_devices)
    # Each replica beyond the power of two gives its whole gradient to a partner first.
    if replicas > 2**round_count:
        added_bytes += size_bytes
        has_near_partner = node_devices > 1
        send_s = fabric.inside_message_s if has_near_partner else fabric.message_s
        half_s += send_s(size_bytes)
    # The way back gathers in the same messages.
    return 2 * half_s + fabric.add_s(added_bytes)


def hierarchical(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """Rings inside each node add, rings between the nodes finish, rings inside spread the sum.

    With g = `per_node` and m nodes: g - 1 messages inside of bytes / g; then each of the g devices
    adds its 1/g up with those of the other nodes, 2 (m - 1) messages of bytes / g / m, g of them at
    once over the `links_per_node` links of a node (own links: `links_per_node = per_node`; more
    than one for a device are of no use); then g - 1 messages inside again.
    """
    node_devices, nodes = fabric.node_size_and_count(replicas, counts_nodes=True)
    messages, message_share = ring_messages(nodes)
    device_bytes = size_bytes / node_devices  # the part of the gradient that a device finishes
    # More links of a node than devices in it are of no use.
    usable_links = min(fabric.links_per_node, node_devices * fabric.groups)
    usable_fabric = replace(fabric, links_per_node=usable_links)
    inside_s = 2 * (node_devices - 1) * fabric.inside_message_s(device_bytes)
    # All devices of a node exchange their parts between nodes at once.
    between_s = messages * usable_fabric.message_s(device_bytes * message_share, node_devices)
    added_inside_bytes = (node_devices - 1) / node_devices * size_bytes
    added_between_bytes = messages / 2 * message_share * size_bytes / node_devices
    added_s = fabric.add_s(added_inside_bytes + added_between_bytes)
    return inside_s + between_s + added_s


def parameter_server(size_bytes: float, replicas: int, fabric: Fabric) -> float:
    """All replicas push their gradients to k servers, which hold 1/k each; then all pull the sum.

    The servers are machines of their own, whose adding up is not counted. Each way a replica has k
    messages of bytes / k and a server n of them; who has more is the bottleneck: the servers with
    n > k replicas (2 n / k of the gradient's time), else the replicas (2). Nobody pulls before all
    have pushed (Li and others 2014, "Scaling Distributed Machine Learning with the Parameter
    Server", with synchronous steps). Replicas of one node share its links.
    """
    if replicas == 1:
        return 0.0
    node_devices, _ = fabric.node_size_and_count(replicas)
    # Messages at the bottleneck: a server gets one of each replica; the devices of a node send one
    # to each server over the node's links.
    busiest = max(replicas, node_devices * fabric.servers)
    # Twice: push the gradients, then pull the sum.
    return 2 * busiest * fabric.message_s(size_bytes / fabric.servers)


STARTUP_SPREAD = 0.5
"""How far the start of a collective is off, in ln, as of `send_s` (`stacks/torch-eager.toml`).

All-reduces of 2 KiB to 1 MiB among 2, 4 and 8 A100 took 10 to 64 us (vidur's profiling): ranks that
launch later than others keep these waiting.
"""

Collective = Callable[[float, int, Fabric], float]  # bytes, devices, fabric

COLLECTIVES: Mapping[str, Collective] = {
    "one-to-all": gather_to_root,
    "tree": tree,
    "butterfly": butterfly,
    "butterfly-mixing": butterfly_mixing,
    "ring": ring,
    "in-switch": in_switch,
    "halving-doubling": halving_doubling,
    "hierarchical": hierarchical,
    "parameter-server": parameter_server,
}


def all_gather(size_bytes: float, devices: int, fabric: Fabric) -> float:
    """Each of n devices holds 1/n of `size_bytes` and gets the rest: the second half of a ring."""
    added_s = fabric.add_s((devices - 1) / devices * size_bytes)  # by a ring
    return (ring(size_bytes, devices, fabric) - added_s) / 2


def reduce_scatter(size_bytes: float, devices: int, fabric: Fabric) -> float:
    """Each device holds `size_bytes` and gets 1/n of the sum: the first half of a ring."""
    added_s = fabric.add_s((devices - 1) / devices * size_bytes)
    return all_gather(size_bytes, devices, fabric) + added_s


def all_to_all(size_bytes: float, devices: int, fabric: Fabric) -> float:
    """Each device holds `size_bytes` and sends 1/n of them to each other one.

    All messages of a device are posted at once: the latency of each kind of link is paid once, and
    the messages share its rate. Those to the g - 1 devices of its own node go inside; g devices at
    once share a node's links.

    Source: NCCL's `ncclGroupStart`, by which PyTorch's `all_to_all_single` posts all sends and
    receives; DeepEP's published 194 us for a dispatch over 256 ranks.
    """
    node_devices, _ = fabric.node_size_and_count(devices)
    message_bytes = size_bytes / devices
    seconds = 0.0
    if devices > node_devices:
        # A message that passes several links (`hops`, as in a torus) loads each of them.
        between_bytes = (devices - node_devices) * message_bytes * fabric.between.hops
        seconds = fabric.message_s(between_bytes, node_devices)
    # From the outermost level (a rack of nodes) inwards: at each, the messages to devices of other
    # parts (nodes) than the own one. Messages inside of a part count at the next level.
    level = fabric
    level_devices = node_devices
    while isinstance(level.inside, Fabric):
        inner = level.inside
        level_bytes = (level_devices - inner.per_node) * message_bytes * inner.between.hops
        if level_bytes:
            seconds += level.inside_message_s(level_bytes, inner.per_node)
        level_devices = inner.per_node
        level = replace(inner, efficiency=fabric.efficiency)
    if level_devices <= 1:
        return seconds
    innermost_link = level.inside if isinstance(level.inside, Link) else level.between
    innermost_bytes = (level_devices - 1) * message_bytes * innermost_link.hops
    return seconds + level.inside_message_s(innermost_bytes)


def send(size_bytes: float, devices: int, fabric: Fabric) -> float:
    """One device sends `size_bytes` to another one of the group, the farthest in doubt."""
    if devices == 1:
        return 0.0
    # In doubt the partner is in another node, and all devices of a node send at once.
    node_devices, nodes = fabric.node_size_and_count(devices)
    return (
        fabric.message_s(size_bytes, node_devices)
        if nodes > 1
        else fabric.inside_message_s(size_bytes)
    )


EXCHANGES: Mapping[str, Collective] = {  # by the kind of op: what is not an all-reduce
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "send": send,
}


class ReadyGradient(NamedTuple):
    """A gradient: the time since the start of the backward pass at which it is ready, its bytes."""

    ready_s: float
    size_bytes: float


def exposed_all_reduce_s(
    gradients: Sequence[ReadyGradient],
    all_reduce_s: Callable[[float], float],
    backward_s: float,
    bucket_bytes: float = BUCKET_BYTES,
) -> float:
    """Return the seconds for which a step waits for bucketed all-reduces after its backward pass.

    Gradients fill buckets in the order of the backward pass. A bucket of `bucket_bytes` or more is
    full, and so is the last at its end. A full bucket is exchanged when the one before is done. An
    all-reduce slows no computation down.

    Gradients of 10, 10 and 4 bytes after 1, 2 and 3 s in buckets of 10 bytes, 1.5 s each: the first
    exchange runs from 1 to 2.5, the second waits for it until 4, the third until 5.5; of a backward
    pass of 3 s the step waits 2.5 s.

    PyTorch's DistributedDataParallel does this; its first bucket is smaller (1 MiB), which is left
    out. Source: Li and others, VLDB 2020, "PyTorch Distributed", and the documentation of
    `bucket_cap_mb` (25 MiB).

    Args:
        gradients: the gradients in the order of the backward pass.
        all_reduce_s: seconds of an all-reduce of so many bytes.
        backward_s: seconds of the backward pass.
        bucket_bytes: bytes of a full bucket.
    """
    sent_gradients = [(ready_s, size_bytes) for ready_s, size_bytes in gradients if size_bytes]
    end_s = filled_bytes = 0.0
    for number, (ready_s, size_bytes) in enumerate(sent_gradients, start=1):
        filled_bytes += size_bytes
        is_last = number == len(sent_gradients)
        if filled_bytes >= bucket_bytes or is_last:
            # A bucket starts when it is ready and the exchange of the bucket before is done.
            end_s = max(end_s, ready_s) + all_reduce_s(filled_bytes)
            filled_bytes = 0.0
    return max(0.0, end_s - backward_s)


class StepEnds(NamedTuple):
    """The ends of the interval of a step [s], None where the method has none."""

    low_s: float | None
    high_s: float | None

    def delay(self, wait_s: float) -> StepEnds:
        """Return the ends of the step if it waits so many seconds more."""
        low_s, high_s = (None if end_s is None else end_s + wait_s for end_s in self)
        return StepEnds(low_s, high_s)


def widen_by_links(step_s: float, ends: StepEnds, quick_s: float, slow_s: float) -> StepEnds:
    """Return the ends of a step whose kernels and whose links are off independently.

    Args:
        step_s: the step.
        ends: where it lies if its exchanges take what is predicted.
        quick_s: the step with links at the upper end of the rates that they reach.
        slow_s: the step with links at the lower end.
    """
    # Kernels and links err independently, so their distances from the step add as squares.
    low_s = None if ends.low_s is None else step_s - hypot(step_s - ends.low_s, step_s - quick_s)
    high_s = None
    if ends.high_s is not None:
        high_s = step_s + hypot(ends.high_s - step_s, slow_s - step_s)
    return StepEnds(low_s, high_s)


class Startup(NamedTuple):
    """The time that software adds to the messages of a collective.

    Attributes:
        s: seconds before the first message.
        slow: factor by which the rate of messages is lower.
        large_s: seconds before the first message in the other protocol, for large messages at the
            link's rate; 0 without one.
    """

    s: float = 0.0
    slow: float = 1.0
    large_s: float = 0.0

    def add_to(self, messages_s: float, fabric: Fabric) -> float:
        """Return the seconds of a collective whose messages take `messages_s`; 0 s is none.

        The times of a measured link hold its startup already.
        """
        # A measured table under any key but "bus" (a bandwidth) has whole times, startup included.
        has_measured_times = bool(fabric.between.measured.keys() - {"bus"})
        if not messages_s or has_measured_times:
            return messages_s
        small_protocol_s = self.s + messages_s * max(1.0, self.slow)
        # Large messages take the other protocol: a longer startup, then the link's full rate.
        has_large_protocol = self.large_s > 0
        return (
            min(small_protocol_s, self.large_s + messages_s)
            if has_large_protocol
            else small_protocol_s
        )


def collective_spread(byte_share: float, fabric: Fabric) -> float:
    """Return the half-width of the interval of a collective, in ln.

    Rates of links are off by their own spread; latencies and the start of a collective by
    `STARTUP_SPREAD`. Both are off independently of each other.

    Args:
        byte_share: the share of the seconds that grows with the bytes.
        fabric: the links.
    """
    startup_share = 1 - byte_share
    return hypot(byte_share * fabric.spread, startup_share * STARTUP_SPREAD)

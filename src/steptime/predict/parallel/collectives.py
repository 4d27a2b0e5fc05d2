"""Seconds that workers need to add up a gradient over a network: one function a scheme.

Two tables. `PALEO` holds the four closed forms of Paleo (Qi, Sparks, Talwalkar, ICLR 2017), in
which a message has no latency. `COLLECTIVES` holds the same four and what came after; there every
message takes latency + bytes / bandwidth (the alpha-beta model of Thakur, Rabenseifner, Gropp 2005,
"Optimization of Collective Communication Operations in MPICH"), a worker sends and receives one
message at a time, both at once, the network itself is never the bottleneck, adding costs nothing,
and one worker exchanges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from steptime.core.errors import InputError, shorten
from steptime.core.hardware import Link

GROUP = 8  # devices a node: those of the common servers, and the groups of Paleo's forks
BUCKET_BYTES = 25 * 2**20  # torch.nn.parallel.DistributedDataParallel: bucket_cap_mb, in MiB


@dataclass(frozen=True)
class Fabric:
    """What joins the workers.

    `between` is the link of a worker, or of a node in `hierarchical`, where `per_node` workers
    share `links_per_node` of it and reach each other over `inside` (None: over `between`).
    `servers` belongs to `parameter-server`. Every bandwidth is multiplied by `efficiency`, the
    share of it that software reaches (Paleo's ppp of communication). Raises `InputError` for a
    number out of its range.
    """

    between: Link
    inside: Link | None = None
    per_node: int = GROUP
    links_per_node: int = 1
    servers: int = 1
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        for name in ("per_node", "links_per_node", "servers"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {shorten(getattr(self, name))}")
        if not 0 < self.efficiency < inf:
            raise InputError(
                f"the efficiency of a link must be positive, not {shorten(self.efficiency)}"
            )

    @property
    def without_latency(self) -> tuple[str, ...]:
        """Names of the links whose latency nobody publishes: it is counted as 0, to be noted."""
        links = {link.name: link for link in (self.between, self.inside) if link}
        return tuple(name for name, link in links.items() if link.latency_s is None)

    def message_s(self, size_bytes: float) -> float:
        """Give the seconds of one message over `between`."""
        return self._message_s(self.between, size_bytes)

    def inside_message_s(self, size_bytes: float) -> float:
        """Give the seconds of one message inside a node."""
        return self._message_s(self.inside or self.between, size_bytes)

    def _message_s(self, link: Link, size_bytes: float) -> float:
        return (link.latency_s or 0.0) + size_bytes / link.bytes_per_s / self.efficiency


def _rounds(workers: int) -> int:
    """Give ceil(log2(workers)), exactly: the height of a binary tree, the rounds of a butterfly."""
    return (workers - 1).bit_length()


def one_to_all(size_bytes: float, workers: int, fabric: Fabric) -> float:
    """Everyone sends its gradient to one worker and gets the sum back, one after the other."""
    return 2 * (workers - 1) * fabric.message_s(size_bytes)


def tree(size_bytes: float, workers: int, fabric: Fabric) -> float:
    """Workers send their sums up a binomial tree and get the last one back, whole each time."""
    return 2 * _rounds(workers) * fabric.message_s(size_bytes)


def butterfly(size_bytes: float, workers: int, fabric: Fabric) -> float:
    """Partners exchange their whole sums, in each round with one twice as far (doubling).

    Paleo's count of rounds, ceil(log2 n), is short of what other n than powers of two need.
    """
    return _rounds(workers) * fabric.message_s(size_bytes)


def butterfly_mixing(size_bytes: float, workers: int, fabric: Fabric) -> float:
    """One round of the butterfly a step, so that sums mix over steps (Zhao and Canny 2013)."""
    return fabric.message_s(size_bytes) if workers > 1 else 0.0


def ring(size_bytes: float, workers: int, fabric: Fabric) -> float:
    """Each of n workers passes 1/n of the gradient on, n - 1 times to add and n - 1 to gather.

    2 (n - 1) messages of bytes / n: the least traffic that is possible (Patarasuk and Yuan 2009,
    "Bandwidth optimal all-reduce algorithms for clusters of workstations").
    """
    return 2 * (workers - 1) * fabric.message_s(size_bytes / workers)


def halving_doubling(size_bytes: float, workers: int, fabric: Fabric) -> float:
    """Partners exchange halves, quarters, ... of the sum, and gather them on the way back.

    For p = 2^h workers h messages each way, of bytes/2, bytes/4, ..., bytes/p, together
    2 (p - 1) / p of the gradient (Rabenseifner; Thakur, Rabenseifner, Gropp 2005). For other
    numbers p is the power of two below: each worker too many first gives its whole gradient to a
    partner and gets the sum at the end, two more messages.
    """
    rounds = workers.bit_length() - 1
    halves = (size_bytes / 2**step for step in range(1, rounds + 1))
    extra = 2 * fabric.message_s(size_bytes) if workers > 2**rounds else 0.0
    return extra + 2 * sum(fabric.message_s(half) for half in halves)


def hierarchical(size_bytes: float, workers: int, fabric: Fabric) -> float:
    """Rings inside each node add, rings between the nodes finish, rings inside spread the sum.

    With g = `per_node` and m nodes: g - 1 messages inside of bytes / g; then each of the g devices
    adds its 1/g up with those of the other nodes, 2 (m - 1) messages of bytes / g / m, g of them at
    once over the `links_per_node` links of a node (own links: `links_per_node = per_node`); then
    g - 1 messages inside again. A last node that is not full is counted as a full one.
    """
    inside = min(workers, fabric.per_node)
    nodes = -(-workers // fabric.per_node)
    a_link = size_bytes / inside / nodes * max(1.0, inside / fabric.links_per_node)
    within = 2 * (inside - 1) * fabric.inside_message_s(size_bytes / inside)
    return within + 2 * (nodes - 1) * fabric.message_s(a_link)


def parameter_server(size_bytes: float, workers: int, fabric: Fabric) -> float:
    """All workers push their gradients to k servers, which hold 1/k each; then all pull the sum.

    The servers are machines of their own. Each way a worker has k messages of bytes / k and a
    server n of them; who has more is the bottleneck: the servers with n > k workers
    (2 n / k of the gradient's time), else the workers (2). Nobody pulls before all have pushed
    (Li and others 2014, "Scaling Distributed Machine Learning with the Parameter Server",
    with synchronous steps).
    """
    if workers == 1:
        return 0.0
    return 2 * max(workers, fabric.servers) * fabric.message_s(size_bytes / fabric.servers)


Collective = Callable[[float, int, Fabric], float]  # bytes of the gradient, workers, fabric

COLLECTIVES: Mapping[str, Collective] = {
    "one-to-all": one_to_all,
    "tree": tree,
    "butterfly": butterfly,
    "butterfly-mixing": butterfly_mixing,
    "ring": ring,
    "halving-doubling": halving_doubling,
    "hierarchical": hierarchical,
    "parameter-server": parameter_server,
}


def _whole_s(size_bytes: float, fabric: Fabric) -> float:
    """Give the seconds of a whole gradient over the link, as Paleo has it: without latency."""
    return size_bytes / fabric.between.bytes_per_s / fabric.efficiency


PALEO: Mapping[str, Collective] = {
    "one-to-all": lambda size, n, fabric: 2 * (n - 1) * _whole_s(size, fabric),
    "tree": lambda size, n, fabric: 2 * _rounds(n) * _whole_s(size, fabric),
    "butterfly": lambda size, n, fabric: _rounds(n) * _whole_s(size, fabric),
    "butterfly-mixing": lambda size, n, fabric: _whole_s(size, fabric),  # of one worker too
}


def overlapped(
    ready: Sequence[tuple[float, float]],
    one: Callable[[float], float],
    backward_s: float,
    bucket_bytes: float = BUCKET_BYTES,
) -> float:
    """Give the seconds for which a step waits for exchanges after its backward pass.

    `ready` are the gradients in the order of the backward pass: (seconds after its start, bytes).
    They fill buckets in that order; a bucket that holds `bucket_bytes` or more is full, and the
    last is full at its end. A full bucket is exchanged, `one(its bytes)` seconds, when the one
    before is done. An exchange slows no computation down.

    Gradients of 10, 10 and 4 bytes after 1, 2 and 3 s in buckets of 10 bytes, 1.5 s each: the first
    exchange runs from 1 to 2.5, the second waits for it until 4, the third until 5.5; of a backward
    pass of 3 s the step waits 2.5 s.

    PyTorch's DistributedDataParallel does this; its first bucket is smaller (1 MiB), which is left
    out. Source: Li and others, VLDB 2020, "PyTorch Distributed", and the documentation of
    `bucket_cap_mb` (25 MiB).
    """
    gradients = [(ready_s, size_bytes) for ready_s, size_bytes in ready if size_bytes]
    done_s = filled = 0.0
    for place, (ready_s, size_bytes) in enumerate(gradients, start=1):
        filled += size_bytes
        if filled >= bucket_bytes or place == len(gradients):
            done_s = max(done_s, ready_s) + one(filled)
            filled = 0.0
    return max(0.0, done_s - backward_s)


def schemes(as_published: bool) -> Mapping[str, Collective]:
    """Give the collectives by name, Paleo's own four in their published form if asked."""
    return {**COLLECTIVES, **PALEO} if as_published else COLLECTIVES


def fabric_of(link: Link | Fabric, efficiency: float, as_published: bool) -> Fabric:
    """Give what joins the workers, at the share `efficiency` of its rates.

    As published, messages have no latency.
    """
    found = link if isinstance(link, Fabric) else Fabric(link)
    if as_published:
        inside = None if found.inside is None else replace(found.inside, latency_s=None)
        found = replace(found, between=replace(found.between, latency_s=None), inside=inside)
    return replace(found, efficiency=efficiency)

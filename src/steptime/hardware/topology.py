"""What a link gives to a group of the parts that it joins, where not each reaches each at once."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import inf, isqrt
from typing import Any, NamedTuple

from steptime.core.errors import check_choice
from steptime.core.toml_files import packaged
from steptime.hardware import catalog
from steptime.hardware.device import Link

Row = Mapping[str, Any]


class GroupShare(NamedTuple):
    """What a group has of a link.

    Attributes:
        rate: share of the link's rate.
        hops: links that a byte of an all-to-all passes.
        bus: share of the bus bandwidth that collectives reach among all parts.
    """

    rate: float = 1.0
    hops: float = 1.0
    bus: float = 1.0


def effective_link(link: Link, size: int, group: int) -> Link:
    """Return a link as a group of the `size` parts that it joins has it in rings.

    Its `hops` are the links that a byte of an all-to-all passes. Raises `InputError` for a
    topology that `data/topologies.toml` does not have.
    """
    if not link.topology or group < 2:
        return link
    rows = packaged("topologies.toml")
    row = rows[check_choice("topology", link.topology, rows, link.name)]
    share = KINDS[row["kind"]](row, link, size, min(group, size))
    return link.faster(share.rate, share.hops).scale_bus(share.bus)


def _torus(row: Row, _: Link, size: int, group: int) -> GroupShare:
    """Rings run along all axes of a group at once, both ways; an open axis has half of that.

    256 parts of 16 x 16 that close have all of their links, 32 of 4 x 8 half. A byte of an
    all-to-all passes a quarter of a closed axis in the mean, and a third of an open one.
    """
    axes, wraps = row["axes"], row["wraps"] if size >= row.get("least", 0) else inf
    inside = sides(group, axes) if group == size else _group_sides(sides(size, axes), group)
    used = [side for side in inside if side > 1]
    rates = [1.0 if side >= wraps else 0.5 for side in used]
    far = sum(side / 4 if side >= wraps else side / 3 for side in used)
    share = sum(rates) / axes
    return GroupShare(share, max(1.0, far * share * axes / len(used)))


def sides(parts: int, axes: int) -> list[int]:
    """Return the sides of a torus of so many parts, as even as they can be, the longest last."""
    if axes == 1:
        return [parts]
    root = isqrt(parts) if axes == 2 else round(parts ** (1 / axes))
    first = next(side for side in range(max(1, root), 0, -1) if parts % side == 0)
    return sorted([first, *sides(parts // first, axes - 1)])


def _group_sides(torus_sides: list[int], group: int) -> list[int]:
    """Return the lengths of a part of a torus along each axis, the longest first."""
    result = []
    for side in reversed(torus_sides):
        result.append(min(side, group))
        group = -(-group // side)
    return result


def _mesh(row: Row, _: Link, __: int, group: int) -> GroupShare:
    """Each part has a link to each other one: of a pair one works, of all of them all."""
    return GroupShare(min(1.0, (group - 1) / row["links"]))


def _rings(row: Row, _: Link, __: int, group: int) -> GroupShare:
    """As many links as rings among such a group have, or among the next smaller one said."""
    ring = max((int(n), links) for n, links in row["ring"].items() if int(n) <= group)[1]
    return GroupShare(ring / row["links"], row["hops"].get(str(group), 1.0))


def _host(row: Row, link: Link, __: int, group: int) -> GroupShare:
    """Each byte that a part sends is written to the host's memory and read again.

    Up to `direct` parts access each other's memory and need no host; larger groups have at most
    `beyond` of the rate.
    """
    if group <= row.get("direct", 1):
        return GroupShare()
    host_bytes_per_s = catalog.constants_of("host")["memory.bytes_per_s"].value
    staged_bytes_per_s = host_bytes_per_s / (2 * group)
    return GroupShare(min(row.get("beyond", 1.0), staged_bytes_per_s / link.bytes_per_s))


def _groups(row: Row, _: Link, __: int, group: int) -> GroupShare:
    """Small groups reach less of the rate: `groups` says the shares, others lie between them."""
    shares = [(int(size), share) for size, share in row["groups"].items()]
    for (low, low_share), (high, high_share) in pairwise(shares):
        if low <= group < high:
            slope = (high_share - low_share) / (high - low)
            return GroupShare(bus=slope * (group - low) + low_share)
    smallest_group, smallest_share = shares[0]
    edge_share = smallest_share if group < smallest_group else shares[-1][1]
    return GroupShare(bus=edge_share)


KINDS: Mapping[str, Callable[[Row, Link, int, int], GroupShare]] = {
    "torus": _torus,
    "mesh": _mesh,
    "rings": _rings,
    "host": _host,
    "groups": _groups,
}

"""What a link gives to a group of the parts that it joins, where not each reaches each at once."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import inf, isqrt
from typing import Any, NamedTuple

from steptime.core.errors import check_choice
from steptime.core.toml_files import read_packaged_toml
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
    rows = read_packaged_toml("topologies.toml")
    row = rows[check_choice("topology", link.topology, rows, link.name)]
    share = KINDS[row["kind"]](row, link, size, min(group, size))
    return link.faster(share.rate, share.hops).scale_bus(share.bus)


def _share_of_torus(row: Row, _: Link, size: int, group: int) -> GroupShare:
    """Rings run along all axes of a group at once, both ways; an open axis has half of that.

    256 parts of 16 x 16 that close have all of their links, 32 of 4 x 8 half. A byte of an
    all-to-all passes a quarter of a closed axis in the mean, and a third of an open one.
    """
    axis_count = row["axes"]
    # Only slices of at least `least` parts have wrap-around links, and of these only axes of at
    # least `wraps` parts: such an axis is closed.
    can_close = size >= row.get("least", 0)
    closed_side = row["wraps"] if can_close else inf
    if group == size:
        group_sides = torus_axis_sizes(group, axis_count)
    else:
        # A part of the torus: a block within its sides.
        group_sides = _group_sides(torus_axis_sizes(size, axis_count), group)
    long_sides = [side for side in group_sides if side > 1]
    # A closed axis passes messages both ways round, an open one has half of that.
    axis_rates = [1.0 if side >= closed_side else 0.5 for side in long_sides]
    # A byte of an all-to-all passes a quarter of a closed axis in the mean, a third of an open one.
    mean_hops = sum(side / 4 if side >= closed_side else side / 3 for side in long_sides)
    rate = sum(axis_rates) / axis_count
    # Mean hops at the mean rate of the axes in use: `rate` is a mean over all axes.
    hops = max(1.0, mean_hops * rate * axis_count / len(long_sides))
    return GroupShare(rate, hops)


def torus_axis_sizes(parts: int, axes: int) -> list[int]:
    """Return the sides of a torus of so many parts, as even as they can be, the longest last."""
    if axes == 1:
        return [parts]
    # As nearly cubic as the divisors allow: an axis is the largest divisor up to the root.
    root = isqrt(parts) if axes == 2 else round(parts ** (1 / axes))
    candidates = range(max(1, root), 0, -1)  # 1 divides every number
    largest_divisor = next(side for side in candidates if parts % side == 0)
    return sorted([largest_divisor, *torus_axis_sizes(parts // largest_divisor, axes - 1)])


def _group_sides(torus_sides: list[int], group: int) -> list[int]:
    """Return the lengths of a part of a torus along each axis, the longest first."""
    group_sides = []
    remaining_parts = group
    for side in reversed(torus_sides):  # a group fills the longest axes first
        group_sides.append(min(side, remaining_parts))
        remaining_parts = -(-remaining_parts // side)  # rounded up
    return group_sides


def _share_of_mesh(row: Row, _: Link, __: int, group: int) -> GroupShare:
    """Each part has a link to each other one: of a pair one works, of all of them all."""
    return GroupShare(rate=min(1.0, (group - 1) / row["links"]))


def _share_of_rings(row: Row, _: Link, __: int, group: int) -> GroupShare:
    """As many links as rings among such a group have, or among the next smaller one said."""
    links_by_group = {int(parts): links for parts, links in row["ring"].items()}
    nearest_group = max(parts for parts in links_by_group if parts <= group)
    ring_links = links_by_group[nearest_group]
    hops = row["hops"].get(str(group), 1.0)
    return GroupShare(ring_links / row["links"], hops)


def _share_through_host(row: Row, link: Link, __: int, group: int) -> GroupShare:
    """Each byte that a part sends is written to the host's memory and read again.

    Up to `direct` parts access each other's memory and need no host; larger groups have at most
    `beyond` of the rate.
    """
    if group <= row.get("direct", 1):  # so few parts reach each other without the host
        return GroupShare()
    host_bytes_per_s = catalog.constants_of("host")["memory.bytes_per_s"].value
    # All parts share the host's memory, to which each byte is written and from which it is read.
    staged_bytes_per_s = host_bytes_per_s / (2 * group)
    max_rate = row.get("beyond", 1.0)  # of larger groups, as a share of the link's rate
    return GroupShare(rate=min(max_rate, staged_bytes_per_s / link.bytes_per_s))


def _share_by_group_size(row: Row, _: Link, __: int, group: int) -> GroupShare:
    """Small groups reach less of the rate: `groups` says the shares, others lie between them."""
    stated_shares = [(int(size), share) for size, share in row["groups"].items()]
    # Linear between stated sizes; beyond them as at the nearest one.
    for (low_size, low_share), (high_size, high_share) in pairwise(stated_shares):
        if low_size <= group < high_size:
            slope = (high_share - low_share) / (high_size - low_size)
            return GroupShare(bus=slope * (group - low_size) + low_share)
    smallest_size, smallest_share = stated_shares[0]
    _largest_size, largest_share = stated_shares[-1]
    return GroupShare(bus=smallest_share if group < smallest_size else largest_share)


KINDS: Mapping[str, Callable[[Row, Link, int, int], GroupShare]] = {
    "torus": _share_of_torus,
    "mesh": _share_of_mesh,
    "rings": _share_of_rings,
    "host": _share_through_host,
    "groups": _share_by_group_size,
}

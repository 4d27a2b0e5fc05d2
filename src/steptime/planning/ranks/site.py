"""Where a training or a server runs: devices in nodes, and the links that join them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

from steptime.core.errors import InputError, shorten
from steptime.core.toml_files import read_packaged_toml
from steptime.core.values import parse_count
from steptime.hardware import catalog
from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Cluster, Device, Level, Link
from steptime.prediction.steps.states import host_link

DEFAULT_PER_NODE = 8  # devices of a node where neither the user nor `data/sites.toml` says it
MAX_DEVICES = 1_000_000
NODE_LINK = re.compile(r"nvlink(?=\d x)|xgmi|roce")
"""The texts of a device's file that name a link of the catalogue."""


class LinkLevel(NamedTuple):
    """A level of links between nodes and all of them.

    Attributes:
        size: the parts that the link joins; of the first level these are nodes.
        link: the name of the link.
        links: the links of a node; None for as many as to all other nodes.
    """

    size: int
    link: str
    links: int | None = None


def parse_level(text: str) -> LinkLevel:
    """Return the level that `SIZE:LINK` or `SIZE:LINK:LINKS` names.

    Raises:
        InputError: for a text of another form.
    """
    size, _, link_and_count = text.partition(":")
    link, _, links = link_and_count.partition(":")
    if not link:
        form = "of the form SIZE:LINK, such as 4:infiniband-ndr"
        raise InputError(f"--level {shorten(text)}: {form}")
    link_count = parse_count(links, "--level, links of a node") if links else None
    return LinkLevel(parse_count(size, "--level, its size"), link, link_count)


class Site(NamedTuple):
    """Devices in nodes, and the links that join them.

    Attributes:
        device: the device.
        per_node: the devices of a node.
        inside: the link inside a node; None for that of the device.
        link: the link of a device to other nodes; None for none.
        links_per_node: the links of a node; None for one for each device.
        levels: the levels between nodes and the link that joins all of them.
        host_link: joins a device to the memory of its host; None where it is unknown.
    """

    device: str | Path | Device
    per_node: int = DEFAULT_PER_NODE
    inside: str | None = None
    link: str | None = None
    links_per_node: int | None = None
    levels: Sequence[LinkLevel] = ()
    host_link: str | None = None


class SiteDefaults(TypedDict, total=False):
    """How devices of a kind are usually joined, by the fields of `Site`."""

    per_node: int
    inside: str
    link: str
    links_per_node: int
    host_link: str


LinkNames = str | Sequence[str] | None
"""One link for all devices, or one for each."""


def make_sites(
    devices: Sequence[str | Path | Device],
    per_node: int | None = None,
    inside: LinkNames = None,
    link: LinkNames = None,
    links_per_node: int | None = None,
    levels: Sequence[LinkLevel] = (),
    host_link: str | None = None,
) -> list[Site]:
    """Return the site of each device; fields that are None have the device's defaults.

    Args:
        devices: the devices.
        per_node: the devices of a node.
        inside: the link inside a node, one for all devices or one for each.
        link: the link to other nodes, one for all devices or one for each.
        links_per_node: the links of a node.
        levels: the levels between nodes and the link that joins all of them.
        host_link: joins a device to the memory of its host.

    Raises:
        InputError: if the number of links is neither 1 nor that of the devices.
    """
    inside_names = _links_of_devices(inside, "--inside", len(devices))
    link_names = _links_of_devices(link, "--link", len(devices))
    sites = []
    for device, inside_name, link_name in zip(devices, inside_names, link_names, strict=True):
        defaults = default_site(device)
        site = Site(
            device,
            per_node=per_node or defaults.get("per_node", DEFAULT_PER_NODE),
            inside=inside_name or defaults.get("inside"),
            link=link_name or defaults.get("link"),
            links_per_node=links_per_node,
            levels=levels,
            host_link=host_link,
        )
        sites.append(site)
    return sites


def _links_of_devices(names: LinkNames, option: str, device_count: int) -> Sequence[str | None]:
    """Return the link of each device; raises `InputError` for another number of links."""
    if names is None:
        return [None] * device_count
    links = [names] if isinstance(names, str) else list(names)
    if "" in links:
        raise InputError(f"{option}: {shorten(','.join(links))} has an empty name")
    if len(links) not in (1, device_count):
        raise InputError(f"{option}: {len(links)} links for {device_count} devices")
    return links * (device_count // len(links))  # one link for all devices, or one for each


def default_site(device: str | Path | Device) -> SiteDefaults:
    """Return the usual links of a kind of device, as `data/sites.toml` has them."""
    name = catalog.device(device).name
    return cast("SiteDefaults", dict(_sites().get(name, {})))


@cache
def _sites() -> Mapping[str, Any]:
    return read_packaged_toml("sites.toml")


def build_cluster(site: Site, device_count: int) -> Cluster:
    """Return a cluster of devices, with its links from the inside out.

    Raises:
        InputError: if the site does not join so many devices, or for an unknown link.
    """
    if device_count > MAX_DEVICES:
        raise InputError(f"{device_count:,} devices, at most {MAX_DEVICES:,}")
    device = catalog.device(site.device)
    _check_links(site)
    levels: list[Level] = []
    node_size = min(site.per_node, device_count)
    if node_size > 1:
        levels.append(Level(node_size, catalog.link(site.inside or node_link_name(device))))
    part_count = -(-device_count // site.per_node)  # nodes, then the parts of each level
    nodes_of_part = 1
    links_per_node = site.links_per_node or site.per_node
    # The user's levels, then one that is large enough for all remaining parts.
    outermost_level = LinkLevel(size=device_count, link=site.link or "")
    for size, link_name, links in (*site.levels, outermost_level):
        if part_count == 1:  # everything is joined
            break
        if not link_name:
            parts = "parts of the last --level" if site.levels else "nodes"
            raise InputError(f"{part_count} {parts} need a link: --link LINK (steptime list links)")
        # A part of several nodes has the links of all of them, unless the level says its own.
        link_count = (links or links_per_node) * nodes_of_part
        levels.append(Level(min(size, part_count), catalog.link(link_name), link_count))
        part_count = -(-part_count // size)
        nodes_of_part *= size
    return Cluster(device, tuple(levels))


def _check_links(site: Site) -> None:
    """Refuse an unknown link, even one that so few devices do not need."""
    names = [(site.inside, "--inside"), (site.link, "--link")]
    names += [(level.link, "--level") for level in site.levels]
    for name, option in names:
        if name is not None:
            catalog.link(name, option)


def find_node_link(device: Device) -> Link | None:
    """Return the link of a node that a device's file names (`NVLink4 x18`); None without one.

    The link of the catalogue has all lanes, so a device with fewer lanes has a link of its own.
    """
    if not NODE_LINK.match(device.datasheet.node_link.lower()):
        return None
    for link in catalog.links_of(device):
        is_of_catalogue = link.name != device.datasheet.node_link
        if is_of_catalogue:
            return link
    return None


def node_link_name(device: Device) -> str:
    """Return the name of the link inside a node: the card's own link, else that to the host.

    GeForce cards since Ada cannot access each other's memory: bytes pass through the host's.
    """
    node_link = find_node_link(device)
    if node_link is not None:
        return node_link.name
    # Without a link of its own a card reaches others over its link to the host.
    name = host_link(device)
    name_through_host = f"{name}-host"
    has_no_peer_access = has_trait(device, "no_peer_access")
    if has_no_peer_access and name_through_host in catalog.link_names():
        return name_through_host
    return name

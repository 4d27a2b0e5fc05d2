"""The options that say how devices are joined in nodes, and nodes with each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from steptime.core.signatures.kinds import text_of
from steptime.core.signatures.signature import OptionGroup
from steptime.core.values import parse_count
from steptime.planning.ranks.site import Site, make_sites
from steptime.questions import kinds


class NodeKeywords(TypedDict, total=False):
    """Keywords of `NodeOptions`."""

    per_node: kinds.Count | None
    inside: kinds.Links | None
    link: kinds.Links | None
    links_per_node: kinds.Count | None


@dataclass(frozen=True)
class NodeOptions(OptionGroup, keywords=NodeKeywords):
    """How devices of nodes are joined.

    Args:
        per_node: Devices of a node. Default: as in the maker's node, else 8.
        inside: The link between the devices of a node.
        link: The link of a device to other nodes.
        links_per_node: Links from a node to other nodes. Default: one per device.
    """

    per_node: int | str | None = None
    inside: Any = None
    link: Any = None
    links_per_node: int | str | None = None

    def sites(
        self, devices: Sequence[Any], levels: Sequence[Any] = (), host_link: Any = None
    ) -> list[Site]:
        """Return the site of each device, with one link for all devices or one for each.

        Args:
            devices: the devices.
            levels: the levels between nodes and all of them.
            host_link: the link from a device to its host.

        Raises:
            InputError: for numbers and names that the options do not take.
        """
        per_node = count_or_none(self.per_node, "--per-node")
        links_per_node = count_or_none(self.links_per_node, "--links-per-node")
        inside_links = link_names(self.inside)
        links = link_names(self.link)
        return make_sites(devices, per_node, inside_links, links, links_per_node, levels, host_link)


def count_or_none(value: Any, option: str) -> int | None:
    """Return the count that an option holds, None without a value."""
    return None if value is None else parse_count(text_of(value), option)


def link_names(value: Any) -> list[Any] | None:
    """Return the links of an option, None without any.

    A text is a list of names, `nvlink-4,pcie-4-x16`; links of Python stay as they are.
    """
    links = text_of(value)
    if links is None:
        return None
    if isinstance(links, str):
        return links.split(",")
    return list(links) if isinstance(links, list | tuple) else [links]

"""The link of a device, by the name that its maker gives it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from steptime.core.spelling import plain_name
from steptime.hardware.datasheet import GB
from steptime.hardware.device import Device, Link


def links_of(device: Device, names: Sequence[str], link: Callable[[str], Link]) -> list[Link]:
    """Return the links that the name of a device's link may stand for.

    That is the one of this name or for this device, else so many lanes of one of its generation,
    else those of its family with its rate.

    Args:
        device: the device.
        names: the names of all links.
        link: returns the link of a name.
    """
    stated_name = device.datasheet.node_link  # such as `NVLink3 x12`
    gb_per_s = device.datasheet.details.get("link_GB_per_s")
    name_parts = re.match(r"([a-z]+)(?:(\d+) x\d+$)?", stated_name.lower())
    if name_parts is None or gb_per_s is None:
        return []
    family_name, generation = name_parts.groups()
    bytes_per_s = gb_per_s * GB
    family_links = [name for name in names if name.startswith(family_name)]
    # First a link of this name, or of the device (`roce-gaudi2`); then one of its generation.
    exact_names = {plain_name(stated_name), plain_name(family_name + device.name)}
    for name in family_links:
        if plain_name(name) in exact_names:
            return [link(name)]
    for name in family_links:
        if generation and name.startswith(f"{family_name}-{generation}"):
            full_link = link(name)
            # A device with fewer lanes than the link of that generation has a part of its rate.
            lanes_share = bytes_per_s / full_link.bytes_per_s
            if lanes_share == 1:
                return [full_link]
            return [replace(full_link.faster(lanes_share), name=stated_name)]
    # The datasheet names neither a link nor a generation: only the rate tells which link it is.
    return [
        family_link
        for family_link in map(link, family_links)
        if family_link.bytes_per_s == bytes_per_s
    ]

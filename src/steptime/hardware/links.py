"""The link of a device, by the name that its maker gives it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from steptime.hardware.device import GB, Device, Link


def plain(text: str) -> str:
    """Return a name without case, spaces and dashes: `NVLink3 x12` is `nvlink3x12`."""
    return re.sub(r"[ _-]", "", text.lower())


def links_of(device: Device, names: Sequence[str], link: Callable[[str], Link]) -> list[Link]:
    """Return the links that the name of a device's link may stand for.

    That is the one of this name or for this device, else so many lanes of one of its generation,
    else those of its family with its rate.

    Args:
        device: the device.
        names: the names of all links.
        link: returns the link of a name.
    """
    text, rate = device.node_link, device.details.get("link_GB_per_s")
    family = re.match(r"([a-z]+)(?:(\d+) x\d+$)?", text.lower())
    if family is None or rate is None:
        return []
    near = [name for name in names if name.startswith(family[1])]
    exact = {plain(text), plain(family[1] + device.name)}
    for name in near:
        if plain(name) in exact:
            return [link(name)]
    for name in near:
        if family[2] and name.startswith(f"{family[1]}-{family[2]}"):
            full = link(name)
            share = rate * GB / full.bytes_per_s
            return [full if share == 1 else replace(full.faster(share), name=text)]
    return [candidate for candidate in map(link, near) if candidate.bytes_per_s == rate * GB]

"""Which link a device's file means by the name that its maker gives it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from steptime.hardware.device import GB, Device, Link


def plain(text: str) -> str:
    """Return a name as however it is spelled: `NVLink3 x12` is `nvlink3x12`."""
    return re.sub(r"[ _-]", "", text.lower())


def meant(device: Device, names: Sequence[str], link: Callable[[str], Link]) -> list[Link]:
    """Return the links of `names` that a device's file may mean by what it calls its own.

    That is the one of this name or for this device, else so many lanes of one of its generation,
    else those of its family with its rate.
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
            whole = link(name)
            share = rate * GB / whole.bytes_per_s
            return [whole if share == 1 else replace(whole.faster(share), name=text)]
    return [one for one in map(link, near) if one.bytes_per_s == rate * GB]

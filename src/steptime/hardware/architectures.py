"""What the architecture of a device decides: the one reader of `data/architectures.toml`."""

from functools import cache
from typing import Any

from steptime.core.toml_files import packaged
from steptime.hardware.device import Device


@cache
def find_family(architecture: str) -> str:
    """Find the family of an architecture: the longest family name that its name begins with.

    "Blackwell 2.0" is of "Blackwell 2", "Blackwell Ultra" of "Blackwell".

    Returns:
        The name of the family, or "" for an architecture that the data file does not have.
    """
    families = packaged("architectures.toml")["families"]
    matches = [name for name in families if architecture.startswith(name)]
    return max(matches, key=len, default="")


def family_of(device: Device) -> str:
    """Return the family of a device's architecture, "" where that is not known."""
    return find_family(device.datasheet.architecture or "")


def has_trait(device: Device, trait: str) -> bool:
    """Whether a device's family is listed under a trait, such as `old` or `copied_tensors`."""
    names: list[str] = packaged("architectures.toml")[trait]["names"]
    return family_of(device) in names


def value_by_family(family: str, *path: str) -> Any:
    """Return the value that a table of the data file has for a family.

    Args:
        family: a name of `families`, or "".
        path: the keys of the table, such as `"tiles", "batched"`. The table has values of single
            families under `on`, and of all further ones under `others`.
    """
    table = packaged("architectures.toml")
    for key in path:
        table = table[key]
    return table.get("on", {}).get(family, table["others"])

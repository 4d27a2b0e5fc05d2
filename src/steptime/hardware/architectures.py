"""What the architecture and the maker of a device decide, read from `data/architectures.toml`."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from steptime.core.signatures.typed import Texts, convert_table
from steptime.core.spelling import to_snake_case
from steptime.core.toml_files import read_packaged_toml

if TYPE_CHECKING:  # a datasheet asks for traits itself
    from steptime.hardware.datasheet import Datasheet
    from steptime.hardware.device import Device

FILE = "architectures.toml"
Value = TypeVar("Value")
Tiles = tuple[tuple[int, int], ...]  # rows, columns of the result that a thread block makes
# Rows of a product up to which a tile is taken (0: any), and rows and columns of the tile.
SetTiles = tuple[tuple[int, int, int], ...]


class Trait(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The devices that have a property; a list that is left out says nothing.

    Attributes:
        families: families of their architectures.
        makers: their makers; "" stands for a device whose file names none.
        series: their series.
        memory_types: beginnings of the types of their memory.
        devices: beginnings of their names.
        rows: the sets of measured rows that told it.
        why: who told it, where no rows did.
    """

    families: Texts | None = None
    makers: tuple[str, ...] | None = None
    series: Texts | None = None
    memory_types: Texts | None = None
    devices: Texts | None = None
    rows: Texts
    why: str = ""

    def applies_to(self, datasheet: "Datasheet", device_name: str = "") -> bool:
        """Whether a device with this datasheet has the property."""
        # A condition that the property does not state (None) holds for every device.
        family = find_family(datasheet.architecture or "")
        maker = datasheet.maker or ""
        memory_type = datasheet.memory_type or ""
        is_of_family = self.families is None or family in self.families
        is_of_maker = self.makers is None or maker in self.makers
        is_of_series = self.series is None or datasheet.series in self.series
        has_memory = self.memory_types is None or memory_type.startswith(self.memory_types)
        has_name = self.devices is None or device_name.startswith(self.devices)
        return is_of_family and is_of_maker and is_of_series and has_memory and has_name


class ByFamily(
    msgspec.Struct, Generic[Value], frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A value that depends on the family of an architecture.

    Attributes:
        default: the value of families that `on` does not have.
        on: the values of single families.
        rows: the sets of measured rows that told it.
        why: who told it, where no rows did.
    """

    default: Value
    on: Mapping[str, Value] = {}
    rows: Texts
    why: str = ""

    def value_of(self, family: str) -> Value:
        """Return the value of a family; "" is a family that nobody knows."""
        return self.on.get(family, self.default)


class TilesByFamily(ByFamily[Tiles], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tiles that depend on the family of an architecture."""

    default: Tiles
    on: Mapping[str, Tiles] = {}


class SetTilesByFamily(ByFamily[SetTiles], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tiles by the rows of a product, which depend on the family of an architecture."""

    default: SetTiles
    on: Mapping[str, SetTiles] = {}


class NumberByFamily(ByFamily[int], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole number that depends on the family of an architecture."""

    default: int
    on: Mapping[str, int] = {}


class Architectures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole of `data/architectures.toml`.

    Attributes:
        families: the names of all families.
        traits: the properties that a device has or has not.
        tiles: by use, the tiles that libraries offer.
        set_tiles: tiles that some kernels take by the rows of a product alone, from few rows on.
        contraction_step: columns of the contraction that matrix units multiply in a turn.
        since: the year in which shops sold, or clouds let, the first chips; 0 where unknown.
    """

    families: Texts
    traits: Mapping[str, Trait]
    tiles: Mapping[str, TilesByFamily]
    set_tiles: SetTilesByFamily
    contraction_step: NumberByFamily
    since: NumberByFamily


@cache
def architectures() -> Architectures:
    """Read `data/architectures.toml`, once while the program runs."""
    return convert_table(read_packaged_toml(FILE), Architectures, FILE)


@cache
def find_family(architecture: str) -> str:
    """Find the family of an architecture: the longest family name that its name begins with.

    "Blackwell 2.0" is of "Blackwell 2", "Blackwell Ultra" of "Blackwell".

    Returns:
        The name of the family, or "" for an architecture that the data file does not have.
    """
    prefixes = [name for name in architectures().families if architecture.startswith(name)]
    return max(prefixes, key=len, default="")  # "Blackwell 2.0": "Blackwell 2", not "Blackwell"


def family_of(device: "Device") -> str:
    """Return the family of a device's architecture, "" where that is not known."""
    return find_family(device.datasheet.architecture or "")


def has_trait(device: "Device", trait: str) -> bool:
    """Whether a device has a trait of the data file, such as `old` or `copied_tensors`."""
    return architectures().traits[trait].applies_to(device.datasheet, device.name)


def format_constant_suffixes(device: "Device") -> tuple[str, str]:
    """Return the family and the maker of a device as names of constants have them.

    A GeForce RTX 5090 has `blackwell_2` and `nvidia`, as in `workspace_blackwell_2_bytes`.
    """
    return to_snake_case(family_of(device)), to_snake_case(device.datasheet.maker or "")

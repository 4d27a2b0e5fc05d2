"""Systolic arrays by name (files of `data/arrays`), or from a user's own file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from steptime.core.errors import unknown
from steptime.core.signatures.typed import Above0, Text, Texts, struct, typed_values
from steptime.core.toml_files import DATA, format_path, read_toml
from steptime.energy.systolic import Array

_FOLDER = DATA / "arrays"
_Size = Annotated[int, Meta(ge=1, description="a whole number from 1")]

_KEY_TYPES = {
    **dict.fromkeys(("name", "source", "note"), Text),
    **dict.fromkeys(("rows", "columns", "element_bytes", "sum_bytes", "arrays"), _Size),
    **dict.fromkeys(("clock_MHz", "buffer_MiB", "memory_GB_per_s"), Above0),
    "unverified": Texts,
}
_ARRAY_TABLE = struct(
    "Array", _KEY_TYPES, [key for key in _KEY_TYPES if key not in ("note", "unverified")]
)


def array(name: str | Path) -> Array:
    """Return the array of a name, or of a path that ends in .toml.

    `buffer_MiB` and `memory_GB_per_s` of a file are the chip's; each of its `arrays` gets an equal
    share. Raises `InputError` for an unknown name and for a file that is not an array.
    """
    text = str(name)
    path = Path(text) if text.lower().endswith(".toml") else _FOLDER / f"{text.lower()}.toml"
    if path.parent == _FOLDER and path.stem not in array_names():
        raise unknown("systolic array", text, array_names())
    return array_from_table(read_toml(path), format_path(path))


def array_names() -> list[str]:
    """Return the names of the shipped arrays, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def array_from_table(table: Mapping[str, object], source: str) -> Array:
    """Return the `Array` of a TOML table in datasheet units.

    Args:
        table: the parsed table.
        source: the file's name for error messages.

    Raises:
        InputError: for an unknown key, a missing key, or a number that is not positive.
    """
    values = typed_values(dict(table), _ARRAY_TABLE, source)
    array_count = values.pop("arrays")  # each has an equal share of the chip's buffer and bandwidth
    return Array(
        clock_hz=values.pop("clock_MHz") * 1e6,
        buffer_bytes=int(values.pop("buffer_MiB") * 2**20) // array_count,
        memory_bytes_per_s=values.pop("memory_GB_per_s") * 1e9 / array_count,
        per_chip=array_count,
        **values,
    )

"""The systolic arrays that are known: files of `data/arrays`, or a user's own."""

from math import inf
from pathlib import Path
from typing import Any

from steptime.core.checks import TEXT, TEXTS, Check, checked
from steptime.core.errors import unknown
from steptime.core.toml_files import DATA, read_toml, shown
from steptime.energy.systolic import Array

_FOLDER = DATA / "arrays"
_SIZE: Check = (lambda value: type(value) is int and value >= 1, "a whole number from 1")
_RATE: Check = (
    lambda value: isinstance(value, int | float) and type(value) is not bool and 0 < value < inf,
    "a positive number",
)
_REQUIRED: dict[str, Check] = {
    **dict.fromkeys(("name", "source"), TEXT),
    **dict.fromkeys(("rows", "columns", "element_bytes", "sum_bytes", "arrays"), _SIZE),
    **dict.fromkeys(("clock_MHz", "buffer_MiB", "memory_GB_per_s"), _RATE),
}
_KEYS = {**_REQUIRED, "note": TEXT, "unverified": TEXTS}


def array(name: str | Path) -> Array:
    """Return the array of a name, or of a path that ends in .toml.

    `buffer_MiB` and `memory_GB_per_s` of a file are the chip's; each of its `arrays` gets an equal
    share. Raises `InputError` for an unknown name and for a file that is not an array.
    """
    text = str(name)
    path = Path(text) if text.lower().endswith(".toml") else _FOLDER / f"{text.lower()}.toml"
    if path.parent == _FOLDER and path.stem not in array_names():
        raise unknown("systolic array", text, array_names())
    return array_from_table(read_toml(path), shown(path))


def array_names() -> list[str]:
    """Return the names of the shipped arrays, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def array_from_table(table: dict[str, Any], where: str) -> Array:
    """Return the `Array` that a TOML table in datasheet units says; `where` is named in errors.

    Raises `InputError` for an unknown key, a missing one, or a number that is not positive.
    """
    given = checked(table, _KEYS, tuple(_REQUIRED), where)
    count = given.pop("arrays")
    return Array(
        clock_hz=given.pop("clock_MHz") * 1e6,
        buffer_bytes=int(given.pop("buffer_MiB") * 2**20) // count,
        memory_bytes_per_s=given.pop("memory_GB_per_s") * 1e9 / count,
        per_chip=count,
        **given,
    )

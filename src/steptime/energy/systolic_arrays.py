"""The systolic arrays that are known: files of `data/arrays`, or a user's own."""

from __future__ import annotations

import tomllib
from math import inf
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.energy.systolic import Array

_FOLDER = Path(__file__).parents[1] / "data" / "arrays"
_SIZES = ("rows", "columns", "element_bytes", "sum_bytes", "arrays")
_NUMBERS = ("clock_MHz", "buffer_MiB", "memory_GB_per_s")
_TEXTS = ("name", "source", "note")
_KEYS = (*_TEXTS, *_SIZES, *_NUMBERS, "unverified")


def array(name: str | Path) -> Array:
    """Return the array of a name, or of a path that ends in .toml.

    `buffer_MiB` and `memory_GB_per_s` of a file are the chip's; each of its `arrays` gets an equal
    share. Raises `InputError` for an unknown name and for a file that is not an array.
    """
    text = str(name)
    if text.lower().endswith(".toml"):
        return _read(Path(text))
    if text.lower() not in array_names():
        raise unknown("systolic array", text, array_names())
    return _read(_FOLDER / f"{text.lower()}.toml")


def array_names() -> list[str]:
    """Return the names of the shipped arrays, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def _read(path: Path) -> Array:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{shorten(str(path))}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{shorten(str(path))}: not TOML: {error}") from error
    return array_from_table(table, shorten(str(path)))


def array_from_table(table: dict[str, Any], where: str) -> Array:
    """Return the `Array` that a TOML table in datasheet units says; `where` is named in errors.

    Raises `InputError` for an unknown key, a missing one, or a number that is not positive.
    """
    for key in table:
        if key not in _KEYS:
            raise unknown("key", key, _KEYS, where)
    for key in _KEYS:
        if key not in table and key not in ("note", "unverified"):
            raise InputError(f"{where}: '{key}' is missing")
    for key in _NUMBERS:
        value = table[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
            raise InputError(f"{where}: '{key}' must be a positive number, not {shorten(value)}")
    for key in _SIZES:
        value = table[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{where}: '{key}' must be a whole number from 1")
    for key in _TEXTS:
        if key in table and not (isinstance(table[key], str) and table[key]):
            raise InputError(f"{where}: '{key}' must be a text")
    unverified = table.get("unverified", [])
    if not isinstance(unverified, list) or not all(isinstance(key, str) for key in unverified):
        raise InputError(f"{where}: 'unverified' must be a list of texts")
    return Array(
        rows=table["rows"],
        columns=table["columns"],
        clock_hz=table["clock_MHz"] * 1e6,
        buffer_bytes=int(table["buffer_MiB"] * 2**20) // table["arrays"],
        memory_bytes_per_s=table["memory_GB_per_s"] * 1e9 / table["arrays"],
        element_bytes=table["element_bytes"],
        sum_bytes=table["sum_bytes"],
        per_chip=table["arrays"],
        name=table["name"],
        source=table["source"],
        note=table.get("note", ""),
        unverified=tuple(unverified),
    )

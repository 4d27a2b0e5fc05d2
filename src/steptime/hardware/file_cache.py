"""Items read from files, cached until one of their files changes."""

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from steptime.core.files import stamp_of
from steptime.core.toml_files import format_path, read_toml

T = TypeVar("T")


def cached_by_files(key: Hashable, make: Callable[[], tuple[Collection[Path], T]]) -> T:
    """Return an item from a cache, made anew where one of its files has changed.

    Args:
        key: the key of the item.
        make: returns the files that the item is made from, and the item.
    """
    entry = _cache_entry(key)
    if not entry.files or _stamp_files(entry.files) != entry.stamps:
        entry.files, entry.item = make()
        entry.stamps = _stamp_files(entry.files)
    return cast("T", entry.item)


@dataclass
class _CacheEntry:
    """An item with the files that it was made from, and their stamps; no files before that."""

    files: Collection[Path] = ()
    stamps: list[list[int] | None] = field(default_factory=list)
    item: Any = None


@lru_cache(maxsize=256)
def _cache_entry(_: Hashable) -> _CacheEntry:
    """Return the entry of a key, which is filled in place."""
    return _CacheEntry()


def read_cached(path: Path, read: Callable[[Mapping[str, Any], str], T]) -> T:
    """Return the item of a TOML file by `read`, from a cache until the file changes."""
    return cached_by_files((path, read), lambda: ([path], read(read_toml(path), format_path(path))))


def _stamp_files(files: Collection[Path]) -> list[list[int] | None]:
    """Return the stamps of files, in their order."""
    return [*map(_stamp_or_none, files)]


def _stamp_or_none(path: Path) -> list[int] | None:
    """Return the stamp of a file, None where it cannot be read: reading it says why."""
    try:
        return stamp_of(path)
    except (OSError, ValueError):
        return None

"""What TOML files hold, kept as long as they are as they were."""

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from steptime.core.toml_files import read_toml, shown

T = TypeVar("T")


def fresh(path: Path, read: Callable[[Mapping[str, Any], str], T], *beside: Path) -> T:
    """Return what `read` makes of a file, anew where it or one `beside` it was written since."""
    found: T = _held(path, read, *map(_mark, (path, *beside)))
    return found


def _mark(path: Path) -> Hashable:
    """Return what is another where a file is at another place, or was written since."""
    try:
        about = path.stat()
        return path.absolute(), about.st_mtime_ns, about.st_size
    except (OSError, ValueError):
        return None  # reading it says why


@lru_cache(maxsize=64)
def _held(path: Path, read: Callable[[Mapping[str, Any], str], Any], *marks: Hashable) -> Any:
    return read(_table(path, marks[0]), shown(path))


@lru_cache(maxsize=64)
def _table(path: Path, _: Hashable) -> Mapping[str, Any]:
    return read_toml(path)

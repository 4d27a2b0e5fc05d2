"""What TOML files hold, kept as long as they are as they were."""

from collections.abc import Callable, Collection, Hashable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from steptime.core.toml_files import format_path, read_toml

T = TypeVar("T")


def kept(key: Hashable, make: Callable[[], tuple[Collection[Path], T]]) -> T:
    """Return what `make` makes of the files that it names, anew where one was written since."""
    files, marks, item = _held(key)
    if not files or [*map(_mark, files)] != marks:
        files, item = make()
        _held(key)[:] = files, [*map(_mark, files)], item
    return cast("T", item)


@lru_cache(maxsize=256)
def _held(_: Hashable) -> list[Any]:
    return [None, None, None]


def fresh(path: Path, read: Callable[[Mapping[str, Any], str], T]) -> T:
    """Return what `read` makes of a file, anew where it was written since."""
    return kept((path, read), lambda: ([path], read(read_toml(path), format_path(path))))


def _mark(path: Path) -> Hashable:
    """Return what is another where a file is another one, or was written since."""
    try:
        about = path.stat()
    except (OSError, ValueError):
        return None  # reading it says why
    return about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size

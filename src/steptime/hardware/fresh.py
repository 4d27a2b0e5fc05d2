"""What TOML files hold, kept as long as they are as they were."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from steptime.core.toml_files import read_toml, shown

T = TypeVar("T")
_MOST = 256  # kept at once
_KEPT: dict[Hashable, tuple[list[Path], list[Hashable], Any]] = {}


def kept(key: Hashable, make: Callable[[], tuple[T, Iterable[Path]]]) -> T:
    """Return what `make` makes, anew where a file was written since of those that it names."""
    before = _KEPT.get(key)
    if before is None or [_mark(path) for path in before[0]] != before[1]:
        if len(_KEPT) >= _MOST:
            _KEPT.clear()
        item, files = make()
        paths = [*files]
        _KEPT[key] = paths, [_mark(path) for path in paths], item
        return item
    kept_item: T = before[2]
    return kept_item


def fresh(path: Path, read: Callable[[Mapping[str, Any], str], T]) -> T:
    """Return what `read` makes of a file, anew where it was written since."""
    return kept((path, read), lambda: (read(read_toml(path), shown(path)), [path]))


def _mark(path: Path) -> Hashable:
    """Return what is another where a file is another one, or was written since."""
    try:
        about = path.stat()
    except (OSError, ValueError):
        return None  # reading it says why
    return about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size

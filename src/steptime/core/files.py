"""Files that are written whole, or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steptime.core.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file that takes the place of `path` at the end, unless that fails."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def own_caches() -> Path:
    """Return the folder of what is ours among the user's caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "steptime")


def check_folder(path: Path) -> None:
    """Raise `InputError` where no file can be at `path`."""
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"{path}: is a folder, or is in a folder that does not exist")

"""Files that are written whole, or not at all."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steptime.core.errors import InputError, OutsideError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, or what a user may have of it


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file that takes the place of `path` at the end, unless that fails."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(
    path: Path, content: str | bytes, where: object = None, makes_folder: bool = False
) -> None:
    """Write a file whole or not at all; `where` names it in errors, by default its path.

    Raises `OutsideError` where the disk is full, `InputError` for another path that takes no file.
    """
    try:
        if makes_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as new:
            new.write_bytes(content.encode() if isinstance(content, str) else content)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        kind = OutsideError if getattr(error, "errno", None) in FULL else InputError
        raise kind(f"{where or path}: cannot be written: {reason}") from error


def own_caches() -> Path:
    """Return the folder of what is ours among the user's caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "steptime")


def check_folder(path: Path) -> None:
    """Raise `InputError` where no file can be at `path`."""
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"{path}: is a folder, or is in a folder that does not exist")

"""Atomic writing of files, and files of JSON lines to which one process appends."""

import errno
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from time import time
from typing import Any

from steptime.core.errors import InputError, OutsideError, check_choice
from steptime.core.json_types import JsonObject

STALE_S = 600.0  # since the last write to a part of a file: its writer is gone
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, or what a user may have of it


@contextmanager
def replace_on_success(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces `path` at the end, unless an error occurs.

    Temporary files of commands that were killed are removed after `STALE_S`.
    """
    temporary_path = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    # Leftovers of processes that were killed while they wrote this file.
    for other_path in path.parent.glob(f".{escape(path.name)}.{'[0-9a-f]' * 8}"):
        with suppress(OSError):
            is_stale = time() - other_path.stat().st_mtime > STALE_S
            if is_stale:
                other_path.unlink()
    try:
        yield temporary_path
        temporary_path.replace(path)
    finally:
        temporary_path.unlink(missing_ok=True)


def stamp_of(path: Path) -> list[int]:
    """Return size, times and inode of a file, some of which change with every write."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def write_atomically(
    path: Path,
    content: str | bytes | Iterable[str],
    place: object = None,
    makes_folder: bool = False,
) -> None:
    """Write a file atomically.

    Args:
        path: the file.
        content: its bytes, its text, or the parts of its text, written one after the other.
        place: names the file in errors, by default its path.
        makes_folder: whether folders that do not exist are made.

    Raises:
        OutsideError: if the disk is full.
        InputError: if the path cannot be written.
    """
    try:
        if makes_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        with replace_on_success(path) as temporary_path:
            if isinstance(content, bytes):
                temporary_path.write_bytes(content)
            else:
                with temporary_path.open("w", encoding="utf-8", newline="") as file:
                    file.writelines([content] if isinstance(content, str) else content)
    # ValueError: a NUL in the path.
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        is_disk_full = getattr(error, "errno", None) in FULL
        kind = OutsideError if is_disk_full else InputError  # the first is no mistake of the user
        raise kind(f"{place or path}: cannot be written: {reason}") from error


def cache_folder() -> Path:
    """Return the folder of this package in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "steptime")


def check_folder(path: Path) -> None:
    """Raise `InputError` if `path` is a folder, or its folder does not exist."""
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"{path}: is a folder, or is in a folder that does not exist")


def check_ending(path: Path, endings: Collection[str], noun: str) -> str:
    """Return the ending of a path; raises `InputError` for another ending and an absent folder."""
    ending = path.suffix.lower()
    check_choice(noun, ending or path.name, endings, str(path))
    check_folder(path)
    return ending


def check_writable(folder: Path) -> None:
    """Make a folder if it is absent; raises `InputError` if it is not writable."""
    from tempfile import TemporaryFile  # whose imports take 5 ms, which few commands need

    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to: {error.strerror}") from error


def append_line(path: Path, table: Mapping[str, Any]) -> None:
    """Append a table as one line of JSON to a file that only this process writes."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(table) + "\n")


def read_lines(path: Path) -> list[JsonObject]:
    """Return the tables of a file of JSON lines without incomplete lines; [] for an absent file."""
    lines, tables = [], []
    with suppress(FileNotFoundError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        # The process that wrote may have been killed in the middle of a line.
        with suppress(ValueError):
            tables.append(json.loads(line))
    return [table for table in tables if isinstance(table, dict)]


def path_exists(text: str) -> bool:
    """Return whether a text is the path of something; one that can be no path is not."""
    return os.path.exists(text)  # noqa: PTH110  # `Path.exists` raises for a text that is too long

"""Copies of a data set on this machine: made once, checked, and removed with their worker."""

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from steptime.core.errors import InputError
from steptime.core.units import size
from steptime.measure import scratch
from steptime.measure.contract import BadDataError, MissingFileError, NoSpaceError
from steptime.measure.data.dataset import DataSet

PREFIX = "steptime-stage-"
_PLACES = ("LOCAL", scratch.OUTER, "TMPDIR")  # name a disk of the machine, as schedulers set them
_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class Staged:
    """A data set as it is read, and what a record says of its copy; None without one."""

    dataset: DataSet
    facts: Mapping[str, Any] | None


def place(stage_to: str) -> Path:
    """Return where copies go: `stage_to`, else $LOCAL, else $TMPDIR, else the system's folder."""
    named = {"": stage_to} | {f" (${name})": os.environ.get(name, "") for name in _PLACES}
    for says, text in named.items():
        if text:
            if not Path(text).is_dir():
                what = "is no folder" if Path(text).exists() else "no such folder"
                raise MissingFileError(f"'{text}'{says}, where copies would go: {what}")
            return Path(text)
    return Path(tempfile.gettempdir())


def leave(dataset: DataSet, _: str) -> Staged:
    """Leave a data set where it is."""
    return Staged(dataset, None)


def copy(dataset: DataSet, stage_to: str) -> Staged:
    """Copy a data set into a new folder and check the copy; it goes with this process.

    Raises `NoSpaceError` where there is no room, `BadDataError` where the copy is not the original.
    """
    parent = place(stage_to).absolute()
    scratch.remove_stale(parent, PREFIX)
    wanted = sum(path.stat().st_size for path in dataset.files.values())
    free = shutil.disk_usage(parent).free
    if free < wanted:
        raise NoSpaceError(f"{parent}: {size(free)} are free, the data set needs {size(wanted)}")
    try:
        copies, facts = _copied(dataset, scratch.make(parent, PREFIX))
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise NoSpaceError(f"{parent}: {error.strerror} while copying {size(wanted)}") from None
        raise InputError(f"{parent}: cannot copy here: {error.strerror}") from None
    facts = {"from": str(dataset.folder.absolute()), "to": str(parent), "bytes": wanted, **facts}
    return Staged(replace(dataset, files=copies), facts)


def _copied(dataset: DataSet, folder: Path) -> tuple[dict[str, Path], dict[str, Any]]:
    """Copy into a new folder, which goes with this process, or at once where that fails."""
    try:
        return _copy_files(dataset, folder)
    except (OSError, BadDataError):
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _copy_files(dataset: DataSet, folder: Path) -> tuple[dict[str, Path], dict[str, Any]]:
    """Return the copies of the files, and the seconds and the checksum of copying."""
    copies, sums = {}, {}
    began = perf_counter()
    for name, path in dataset.files.items():
        copies[name] = folder / path.name
        sums[name] = _copy_file(path, copies[name])
    copy_s = perf_counter() - began
    for name, path in copies.items():
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sums[name]:
                raise BadDataError(f"{path}: the copy differs from {dataset.files[name]}")
    check_s = perf_counter() - began - copy_s
    whole = hashlib.sha256("".join(sums.values()).encode()).hexdigest()
    return copies, {"copy_s": copy_s, "check_s": check_s, "checksum": f"sha256:{whole}"}


def _copy_file(source: Path, target: Path) -> str:
    """Copy a file to the disk and return the checksum of what was read."""
    digest = hashlib.sha256()
    with source.open("rb") as reading, target.open("wb") as writing:
        while chunk := reading.read(_CHUNK_BYTES):
            digest.update(chunk)
            writing.write(chunk)
        writing.flush()
        os.fsync(writing.fileno())
    return digest.hexdigest()


STAGES: Mapping[str, Callable[[DataSet, str], Staged]] = {"shared": leave, "local": copy}
"""What each word of `STAGINGS` does with a data set, given where copies go."""

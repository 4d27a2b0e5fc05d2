"""Folders that go with the process that made them, however it ends.

A small process waits for the end of a pipe that only the maker holds, and then removes the folder.
Where that one is killed too (a scheduler ends all of a job), the folder stays, and the next maker
in the same place removes it: the lock that its maker held is free.
"""

import fcntl
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

OUTER = "STEPTIME_TMPDIR"  # $TMPDIR of the user, in a process that has a folder of its own
_WORKER = "steptime-worker-"
_TEMPORARY = "steptime-tables-"
_LOCK = "in-use"
_SHELL = "/bin/sh"
_folders: dict[Path, Path] = {}  # of this process, by where they lie
_WAIT_AND_REMOVE = 'cat; rm -rf -- "$1"'


def use_own_tmpdir() -> None:
    """Put what this process and those that it starts write to TMPDIR into a folder of its own."""
    os.environ[OUTER] = os.environ.get("TMPDIR", str(place()))
    tempfile.tempdir = os.environ["TMPDIR"] = str(make(place(), _WORKER))


def place() -> Path:
    """Return where temporary files go: $TMPDIR, if files can be made there, else what Python says.

    Python tries it with a file, which a kill at that moment leaves there.
    """
    named = os.environ.get("TMPDIR", "")
    if not tempfile.tempdir and Path(named).is_dir() and os.access(named, os.W_OK):
        tempfile.tempdir = str(Path(named).absolute())
    return Path(tempfile.gettempdir())


def temporary() -> Path:
    """Return a new folder among the temporary files that goes with this process, if not before."""
    parent = place()
    if (held := _folders.get(parent)) is None or not held.is_dir():
        held = _folders[parent] = make(parent, _TEMPORARY)
    return Path(tempfile.mkdtemp(dir=held))


def make(parent: Path, prefix: str) -> Path:
    """Return a new folder in `parent`, without those that nobody holds; raises `OSError`."""
    remove_stale(parent, prefix)
    folder = parent / f"{prefix}{secrets.token_hex(4)}"
    _remove_after_this_process(folder)  # before it is there: a kill between leaves nothing
    folder.mkdir(mode=0o700)
    making = folder / f"{_LOCK}-soon"
    lock = os.open(making, os.O_CREAT | os.O_RDWR)  # stays open, and so locked, to the end
    with suppress(OSError):  # a file system without locks: nobody will take it for stale
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    making.rename(folder / _LOCK)  # no moment at which it is there and free
    return folder


def _remove_after_this_process(folder: Path) -> None:
    """Have a folder removed when this process is gone."""
    read_end, _ = os.pipe()
    os.posix_spawn(
        _SHELL,
        [_SHELL, "-c", _WAIT_AND_REMOVE, "sh", str(folder)],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, read_end, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setpgroup=0,  # what is sent to this process's group does not end it
    )
    os.close(read_end)  # the other end is never closed, but by the end of this process


def remove_stale(parent: Path, prefix: str) -> None:
    """Remove folders in `parent` whose maker is gone: whoever holds no lock is no more."""
    for folder in parent.glob(f"{prefix}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR)
        except OSError:  # of somebody else, or just being made or removed
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(lock)

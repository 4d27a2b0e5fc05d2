"""Temporary folders that are removed when their process ends, however it ends.

A small shell process waits for the end of a pipe that only the owner has open, and then removes the
folder. If the shell is killed too (a scheduler ends all processes of a job), the folder stays. The
next owner in the same place removes it, since its lock is free.
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


def set_private_tmpdir() -> None:
    """Put what this process and those that it starts write to TMPDIR into a folder of its own."""
    os.environ[OUTER] = os.environ.get("TMPDIR", str(scratch_folder()))
    tempfile.tempdir = os.environ["TMPDIR"] = str(make_locked_folder(scratch_folder(), _WORKER))


def scratch_folder() -> Path:
    """Return the folder of temporary files: $TMPDIR if it is writable, else Python's default.

    $TMPDIR is checked here because Python checks it with a file, which a kill would leave behind.
    """
    folder = os.environ.get("TMPDIR", "")
    if not tempfile.tempdir and Path(folder).is_dir() and os.access(folder, os.W_OK):
        tempfile.tempdir = str(Path(folder).absolute())
    return Path(tempfile.gettempdir())


def make_temporary_folder() -> Path:
    """Return a new temporary folder that is removed when this process ends."""
    parent = scratch_folder()
    folder = _folders.get(parent)
    if folder is None or not folder.is_dir():
        folder = _folders[parent] = make_locked_folder(parent, _TEMPORARY)
    return Path(tempfile.mkdtemp(dir=folder))


def make_locked_folder(parent: Path, prefix: str) -> Path:
    """Make a locked folder in `parent` and remove stale ones; raises `OSError`."""
    remove_stale(parent, prefix)
    folder = parent / f"{prefix}{secrets.token_hex(4)}"
    _remove_on_end(folder)  # before it is there: a kill between leaves nothing
    folder.mkdir(mode=0o700)
    new_lock_file = folder / f"{_LOCK}-soon"
    # The descriptor stays open, and so locked, to the end of this process.
    lock_descriptor = os.open(new_lock_file, os.O_CREAT | os.O_RDWR)
    with suppress(OSError):  # a file system without locks: nobody will take it for stale
        fcntl.flock(lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    new_lock_file.rename(folder / _LOCK)  # no moment at which it is there and free
    return folder


def _remove_on_end(folder: Path) -> None:
    """Start a shell that removes a folder when this process has ended."""
    read_end, _ = os.pipe()
    # `cat` reads until the pipe closes, which is when this process ends, also by a kill.
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
    """Remove the folders in `parent` whose lock is free, since their process has ended."""
    for folder in parent.glob(f"{prefix}*"):
        try:
            lock_descriptor = os.open(folder / _LOCK, os.O_RDWR)
        except OSError:  # of somebody else, or just being made or removed
            continue
        try:
            fcntl.flock(lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)  # its process ended, which freed the lock
        except OSError:  # locked: its process still runs
            pass
        finally:
            os.close(lock_descriptor)

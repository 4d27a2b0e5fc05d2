"""Records in a folder: append-only JSON lines, one file a writer, nothing ever rewritten.

Each record is one complete line, on the disk before `append` comes back. A writer never touches
the file of another, so many may write at once, and a line that a killed writer left torn stays the
last one of its file: it is reported and skipped. Merging two folders is copying the files of one
into the other.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from steptime.core.errors import InputError, InterruptError, OutsideError
from steptime.core.units import format_count
from steptime.records.record import (
    FINAL_STATUSES,
    Record,
    RecordMethod,
    method_to_json,
    record_to_line,
)
from steptime.records.record_files import FolderLines, Warn, find_record_files, is_record_file

LOCK, IMPORT_LOCK = "sweep.lock", "import.lock"
EMPTY = "holds no records (no line in any *.jsonl file)"
NO_RECORD_LINE = "no line of its *.jsonl files is a record"
MAX_HOLDER_BYTES = 200  # of a lock's file, which names the process that holds it
FinalKey = tuple[str, str, str, int]  # workload key, platform, method identity, round


class StoreError(OutsideError):
    """The disk did not take a record; one line, earlier records are intact. Exits with 1."""


class Writer(AbstractContextManager["Writer"]):
    """One file of records that only this writer appends to; a context manager.

    The file is made with its first record: a process that ends before has left nothing.
    """

    def __init__(self, folder: Path) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self.path = folder / f"records-{stamp}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        self._descriptor: int | None = None
        self._size = 0
        self._records = 0

    def append(self, record: Record) -> None:
        """Put `record` on the disk before coming back; raises `StoreError` where that fails.

        Raises `ValueError` for a record with a number that is not finite.
        """
        self.append_all([record])

    def append_all(self, records: Iterable[Record]) -> None:
        """Put all of `records` on the disk, or none of them; raises as `append`."""
        texts = [f"{record_to_line(record)}\n" for record in records]
        if not texts:
            return
        lines = "".join(texts).encode()
        descriptor = self._open()
        try:
            _write_all(descriptor, lines)
            os.fsync(descriptor)
            if not self._size:
                _sync_folder(self.path.parent)
        except OSError as error:
            os.ftruncate(descriptor, self._size)  # the next record must not join a torn line
            reason = error.strerror or error
            raise StoreError(f"{self.path}: cannot write a record: {reason}") from error
        if not os.fstat(descriptor).st_nlink:  # no name is left: somebody removed the file
            raise StoreError(f"{self.path}: was removed while records were written to it")
        self._size += len(lines)
        self._records += len(texts)

    def _open(self) -> int:
        if self._descriptor is None:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
                self._descriptor = os.open(self.path, flags, 0o644)
            except OSError as error:
                raise StoreError(f"{self.path}: cannot make the file: {error.strerror}") from error
        return self._descriptor

    def discard(self) -> None:
        """Let the file go with its writer, and all that was written to it."""
        self._size = 0

    def close(self) -> None:
        """Close the file; one without a record is taken away."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            if self._size == 0:  # nothing was written, or it was discarded
                self.path.unlink(missing_ok=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is KeyboardInterrupt and self._size:
            with self.path.open("rb") as file:  # one may be written that is not counted yet
                file.seek(self._size)
                record_count = self._records + file.read().count(b"\n")
            raise InterruptError(
                f"{format_count(record_count, 'record')} kept in {self.path.parent}"
            ) from None


def _write_all(descriptor: int, lines: bytes) -> None:
    remaining = memoryview(lines)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def _sync_folder(folder: Path) -> None:
    """Put the name of a new file on the disk, as fsync of the file does not."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_writer(folder: Path) -> Writer:
    """Return a writer with a new file in `folder`, which is made if absent.

    Raises `InputError` where the folder cannot be made or written to.
    """
    _make_folder(folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: cannot write here: {os.strerror(errno.EACCES)}")
    return Writer(folder)


def _make_folder(folder: Path) -> bool:
    """Make a folder, and tell whether it was not there."""
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        if isinstance(error, FileExistsError) and folder.is_dir():  # it was there already
            return False
        if isinstance(error, FileExistsError | NotADirectoryError):
            raise InputError(f"{folder}: is a file, not a folder of records") from error
        error_type = InputError if isinstance(error, PermissionError) else StoreError
        raise error_type(f"{folder}: cannot make the folder: {error.strerror}") from error
    return True


def load(folder: Path, warn: Warn, *, required: bool = True) -> list[Record]:
    """Return all records of a folder and of those below it, by file name and line.

    Args:
        folder: the folder, or a file of records.
        warn: gets a line for each torn last line, for each file with lines that are no records,
            and for records that are copies of others; all these are left out.
        required: whether a folder that is absent or empty is refused.

    Raises:
        InputError: if there is no folder of records, and for a schema that this version does not
            know.
    """
    from steptime.records.reading import record_of

    warnings: list[str] = []
    with readable(folder):
        files = paths(folder, required=required)
        lines = FolderLines(files, warnings.append)
        records = [record_of(stored.line) for stored in lines]
    if not records and lines.has_whole_lines:  # the files hold something else than records
        raise InputError("; ".join([f"{folder}: {NO_RECORD_LINE}", *warnings[:1]]))
    for warning in warnings:
        warn(warning)
    if required and not records:
        raise InputError(f"{folder}: {EMPTY}")
    return records


def paths(folder: Path, *, required: bool = True) -> list[Path]:
    """Return the files of records of a folder in order, or the file of records itself.

    Args:
        folder: a folder, or a file whose name ends in .jsonl or .jsonl.gz.
        required: whether a folder that is absent is refused.

    Raises:
        InputError: for a file of another kind, and for a folder that is absent.
    """
    if folder.is_dir():
        return find_record_files(folder)
    if folder.exists():
        if is_record_file(folder):
            return [folder]
        hint = f"; steptime import {folder} --out DIR makes records of it" if required else ""
        raise InputError(f"{folder}: is a file, not a folder of records{hint}")
    if required:
        raise InputError(f"{folder}: no such folder of records")
    return []


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Turn `OSError` for files that cannot be read into `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename or folder}: cannot read: {error.strerror}") from error


@contextmanager
def exclusive(folder: Path, lock: str = LOCK, waits: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, such as that of its one sweep.

    The lock ends with the process, however it ends. At a normal end its file is removed, and so is
    a folder that is still empty.

    Args:
        folder: the folder, which is made if absent.
        lock: the name of the lock's file.
        waits: whether to wait for a process that holds the lock.

    Raises:
        InputError: that names the process which holds the lock, if this one does not wait.
    """
    is_new = _make_folder(folder)
    path = folder / lock
    try:
        descriptor = _acquire_lock(folder, path, waits)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)
    finally:
        if is_new:  # a folder made for the lock goes with it, unless records lie in it now
            with suppress(OSError):
                folder.rmdir()


def _acquire_lock(folder: Path, path: Path, waits: bool) -> int:
    """Return the descriptor of a locked file, which still has its name once it is locked."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"{folder}: cannot write here: {error.strerror}") from error
        if not _lock_file(descriptor, folder, path, waits):
            return descriptor  # a file system without locks: nobody holds one
        # The previous holder may have removed the file between our `open` and `flock`. Then we
        # locked a file without a name, which keeps nobody out, and the loop tries again.
        with suppress(FileNotFoundError):
            still_has_name = os.path.samestat(path.stat(), os.fstat(descriptor))
            if still_has_name:
                return descriptor
        os.close(descriptor)


def _lock_file(descriptor: int, folder: Path, path: Path, waits: bool) -> bool:
    """Lock an open file; return False if its file system has no locks and `waits` is set.

    Raises:
        InputError: that names the process which holds the lock, if this one does not wait.
        StoreError: on a file system without locks, if this one does not wait.
    """
    lock_mode = fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB
    try:
        fcntl.flock(descriptor, lock_mode)
    except BlockingIOError as error:
        text = os.pread(descriptor, MAX_HOLDER_BYTES, 0).decode("utf-8", "replace").strip()
        os.close(descriptor)
        holder = f"process {text}" if text else "another process"
        raise InputError(f"{folder}: a sweep is running here ({holder})") from error
    except OSError as error:
        if waits:
            return False
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise StoreError(f"{path}: cannot lock: {error.strerror}") from error
    return True


def identity(method: RecordMethod) -> str:
    """Return a text that is equal for methods with equal name, version and options."""
    return json.dumps(method_to_json(method), sort_keys=True, separators=(",", ":"))


def final_keys(records: Iterable[Record]) -> set[FinalKey]:
    """Return the keys of whole steps with a final record, which need no further try."""
    return {
        final_key(record)
        for record in records
        if record.status in FINAL_STATUSES and not record.scope
    }


def final_key(record: Record) -> FinalKey:
    """Return the identity of a record's step: its workload, platform, method and round."""
    round_ = int(record.env.get("round", 0))
    return record.workload.key, record.platform, identity(record.method), round_

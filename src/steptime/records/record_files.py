"""The files of a folder of records: which they are, their lines, and each record once.

Files are `*.jsonl` and `*.jsonl.gz`, in the folder and in the folders below it. A record that
stands in two files, because a file was copied, counts once.
"""

from __future__ import annotations

import gzip
import os
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from steptime.core.errors import InputError, escape_controls
from steptime.core.progress import watched
from steptime.core.units import first_of

if TYPE_CHECKING:
    from steptime.records.reading import Line
    from steptime.records.record import Record

ENDINGS = (".jsonl", ".jsonl.gz")
OF_SUBMISSION = "cells.jsonl"  # in the folder of a submission (`sweeps.cluster.submission`)
MAX_NAMED_FAULTS = 5  # faulty lines of a file
MAX_NAMED_FILES = 3  # files with copies
ID_BYTES = 8  # of a record's identity: among 10^6 records two are alike once in 10^7 folders
UTF_8_MARK = b"\xef\xbb\xbf"
UTF_16_BEGINS = (b"\xff\xfe", b"\xfe\xff", b"{\x00", b"\x00{")
UNREADABLE_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
Warn = Callable[[str], None]
RecordFile = BufferedReader | gzip.GzipFile


class StoredLine(NamedTuple):
    """A record's line.

    Attributes:
        place: where it begins in its folder, as if the files stood one behind the other [bytes].
        line: the checked values.
    """

    place: int
    line: Line


def find_record_files(folder: Path) -> list[Path]:
    """Find the files of records in a folder and below, by file name (it begins with the time).

    Names that begin with a dot, such as the cache, and what a scheduler's jobs write beside the
    records are left out.
    """
    paths = []
    for parent, folders, names in os.walk(folder, onerror=_raise_error):
        if OF_SUBMISSION in names and Path(parent) != folder:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [
            Path(parent, name)
            for name in names
            if name.endswith(ENDINGS) and not name.startswith(".")
        ]
    return sorted(paths, key=lambda path: (path.name, path))


def _raise_error(error: OSError) -> None:
    raise error


def open_record_file(path: Path) -> RecordFile:
    """Open a file of records for reading; one that ends in `.gz` is decompressed."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def record_id(text: bytes, number: int = 0) -> int:
    """Return the identity of a record: a hash of its line and of its number among equal lines."""
    salt = number.to_bytes(ID_BYTES, "little")
    digest = blake2b(text.rstrip(b"\r\n"), digest_size=ID_BYTES, salt=salt).digest()
    return int.from_bytes(digest, "little", signed=True)


def is_stated(line: Line) -> bool:
    """Return whether a record holds only values that somebody stated, without samples."""
    return line.origin != "predicted" and not any(
        quantity.samples for quantity in line.quantities.values()
    )


def describe_copies(copies: Counter[str]) -> str:
    """Describe copied records: `b.jsonl: 12 records are copies of others; each counts once`."""
    files = first_of(sorted(copies), MAX_NAMED_FILES)
    number = copies.total()
    copies_text = "records are copies" if number > 1 else "record is a copy"
    return f"{files}: {number:,} {copies_text} of others; each counts once"


def read_record(paths: Sequence[Path], starts: Sequence[int], place: int) -> Record:
    """Read the record whose line begins at a place of the folder; see `StoredLine`."""
    from steptime.records.reading import record_from_json

    number = bisect_right(starts, place, hi=len(paths)) - 1
    with open_record_file(paths[number]) as file:
        file.seek(place - starts[number])
        return record_from_json(file.readline().removeprefix(UTF_8_MARK))


class FolderLines:
    """The lines of the records of several files, each record once; iterate over them once.

    Attributes:
        paths: the files, in order.
        starts: where each file begins, as if they stood one behind the other, and the end of the
            last one [bytes]; complete after the iteration.
        has_whole_lines: whether there is anything but lines that a writer left torn.
    """

    def __init__(self, paths: Sequence[Path], warn: Warn) -> None:
        self.paths = paths
        self.starts = [0]
        self.has_whole_lines = False
        self._warn = warn
        self._known_ids = set[int]()
        self._copies = Counter[str]()

    def __iter__(self) -> Iterator[StoredLine]:
        for path in watched(self.paths, "files"):
            yield from self._read_file(path)
        if self._copies:
            self._warn(describe_copies(self._copies))

    def _read_file(self, path: Path) -> Iterator[StoredLine]:
        """Yield the records of a file; faulty lines are named and left out."""
        faults = LineFaults(path, self._warn)
        repeats = Counter[int]()
        place = self.starts[-1]
        try:
            with open_record_file(path) as file:
                for number, text in enumerate(self._text_lines(path, file), start=1):
                    content = text.removeprefix(UTF_8_MARK) if number == 1 else text
                    line = faults.read(number, content)
                    if line is not None and self._is_new(line, content, path, repeats):
                        yield StoredLine(place, line)
                    place += len(text)
                    self.has_whole_lines |= text.endswith(b"\n")
        except UNREADABLE_GZIP as error:
            self._warn(
                f"{path}: the compressed file is damaged or cut ({escape_controls(str(error))})"
            )
        faults.report()
        self.starts.append(place)

    def _text_lines(self, path: Path, file: RecordFile) -> Iterable[bytes]:
        """Return the lines of a file, none of one in UTF-16, which is named."""
        if file.peek(2).startswith(UTF_16_BEGINS):
            self._warn(f"{path}: is UTF-16 text, left out; save it as UTF-8")
            self.has_whole_lines = True
            return ()
        return file

    def _is_new(self, line: Line, text: bytes, path: Path, repeats: Counter[int]) -> bool:
        """Tell whether a record was not read before, and count it as a copy if it was.

        Equal lines of stated values in one file are repeats, not copies: two of five repeats may
        say the same time. Equal samples or predictions are copies wherever they stand.
        """
        identity = record_id(text)
        if is_stated(line):
            repeats[identity] += 1
            identity = record_id(text, repeats[identity])
        if identity in self._known_ids:
            self._copies[str(path)] += 1
            return False
        self._known_ids.add(identity)
        return True


class LineFaults:
    """Reads lines of a file and names those that are no records."""

    def __init__(self, path: Path, warn: Warn) -> None:
        self._path = path
        self._warn = warn
        self._fault_count = 0
        self._first_faults: list[str] = []

    def read(self, number: int, text: bytes) -> Line | None:
        """Return the record of a line, None for a line that is none.

        Raises:
            InputError: for a schema that this version does not know.
        """
        from steptime.records.reading import read_line

        try:
            return read_line(text)
        except InputError as error:
            raise InputError(f"{self._path}, line {number}: {error}") from error
        except ValueError as error:
            if not text.endswith(b"\n"):  # a whole record may lack only its end
                size = f"{len(text)} bytes"
                self._warn(f"{self._path}, line {number}: skipped a torn last line ({size})")
                return None
            self._fault_count += 1
            if self._fault_count <= MAX_NAMED_FAULTS:
                self._first_faults.append(f"line {number}: is no record ({error})")
            return None

    def report(self) -> None:
        """Warn of the lines that are no records, in one line."""
        if self._fault_count == 1:
            self._warn(f"{self._path}, {self._first_faults[0]}, left out")
        elif self._fault_count:
            faults = "; ".join(self._first_faults)
            dots = "; ..." if self._fault_count > MAX_NAMED_FAULTS else ""
            count = f"{self._fault_count:,} lines"
            self._warn(f"{self._path}: {count} are no records, left out: {faults}{dots}")

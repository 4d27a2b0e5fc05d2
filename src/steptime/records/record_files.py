"""The files of a folder of records: which they are, their lines, and each record once.

Files are `*.jsonl` and `*.jsonl.gz`, in the folder and in the folders below it. A record that
stands in two files, because a file was copied, counts once.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from steptime.core.errors import InputError, escape_controls
from steptime.core.progress import track_progress
from steptime.core.units import first_of
from steptime.records.record import hash_line

if TYPE_CHECKING:
    from steptime.records.reading import Line
    from steptime.records.record import Record

ENDINGS = (".jsonl", ".jsonl.gz")
SUBMISSION_FILE = "cells.jsonl"  # in the folder of a submission (`sweeps.cluster.submission`)
MAX_PRINTED_FAULTS = 5  # faulty lines of a file
MAX_PRINTED_FILES = 3  # files with copies
SPACED_SEPARATORS = (b'": ', b', "')  # of JSON as other programs write it
UTF_8_MARK = b"\xef\xbb\xbf"
UTF_16_BEGINS = (b"\xff\xfe", b"\xfe\xff", b"{\x00", b"\x00{")
UNREADABLE_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
Warn = Callable[[str], None]
RecordFile = BufferedReader | gzip.GzipFile


class StoredLine(NamedTuple):
    """A record's line.

    Attributes:
        place: where it begins in its folder, as if the files stood one behind the other [bytes].
        record_id: the identity of the record (`Record.record_id`); of a second equal line of stated
            values in a file `-2` follows, and so on.
        line: the checked values.
    """

    place: int
    record_id: str
    line: Line


def find_record_files(folder: Path) -> list[Path]:
    """Find the files of records in a folder and below, by file name (it begins with the time).

    Names that begin with a dot, such as the cache, and files of a scheduler's jobs beside the
    records are left out.
    """
    paths = []
    for parent, folders, names in os.walk(folder, onerror=_raise_error):
        is_submission_below = SUBMISSION_FILE in names and Path(parent) != folder
        if is_submission_below:  # files of a scheduler's jobs, which are no records
            folders.clear()  # `os.walk` goes into no folder below
            continue
        # In place, so that `os.walk` does not enter hidden folders.
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [
            Path(parent, name)
            for name in names
            if name.endswith(ENDINGS) and not name.startswith(".")
        ]
    # File names begin with the time of writing: records come in that order, whatever the folder.
    return sorted(paths, key=lambda path: (path.name, path))


def is_record_file(path: Path) -> bool:
    """Return whether a file is one of records, by the ending of its name."""
    return path.name.lower().endswith(ENDINGS)


def _raise_error(error: OSError) -> None:
    raise error


def open_record_file(path: Path) -> RecordFile:
    """Open a file of records for reading; one that ends in `.gz` is decompressed."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def identify_line(text: bytes) -> str:
    """Return the identity of the record of a line, whatever blanks stand between its values."""
    if any(separator in text for separator in SPACED_SEPARATORS):
        text = json.dumps(json.loads(text), separators=(",", ":")).encode()
    return hash_line(text)


def number_repeat(record_id: str, counts: Counter[str]) -> str:
    """Count a record among those with its identity; return the identity with this number.

    The first has no number; the second is `3f0c5a7e91b2d468-2`.
    """
    counts[record_id] += 1
    number = counts[record_id]
    return record_id if number == 1 else f"{record_id}-{number}"


def is_stated(line: Line) -> bool:
    """Return whether a record holds only values that somebody stated, without samples."""
    return line.origin != "predicted" and not any(
        quantity.samples for quantity in line.quantities.values()
    )


def describe_copies(copies: Counter[str]) -> str:
    """Describe copied records: `b.jsonl: 12 records are copies of others; each counts once`."""
    files = first_of(sorted(copies), MAX_PRINTED_FILES)
    number = copies.total()
    copies_text = "records are copies" if number > 1 else "record is a copy"
    return f"{files}: {number:,} {copies_text} of others; each counts once"


def read_record(paths: Sequence[Path], starts: Sequence[int], place: int) -> Record:
    """Read the record whose line begins at a place of the folder; see `StoredLine`."""
    from steptime.records.reading import record_from_json

    # `place` and `starts` are offsets in bytes, as if the files were concatenated.
    file_number = bisect_right(starts, place, hi=len(paths)) - 1
    with open_record_file(paths[file_number]) as file:
        file.seek(place - starts[file_number])
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
        self._ids = set[str]()
        self._copies = Counter[str]()

    def __iter__(self) -> Iterator[StoredLine]:
        for path in track_progress(self.paths, "files"):
            yield from self._read_file(path)
        if self._copies:
            self._warn(describe_copies(self._copies))

    def _read_file(self, path: Path) -> Iterator[StoredLine]:
        """Yield the records of a file; faulty lines are named and left out."""
        faults = LineFaults(path, self._warn)
        id_counts = Counter[str]()
        place = self.starts[-1]  # offset of the line, as if all files were concatenated
        try:
            with open_record_file(path) as file:
                for line_number, text in enumerate(self._text_lines(path, file), start=1):
                    content = text.removeprefix(UTF_8_MARK) if line_number == 1 else text
                    line = faults.read(line_number, content)  # None for a line that is no record
                    if line is not None:
                        record_id = self._identify(line, content, id_counts)
                        if self._is_new(record_id, path):
                            yield StoredLine(place, record_id, line)
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

    def _identify(self, line: Line, text: bytes, counts: Counter[str]) -> str:
        """Return the identity of a record; `counts` are of the records of its file.

        Equal lines of stated values in one file are repeats, not copies: two of five repeats may
        be of the same time. Equal samples or predictions are copies wherever they stand.
        """
        record_id = identify_line(text)  # a hash: equal lines have one id
        # Two stated values without samples may be equal by chance, so each gets an id of its own.
        # Equal samples or predictions can only be copies.
        return number_repeat(record_id, counts) if is_stated(line) else record_id

    def _is_new(self, record_id: str, path: Path) -> bool:
        """Return whether a record was not read before, and count it as a copy if it was."""
        if record_id in self._ids:
            self._copies[str(path)] += 1
            return False
        self._ids.add(record_id)
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
            # Only the last line can lack its line break: its writer was killed while it wrote.
            if not text.endswith(b"\n"):
                size = f"{len(text)} bytes"
                self._warn(f"{self._path}, line {number}: skipped a torn last line ({size})")
                return None
            self._fault_count += 1
            if self._fault_count <= MAX_PRINTED_FAULTS:
                self._first_faults.append(f"line {number}: is no record ({error})")
            return None

    def report(self) -> None:
        """Warn of the lines that are no records, in one line."""
        if self._fault_count == 1:
            self._warn(f"{self._path}, {self._first_faults[0]}, left out")
        elif self._fault_count:
            faults = "; ".join(self._first_faults)
            dots = "; ..." if self._fault_count > MAX_PRINTED_FAULTS else ""
            count = f"{self._fault_count:,} lines"
            self._warn(f"{self._path}: {count} are no records, left out: {faults}{dots}")

"""The records of a folder, or records in memory, as checked lines with their places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from steptime.core.errors import InputError
from steptime.core.progress import report_progress
from steptime.records import store
from steptime.records.record import Record
from steptime.records.record_files import FolderLines, StoredLine, number_repeat

PROGRESS_RECORDS = 20_000  # between two reports
Source = tuple[str, Path | Sequence[Record]]  # a folder's name, and its path or its records


class FolderSource:
    """The records of a folder, or records in memory.

    Attributes:
        rank: the number of the folder in the order of reading.
        name: its name.
        folder: its path, or that of a file of records; None for records in memory.
        paths: its files.
        size_bytes: the size of its files; 0 for records in memory.
        starts: where each file begins, and the end of the last one; complete after reading.
        warnings: lines about records that were left out; complete after reading.
    """

    def __init__(self, rank: int, name: str, content: Path | Sequence[Record]) -> None:
        self.rank = rank
        self.name = name
        self.folder: Path | None = None
        self.paths: list[Path] = []
        self.starts: Sequence[int] = [0, 0]  # where each file begins, and the end of the last one
        self.warnings: list[str] = []
        self._records: Sequence[Record] = []
        if isinstance(content, Path):
            self.folder = content
            self.paths = store.paths(content)
        else:
            self._records = content
            self.starts = [0, len(content)]  # the place of a record in memory is its number
        self.size_bytes = sum(path.stat().st_size for path in self.paths)

    def lines(self) -> Iterator[StoredLine]:
        """Yield the records; raises `InputError` if no line of the files is a record."""
        if self.folder is None:
            yield from _lines_of_records(self._records)
            return
        self.warnings = []
        file_lines = FolderLines(self.paths, self.warnings.append)
        is_empty = True
        with store.readable(self.folder):
            for stored in self._report_progress(file_lines):
                is_empty = False
                yield stored
        if is_empty and self.size_bytes:  # an empty file is no fault
            raise InputError(
                "; ".join([f"{self.folder}: {store.NO_RECORD_LINE}", *self.warnings[:1]])
            )
        self.starts = file_lines.starts

    def _report_progress(self, lines: FolderLines) -> Iterator[StoredLine]:
        total_mb = self.size_bytes >> 20  # 0, a small folder, is read without a report
        for number, stored in enumerate(lines):
            if total_mb and number % PROGRESS_RECORDS == 0:
                report_progress("MB of records read", min(stored.place >> 20, total_mb), total_mb)
            yield stored


def _lines_of_records(records: Sequence[Record]) -> Iterator[StoredLine]:
    """Yield records in memory as lines; their places are their numbers."""
    from steptime.records.reading import line_from

    counts = Counter[str]()
    for number, record in enumerate(records):
        record_id = number_repeat(record.record_id, counts)
        yield StoredLine(number, record_id, line_from(record))


def open_source(rank: int, name: str, content: Path | Sequence[Record]) -> FolderSource:
    """Open a folder or a file of records, or records in memory.

    Raises:
        InputError: if a path is no folder of records.
    """
    if isinstance(content, Path):
        with store.readable(content):
            return FolderSource(rank, name, content)
    return FolderSource(rank, name, content)

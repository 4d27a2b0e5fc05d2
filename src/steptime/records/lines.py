"""The whole lines of a file of records, as they are at one moment."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec

from steptime.core.errors import InputError
from steptime.records import store
from steptime.records.reading import line_from_json, with_key

BLOCK = 1 << 22
PIECE = 1 << 26  # bytes of lines that are read at once, by one of several threads


def stamp_of(path: Path) -> list[int]:
    """Return what changes with every write to a file: size, times, and which file it is."""
    told = path.stat()
    return [told.st_size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino]


@dataclass(frozen=True)
class FilePiece:
    """Some lines of a file: how many are `before` it, their number, the bytes that they are."""

    path: Path
    before: int
    number: int
    start: int
    end: int


def checked(pieces: Iterable[tuple[FilePiece, store.Faults]], to: Path) -> int:
    """Write the records of lines to a file as the database takes them; return the longest line.

    A line that is no record is among the faults of its file, and `{}` in its place. Raises
    `InputError` for a newer schema.
    """
    encode, longest = msgspec.json.Encoder().encode, 2
    with to.open("wb") as part:
        for piece, faults in pieces:
            with piece.path.open("rb") as file:
                file.seek(piece.start)
                for number, line in enumerate(islice(file, piece.number), piece.before + 1):
                    try:
                        told = encode(with_key(line_from_json(line)))
                    except InputError as error:
                        raise InputError(f"{piece.path}, line {number}: {error}") from error
                    except ValueError as error:
                        faults.add(number, error)
                        told = b"{}"
                    longest = max(longest, len(told))
                    part.write(told + b"\n")
    return longest


class FileLines:
    """The whole lines of a file as it is now: how many, where each `MARKED`-th begins, their `end`.

    `torn` is the number and the size of a last line that was skipped.
    """

    def __init__(self, path: Path) -> None:
        import numpy as np

        self.path, self.stamp = path, stamp_of(path)
        self.number, self.end = 0, 0
        self.torn: list[int] | None = None
        self.marks = [0]
        digest, tail, start = hashlib.blake2b(digest_size=16), b"", 0
        with path.open("rb") as file:
            for block in _blocks(file, self.stamp[0]):
                digest.update(block)
                ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + start + 1
                self.marks += ends[-(self.number + 1) % store.MARKED :: store.MARKED].tolist()
                self.number += len(ends)
                self.end = int(ends[-1]) if len(ends) else self.end
                start += len(block)
            if start > self.end:
                file.seek(self.end)
                tail = file.read(start - self.end)
        self.hash = digest.hexdigest()
        if tail and store.is_record(tail):  # it may lack only its end
            self.number, self.end = self.number + 1, start
        elif tail:
            self.torn = [self.number + 1, len(tail)]

    def pieces(self) -> list[FilePiece]:
        """Return the lines in pieces of about the same size: one, or an even number of them."""
        starts = [mark for mark in self.marks if mark < self.end]
        if not starts:
            return [FilePiece(self.path, 0, 0, 0, 0)]
        number = min(len(starts), -(-self.end // PIECE))
        number += number % 2 if number > 1 else 0
        at = sorted({len(starts) * one // number for one in range(number)})
        lines = [*(one * store.MARKED for one in at), self.number]
        ends = [*(starts[one] for one in at), self.end]
        return [
            FilePiece(self.path, line, after - line, start, end)
            for (line, after), (start, end) in zip(pairwise(lines), pairwise(ends), strict=True)
        ]


def _blocks(file: Any, size: int) -> Iterator[bytes]:
    while size and (block := file.read(min(BLOCK, size))):
        size -= len(block)
        yield block

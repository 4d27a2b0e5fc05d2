"""What lies at a path, file by file, as bytes: a file, a folder, a tar archive, gzip of each.

Archives are read, never unpacked, so their names may be whatever they are. What cannot be read, or
is too large, is an `Unread` with its reason.
"""

import gzip
import hashlib
import io
import re
import stat
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO

from steptime.core.errors import InputError, escape_controls
from steptime.core.tables.json_rows import json_rows
from steptime.core.tables.table_files import JSON_ENDINGS, decode
from steptime.core.tables.table_layout import TableLayout, find_headings
from steptime.hardware import device_words
from steptime.records.record import Record

LARGEST_BYTES = 64_000_000  # of one file, unpacked
LARGEST_TRACE_BYTES = 512_000_000  # of one that names its list of events in its heading
TRACE_HEADING_BYTES = 1_000_000
TRACE = b'"traceEvents"'
GZIP_MARK = b"\x1f\x8b"
MAX_ARCHIVE_BYTES = 2_000_000_000  # of all members of an archive
MAX_FILES = 100_000
HEAD_BYTES = 16_384

Stream = IO[bytes] | gzip.GzipFile
_BROKEN = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError)


@dataclass(frozen=True)
class RecordSource:
    """One file's content; `name` is its path in the folder or in the `archive`.

    What is packed alone is an archive too, of one file: `x` in `x.gz`.
    """

    name: str
    content: bytes
    archive: str = ""

    @cached_property
    def sha256(self) -> str:
        """The hash of the content."""
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def head(self) -> str:
        """The first characters, by which a format is recognised."""
        return decode(self.content[:HEAD_BYTES], is_complete=False)

    @cached_property
    def is_json(self) -> bool:
        """Whether it is JSON, by its name or its first character."""
        return self.name.lower().endswith(JSON_ENDINGS) or self.head.lstrip()[:1] in ("{", "[")

    def contains(self, text: str) -> bool:
        """Return whether a text stands in the file, whatever its encoding."""
        return text.encode() in self.content or text.encode("utf-16-le") in self.content

    def columns_under(self, layout: TableLayout) -> set[str]:
        """Return the columns of a table by which it is recognised; none of another file."""
        if self.is_json:
            # Parsing is slow: first look whether the innermost key of each column (`a.b`: `b`)
            # stands anywhere in the text.
            has_all_keys = all(
                name.rpartition(".")[2].encode() in self.content for name in layout.columns
            )
            return self._json_columns(layout) if has_all_keys else set()
        headings = find_headings(self.head, layout, self.name.lower().endswith(".tsv"))
        return set(headings.columns) if headings else set()

    def _json_columns(self, layout: TableLayout) -> set[str]:
        """Return the names of the values of all rows of JSON; none if it cannot be read."""
        names: set[str] = set()
        try:
            for _, row in json_rows(self.text, self.name, self.name, layout):
                if not isinstance(row, InputError):
                    names |= row.keys()
                    break  # all rows have the same names
        except InputError:
            return set()
        return names

    @property
    def tail(self) -> str:
        """The last characters."""
        return self.content[-HEAD_BYTES:].decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """The content as text, by its byte order mark, else UTF-8 or Windows-1252."""
        return decode(self.content)


@dataclass(frozen=True)
class Unread:
    """A file, or a line or entry of one, that became no record, and why."""

    file: str
    line: int | str | None
    reason: str


@dataclass(frozen=True)
class Reading:
    """The records that a reader makes of a source, the entries it did not read, and remarks."""

    records: tuple[Record, ...] = ()
    unread: tuple[Unread, ...] = ()
    notes: tuple[str, ...] = ()


def list_sources(path: Path) -> Iterator[RecordSource | Unread]:
    """Yield every file at a path, by name; raises `InputError` if nothing is there."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if not path.is_dir():
        yield from _read_file(path, escape_controls(path.name))
        return
    files = sorted(file for file in path.rglob("*") if file.is_symlink() or not file.is_dir())
    for number, file in enumerate(files, start=1):
        name = escape_controls(file.relative_to(path).as_posix())
        if number > MAX_FILES:
            yield Unread(name, line=None, reason=f"not looked at: more than {MAX_FILES} files")
            return
        yield from _read_file(file, name)


def _read_file(path: Path, name: str) -> Iterator[RecordSource | Unread]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            yield Unread(name, line=None, reason="is no plain file")
            return
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            file.seek(0)
            yield from _read_opened(file, head, name)
    except _BROKEN as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        yield Unread(name, line=None, reason=f"cannot be read: {reason}")


def _read_opened(file: Stream, head: bytes, name: str) -> Iterator[RecordSource | Unread]:
    is_gzip = head.startswith(GZIP_MARK)
    if is_gzip:  # a packed file, or a packed tar archive
        file = gzip.GzipFile(fileobj=file)
        head = file.read(HEAD_BYTES)
        file.seek(0)
    if _is_tar(head):
        yield from _read_archive(file, archive_name=name)
    elif is_gzip:
        yield _read_content(file, _without_gz(name), archive=name)
    else:
        yield _read_content(file, name)


def _is_tar(head: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def _read_archive(file: Stream, archive_name: str) -> Iterator[RecordSource | Unread]:
    total_bytes = 0
    with tarfile.open(fileobj=file, mode="r|") as archive:  # as a stream, member by member
        for number, member in enumerate(archive, start=1):
            name = escape_controls(member.name)
            total_bytes += member.size
            if number > MAX_FILES or total_bytes > MAX_ARCHIVE_BYTES:
                yield Unread(name, line=None, reason="not looked at: the archive holds too much")
                return
            if member.isdir():
                continue
            content = archive.extractfile(member) if member.isreg() else None
            if content is None:
                yield Unread(name, line=None, reason="is no plain file")
            else:
                yield _read_content(content, name, archive_name)


def _read_content(file: Stream, name: str, archive: str = "") -> RecordSource | Unread:
    content = file.read(LARGEST_BYTES + 1)  # one byte too many tells a file that is too large
    max_bytes = LARGEST_BYTES
    is_trace = TRACE in content[:TRACE_HEADING_BYTES]  # a profiler's trace may be larger
    if len(content) > max_bytes and is_trace:
        max_bytes = LARGEST_TRACE_BYTES
        content += file.read(max_bytes + 1 - len(content))
    if len(content) > max_bytes:
        return Unread(name, line=None, reason=f"holds more than {max_bytes} bytes")
    is_gzip_member = content.startswith(GZIP_MARK)
    if is_gzip_member:
        unpacked = gzip.GzipFile(fileobj=io.BytesIO(content))
        return _read_content(unpacked, _without_gz(name), archive)
    if archive and _is_tar(content):
        return Unread(name, line=None, reason="an archive within an archive")
    return RecordSource(name, content, archive)


def _without_gz(name: str) -> str:
    """Return a name without the ending of gzip, in letters of either case."""
    return name[:-3] if name.lower().endswith(".gz") else name


@lru_cache(maxsize=1024)
def platform_of(product: str) -> str:
    """Return the device that the catalog knows by a word, else the word itself in small letters."""
    word = re.sub(r"[^a-z0-9._]+", "-", product.lower()).strip("-")
    return device_words.platform_of(product) or word or "unknown"

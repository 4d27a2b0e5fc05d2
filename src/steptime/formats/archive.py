"""Read one member of a ZIP archive, after a check of its sizes."""

import struct
import zlib
from collections.abc import Callable

from steptime.core.errors import InputError, shorten
from steptime.formats import Source

MAX_DIRECTORY_BYTES = 20_000_000  # some 200,000 members
MAX_MEMBER_BYTES = 64_000_000
_END_RECORD = struct.Struct("<4s4H2LH")  # "end of central directory", APPNOTE.TXT 4.3.16
_END_MAGIC = b"PK\x05\x06"
_DIRECTORY_SIZE_FIELD = 5  # of the unpacked end record
_ZIP64_RECORD = struct.Struct("<4sQ2H2L4Q")  # the same for large archives, APPNOTE.TXT 4.3.14
_ZIP64_MAGIC = b"PK\x06\x06"
_ZIP64_DIRECTORY_SIZE_FIELD = 8
_MAX_COMMENT_BYTES = 1 << 16  # of the comment behind the end record
_ZIP64_SEARCH_BYTES = 1 << 10  # before the end record; only a locator of 20 bytes lies between
_ARCHIVE_ERRORS = (zlib.error, struct.error, OSError, EOFError, ValueError)


def _read_directory_bytes(source: Source) -> int:
    """Read the stated size of the archive's list of members; raises `ValueError` without one."""
    content = source.content
    search_start = max(0, len(content) - _END_RECORD.size - _MAX_COMMENT_BYTES)
    end_offset = content.rfind(_END_MAGIC, search_start)
    if end_offset < 0:
        raise ValueError("no list of members at its end")
    end_record = _END_RECORD.unpack(content[end_offset : end_offset + _END_RECORD.size])
    directory_bytes = int(end_record[_DIRECTORY_SIZE_FIELD])
    # a large archive states the size in a ZIP64 record, right before the end record
    zip64_offset = content.rfind(_ZIP64_MAGIC, max(0, end_offset - _ZIP64_SEARCH_BYTES), end_offset)
    if zip64_offset >= 0:
        zip64_record = _ZIP64_RECORD.unpack(
            content[zip64_offset : zip64_offset + _ZIP64_RECORD.size]
        )
        directory_bytes = max(directory_bytes, zip64_record[_ZIP64_DIRECTORY_SIZE_FIELD])
    # the list lies before the end record: a larger stated size is wrong
    return min(directory_bytes, end_offset)


def read_member(source: Source, matches: Callable[[str], object], label: str) -> bytes:
    """Read the only member of an archive whose name matches.

    Args:
        source: the archive.
        matches: whether a member of this name is the right one.
        label: the member, for messages.

    Raises:
        InputError: for no such member, several, one that is too large, and a broken archive.
    """
    from zipfile import BadZipFile, ZipFile

    place = f"model {shorten(source.path)}"
    try:
        if _read_directory_bytes(source) > MAX_DIRECTORY_BYTES:
            raise InputError(f"{place}: its list of members is larger than {MAX_DIRECTORY_BYTES}")
        with ZipFile(source.path) as archive:
            members = [member for member in archive.infolist() if matches(member.filename)]
            if len(members) != 1:
                raise InputError(f"{place}: holds {'several' if members else 'no'} {label}")
            size = members[0].file_size
            if size > MAX_MEMBER_BYTES:
                raise InputError(f"{place}: {label} of {size} bytes, above {MAX_MEMBER_BYTES}")
            with archive.open(members[0]) as file:
                return file.read(MAX_MEMBER_BYTES)
    except (*_ARCHIVE_ERRORS, BadZipFile, NotImplementedError, RuntimeError) as error:
        # shortened, without the quotes
        reason = shorten(str(error) or type(error).__name__)[1:-1]
        raise InputError(f"{place}: not a ZIP archive that can be read: {reason}") from None

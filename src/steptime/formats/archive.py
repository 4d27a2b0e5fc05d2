"""One member of a ZIP archive, its sizes checked before anything is unpacked."""

import struct
import zlib
from collections.abc import Callable

from steptime.core.errors import InputError, shorten
from steptime.formats import Source

MOST_DIRECTORY_BYTES = 20_000_000  # some 200,000 members
LARGEST_MEMBER_BYTES = 64_000_000
_END, _END64, _COMMENT_BYTES = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), 1 << 16
_WRONG = (zlib.error, struct.error, OSError, EOFError, ValueError)


def _directory_bytes(source: Source) -> int:
    """Return how large the list of members says that it is; raises `ValueError` without one."""
    content = source.content
    at = content.rfind(b"PK\x05\x06", max(0, len(content) - _END.size - _COMMENT_BYTES))
    if at < 0:
        raise ValueError("no list of members at its end")
    sizes: list[int] = [_END.unpack(content[at : at + _END.size])[5]]
    wide = content.rfind(b"PK\x06\x06", max(0, at - (1 << 10)), at)
    if wide >= 0:
        sizes.append(_END64.unpack(content[wide : wide + _END64.size])[8])
    return min(max(sizes), at)


def read_member(source: Source, wanted: Callable[[str], object], what: str) -> bytes:
    """Return the bytes of the only member whose name is `wanted`, `what` in errors."""
    from zipfile import BadZipFile, ZipFile

    place = f"model {shorten(source.path)}"
    try:
        if _directory_bytes(source) > MOST_DIRECTORY_BYTES:
            raise InputError(f"{place}: its list of members is larger than {MOST_DIRECTORY_BYTES}")
        with ZipFile(source.path) as archive:
            found = [one for one in archive.infolist() if wanted(one.filename)]
            if len(found) != 1:
                raise InputError(f"{place}: holds {'several' if found else 'no'} {what}")
            if found[0].file_size > LARGEST_MEMBER_BYTES:
                size = found[0].file_size
                raise InputError(f"{place}: {what} of {size} bytes, above {LARGEST_MEMBER_BYTES}")
            with archive.open(found[0]) as opened:
                return opened.read(LARGEST_MEMBER_BYTES)
    except (*_WRONG, BadZipFile, NotImplementedError, RuntimeError) as error:
        reason = shorten(str(error) or type(error).__name__)[1:-1]
        raise InputError(f"{place}: not a ZIP archive that can be read: {reason}") from None

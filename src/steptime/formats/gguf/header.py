"""The header of a GGUF file: its metadata and its tensors, read without the weights.

Layout: docs/gguf.md of ggml-org/ggml, versions 2 and 3.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from steptime.core.errors import InputError, shorten
from steptime.formats import Source, open_source
from steptime.formats.gguf.types import TensorType, types_by_number

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_TENSORS = 100_000
MAX_ENTRIES = 10_000
MAX_AXES = 8
MAX_VALUES = 64  # of an array that is read: longer ones are vocabularies
SPLIT_NAME = "-{number:05}-of-{count:05}.gguf"
_STRING_TYPE = 8
_ARRAY_TYPE = 9
_NUMBER_LAYOUTS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_UINT64 = _NUMBER_LAYOUTS[10]
_UINT32 = _NUMBER_LAYOUTS[4]


class LongArray(NamedTuple):
    """An array of a file of which only the length is kept, such as a vocabulary."""

    length: int


class FileTensor(NamedTuple):
    """A tensor of a file.

    Args:
        name: its name, such as `blk.0.attn_q.weight`.
        shape: its axes, that of a row last.
        type: its type.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType

    @property
    def size_bytes(self) -> int:
        """The bytes of its numbers."""
        return self.type.tensor_bytes(self.shape)


@dataclass(frozen=True)
class Header:
    """The header of a file, or of all parts of a split one.

    Args:
        metadata: the values by key; of long arrays the length.
        tensors: the tensors.
        end_byte: the byte behind the header of the first part.
    """

    metadata: Mapping[str, Any]
    tensors: tuple[FileTensor, ...]
    end_byte: int

    @property
    def architecture(self) -> str:
        """The name of its architecture, "" without one."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def weights_bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(tensor.size_bytes for tensor in self.tensors)


class _Reader:
    """A position in the bytes of a file; raises `ValueError` for what cannot be."""

    def __init__(self, content: Any) -> None:
        self._content = content
        self._size = len(content)
        self.position = 0

    def read_number(self, layout: struct.Struct) -> Any:
        """Return the number at the position, and move behind it."""
        start = self._skip_bytes(layout.size)
        return layout.unpack(self._content[start : start + layout.size])[0]

    def read_text(self) -> str:
        """Return the text at the position, and move behind it."""
        length = self.read_number(_UINT64)
        start = self._skip_bytes(length)
        return bytes(self._content[start : start + length]).decode("utf-8", "replace")

    def read_value(self, type_number: int) -> Any:
        """Return the value of a type at the position; of a long array its length."""
        if type_number == _STRING_TYPE:
            return self.read_text()
        if type_number == _ARRAY_TYPE:
            return self._read_array()
        if type_number not in _NUMBER_LAYOUTS:
            raise ValueError(f"value type {type_number} is not known")
        return self.read_number(_NUMBER_LAYOUTS[type_number])

    def _read_array(self) -> Any:
        type_number = self.read_number(_UINT32)
        length = self.read_number(_UINT64)
        if length <= MAX_VALUES and type_number != _ARRAY_TYPE:
            return [self.read_value(type_number) for _ in range(length)]
        if type_number in _NUMBER_LAYOUTS:  # a long array of numbers is skipped
            self._skip_bytes(length * _NUMBER_LAYOUTS[type_number].size)
            return LongArray(length)
        if type_number != _STRING_TYPE or length > self._size:
            raise ValueError(f"an array of {length} values of type {type_number}")
        for _ in range(length):  # and one of texts, text by text
            text_length = self.read_number(_UINT64)
            self._skip_bytes(text_length)
        return LongArray(length)

    def _skip_bytes(self, count: int) -> int:
        """Move behind so many bytes, and return the position before."""
        start = self.position
        if count > self._size - start:
            raise ValueError(f"ends at byte {self._size} inside of its header")
        self.position = start + count
        return start


def read_header(source: Source) -> Header:
    """Read the header of a file, and those of the other parts of a split file.

    Raises:
        InputError: for what is no GGUF file, and for a part that is absent.
    """
    header: Header = source.memoise(read_header, lambda: _read_parts(source))
    return header


def identity(source: Source) -> bytes:
    """Return the bytes of a file that say its network: the header."""
    return bytes(source.content[: read_header(source).end_byte])


def _read_parts(source: Source) -> Header:
    """Read the headers of all parts of a file, which lie beside the first."""
    header = _read_part(source)
    part_count = header.metadata.get("split.count", 0)
    if not isinstance(part_count, int) or part_count < 2:
        return header
    first_ending = SPLIT_NAME.format(number=1, count=part_count)
    if not source.path.endswith(first_ending):
        reason = f"a part of {part_count}; name ...{first_ending}"
        raise InputError(f"model {shorten(source.path)}: {reason}")
    common_path = source.path.removesuffix(first_ending)
    tensors = list(header.tensors)
    for number in range(2, part_count + 1):
        part_path = common_path + SPLIT_NAME.format(number=number, count=part_count)
        if not Path(part_path).is_file():
            reason = f"part {shorten(part_path)} is not there"
            raise InputError(f"model {shorten(source.path)}: {reason}")
        tensors += _read_part(open_source(part_path)).tensors
    return Header(header.metadata, tuple(tensors), header.end_byte)


def _read_part(source: Source) -> Header:
    """Read the header of one file; raises `InputError`."""
    place = f"model {shorten(source.path)}"
    if bytes(source.content[:4]) != MAGIC:
        raise InputError(f"{place}: no GGUF file: it does not begin with GGUF")
    reader = _Reader(source.content)
    reader.position = len(MAGIC)
    try:
        return _parse_header(reader)
    except (ValueError, OverflowError, struct.error) as error:
        raise InputError(f"{place}: not a GGUF file that can be read: {error}") from None


def _parse_header(reader: _Reader) -> Header:
    """Parse what stands behind the magic bytes; raises `ValueError`."""
    version = reader.read_number(_UINT32)
    if version not in VERSIONS:
        raise ValueError(f"version {version}, not 2 or 3")
    tensor_count = reader.read_number(_UINT64)
    entry_count = reader.read_number(_UINT64)
    if tensor_count > MAX_TENSORS or entry_count > MAX_ENTRIES:
        raise ValueError(f"{tensor_count} tensors and {entry_count} values of metadata")
    metadata = {}
    for _ in range(entry_count):
        key = reader.read_text()
        metadata[key] = reader.read_value(reader.read_number(_UINT32))
    tensors = tuple(_parse_tensor(reader) for _ in range(tensor_count))
    return Header(metadata, tensors, reader.position)


def _parse_tensor(reader: _Reader) -> FileTensor:
    """Parse the name, the axes and the type of a tensor; raises `ValueError`."""
    name = reader.read_text()
    axis_count = reader.read_number(_UINT32)
    if not 1 <= axis_count <= MAX_AXES:
        raise ValueError(f"tensor {shorten(name)} has {axis_count} axes")
    sizes_from_row = [reader.read_number(_UINT64) for _ in range(axis_count)]  # innermost first
    type_number = reader.read_number(_UINT32)
    _offset = reader.read_number(_UINT64)  # of the values, which are not read
    tensor_type = types_by_number().get(type_number)
    if tensor_type is None:
        raise ValueError(f"tensor {shorten(name)}: type {type_number} is not known")
    return FileTensor(name, tuple(reversed(sizes_from_row)), tensor_type)

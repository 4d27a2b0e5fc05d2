"""The bytes of an ONNX file without those of its weights: `onnx` parses no more.

Format: https://onnx.ai/onnx/repo-docs/IR.html, `onnx.proto`; Protocol Buffers, "Encoding"
(https://protobuf.dev/programming-guides/encoding).
"""

import math
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from steptime.core.errors import InputError, shorten
from steptime.core.toml_files import packaged
from steptime.formats import Source
from steptime.formats.export.protobuf import Value, message

try:
    from onnx import TensorProto
except ModuleNotFoundError:
    raise InputError("an ONNX file is read by onnx: pip install 'steptime[onnx]'") from None

MAX_VALUES = 16_384  # elements of a constant whose values are read
MAX_FLOATS = 16  # a tensor of more floats is a weight, and its values are not read
MAX_FIELDS = 4_000_000  # of all messages of a file
MAX_BYTES = 64_000_000  # of a file without its weights
MAX_DEPTH = 24  # of nested messages
MAX_RANK = 16
MAX_SIZE = 2**53  # elements of a tensor: sizes stay exact as floats
MAX_NAME_IN_MESSAGE = 60
IN_OTHER_FILE = 1  # `TensorProto.data_location` of values outside of the file
DTYPES: Mapping[int, tuple[str, float, bool]] = {  # ONNX's type -> name, bytes, whether it is read
    int(number): tuple(row) for number, row in packaged("onnx.toml")["types"].items()
}
_NESTED_FIELDS = {  # by kind of message: the fields in which weights may lie -> their kind
    "model": {7: "graph", 25: "function"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph"},
}
_RAW_DATA = 9
_VALUE_FIELDS = (4, 5, 7, _RAW_DATA, 10, 11)  # the fields of a tensor that may hold its values
_VARINT, _LENGTH_DELIMITED = 0, 2  # wire types
_FIXED_WIDTHS = {1: 8, 5: 4}  # bytes of the other wire types
MAX_VARINT_BITS = 70  # ten bytes of seven bits
Span = tuple[int, int]  # the first byte, and that after the last


class ValueField(NamedTuple):
    """A field of a tensor that holds values: its number, and the offsets of its content."""

    number: int
    start: int
    end: int


class NoModelError(ValueError):
    """Bytes that are no ONNX file, or one beyond what is read; the message says which."""


def is_read(tensor: TensorProto) -> bool:
    """Return whether the values of a constant are read: it is small, and in the file itself."""
    dtype, _, readable = DTYPES.get(tensor.data_type, ("text", 0, False))
    limit = MAX_FLOATS if "float" in dtype else MAX_VALUES
    return readable and tensor.data_location == 0 and math.prod(tensor.dims) <= limit


@dataclass
class WeightlessCopy:
    """Copies the bytes of a file without those of its weights, whose spans are `unread`.

    `field_count` and `copied_bytes` count towards the limits on a file.
    """

    source: Source
    unread: list[Span] = field(default_factory=list)
    field_count: int = 0
    copied_bytes: int = 0

    def read_varint(self, offset: int, end: int) -> tuple[int, int]:
        """Return the integer of up to 64 bits at `offset`, and the offset after it."""
        content: bytes | mmap.mmap = self.source.content
        if offset < end and content[offset] < 0x80:  # one byte, as most are
            return content[offset], offset + 1
        value = 0
        shift = 0
        while offset < end and shift < MAX_VARINT_BITS:
            byte = content[offset]
            offset += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, offset
            shift += 7
        raise NoModelError(f"a number at byte {offset} has no end")

    def fields(self, offset: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield the fields of the message from `offset` to `end`.

        Each is its number, its wire type, and three offsets: of its key, of its content, and after
        it. Plain tuples, since a file has many thousands.
        """
        while offset < end:
            self.field_count += 1
            if self.field_count > MAX_FIELDS:
                raise NoModelError(f"more than {MAX_FIELDS} fields")
            start = offset
            key, content = self.read_varint(start, end)
            number = key >> 3
            wire = key & 7
            if wire == _VARINT:
                _, offset = self.read_varint(content, end)
            else:
                length = _FIXED_WIDTHS.get(wire, -1)
                if wire == _LENGTH_DELIMITED:
                    length, content = self.read_varint(content, end)
                offset = content + length
                if length < 0 or number == 0 or offset > end:
                    raise NoModelError(f"field {number} at byte {content} ends after its message")
            yield number, wire, start, content, offset

    def copy(self, kind: str, offset: int, end: int, depth: int = 0) -> bytes:
        """Return the bytes of the message from `offset` to `end`, without those of weights.

        Args:
            kind: the kind of message, a key of `_NESTED_FIELDS`, or `tensor`.
            offset: its first byte.
            end: the byte after its last.
            depth: the number of messages around it.
        """
        if depth > MAX_DEPTH:
            raise NoModelError(f"messages nest deeper than {MAX_DEPTH}")
        nested_fields = _NESTED_FIELDS.get(kind, {})
        copied = bytearray()
        value_fields: list[ValueField] = []
        for number, wire, start, content, field_end in self.fields(offset, end):
            is_delimited = wire == _LENGTH_DELIMITED
            if is_delimited and number in nested_fields:
                inner = self.copy(nested_fields[number], content, field_end, depth + 1)
                copied += message((number, inner))
            elif is_delimited and kind == "tensor" and number in _VALUE_FIELDS:
                value_fields.append(ValueField(number, content, field_end))
            else:
                self._count_bytes(field_end - start)
                copied += self.source.content[start:field_end]
        if kind == "tensor":
            return bytes(copied) + self._copy_values(bytes(copied), value_fields)
        return bytes(copied)

    def _count_bytes(self, size: int) -> None:
        self.copied_bytes += size
        if self.copied_bytes > MAX_BYTES:
            raise NoModelError(f"more than {MAX_BYTES} bytes that are no weights")

    def _copy_values(self, header: bytes, value_fields: list[ValueField]) -> bytes:
        """Return the fields of a constant's values; of a weight nothing, its spans are noted."""
        tensor = TensorProto.FromString(header)
        sizes = [item.end - item.start for item in value_fields]
        raw_sizes = [item.end - item.start for item in value_fields if item.number == _RAW_DATA]
        self._check_tensor(tensor, raw_sizes, sum(sizes))
        if not is_read(tensor):
            if tensor.data_location == 0:
                self.unread += [(item.start, item.end) for item in value_fields]
            return b""
        self._count_bytes(sum(sizes))
        parts: list[tuple[int, Value]] = [
            (item.number, self.source.content[item.start : item.end]) for item in value_fields
        ]
        return message(*parts)

    def _check_tensor(self, tensor: TensorProto, raw_sizes: Sequence[int], length: int) -> None:
        """Raise `NoModelError` for a tensor that does not have as many bytes as its shape needs.

        Args:
            tensor: the tensor without its values.
            raw_sizes: bytes of its fields of raw data.
            length: bytes of all its values.
        """
        name = f"tensor {tensor.name[:MAX_NAME_IN_MESSAGE]!a}"
        shape = tuple(tensor.dims)
        size = math.prod(shape)
        has_sizes = all(0 <= n < MAX_SIZE for n in shape)
        if len(shape) > MAX_RANK or not has_sizes or size >= MAX_SIZE:
            raise NoModelError(f"{name}: of shape {shorten(list(shape))}")
        _, element_bytes, _ = DTYPES.get(tensor.data_type, ("text", 0, False))
        if tensor.data_location == IN_OTHER_FILE:
            self._check_location(tensor, name)
        elif raw_sizes and element_bytes:
            if raw_sizes[-1] != math.ceil(size * element_bytes):
                raise NoModelError(f"{name}: {raw_sizes[-1]} bytes for {shorten(list(shape))}")
        elif element_bytes:
            lists = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data)
            value_count = sum(map(len, (*lists, tensor.uint64_data)))
            if size > length + value_count:  # a value has at least one byte
                raise NoModelError(f"{name}: of shape {shorten(list(shape))} without values")

    def _check_location(self, tensor: TensorProto, name: str) -> None:
        """Raise `NoModelError` for weights outside of the file's folder; they are never opened."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        parts = location.replace("\\", "/").split("/")
        is_relative = "\0" not in location and not Path(location).is_absolute()
        if not location or not is_relative or ".." in parts:
            outside = f"its data lies outside of the folder, in {shorten(location)}"
            raise NoModelError(f"{name}: {outside}")
        path = Path(self.source.path)
        folder = path.absolute().parent
        # a file that is a link itself has its data beside the file that it leads to
        folders = (folder, Path(os.path.realpath(path)).parent)
        target = Path(os.path.realpath(folder / location))
        if not any(target.is_relative_to(os.path.realpath(folder)) for folder in folders):
            link = f"its data is a link out of the folder, {shorten(location)}"
            raise NoModelError(f"{name}: {link}")

"""An ONNX file without the bytes of its weights, which is all that `onnx` parses.

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
from steptime.core.toml_files import read_packaged_toml
from steptime.formats import Source
from steptime.formats.export.protobuf import CONTINUES, Value, encode_message

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


class ElementType(NamedTuple):
    """A type of a tensor's elements.

    Attributes:
        name: our name of it.
        size_bytes: of one element.
        is_readable: whether values of this type are read.
    """

    name: str
    size_bytes: float
    is_readable: bool


# stands for all types that are no numbers
TEXT = ElementType("text", size_bytes=0, is_readable=False)
DTYPES: Mapping[int, ElementType] = {  # by ONNX's number
    int(number): ElementType(*row)
    for number, row in read_packaged_toml("onnx.toml")["types"].items()
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
_UNKNOWN_WIDTH = -1  # of a wire type that protobuf does not have
MAX_VARINT_BITS = 70  # ten bytes of seven bits
# number, wire type, and three offsets: of the key, of the content, and behind it
WireField = tuple[int, int, int, int, int]
Span = tuple[int, int]  # the first byte, and that after the last


class ValueField(NamedTuple):
    """A field of a tensor that holds values: its number, and the offsets of its content."""

    number: int
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """The bytes of its content."""
        return self.end - self.start


class NoModelError(ValueError):
    """Bytes that are no ONNX file, or one beyond what is read; the message says which."""


def element_type(number: int) -> ElementType:
    """Return the type with a number of ONNX, `TEXT` for one that is no number."""
    return DTYPES.get(number, TEXT)


def is_read(tensor: TensorProto) -> bool:
    """Return whether the values of a constant are read: it is small, and in the file itself."""
    dtype = element_type(tensor.data_type)
    is_in_file = tensor.data_location == 0
    max_elements = MAX_FLOATS if "float" in dtype.name else MAX_VALUES
    return dtype.is_readable and is_in_file and math.prod(tensor.dims) <= max_elements


def _count_listed_values(tensor: TensorProto) -> int:
    """Return the number of values that stand in fields of their own, not packed into one."""
    lists = (
        *(tensor.float_data, tensor.int32_data, tensor.int64_data),
        *(tensor.double_data, tensor.uint64_data),
    )
    return sum(map(len, lists))


@dataclass
class WeightlessCopy:
    """Copies the bytes of a file without those of its weights, whose spans are `weight_spans`.

    `field_count` and `copied_bytes` count towards the limits on a file.
    """

    source: Source
    weight_spans: list[Span] = field(default_factory=list)
    field_count: int = 0
    copied_bytes: int = 0

    def read_varint(self, offset: int, end: int) -> tuple[int, int]:
        """Return the integer of up to 64 bits at `offset`, and the offset after it."""
        content: bytes | mmap.mmap = self.source.content
        if offset < end and content[offset] < CONTINUES:  # one byte, as most are
            return content[offset], offset + 1
        number = 0
        bits_read = 0
        while offset < end and bits_read < MAX_VARINT_BITS:
            byte = content[offset]
            offset += 1
            low_bits = byte & ~CONTINUES
            number |= low_bits << bits_read  # the lowest bits come first
            is_last_byte = byte < CONTINUES
            if is_last_byte:
                return number, offset
            bits_read += 7
        raise NoModelError(f"a number at byte {offset} has no end")

    def read_fields(self, offset: int, end: int) -> Iterator[WireField]:
        """Yield the fields of the message from `offset` to `end`.

        They are plain tuples, since a file has many thousands.
        """
        while offset < end:
            self.field_count += 1
            if self.field_count > MAX_FIELDS:
                raise NoModelError(f"more than {MAX_FIELDS} fields")
            key_start = offset
            key, content_start = self.read_varint(key_start, end)
            number = key >> 3  # a key is the number of the field and its wire type of three bits
            wire_type = key & 7
            if wire_type == _VARINT:
                _, offset = self.read_varint(content_start, end)
            else:
                length = _FIXED_WIDTHS.get(wire_type, _UNKNOWN_WIDTH)
                if wire_type == _LENGTH_DELIMITED:
                    length, content_start = self.read_varint(content_start, end)
                offset = content_start + length
                is_field = length != _UNKNOWN_WIDTH and number > 0
                if not is_field or offset > end:
                    place = f"field {number} at byte {content_start}"
                    raise NoModelError(f"{place} ends after its message")
            yield number, wire_type, key_start, content_start, offset

    def copy_without_weights(self, kind: str, offset: int, end: int, depth: int = 0) -> bytes:
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
        is_tensor = kind == "tensor"
        copied = bytearray()
        value_fields: list[ValueField] = []
        for number, wire_type, key_start, content_start, field_end in self.read_fields(offset, end):
            is_delimited = wire_type == _LENGTH_DELIMITED
            if is_delimited and number in nested_fields:
                nested_kind = nested_fields[number]
                nested_message = self.copy_without_weights(
                    nested_kind, content_start, field_end, depth + 1
                )
                copied += encode_message((number, nested_message))
            elif is_delimited and is_tensor and number in _VALUE_FIELDS:
                value_fields.append(ValueField(number, content_start, field_end))
            else:
                self._count_bytes(field_end - key_start)
                copied += self.source.content[key_start:field_end]
        header = bytes(copied)
        return header + self._copy_values(header, value_fields) if is_tensor else header

    def _count_bytes(self, size: int) -> None:
        self.copied_bytes += size
        if self.copied_bytes > MAX_BYTES:
            raise NoModelError(f"more than {MAX_BYTES} bytes that are no weights")

    def _copy_values(self, header: bytes, value_fields: list[ValueField]) -> bytes:
        """Return the fields of a constant's values; of a weight nothing, its spans are noted."""
        tensor = TensorProto.FromString(header)
        value_bytes = sum(value_field.size_bytes for value_field in value_fields)
        raw_sizes = [
            value_field.size_bytes
            for value_field in value_fields
            if value_field.number == _RAW_DATA
        ]
        self._check_tensor(tensor, raw_sizes, value_bytes)
        if is_read(tensor):  # a small constant, whose numbers may decide shapes
            self._count_bytes(value_bytes)
            fields: list[tuple[int, Value]] = [
                (value_field.number, self.source.content[value_field.start : value_field.end])
                for value_field in value_fields
            ]
            return encode_message(*fields)
        # The spans say which bytes of this file a copy without weights can do without. Values of a
        # tensor that lies in another file are no values, and are left out without a span.
        is_inline = tensor.data_location != IN_OTHER_FILE
        if is_inline:
            self.weight_spans += [
                (value_field.start, value_field.end) for value_field in value_fields
            ]
        return b""

    def _check_tensor(
        self, tensor: TensorProto, raw_sizes: Sequence[int], value_bytes: int
    ) -> None:
        """Raise `NoModelError` for a tensor that does not have as many bytes as its shape needs.

        Args:
            tensor: the tensor without its values.
            raw_sizes: bytes of its fields of raw data.
            value_bytes: bytes of all its values.
        """
        _check_shape(tensor)
        element_bytes = element_type(tensor.data_type).size_bytes
        if tensor.data_location == IN_OTHER_FILE:
            self._check_location(tensor)
        elif raw_sizes and element_bytes:
            _check_raw_size(tensor, raw_sizes[-1])  # of several fields the last one counts
        elif element_bytes:
            _check_value_count(tensor, value_bytes)

    def _check_location(self, tensor: TensorProto) -> None:
        """Raise `NoModelError` for weights outside of the file's folder; they are never opened."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if not _is_below_folder(location):
            outside = f"its data lies outside of the folder, in {shorten(location)}"
            raise NoModelError(f"{_tensor_label(tensor)}: {outside}")
        if not self._leads_into_folder(location):
            link = f"its data is a link out of the folder, {shorten(location)}"
            raise NoModelError(f"{_tensor_label(tensor)}: {link}")

    def _leads_into_folder(self, location: str) -> bool:
        """Return whether a path lies in the file's folder once all links are followed."""
        path = Path(self.source.path)
        folder = path.absolute().parent
        # a file that is a link itself has its data beside the file that it leads to
        folder_of_target = Path(os.path.realpath(path)).parent
        allowed_folders = (os.path.realpath(folder), os.path.realpath(folder_of_target))
        data_path = Path(os.path.realpath(folder / location))
        return any(map(data_path.is_relative_to, allowed_folders))


def _is_below_folder(location: str) -> bool:
    """Return whether a path is relative and never leaves the folder that it starts from."""
    is_relative = "\0" not in location and not Path(location).is_absolute()
    leaves_folder = ".." in location.replace("\\", "/").split("/")
    return location != "" and is_relative and not leaves_folder


def _tensor_label(tensor: TensorProto) -> str:
    """Return the start of a message about a tensor."""
    return f"tensor {tensor.name[:MAX_NAME_IN_MESSAGE]!a}"


def _check_shape(tensor: TensorProto) -> None:
    """Raise `NoModelError` for a shape with a size below 0, or of too many axes or elements."""
    has_valid_sizes = all(0 <= size < MAX_SIZE for size in tensor.dims)
    is_too_large = len(tensor.dims) > MAX_RANK or math.prod(tensor.dims) >= MAX_SIZE
    if is_too_large or not has_valid_sizes:
        shape_text = shorten(list(tensor.dims))
        raise NoModelError(f"{_tensor_label(tensor)}: of shape {shape_text}")


def _check_raw_size(tensor: TensorProto, raw_bytes: int) -> None:
    """Raise `NoModelError` if raw data has other than the bytes that the shape needs."""
    element_bytes = element_type(tensor.data_type).size_bytes
    if raw_bytes != math.ceil(math.prod(tensor.dims) * element_bytes):
        shape_text = shorten(list(tensor.dims))
        raise NoModelError(f"{_tensor_label(tensor)}: {raw_bytes} bytes for {shape_text}")


def _check_value_count(tensor: TensorProto, value_bytes: int) -> None:
    """Raise `NoModelError` if values outside of raw data are fewer than the shape needs.

    Such a value has at least one byte in a packed field, or is an entry of a list. It holds several
    elements of less than a byte.
    """
    element_bytes = element_type(tensor.data_type).size_bytes
    needed_values = math.ceil(math.prod(tensor.dims) * min(1, element_bytes))
    if needed_values > value_bytes + _count_listed_values(tensor):
        shape_text = shorten(list(tensor.dims))
        raise NoModelError(f"{_tensor_label(tensor)}: of shape {shape_text} without values")

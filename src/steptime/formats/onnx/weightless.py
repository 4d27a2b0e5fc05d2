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

from steptime.core.errors import InputError, shorten
from steptime.core.toml_files import packaged
from steptime.formats import Source
from steptime.formats.export.protobuf import Value, message

try:
    from onnx import TensorProto
except ModuleNotFoundError:
    raise InputError("an ONNX file is read by onnx: pip install 'steptime[onnx]'") from None

MAX_VALUES = 16_384  # elements of a constant whose values are known
MAX_FLOATS = 16  # a float tensor of more is a weight, and not read
MAX_FIELDS, MAX_BYTES, MAX_DEPTH = 4_000_000, 64_000_000, 24
DTYPES: Mapping[int, tuple[str, float, bool]] = {
    int(number): tuple(row) for number, row in packaged("onnx.toml")["types"].items()
}
_NESTED_FIELDS = {  # the fields of a message in which weights may lie, and what messages they are
    "model": {7: "graph", 25: "function"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph"},
}
_NUMBERS = (4, 5, 7, 9, 10, 11)  # the fields of a tensor that may hold its numbers
_WIDTHS = {1: 8, 5: 4}
Span = tuple[int, int]


class NoModelError(ValueError):
    """Bytes that are no ONNX file, or one beyond what is read; the message says which."""


def is_read(tensor: TensorProto) -> bool:
    """Whether the values of a constant are read: it is small, and in the file itself."""
    dtype, _, readable = DTYPES.get(tensor.data_type, ("text", 0, False))
    limit = MAX_FLOATS if "float" in dtype else MAX_VALUES
    return readable and tensor.data_location == 0 and math.prod(tensor.dims) <= limit


@dataclass
class WeightlessCopy:
    """Copies the bytes of a file without those of its weights, whose places are `unread`."""

    source: Source
    unread: list[Span] = field(default_factory=list)
    fields: int = 0
    copied_bytes: int = 0

    def varint(self, offset: int, end: int) -> Span:
        """Return a whole number of up to 64 bits at `at`, and the place after it."""
        value = shift = 0
        data: bytes | mmap.mmap = self.source.content
        while offset < end and shift < 70:
            byte = data[offset]
            offset += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, offset
            shift += 7
        raise NoModelError(f"a number at byte {offset} has no end")

    def places(self, offset: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield each field from `at` to `end`: number, wire type, and its places."""
        while offset < end:
            self.fields += 1
            if self.fields > MAX_FIELDS:
                raise NoModelError(f"more than {MAX_FIELDS} fields")
            start = offset
            key, offset = self.varint(offset, end)
            number, wire = key >> 3, key & 7
            if wire == 0:
                first, offset = offset, self.varint(offset, end)[1]
            else:
                length, first = (
                    self.varint(offset, end) if wire == 2 else (_WIDTHS.get(wire, -1), offset)
                )
                offset = first + length
                if length < 0 or number == 0 or offset > end:
                    raise NoModelError(f"field {number} at byte {first} ends after its message")
            yield number, wire, start, first, offset

    def copy(self, kind: str, offset: int, end: int, depth: int = 0) -> bytes:
        """Return the bytes of the message from `at` to `end`, without those of weights."""
        if depth > MAX_DEPTH:
            raise NoModelError(f"messages nest deeper than {MAX_DEPTH}")
        inside, made, numbers = _NESTED_FIELDS.get(kind, {}), bytearray(), []
        for number, wire, start, first, after in self.places(offset, end):
            if wire == 2 and number in inside:
                made += message((number, self.copy(inside[number], first, after, depth + 1)))
            elif wire == 2 and kind == "tensor" and number in _NUMBERS:
                numbers.append((number, first, after))
            else:
                self._count(after - start)
                made += self.source.content[start:after]
        return (
            bytes(made) + self._numbers(bytes(made), numbers) if kind == "tensor" else bytes(made)
        )

    def _count(self, size: int) -> None:
        self.copied_bytes += size
        if self.copied_bytes > MAX_BYTES:
            raise NoModelError(f"more than {MAX_BYTES} bytes that are no weights")

    def _numbers(self, header: bytes, numbers: list[tuple[int, int, int]]) -> bytes:
        """Return the fields of a constant's numbers; of a weight nothing."""
        tensor = TensorProto.FromString(header)
        raw = [end - start for number, start, end in numbers if number == 9]
        self._check(tensor, raw, sum(end - start for _, start, end in numbers))
        if not is_read(tensor):
            if tensor.data_location == 0:
                self.unread += [(start, end) for _, start, end in numbers]
            return b""
        self._count(sum(end - start for _, start, end in numbers))
        parts: list[tuple[int, Value]] = [
            (number, self.source.content[start:end]) for number, start, end in numbers
        ]
        return message(*parts)

    def _check(self, tensor: TensorProto, raw: Sequence[int], length: int) -> None:
        """Refuse a tensor whose bytes are not as many as its shape says, or not its folder's."""
        name, shape = f"tensor {tensor.name[:60]!a}", tuple(tensor.dims)
        size = math.prod(shape)
        if len(shape) > 16 or not all(0 <= n < 2**53 for n in shape) or size >= 2**53:
            raise NoModelError(f"{name}: of shape {shorten(list(shape))}")
        _, width, _ = DTYPES.get(tensor.data_type, ("text", 0, False))
        if tensor.data_location == 1:
            self._external(tensor, name)
        elif raw and width:
            if raw[-1] != math.ceil(size * width):
                raise NoModelError(f"{name}: {raw[-1]} bytes for {shorten(list(shape))}")
        elif width:
            single = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data)
            if size > length + sum(map(len, (*single, tensor.uint64_data))):
                raise NoModelError(f"{name}: of shape {shorten(list(shape))} without values")

    def _external(self, tensor: TensorProto, name: str) -> None:
        """Refuse weights that lie outside of the file's folder; they are not opened anyway."""
        where = {one.key: one.value for one in tensor.external_data}.get("location", "")
        parts = where.replace("\\", "/").split("/")
        inside = "\0" not in where and ".." not in parts and not Path(where).is_absolute()
        if not where or not inside:
            raise NoModelError(f"{name}: its data lies outside of the folder, in {shorten(where)}")
        path = Path(self.source.path)
        homes = path.absolute().parent, Path(os.path.realpath(path)).parent
        target = Path(os.path.realpath(homes[0] / where))
        # a file that is a link itself has its data beside what it leads to
        if not any(target.is_relative_to(os.path.realpath(home)) for home in homes):
            raise NoModelError(f"{name}: its data is a link out of the folder, {shorten(where)}")

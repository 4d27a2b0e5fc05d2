"""Reads messages of protocol buffers from mapped bytes; what no schema names is skipped unread.

Format: Protocol Buffers, "Encoding" (https://protobuf.dev/programming-guides/encoding).
"""

import mmap
import struct
from typing import Any

from steptime.core.errors import shorten

MOST_FIELDS = 4_000_000
DEEPEST = 24
LONGEST = 4_096  # bytes of a text

Span = tuple[int, int]
Schema = dict[int, tuple[str, Any]]  # number: (name, type); a name that ends in `*` repeats
_WIDTHS = {1: 8, 5: 4}
_EXPECTED = {"int": (0,), "float": (5,), "numbers": (0, 1, 2, 5)}


class WireError(ValueError):
    """Bytes that are not a message, or one beyond what is read; the message says which."""


class Wire:
    """The bytes of a file, and how many fields may still be read of it.

    `message` returns the fields of a schema by name. A type is `int`, `float` (32 bits), `text`,
    `span` (the place of bytes that are not read), `numbers` (a list of spans of packed numbers and
    of single ones, see `numbers`), or the schema of a message.
    """

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self.data = data
        self._left = MOST_FIELDS

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """Return a whole number of up to 64 bits at `at`, and the place after it."""
        value = shift = 0
        data = self.data
        if at < end and data[at] < 0x80:  # most are of one byte
            return data[at], at + 1
        while at < end and shift < 70:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, at
            shift += 7
        raise WireError(f"a number at byte {at} has no end")

    def message(self, schema: Schema, at: int, end: int, depth: int = 0) -> dict[str, Any]:
        """Return the fields of the message from `at` to `end`; a repeated one is a list."""
        if depth > DEEPEST:
            raise WireError(f"messages nest deeper than {DEEPEST}")
        found: dict[str, Any] = {name[:-1]: [] for name, _ in schema.values() if name[-1] == "*"}
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise WireError(f"more than {MOST_FIELDS} fields")
            key, at = self.varint(at, end)
            number, wire = key >> 3, key & 7
            value: Any
            if wire == 0:
                value, at = self.varint(at, end)
            else:
                length, at = self.varint(at, end) if wire == 2 else (_WIDTHS.get(wire, -1), at)
                if length < 0 or number == 0 or length > end - at:
                    raise WireError(f"field {number} at byte {at} ends after its message")
                value, at = (at, at + length), at + length
            if number in schema:
                name, kind = schema[number]
                value = self._value(kind, wire, value, depth)
                if name[-1] == "*":
                    found[name[:-1]].append(value)
                else:
                    found[name] = value
        return found

    def _value(self, kind: Any, wire: int, value: Any, depth: int) -> Any:
        """Return a field's value as its schema says; raises `WireError` where it cannot be."""
        expected = (2,) if isinstance(kind, dict) else _EXPECTED.get(kind, (2,))
        if wire not in expected:
            raise WireError(f"a field of wire type {wire} where {expected[0]} belongs")
        if isinstance(kind, dict):
            return self.message(kind, value[0], value[1], depth + 1)
        if kind == "int":
            return value - 2**64 if value >= 2**63 else value
        if kind == "float":
            return struct.unpack("<f", self.data[value[0] : value[1]])[0]
        return self.text(value) if kind == "text" else (wire, value) if kind == "numbers" else value

    def text(self, span: Span) -> str:
        """Return the text at a place; raises `WireError` for a long one and for other bytes."""
        if span[1] - span[0] > LONGEST:
            raise WireError(f"a text of {span[1] - span[0]} bytes")
        try:
            return self.data[span[0] : span[1]].decode()
        except UnicodeDecodeError as error:
            raise WireError(f"a text that is not UTF-8: {shorten(error.object)}") from None

    def numbers(self, parts: list[tuple[int, Any]], form: str, most: int) -> list[Any]:
        """Return at most `most` numbers of a field; `form` is `varint` or one of `struct`."""
        found: list[Any] = []
        for wire, value in parts:
            if len(found) > most:
                raise WireError(f"more than {most} numbers in a list")
            if wire == 0:
                found.append(value - 2**64 if value >= 2**63 else value)
            elif form == "varint":
                at, end = value
                while at < end and len(found) <= most:
                    number, at = self.varint(at, end)
                    found.append(number - 2**64 if number >= 2**63 else number)
            else:
                width = struct.calcsize(form)
                start, end = value[0], min(value[1], value[0] + (most + 1) * width)
                usable = end - (end - start) % width
                found += [n for (n,) in struct.iter_unpack(f"<{form}", self.data[start:usable])]
        if len(found) > most:
            raise WireError(f"more than {most} numbers in a list")
        return found

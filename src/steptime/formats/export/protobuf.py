"""The wire format of protocol buffers, as much of it as an ONNX file is made of."""

import struct

Value = int | float | str | bytes


def varint(number: int) -> bytes:
    """Return a whole number in 7 bits a byte, the least first; below 0 as its 64-bit complement."""
    number &= (1 << 64) - 1
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def field(number: int, value: Value) -> bytes:
    """Return one field: a whole number, a float of 32 bits, or a text, bytes or message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def message(*fields: tuple[int, Value]) -> bytes:
    """Return a message of fields, each a number and a value."""
    return b"".join([field(number, value) for number, value in fields])

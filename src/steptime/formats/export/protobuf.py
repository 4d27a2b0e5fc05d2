"""The wire format of protocol buffers, as much of it as an ONNX file is made of."""

import struct

Value = int | float | str | bytes
LOW_64_BITS = 2**64 - 1
LOW_7_BITS = 0x7F
CONTINUES = 0x80  # the bit of a varint's byte that says that another byte follows
VARINT, LENGTH_DELIMITED, FIXED_32_BIT = 0, 2, 5  # wire types, the low three bits of a field's key


def encode_varint(number: int) -> bytes:
    """Return an integer in 7 bits a byte, the lowest first; below 0 as its 64-bit complement."""
    bits_left = number & LOW_64_BITS
    encoded = bytearray()
    while bits_left > LOW_7_BITS:
        encoded.append(bits_left & LOW_7_BITS | CONTINUES)
        bits_left >>= 7
    encoded.append(bits_left)
    return bytes(encoded)


def encode_field(number: int, value: Value) -> bytes:
    """Return one field: an integer, a float of 32 bits, or a text, bytes or message."""
    if isinstance(value, int):
        return encode_varint(number << 3 | VARINT) + encode_varint(value)
    if isinstance(value, float):
        return encode_varint(number << 3 | FIXED_32_BIT) + struct.pack("<f", value)
    content = value.encode() if isinstance(value, str) else value
    return encode_varint(number << 3 | LENGTH_DELIMITED) + encode_varint(len(content)) + content


def encode_message(*fields: tuple[int, Value]) -> bytes:
    """Return a message of fields, each a number and a value."""
    return b"".join([encode_field(number, value) for number, value in fields])

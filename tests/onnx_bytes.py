"""ONNX files written by hand, byte by byte, for tests of what reads them."""

from __future__ import annotations

import struct
from typing import Any

from steptime.formats.export.protobuf import encode_message, encode_varint

FLOAT, INT64 = 1, 7


def value(name: str, *shape: int | str, dtype: int = FLOAT) -> bytes:
    """Return an input or output; a size that is a text is a name."""
    sizes = [
        (1, encode_message((1, size) if isinstance(size, int) else (2, size))) for size in shape
    ]
    return encode_message(
        (1, name), (2, encode_message((1, encode_message((1, dtype), (2, encode_message(*sizes))))))
    )


def tensor(name: str, shape: tuple[int, ...], raw: bytes | None = None, **fields: Any) -> bytes:
    """Return a tensor of floats, of zeros unless `raw` says its bytes."""
    content = raw if raw is not None else bytes(4 * _size(shape))
    made = encode_message(*((1, n) for n in shape), (2, fields.pop("dtype", FLOAT)), (8, name))
    return made + encode_message((9, content)) + encode_message(*fields.pop("more", ()))


def whole(name: str, *numbers: int) -> bytes:
    """Return a list of whole numbers as a tensor."""
    return tensor(name, (len(numbers),), struct.pack(f"<{len(numbers)}q", *numbers), dtype=INT64)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def attribute(name: str, given: Any) -> bytes:
    """Return an attribute: a whole number, a float, a text, whole numbers, or bytes of a tensor."""
    if isinstance(given, bool | int):
        return encode_message((1, name), (3, int(given)), (20, 2))
    if isinstance(given, float):
        return encode_message((1, name), (2, given), (20, 1))
    if isinstance(given, str):
        return encode_message((1, name), (4, given), (20, 3))
    if isinstance(given, bytes):
        return encode_message((1, name), (5, given), (20, 4))
    return encode_message((1, name), (8, b"".join(encode_varint(n) for n in given)), (20, 7))


def node(op: str, inputs: str, outputs: str, domain: str = "", **attrs: Any) -> bytes:
    """Return a node; names of tensors are parted by spaces, `-` is one left out."""
    names = [("" if name == "-" else name) for name in inputs.split()]
    return encode_message(
        *((1, name) for name in names),
        *((2, name) for name in outputs.split()),
        (3, f"{op}_{outputs.split(maxsplit=1)[0]}"),
        (4, op),
        *((5, attribute(name, given)) for name, given in attrs.items()),
        (7, domain),
    )


def model(
    nodes: list[bytes],
    weights: list[bytes] | None = None,
    inputs: list[bytes] | None = None,
    outputs: tuple[str, ...] = ("y",),
    opset: int = 20,
    functions: list[bytes] | None = None,
) -> bytes:
    """Return a file of one graph, by default from x [1, 4] to y."""
    graph = encode_message(
        *((1, one) for one in nodes),
        *((5, one) for one in weights or []),
        *((11, one) for one in (inputs if inputs is not None else [value("x", 1, 4)])),
        *((12, value(name)) for name in outputs),
    )
    return encode_message(
        (1, 8),
        (7, graph),
        (8, encode_message((1, ""), (2, opset))),
        *((25, f) for f in functions or []),
    )


def function(name: str, inputs: str, outputs: str, nodes: list[bytes], domain: str = "f") -> bytes:
    """Return a function of the file's own."""
    return encode_message(
        (1, name),
        *((4, one) for one in inputs.split()),
        *((5, one) for one in outputs.split()),
        *((7, one) for one in nodes),
        (9, encode_message((1, ""), (2, 20))),
        (10, domain),
    )

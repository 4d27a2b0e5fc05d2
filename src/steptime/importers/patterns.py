"""Recognises what exporters write out in pieces, as the last piece is lowered."""

from steptime.ops.builder import Builder


def recognised(b: Builder, y: str, name: str) -> str:
    """Return the tensor that a whole kind makes where `y` is its last piece, else `y`."""
    return y

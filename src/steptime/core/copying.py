"""Copies of frozen values with other fields, as `copy.replace` of Python 3.13 makes them."""

from dataclasses import replace as replace_dataclass
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace as replace_struct

Value = TypeVar("Value")


def replace(value: Value, /, **fields: object) -> Value:
    """Return a copy of a dataclass or a struct in which some fields have other values.

    Args:
        value: the dataclass or struct; stays as it is.
        **fields: the fields that differ.

    Raises:
        TypeError: for a field that the value does not have.
    """
    if isinstance(value, Struct):
        return replace_struct(value, **fields)
    return replace_dataclass(value, **fields)  # type: ignore[type-var]  # a dataclass, of which mypy has no bound here

"""Tables of files as typed values, and what is wrong with one: its place, what it must be."""

import re
from collections.abc import Iterator, Mapping
from sys import float_info
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from steptime.core.errors import InputError, shorten, unknown

Kind = TypeVar("Kind")
Text = Annotated[str, Meta(pattern=r"\S", description="a text")]
Texts = Annotated[tuple[str, ...], Meta(description="a list of texts")]
Whole = Annotated[int, Meta(ge=0, description="a whole number")]
Wholes = Annotated[tuple[Whole, ...], Meta(description="a list of whole numbers")]
Above0 = Annotated[float, Meta(gt=0, le=float_info.max, description="a number above 0")]
Figure = Annotated[
    float,
    Meta(ge=1e-6, le=1e8, description="positive, in the unit of its name (1e-06 to 1e+08)"),
]
"""A datasheet's number: what lies beyond is in another unit."""
_WORDS = {"str": "a text", "int": "a whole number", "bool": "true or false"}
_WORDS |= {"float": "a number", "array": "a list", "object": "a table"}
_FAULT = re.compile(r"(.*?)(?: - at (?:`key` in )?`\$\.?(.*)`)?", re.DOTALL)
_PART = re.compile(r"\[(\d+|\.\.\.)\]|([^.\[]+)")
_OF_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_TOO_LARGE = "Number out of range"
_EXPECTED = re.compile(r"Expected `(\w+)[^`]*`(.*?)(?:, got .*)?", re.DOTALL)


def typed(table: object, kind: type[Kind], where: str, prefix: str = "") -> Kind:
    """Return a table as its type; raises `InputError`, of the first fault, that begins `where`.

    `prefix` is where in the file the table stands: `calibration.`.
    """
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise _fault(str(error), table, kind, where, prefix) from None
    except UnicodeEncodeError:
        raise InputError(f"{where}: a text holds half of a character") from None


def given(table: Mapping[str, Any], kind: type, where: str, prefix: str = "") -> dict[str, Any]:
    """Return what a table says, typed, without the defaults of its type; raises as `typed`."""
    read: Any = typed(table, kind, where, prefix)
    return {key: getattr(read, key) for key in table}


def struct(name: str, kinds: Mapping[str, Any], required: str = "", *, closed: bool = True) -> type:
    """Return the type of a table with keys of these types; one that is not `closed` has others.

    `get_type_hints(one, include_extras=True)` are the types of a class of our own.
    """
    must: list[Any] = [(key, kinds[key]) for key in required.split()]
    may = [(key, kind, None) for key, kind in kinds.items() if key not in required.split()]
    return msgspec.defstruct(name, must + may, forbid_unknown_fields=closed)


def _fault(said: str, value: Any, kind: Any, where: str, place: str) -> InputError:
    """Return what msgspec says of a table as our line: where, what it must be, and what it is."""
    text, path = _FAULT.fullmatch(said).groups()  # type: ignore[union-attr]  # it fits any text
    (plain, what), *_ = _plain(kind)
    last = ""
    for index, name in _PART.findall(path or ""):
        try:
            inner = _inner(plain, name or index)
        except KeyError:  # inside of one of several types: said is what the whole must be
            break
        last = name or (_wrong(value, inner) if index == "..." else index)
        value = value[int(index) if index.isdigit() else last]
        dot = "." if place and not place.endswith(".") else ""
        place += f"[{last}]" if index.isdigit() else f"{dot}{last}"
        (plain, what), *_ = _plain(inner)
    if of_field := _OF_FIELD.fullmatch(text):
        if of_field[1].startswith("missing"):
            return InputError(f"{where}: '{place}{'.' if last else ''}{of_field[2]}' is missing")
        at = f"{where}: {place.rstrip('.')}" if place else where
        return unknown("key", of_field[2], get_type_hints(plain), at)
    if get_origin(plain) is Literal:
        return unknown(place, value, map(str, get_args(plain)), where)
    expected = _EXPECTED.fullmatch(text)
    if not expected and text != _TOO_LARGE:
        return InputError(f"{where}: {text}")
    words = what or (f"{_WORDS[expected[1]]}{expected[2]}" if expected else "a smaller number")
    named = f"'{place}' " if place else ""
    return InputError(f"{where}: {named}must be {words}, not {shorten(value)}")


def _inner(plain: Any, part: str) -> Any:
    """Return the type of a part of a type: of a field, or of each value of a table or a list."""
    inside = get_args(plain)
    if get_origin(plain) is tuple:
        return inside[0 if inside[-1] is ... else int(part)]
    return inside[-1] if inside else get_type_hints(plain, include_extras=True)[part]


def _plain(kind: Any, what: str = "") -> Iterator[tuple[Any, str]]:
    """Yield the types that a type stands for, None apart, each with what it is in words."""
    if get_origin(kind) is Annotated:
        inside, *more = get_args(kind)
        said = (one.description for one in more if isinstance(one, Meta) and one.description)
        yield from _plain(inside, next(said, what))
    elif get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            yield from _plain(one, what)
    elif kind is not NoneType:
        yield kind, what


def _wrong(table: Mapping[str, Any], kind: Any) -> str:
    """Return the first key of a table whose value is not of a type."""
    for key, value in table.items():
        try:
            msgspec.convert(value, kind)
        except (msgspec.ValidationError, UnicodeEncodeError):
            return key
    raise KeyError(kind)

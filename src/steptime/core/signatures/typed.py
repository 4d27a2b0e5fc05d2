"""Conversion of the tables of files to types, with the place and the expected value of a fault."""

import re
from collections.abc import Collection, Iterator, Mapping
from sys import float_info
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.json_types import JsonObject

Kind = TypeVar("Kind")
Text = Annotated[str, Meta(pattern=r"\S", description="a text")]
Texts = Annotated[tuple[str, ...], Meta(description="a list of texts")]
NonNegativeInt = Annotated[int, Meta(ge=0, description="a whole number")]
NonNegativeInts = Annotated[tuple[NonNegativeInt, ...], Meta(description="a list of whole numbers")]
Above0 = Annotated[float, Meta(gt=0, le=float_info.max, description="a number above 0")]
Figure = Annotated[
    float,
    Meta(ge=1e-6, le=1e8, description="positive, in the unit of its name (1e-06 to 1e+08)"),
]
"""A datasheet's number: one beyond these bounds is in another unit."""
_WORDS = {"str": "a text", "int": "a whole number", "bool": "true or false"}
_WORDS |= {"float": "a number", "array": "a list", "object": "a table"}
_FAULT = re.compile(r"(.*?)(?: - at (?:`key` in )?`\$\.?(.*)`)?", re.DOTALL)
_PART = re.compile(r"\[(\d+|\.\.\.)\]|([^.\[]+)")
_UNNAMED_KEY = "..."  # msgspec writes `[...]` for a value under a key that it does not name
_OF_FIELD = re.compile(r"Object (contains unknown|missing required) field `(.*)`", re.DOTALL)
_TOO_LARGE = "Number out of range"
_EXPECTED = re.compile(r"Expected `(\w+)[^`]*`(.*?)(?:, got .*)?", re.DOTALL)


def convert_table(table: object, kind: type[Kind], source: str, prefix: str = "") -> Kind:
    """Return a table converted to a type.

    Args:
        table: the values of a file.
        kind: the type: a struct, a dataclass or a mapping.
        source: the file, with which a message begins.
        prefix: the path of the table inside the file: `calibration.`.

    Raises:
        InputError: for the first value that does not fit the type.
    """
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise _describe_fault(str(error), table, kind, source, prefix) from None
    except UnicodeEncodeError:
        raise InputError(f"{source}: a text holds half of a character") from None


def typed_values(table: Mapping[str, Any], kind: type, source: str, prefix: str = "") -> JsonObject:
    """Return the values of a table, converted to a type but without the type's defaults.

    Args and errors are those of `typed`.
    """
    parsed: Any = convert_table(table, kind, source, prefix)
    return {key: getattr(parsed, key) for key in table}


def struct(
    name: str, kinds: Mapping[str, Any], required: Collection[str] = (), *, closed: bool = True
) -> type:
    """Return the type of a table.

    Args:
        name: the name of the type.
        kinds: the type of each key; for a class of our own `get_type_hints(Class,
            include_extras=True)`.
        required: the keys that the table must have.
        closed: whether other keys are refused.
    """
    required_fields: list[Any] = [(key, kinds[key]) for key in required]
    optional_fields = [(key, kind, None) for key, kind in kinds.items() if key not in required]
    fields = required_fields + optional_fields
    return msgspec.defstruct(name, fields, forbid_unknown_fields=closed)


class _FaultPlace(NamedTuple):
    """A value inside a table: its type, that type in words, and the path of keys to it."""

    kind: Any
    type_text: str
    value: Any
    path: str
    is_inner: bool


class _PathStep(NamedTuple):
    """A step of a path into a table: to a value of a list by its index, else to that of a key."""

    name: str
    is_index: bool


def _describe_fault(message: str, table: Any, kind: Any, source: str, prefix: str) -> InputError:
    """Return a message of msgspec in our words: the place, the expected type and the value."""
    # such as "Expected `int`, got `str` - at `$.links[0].lanes`"
    text, path = _FAULT.fullmatch(message).groups()  # type: ignore[union-attr]  # it fits any text
    place = _find_fault_place(path or "", table, kind, prefix)
    field_fault = _OF_FIELD.fullmatch(text)
    if field_fault:
        fault, field = field_fault.groups()
        return _describe_field_fault(place, fault, field, source)
    if get_origin(place.kind) is Literal:
        return unknown(place.path, place.value, map(str, get_args(place.kind)), source)
    expected = _EXPECTED.fullmatch(text)
    if expected:
        type_name, limits = expected.groups()  # such as `int` and ` >= 1`
        expected_text = place.type_text or f"{_WORDS[type_name]}{limits}"
    elif text == _TOO_LARGE:
        expected_text = place.type_text or "a smaller number"
    else:
        return InputError(f"{source}: {text}")
    subject = f"'{place.path}' " if place.path else ""
    return InputError(f"{source}: {subject}must be {expected_text}, not {shorten(place.value)}")


def _find_fault_place(path: str, value: Any, kind: Any, prefix: str) -> _FaultPlace:
    """Follow a path of msgspec, `a[0].b` or `a[...]`, into a table as far as its type is known."""
    # The message names one expected type: of a union such as `X | None` the first member.
    plain_kind, type_text = next(_list_plain_kinds(kind))
    inner_value = value
    place_text = prefix
    is_inner = False  # whether the fault lies in a part of the value
    for step in _parse_path(path):
        try:
            member_kind = _member_kind(plain_kind, step.name)
        except KeyError:  # inside of one of several types: the message is about the outer value
            break
        if step.is_index:
            inner_value = inner_value[int(step.name)]
            place_text += f"[{step.name}]"
        else:
            key = step.name
            if key == _UNNAMED_KEY:
                key = _first_wrong_key(inner_value, member_kind)
            inner_value = inner_value[key]
            dot = "." if place_text and not place_text.endswith(".") else ""
            place_text += f"{dot}{key}"
        plain_kind, type_text = next(_list_plain_kinds(member_kind))
        is_inner = True
    return _FaultPlace(plain_kind, type_text, inner_value, place_text, is_inner)


def _parse_path(path: str) -> Iterator[_PathStep]:
    """Yield the steps of a path of msgspec: `a[0].b` goes to key a, index 0, key b."""
    for bracket_text, key in _PART.findall(path):  # one of both is ""
        yield _PathStep(name=key or bracket_text, is_index=bracket_text.isdigit())


def _describe_field_fault(place: _FaultPlace, fault: str, field: str, source: str) -> InputError:
    """Return the error for a key that a table lacks, or that its type does not have."""
    if fault.startswith("missing"):
        dot = "." if place.is_inner else ""
        return InputError(f"{source}: '{place.path}{dot}{field}' is missing")
    table_path = place.path.rstrip(".")
    table_place = f"{source}: {table_path}" if table_path else source
    return unknown("key", field, get_type_hints(place.kind), table_place)


def _member_kind(kind: Any, name: str) -> Any:
    """Return the type of a field, or of each value of a table or a list."""
    members = get_args(kind)
    if get_origin(kind) is tuple:
        return members[0 if members[-1] is ... else int(name)]
    return members[-1] if members else get_type_hints(kind, include_extras=True)[name]


def _list_plain_kinds(kind: Any, type_text: str = "") -> Iterator[tuple[Any, str]]:
    """Yield the members of a type, without None and annotations, each with its description."""
    if get_origin(kind) is Annotated:
        plain, *metadata = get_args(kind)
        texts = (meta.description for meta in metadata if isinstance(meta, Meta))
        inner_text = next(filter(None, texts), type_text)  # the nearest description holds
        yield from _list_plain_kinds(plain, inner_text)
    elif get_origin(kind) in (Union, UnionType):
        for member in get_args(kind):
            yield from _list_plain_kinds(member, type_text)
    elif kind is not NoneType:
        yield kind, type_text


def _first_wrong_key(table: Mapping[str, Any], kind: Any) -> str:
    """Return the first key of a table whose value is not of a type."""
    for key, value in table.items():
        try:
            msgspec.convert(value, kind)
        except (msgspec.ValidationError, UnicodeEncodeError):
            return key
    raise KeyError(kind)

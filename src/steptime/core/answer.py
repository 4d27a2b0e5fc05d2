"""Answers: frozen structs that are the same text, JSON, CSV, HTML and DataFrame at every call.

Every field has a line in its class's docstring under `Attributes`. Fields with one meaning in all
answers: `rows` (structs), `assumed` (what decided the answer, by the option that changes it),
`headline` (short lines, one fact each) and `notes` (remarks that change how it is read). Fields
whose names begin with `_` are for tables alone: which rows people see, and the like.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

import msgspec

from steptime.core.json_types import JsonObject
from steptime.core.registry import load
from steptime.core.signatures.docstrings import argument_texts, summary
from steptime.core.tables.table import (
    Column,
    JsonRows,
    LazySequence,
    Printout,
    Row,
    Table,
    make_frame,
    select_tables,
)

_PRINTERS = "steptime.core.tables.printers"


class AnswerRow(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the rows of answers."""

    def to_dict(self) -> JsonObject:
        """Return the row as plain values."""
        table: JsonObject = msgspec.to_builtins(self)
        return table


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the answers to questions; each says its tables."""

    has_details: ClassVar[bool] = False  # whether tables are for `--details` alone
    has_output: ClassVar[bool] = True  # whether a command prints it, in the form of its options

    def tables(self) -> Sequence[Table]:
        """Return the tables that people read, the one that answers the question first.

        An answer without tables has a headline that says it all.
        """
        return ()

    def remarks(self) -> list[str]:
        """Return the lines that a reader must know beside the tables: the notes, each marked."""
        return [f"note: {line}" for line in getattr(self, "notes", ())]

    def printed_headline(self) -> Sequence[str]:
        """Return the lines of the headline that people read below the tables: all of them."""
        lines: Sequence[str] = getattr(self, "headline", ())
        return lines

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0, or 3 where some experiments did not succeed."""
        return 0

    def to_dict(self) -> JsonObject:
        """Return the answer as plain values, as `--json` prints it."""
        document: JsonObject = json.loads(self.to_json())
        return document

    def to_json(self) -> str:
        """Return the answer as one JSON document."""
        text: str = load(f"{_PRINTERS}:json_text")(document_of(self))
        return text

    def to_pandas(self) -> Any:
        """Return a DataFrame of the rows, else of one row for the answer; needs pandas."""
        document = self.to_dict()
        rows = document.get("rows")
        return make_frame([document] if rows is None else rows)

    def printout(self) -> Printout:
        """Return the answer as the command line prints it."""
        text = "".join(f"{line}\n" for line in self.printed_headline())
        return Printout(
            document_of(self),
            self.tables(),
            self.remarks(),
            text=text,
            code=self.exit_code,
        )

    def csv_rows(self) -> Sequence[Any]:
        """Return the structs of which `--format csv` makes one table: the rows, else the answer."""
        rows: Sequence[Any] | None = getattr(self, "rows", None)
        return (self,) if rows is None else rows

    def csv_table(self) -> Table | None:
        """Return the table of plain numbers that `--format csv` prints, None without structs."""
        return csv_table(self.csv_rows())

    def print(self) -> None:
        """Print what the command prints."""
        print(self, end="")  # the purpose of the method

    def __str__(self) -> str:
        """Return the text that the command prints."""
        printout = self.printout()
        notes = "".join(f"{line}\n" for line in printout.notes)
        format_table = load("steptime.core.tables.text_table:text")
        tables = select_tables(printout.tables, has_details=False)
        return "".join(map(format_table, tables)) + printout.text + printout.script + notes

    __repr__ = __str__

    def _repr_html_(self) -> str:
        tables = select_tables(self.tables(), has_details=False)
        return "".join(map(load(f"{_PRINTERS}:html"), tables))


def document_of(answer: Answer) -> JsonObject:
    """Return the public fields of an answer as plain values; lazy sequences stay lazy."""
    return {
        key: _to_plain(getattr(answer, name)) for name, key in public_keys(type(answer)).items()
    }


def csv_table(structs: Sequence[Any]) -> Table | None:
    """Return structs as a table of plain values, one column for each field that has a cell.

    A cell is a scalar; a list of scalars is joined by `; `, a table is written `name=value; ...`.
    Fields that hold structs have none. The table is None where there are no structs.
    """
    first_struct = next(iter(structs), None)
    if not isinstance(first_struct, msgspec.Struct):
        return None
    hints = get_type_hints(type(first_struct))
    key_by_field: dict[str, str] = {}
    list_keys: list[str] = []  # of fields with several values, which share a cell
    for field, key in public_keys(type(first_struct)).items():
        field_types = _list_nested_hints(hints[field])
        if any(map(_is_struct, field_types)):  # a struct has no cell
            continue
        key_by_field[field] = key
        if any(map(_is_container, field_types)):
            list_keys.append(key)

    def make_row(struct: Any) -> Row:
        row = {key: getattr(struct, field, None) for field, key in key_by_field.items()}
        return row | {key: _join_items(row[key]) for key in list_keys}

    rows = LazySequence(len(structs), lambda: map(make_row, structs))
    return Table([Column(key, key) for key in key_by_field.values()], rows)


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _is_container(hint: Any) -> bool:
    """Whether values of a type may be lists or tables."""
    origin = get_origin(hint)
    is_container = isinstance(origin, type) and issubclass(origin, Mapping | Sequence)
    return is_container or hint is Any


def _join_items(value: Any) -> Any:
    """Return the items of a list or a table as one text, a scalar as it is."""
    if isinstance(value, Mapping):
        return "; ".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "; ".join(map(str, value))
    return value


def public_fields(struct_type: type[msgspec.Struct]) -> list[str]:
    """Return the names of the fields of a struct that programs see."""
    return list(public_keys(struct_type))


def public_keys(struct_type: type[msgspec.Struct]) -> dict[str, str]:
    """Return the keys of a struct in JSON by the names of its public fields: `pass` of `pass_`."""
    fields = zip(struct_type.__struct_fields__, struct_type.__struct_encode_fields__, strict=True)
    return {name: key for name, key in fields if not name.startswith("_")}


def _to_plain(value: Any) -> Any:
    """Return a field of an answer as plain values; only answers have private fields, not rows."""
    if isinstance(value, JsonRows):
        return value  # made of plain values already
    if isinstance(value, Answer):
        return document_of(value)
    if isinstance(value, LazySequence):
        if value.write_chunks is not None:
            return JsonRows(len(value), value.write_chunks)
        return LazySequence(len(value), lambda: map(_to_plain, value))
    if isinstance(value, list | tuple) and any(isinstance(item, Answer) for item in value):
        return [_to_plain(item) for item in value]
    return msgspec.to_builtins(value)


@cache
def field_texts(struct_type: type) -> Mapping[str, str]:
    """Return the meanings of a struct's fields by name, those of its bases too."""
    texts: dict[str, str] = {}
    for base in reversed(struct_type.__mro__):
        texts |= argument_texts(base.__doc__ or "")
    return texts


def answer_kinds(hint: Any) -> tuple[type[Answer], ...]:
    """Return the answers of a question's return type, several of a union, none of another type."""
    answer_types = get_args(hint) or (hint,)
    is_typed = all(isinstance(kind, type) and issubclass(kind, Answer) for kind in answer_types)
    return answer_types if is_typed else ()


def answer_schema(hint: Any) -> JsonObject:
    """Return the JSON schema of an answer, each field with its meaning.

    A union of answers is `anyOf` their schemas, with all definitions under one `$defs`.

    Args:
        hint: a subclass of `Answer`, or a union of such classes.
    """
    schemas = [_struct_schema(struct_type) for struct_type in answer_kinds(hint)]
    if len(schemas) == 1:
        return dict(schemas[0])
    # Structs that several answers share have one definition.
    definitions = ChainMap(*(schema["$defs"] for schema in schemas))
    schema_choices = [{key: schema[key] for key in schema if key != "$defs"} for schema in schemas]
    return {"anyOf": schema_choices, "$defs": dict(definitions)}


def _struct_schema(struct_type: type[Answer]) -> Mapping[str, Any]:
    hints = get_type_hints(struct_type, include_extras=True)
    fields = [(name, hints[name]) for name in public_fields(struct_type)]
    # A copy without private fields, which msgspec would describe as well.
    public = msgspec.defstruct(struct_type.__name__, fields, kw_only=True)
    _, components = msgspec.json.schema_components([public], ref_template="#/$defs/{name}")
    schema: JsonObject = dict(components.pop(struct_type.__name__))
    schema["$defs"] = components
    # msgspec writes types alone: the docstrings of the struct and of those in it are added.
    structs = {struct_type.__name__: struct_type} | {
        struct.__name__: struct for struct in structs_of(struct_type)
    }
    for name, table in {struct_type.__name__: schema, **components}.items():
        if name in structs:
            _describe_schema(table, structs[name])
    return schema


def _describe_schema(schema: JsonObject, struct_type: type[msgspec.Struct]) -> None:
    """Set the texts of a struct's schema and of its fields, and drop its private fields."""
    schema["description"] = summary(struct_type.__doc__ or "")
    keys, texts = public_keys(struct_type), field_texts(struct_type)
    properties = schema.get("properties", {})
    private_keys = [key for key in properties if key not in keys.values()]
    for key in private_keys:
        del properties[key]
    for name, key in keys.items():
        if name in texts and key in properties:
            properties[key]["description"] = texts[name]


def structs_of(struct_type: type) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs of rows and parts that a struct holds, at any depth."""
    for hint in get_type_hints(struct_type).values():
        for nested_hint in _list_nested_hints(hint):
            if isinstance(nested_hint, type) and issubclass(nested_hint, msgspec.Struct):
                yield nested_hint
                yield from structs_of(nested_hint)


def _list_nested_hints(hint: Any) -> Iterator[Any]:
    """Yield a type and all types inside of it."""
    yield hint
    for nested_hint in getattr(hint, "__args__", ()):
        yield from _list_nested_hints(nested_hint)

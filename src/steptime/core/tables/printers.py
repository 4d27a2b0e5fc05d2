"""Printers of a `Table`: text for people, JSON, CSV, Markdown, HTML; each returns a text."""

import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from json.encoder import encode_basestring_ascii
from typing import Any, TextIO

import msgspec

from steptime.core.errors import escape_controls
from steptime.core.tables.table import JsonRows, LazySequence, Table, ValueRows
from steptime.core.tables.text_table import is_numeric, make_cells, text
from steptime.core.values import number_of

APOSTROPHE = "'"  # before what would be a formula
CSV_PART_ROWS = 1_000  # written at once: memory stays small, and writing takes little time
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a cell begins with that spreadsheets compute
_QUOTE = '"'
_NEEDS_QUOTES = re.compile(r'[,"\r\n]').search
CONTAINERS = (dict, list, tuple)


def markdown(table: Table) -> str:
    """Return the table as Markdown."""
    rows = make_cells(table, table.columns)  # the headings first
    rows.insert(1, ["---"] * len(table.columns))
    escaped_rows = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in escaped_rows)


def comma_separated(table: Table) -> str:
    """Return the table as CSV: keys above, numbers in their units, nothing where unknown."""
    buffer = io.StringIO()
    write_csv(table, buffer)
    return buffer.getvalue()


def write_csv(table: Table, file: TextIO) -> None:
    """Write the table as CSV, row by row, so that not all rows are in memory at once.

    A text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    columns = table.csv_columns or table.columns
    keys = [key for column in columns for key in (column.key, *column.ends)]
    # Such rows are lists of just these values, and need no dictionary each.
    if isinstance(table.rows, ValueRows) and keys == [*table.rows.keys]:
        rows = table.rows.make_values()
    else:
        rows = ([row.get(key) for key in keys] for row in table.rows)
    file.writelines(csv_parts(keys, rows))


def csv_parts(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the text of a CSV file in parts of `CSV_PART_ROWS` rows, the headings first."""
    lines = map(_csv_line, chain([headings], rows))
    while part := "".join(islice(lines, CSV_PART_ROWS)):
        yield part


@lru_cache(maxsize=4096)
def _quote_cell(value: str) -> str:
    """Return a cell of CSV: without formulas, in quotation marks where it holds a delimiter."""
    cell = neutralise_csv_cell(value)
    return f'"{cell.replace(_QUOTE, _QUOTE * 2)}"' if _NEEDS_QUOTES(cell) else cell


_CELL_WRITERS: Mapping[type, Callable[[Any], str]] = {
    str: _quote_cell,
    float: repr,
    int: repr,
    bool: repr,
    type(None): lambda _: "",
}


def _csv_line(row: Iterable[Any]) -> str:
    """Return a line of a CSV file; Python's own writer takes half as long again for it."""
    line = ",".join([_CELL_WRITERS.get(type(cell), _quote_any_cell)(cell) for cell in row])
    return f"{line}\n" if line else '""\n'


def _quote_any_cell(value: object) -> str:
    """Return the text of a value that is neither a text nor a number as a cell of CSV."""
    return _quote_cell(str(value))


def neutralise_csv_cell(value: str) -> str:
    """Return a CSV cell that no program runs: no formula, no control character but newlines."""
    text = value if value.isprintable() else "\n".join(map(escape_controls, value.split("\n")))
    is_formula = value.startswith(FORMULA) and math.isnan(number_of(value))
    return f"{APOSTROPHE}{text}" if is_formula else text


def json_text(document: object) -> str:
    """Return `document` as one JSON document; a number that is not finite becomes null."""
    return "".join(json_parts(document)) + "\n"


def json_parts(value: Any, newline: str = "\n") -> Iterator[str]:
    """Yield the text of a JSON document in parts, without the last line end of `json_text`.

    The items of an iterator, a `JsonRows` or a `LazySequence` take one line each and are written
    while they are computed, where the document is such a list or a table that holds one.

    Args:
        value: the document.
        newline: the line end with the indentation of the document.
    """
    if isinstance(value, LAZY):
        yield from _lazy_list_parts(value, newline)
    elif isinstance(value, Mapping) and any(isinstance(item, LAZY) for item in value.values()):
        yield from _mapping_parts(value, newline)
    else:
        yield _json_value(value, newline)


LAZY = (Iterator, JsonRows, LazySequence)


def _lazy_list_parts(value: Any, newline: str) -> Iterator[str]:
    """Yield the text of a lazy sequence as a JSON list, one line an item."""
    separator = f"{newline}  "
    next_separator = f",{newline}  "
    yield "["
    # The rows of a `JsonRows` are JSON texts already, read in chunks.
    single_texts = ([_encode(item, ", ")] for item in value)
    for item_texts in value.read_chunks() if isinstance(value, JsonRows) else single_texts:
        yield separator
        yield next_separator.join(item_texts)  # not joined with `separator`, which would copy it
        separator = next_separator
    yield f"{newline}]"


def _mapping_parts(value: Mapping[Any, Any], newline: str) -> Iterator[str]:
    """Yield the text of a table that holds a lazy sequence."""
    separator = f"{newline}  "
    yield "{"
    for key, item in value.items():
        yield f"{separator}{_json_key(key)}: "
        yield from json_parts(item, f"{newline}  ")
        separator = f",{newline}  "
    yield f"{newline}}}"


def _json_value(value: Any, newline: str) -> str:
    """Return a value as JSON, each item of a list or a table on a line of its own."""
    write = _SCALAR_WRITERS.get(type(value))
    if write is not None:
        return write(value)
    is_lazy = type(value) not in CONTAINERS and isinstance(value, LAZY)
    if is_lazy:
        return "".join(_lazy_list_parts(value, newline))
    is_container = isinstance(value, Mapping | list | tuple)
    if not is_container or not value:
        return json.dumps(replace_non_finite(value), allow_nan=False)
    inner = f"{newline}  "
    is_flat_table = type(value) is dict and _FLAT_TYPES.issuperset(map(type, value.values()))
    if is_flat_table:
        text = _encode(value, f",{inner}")  # the encoder in C, which cannot indent
        return f"{{{inner}{text[1:-1]}{newline}}}"
    if isinstance(value, Mapping):
        items = {_json_key(key): _json_value(item, inner) for key, item in value.items()}
        body = f",{inner}".join([f"{key}: {text}" for key, text in items.items()])
        return f"{{{inner}{body}{newline}}}"
    body = f",{inner}".join([_json_value(item, inner) for item in value])
    return f"[{inner}{body}{newline}]"


_FLAT_TYPES = {str, int, float, bool, type(None)}


def _json_key(key: object) -> str:
    return encode_basestring_ascii(str(key))


_SCALAR_WRITERS: Mapping[type, Callable[[Any], str]] = {
    str: encode_basestring_ascii,
    int: repr,
    float: lambda value: repr(value) if math.isfinite(value) else "null",
    bool: lambda value: "true" if value else "false",
    type(None): lambda _: "null",
}


def _encode(value: Any, separator: str) -> str:
    """Return a value as JSON on one line, with its own text between items."""
    encode = _encoder(separator)
    try:
        return encode(value)
    except (TypeError, ValueError):  # of other types, or not finite
        return encode(replace_non_finite(value))


def encode_row(row: Mapping[str, Any]) -> str:
    """Return a row as JSON on one line, as `_encode` does, in a quarter of its time."""
    try:
        return msgspec.json.format(msgspec.json.encode(row), indent=0).decode("ascii")
    except (OverflowError, TypeError, UnicodeError):  # large whole numbers, texts beyond ASCII
        return _encode(row, ", ")


@lru_cache
def _encoder(separator: str) -> Callable[[Any], str]:
    return json.JSONEncoder(allow_nan=False, separators=(separator, ": ")).encode


def html(table: Table) -> str:
    """Return the table as an HTML element; numbers carry the class `number`."""
    from html import escape  # whose table of entities few commands need

    headings, *rows = make_cells(table, table.columns)
    numeric_flags = [is_numeric([row[i] for row in rows]) for i in range(len(headings))]
    attributes = [' class="number"' if is_number else "" for is_number in numeric_flags]

    def format_row(tag: str, row: Sequence[str]) -> str:
        cells = [
            f"<{tag}{attribute}>{escape(cell)}</{tag}>"
            for attribute, cell in zip(attributes, row, strict=True)
        ]
        return f"<tr>{''.join(cells)}</tr>\n"

    caption = f"<caption>{escape(table.title)}</caption>\n" if table.title else ""
    body = "".join(format_row("td", row) for row in rows)
    head = f"<thead>\n{format_row('th', headings)}</thead>\n"
    return f"<table>\n{caption}{head}<tbody>\n{body}</tbody>\n</table>\n"


PRINTERS: dict[str, Callable[[Table], str]] = {
    "text": text,
    "csv": comma_separated,
    "json": lambda table: json_text([dict(row) for row in table.rows]),
    "markdown": markdown,
    "html": html,
}


def replace_non_finite(value: Any) -> Any:
    """Return `value` with None in place of every float that JSON has not: NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(item) for item in value]
    return value

"""Printers of a `Table`: text for people, JSON, CSV, Markdown, HTML; each returns a text."""

import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from html import escape
from itertools import chain, islice
from typing import Any, TextIO

from steptime.core.errors import escape_controls
from steptime.core.table import JsonRows, LazySequence, Table, ValueRows
from steptime.core.text_table import is_numeric, make_cells, text
from steptime.core.values import number_of

APOSTROPHE = "'"  # before what would be a formula
CSV_PART_ROWS = 1_000  # written at once: memory stays small, and writing takes little time
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a cell begins with that spreadsheets compute
_QUOTE = '"'
_NEEDS_QUOTES = re.compile(r'[,"\r\n]').search
PLAIN = (str, float, int, bool, type(None))


def markdown(table: Table) -> str:
    """Return the table as Markdown."""
    lines = make_cells(table, table.columns)
    lines.insert(1, ["---"] * len(table.columns))
    cells = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in row] for row in lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


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
def _quoted(value: str) -> str:
    """Return a cell of CSV: without formulas, in quotation marks where it holds a delimiter."""
    cell = harmless(value)
    return f'"{cell.replace(_QUOTE, _QUOTE * 2)}"' if _NEEDS_QUOTES(cell) else cell


_CELL_WRITERS: Mapping[type, Callable[[Any], str]] = {
    str: _quoted,
    float: repr,
    int: repr,
    bool: repr,
    type(None): lambda _: "",
}


def _csv_line(row: Iterable[Any]) -> str:
    """Return a line of a CSV file; Python's own writer takes half as long again for it."""
    line = ",".join([_CELL_WRITERS.get(type(cell), _quoted_text)(cell) for cell in row])
    return f"{line}\n" if line else '""\n'


def _quoted_text(value: object) -> str:
    """Return the text of a value that is neither a text nor a number as a cell of CSV."""
    return _quoted(str(value))


def harmless(value: str) -> str:
    """Return a CSV cell that no program runs: no formula, no control character but newlines."""
    text = value if value.isprintable() else "\n".join(map(escape_controls, value.split("\n")))
    computes = value.startswith(FORMULA) and math.isnan(number_of(value))
    return f"{APOSTROPHE}{text}" if computes else text


def json_text(document: object) -> str:
    """Return `document` as one JSON document; a number that is not finite becomes null."""
    return "".join(json_parts(document)) + "\n"


def json_parts(value: Any, end: str = "\n") -> Iterator[str]:
    """Yield the text of a JSON document in parts, without the last line end of `json_text`.

    A list or a table of plain values goes to the encoder in C, which cannot indent but takes a
    separator. The items of an iterator, a `JsonRows` or a `LazySequence` take one line each and are
    written while they are computed.

    Args:
        value: the document.
        end: the line end with the indentation of the document.
    """
    if isinstance(value, Iterator | JsonRows | LazySequence):
        yield from _lazy_list_parts(value, end)
        return
    if not isinstance(value, Mapping | list | tuple) or not value:
        yield json.dumps(finite(value), allow_nan=False)
        return
    if isinstance(value, Mapping) and {*map(type, value)} != {str}:
        value = {str(key): item for key, item in value.items()}
    items = value.values() if isinstance(value, Mapping) else value
    if all(type(item) in PLAIN or not item for item in items):
        yield _flat_text(value, end)
    else:
        yield from _nested_parts(value, end)


def _lazy_list_parts(value: Any, end: str) -> Iterator[str]:
    """Yield the text of a lazy sequence as a JSON list, one line an item."""
    before = f"{end}  "
    between = f",{end}  "
    yield "["
    single_texts = ([_encode(item, ", ")] for item in value)
    for texts in value.texts() if isinstance(value, JsonRows) else single_texts:
        yield before
        yield between.join(texts)  # not joined with `before`, which would copy it
        before = between
    yield f"{end}]"


def _flat_text(value: Any, end: str) -> str:
    """Return a list or a table of plain values as JSON, one line an item."""
    text = _encode(value, f",{end}  ")
    left, right = "{}" if isinstance(value, Mapping) else "[]"
    return f"{left}{end}  {text[1:-1]}{end}{right}"


def _nested_parts(value: Any, end: str) -> Iterator[str]:
    """Yield the text of a list or a table that holds others."""
    is_table = isinstance(value, Mapping)
    left, right = "{}" if is_table else "[]"
    before = f"{end}  "
    yield left
    for key, item in value.items() if is_table else enumerate(value):
        yield f"{before}{json.dumps(key)}: " if is_table else before
        yield from json_parts(item, f"{end}  ")
        before = f",{end}  "
    yield end + right


def _encode(value: Any, separator: str) -> str:
    """Return a value as JSON on one line, with its own text between items."""
    encode = _encoder(separator)
    try:
        return encode(value)
    except (TypeError, ValueError):  # of other types, or not finite
        return encode(finite(value))


@lru_cache
def _encoder(separator: str) -> Callable[[Any], str]:
    return json.JSONEncoder(allow_nan=False, separators=(separator, ": ")).encode


def html(table: Table) -> str:
    """Return the table as an HTML element; numbers carry the class `number`."""
    heads, *rows = make_cells(table, table.columns)
    numeric = [is_numeric([row[i] for row in rows]) for i in range(len(heads))]
    names = [' class="number"' if right else "" for right in numeric]

    def line(tag: str, row: Sequence[str]) -> str:
        cells = (f"<{tag}{name}>{escape(c)}</{tag}>" for name, c in zip(names, row, strict=True))
        return f"<tr>{''.join(cells)}</tr>\n"

    caption = f"<caption>{escape(table.title)}</caption>\n" if table.title else ""
    body = "".join(line("td", row) for row in rows)
    head = f"<thead>\n{line('th', heads)}</thead>\n"
    return f"<table>\n{caption}{head}<tbody>\n{body}</tbody>\n</table>\n"


PRINTERS: dict[str, Callable[[Table], str]] = {
    "text": text,
    "csv": comma_separated,
    "json": lambda table: json_text([dict(row) for row in table.rows]),
    "markdown": markdown,
    "html": html,
}


def finite(value: Any) -> Any:
    """Return `value` with None in place of every float that JSON has not: NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value

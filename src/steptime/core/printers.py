"""Printers of a `Table`: text for people, JSON, CSV, Markdown, HTML; each returns a text."""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from html import escape
from itertools import chain, islice, zip_longest
from typing import Any, TextIO

from steptime.core.errors import one_line
from steptime.core.table import Column, JsonRows, LazySequence, Row, Table, describe_hidden_rows
from steptime.core.units import interval
from steptime.core.values import number_of

Cells = list[list[str]]
APOSTROPHE = "'"  # before what would be a formula
BREAK = re.compile(r"(?<=\s)(?=\S)|(?<=,)(?=[A-Za-z])")  # where a line of text may end
CSV_PART_ROWS = 1_000  # written at once: memory stays small, and writing takes little time
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a cell begins with that spreadsheets compute
IDENTIFYING_KEYS = {"name", "network", "model", "device", "platform", "gpu_type"}
WIDEST = 40  # characters of a number with its unit and interval; what is longer is a text
PLAIN = (str, float, int, bool, type(None))


def text(table: Table, width: int | None = None) -> str:
    """Return the table for people, at most `width` characters wide where that is possible.

    Empty spare columns are left out. Where the table is too wide, columns are hidden in this order:
    the other spare columns and all empty ones; where folding the widest texts (between words and
    behind commas) is not enough, columns from the right, except the first and those with an
    interval; last the columns that identify the network and the device, if all rows have the same
    value. Two columns always stay. A line below the table names the hidden columns.
    """
    rows = [*table.rows[: table.max_rows]]
    filled_keys = {
        column.key for column in table.columns for row in rows if row[column.key] not in (None, "")
    }
    columns = [
        column
        for column in table.columns
        if column.key in filled_keys or not (column.is_spare and rows)
    ]
    hidden_columns = _hide_columns(table, columns, rows, filled_keys, width) if width else []
    cells = _cells(table, columns, table.max_rows)
    numeric = [_is_numeric([row[i] for row in cells[1:]]) for i in range(len(columns))]
    cells = _folded(cells, width) if width else cells
    lines = list(_lines(cells, numeric))[0 if any(cells[0]) else 1 :]
    below = describe_hidden_rows(len(table.rows) - len(rows), "--json")
    if hidden_columns:
        names = ", ".join(column.label or column.key for column in hidden_columns)
        below.append(f"hidden columns (terminal width): {names}; --json has all")
    title_lines = prose(table.title.splitlines(), width)
    all_lines = [*title_lines, *lines, *prose([*below, *table.footnotes], width)]
    return "".join(f"{line}\n" for line in all_lines)


def _hide_columns(
    table: Table, columns: list[Column], rows: Sequence[Row], filled_keys: set[str], width: int
) -> list[Column]:
    """Remove columns from the list until the table fits `width`; return them (see `text`)."""
    identifying = [column for column in columns if column.key in IDENTIFYING_KEYS & filled_keys]
    value_counts = _count_identifying_values(identifying, rows)
    hidden_columns: list[Column] = []
    cells = _cells(table, columns, table.max_rows)
    while len(columns) > 2 and sum(_widths(cells)) > width:
        spare = _spare_positions(columns, filled_keys, value_counts)
        positions = spare or _hideable_positions(columns, value_counts)
        fits_folded = not spare and sum(_widths(_folded(cells, width))) <= width
        if not positions or fits_folded:
            break
        hidden_columns.insert(0, columns.pop(max(positions)))
        cells = _cells(table, columns, table.max_rows)
    return hidden_columns


def _spare_positions(
    columns: Sequence[Column], filled_keys: set[str], value_counts: Mapping[str, int]
) -> list[int]:
    """Return the positions of spare and of empty columns, which are hidden first."""
    return [
        i
        for i, column in enumerate(columns)
        if column.key not in value_counts
        and (column.is_spare or (i and column.key not in filled_keys))
    ]


def _hideable_positions(columns: Sequence[Column], value_counts: Mapping[str, int]) -> list[int]:
    """Return the positions of columns without an interval, else of identifiers with one value."""
    later_columns = [*enumerate(columns)][1:]
    plain = [i for i, column in later_columns if column.key not in value_counts and not column.ends]
    return plain or [i for i, column in later_columns if value_counts.get(column.key) == 1]


def _count_identifying_values(columns: Sequence[Column], rows: Sequence[Row]) -> dict[str, int]:
    """Return, by key, the number of values of the columns that identify a row (0 of a single row).

    A spare column is among them only if it distinguishes rows that the others do not.
    """

    def count_values(keys: Sequence[str]) -> int:
        return len({tuple(map(row.get, keys)) for row in rows})

    keys = [column.key for column in columns if not column.is_spare]
    for column in columns:
        if column.is_spare and count_values([*keys, column.key]) > count_values(keys):
            keys.append(column.key)
    return {key: count_values([key]) if len(rows) > 1 else 0 for key in keys}


def prose(lines: Iterable[str], width: int | None) -> Iterator[str]:
    """Yield lines of text; a line wider than `width` is broken between words."""
    return (piece for line in lines for piece in (wrap(line, width) if width else [line]))


def wrap(text: str, width: int) -> list[str]:
    """Return a text in lines: broken between words and behind commas of a list, never inside."""
    lines = [""]
    for piece in BREAK.split(text):
        if lines[-1].strip() and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def _cells(table: Table, columns: Sequence[Column], row_limit: int | None = None) -> Cells:
    """Return the headings and the first rows (all for None), each cell a text on one line."""
    rows = (
        [_cell_text(column, row, table.has_units) for column in columns]
        for row in table.rows[:row_limit]
    )
    return [[one_line(column.label) for column in columns], *rows]


def _cell_text(column: Column, row: Row, has_units: bool) -> str:
    """Return a cell with its interval and unit on one line: `~1.62 s [1.36-1.92]`."""
    value = row[column.key]
    ends = [row.get(end) for end in column.ends] or [None, None]
    if column.form and isinstance(value, int | float):
        numbers = [format(number, column.form) for number in (value, *ends) if number is not None]
        within = f" [{numbers[1]}-{numbers[2]}]" if len(numbers) > 2 else ""
        return f"{numbers[0]}{within}".replace("%", " %")
    text = interval(column.key if has_units else "", value, *ends)
    if column.ends and row.get("is_extrapolated") is True:
        text = f"~{text}"
    return one_line(text.replace("\n", " "))


def _is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column is aligned to the right: its cells are dashes or numbers, not lists."""
    return bool(cells) and all(
        c == "-" or (c.lstrip("-~")[:1].isdigit() and len(c) <= WIDEST and ", " not in c)
        for c in cells
    )


def _widths(cells: Cells) -> list[int]:
    widest = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [width + 2 for width in widest]  # a blank on either side


def _folded(cells: Cells, width: int) -> Cells:
    """Return the cells with the widest texts folded between words until the table fits `width`."""
    widths = _widths(cells)
    words = [
        max(len(word) for cell in column for word in wrap(cell, 1)) + 2
        for column in zip(*cells, strict=True)
    ]
    texts = [not _is_numeric([row[i] for row in cells[1:]]) for i in range(len(widths))]
    while sum(widths) > width:
        can = [i for i, text in enumerate(texts) if text and widths[i] > max(words[i], 12)]
        if not can:
            break
        widest = max(can, key=lambda i: widths[i])
        widths[widest] -= 1
    folded_cells: Cells = []
    for row in cells:
        pieces = [wrap(cell, size - 2) for cell, size in zip(row, widths, strict=True)]
        folded_cells += map(list, zip_longest(*pieces, fillvalue=""))
    return folded_cells


def _lines(cells: Cells, numeric: Sequence[bool]) -> Iterator[str]:
    widths = _widths(cells)
    for row in cells:
        padded = zip(row, widths, numeric, strict=True)
        yield "".join(
            f" {cell:{'>' if right else '<'}{n - 2}} " for cell, n, right in padded
        ).rstrip()


def markdown(table: Table) -> str:
    """Return the table as Markdown."""
    lines = _cells(table, table.columns)
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
    rows = ([row.get(key) for key in keys] for row in table.rows)
    file.writelines(csv_parts(keys, rows))


def csv_parts(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the text of a CSV file in parts of `CSV_PART_ROWS` rows, the headings first."""
    cells = ([harmless(cell) if type(cell) is str else cell for cell in row] for row in rows)
    lines = chain([[*map(harmless, headings)]], cells)
    while part := [*islice(lines, CSV_PART_ROWS)]:
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows(part)
        yield buffer.getvalue()


@lru_cache(maxsize=4096)
def harmless(value: str) -> str:
    """Return a CSV cell that no program runs: no formula, no control character but newlines."""
    text = value if value.isprintable() else "\n".join(map(one_line, value.split("\n")))
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
    heads, *rows = _cells(table, table.columns)
    numeric = [_is_numeric([row[i] for row in rows]) for i in range(len(heads))]
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

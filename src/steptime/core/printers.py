"""Printers of a `Table`: text for people, JSON, CSV, Markdown, HTML; each returns a text."""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from html import escape
from itertools import zip_longest
from typing import Any, TextIO

from steptime.core.errors import one_line
from steptime.core.table import Column, JsonRows, LazySequence, Row, Table, cut
from steptime.core.units import interval
from steptime.core.values import number_of

Cells = list[list[str]]
APOSTROPHE = "'"  # before what would be a formula
BREAK = re.compile(r"(?<=\s)(?=\S)|(?<=,)(?=[A-Za-z])")  # where a line of text may end
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a cell begins with that spreadsheets compute
WHICH = {"name", "network", "model", "device", "platform", "gpu_type"}  # keys that say what of
WIDEST = 40  # characters of a number with its unit and interval; what is longer is a text
PLAIN = (str, float, int, bool, type(None))


def text(table: Table, width: int | None = None) -> str:
    """Return the table for people, at most `width` characters wide where that can be.

    Spare columns of which nothing is known are left out. In a narrow place the other spare ones go
    first, and all of which nothing is known; then the widest texts are folded between words and
    behind commas; then columns go from the right: but for the first and for those that hold an
    interval, and never all but one. What says which network and device a row is of goes last, and
    only where all rows say the same. What went is said below.
    """
    rows = [*table.rows[: table.most]]
    known = {one.key for one in table.columns for row in rows if row[one.key] not in (None, "")}
    kept = [one for one in table.columns if one.key in known or not (one.spare and rows)]
    cells = _cells(table, kept, table.most)
    which = _telling([one for one in kept if one.key in WHICH & known], rows)
    gone: list[Column] = []
    while width and len(kept) > 2 and sum(_widths(cells)) > width:
        others = [(i, one) for i, one in enumerate(kept) if one.key not in which]
        spare = [i for i, one in others if one.spare or (i and one.key not in known)]
        can = spare or [i for i, one in others if i and not one.ends]
        can = can or [i for i, one in enumerate(kept) if i and which.get(one.key) == 1]
        if not can or (not spare and sum(_widths(_folded(cells, width))) <= width):
            break
        gone.insert(0, kept.pop(max(can)))
        cells = _cells(table, kept, table.most)
    numeric = [_is_numeric([row[i] for row in cells[1:]]) for i in range(len(kept))]
    cells = _folded(cells, width) if width else cells
    lines = list(_lines(cells, numeric))[0 if any(cells[0]) else 1 :]
    below = cut(len(table.rows) - len(rows), "--json")
    names = ", ".join(column.heading or column.key for column in gone)
    below += [f"hidden columns (terminal width): {names}; --json has all"] if gone else []
    said = [*prose(table.title.splitlines(), width), *lines, *prose([*below, *table.below], width)]
    return "".join(f"{line}\n" for line in said)


def _telling(named: Sequence[Column], rows: Sequence[Row]) -> dict[str, int]:
    """Return keys of what says which network and device a row is of, and how many values each has.

    Spare columns are among them where the others leave rows that nothing tells apart.
    """

    def several(keys: Sequence[str]) -> int:
        return len({tuple(map(row.get, keys)) for row in rows})

    keys = [one.key for one in named if not one.spare]
    for one in named:
        if one.spare and several([*keys, one.key]) > several(keys):
            keys.append(one.key)
    return {key: several([key]) if len(rows) > 1 else 0 for key in keys}


def prose(lines: Iterable[str], width: int | None) -> Iterator[str]:
    """Return lines of text, one that is wider than `width` in pieces, broken between words."""
    return (piece for line in lines for piece in (wrap(line, width) if width else [line]))


def wrap(text: str, width: int) -> list[str]:
    """Return a text in lines: broken between words and behind commas of a list, never inside."""
    lines = [""]
    for piece in BREAK.split(text):
        if lines[-1].strip() and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def _cells(table: Table, kept: Sequence[Column], most: int | None = None) -> Cells:
    """Return the headings and the first rows, all for None, as texts on one line each."""

    def cell(column: Column, row: Row) -> str:
        value = row[column.key]
        ends = [row.get(end) for end in column.ends] or [None, None]
        if column.form and isinstance(value, int | float):
            said = [format(one, column.form) for one in (value, *ends) if one is not None]
            within = f" [{said[1]}-{said[2]}]" if len(said) > 2 else ""
            return f"{said[0]}{within}".replace("%", " %")
        text = interval(column.key if table.units else "", value, *ends)
        if column.ends and row.get("is_extrapolated") is True:
            text = f"~{text}"
        return one_line(text.replace("\n", " "))

    rows = ([cell(column, row) for column in kept] for row in table.rows[:most])
    return [[one_line(column.heading) for column in kept], *rows]


def _is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column stands to the right: of dashes and short texts that begin as numbers do.

    Lists are none.
    """
    return bool(cells) and all(
        c == "-" or (c.lstrip("-~")[:1].isdigit() and len(c) <= WIDEST and ", " not in c)
        for c in cells
    )


def _widths(cells: Cells) -> list[int]:
    widest = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [width + 2 for width in widest]  # a blank on either side


def _folded(cells: Cells, width: int) -> Cells:
    """Return the cells, the widest texts folded between words as far as `width` asks for it."""
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
    found: Cells = []
    for row in cells:
        pieces = [wrap(cell, size - 2) for cell, size in zip(row, widths, strict=True)]
        found += map(list, zip_longest(*pieces, fillvalue=""))
    return found


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
    made = io.StringIO()
    write_csv(table, made)
    return made.getvalue()


def write_csv(table: Table, file: TextIO) -> None:
    """Write the table as CSV, row by row: a million are not in memory at once.

    A text that a spreadsheet would take for a formula has an apostrophe before it.
    """
    writer = csv.writer(file, lineterminator="\n")
    keys = [key for one in table.full or table.columns for key in (one.key, *one.ends)]
    writer.writerow(map(harmless, keys))
    writer.writerows([harmless(row.get(key)) for key in keys] for row in table.rows)


def harmless(value: Any) -> Any:
    """Return a cell of CSV as no program runs it: no formula, no control character but newlines."""
    if not isinstance(value, str):
        return value
    text = value if value.isprintable() else "\n".join(map(one_line, value.split("\n")))
    computes = value.startswith(FORMULA) and math.isnan(number_of(value))
    return f"{APOSTROPHE}{text}" if computes else text


def json_text(document: object) -> str:
    """Return `document` as one JSON document; a number that is not finite becomes null."""
    return "".join(json_parts(document)) + "\n"


def json_parts(value: Any, end: str = "\n") -> Iterator[str]:
    """Yield the text of `json_text` but its last line end; further lines begin after `end`.

    What has items of one line each goes to the encoder in C: it cannot indent, but it can separate.
    The items of an iterator, a `JsonRows` or a `LazySequence` take one line each and are written
    while they are computed.
    """
    if isinstance(value, Iterator | JsonRows | LazySequence):
        encode, before, between = _encoder(", "), f"{end}  ", f",{end}  "
        yield "["
        alone = ([encode(finite(item))] for item in value)
        for texts in value.texts() if isinstance(value, JsonRows) else alone:
            yield before
            yield between.join(texts)  # by itself: as one with what is before it would be a copy
            before = between
        yield f"{end}]"
        return
    if not isinstance(value, Mapping | list | tuple) or not value:
        yield json.dumps(finite(value), allow_nan=False)
        return
    before, between = f"{end}  ", f",{end}  "
    is_list = not isinstance(value, Mapping)
    if isinstance(value, Mapping) and {*map(type, value)} != {str}:
        value = {str(key): item for key, item in value.items()}
    opened, closed = "[]" if is_list else "{}"
    held = value.values() if isinstance(value, Mapping) else value
    if all(type(item) in PLAIN or not item for item in held):
        try:
            text = _encoder(between)(value)
        except (TypeError, ValueError):  # of other types, or not finite
            text = _encoder(between)(finite(value))
        yield f"{opened}{before}{text[1:-1]}{end}{closed}"
        return
    yield opened
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield before if is_list else f"{before}{json.dumps(key)}: "
        yield from json_parts(item, f"{end}  ")
        before = between
    yield end + closed


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
    """Return `value` with None in place of every float that JSON cannot say."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value

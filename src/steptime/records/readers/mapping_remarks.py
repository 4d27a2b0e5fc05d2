"""Remarks on a table that a mapping read: passed-over lines, units of headings, pooled rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from steptime.core.errors import shorten
from steptime.core.expressions.formula import column_name, parse_cell
from steptime.core.tables.table_layout import TableLayout, find_headings
from steptime.core.units import format_count
from steptime.records.readers.heading_units import (
    find_column_unit,
    find_lone_column,
    may_be_minutes,
)
from steptime.records.readers.mapped_row import MappedRow
from steptime.records.readers.mapping_keys import UNITS
from steptime.records.readers.sources import RecordSource
from steptime.records.repeats import RepeatRow, repeat_key

MAX_COLUMNS_LISTED = 4


def describe_lines(
    source: RecordSource, records: Sequence[RepeatRow], layout: TableLayout
) -> Iterator[str]:
    """Yield remarks on lines that were passed over, and on a last number that may be cut."""
    text = source.text
    is_csv = not (source.is_json or layout.prefix or layout.row_pattern)  # no JSON, no log
    if not records or not is_csv:
        return
    headings = find_headings(text, layout, source.name.lower().endswith(".tsv"))
    if headings is not None and headings.skipped:
        count = format_count(headings.skipped, "line")
        yield f"line {headings.line} names the columns; {count} before it passed over"
    line_break = "\n" if "\n" in text else "\r"
    last_line = text.count(line_break) + 1
    ends_in_number = text[-1:].isdigit()
    if ends_in_number and records[-1].record.env["source_entry"] == last_line:
        yield f"line {last_line}, the last, has no end; if it was cut, its number is wrong"


def describe_units(rows: Sequence[MappedRow]) -> Iterator[str]:
    """Yield a remark on each column that was read in the unit of its heading, or in another one."""
    units: dict[str, str] = {}  # of the mapping, by the text of the column
    distinct_keys = {id(row.keys): row.keys for row in rows}  # rows share those of their entry
    for keys in distinct_keys.values():
        if keys.quantities:
            times = [amount for name, amount in keys.quantities.items() if name.endswith("_s")]
            texts = [amount.formula or amount.column for amount in times if amount.scale is None]
            units |= dict.fromkeys(texts, "")
        else:
            units[keys.samples or keys.runs or keys.seconds] = keys.unit
    for text, unit in units.items():
        yield from _describe_unit(text, unit, list(rows[0].raw))


def _describe_unit(formula_text: str, unit: str, headings: Sequence[str]) -> Iterator[str]:
    """Yield the remark on the unit of a text of the mapping, if its headings name one."""
    column = find_lone_column(formula_text, headings)
    if column is not None and not unit and may_be_minutes(column):
        yield f"column '{column}' is read in s; if it holds minutes, write ({formula_text}) * 60"
    heading_unit = find_column_unit(formula_text, headings)
    if heading_unit is None:
        return
    subject = f"'{formula_text}'" if column is None else f"column '{column}'"
    word = heading_unit.word
    if not unit and heading_unit.seconds != 1:
        yield f"{subject} is read in {word}, as its heading says"
    elif unit and UNITS[unit] != heading_unit.seconds:
        reason = "as 'unit' of the mapping says"
        yield f"{subject} is read in {unit}, {reason}; its heading says {word}"


def describe_replaced(
    replaced_keys: Mapping[str, str], command_keys: Mapping[str, str]
) -> Iterator[str]:
    """Yield a remark on each option that replaces what rows say: their networks become one."""
    for key, text in replaced_keys.items():
        yield f"--{key} {command_keys[key]} replaces {shorten(text)} of the mapping in every row"


def describe_repeats(
    repeat_rows: Sequence[RepeatRow],
    record_count: int,
    rows: Sequence[MappedRow],
    layout: TableLayout,
) -> Iterator[str]:
    """Yield a remark on repeats: "5 rows are 1 record: rows that differ in nothing but ..."."""
    if record_count == len(repeat_rows):
        return
    row_count = format_count(len(repeat_rows), "row")
    records = format_count(record_count, "record")
    line = (
        f"{row_count} are {records}: rows that differ in nothing but their values are its repeats"
    )
    columns = _find_unread_differences(repeat_rows, rows, layout)
    if columns:
        names = ", ".join(columns[:MAX_COLUMNS_LISTED])
        remedy = f'options = {{ {column_name(columns[0])} = "{{{columns[0]}}}" }} keeps them apart'
        line += f"; these differ in {names}, too, which the mapping does not read: {remedy}"
    yield line


def _find_unread_differences(
    repeat_rows: Sequence[RepeatRow], rows: Sequence[MappedRow], layout: TableLayout
) -> list[str]:
    """Return the columns in whose texts repeats differ, and that no text of the mapping names."""
    rows_by_key: dict[str, list[MappedRow]] = {}
    for repeat_row, row in zip(repeat_rows, rows, strict=True):
        key = repeat_key(repeat_row)
        if key is not None:
            rows_by_key.setdefault(key, []).append(row)
    names_read = layout.mentioned or frozenset()  # columns that the mapping names anywhere
    unread_columns = [name for name in rows[0].raw if column_name(name) not in names_read]
    return [
        column
        for column in unread_columns
        if any(_differ(row.raw.get(column) for row in group) for group in rows_by_key.values())
    ]


def _differ(cells: Iterable[object]) -> bool:
    """Return whether cells hold different texts; numbers, lists and empty cells are none."""
    texts = {cell for cell in cells if isinstance(cell, str) and cell}
    return len(texts) > 1 and any(isinstance(parse_cell(text), str) for text in texts)

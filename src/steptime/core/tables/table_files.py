"""Readers of tables that users bring: CSV, JSON and JSON lines, also compressed by gzip."""

import codecs
import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from steptime.core.errors import InputError
from steptime.core.expressions.formula import column_name, parse_cell
from steptime.core.json_types import JsonObject
from steptime.core.tables.json_rows import json_rows, log_rows
from steptime.core.tables.table_layout import (
    PLAIN,
    Cells,
    TableLayout,
    check_names_differ,
    csv_rows,
)
from steptime.core.toml_files import format_path

Words = Mapping[str, Mapping[str, str]]
NO_WORDS: Words = {}
JSON_ENDINGS = (".jsonl", ".json", ".ndjson")
CSV_ENDINGS = (".csv", ".tsv", ".txt")
ENDINGS = (*CSV_ENDINGS, *JSON_ENDINGS)
WORKBOOK_ENDINGS = (".xlsx", ".xlsm", ".xls", ".ods", ".zip")
ENDINGS_TEXT = ".csv, .tsv, .txt, .jsonl or .json"  # .ndjson is another name of .jsonl
LOG_PREFIXES = (":::MLLOG {", "DLLL {")  # of lines of JSON in logs, without the brace
_PREFIX_CHARACTERS = 16_384  # of a file, in which they are looked for
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HEAD_BYTES = 1000
_MIN_ZERO_SHARE = 0.4  # of the bytes of Latin text in UTF-16 that are zero: a half


def decode(content: bytes, is_complete: bool = True) -> str:
    """Return the text of a file: by its byte order mark, else UTF-8, else Windows' code page 1252.

    Text of UTF-16 without a mark is known by its zero bytes. The first bytes of a file, which is
    not `is_complete`, may end within a character.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if content.startswith(mark):
            return content.decode(encoding, "replace")
    # In UTF-16 a Latin letter is a pair of bytes of which one is zero: always the same of both.
    head = content[:_HEAD_BYTES]
    zeros_first = head[::2].count(0)  # among the first bytes of pairs
    zeros_second = head[1::2].count(0)
    low_count, high_count = sorted((zeros_first, zeros_second))
    min_zeros = _MIN_ZERO_SHARE * len(head)
    is_utf_16 = high_count >= min_zeros > low_count
    if is_utf_16:
        is_little_endian = zeros_second > zeros_first
        return content.decode("utf-16-le" if is_little_endian else "utf-16-be", "replace")
    try:
        # The beginning of a file may end within a character.
        return codecs.getincrementaldecoder("utf-8")().decode(content, is_complete)
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")


def is_table_name(name: str) -> bool:
    """Return whether a file has the ending of a table, in letters of either case, or .gz behind."""
    return name.lower().removesuffix(".gz").endswith(ENDINGS)


def table_rows(
    table: Path | Iterable[Cells], words: Words = NO_WORDS
) -> Iterator[tuple[int, JsonObject]]:
    """Yield the number and the values of each row of a file or a list, by names for formulas.

    Raises `InputError` for a file that is not a table, and at the first row that cannot be read.
    """
    source = format_path(table) if isinstance(table, Path) else ""
    for number, cells in table_cells(table):
        if isinstance(cells, InputError):
            raise InputError(f"{source}:{number}: {cells}")
        yield number, values_of(cells, words, source or f"row {number}")


def table_cells(
    table: Path | Iterable[Cells], layout: TableLayout = PLAIN
) -> Iterator[tuple[int, Cells | InputError]]:
    """Yield the number of each row of a file or a list, and its cells or the error in it.

    Raises `InputError` for a file that is not a table.
    """
    if not isinstance(table, Path):
        yield from enumerate(table)
        return
    source = format_path(table)
    if not is_table_name(table.name) and table.exists():
        is_workbook = table.name.lower().endswith(WORKBOOK_ENDINGS)
        remedy = "; save it as CSV" if is_workbook else ""
        raise InputError(f"{source}: a table is {ENDINGS_TEXT}, also with .gz{remedy}")
    try:
        content = table.read_bytes()
        is_gzip = content.startswith(b"\x1f\x8b")
        if is_gzip:
            content = gzip.decompress(content)
    except OSError as error:
        raise InputError(f"{source}: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise InputError(f"{source}: {error}") from None
    name = table.name.lower().removesuffix(".gz")
    yield from rows_of_text(decode(content), name, source, layout)


def rows_of_text(
    text: str, name: str, source: str, layout: TableLayout = PLAIN
) -> Iterator[tuple[int, Cells | InputError]]:
    """Yield the numbers and the cells of rows, as `table_cells`, of the text of a file."""
    says_line_format = bool(layout.row_pattern or layout.prefix)
    file_layout = layout
    if layout.has_names and not says_line_format:  # a log of JSON objects is known by its prefix
        first_text = text[:_PREFIX_CHARACTERS]
        prefix = next((prefix for prefix in LOG_PREFIXES if prefix in first_text), "")
        # The brace is no part of the prefix: it opens the JSON object behind it.
        file_layout = replace(layout, prefix=prefix.removesuffix(" {"))
    if file_layout.row_pattern:
        yield from log_rows(text, file_layout)
    elif file_layout.prefix or name.lower().endswith(JSON_ENDINGS):
        yield from json_rows(text, name, source, file_layout)
    else:
        yield from csv_rows(text, source, file_layout, is_tsv=name.lower().endswith(".tsv"))


def values_of(cells: Cells, words: Words = NO_WORDS, place: str = "") -> JsonObject:
    """Return the values of a row by names for formulas; cells with numbers become numbers.

    `words` translate cells by column. Raises `InputError`, which begins with `place`, if two
    columns have the same name in formulas.
    """
    return values_by_name(
        cells, {name: parse_cell(cell) for name, cell in cells.items()}, words, place
    )


def values_by_name(
    cells: Cells, values: Cells, words: Words = NO_WORDS, place: str = ""
) -> JsonObject:
    """Return values by column under names for formulas, with `words` in the place of theirs."""
    row = {column_name(name): value for name, value in values.items()}
    # Two columns have one name in formulas.
    if len(row) < len(cells):
        check_names_differ(cells, place)
    for column, meaning in words.items():
        if column in row:
            row[column] = meaning.get(str(row[column]), row[column])
    return row

"""Readers of tables that users bring: CSV and JSON lines, also compressed by gzip."""

import csv
import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from steptime.core.errors import InputError, shorten
from steptime.core.formula import column_name, valued
from steptime.core.json_types import JsonObject
from steptime.core.toml_files import shown
from steptime.core.units import counted

Words = Mapping[str, Mapping[str, str]]
Cells = Mapping[str, Any]
NO_WORDS: Words = {}
OF_JSON = (".jsonl", ".json")
OF_CSV = (".csv", ".tsv", ".txt")
ENDINGS = (*OF_CSV, *OF_JSON)
DELIMITERS = ",;\t|"
_ENDINGS_TEXT = f"{', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"


def table_rows(
    table: Path | Iterable[Cells], words: Words = NO_WORDS
) -> Iterator[tuple[int, JsonObject]]:
    """Yield the number and the values of each row of a file or a list, by names for formulas.

    Raises `InputError` for a file that is not a table, and at the first row that cannot be read.
    """
    source = shown(table) if isinstance(table, Path) else ""
    for number, cells in table_cells(table):
        if isinstance(cells, InputError):
            raise InputError(f"{source}:{number}: {cells}")
        yield number, values_of(cells, words, source or f"row {number}")


def table_cells(
    table: Path | Iterable[Cells], delimiter: str = ""
) -> Iterator[tuple[int, Cells | InputError]]:
    """Yield the number of each row of a file or a list, and its cells or the error in it.

    Raises `InputError` for a file that is not a table.
    """
    if not isinstance(table, Path):
        yield from enumerate(table)
        return
    name = table.name.removesuffix(".gz")
    if not name.endswith(ENDINGS) and table.exists():
        raise InputError(f"{shown(table)}: a table is {_ENDINGS_TEXT}, also with .gz")
    try:
        opened: Any = partial(gzip.open, table) if table.name.endswith(".gz") else table.open
        with opened("rt", encoding="utf-8-sig", newline="") as file:
            yield from cells_of(file, name, shown(table), delimiter)
    except OSError as error:
        raise InputError(f"{shown(table)}: {error.strerror or error}") from None
    except (UnicodeDecodeError, EOFError) as error:
        raise InputError(f"{shown(table)}: {error}") from None


def cells_of(
    file: IO[str], name: str, source: str, delimiter: str = ""
) -> Iterator[tuple[int, Cells | InputError]]:
    """Yield the numbers and the cells of rows, as `table_cells`, from an open file.

    The default delimiter of CSV is the candidate that is most frequent in the first line.
    """
    if name.lower().endswith(OF_JSON):
        yield from _json_rows(file, name, source)
        return
    heading = file.readline()
    file.seek(0)
    usual = "\t" if name.lower().endswith(".tsv") else max(DELIMITERS, key=heading.count)
    reader = csv.reader(file, delimiter=delimiter or usual, skipinitialspace=True, strict=True)
    columns: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            cells = list(map(str.strip, next(reader)))
        except StopIteration:
            return
        except csv.Error as error:
            fault = InputError(f"no line of CSV: {error}")
            if columns is None:
                raise InputError(f"{source}:1: {fault}") from None
            yield line, fault
            continue
        if columns is None:
            columns = cells
            _check_names_differ(columns, source)
        elif len(cells) == len(columns):
            yield line, dict(zip(columns, cells, strict=True))
        elif cells:
            many = f"{counted(len(cells), 'cell')} under {counted(len(columns), 'column')}"
            yield line, InputError(many)


def values_of(cells: Cells, words: Words = NO_WORDS, place: str = "") -> JsonObject:
    """Return the values of a row by names for formulas; cells with numbers become numbers.

    `words` translate cells by column. Raises `InputError`, which begins with `place`, if two
    columns have the same name in formulas.
    """
    row = {column_name(name): valued(cell) for name, cell in cells.items()}
    if len(row) < len(cells):
        _check_names_differ(cells, place)
    for column, meaning in words.items():
        if column in row:
            row[column] = meaning.get(str(row[column]), row[column])
    return row


def _check_names_differ(columns: Iterable[str], source: str) -> None:
    """Raise `InputError` if two columns have one name in formulas: `time (ms)` and `time_ms`."""
    for name, count in Counter(filter(None, map(column_name, columns))).items():
        if count > 1:
            raise InputError(f"{source}: two columns are named {name}")


def _json_rows(file: IO[str], name: str, source: str) -> Iterator[tuple[int, Cells]]:
    """Yield the objects of JSON lines, or of one list, each with its line or place."""
    is_list = not name.lower().endswith(".jsonl")
    for number, text in enumerate([file.read()] if is_list else file, 1):
        if not text.strip():
            continue
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{source}:{number}: not JSON: {error}") from None
        if is_list and not isinstance(parsed, list):
            raise InputError(f"{source}: a table is a list of rows, not {shorten(parsed)}")
        for place, row in enumerate(parsed, 1) if is_list else ((number, parsed),):
            if not isinstance(row, dict):
                raise InputError(f"{source}:{place}: a row is an object, not {shorten(row)}")
            yield place, row

"""Rows of tables of others: CSV, JSON lines, each also compressed by gzip."""

import csv
import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from steptime.core.errors import InputError, shorten
from steptime.core.formula import named, valued
from steptime.core.toml_files import shown
from steptime.core.units import counted

Words = Mapping[str, Mapping[str, str]]
Cells = Mapping[str, Any]
NO_WORDS: Words = {}
OF_JSON = (".jsonl", ".json")
OF_CSV = (".csv", ".tsv", ".txt")
ENDINGS = (*OF_CSV, *OF_JSON)
DELIMITERS = ",;\t|"
_SAID = f"{', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"


def table_rows(
    table: Path | Iterable[Cells], words: Words = NO_WORDS
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the values of each row of a file or of a list, by names for formulas.

    Raises `InputError` for a file that is no such table, at its first row that is none.
    """
    where = shown(table) if isinstance(table, Path) else ""
    for number, cells in table_cells(table):
        if isinstance(cells, InputError):
            raise InputError(f"{where}:{number}: {cells}")
        yield number, values_of(cells, words, where or f"row {number}")


def table_cells(
    table: Path | Iterable[Cells], delimiter: str = ""
) -> Iterator[tuple[int, Cells | InputError]]:
    """Yield the number of each row of a file or of a list, and its cells, or why it is no row.

    Raises `InputError` for a file that is no such table.
    """
    if not isinstance(table, Path):
        yield from enumerate(table)
        return
    name = table.name.removesuffix(".gz")
    if not name.endswith(ENDINGS) and table.exists():
        raise InputError(f"{shown(table)}: a table is {_SAID}, also with .gz")
    try:
        opened: Any = partial(gzip.open, table) if table.name.endswith(".gz") else table.open
        with opened("rt", encoding="utf-8-sig", newline="") as file:
            yield from cells_of(file, name, shown(table), delimiter)
    except OSError as error:
        raise InputError(f"{shown(table)}: {error.strerror or error}") from None
    except (UnicodeDecodeError, EOFError) as error:
        raise InputError(f"{shown(table)}: {error}") from None


def cells_of(
    file: IO[str], name: str, where: str, delimiter: str = ""
) -> Iterator[tuple[int, Cells | InputError]]:
    """Yield what `table_cells` does of the content of a file.

    Cells of CSV are apart by `delimiter`, or by what the first line has most of.
    """
    if name.lower().endswith(OF_JSON):
        yield from _of_json(file, name, where)
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
                raise InputError(f"{where}:1: {fault}") from None
            yield line, fault
            continue
        if columns is None:
            columns = cells
            _differ(columns, where)
        elif len(cells) == len(columns):
            yield line, dict(zip(columns, cells, strict=True))
        elif cells:
            many = f"{counted(len(cells), 'cell')} under {counted(len(columns), 'column')}"
            yield line, InputError(many)


def values_of(cells: Cells, words: Words = NO_WORDS, place: str = "") -> dict[str, Any]:
    """Return the values of a row by names for formulas; a cell that is a number is one.

    `words` translate cells by column. Raises `InputError` for columns that formulas cannot tell
    apart, at a `place`.
    """
    row = {named(name): valued(cell) for name, cell in cells.items()}
    if len(row) < len(cells):
        _differ(cells, place)
    for column, meaning in words.items():
        if column in row:
            row[column] = meaning.get(str(row[column]), row[column])
    return row


def _differ(columns: Iterable[str], where: str) -> None:
    """Raise `InputError` where two columns have one name: `time (ms)` and `time_ms`."""
    for name, often in Counter(filter(None, map(named, columns))).items():
        if often > 1:
            raise InputError(f"{where}: two columns are named {name}")


def _of_json(file: IO[str], name: str, where: str) -> Iterator[tuple[int, Cells]]:
    """Yield the objects of JSON lines, or of one list, each with its line or place."""
    is_list = not name.lower().endswith(".jsonl")
    for number, text in enumerate([file.read()] if is_list else file, 1):
        if not text.strip():
            continue
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}:{number}: not JSON: {error}") from None
        if is_list and not isinstance(found, list):
            raise InputError(f"{where}: a table is a list of rows, not {shorten(found)}")
        for place, row in enumerate(found, 1) if is_list else ((number, found),):
            if not isinstance(row, dict):
                raise InputError(f"{where}:{place}: a row is an object, not {shorten(row)}")
            yield place, row

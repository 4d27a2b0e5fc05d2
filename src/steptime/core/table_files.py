"""Rows of tables of others: CSV, JSON lines, each also compressed by gzip."""

import csv
import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any

from steptime.core.errors import InputError, shorten
from steptime.core.formula import named, valued
from steptime.core.toml_files import shown

Words = Mapping[str, Mapping[str, str]]
NO_WORDS: Words = {}


def table_rows(
    table: Path | Iterable[Mapping[str, Any]], words: Words = NO_WORDS
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the values of each row of a file or of a list, by names for formulas.

    `words` translate cells by column; a cell that is a number is one. Raises `InputError` for a
    file that is no such table, and for columns that formulas cannot tell apart.
    """
    for number, cells in _rows(table) if isinstance(table, Path) else enumerate(table):
        row = {_named(name): valued(cell) for name, cell in cells.items()}
        if len(row) < len(cells):
            _differ(cells, shown(table) if isinstance(table, Path) else f"row {number}")
        for column, meaning in words.items():
            if column in row:
                row[column] = meaning.get(str(row[column]), row[column])
        yield number, row


_named = lru_cache(maxsize=1024)(named)


def _differ(columns: Iterable[str], where: str) -> None:
    """Raise `InputError` where two columns have one name: `time (ms)` and `time_ms`."""
    for name, often in Counter(filter(None, map(_named, columns))).items():
        if often > 1:
            raise InputError(f"{where}: two columns are named {name}")


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    name = path.name.removesuffix(".gz")
    if not name.endswith((".csv", ".tsv", ".jsonl", ".json")):
        raise InputError(f"{shown(path)}: a table is .csv, .tsv, .jsonl or .json, also with .gz")
    try:
        opened: Any = partial(gzip.open, path) if path.name.endswith(".gz") else path.open
        with opened("rt", encoding="utf-8-sig", newline="") as file:
            yield from _of_csv(file, path) if name.endswith("sv") else _of_json(file, path)
    except OSError as error:
        raise InputError(f"{shown(path)}: {error.strerror or error}") from None
    except (UnicodeDecodeError, EOFError, csv.Error) as error:
        raise InputError(f"{shown(path)}: {error}") from None


def _of_csv(file: IO[str], path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    heading = file.readline()
    file.seek(0)
    plain = ";" if heading.count(";") > heading.count(",") else ","
    separator = "\t" if ".tsv" in path.name else plain
    reader = csv.DictReader(file, skipinitialspace=True, delimiter=separator, strict=True)
    _differ(reader.fieldnames or (), shown(path))
    for cells in reader:
        if None in cells or None in cells.values():
            raise InputError(f"{shown(path)}:{reader.line_num}: not a cell for each column")
        yield reader.line_num, cells


def _of_json(file: IO[str], path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the objects of JSON lines, or of one list, each with its line or place."""
    is_list = ".jsonl" not in path.name
    for number, text in enumerate([file.read()] if is_list else file, 1):
        if not text.strip():
            continue
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{shown(path)}:{number}: not JSON: {error}") from None
        if is_list and not isinstance(found, list):
            raise InputError(f"{shown(path)}: a table is a list of rows, not {shorten(found)}")
        for place, row in enumerate(found, 1) if is_list else ((number, found),):
            if not isinstance(row, dict):
                raise InputError(f"{shown(path)}:{place}: a row is an object, not {shorten(row)}")
            yield place, row

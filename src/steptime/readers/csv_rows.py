"""Rows of CSV files of others, each with its line; one that is none is said so."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from steptime.core.errors import InputError, shorten
from steptime.core.record import Record
from steptime.readers.found import Found
from steptime.readers.sources import Source, Unread

Row = Mapping[str, str]


@dataclass(frozen=True)
class Table:
    """The columns of a file, and its rows with their line."""

    columns: Sequence[str]
    rows: Iterator[tuple[int, Row] | Unread]


def csv_table(source: Source, delimiter: str = ",") -> Table:
    """Give the rows of a file whose first line names the columns; blanks around cells are none.

    Raises `InputError` for a first line that names none, or one twice.
    """
    reader = csv.reader(
        io.StringIO(source.text, newline=""), delimiter=delimiter, skipinitialspace=True
    )
    try:
        columns = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise InputError(f"line 1 is no line of CSV: {error}") from None
    if not any(columns):
        raise InputError("line 1 names no columns")
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        raise InputError(f"line 1 names a column twice: {shorten(twice[0])}")
    return Table(columns, _rows(reader, source.name, columns))


def _rows(
    reader: Iterator[list[str]], file: str, columns: Sequence[str]
) -> Iterator[tuple[int, Row] | Unread]:
    line = 1
    while True:
        line = getattr(reader, "line_num", line) + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Unread(file, line, f"no line of CSV: {error}")
            continue
        if not cells:
            continue  # an empty line says nothing
        if len(cells) != len(columns):
            yield Unread(file, line, f"{len(cells)} cells under {len(columns)} columns")
            continue
        yield line, dict(zip(columns, map(str.strip, cells), strict=True))


def each_row(source: Source, table: Table, make: Callable[[Row, int], Record]) -> Found:
    """Give the record that `make` makes of each row and its line, or why there is none."""
    records: list[Record] = []
    unread: list[Unread] = []
    for found in table.rows:
        if isinstance(found, Unread):
            unread.append(found)
            continue
        line, row = found
        try:
            records.append(make(row, line))
        except InputError as error:
            unread.append(Unread(source.name, line, str(error)))
    return Found(tuple(records), tuple(unread))


def number(row: Row, column: str) -> float:
    """Give the finite number of a cell; raises `InputError` for what is none."""
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{column}: must be a number, not {shorten(row[column])}")
    return value


def positive(row: Row, column: str) -> float:
    """Give the positive number of a cell; raises `InputError` for what is none."""
    value = number(row, column)
    if value <= 0:
        raise InputError(f"{column}: must be a positive number, not {shorten(row[column])}")
    return value

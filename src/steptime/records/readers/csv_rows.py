"""CSV files of others, row by row: the one path of all readers of tables."""

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from steptime.core.errors import InputError, one_of, shorten
from steptime.core.ranges import number_of
from steptime.records.readers.sources import Reading, RecordSource, Unread
from steptime.records.record import Record

Row = Mapping[str, str]


def first_line(source: RecordSource) -> set[str]:
    """Return the columns that a file's first line names, by which a table is recognised."""
    return {name.strip() for name in source.head.partition("\n")[0].split(",")}


def apart_by(line: str, delimiter: str = ",") -> str:
    """Return a hint where the cells of a line are apart by something else, else ""."""
    other = next((mark for mark in (";", "\t", "|", ",") if mark in line), delimiter)
    said = f"its cells are apart by {other!r}, not by {delimiter!r}"
    return "" if delimiter in line or other == delimiter else said


def read_rows(
    source: RecordSource,
    make: Callable[[Row, int], Record],
    *,
    delimiter: str = ",",
    needed: Sequence[str] = (),
    known: Collection[str] | None = None,
) -> Reading:
    """Return the record that `make` makes of each row and its line, or why there is none.

    Raises `InputError` for a first line without a column that is `needed`; one not `known` is told.
    """
    text = io.StringIO(source.text, newline="")
    reader: Any = csv.reader(text, delimiter=delimiter, skipinitialspace=True)
    columns = _columns(reader)
    hint = apart_by(columns[0], delimiter) if len(columns) == 1 else ""
    for column in needed:
        if hint and column not in columns:
            raise InputError(f"line 1 is one column: {hint}; a mapping says so by 'delimiter'")
        one_of("column", column, columns)
    strange = [name for name in columns if known is not None and name not in known]
    unread = [Unread(source.name, None, f"column {shorten(name)} is not known") for name in strange]
    records: list[Record] = []
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
            if len(cells) == len(columns):
                records.append(make(dict(zip(columns, map(str.strip, cells), strict=True)), line))
            elif cells:
                reason = f"{len(cells)} cells under {len(columns)} columns"
                unread.append(Unread(source.name, line, reason))
        except StopIteration:
            return Reading(tuple(records), tuple(unread))
        except csv.Error as error:
            unread.append(Unread(source.name, line, f"no line of CSV: {error}"))
        except InputError as error:
            unread.append(Unread(source.name, line, str(error)))


def _columns(reader: Any) -> list[str]:
    try:
        columns = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise InputError(f"line 1 is no line of CSV: {error}") from None
    if not any(columns):
        raise InputError("line 1 names no columns")
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        raise InputError(f"line 1 names a column twice: {shorten(twice[0])}")
    return columns


def number(row: Row, column: str) -> float:
    """Return the finite number of a cell; raises `InputError` for what is none."""
    value = number_of(row[column])
    if not math.isfinite(value):
        raise InputError(f"{column}: must be a number, not {shorten(row[column])}")
    return value


def positive(row: Row, column: str) -> float:
    """Return the positive number of a cell; raises `InputError` for what is none."""
    value = number(row, column)
    if value <= 0:
        raise InputError(f"{column}: must be a positive number, not {shorten(row[column])}")
    return value


def whole(row: Row, column: str) -> int:
    """Return the whole number of a cell; raises `InputError` for what is none."""
    value = number(row, column)
    if value != int(value):
        raise InputError(f"{column}: a whole number, not {shorten(row[column])}")
    return int(value)

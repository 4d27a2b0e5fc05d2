"""How the rows of a table stand in its file: delimiter, headings, number marks, place in JSON."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.expressions.formula import column_name
from steptime.core.units import format_count

Cells = Mapping[str, Any]
DELIMITERS = ",;\t|"
MAX_HEADING_LINES = 1000  # before the headings
_SEPARATOR_LINE = re.compile(r"\s*\"?sep=(.)\"?\s*")  # as Excel writes and reads it


@dataclass(frozen=True)
class TableLayout:
    """How the rows of a table stand in its file.

    Attributes:
        delimiter: mark between cells of CSV; "" for the most frequent one of the headings.
        skip: lines before the headings.
        comment: text with which lines begin that are no rows.
        decimal: decimal mark of numbers.
        thousands: mark between groups of three digits.
        columns: the headings are the first line with all of these.
        needed: names of columns that are read; where the first line lacks some of them, the
            headings are the next line that has all.
        mentioned: words of the mapping; two columns of one name are refused if it is among them,
            or where this is None.
        rows_path: path of the rows in a JSON document: `log_history`.
        prefix: text before the JSON object of each line; lines without it are no rows.
        facts: two keys of JSON lines; the value under the second stands in later rows under the
            name that the first gives.
        row_pattern: regular expression of the lines that are rows; its groups are the cells.
        fact_patterns: regular expressions of lines whose groups are cells of all rows below.
        has_names: whether rows of JSON get the names of inner objects, outer values and the keys
            that only other rows have.
    """

    delimiter: str = ""
    skip: int = 0
    comment: str = ""
    decimal: str = "."
    thousands: str = ""
    columns: tuple[str, ...] = ()
    needed: frozenset[str] = frozenset()
    mentioned: frozenset[str] | None = None
    rows_path: str = ""
    prefix: str = ""
    facts: tuple[str, ...] = ()
    row_pattern: str = ""
    fact_patterns: tuple[str, ...] = ()
    has_names: bool = False


PLAIN = TableLayout()


@dataclass(frozen=True)
class Headings:
    """The line of a table that names its columns.

    Attributes:
        line: its number, from 1.
        text: its text.
        start: number of characters before it.
        delimiter: mark between cells.
        columns: names of the columns; an empty one is named by its place, "Unnamed: 0".
        skipped: lines before it that are not blank, a comment or `sep=;`, and not skipped on
            purpose.
    """

    line: int
    text: str
    start: int
    delimiter: str
    columns: tuple[str, ...]
    skipped: int = 0


def find_headings(text: str, layout: TableLayout, is_tsv: bool = False) -> Headings | None:
    """Return the headings of a CSV text, None if there are none.

    Blank lines, comments and `sep=;` before them are passed over. With known or needed columns the
    first line that has all of them is taken, wherever it stands, or else the first line.
    """
    first_candidate: Headings | None = None
    file_delimiter = layout.delimiter  # "": neither the layout nor a line `sep=;` names one yet
    skipped = 0
    for number, start, line in _leading_lines(text, layout):
        # Excel writes `sep=;` above the headings; below the first candidate it is a plain line.
        if first_candidate is None:
            separator_line = _SEPARATOR_LINE.fullmatch(line)
            if separator_line is not None:
                file_delimiter = file_delimiter or separator_line[1]
                continue
        delimiter = file_delimiter or ("\t" if is_tsv else _likely_delimiter(line))
        columns = _column_names(line, delimiter)
        headings = Headings(number, line, start, delimiter, columns, skipped)
        if _has_columns(columns, layout):
            return headings
        # without any delimiter, blanks may stand between the columns
        lacks_delimiter = not file_delimiter and delimiter not in line
        blank_columns = _column_names(line.strip(), " ") if lacks_delimiter else ()
        if _has_columns(blank_columns, layout):
            return Headings(number, line, start, " ", blank_columns, skipped)
        if first_candidate is None:
            first_candidate = headings
        skipped += 1
    return first_candidate  # no line has all columns: the first is the likeliest


def _has_columns(columns: Sequence[str], layout: TableLayout) -> bool:
    """Return whether columns are all that a layout needs."""
    # A layout has `columns` as the file spells them, and `needed` as formulas name them.
    formula_names = {column_name(column) for column in columns}
    return layout.needed <= formula_names and set(layout.columns) <= set(columns)


def _leading_lines(text: str, layout: TableLayout) -> Iterator[tuple[int, int, str]]:
    """Yield number, start and text of the first lines that could be headings."""
    file = io.StringIO(text, newline="")
    start = 0
    for number, line in enumerate(file, start=1):
        if number > MAX_HEADING_LINES + layout.skip:
            return
        is_comment = layout.comment and line.lstrip().startswith(layout.comment)
        if number > layout.skip and line.strip() and not is_comment:
            yield number, start, line
        start += len(line)


def _likely_delimiter(line: str) -> str:
    """Return the most frequent delimiter of a line outside quotes."""
    return max(DELIMITERS, key=re.sub(r'"[^"]*"', "", line).count)


def _column_names(line: str, delimiter: str) -> tuple[str, ...]:
    """Return the names on a line; a `#` in front of the first, as numpy writes it, is no part."""
    try:
        cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        cells = line.split(delimiter)
    names = [cell.strip() for cell in cells]
    if names:
        # numpy writes headings behind a `#`.
        names[0] = re.sub(r"^#+\s*(?=\w)", "", names[0])
    return tuple(name or f"Unnamed: {column_index}" for column_index, name in enumerate(names))


def check_names_differ(columns: Iterable[str], source: str) -> None:
    """Raise `InputError` if two columns have one name in formulas: `time (ms)` and `time_ms`."""
    for name, count in Counter(filter(None, map(column_name, columns))).items():
        if count > 1:
            raise InputError(f"{source}: two columns are named {name}")


def csv_rows(
    text: str, source: str, layout: TableLayout, is_tsv: bool = False
) -> Iterator[tuple[int, Cells | InputError]]:
    """Yield line and cells of each row of a CSV text, or the fault of the line.

    Raises `InputError` for headings that cannot be read or that do not differ.
    """
    headings = find_headings(text, layout, is_tsv)
    if headings is None:
        return
    lines = _without_comments(io.StringIO(text[headings.start :], newline=""), layout.comment)
    reader = csv.reader(lines, delimiter=headings.delimiter, skipinitialspace=True, strict=True)
    _read_headings(reader, source, headings)
    columns = _distinct_columns(headings.columns, source, layout.mentioned)
    headings = replace(headings, columns=columns)
    lacks_last_newline = text[-1:] not in ("\n", "\r")  # its last line may be cut
    check = _RowCheck(headings, _LastColumn(layout.decimal))
    # A row is yielded after the next line is read: the last row is checked for a cut number first.
    pending: tuple[int, Cells | InputError] | None = None
    for line, row_or_blank in _check_rows(reader, check, headings.line):
        if pending is not None:
            yield pending
        pending = None if row_or_blank is None else (line, row_or_blank)
    if pending is not None:
        line, row = pending
        last_cell = [*row.values()][-1] if isinstance(row, Mapping) else ""
        if lacks_last_newline and check.last_column.is_cut(last_cell):
            row = InputError(f"the file ends within the number {shorten(last_cell)}")
        yield line, row


def _read_headings(reader: Any, source: str, headings: Headings) -> None:
    """Pass over the line of the headings; raises `InputError` if it is no line of CSV."""
    try:
        next(reader)
    except csv.Error as error:
        raise InputError(f"{source}:{headings.line}: no line of CSV: {error}") from None


def _distinct_columns(
    columns: Sequence[str], source: str, mentioned: frozenset[str] | None
) -> tuple[str, ...]:
    """Return columns with a number behind repeated names: `loss`, `loss (2)`.

    Raises `InputError` for a repeated name that the mapping mentions.
    """
    names = [column_name(column) for column in columns]
    # None: it is not known which columns are used, so every name has to be clear.
    used_names = {name for name in names if mentioned is None or name in mentioned}
    used_columns = [column for column in columns if column_name(column) in used_names]
    check_names_differ(used_columns, source)
    distinct_columns: list[str] = []
    for column_index, (column, name) in enumerate(zip(columns, names, strict=True)):
        occurrence = names[: column_index + 1].count(name)
        is_distinct = occurrence == 1 or not name
        distinct_columns.append(column if is_distinct else f"{column} ({occurrence})")
    return tuple(distinct_columns)


def _without_comments(file: Iterable[str], comment: str) -> Iterator[str]:
    """Yield lines, a blank one for each comment, so that the numbers of lines stay."""
    for line in file:
        yield "\n" if comment and line.lstrip().startswith(comment) else line


def _is_rule(cells: Sequence[str]) -> bool:
    """Return whether a line is drawn: `|---|:--:|` of Markdown, `----+----` of psql."""
    has_only_lines = all(re.fullmatch(r"[-=+|:\s]*", cell) for cell in cells)
    return has_only_lines and any(re.search(r"--|==", cell) for cell in cells)


@dataclass
class _RowCheck:
    """Makes rows of lists of cells under the headings."""

    headings: Headings
    last_column: "_LastColumn"
    has_rows: bool = False

    def row_of(self, cells: list[str]) -> Cells | InputError | None:
        """Return the cells by column, the fault of the line, or None for a blank line."""
        columns = self.headings.columns
        has_single_cell = len(cells) == 1 and len(columns) > 1
        is_blank = not cells or (has_single_cell and not cells[0])
        if is_blank:
            return None
        if has_single_cell and not cells[0].strip("\0"):  # a crash leaves zeros in place of text
            return InputError("nothing but zeros")
        if _is_rule(cells):
            return None
        # Programs end lines with empty cells beyond the headings; text there is a fault.
        surplus_cells = cells[len(columns) :]
        row_cells = cells if any(surplus_cells) else cells[: len(columns)]
        if len(row_cells) != len(columns):
            column_count = format_count(len(columns), "column")
            counts = f"{format_count(len(row_cells), 'cell')} under {column_count}"
            # Before any row, the likelier fault is that another line has the headings.
            return InputError(counts if self.has_rows else f"{counts}{self._describe_headings()}")
        repeats_headings = tuple(row_cells) == columns and len(columns) > 1
        if repeats_headings:
            return InputError("the headings once more")
        self.has_rows = True
        # by the numbers of this column a last line that was cut within one is found
        self.last_column.add(row_cells[-1])
        return dict(zip(columns, row_cells, strict=True))

    def _describe_headings(self) -> str:
        headings = self.headings
        hint = "skip or comment in the mapping passes over lines before the headings"
        return (
            f"; line {headings.line}, {shorten(headings.text.strip())}, names the columns: {hint}"
        )


def _check_rows(
    reader: Any, check: _RowCheck, heading_line: int
) -> Iterator[tuple[int, Cells | InputError | None]]:
    """Yield the line of each row in the file, with its cells or fault; None for a blank line."""
    while True:
        line = reader.line_num + heading_line
        try:
            cells = [cell.strip() for cell in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            yield line, InputError(f"no line of CSV: {error}")
        else:
            yield line, check.row_of(cells)


@dataclass
class _LastColumn:
    """The numbers of the last column, by which a number that was cut is known.

    Attributes:
        decimal: decimal mark.
        decimals: digits behind the mark of each number but the last, with their counts.
        shortest: characters of the shortest of these numbers.
    """

    decimal: str
    decimals: Counter[int]
    shortest: int
    _last: str = ""

    def __init__(self, decimal: str) -> None:
        self.decimal = decimal
        self.decimals = Counter()
        self.shortest = 0

    def add(self, cell: str) -> None:
        """Count the number before the last one."""
        if self._last:
            self.decimals[self._decimals_of(self._last)] += 1
            self.shortest = min(self.shortest or len(self._last), len(self._last))
        self._last = cell if self._is_number(cell) else ""

    def is_cut(self, cell: object) -> bool:
        """Return whether the last cell of a file without a last line end is likely a cut number.

        It ends in a mark or has fewer decimals than each number above; whole numbers must be two
        digits shorter than each above.
        """
        text = str(cell)
        mark = re.escape(self.decimal)
        # "12.", "1e", "1.5e-" and "-" need a further digit.
        needs_digit = re.fullmatch(rf"[-+]?\d+(?:{mark}|(?:{mark}\d+)?[eE][-+]?)|[-+]", text)
        if needs_digit:
            return True
        has_numbers_above = bool(self.decimals)
        if not self._is_number(text) or not has_numbers_above:
            return False
        lacks_decimals = self._decimals_of(text) < min(self.decimals)
        has_integers = set(self.decimals) == {0}
        is_far_shorter = len(text) <= self.shortest - 2  # numbers of a column vary by one digit
        return lacks_decimals or (has_integers and is_far_shorter)

    def _is_number(self, cell: str) -> bool:
        mark = re.escape(self.decimal)
        return bool(re.fullmatch(rf"[-+]?\d+(?:{mark}\d*)?(?:[eE][-+]?\d+)?", cell))

    def _decimals_of(self, cell: str) -> int:
        _integer, _mark, fraction_and_exponent = cell.partition(self.decimal)
        fraction, *_exponent = re.split("[eE]", fraction_and_exponent)
        return len(fraction)

"""A `Table` as text: columns that fit a terminal, with long texts folded.

`rich` pads and aligns folded cells. A table that fits needs no folding, so it is padded here: rich
would take 40 ms to import and 0.1 ms a cell, and query results have 10^6 cells.
"""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from steptime.core.errors import escape_controls
from steptime.core.tables.table import Column, Row, Table, describe_hidden_rows
from steptime.core.units import format_interval

Cells = list[list[str]]
BREAK = re.compile(r"(?<=\s)(?=\S)|(?<=,)(?=[A-Za-z])")  # where a line of text may end
INTERVAL_BREAK = re.compile(r" (?=\[)")  # where a cell with an interval may end a line
COMMAND = "steptime "  # begins a line that is a command to copy, which is never broken
IDENTIFYING_KEYS = {"name", "network", "model", "device", "platform", "gpu_type"}
MAX_NUMBER_WIDTH = 40  # characters of a number with its unit and interval; a longer one is a text
MIN_FOLDED_WIDTH = 12  # characters of a column of texts that is not folded further
PADDING = 2  # a blank on either side of a cell


def text(table: Table, width: int | None = None) -> str:
    """Return the table for people, at most `width` characters wide where that is possible.

    Empty spare columns are left out. Where the table is too wide, columns are hidden in this order:
    the other spare columns and all empty ones; where folding the headings and the widest texts
    (between words and behind commas) is not enough, columns from the right, except the first, those
    that answer the question and those with an interval. Then intervals go below their values; last,
    columns that identify the network and the device are hidden, if all rows have the same value.
    Two columns always stay. A line below the table names the hidden columns.
    """
    rows = [*table.rows[: table.max_rows]]
    filled_keys = {
        column.key for column in table.columns for row in rows if row[column.key] not in (None, "")
    }
    columns = []
    for column in table.columns:
        is_empty = bool(rows) and column.key not in filled_keys
        is_left_out = column.is_spare and is_empty
        if not is_left_out:
            columns.append(column)
    hidden_columns = _hide_columns(table, columns, rows, filled_keys, width) if width else []
    grid = _Grid(columns, make_cells(table, columns, table.max_rows))
    footnotes = describe_hidden_rows(len(table.rows) - len(rows), "--json")
    if hidden_columns:
        names = ", ".join(column.label or column.key for column in hidden_columns)
        footnotes.append(f"hidden columns (terminal width): {names}; --json has all")
    all_lines = [
        *wrap_prose(table.title.splitlines(), width),
        *grid.lines(width),
        *wrap_prose([*footnotes, *table.footnotes], width),
    ]
    return "".join(f"{line}\n" for line in all_lines)


class _Grid:
    """The cells under some columns of a table, and how narrow each column can be.

    Args:
        columns: the columns.
        cells: the headings, then the rows, each cell a text on one line.
    """

    def __init__(self, columns: Sequence[Column], cells: Cells) -> None:
        self.columns = columns
        self.headings, *self.rows = cells
        cells_by_column = [[row[i] for row in self.rows] for i in range(len(columns))]
        self.is_numeric = [*map(is_numeric, cells_by_column)]
        self.cell_widths = [max(map(display_width, cells), default=0) for cells in cells_by_column]
        heading_widths = map(display_width, self.headings)
        self.widths = [
            max(cell_width, heading_width) + PADDING
            for cell_width, heading_width in zip(self.cell_widths, heading_widths, strict=True)
        ]

    def fits(self, width: int, has_folded_intervals: bool) -> bool:
        """Whether the folded columns are at most `width` characters wide in all."""
        return _total_width(self._min_widths(has_folded_intervals)) <= width

    def _min_widths(self, has_folded_intervals: bool) -> list[int]:
        """Return the width of each column whose texts are folded as far as they can be."""
        min_widths = []
        for i, column in enumerate(self.columns):
            heading_width = _word_width([self.headings[i]])
            if not self.is_numeric[i]:  # texts are folded between words
                words_width = _word_width(row[i] for row in self.rows)
                cells_width = max(words_width, MIN_FOLDED_WIDTH - PADDING)
            elif column.ends and has_folded_intervals:  # an interval goes below its value
                parts = (part for row in self.rows for part in INTERVAL_BREAK.split(row[i]))
                cells_width = max(map(display_width, parts), default=0)
            else:  # numbers are not folded
                cells_width = self.cell_widths[i]
            folded_width = max(heading_width, cells_width) + PADDING
            min_widths.append(min(self.widths[i], folded_width))
        return min_widths

    def lines(self, width: int | None) -> Iterator[str]:
        """Yield the lines of the grid, folded where it is wider than `width`."""
        if width is None or _total_width(self.widths) <= width:
            yield from self._plain_lines()
            return
        min_widths = self._min_widths(has_folded_intervals=False)
        if _total_width(min_widths) > width:
            min_widths = self._min_widths(has_folded_intervals=True)
        widths = [*self.widths]
        while _total_width(widths) > width:
            # Take a character from the widest column that can still be folded.
            foldable_columns = [
                i for i, column_width in enumerate(widths) if column_width > min_widths[i]
            ]
            if not foldable_columns:
                break
            widest = max(foldable_columns, key=lambda i: widths[i])
            widths[widest] -= 1
        yield from self._folded_lines(widths)

    def _plain_lines(self) -> Iterator[str]:
        rows = [self.headings, *self.rows] if any(self.headings) else self.rows
        for row in rows:
            padded = map(_pad, row, self.widths, self.is_numeric)
            yield "".join(padded).rstrip()

    def _folded_lines(self, widths: Sequence[int]) -> Iterator[str]:
        """Yield lines as rich lays out cells that are folded here.

        Rich by itself would break names that are longer than their column, and not behind commas.
        """
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        layout = RichTable(box=None, show_header=False, pad_edge=True, padding=(0, 1))
        for is_number, width in zip(self.is_numeric, widths, strict=True):
            layout.add_column(
                justify="right" if is_number else "left", width=width - PADDING, no_wrap=True
            )
        # A cell is a list of lines; headings end on one line, with blank lines above the short.
        heading_lines = [
            wrap(heading, width - PADDING)
            for heading, width in zip(self.headings, widths, strict=True)
        ]
        line_count = max(map(len, heading_lines))
        headings = [[""] * (line_count - len(lines)) + lines for lines in heading_lines]
        rows = [
            [self._fold_cell(row[i], i, widths[i]) for i in range(len(row))] for row in self.rows
        ]
        if any(self.headings):
            rows.insert(0, headings)
        for cells in rows:
            layout.add_row(*(Text("\n".join(lines)) for lines in cells))
        file = io.StringIO()
        console = Console(
            file=file, width=sum(widths), color_system=None, force_terminal=False, soft_wrap=True
        )
        console.print(layout)
        yield from (line.rstrip() for line in file.getvalue().splitlines())

    def _fold_cell(self, cell: str, position: int, width: int) -> list[str]:
        """Return a cell in lines: a number alone or above its interval, a text between words."""
        if not self.is_numeric[position]:
            return wrap(cell, width - PADDING)
        is_wide = display_width(cell) > width - PADDING
        return INTERVAL_BREAK.split(cell) if is_wide else [cell]


def _total_width(widths: Sequence[int]) -> int:
    """Return the width of all columns; the blank at the end of a line does not count."""
    return sum(widths) - 1


def _pad(cell: str, width: int, is_number: bool) -> str:
    blanks = " " * (width - PADDING - display_width(cell))
    return f" {blanks}{cell} " if is_number else f" {cell}{blanks} "


def _word_width(texts: Iterable[str]) -> int:
    return max((display_width(word) for text in texts for word in wrap(text, 1)), default=0)


def display_width(text: str) -> int:
    """Return the columns of a terminal that a text takes: two for a wide character."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _hide_columns(
    table: Table, columns: list[Column], rows: Sequence[Row], filled_keys: set[str], width: int
) -> list[Column]:
    """Remove columns from the list until the table fits `width`; return them (see `text`)."""
    identifying = [column for column in columns if column.key in IDENTIFYING_KEYS & filled_keys]
    value_counts = _count_identifying_values(identifying, rows)
    hidden_columns: list[Column] = []
    # Two columns are the least that says something: what a row is, and its answer.
    while len(columns) > 2:
        grid = _Grid(columns, make_cells(table, columns, table.max_rows))
        if _total_width(grid.widths) <= width:
            break
        hideable = _spare_positions(columns, filled_keys, value_counts)
        if not hideable:  # before a filled column is hidden, texts are folded
            if grid.fits(width, has_folded_intervals=False):
                break
            hideable = _plain_positions(columns, value_counts)
        if not hideable:  # before a column of the answer is hidden, intervals are folded, too
            if grid.fits(width, has_folded_intervals=True):
                break
            hideable = _constant_positions(columns, value_counts)
        if not hideable:
            break
        rightmost = max(hideable)
        hidden_columns.insert(0, columns.pop(rightmost))
    return hidden_columns


def _spare_positions(
    columns: Sequence[Column], filled_keys: set[str], value_counts: Mapping[str, int]
) -> list[int]:
    """Return the positions of spare and of empty columns, which are hidden first."""
    return [
        i
        for i, column in enumerate(columns)
        if column.key not in value_counts  # the columns that tell rows apart stay
        # The first column (i = 0) names the row.
        and (column.is_spare or (i and column.key not in filled_keys))
    ]


def _plain_positions(columns: Sequence[Column], value_counts: Mapping[str, int]) -> list[int]:
    """Return the positions of columns that neither identify nor answer, without an interval."""
    return [
        i
        for i, column in enumerate(columns)
        if i and not (column.key in value_counts or column.is_answer or column.ends)
    ]


def _constant_positions(columns: Sequence[Column], value_counts: Mapping[str, int]) -> list[int]:
    """Return the positions of identifying columns with the same value in all rows."""
    return [
        i
        for i, column in enumerate(columns)
        if i and value_counts.get(column.key) == 1 and not column.is_answer
    ]


def _count_identifying_values(columns: Sequence[Column], rows: Sequence[Row]) -> dict[str, int]:
    """Return, by key, the number of values of the columns that identify a row (0 of a single row).

    A spare column is among them only if it distinguishes rows that the others do not.
    """

    def count_values(keys: Sequence[str]) -> int:
        return len({tuple(map(row.get, keys)) for row in rows})

    # A spare column identifies rows only if it tells more of them apart.
    keys = [column.key for column in columns if not column.is_spare]
    for column in columns:
        if column.is_spare and count_values([*keys, column.key]) > count_values(keys):
            keys.append(column.key)
    # A single row has 0, not 1: a value is called constant, and hidden, only among several rows.
    return {key: count_values([key]) if len(rows) > 1 else 0 for key in keys}


def wrap_prose(lines: Iterable[str], width: int | None) -> Iterator[str]:
    """Yield lines of text; one wider than `width` is broken between words, but no command."""
    for line in lines:
        if width is None or line.startswith(COMMAND):
            yield line
        else:
            yield from wrap(line, width)


def wrap(text: str, width: int) -> list[str]:
    """Return a text in lines: broken between words and behind commas of a list, never inside."""
    lines = [""]
    for piece in BREAK.split(text):
        is_line_begun = bool(lines[-1].strip())
        if is_line_begun and display_width(lines[-1]) + display_width(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def make_cells(table: Table, columns: Sequence[Column], row_limit: int | None = None) -> Cells:
    """Return the headings and the first rows (all for None), each cell a text on one line."""
    rows = (
        [_cell_text(column, row, table.has_units) for column in columns]
        for row in table.rows[:row_limit]
    )
    return [[escape_controls(column.label) for column in columns], *rows]


def _cell_text(column: Column, row: Row, has_units: bool) -> str:
    """Return a cell with its interval and unit on one line: `~1.62 s [1.36-1.92]`."""
    value = row[column.key]
    low, high = [row.get(end) for end in column.ends] or [None, None]
    if column.form and isinstance(value, int | float):
        text = format(value, column.form)
        if low is not None and high is not None:
            text += f" [{format(low, column.form)}-{format(high, column.form)}]"
        return text.replace("%", " %")
    text = format_interval(column.key if has_units else "", value, low, high)
    is_extrapolated = row.get("is_extrapolated") is True
    if column.ends and is_extrapolated:
        text = f"~{text}"
    return escape_controls(text.replace("\n", " "))


def is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column is aligned to the right: its cells are dashes or numbers, not lists."""

    def is_number(cell: str) -> bool:
        begins_with_digit = cell.lstrip("-~")[:1].isdigit()
        is_list = ", " in cell
        return begins_with_digit and len(cell) <= MAX_NUMBER_WIDTH and not is_list

    return bool(cells) and all(cell == "-" or is_number(cell) for cell in cells)

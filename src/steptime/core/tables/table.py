"""An answer: one JSON document, and tables of named quantities for people.

The keys of a row carry their units (`step_s`, `peak_bytes`), so `units.format_value` can write
every cell, and a column is a key with a heading. `steptime.core.tables.printers` has the printers.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from steptime.core.errors import InputError
from steptime.core.json_types import JsonObject
from steptime.core.registry import load

Row = Mapping[str, Any]
Item_co = TypeVar("Item_co", covariant=True)
UNSUCCESSFUL = 3  # the exit code where some experiments did not succeed
CANNOT_JUDGE = 2  # the exit code where a gate could not have failed, as of wrong input


@dataclass(frozen=True)
class JsonRows(Sequence[JsonObject]):
    """Rows that are read from JSON on each pass, so that not all are in memory at once.

    Args:
        row_count: the number of rows.
        read_chunks: yields lists of JSON objects, `row_count` in all.
        make_row: converts a JSON object to a row.
    """

    row_count: int
    read_chunks: Callable[[], Iterator[Sequence[str]]]
    make_row: Callable[[JsonObject], JsonObject] = dict

    def __len__(self) -> int:
        return self.row_count

    def __iter__(self) -> Iterator[JsonObject]:
        return (self.make_row(json.loads(text)) for chunk in self.read_chunks() for text in chunk)

    def __getitem__(self, index: Any) -> Any:
        return [*self][index]


@dataclass(frozen=True)
class LazySequence(Sequence[Item_co]):
    """A sequence of known length whose items are computed anew on each pass.

    It bounds memory as an iterator does, and unlike an iterator it can be read several times.

    Args:
        length: number of items.
        make_items: computes the items.
        first_items: the first items, if they are known: they are not computed again.
        write_chunks: yields lists of the JSON texts of the items, where a text needs no item.
    """

    length: int
    make_items: Callable[[], Iterable[Item_co]]
    first_items: Sequence[Item_co] = ()
    write_chunks: Callable[[], Iterator[Sequence[str]]] | None = None

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Item_co]:
        return iter(self.make_items())

    def __getitem__(self, index: Any) -> Any:
        positions = range(self.length)[index]
        if isinstance(positions, int):
            return next(islice(self, positions, None))
        is_forward = positions.step > 0
        # `first_items` are computed already; any other item is computed anew.
        has_first_items = positions.stop <= len(self.first_items)
        if is_forward and has_first_items:
            return list(self.first_items[index])
        if not is_forward:  # `islice` cannot go backwards
            return [*self][index]
        return [*islice(self, positions.start, positions.stop, positions.step)]


@dataclass(frozen=True)
class ValueRows(Sequence[Row]):
    """Rows of equal keys whose values are computed anew on each pass, and written as they are.

    A row costs a printer of CSV no dict, which takes half of the time of 100,000 rows.

    Args:
        keys: the keys of each row.
        length: the number of rows.
        make_values: yields the values of each row, in the order of `keys`.
    """

    keys: Sequence[str]
    length: int
    make_values: Callable[[], Iterable[Sequence[Any]]]

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Row]:
        return (dict(zip(self.keys, values, strict=True)) for values in self.make_values())

    def __getitem__(self, index: Any) -> Any:
        return LazySequence(self.length, self.__iter__)[index]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        key: the key of its cells in each row.
        heading: the text above it; None is the key itself.
        ends: the keys of the interval that people see beside the value; programs have columns of
            them.
        form: the format of its numbers, where the format of the key's unit will not do.
        is_spare: whether it is the first to be hidden where a terminal is narrow.
        is_answer: whether it answers the question, so that no terminal is too narrow for it.
    """

    key: str
    heading: str | None = None
    _: KW_ONLY
    ends: tuple[str, ...] = ()
    form: str = ""
    is_spare: bool = False
    is_answer: bool = False

    @property
    def label(self) -> str:
        """The text above the column."""
        return self.key if self.heading is None else self.heading


@dataclass(frozen=True)
class Table:
    """Rows under columns, with a title above and lines below.

    A cell is a quantity in the unit of its key, a text as it is printed, or None where unknown.

    Args:
        columns: the columns that people see.
        rows: the rows by key.
        title: the lines above the columns.
        footnotes: the lines below the rows.
        has_units: whether numbers are shown in the units of their keys; else as they are.
        max_rows: the number of rows that people see; programs see all.
        csv_columns: the columns of CSV, if they differ.
        summary: numbers that are true of all rows together.
        source: one line on the origin of the rows.
        chart_rows: the rows that the chart of this table draws, if they differ.
        is_detail: whether people see it with `--details` alone.
        structs: the same rows as structs, for programs; empty where only a table was asked for.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    footnotes: Sequence[str] = ()
    has_units: bool = True
    max_rows: int | None = None
    csv_columns: Sequence[Column] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    chart_rows: Sequence[Row] = ()
    is_detail: bool = False
    structs: Sequence[Any] = ()


@dataclass(frozen=True)
class Printout:
    """An answer as the command line prints it.

    Args:
        document: what `--json` prints; None prints nothing. A `JsonRows` or a `LazySequence`, alone
            or as one of its values, is written item by item.
        tables: the tables; may be a `LazySequence`, too.
        notes: lines on stderr, after the tables.
        before: lines on stderr, before the tables.
        text: the lines that follow the tables on stdout; a terminal wraps them.
        script: what follows the text on stdout as it is, such as batch scripts.
        code: the exit code.
    """

    document: Any
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    before: Sequence[str] = ()
    text: str = ""
    script: str = ""
    code: int = 0


def select_tables(tables: Sequence[Table], has_details: bool) -> list[Table]:
    """Return the tables that people see; a footnote names those that `--details` adds."""
    tables = list(tables)  # read once: a lazy sequence computes them at each pass
    details = [table.title for table in tables if table.is_detail and table.rows]
    main_tables = [table for table in tables if has_details or not table.is_detail]
    if details and main_tables and not has_details:
        *first_tables, last_table = main_tables
        footnotes = [*last_table.footnotes, f"--details adds: {'; '.join(details)}"]
        return [*first_tables, replace(last_table, footnotes=footnotes)]
    return main_tables


def describe_hidden_rows(hidden_rows: int, options: str = "--json or --format csv") -> list[str]:
    """Return the line below a table that says how many rows are left out: `... and 9 more`."""
    return [f"... and {hidden_rows:,} more; {options} has all"] if hidden_rows > 0 else []


EXTRAPOLATED_FOOTNOTE = (
    "~ extrapolated: some kernels, or devices like this one, were never measured"
)


def head_step_columns(heads: Iterable[Column], rows: Iterable[Row]) -> list[Column]:
    """Return the columns of step times, headed `at least` if all rows are lower bounds."""
    priced_rows = [row for row in rows if row["step_s"] is not None]
    # A step without an upper end is a lower bound.
    if not priced_rows or any(row["high_s"] is not None for row in priced_rows):
        return [*heads]
    return [
        replace(column, heading=f"{column.label}, at least", ends=()) if column.ends else column
        for column in heads
    ]


def make_facts_table(title: str, heading: str, rows: Sequence[tuple[str, Any]]) -> Table:
    """Return a table of one object: a row for each property, its values under `heading`.

    Values are texts as they are printed (`units.shown`), or None.
    """
    cells = [{"name": name, "value": value} for name, value in rows]
    return Table((Column("name", ""), Column("value", heading)), cells, title)


def make_frame(rows: Iterable[Row]) -> Any:
    """Return a DataFrame of rows; raises `InputError` if pandas is not installed."""
    try:
        frame_of = load("pandas:DataFrame")
    except ImportError:
        raise InputError("to_pandas() needs pandas: pip install pandas") from None
    return frame_of(list(rows))

"""An answer: one JSON document, and tables of named quantities for people.

The keys of a row carry their units (`step_s`, `peak_bytes`), so `units.shown` can write
every cell, and a column is only a key with a heading. `steptime.core.printers` has the printers.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from steptime.core.errors import InputError
from steptime.core.registry import load

Row = Mapping[str, Any]
Item_co = TypeVar("Item_co", covariant=True)
UNSUCCESSFUL = 3  # the exit code where some experiments did not succeed


@dataclass(frozen=True)
class JsonRows(Sequence[dict[str, Any]]):
    """Rows as JSON, made whenever they are asked for: a million are not in memory at once.

    `texts` gives `number` JSON objects, some at a time; `row` makes rows of them.
    """

    number: int
    texts: Callable[[], Iterator[Sequence[str]]]
    row: Callable[[dict[str, Any]], dict[str, Any]] = dict

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.row(json.loads(text)) for part in self.texts() for text in part)

    def __getitem__(self, at: Any) -> Any:
        return [*self][at]


@dataclass(frozen=True)
class LazySequence(Sequence[Item_co]):
    """A sequence of known length whose items are computed anew on each pass.

    It bounds memory as an iterator does, and unlike an iterator it can be read several times.

    Args:
        length: number of items.
        make_items: computes the items.
        first_items: the first items, if they are known: they are not computed again.
    """

    length: int
    make_items: Callable[[], Iterable[Item_co]]
    first_items: Sequence[Item_co] = ()

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Item_co]:
        return iter(self.make_items())

    def __getitem__(self, index: Any) -> Any:
        positions = range(self.length)[index]
        if isinstance(positions, int):
            return next(islice(self, positions, None))
        if positions.step > 0 and positions.stop <= len(self.first_items):
            return list(self.first_items[index])
        if positions.step < 0:
            return [*self][index]
        return [*islice(self, positions.start, positions.stop, positions.step)]


@dataclass(frozen=True)
class Column:
    """A column: the key of its cells, what stands above them, and whether it may be left out.

    A `spare` column is the first to go where a terminal is narrow. `form` is the format of its
    numbers where that of the key's unit will not do. `ends` are the keys of the interval that
    people see beside the value; programs have columns of them.
    """

    key: str
    heading: str
    spare: bool = False
    form: str = ""
    ends: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """Rows under columns, with a title above and lines below.

    A cell is a quantity in the unit of its key, a text as it shall stand, or None where unknown.
    With `units` off, numbers are shown as they are. People see at most `most` rows; programs all.
    CSV has the columns of `full` where it names any. `summary` holds numbers that are true of all
    rows together; `source` is one line on where the rows are from, `beside` what its chart needs.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    below: Sequence[str] = ()
    units: bool = True
    most: int | None = None
    full: Sequence[Column] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    beside: Sequence[Row] = ()


@dataclass(frozen=True)
class Printout:
    """An answer as the command line prints it.

    Args:
        document: what `--json` prints; None prints nothing. A `JsonRows` or a `LazySequence`, alone
            or as one of its values, is written item by item.
        tables: the tables; may be a `LazySequence`, too.
        notes: lines on stderr, after the tables.
        before: lines on stderr, before the tables.
        text: what follows the tables on stdout.
        code: the exit code.
    """

    document: Any
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    before: Sequence[str] = ()
    text: str = ""
    code: int = 0


def columns(*said: str) -> tuple[Column, ...]:
    """Return columns as `key=heading` says them; a `?` in front makes a column spare.

    A key without `=` is its own heading: `columns("name", "step_s=step", "?source")`. After `:` it
    may have a format, `columns("ratio:.3f=b / a")`, or in brackets the keys of its interval,
    `columns("step_s[low_s,high_s]=step")`.
    """
    found = []
    for text in said:
        told, equals, heading = text.removeprefix("?").partition("=")
        named, _, form = told.partition(":")
        key, _, ends = named.removesuffix("]").partition("[")
        keys = tuple(ends.split(",")) if ends else ()
        found.append(Column(key, heading if equals else key, text.startswith("?"), form, keys))
    return tuple(found)


def cut(more: int, by: str = "--json or --format csv") -> list[str]:
    """Return the line below a table, for people alone, of which so many rows are not there."""
    return [f"... and {more:,} more; {by} has all"] if more > 0 else []


EXTRAPOLATED = "~ extrapolated: not all of its kernels were measured on a device of this kind"


def of_steps(heads: Iterable[Column], rows: Iterable[Row]) -> list[Column]:
    """Return the columns of steps: of bounds, which have no upper end, the step is `at least`."""
    known = [row for row in rows if row["step_s"] is not None]
    if not known or any(row["high_s"] is not None for row in known):
        return [*heads]
    return [
        replace(one, heading=f"{one.heading}, at least", ends=()) if one.ends else one
        for one in heads
    ]


def picked(one: object, names: str) -> dict[str, Any]:
    """Return attributes of an object as a row, plain tables in place of mappings of other kinds."""
    found = ((name, getattr(one, name)) for name in names.split())
    return {name: dict(it) if isinstance(it, Mapping) else it for name, it in found}


def facts(title: str, heading: str, rows: Sequence[tuple[str, Any]]) -> Table:
    """Return a table of one thing: its properties down the side, with their values under `heading`.

    Values are texts as they shall stand (`units.shown`), or None.
    """
    made = [{"name": name, "value": value} for name, value in rows]
    return Table((Column("name", ""), Column("value", heading)), made, title)


def frame(rows: Iterable[Row]) -> Any:
    """Return a DataFrame of rows; raises `InputError` where pandas is not there."""
    try:
        frame_of = load("pandas:DataFrame")
    except ImportError:
        raise InputError("to_pandas() needs pandas: pip install pandas") from None
    return frame_of(list(rows))

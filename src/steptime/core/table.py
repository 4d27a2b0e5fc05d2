"""An answer: one JSON document, and tables of named quantities for people.

The keys of a row carry their units (`step_s`, `peak_bytes`), so `units.shown` can write
every cell, and a column is only a key with a heading. `steptime.core.printers` has the printers.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from steptime.core.errors import InputError
from steptime.core.registry import load

Row = Mapping[str, Any]
Item_co = TypeVar("Item_co", covariant=True)
_PRINTERS = "steptime.core.printers"  # which know tables
ROW_KEYS = ("rows", "pairs")  # under which a document holds its rows
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
    """

    length: int
    make_items: Callable[[], Iterable[Item_co]]

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Item_co]:
        return iter(self.make_items())

    def __getitem__(self, index: Any) -> Any:
        positions = range(self.length)[index]
        if isinstance(positions, int):
            return next(islice(self, positions, None))
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


class Result:
    """What answers a question: a frozen dataclass whose fields are its document, or an `Answer`.

    It has `tables()`, and lines for people in `sentences`, `says` or `notes`; those that begin as
    `tabled` says are in the tables, too, and for programs alone. A `document` is printed in place
    of its fields.
    """

    def to_dict(self) -> Any:
        """Return the document as plain values, as `--json` prints it."""
        return json.loads("".join(load(f"{_PRINTERS}:json_parts")(answer_of(self).document)))

    def to_pandas(self) -> Any:
        """Return a DataFrame of the rows, cells or pairs, else of one row; needs pandas."""
        document = self.to_dict()
        if not isinstance(document, Mapping):
            return frame(document)
        key = next((key for key in ROW_KEYS if isinstance(document.get(key), list)), None)
        return frame([document] if key is None else document[key])

    def __init_subclass__(cls) -> None:
        """Let a program's prompt show what `print` does, in place of all fields."""
        cls.__repr__ = cls.__str__  # type: ignore[assignment]  # dataclasses leave it so

    def __str__(self) -> str:
        """Return what the command prints."""
        answer = answer_of(self)
        return "".join(map(load(f"{_PRINTERS}:text"), answer.tables)) + answer.text

    def _repr_html_(self) -> str:
        return "".join(map(load(f"{_PRINTERS}:html"), answer_of(self).tables))


@dataclass(frozen=True)
class Answer(Result):
    """What a command found: the document for programs, tables and notes for people, the exit code.

    `before` and `notes` are lines on stderr, before and after the tables; `text` follows the tables
    on stdout. A `document` of None prints nothing. If it or one of its values is a `JsonRows` or a
    `LazySequence`, it is written item by item. `tables` may be a `LazySequence`, too. No field
    holds an iterator, which could be read only once.
    """

    document: Any
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    before: Sequence[str] = ()
    text: str = ""
    code: int = 0
    csv: Table | None = None

    def __getitem__(self, key: Any) -> Any:
        """Return what the document has under a key, or at a place."""
        return self.document[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.document)

    def keys(self) -> Any:
        """Return the keys of the document, so that `dict(answer)` is it."""
        return self.document.keys()


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


def answer_of(result: Any) -> Answer:
    """Return an answer as the command line prints it: its document, tables, lines and exit code."""
    if hasattr(result, "printout"):
        printout: Answer = result.printout()
        return printout
    if isinstance(result, Answer):
        return result
    tabled = getattr(result, "tabled", ())
    said, notes = (
        [line for line in getattr(result, name, ()) if not line.startswith(tabled)]
        for name in ("sentences", "notes")
    )
    says = [*getattr(result, "says", ()), *(f"note: {line}" for line in notes)]
    document = getattr(result, "document", None)
    document = asdict(result) if document is None else document
    return Answer(document, result.tables(), says, text="\n".join([*said, ""]))

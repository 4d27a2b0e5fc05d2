"""What the commands print: one JSON document or tables on stdout, notes on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def emit_json(document: object) -> None:
    """Print `document` as one JSON document on stdout; a number that is not finite becomes null."""
    sys.stdout.write(json.dumps(finite(document), indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def finite(value: Any) -> Any:
    """Give `value` with None in place of every float that JSON cannot say."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def note(text: str) -> None:
    """Print one line for people on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def text(lines: str) -> None:
    """Print a text on stdout as it is."""
    sys.stdout.write(lines)
    sys.stdout.flush()


def unmodelled(names: Sequence[str]) -> None:
    """Say which layers of unknown type are not counted, where there are any."""
    if names:
        note(f"note: layers of unknown type count nothing: {', '.join(names)}")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table on stdout; None shows as a dash, a column of numbers stands to the right.

    Cells are text or numbers as people read them (`units.si`); none of it is taken for markup.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    shown = Table(box=None)
    for index, name in enumerate(columns):
        numeric = bool(cells) and all(_is_numeric(row[index]) for row in cells)
        shown.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        shown.add_row(*map(Text, row))
    wide = None if sys.stdout.isatty() else 10_000  # a file or a pipe must not lose columns
    console = Console(file=sys.stdout, width=wide, highlight=False)
    if title:  # on a line of its own: a table's title is folded to the width of the table
        console.print(Text(title), soft_wrap=True)
    console.print(shown)


def _is_numeric(cell: str) -> bool:
    return cell == "-" or cell[:1].isdigit() or (cell[:1] == "-" and cell[1:2].isdigit())

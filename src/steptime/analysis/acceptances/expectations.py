"""A file of expectations: what steps of a machine should reach, a reference a line.

Each line names a network, further settings where one network was measured in several ways, and
one or several quantities. Its limit is a share of the reference.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from steptime.core.errors import InputError, unknown
from steptime.core.expressions.formula import column_name
from steptime.core.tables.table_files import table_cells
from steptime.core.tables.table_layout import Cells
from steptime.core.toml_files import format_path
from steptime.core.units import QUANTITIES
from steptime.core.values import parse_bytes, parse_number, parse_seconds, parse_share

NETWORK, LIMIT = "network", "limit"
COLUMN_NAMES = {  # words of people, and the columns of records
    "model": NETWORK,
    "node": "host",
    "device": "platform",
    "precision": "dtype",
    "type": "dtype",
}
EXAMPLES_PER_S = "examples_per_s"
QUANTITY_NAMES = frozenset((*QUANTITIES, EXAMPLES_PER_S))
PREDICTED = "predicted"  # in a cell, and in place of a file: the prediction is the expectation
NO_VALUES = ("", "-", "null", "none")


class Expectation(NamedTuple):
    """What a quantity of a step should reach.

    Attributes:
        place: the file and the line.
        network: the network, as a person names it.
        settings: texts that records must have, by column, such as `{"batch": "64"}`.
        quantity: the quantity.
        reference: its value; None for the prediction of the step.
        limit_share: share of the reference that is enough; None for the usual one.
    """

    place: str
    network: str
    settings: Mapping[str, str]
    quantity: str
    reference: float | None
    limit_share: float | None


def read_expectations(path: Path) -> list[Expectation]:
    """Read a table of expectations: CSV, JSON or JSON lines.

    Args:
        path: the file. Its columns are `network`, `limit`, names of quantities (`step_s`,
            `examples_per_s`, ...) and any columns that records have (`batch`, `device`, `node`).

    Raises:
        InputError: for a file that is no such table, and for a cell that is no number.
    """
    source = format_path(path)
    expectations: list[Expectation] = []
    for line, cells in table_cells(path):
        if isinstance(cells, InputError):
            raise InputError(f"{source}:{line}: {cells}")
        texts = _read_cells(cells, source)
        _check_columns(texts, source)
        expectations += _read_line(texts, f"{source}:{line}")
    if not expectations:
        raise InputError(f"{source}: holds no expectation; a line is a network and its quantities")
    return expectations


def _read_cells(cells: Cells, source: str) -> dict[str, str]:
    """Return the texts of a line by the names of records' columns."""
    texts: dict[str, str] = {}
    for heading, cell in cells.items():
        word = column_name(heading).lower()
        name = COLUMN_NAMES.get(word, word)
        if name in texts:
            raise InputError(f"{source}: two columns mean {name}")
        text = "" if cell is None else str(cell).strip()
        texts[name] = "" if text.lower() in NO_VALUES else text
    return texts


def _check_columns(names: Collection[str], source: str) -> None:
    """Raise `InputError` for a table without a network or without a quantity."""
    if NETWORK not in names:
        raise InputError(
            f"{source}: no column 'network', which names the steps that are expected; "
            f"columns: {', '.join(names)}"
        )
    if QUANTITY_NAMES.isdisjoint(names):
        # The last column is likely the one that was meant as a quantity.
        column_words = [name for name in names if name not in (NETWORK, LIMIT)]
        nearest = unknown(
            "quantity", column_words[-1] if column_words else "", sorted(QUANTITY_NAMES)
        )
        raise InputError(f"{source}: no column is a quantity such as step_s; {nearest}")


def _read_line(texts: Mapping[str, str], place: str) -> list[Expectation]:
    """Return the expectations of a line, one a quantity that has a cell."""
    network, limit = texts[NETWORK], texts.get(LIMIT, "")
    if not network:
        raise InputError(f"{place}: no network is named")
    limit_share = parse_limit(limit, f"{place}: limit") if limit else None
    # Whatever is neither network, limit nor quantity picks the steps that are meant.
    settings = {
        name: text
        for name, text in texts.items()
        if text and name not in (NETWORK, LIMIT) and name not in QUANTITY_NAMES
    }
    expectations = [
        Expectation(
            place=place,
            network=network,
            settings=settings,
            quantity=name,
            reference=_read_reference(texts[name], name, f"{place}: {name}"),
            limit_share=limit_share,
        )
        for name in texts
        if name in QUANTITY_NAMES and texts[name]
    ]
    if not expectations:
        raise InputError(f"{place}: {network} has no number; write a reference or 'predicted'")
    return expectations


def _read_reference(text: str, quantity: str, place: str) -> float | None:
    """Return a reference in SI units, None for the word `predicted`."""
    if text.lower() == PREDICTED:
        return None
    # Seconds may have a unit (`12 ms`), and so may bytes; rates are plain numbers.
    if quantity.endswith("_s") and not quantity.endswith("_per_s"):
        return parse_seconds(text, place)
    if quantity.endswith("_bytes"):
        return parse_bytes(text, place)
    return parse_number(text, place)


def parse_limit(value: object, place: str) -> float:
    """Return the share of a reference that is enough: `95%`, `0.95`.

    Raises:
        InputError: for another text, and for 0, which every step reaches.
    """
    share = parse_share(value, place)
    if share <= 0:
        raise InputError(f"{place}: a limit of 0 is reached by every step; write 95% or 0.95")
    return share

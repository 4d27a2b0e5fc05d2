"""The cells of a row of a mapped table, in plain numbers and in our words."""

from typing import Any, NamedTuple

from steptime.core.expressions.amounts import localise
from steptime.core.expressions.formula import parse_cell
from steptime.core.tables.table_layout import Cells


class NumberFormat(NamedTuple):
    """How numbers in cells are written."""

    decimal: str
    thousands: str

    @property
    def is_plain(self) -> bool:
        """Whether numbers are written as in Python."""
        return (self.decimal, self.thousands) == (".", "")

    def to_plain_text(self, cell: object) -> object:
        """Return a cell with its number written as in Python."""
        return localise(cell, self.decimal, self.thousands) if isinstance(cell, str) else cell

    def to_value(self, cell: object, text: object) -> Any:
        """Return the value for formulas of a cell and its text; `1.5` is no number with commas."""
        is_dotted = isinstance(cell, str) and text == cell and "." in cell
        return text if is_dotted and self.decimal != "." else parse_cell(text)


class ConvertedCells(NamedTuple):
    """The cells of a row of a table by column.

    Attributes:
        raw: as in the table, with numbers written as in Python.
        ours: with words of the table replaced by ours.
        values: as formulas take them.
    """

    raw: Cells
    ours: Cells
    values: Cells

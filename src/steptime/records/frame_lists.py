"""Columns of lists of a frame, made from flat columns: samples and free quantities."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from steptime.records.frame_columns import COUNT, NUMBER, STRING
from steptime.records.record import Quantity

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NestedColumns:
    """The columns of lists of a chunk, made from flat columns.

    Attributes:
        steps: row number and step of each row with samples.
        others: row number, name and JSON text of each quantity that is no column.
        sampled: row number, name and quantity of each other quantity with samples.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[int, Quantity]] = []
        self.others: list[tuple[int, str, str | None]] = []
        self.sampled: list[tuple[int, str, Quantity]] = []

    def columns(self, length: int) -> list[pl.Series]:
        """Return the columns `samples`, `run`, `others` and `sampled` of so many rows."""
        steps = [step for _, step in self.steps]
        step_rows = [number for number, _ in self.steps]
        entries = {
            "key": pl.Series([name for _, name, _ in self.others], dtype=STRING),
            "value": pl.Series([text for _, _, text in self.others], dtype=STRING),
        }
        quantity_pairs = pl.DataFrame(entries).to_struct("others")
        quantities = [quantity for _, _, quantity in self.sampled]
        keys = pl.Series("key", [name for _, name, _ in self.sampled], dtype=STRING)
        samples = pl.DataFrame(sample_columns(quantities)).to_struct("value")
        sampled = pl.DataFrame([keys, samples]).to_struct("sampled")
        rows = pl.DataFrame({"row": pl.Series(range(length), dtype=COUNT)})
        step_columns = pl.DataFrame(
            [pl.Series("row", step_rows, dtype=COUNT), *sample_columns(steps)]
        )
        columns = rows.join(step_columns, on="row", how="left", maintain_order="left")
        return [
            columns["samples"],
            columns["run"],
            list_column(quantity_pairs, [number for number, _, _ in self.others], length),
            list_column(sampled, [number for number, _, _ in self.sampled], length),
        ]


def sample_columns(quantities: Sequence[Quantity]) -> list[pl.Series]:
    """Return the lists of the `samples` and of the `run` of each sample of quantities."""
    counts = [len(quantity.samples) for quantity in quantities]
    rows = np.repeat(np.arange(len(quantities)), counts)
    samples = np.fromiter(
        chain.from_iterable(quantity.samples for quantity in quantities), float, len(rows)
    )
    runs = np.fromiter(chain.from_iterable(quantity.runs for quantity in quantities), np.int64)
    return [
        list_column(pl.Series("samples", samples, dtype=NUMBER), rows, len(quantities)),
        list_column(pl.Series("run", runs, dtype=COUNT), rows, len(quantities)),
    ]


def list_column(
    values: pl.Series, row_numbers: Sequence[int] | NDArray[np.int64], length: int
) -> pl.Series:
    """Return the lists of the values of each row; None for a row without a value."""
    name = values.name
    numbers = pl.Series("row", row_numbers, dtype=COUNT)
    lists = pl.DataFrame([numbers, values]).group_by("row", maintain_order=True).agg(name)
    rows = pl.DataFrame({"row": pl.Series(range(length), dtype=COUNT)})
    return rows.join(lists, on="row", how="left", maintain_order="left")[name]

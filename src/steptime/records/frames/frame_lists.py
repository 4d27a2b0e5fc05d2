"""Columns of lists of a frame, made from flat columns: samples, and quantities without a column."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from steptime.records.frames.frame_columns import COUNT, NUMBER, STRING
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
        return [
            *self._list_steps(length),
            self._list_free_quantities(length),
            self._list_sampled(length),
        ]

    def _list_steps(self, length: int) -> list[pl.Series]:
        """Return `samples` and `run`: of each row the samples of its step and their runs."""
        step_rows = pl.Series("row", [row for row, _ in self.steps], dtype=COUNT)
        steps = [step for _, step in self.steps]
        columns = pl.DataFrame([step_rows, *sample_columns(steps)])
        # A left join gives each row its list, null where it has none.
        all_rows = pl.DataFrame({"row": pl.Series(range(length), dtype=COUNT)})
        columns_of_rows = all_rows.join(columns, on="row", how="left", maintain_order="left")
        return [columns_of_rows["samples"], columns_of_rows["run"]]

    def _list_free_quantities(self, length: int) -> pl.Series:
        """Return `others`: of each row its quantities without a column, as keys and values."""
        keys = pl.Series("key", [name for _, name, _ in self.others], dtype=STRING)
        values = pl.Series("value", [json_text for _, _, json_text in self.others], dtype=STRING)
        entries = pl.DataFrame([keys, values]).to_struct("others")
        return list_column(entries, [row for row, _, _ in self.others], length)

    def _list_sampled(self, length: int) -> pl.Series:
        """Return `sampled`: of each row the quantities other than the step with their samples."""
        keys = pl.Series("key", [name for _, name, _ in self.sampled], dtype=STRING)
        quantities = [quantity for _, _, quantity in self.sampled]
        values = pl.DataFrame(sample_columns(quantities)).to_struct("value")
        entries = pl.DataFrame([keys, values]).to_struct("sampled")
        return list_column(entries, [row for row, _, _ in self.sampled], length)


def sample_columns(quantities: Sequence[Quantity]) -> list[pl.Series]:
    """Return the lists of the `samples` and of the `run` of each sample of quantities."""
    quantity_count = len(quantities)
    sample_counts = [len(quantity.samples) for quantity in quantities]
    quantity_numbers = np.repeat(np.arange(quantity_count), sample_counts)  # of each sample
    all_samples = chain.from_iterable(quantity.samples for quantity in quantities)
    samples = pl.Series("samples", np.fromiter(all_samples, float), dtype=NUMBER)
    all_runs = chain.from_iterable(quantity.runs for quantity in quantities)
    runs = pl.Series("run", np.fromiter(all_runs, np.int64), dtype=COUNT)
    return [
        list_column(samples, quantity_numbers, quantity_count),
        list_column(runs, quantity_numbers, quantity_count),
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

"""Rows of a frame as structs or dicts, of which not all are in memory at once."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import polars as pl

from steptime.core.tables.table import LazySequence
from steptime.records.row import Row

Item = TypeVar("Item")
MAX_ROWS_IN_MEMORY = 1000  # as many as people see; more are made again on each pass
CHUNK_ROWS = 20_000  # as Python objects while they are written


def read_rows(frame: pl.LazyFrame, count: int) -> Sequence[Row]:
    """Return the first `count` rows of a frame.

    Few are read at once; of many the first ones, and all of them anew on each pass.
    """

    def read_all_rows() -> Iterator[Row]:
        for chunk in frame.head(count).collect().iter_slices(CHUNK_ROWS):
            yield from chunk.iter_rows(named=True)

    # Only the first rows of very many stay in memory; a pass over all reads them anew.
    first_rows = frame.head(min(count, MAX_ROWS_IN_MEMORY)).collect().to_dicts()
    if count <= MAX_ROWS_IN_MEMORY:
        return first_rows
    return LazySequence(count, read_all_rows, first_rows)


def map_rows(make_item: Callable[[Row], Item], rows: Sequence[Row]) -> Sequence[Item]:
    """Return an item for each row; of many the first ones, and all of them anew on each pass."""
    first_items = [make_item(row) for row in rows[:MAX_ROWS_IN_MEMORY]]
    if len(rows) <= MAX_ROWS_IN_MEMORY:
        return first_items
    return LazySequence(len(rows), lambda: map(make_item, rows), first_items)

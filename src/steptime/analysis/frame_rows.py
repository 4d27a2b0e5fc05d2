"""Rows of a frame as structs or dicts, of which not all are in memory at once."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import polars as pl

from steptime.core.table import LazySequence
from steptime.records.row import Row

Item = TypeVar("Item")
MAX_ROWS_IN_MEMORY = 1000  # as many as people see; more are made again on each pass
CHUNK_ROWS = 20_000  # in memory while they are written


def read_rows(frame: pl.LazyFrame, count: int, make_item: Callable[[Row], Item]) -> Sequence[Item]:
    """Return an item for each of the first `count` rows of a frame.

    Few are made at once; of many the first ones, and all of them anew on each pass.
    """

    def make_items(offset: int, chunk_count: int) -> list[Item]:
        chunk = frame.slice(offset, chunk_count).collect()
        return [make_item(row) for row in chunk.iter_rows(named=True)]

    def make_all_items() -> Iterator[Item]:
        for offset in range(0, count, CHUNK_ROWS):
            yield from make_items(offset, min(CHUNK_ROWS, count - offset))

    first_items = make_items(0, min(count, MAX_ROWS_IN_MEMORY))
    if count <= MAX_ROWS_IN_MEMORY:
        return first_items
    return LazySequence(count, make_all_items, first_items)

"""Folders of records with their results: what analyses, charts and reports are asked of.

A frame of records has a row for each record, a frame of results (`records.results`) one for each
network, platform, way of measuring and method of prediction. Units are in the names of columns;
null is unknown.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from steptime.core.units import format_seconds
from steptime.records.folders import Folders
from steptime.records.row import Row

if TYPE_CHECKING:
    import polars as pl

INTERVAL_COLUMNS = ("measured_low_s", "measured_high_s", "interval")


class Data(Folders):
    """Folders of records, and the frame of their results."""

    @cached_property
    def results(self) -> list[Row]:
        """The rows of results, each with a `label` that tells it from all others.

        `interval_95` is the 95 % interval of its measured step in words, None where unknown.
        """
        from steptime.records.results import ALL_COLUMNS

        return result_rows(self.results_frame(ALL_COLUMNS))

    def scan_results(self) -> pl.LazyFrame:
        """Return the results as a lazy frame, in the order of the first records."""
        return self._results.lazy()

    @cached_property
    def _results(self) -> pl.DataFrame | pl.LazyFrame:
        from steptime.records.results import MAKERS, make_results

        return self._tables.cache_results(partial(make_results, self), MAKERS)

    def count_results(self) -> int:
        """Return the number of results."""
        import polars as pl

        return int(self.scan_results().select(pl.len()).collect().item())

    def results_frame(self, columns: Sequence[str]) -> pl.DataFrame:
        """Return columns of results as a frame, in their order."""
        return self.scan_results().select(columns).collect()

    def draw_results(
        self, columns: Sequence[str], condition: pl.Expr, limit: int, line: pl.Expr | None = None
    ) -> tuple[list[Row], int]:
        """Return rows of results with their `line`, and the number of lines.

        Args:
            columns: the columns of the rows.
            condition: whether a result takes part.
            limit: lines that are drawn; of more lines some are drawn, chosen by chance.
            line: what the points of a line share; by default each result is a line.
        """
        import polars as pl

        line_column = (pl.col("label") if line is None else line).alias("line")
        names = dict.fromkeys((*columns, *INTERVAL_COLUMNS))
        names.pop("interval_95", None)  # no column: `result_rows` adds it
        frame = self.scan_results().filter(condition).select(*names, line_column).collect()
        lines = frame["line"].unique(maintain_order=True)
        if len(lines) > limit:
            # A fixed seed, so that a chart is the same each time.
            line_numbers = random.Random(0).sample(range(len(lines)), limit)  # noqa: S311 - no secret
            frame = frame.filter(pl.col("line").is_in(lines[sorted(line_numbers)].implode()))
        return result_rows(frame), len(lines)


def result_rows(frame: pl.DataFrame) -> list[Row]:
    """Return results as rows, with `interval_95` if they have `INTERVAL_COLUMNS`."""
    rows = frame.to_dicts()
    if {*INTERVAL_COLUMNS} <= {*frame.columns}:
        for row in rows:
            row["interval_95"] = describe_interval(row)
    return rows


def describe_interval(row: Row) -> str | None:
    """Return the interval of a measured step: "1.2 ms to 1.3 ms"; None where unknown.

    A stated interval may be of another kind.
    """
    low_s, high_s, kind = (row[name] for name in INTERVAL_COLUMNS)
    has_interval = kind and low_s is not None and high_s is not None
    return f"{format_seconds(low_s)} to {format_seconds(high_s)}" if has_interval else None

"""What an analysis is asked of: folders of records, as two tables that SQL reads.

`records` has a row for each record, `results` one for each network, platform, way of measuring and
method of prediction. Both have a column for every quantity and hyperparameter, SI units in their
names, and None where something is unknown. A picture or a table of many rows asks for the columns
and rows that it shows, binned where they are more than it can draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from steptime.core.units import seconds
from steptime.records import results_sql
from steptime.records.folders import Folders
from steptime.records.row import Row

if TYPE_CHECKING:
    import polars as pl

WHOLE = ("name", *results_sql.COLUMNS, "label", *results_sql.PLACES)


class Data(Folders):
    """Folders of records, with the table `results` for a statement that asks it."""

    @cached_property
    def results(self) -> list[Row]:
        """The rows of `analysis.results`, each with a `label` that tells it from all others.

        `interval_95` is the 95 % interval of its measured step in words, None where unknown.
        """
        return self.of_results(WHOLE)

    def of_results(self, columns: Iterable[str], rest: str = "", *values: Any) -> list[Row]:
        """Return columns of `results` and `interval_95`; `rest` is the SQL behind its name."""
        ends = ("measured_low_s", "measured_high_s")  # stated ones may be another interval
        told = dict.fromkeys(one for one in (*columns, *ends, "interval") if one != "interval_95")
        rows = self.rows(f"SELECT {', '.join(told)} FROM results {rest}", *values)
        for row in rows:
            low, high = (row[end] for end in ends)
            known = row["interval"] and low is not None and high is not None
            row["interval_95"] = f"{seconds(low)} to {seconds(high)}" if known else None
        return rows

    def results_frame(self, columns: Sequence[str]) -> pl.DataFrame:
        """Return columns of `results` as a frame, in their order."""
        import polars as pl

        arrays = self.arrays(f"SELECT {', '.join(columns)} FROM results")
        return pl.DataFrame(
            [
                pl.Series(name, column.tolist(), dtype=pl.String())
                if column.dtype.kind == "O"
                else pl.Series(name, column).fill_nan(None)
                for name, column in arrays.items()
            ]
        )

    def drawn(
        self, columns: Iterable[str], where: str, most: int, line: str = "label"
    ) -> tuple[list[Row], int]:
        """Return columns of `results` where a condition holds, their `line`, the number of lines.

        A line is what has one value of the expression `line`, by default a row. Of more than `most`
        lines the rows are of some, chosen by chance.
        """
        chosen = self.rows(
            "SELECT of_line, count(*) OVER () AS number FROM (SELECT DISTINCT "
            f"hash({line}) AS of_line FROM results WHERE {where}) ORDER BY of_line LIMIT {most}"
        )
        number = chosen[0]["number"] if chosen else 0
        lines = ", ".join(str(one["of_line"]) for one in chosen)
        some = f" AND hash({line}) IN ({lines})" if number > most else ""
        return self.of_results((*columns, f"{line} AS line"), f"WHERE {where}{some}"), number

    def beside(self) -> Data:
        """Return the same records for another thread, which must not outlast this object."""
        self._told  # noqa: B018  # asked once, not by each
        self._add_results()
        found, tables = copy(self), copy(self._tables)
        tables.connection = tables.connection.cursor()
        vars(found)["_tables"] = tables
        return found

    def _asked(self, sql: str, values: Sequence[Any]) -> Any:
        """Return the answer to a statement; the first that lacks the table `results` gets it."""
        from duckdb import CatalogException

        try:
            return super()._asked(sql, values)
        except CatalogException:
            self._add_results()
            return super()._asked(sql, values)

    def _add_results(self) -> None:
        self._tables.add_results(partial(results_sql.add, self), results_sql.SQL)

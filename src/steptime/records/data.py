"""What an analysis is asked of: folders of records, as two tables that SQL reads.

`records` has a row for each record, `results` one for each network, platform, way of measuring and
method of prediction. Both have a column for every quantity and hyperparameter, SI units in their
names, and None where something is unknown. A picture or a table of many rows asks for the columns
and rows that it shows, binned where they are more than it can draw.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steptime.core.errors import InputError
from steptime.core.units import first_of, seconds
from steptime.records import flat, names, results_sql, store
from steptime.records.record import ORIGINS, Record
from steptime.records.row import UNKNOWN, Row
from steptime.records.store import RANK
from steptime.records.tables import Tables

if TYPE_CHECKING:
    import numpy as np

WHOLE = ("name", *results_sql.COLUMNS, "label", *results_sql.PLACES)
FAILED = "SELECT status, cause, count(*) AS n FROM flat WHERE scope = '' GROUP BY ALL ORDER BY 3, 1"


class Data:
    """Records of one folder or of several, each with its name; a row says its `folder`.

    `most` is how many rows are shown of a table that only people read; None asks for all.
    """

    most: int | None = None

    def __init__(
        self,
        *folders: tuple[str, Path | Sequence[Record]],
        warn: Callable[[str], None] = lambda _: None,
        model: str = "",
    ) -> None:
        self._folders, self._warn, self._model = folders, warn, model

    @classmethod
    def load(cls, paths: Iterable[Path], warn: Callable[[str], None], model: str = "") -> Data:
        """Return the records of folders, or of models that begin so.

        Raises `InputError` for what is no folder of records.
        """
        found = list(paths)
        for path in found:
            with store.readable(path):
                if not any(one.stat().st_size for one in store.paths(path)):
                    raise InputError(f"{path}: {store.EMPTY}")
        names = [path.resolve().name for path in found]
        told = [n if names.count(n) == 1 else str(p) for n, p in zip(names, found, strict=True)]
        return cls(*zip(told, found, strict=True), warn=warn, model=model)

    @classmethod
    def of(cls, records: Sequence[Record], name: str = "") -> Data:
        """Return records that are at hand."""
        return cls((name, records))

    @property
    def names(self) -> list[str]:
        """The names of the folders."""
        return [name for name, _ in self._folders]

    @cached_property
    def results(self) -> list[Row]:
        """The rows of `analysis.results`, each with a `label` that tells it from all others.

        `interval_95` is the 95 % interval of its measured step in words, None where unknown.
        """
        return self.of_results(WHOLE)

    def of_results(self, columns: Iterable[str], rest: str = "", *values: Any) -> list[Row]:
        """Return columns of `results` and `interval_95`; `rest` is the SQL behind its name."""
        ends = ("measured_low_s", "measured_high_s")
        told = dict.fromkeys(one for one in (*columns, *ends) if one != "interval_95")
        rows = self.rows(f"SELECT {', '.join(told)} FROM results {rest}", *values)
        for row in rows:
            low, high = (row[end] for end in ends)
            known = low is not None and high is not None
            row["interval_95"] = f"{seconds(low)} to {seconds(high)}" if known else None
        return rows

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

    def rows(self, sql: str, *values: Any) -> list[Row]:
        """Return the answer to a statement over `records` and `results`; `?` stand for `values`."""
        return flat.fetched(self._asked(sql, values))

    def one(self, sql: str, *values: Any) -> list[Any]:
        """Return the cells of the one row that answers a statement."""
        (row,) = self.rows(sql, *values)
        return [*row.values()]

    def arrays(self, sql: str, *values: Any, exact: Collection[str] = ()) -> dict[str, np.ndarray]:
        """Return the answer as a column each: numbers as float64 with NaN where unknown.

        Whole numbers of columns that are `exact` stay as they are; none of them may be unknown.
        """
        import numpy as np

        def plain(column: Any) -> Any:
            kind = float if column.dtype.kind in "iufb" else object
            held = np.ma.getdata(column).astype(kind, copy=False)
            unknown = np.array(None, kind)  # NaN as a float
            return np.where(column.mask, unknown, held) if np.ma.is_masked(column) else held

        found = self._asked(sql, values).fetchnumpy()
        return {n: column if n in exact else plain(column) for n, column in found.items()}

    def columns(self, table: str) -> dict[str, str]:
        """Return the columns of `records` or `results`, and the SQL type of each."""
        found = self.rows(f"DESCRIBE {table}")
        return {row["column_name"]: row["column_type"] for row in found}

    def whole(self, folder: int, places: Iterable[int]) -> dict[int, Record]:
        """Return records of a folder whole, by their places, as `flat` says them."""
        held = self._folders[folder][1]
        if not isinstance(held, Path):
            return {place: held[place] for place in places}
        files = store.paths(held)
        return {one: store.record_at(files[one // RANK], one % RANK) for one in places}

    def names_of(
        self, rows: str, wide: Callable[[Sequence[int]], str], free: Collection[str] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the `id` of rows and the names of them, as `names.add_names` makes them."""
        names.add_names(self._tables.connection, "named_rows", rows, wide, free)
        of = self.arrays("FROM named_rows", exact=("id",))
        return of["id"], of["name"]

    def lend(self, name: str, columns: dict[str, Any]) -> None:
        """Let statements read arrays as a table of this name."""
        self._tables.connection.register(name, columns)

    def expression(self, column: str) -> str:
        """Return the SQL over `flat` of a column of `records`."""
        return self._tables.columns[column]

    @cached_property
    def failed(self) -> str:
        """How many steps failed and of what most did, where none succeeded; else an empty text."""
        found = self.rows(FAILED)
        if not found or any(row["status"] == "ok" for row in found):
            return ""
        status, cause, most = found[-1].values()
        often = f" most often ({most:,})" if len(found) > 1 else ""
        why = f"{status}: {cause}" if cause else status
        return f"no step here succeeded: {sum(o['n'] for o in found):,} failed,{often} with {why}"

    @property
    def settings(self) -> list[str]:
        """The names of hyperparameters, as networks have them."""
        return list(self._tables.param_columns)

    @cached_property
    def hyperparameters(self) -> list[str]:
        """The columns of both tables that are hyperparameters of networks."""
        return list(self._tables.param_columns.values())

    @property
    def source(self) -> str:
        """One line for captions: how measured, predicted or published, where, and when."""
        return self.source_of(*ORIGINS)

    def source_of(self, *origins: str, on: Collection[str] = ()) -> str:
        """Return that line of the records of these origins, on these platforms or on all."""
        told = [row for row in self._told if not on or row["platform"] in on]
        return _line([row for row in told if row["origin"] in origins])

    @cached_property
    def origins(self) -> set[str]:
        """The origins of the records."""
        return {row["origin"] for row in self.rows("SELECT DISTINCT origin FROM flat")}

    @cached_property
    def _told(self) -> list[Row]:
        told = "origin, method, method_version, platform, taken_at[:10] AS day"
        return self.rows(f"SELECT DISTINCT {told} FROM flat")

    def tables(self) -> Tables:
        """Return a database of these records that nobody else uses."""
        return Tables(self._folders or [("", ())], self._warn, self._model)

    def beside(self) -> Data:
        """Return the same records for another thread, which must not outlast this object."""
        self._told  # noqa: B018  # asked once, not by each
        self._tables.add_results()
        found, tables = copy(self), copy(self._tables)
        tables.connection = tables.connection.cursor()
        vars(found)["_tables"] = tables
        return found

    @cached_property
    def _tables(self) -> Tables:
        return self.tables()

    def _asked(self, sql: str, values: Sequence[Any]) -> Any:
        """Return the answer to a statement; the first that lacks the table `results` gets it."""
        from duckdb import CatalogException

        try:
            return self._tables.connection.execute(sql, list(values))
        except CatalogException:
            self._tables.add_results()
            return self._tables.connection.execute(sql, list(values))


def _line(told: Sequence[Row]) -> str:
    parts = [_methods(told, origin) for origin in ORIGINS]
    shown = first_of(sorted({row["platform"] for row in told if row["platform"]}), 3)
    days = sorted({row["day"] for row in told if row["day"]})
    when = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""
    return " · ".join(part for part in (*parts, shown, when) if part)


def _methods(told: Sequence[Row], origin: str) -> str:
    here = [row for row in told if row["origin"] == origin]
    methods = {f"{r['method']} {r['method_version']}".removesuffix(f" {UNKNOWN}") for r in here}
    return f"{origin} with {', '.join(sorted(methods))}" if methods else ""

"""Folders of records as one frame, and the methods, platforms and days of their records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from steptime.core.errors import InputError
from steptime.core.units import first_of
from steptime.records import store
from steptime.records.column_names import name_settings
from steptime.records.folder_source import Source
from steptime.records.record import ORIGINS, Record
from steptime.records.record_files import read_record
from steptime.records.row import UNKNOWN, Kinds, Row
from steptime.records.tables import Tables

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray


class Folders:
    """Records of one folder or of several, each with its name; a row says its `folder`.

    Attributes:
        max_rows: rows of a table that only people read; None asks for all.
    """

    max_rows: int | None = None

    def __init__(
        self,
        *folders: Source,
        warn: Callable[[str], None] = lambda _: None,
        model: str = "",
    ) -> None:
        self._folders = folders
        self._warn = warn
        self._model = model

    @classmethod
    def load(cls, paths: Iterable[Path], warn: Callable[[str], None], model: str = "") -> Self:
        """Return the records of folders, or those of models that begin so.

        Args:
            paths: the folders.
            warn: gets a line on records that are left out.
            model: how the names of models begin; "" for all.

        Raises:
            InputError: for a path that is no folder of records.
        """
        folders = list(paths)
        for path in folders:
            with store.readable(path):
                if not any(file.stat().st_size for file in store.paths(path)):
                    raise InputError(f"{path}: {store.EMPTY}")
        names = [path.resolve().name for path in folders]
        sources = [  # folders of one name are told apart by their paths
            (name if names.count(name) == 1 else str(path), path)
            for name, path in zip(names, folders, strict=True)
        ]
        return cls(*sources, warn=warn, model=model)

    @classmethod
    def from_records(cls, records: Sequence[Record], name: str = "") -> Self:
        """Return records that are in memory."""
        return cls((name, records))

    @property
    def names(self) -> list[str]:
        """The names of the folders."""
        return [name for name, _ in self._folders]

    def read_records(self, folder: int, places: Iterable[int]) -> dict[int, Record]:
        """Return records of a folder, by their `place` in the frame."""
        _, content = self._folders[folder]
        if not isinstance(content, Path):  # records in memory, whose places are their numbers
            return {place: content[place] for place in places}
        paths, starts = self._tables.files_of(folder)
        return {place: read_record(paths, starts, place) for place in places}

    def scan(self) -> pl.LazyFrame:
        """Return the records as a lazy frame (`frame_columns.SCHEMA`), in their order."""
        return self._tables.scan()

    def take_records(
        self, seqs: NDArray[np.int64], columns: Sequence[str | pl.Expr]
    ) -> pl.DataFrame:
        """Return columns of records by their `seq`, in ascending order without repeats."""
        import numpy as np
        import polars as pl

        distinct_seqs = np.unique(seqs)
        if not len(distinct_seqs):
            return self.scan().head(0).select("seq", *columns).collect()
        # The range spares reading the parts of files beyond it.
        records = self._tables.scan((int(distinct_seqs[0]), int(distinct_seqs[-1])))
        takes_part = pl.col("seq").is_in(pl.Series(distinct_seqs).implode())
        return records.filter(takes_part).select("seq", *columns).collect()

    def count_records(self) -> int:
        """Return the number of records."""
        import polars as pl

        return int(self.scan().select(pl.len()).collect().item())

    def model_names(self) -> list[str]:
        """Return the models of the records, sorted."""
        return sorted(self._distinct("model")["model"])

    def _distinct(self, *columns: str | pl.Expr) -> pl.DataFrame:
        """Return the combinations of values of columns, in the order of their first records."""
        return self.scan().select(*columns).unique(maintain_order=True).collect()

    @cached_property
    def failed(self) -> str:
        """How many steps failed, and for which reason most, if none succeeded; else ""."""
        import polars as pl

        reason_columns = ("status", "cause")
        steps = self.scan().filter(pl.col("scope") == "").select(reason_columns).collect()
        has_success = (steps["status"] == "ok").any()
        if has_success or not len(steps):  # nothing to explain
            return ""
        reasons = steps.group_by(reason_columns, maintain_order=True).len("count")
        # The last row is the most frequent reason; of equally frequent ones the last by name.
        status, cause, count = reasons.sort("count", *reason_columns).row(-1)
        reason_text = f"{status}: {cause}" if cause else status
        count_text = f" most often ({count:,})" if len(reasons) > 1 else ""
        return f"no step here succeeded: {len(steps):,} failed,{count_text} with {reason_text}"

    @property
    def settings(self) -> list[str]:
        """The names of hyperparameters, as networks have them."""
        return list(self.setting_kinds)

    @cached_property
    def setting_columns(self) -> dict[str, str]:
        """The column of each hyperparameter by its name."""
        return name_settings(self.setting_kinds, self.quantity_kinds)

    @property
    def setting_kinds(self) -> Kinds:
        """The names of the types that the values of each hyperparameter have."""
        return self._tables.setting_kinds

    @property
    def quantity_kinds(self) -> Kinds:
        """The same of each quantity that not every record has."""
        return self._tables.quantity_kinds

    @cached_property
    def hyperparameters(self) -> list[str]:
        """The columns of hyperparameters, in records and in results."""
        return list(self.setting_columns.values())

    @property
    def source(self) -> str:
        """One line for captions: how measured, predicted or published, where, and when."""
        return self.source_of(*ORIGINS)

    def source_of(self, *origins: str, on: Collection[str] = ()) -> str:
        """Return the same line of the records of these origins, on these platforms or on all."""
        methods = [row for row in self._methods if not on or row["platform"] in on]
        return _describe_methods([row for row in methods if row["origin"] in origins])

    @cached_property
    def origins(self) -> set[str]:
        """The origins of the records."""
        return set(self._distinct("origin")["origin"])

    @cached_property
    def _methods(self) -> list[Row]:
        """The methods, platforms and days of the records, each combination once."""
        import polars as pl

        day = pl.col("taken_at").str.head(10).alias("day")
        return self._distinct("origin", "method", "method_version", "platform", day).to_dicts()

    def tables(self) -> Tables:
        """Return the rows of these records in files that nobody else uses."""
        return Tables(self._folders or [("", ())], self._warn, self._model)

    @cached_property
    def _tables(self) -> Tables:
        return self.tables()


def _describe_methods(rows: Sequence[Row]) -> str:
    """Return a line such as "measured with torch 2.13.0 · a100 · 2026-11-05"."""
    parts = [_name_methods(rows, origin) for origin in ORIGINS]
    platforms = first_of(sorted({row["platform"] for row in rows if row["platform"]}), 3)
    days = sorted({row["day"] for row in rows if row["day"]})
    period = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""
    return " · ".join(part for part in (*parts, platforms, period) if part)


def _name_methods(rows: Sequence[Row], origin: str) -> str:
    """Return the methods of an origin: "predicted with analytic 2, roofline"."""
    methods = {
        f"{row['method']} {row['method_version']}".removesuffix(f" {UNKNOWN}")
        for row in rows
        if row["origin"] == origin
    }
    return f"{origin} with {', '.join(sorted(methods))}" if methods else ""

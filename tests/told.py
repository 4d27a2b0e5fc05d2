"""Records that are at hand, asked as a folder of them is."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from steptime.analysis import devices_table
from steptime.analysis.comparison import pairs
from steptime.analysis.comparison.pairing import Pairing
from steptime.records.data import Data
from steptime.records.record import Record
from steptime.records.record_columns import record_columns


def predicted_and_measured(records: Sequence[Record], *told: Any) -> SimpleNamespace:
    return _told(pairs.predicted_and_measured(Data.from_records(records), *told))


def two_platforms(records: Sequence[Record], *told: Any, **more: Any) -> SimpleNamespace:
    return _told(pairs.two_platforms(Data.from_records(records), *told, **more))


def two_folders(a: Sequence[Record], b: Sequence[Record], *told: Any) -> SimpleNamespace:
    return _told(pairs.two_folders(Data(("a", a), ("b", b)), *told))


def by_column(
    folders: Sequence[tuple[str, Sequence[Record]]], *told: Any, **more: Any
) -> SimpleNamespace:
    return _told(pairs.by_column(Data(*folders), *told, **more))


def _told(found: Pairing) -> SimpleNamespace:
    return SimpleNamespace(
        unpaired=found.unpaired_rows(),
        pairs=found.rows(),
        levels=found.summarise_levels(),
        against=found.against,
        found=found,
    )


def device_rows(records: Sequence[Record]) -> list[Any]:
    return list(devices_table.device_table(Data.from_records(records)).rows)


def device_bars(records: Sequence[Record]) -> list[Any]:
    return devices_table.device_bars(Data.from_records(records))


def row_of(record: Record) -> dict[str, Any]:
    """Return the row of `records` of one record."""
    (row,) = record_rows(Data.from_records([record]))
    return row


def record_rows(data: Data, *names: str) -> list[dict[str, Any]]:
    """Return columns of records, all of them by default, in their order."""
    columns = record_columns(data)
    return data.scan().select(columns[name] for name in names or columns).collect().to_dicts()


def frame_rows(data: Data, *names: str) -> list[dict[str, Any]]:
    """Return columns of the frame of records, in its order."""
    return data.scan().select(names).collect().to_dicts()

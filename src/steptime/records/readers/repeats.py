"""Rows of a table that repeat one measurement, pooled into one record with samples."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from steptime.records.record import Quantity, Record, record_to_json


class ReadRow(NamedTuple):
    """The record of a row, and the text of its `repeat`; None where rows are not pooled."""

    record: Record
    repeat: str | None


def pool_repeats(rows: Iterable[ReadRow]) -> list[Record]:
    """Return records with those pooled that differ in their repeat and their values alone.

    The samples of the pooled record have a column `run`: rows with the same repeat are one run.
    """
    groups: dict[str, list[ReadRow]] = {}
    for place, row in enumerate(rows):
        key = str(place) if row.repeat is None else _identity(row.record)
        groups.setdefault(key, []).append(row)
    return [_pooled(group) for group in groups.values()]


def _identity(record: Record) -> str:
    """Return a text that is equal for repeats of one measurement."""
    table = record_to_json(replace(record, taken_at=""))
    table["quantities"] = sorted(record.quantities)
    table["env"] = {
        name: value for name, value in record.env.items() if name not in ("source_entry", "date")
    }
    return "repeat " + json.dumps(table, sort_keys=True, default=str)


def _pooled(rows: Sequence[ReadRow]) -> Record:
    """Return the first record of a group with the samples of all."""
    first = rows[0].record
    if len(rows) == 1:
        return first
    run_names = list(dict.fromkeys(row.repeat for row in rows))
    quantities = {}
    for name in first.quantities:
        samples: list[float] = []
        runs: list[int] = []
        for row in rows:
            quantity = row.record.quantities[name]
            amounts = quantity.samples or (quantity.value or 0.0,)
            samples += amounts
            runs += [run_names.index(row.repeat)] * len(amounts)
        quantities[name] = Quantity(samples=tuple(samples), columns={"run": tuple(runs)})
    return replace(first, quantities=quantities)

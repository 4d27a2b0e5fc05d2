"""Repeats: records that differ in nothing but their values, pooled into one record with samples."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from steptime.core.copying import replace
from steptime.records.record import Quantity, Record, record_to_json

ENTRY_FACTS = ("source_entry", "date")  # of an environment, which repeats of one run may differ in


class RepeatRow(NamedTuple):
    """A record that may be a repeat.

    Attributes:
        record: the record.
        run: the name of its run, if a column of the table holds it; None for a run of its own.
    """

    record: Record
    run: str | None = None


def repeat_key(row: RepeatRow) -> str | None:
    """Return a text that is equal for repeats; None for a record that can be none.

    Predictions and steps without a number are no repeats, nor are a row with samples and a row with
    a stated value. Rows with a named run may differ in their dates, too.
    """
    record = row.record
    if record.origin == "predicted" or record.status != "ok" or not record.quantities:
        return None
    ignored = ENTRY_FACTS[:1] if row.run is None else ENTRY_FACTS
    table = record_to_json(record)
    table["quantities"] = sorted(
        (name, bool(quantity.samples)) for name, quantity in record.quantities.items()
    )
    table["env"] = {name: value for name, value in record.env.items() if name not in ignored}
    if row.run is not None:
        table["taken_at"] = ""
    return json.dumps(table, sort_keys=True, default=str)


def pool_repeats(
    rows: Iterable[RepeatRow], key_of: Callable[[RepeatRow], str | None] = repeat_key
) -> list[Record]:
    """Return records in which each group of repeats is one record with the samples of all.

    The samples have a column `run`: a row is a run of its own, rows with the same named run are
    one. The order is that of the first record of each group.

    Args:
        rows: the records.
        key_of: returns the same text for repeats, None for a record that stays as it is.
    """
    groups: dict[str | int, list[RepeatRow]] = {}
    for number, row in enumerate(rows):
        key = key_of(row)
        groups.setdefault(number if key is None else key, []).append(row)
    return [_pool_group(group) for group in groups.values()]


def _pool_group(rows: Sequence[RepeatRow]) -> Record:
    """Return the first record of a group with the samples of all."""
    first = rows[0].record
    if len(rows) == 1:
        return first
    names = [
        str(number) if row.run is None else f"run {row.run}" for number, row in enumerate(rows)
    ]
    quantities = {
        name: _pool_quantity(names, [row.record.quantities.get(name, Quantity()) for row in rows])
        for name in first.quantities
    }
    env: Mapping[str, object] = first.env
    entries = [row.record.env["source_entry"] for row in rows if "source_entry" in row.record.env]
    if entries:
        env = {**first.env, "repeat_entries": entries}
    return replace(first, quantities=quantities, env=env)


def _pool_quantity(names: Sequence[str], quantities: Sequence[Quantity]) -> Quantity:
    """Return the samples of one quantity in several records, with the run of each.

    Args:
        names: the name of the run of each record; the runs within a record stay apart.
        quantities: the quantity in each record.
    """
    samples: list[float] = []
    runs: list[int] = []
    numbers: dict[tuple[str, int], int] = {}
    for name, quantity in zip(names, quantities, strict=True):
        values = quantity.samples
        if not values and quantity.value is not None:
            values = (quantity.value,)
        for value, run in zip(values, quantity.runs or (0,), strict=False):
            samples.append(value)
            runs.append(numbers.setdefault((name, run), len(numbers)))
    return Quantity(samples=tuple(samples), columns={"run": tuple(runs)})

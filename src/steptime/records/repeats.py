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
    # All but the values must be equal. Facts of `env` that name the entry of the source file differ
    # between repeats; those of a named run may also differ in their dates.
    has_run_name = row.run is not None
    ignored_facts = ENTRY_FACTS if has_run_name else ("source_entry",)
    table = record_to_json(record)
    table["quantities"] = sorted(
        (name, bool(quantity.samples)) for name, quantity in record.quantities.items()
    )
    table["env"] = {name: fact for name, fact in record.env.items() if name not in ignored_facts}
    if has_run_name:
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
    # A row without a key has its number as key: it is alone in its group.
    repeats_by_key: dict[str | int, list[RepeatRow]] = {}
    for row_number, row in enumerate(rows):
        key = key_of(row)
        repeats_by_key.setdefault(row_number if key is None else key, []).append(row)
    return [_pool_group(repeats) for repeats in repeats_by_key.values()]


def _pool_group(rows: Sequence[RepeatRow]) -> Record:
    """Return the first record of a group with the samples of all."""
    records = [row.record for row in rows]
    first_record = records[0]
    if len(records) == 1:
        return first_record
    run_names = [  # a row without a named run is a run of its own
        str(number) if row.run is None else f"run {row.run}" for number, row in enumerate(rows)
    ]
    pooled_quantities = {}
    for name in first_record.quantities:
        quantities = [record.quantities.get(name, Quantity()) for record in records]
        pooled_quantities[name] = _pool_quantity(run_names, quantities)
    env: Mapping[str, object] = first_record.env
    entries = [record.env["source_entry"] for record in records if "source_entry" in record.env]
    if entries:
        env = {**first_record.env, "repeat_entries": entries}
    return replace(first_record, quantities=pooled_quantities, env=env)


def _pool_quantity(run_names: Sequence[str], quantities: Sequence[Quantity]) -> Quantity:
    """Return the samples of one quantity in several records, with the run of each.

    Args:
        run_names: the name of the run of each record; the runs within a record stay apart.
        quantities: the quantity in each record.
    """
    samples: list[float] = []
    sample_runs: list[int] = []
    pooled_runs: dict[tuple[str, int], int] = {}  # number by name of the run and run in the record
    for run_name, quantity in zip(run_names, quantities, strict=True):
        record_samples = quantity.samples
        if not record_samples and quantity.value is not None:
            record_samples = (quantity.value,)
        record_runs = quantity.runs or (0,)  # a value alone is of one run
        for sample, record_run in zip(record_samples, record_runs, strict=False):
            samples.append(sample)
            pooled_run = pooled_runs.setdefault((run_name, record_run), len(pooled_runs))
            sample_runs.append(pooled_run)
    return Quantity(samples=tuple(samples), columns={"run": tuple(sample_runs)})

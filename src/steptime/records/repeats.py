"""Repeats: records of stated values that differ in nothing but their value."""

from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from steptime.records.record import Quantity, Record
from steptime.records.row import grouped
from steptime.records.store import identity

RepeatKey = tuple[str, str, str, str, str]


def merge_repeats(records: Iterable[Record], quantity: str = "step_s") -> list[Record]:
    """Return records in which each group of repeats is one record with the median of its values.

    Records with samples, predictions and steps that failed stay as they are. The order is that of
    the first record of each group.
    """
    groups = grouped(enumerate(records), lambda item: _repeat_key(*item, quantity))
    merged = []
    for repeats in groups.values():
        _, first = repeats[0]
        if len(repeats) > 1:
            values = [record.quantities[quantity].value or 0.0 for _, record in repeats]
            stated = {**first.quantities, quantity: Quantity(median(values))}
            first = replace(first, quantities=stated)
        merged.append(first)
    return merged


def _repeat_key(number: int, record: Record, quantity: str) -> RepeatKey | int:
    """Return the same key for repeats, and the number of any other record."""
    stated = record.quantities.get(quantity)
    is_stated = stated is not None and not stated.samples and stated.value is not None
    if not is_stated or record.origin == "predicted" or record.status != "ok":
        return number
    method = identity(record.method)
    return record.origin, record.workload.key, record.platform, method, record.scope

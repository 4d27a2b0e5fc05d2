"""The software stacks that something here measures, by the name that tables give them."""

from collections.abc import Mapping
from functools import lru_cache

from steptime import catalog
from steptime.core import record
from steptime.core.record import Record


@lru_cache(maxsize=1)
def measured() -> Mapping[str, str]:
    """Return the shipped stacks that a backend measures: the names of their files by label."""
    found = map(catalog.stack, catalog.stack_names(own=False))
    return {one.label: one.name for one in found if one.backend}


def stack_of(one: Record) -> str:
    """Return the name of the file of the stack that ran a record's step, "" where none says it."""
    return measured().get(record.stack_of(one) or "", "")


def apart(one: Record, other: Record) -> bool:
    """Whether two records are known to be of different stacks."""
    labels = record.stack_of(one), record.stack_of(other)
    return labels[0] != labels[1] and measured().keys() >= set(labels)

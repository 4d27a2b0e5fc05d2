"""The software stacks that come with the package, by the name that tables give them."""

from collections.abc import Mapping
from functools import lru_cache

from steptime.hardware import catalog
from steptime.records import record
from steptime.records.record import Record


@lru_cache(maxsize=1)
def known() -> Mapping[str, str]:
    """Return the shipped stacks, those too that no backend runs: the names of files by label."""
    return {catalog.stack(name).label: name for name in catalog.stack_names(own=False)}


@lru_cache(maxsize=1)
def measured() -> Mapping[str, str]:
    """Return the shipped stacks that a backend measures: the names of their files by label."""
    return {label: name for label, name in known().items() if catalog.stack(name).backend}


def stack_of(one: Record) -> str:
    """Return the name of the file of the stack that ran a record's step, "" where none says it."""
    return known().get(record.stack_of(one) or "", "")

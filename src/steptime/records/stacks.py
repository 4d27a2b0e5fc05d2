"""The software stacks that come with the package, by the name that tables give them."""

from collections.abc import Mapping
from functools import lru_cache

from steptime.hardware import catalog
from steptime.records import record
from steptime.records.record import Record


@lru_cache(maxsize=1)
def stack_labels() -> Mapping[str, str]:
    """Return the names of the files of all shipped stacks by label, also without a backend."""
    return {catalog.stack(name).label: name for name in catalog.stack_names(with_user_files=False)}


@lru_cache(maxsize=1)
def measured_labels() -> Mapping[str, str]:
    """Return the names of the files of shipped stacks that a backend measures, by label."""
    return {label: name for label, name in stack_labels().items() if catalog.stack(name).backend}


def stack_of(step: Record) -> str:
    """Return the name of the file of the stack that ran a record's step; "" if it is unknown."""
    return stack_labels().get(record.stack_of(step) or "", "")

"""The cyclic garbage collector, paused where many objects are made that are no garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause the cyclic garbage collector, which takes a quarter of the time of many objects.

    What lives anyway is looked at again and again: rows of records, graphs of networks.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

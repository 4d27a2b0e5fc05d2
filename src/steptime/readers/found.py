"""What a reader gives: records, and what it did not read."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.core.record import Record
from steptime.readers.sources import Unread


@dataclass(frozen=True)
class Found:
    """The records of a source, without where they come from, and what was not read of it."""

    records: tuple[Record, ...] = ()
    unread: tuple[Unread, ...] = ()

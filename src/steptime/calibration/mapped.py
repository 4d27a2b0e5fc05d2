"""The one reader of mapping files: each of them serves `import`, `evaluate` and `calibrate`.

A file says quantities of records (`[quantities]`), or times of ops and steps (`seconds`).
"""

import csv
import io
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import isnan
from pathlib import Path
from typing import Any

from steptime.build import read_table
from steptime.calibration.cases import Case, Unasked, leave_out
from steptime.calibration.mapping import TimesMapping, cases_of, listed, mapping, plain_cases
from steptime.calibration.recorded import recorded
from steptime.core.errors import InputError, shorten
from steptime.hardware.device import Device
from steptime.records import store
from steptime.records.readers import read_path
from steptime.records.readers.csv_mapping import ENDINGS, Mapped, check_mapping
from steptime.records.readers.sources import Reading, RecordSource, Unread
from steptime.records.record import Quantity, Record, RecordMethod


@dataclass(frozen=True)
class Timed:
    """A reader of CSV files by a mapping of times, of which steps of networks become records."""

    table: TimesMapping
    name: str
    SOURCE: str  # as the readers that are modules have it
    sha256: str

    def recognises(self, source: RecordSource) -> bool:
        """Whether this is a table, by its name."""
        return source.name.lower().endswith(ENDINGS)

    def read(self, source: RecordSource) -> Reading:
        """Return a record for each step; what is none is unread, with its line."""
        tabs = "\t" if source.name.lower().endswith(".tsv") else ","
        unasked: Unasked = []
        rows = csv.DictReader(io.StringIO(source.text), delimiter=tabs)
        cases = list(cases_of(rows, self.table, unasked=unasked))
        unread = [Unread(source.name, _line(place), cause) for place, cause in unasked]
        reason = "an op, no step of a network; steptime evaluate reads it"
        unread += [Unread(source.name, _line(c.place), reason) for c in cases if not c.workload]
        return Reading(tuple(filter(None, map(self._record, cases))), tuple(unread))

    def _record(self, case: Case) -> Record | None:
        if not case.workload:
            return None
        return Record(
            origin="published",
            method=RecordMethod(self.name, "unknown", {"stack": case.stack} if case.stack else {}),
            workload=case.workload,
            platform=case.device.name,
            quantities={"step_s": Quantity(case.seconds)},
            status="ok",
            env={"source_entry": _line(case.place), "mapping": self.sha256},
        )


def _line(place: str) -> int:
    """Return the line in its file of a `row 0`, which follows the heads."""
    return int(place.removeprefix("row ")) + 2


def read_mapping(path: Path) -> Mapped | Timed:
    """Return the reader that a mapping file says; raises `InputError` with all faults on a line."""
    table = read_table(str(path), "mapping")
    if not isinstance(table, dict):
        raise InputError(f"{path}: a mapping is a table, not {shorten(table)}")
    if "quantities" in table:
        return check_mapping(table, str(path))
    content = sha256(repr(table).encode()).hexdigest()
    name, source = (str(table.get(key) or path.stem) for key in ("name", "source"))
    return Timed(mapping(table, str(path)), name, source, content)


def cases(
    rows: str | Path | Iterable[Mapping[str, Any]],
    mapping: str | Path | None = None,
    device: Device | None = None,
    most: int | None = None,
    warn: Callable[[str], None] = warnings.warn,
    unasked: Unasked | None = None,
) -> list[Case]:
    """Return the cases of rows, of a table, or of a folder of records or tables.

    `device` is that of rows that name none, `most` the number of rows of each kind on each device
    that are drawn from tables with a mapping. `warn` is told of records that cannot be used. Rows
    that no prediction can be asked for go to the list `unasked` with their causes; without one the
    first of them is an `InputError`. Raises `InputError`.
    """
    path = Path(rows) if isinstance(rows, str | Path) else None
    every = _framed(rows) if path is None else ()
    reader = None if mapping is None else read_mapping(Path(mapping))
    if isinstance(reader, Timed):
        return list(cases_of(path or every, reader.table, most, unasked))
    if most is not None:
        if reader is not None:
            raise InputError("rows are drawn by a mapping of times, not by one of quantities")
        raise InputError("rows are drawn from tables with a mapping: --map MAP.toml")
    if path is None:
        if reader is not None:
            raise InputError(f"{mapping}: a mapping of quantities reads files, not rows")
        return listed(((f"row {i}", row) for i, row in enumerate(every)), device, unasked)
    if reader is None and not path.is_dir():
        return plain_cases(path, device, unasked)
    if reader is None:
        return recorded(store.load(path, warn), warn, unasked)
    found = read_path(path, mapping=reader)
    for one in found.unread:
        leave_out(unasked, f"{one.file}:{one.line}", InputError(one.reason))
    return recorded(found.records, warn, unasked)


def _framed(rows: Any) -> Iterable[Mapping[str, Any]]:
    """Return rows as mappings; those of a DataFrame, whose empty cells are NaN, too."""
    every: Iterable[Mapping[str, Any]] = rows
    if hasattr(rows, "to_dict"):
        every = [
            {name: None if isinstance(cell, float) and isnan(cell) else cell for name, cell in row}
            for row in map(dict.items, rows.to_dict("records"))
        ]
    return every

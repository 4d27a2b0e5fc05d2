"""The command `table`: speeds by device, number and staging."""

from __future__ import annotations

from typing import Any

from steptime.cli import options
from steptime.cli.command import command, note
from steptime.core.table import Answer, Table, columns
from steptime.core.units import counted

BEHIND = ("model", "cause")  # for people; csv and json have all
IF_DIFFERENT = (
    "phase",
    "optimizer",
    "method",
    "input",
    "loaders",
    "prefetch",
    "threads",
    "host",
)


@command(tabular=True)
def table(folder: options.Folder) -> Answer:
    """Print speeds by device, number and staging.

    A row is a measured or published step.
    """
    from steptime import store
    from steptime.analysis.devices_table import COLUMNS, device_rows

    rows = device_rows(store.load(folder, note))
    shown = Table(columns(*_columns(rows)), rows, units=False, full=columns(*COLUMNS))
    return Answer(rows, [shown], [counted(len(rows), "row")])


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    """Return the columns for people; one of `IF_DIFFERENT` only where it tells rows apart."""
    from steptime.analysis.devices_table import MAIN

    differ = [name for name in IF_DIFFERENT if len({row[name] for row in rows}) > 1]
    always = (name for name in MAIN if name not in IF_DIFFERENT)
    return [*always, *BEHIND, *differ]

"""The command that prints the table of speeds by device."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from steptime.cli import output
from steptime.core.errors import unknown
from steptime.core.units import counted

Row = dict[str, Any]
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


def table(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of records.")],
    form: Annotated[
        str, typer.Option("--format", metavar="FORM", help="text, csv, json or markdown.")
    ] = "text",
) -> None:
    """Print speeds by device, number and staging.

    A row is a measured or published step.
    """
    from steptime import store
    from steptime.analysis.devices_table import device_rows

    if form not in FORMATS:
        raise unknown("--format", form, FORMATS)
    FORMATS[form](device_rows(store.load(folder, output.note)))


def _text(rows: list[Row]) -> None:
    shown = _columns(rows)
    output.table("", shown, [[_short(row[name]) for name in shown] for row in rows])
    output.note(counted(len(rows), "row"))


def _columns(rows: list[Row]) -> list[str]:
    """Give the columns for people; one of `IF_DIFFERENT` only where it tells rows apart."""
    from steptime.analysis.devices_table import MAIN

    differ = [name for name in IF_DIFFERENT if len({row[name] for row in rows}) > 1]
    always = (name for name in MAIN if name not in IF_DIFFERENT)
    return [*always, *BEHIND, *differ]


def _markdown(rows: list[Row]) -> None:
    shown = _columns(rows)
    lines = [shown, ["---"] * len(shown)]
    lines += [[_cell(_short(row[name])) for name in shown] for row in rows]
    sys.stdout.writelines(f"| {' | '.join(line)} |\n" for line in lines)


def _csv(rows: list[Row]) -> None:
    from steptime.analysis.devices_table import COLUMNS

    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


FORMATS: dict[str, Callable[[list[Row]], None]] = {
    "text": _text,
    "csv": _csv,
    "json": output.emit_json,
    "markdown": _markdown,
}


def _short(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def _cell(value: object) -> str:
    return "-" if value is None else str(value).replace("|", "\\|")

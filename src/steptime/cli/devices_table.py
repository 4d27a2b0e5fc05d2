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

Row = dict[str, Any]
SHOWN = (  # columns for people; all are in the other formats
    "mean_speed",
    "Mean_Time_Per_Step",
    "speed_uncertainty",
    "Speed_Jitter",
    "gpu_type",
    "num_gpu",
    "staged_from",
    "batch",
    "strategy",
    "dtype",
    "status",
    "mean_speed_corrected",
    "model",
    "cause",
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
    output.table("", SHOWN, [[_short(row[name]) for name in SHOWN] for row in rows])
    output.note(f"{len(rows)} rows")


def _markdown(rows: list[Row]) -> None:
    lines = [SHOWN, ["---"] * len(SHOWN)]
    lines += [[_cell(_short(row[name])) for name in SHOWN] for row in rows]
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

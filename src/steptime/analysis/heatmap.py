"""A quantity over two hyperparameters, in panels over a third; failed cells with their cause."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.heatmap_cells import (
    MAX_STEPS,
    HeatmapCell,
    HeatmapSummary,
    Selection,
    find_cells,
)
from steptime.core.errors import InputError, check_choice, unknown
from steptime.core.tables.table import Column, Table
from steptime.core.units import format_count, format_value
from steptime.records.data import Data
from steptime.records.pooled_step import IS_PREDICTED, IS_STEP
from steptime.records.record import ORIGINS
from steptime.records.record_columns import record_columns

VALUE_WORDS = {  # for the most frequent values
    "speed": "examples_per_s",
    "utilisation": "peak_fraction",
    "memory": "peak_bytes",
    "error": "error_fraction",
}
NONZERO_PEAK = pl.when(pl.col("peak_flop_per_s") != 0).then("peak_flop_per_s")
DERIVED_COLUMNS = {  # of columns of results
    "error_fraction": 1 / pl.col("ratio") - 1,
    "peak_fraction": pl.coalesce("peak_fraction", pl.col("predicted_flop_per_s") / NONZERO_PEAK),
}
MAX_PRINTED_CELLS = 40


def heatmap(
    data: Data,
    x: str | None,
    y: str | None,
    value: str,
    over: str | None,
    only: Sequence[str] | None,
) -> Table:
    """Return the table of `find_cells`.

    Raises:
        InputError: for an unknown column.
    """
    quantity = VALUE_WORDS.get(value, value)
    selection = _select_rows(data, quantity, only or ())
    for name in (x, y, over):
        if name is not None and name not in selection.schema:
            raise unknown("column", name, [*selection.hyperparameters, *selection.schema])
    answer = find_cells(selection, (x, y), over, quantity, only or ())
    rows = [row.to_dict() for row in answer.rows]
    has_axes = answer.summary.x is not None and answer.summary.y is not None
    keys = rows[0] if rows else ("x", "y")
    return Table(
        _list_columns(answer.summary) if has_axes else (),
        rows,
        max_rows=MAX_PRINTED_CELLS,
        csv_columns=[Column(key, key) for key in keys],
        summary=answer.summary.to_dict(),
        structs=answer.rows,
        source=data.source_of(*ORIGINS, on=answer.platforms) if has_axes else "",
    )


def _list_columns(summary: HeatmapSummary) -> list[Column]:
    """Return the columns that people see: the axes, the panel, the value, and the failures."""
    headings = {"x": summary.x, "y": summary.y, "panel": summary.panel}
    return [
        *(Column(key, heading) for key, heading in headings.items() if heading),
        Column("text", f"median of {summary.value}"),
        *(Column(key, key, is_spare=True) for key in ("networks", "failed", "status", "cause")),
    ]


def _select_rows(data: Data, value: str, only: Sequence[str]) -> Selection:
    """Return the rows of the records or results with a column, as `name=value` texts ask.

    Without a text on `origin`, predictions are left out if there is anything else.

    Raises:
        InputError: for an unknown column, one without numbers, and a text of another form.
    """
    columns = record_columns(data)
    # Numbers of records are taken where records have them, else numbers of results.
    if value in columns:
        rows = data.scan().filter(IS_STEP).select(*columns.values())
    else:
        rows = data.scan_results()
    schema = rows.collect_schema()
    if value not in {*schema, *DERIVED_COLUMNS}:
        raise unknown("column", value, [*columns, *schema, *DERIVED_COLUMNS])
    if value in schema and not schema[value].is_numeric():
        raise InputError(f"--value: the column '{value}' has no numbers")
    is_derived = value in DERIVED_COLUMNS and value not in columns
    number = DERIVED_COLUMNS[value] if is_derived else pl.col(value)
    for text in only:
        rows = rows.filter(_parse_condition(text, schema))
    # Predictions are left out beside measurements, unless the user chose an origin.
    chooses_origin = any(text.startswith("origin=") for text in only)
    if not chooses_origin and not _is_all_predicted(rows):
        rows = rows.filter(~IS_PREDICTED)
    return Selection(rows, schema, data.hyperparameters, number)


def _parse_condition(text: str, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return the condition of a text such as `layers=32`."""
    name, equals, value_text = text.partition("=")
    if not equals:
        raise InputError(f"--only '{text}': is NAME=VALUE")
    check_choice("column", name, schema, "--only")
    return pl.col(name).cast(pl.String()) == value_text


def _is_all_predicted(rows: pl.LazyFrame) -> bool:
    """Whether there is no row but predictions."""
    origins = rows.select(pl.col("origin").unique()).collect()["origin"].to_list()
    return {*origins} <= {"predicted"}


def _describe_heatmap(table: Table) -> list[str]:
    """Return the answer in sentences: "8 cells of nodes by batch: median of ... is 1 to 2."."""
    summary = table.summary
    if not table.rows:
        return [_describe_empty_heatmap(summary)]
    lines = []
    if summary["cells"]:
        cells = format_count(summary["cells"], "cell")
        lowest = format_value(summary["value"], summary["lowest"])
        highest = format_value(summary["value"], summary["highest"])
        axes = f"{summary['x']} by {summary['y']}"
        lines.append(f"{cells} of {axes}: median of {summary['value']} is {lowest} to {highest}.")
    lines += _describe_failures(summary)
    if summary["max_networks"] > 1:
        ratio = summary["widest_ratio"]
        spread = f", up to {ratio:.3g} times apart" if ratio else ""
        lines.append(
            f"A cell holds up to {summary['max_networks']} networks{spread}: "
            "--over or --only separates them."
        )
    if summary["binned"]:
        lines.append(f"{', '.join(summary['binned'])}: {MAX_STEPS} steps of equal ratio.")
    return lines


def _describe_empty_heatmap(summary: Mapping[str, Any]) -> str:
    """Return the sentence on a heatmap without cells, and a command that may fill it."""
    axes_text = "two hyperparameters that vary"
    if summary["x"] and summary["y"]:
        axes_text = f"{summary['x']} and {summary['y']}"
    is_derived = summary["value"] in DERIVED_COLUMNS
    hint = "; steptime predict --in DIR may tell it" if is_derived else ""
    return f"no {summary['value']} is known here over {axes_text}{hint}"


def _describe_failures(summary: Mapping[str, Any]) -> list[str]:
    """Return the sentences on cells without a value, and on cells of which networks failed."""
    lines = []
    if summary["failed_cells"]:
        cells = format_count(summary["failed_cells"], "cell")
        causes = ", ".join(f"{number:,} {status}" for status, number in summary["failed"].items())
        lines.append(f"{cells} without a value failed: {causes}.")
    if summary["partly_failed_cells"]:
        cells = format_count(summary["partly_failed_cells"], "cell")
        lines.append(f"In {cells} with a value there are networks that failed or do not fit.")
    return lines


ANALYSIS = Analysis(
    """Print a quantity over two hyperparameters, cell by cell.

    Words for --value: speed, utilisation, memory, error; else any column.
    """,
    heatmap,
    _describe_heatmap,
    row_struct=HeatmapCell,
    summary_struct=HeatmapSummary,
    chart="steptime.reports.charts.heatmap:chart",
    folders=16,
    settings=(
        Setting(
            "x", "Column of the horizontal axis. Default: the hyperparameter that varies most."
        ),
        Setting("y", "Column of the vertical axis. Default: the next one that varies most."),
        Setting(
            "value",
            "The quantity: `speed`, `utilisation`, `memory`, `error`, or any column of `query`.",
            default="speed",
        ),
        Setting("over", "Draw a panel for each value of this column."),
        Setting(
            "only",
            "Only rows with this value, such as layers=32; may be repeated.",
            metavar="NAME=VALUE",
            is_repeatable=True,
        ),
    ),
)

"""A quantity over two hyperparameters, with panels over a third; cells that failed with the cause.

A network that failed, or is predicted not to fit, counts as failed: its time would never be seen.
A size in bytes stands even so, because it says why the network does not fit.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from steptime.analysis.analyses import Analysis, Setting
from steptime.core.errors import InputError, check_choice, unknown
from steptime.core.table import Column, Table
from steptime.core.units import counted, format_value
from steptime.records import flat
from steptime.records.data import Data
from steptime.records.record import ORIGINS
from steptime.records.row import Row

VALUE_WORDS = {  # for the most frequent values
    "speed": "speed_per_s",
    "utilisation": "peak_fraction",
    "memory": "peak_bytes",
    "error": "error_fraction",
}
DERIVED_COLUMNS = {  # of columns of `results`
    "error_fraction": "1 / ratio - 1",
    "peak_fraction": "coalesce(peak_fraction, predicted_flop_per_s / nullif(peak_flop_per_s, 0))",
}
NUMBER_TYPES = ("BIGINT", "INTEGER", "DOUBLE", "HUGEINT")
SIZE_ENDING = "_bytes"
MAX_STEPS = 60  # of an axis; more numbers share steps
SELECTION = "WITH selection AS (FROM {table} WHERE {where}) "
COUNTS = "SELECT {} FROM selection"
PLATFORMS = "SELECT DISTINCT platform FROM selection WHERE {} IS NOT NULL ORDER BY 1"
NETWORKS = """
SELECT {x} AS x, {y} AS y, {over} AS panel, platform, workload_key,
  median({value}) FILTER ({counts}) AS value,
  CASE WHEN count({value}) FILTER ({is_ok}) = 0
    THEN mode(status) FILTER (status <> 'ok') END AS status,
  CASE WHEN count({value}) FILTER ({is_ok}) = 0
    THEN mode(cause) FILTER (status <> 'ok') END AS cause
FROM selection WHERE {x} IS NOT NULL AND {y} IS NOT NULL GROUP BY ALL"""
CELLS = """
SELECT x, y, panel, median(value) AS value, count(value) AS networks,
  CASE WHEN count(value) > 1 THEN min(value) END AS low,
  CASE WHEN count(value) > 1 THEN max(value) END AS high,
  count(*) FILTER (status IS NOT NULL) AS failed, mode(status) AS status, mode(cause) AS cause
FROM ({networks}) GROUP BY ALL HAVING count(value) > 0 OR failed > 0 ORDER BY panel, y, x"""
IS_OK = "coalesce(status, 'ok') = 'ok'"


class _Selection(NamedTuple):
    """The rows that count: a table of SQL, its columns, and a condition with its values."""

    data: Data
    table: str
    columns: Mapping[str, str]
    where: str
    values: Sequence[str]

    def rows(self, sql: str) -> list[Row]:
        """Return the answer to SQL over these rows, which it calls `selection`."""
        selection = SELECTION.format(table=self.table, where=self.where)
        return self.data.rows(selection + sql, *self.values)


def heatmap(
    data: Data,
    x: str | None,
    y: str | None,
    value: str,
    over: str | None,
    only: Sequence[str] | None,
) -> Table:
    """Return a row a cell: `x`, `y`, `panel`, `value`, the number of `networks` and their spread.

    `failed` counts the networks of a cell that failed or do not fit; `status` and `cause` say why.
    A cell with neither a value nor a failure is no row. Several platforms are panels.

    Raises:
        InputError: for an unknown column.
    """
    value = VALUE_WORDS.get(value, value)
    selection = _select(data, value, only or ())
    for name in (x, y, over):
        if name is not None and name not in selection.columns:
            raise unknown("column", name, [*data.hyperparameters, *selection.columns])
    axes = [x, y] if x and y else _choose_axes(selection, x, y, over)
    if None in axes:
        return Table((), (), summary={"value": value, "x": axes[0], "y": axes[1], "cells": 0})
    if len({*axes, over}) < 3:
        raise InputError("heatmap: --x, --y and --over take columns that differ")
    number = DERIVED_COLUMNS.get(value) or flat.name(value)
    platforms = [str(row["platform"]) for row in selection.rows(PLATFORMS.format(number))]
    if len(platforms) > 1 and "platform" not in (*axes, over):
        if over:
            raise InputError(f"--over {over} needs --only platform=NAME: {', '.join(platforms)}")
        over = "platform"
    steps = {str(name): _steps(selection, str(name)) for name in axes}
    rows = _load_cells(selection, list(steps.values()), over, value)
    roles = {"x": axes[0], "y": axes[1], "panel": over, "value": value}
    summary = {**roles, "only": list(only or ()), **_summarise(rows)}
    summary["binned"] = [name for name, step in steps.items() if step != flat.name(name)]
    return Table(
        _list_columns(roles),
        rows,
        max_rows=40,
        csv_columns=[Column(key, key) for key in (rows[0] if rows else ("x", "y"))],
        summary=summary,
        source=data.source_of(*ORIGINS, on=platforms),
    )


def _list_columns(roles: Mapping[str, str | None]) -> list[Column]:
    """Return the columns that people see: the axes, the panel, the value, and the failures."""
    headings = {**roles, "value": f"median of {roles['value']}"}
    shown_columns = [
        Column("shown" if key == "value" else key, str(heading))
        for key, heading in headings.items()
        if heading
    ]
    extra = ("networks", "failed", "status", "cause")
    return [*shown_columns, *(Column(key, key, is_spare=True) for key in extra)]


def _load_cells(
    selection: _Selection, steps: Sequence[str], over: str | None, value: str
) -> list[Row]:
    """Return the cells, each with its value as people see it.

    Args:
        selection: the rows that count.
        steps: the SQL of the columns across and up.
        over: the column of panels.
        value: the column of the value.
    """
    networks = NETWORKS.format(
        x=steps[0],
        y=steps[1],
        over=flat.name(over) if over else "NULL",
        value=DERIVED_COLUMNS.get(value) or flat.name(value),
        counts="true" if value.endswith(SIZE_ENDING) else IS_OK,
        is_ok=IS_OK,
    )
    rows = selection.rows(CELLS.format(networks=networks))
    for row in rows:
        row["shown"] = None if row["value"] is None else format_value(value, row["value"])
    return rows


def _select(data: Data, value: str, only: Sequence[str]) -> _Selection:
    """Return the rows of the table that has the column `value`, as `name=value` texts ask.

    Without a text on `origin`, predictions are left out if there is anything else.

    Raises:
        InputError: for an unknown column, one without numbers, and a text of another form.
    """
    table, columns = "records", data.columns("records")
    if value not in columns:
        table, columns = "results", data.columns("results")
    if value not in {*columns, *DERIVED_COLUMNS}:
        raise unknown("column", value, [*data.columns("records"), *columns, *DERIVED_COLUMNS])
    if value in columns and columns[value] not in NUMBER_TYPES:
        raise InputError(f"--value: the column '{value}' has no numbers")
    conditions = ["coalesce(scope, '') = ''" if table == "records" else "true"]
    values = []
    for text in only:
        name, equals, level = text.partition("=")
        if not equals:
            raise InputError(f"--only '{text}': is NAME=VALUE")
        check_choice("column", name, columns, "--only")
        conditions.append(f"CAST({flat.name(name)} AS VARCHAR) = ?")
        values.append(level)
    selection = _Selection(data, table, columns, " AND ".join(conditions), values)
    if any(text.startswith("origin=") for text in only):
        return selection
    origins = {row["origin"] for row in selection.rows("SELECT DISTINCT origin FROM selection")}
    if origins <= {"predicted"}:
        return selection
    return selection._replace(where=f"{selection.where} AND origin <> 'predicted'")


def _choose_axes(selection: _Selection, *columns: str | None) -> list[str | None]:
    """Return the columns across and up; a missing one is the hyperparameter that varies most.

    Args:
        selection: the rows that count.
        *columns: the columns across, up and of panels, None for a missing one.
    """
    axes = list(columns[:2])
    candidates = (*selection.data.hyperparameters, "batch")
    while None in axes:
        names = [
            name
            for name in candidates
            if name in selection.columns and name not in (*axes, *columns)
        ]
        present = " AND ".join(f"{flat.name(name)} IS NOT NULL" for name in axes if name) or "true"
        counts = [
            f"count(DISTINCT {column}) FILTER ({present}) AS {column}"
            for column in map(flat.name, names)
        ]
        level_counts = selection.rows(COUNTS.format(", ".join(counts)))[0] if names else {}
        widest = max(names, key=lambda name: int(level_counts[name]), default="")
        if level_counts.get(widest, 0) < 2:
            break
        axes[axes.index(None)] = widest
    return axes


def _steps(selection: _Selection, name: str) -> str:
    """Return the SQL of a column, in steps of equal ratio if it has too many numbers to draw."""
    column = flat.name(name)
    if selection.columns[name] not in NUMBER_TYPES:
        return column
    counts = f"count(DISTINCT {column}) AS n, min({column}) AS low, max({column}) AS high"
    (row,) = selection.rows(COUNTS.format(counts))
    if row["n"] <= MAX_STEPS or row["low"] <= 0:
        return column
    ratio = math.log(row["high"] / row["low"]) / (MAX_STEPS - 1)
    return f"round(exp(round(ln({column} / {row['low']}) / {ratio}) * {ratio}) * {row['low']})"


def _summarise(rows: Sequence[Row]) -> Row:
    """Return numbers of all cells together."""
    cells = [row for row in rows if row["value"] is not None]
    failures = Counter(str(row["status"]) for row in rows if row["value"] is None)
    spreads = [row["high"] / row["low"] for row in cells if row["low"] and row["low"] > 0]
    values = [row["value"] for row in cells]
    return {
        "cells": len(cells),
        "failed_cells": sum(failures.values()),
        "failed": dict(failures),
        "partly_failed_cells": sum(row["failed"] > 0 for row in cells),
        "lowest": min(values, default=None),
        "highest": max(values, default=None),
        "most_networks": max((row["networks"] for row in cells), default=0),
        "widest_ratio": max(spreads, default=None),
    }


def _describe(table: Table) -> list[str]:
    """Return the answer in sentences: "8 cells of nodes by batch: median of ... is 1 to 2."."""
    summary = table.summary
    if not table.rows:
        axes = " and ".join(summary[side] for side in "xy" if summary[side])
        over = axes if summary["y"] and summary["x"] else "two hyperparameters that vary"
        is_derived = summary["value"] in DERIVED_COLUMNS
        hint = "; steptime predict --in DIR may tell it" if is_derived else ""
        return [f"no {summary['value']} is known here over {over}{hint}"]
    ends = " to ".join(
        format_value(summary["value"], summary[end]) for end in ("lowest", "highest")
    )
    lines = []
    if summary["cells"]:
        cells = counted(summary["cells"], "cell")
        axes = f"{summary['x']} by {summary['y']}"
        lines.append(f"{cells} of {axes}: median of {summary['value']} is {ends}.")
    if summary["failed_cells"]:
        causes = ", ".join(f"{number:,} {status}" for status, number in summary["failed"].items())
        lines.append(
            f"{counted(summary['failed_cells'], 'cell')} without a value failed: {causes}."
        )
    if summary["partly_failed_cells"]:
        cells = counted(summary["partly_failed_cells"], "cell")
        lines.append(f"In {cells} with a value there are networks that failed or do not fit.")
    if summary["most_networks"] > 1:
        ratio = summary["widest_ratio"]
        spread = f", up to {ratio:.3g} times apart" if ratio else ""
        lines.append(
            f"A cell holds up to {summary['most_networks']} networks{spread}: "
            "--over or --only separates them."
        )
    if summary["binned"]:
        lines.append(f"{', '.join(summary['binned'])}: {MAX_STEPS} steps of equal ratio.")
    return lines


ANALYSIS = Analysis(
    """Print a quantity over two hyperparameters, cell by cell.

    Words for --value: speed, utilisation, memory, error; else any column.
    """,
    heatmap,
    _describe,
    chart="steptime.reports.charts.heatmap:chart",
    folders=16,
    settings=(
        Setting("x", "Across: any column. Default: what varies most."),
        Setting("y", "Up: any column. Default: what varies most."),
        Setting("value", "What is drawn: speed, memory, any column.", default="speed"),
        Setting("over", "A panel for each of its values: any column."),
        Setting("only", "Rows of this value; repeatable.", metavar="NAME=VALUE", several=True),
    ),
)

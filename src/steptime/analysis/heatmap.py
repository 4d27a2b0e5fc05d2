"""Any quantity over two hyperparameters, small multiples over a third; failed cells with cause."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from steptime.analysis.analyses import Analysis, Setting
from steptime.core.errors import InputError, one_of, unknown
from steptime.core.table import Column, Table
from steptime.core.units import counted, shown
from steptime.records import flat
from steptime.records.data import Data
from steptime.records.record import ORIGINS
from steptime.records.row import Row

MEANT = {  # words for what is most often drawn
    "speed": "speed_per_s",
    "utilisation": "peak_fraction",
    "memory": "peak_bytes",
    "error": "error_fraction",
}
MADE = {  # of columns of `results`
    "error_fraction": "1 / ratio - 1",
    "peak_fraction": "coalesce(peak_fraction, predicted_flop_per_s / nullif(peak_flop_per_s, 0))",
}
NUMBERS = ("BIGINT", "INTEGER", "DOUBLE", "HUGEINT")
MOST_STEPS = 60  # of an axis; more numbers share steps
ASKED = "WITH asked AS (FROM {table} WHERE {where}) "
COUNTS = "SELECT {} FROM asked"
PLACES = "SELECT DISTINCT platform FROM asked WHERE {} IS NOT NULL ORDER BY 1"
EACH = """
SELECT {x} AS x, {y} AS y, {over} AS panel, platform, workload_key, median({value}) AS value,
  mode(status) FILTER (status <> 'ok') AS status, mode(cause) FILTER (status <> 'ok') AS cause
FROM asked WHERE {x} IS NOT NULL AND {y} IS NOT NULL GROUP BY ALL"""
CELLS = """
SELECT x, y, panel, median(value) AS value, count(value) AS networks,
  CASE WHEN count(value) > 1 THEN min(value) END AS low,
  CASE WHEN count(value) > 1 THEN max(value) END AS high,
  count(*) FILTER (value IS NULL AND status IS NOT NULL) AS failed,
  mode(status) FILTER (value IS NULL) AS status, mode(cause) FILTER (value IS NULL) AS cause
FROM ({each}) GROUP BY ALL HAVING count(value) > 0 OR failed > 0 ORDER BY panel, y, x"""


class _Asked(NamedTuple):
    """What is asked of: a table of SQL, its columns, and the rows that count."""

    data: Data
    table: str
    columns: Mapping[str, str]
    where: str
    values: Sequence[str]

    def rows(self, sql: str) -> list[Row]:
        """Return the answer to SQL over these rows, which it calls `asked`."""
        asked = ASKED.format(table=self.table, where=self.where)
        return self.data.rows(asked + sql, *self.values)


def heatmap(
    data: Data,
    x: str | None,
    y: str | None,
    value: str,
    over: str | None,
    only: Sequence[str] | None,
) -> Table:
    """Return a row a cell: `x`, `y`, `panel`, `value`, how many `networks` and their spread.

    A cell without a value says why in `status` and `cause`; one without either is no row. Several
    platforms are panels. Raises `InputError` for an unknown column.
    """
    value = MEANT.get(value, value)
    asked = _asked(data, value, only or ())
    for name in (x, y, over):
        if name is not None and name not in asked.columns:
            raise unknown("column", name, [*data.hyperparameters, *asked.columns])
    axes = [x, y] if x and y else _axes(asked, x, y, over)
    if None in axes:
        return Table((), (), summary={"value": value, "x": axes[0], "y": axes[1], "cells": 0})
    if len({*axes, over}) < 3:
        raise InputError("heatmap: --x, --y and --over take columns that differ")
    steps = [_steps(asked, str(name)) for name in axes]
    number = MADE.get(value) or flat.name(value)
    places = [str(one["platform"]) for one in asked.rows(PLACES.format(number))]
    if len(places) > 1 and "platform" not in (*axes, over):
        if over:
            raise InputError(f"--over {over} needs --only platform=NAME: {', '.join(places)}")
        over = "platform"
    names = {"x": steps[0], "y": steps[1], "over": flat.name(over) if over else "NULL"}
    rows = asked.rows(CELLS.format(each=EACH.format(**names, value=number)))
    for row in rows:
        row["shown"] = None if row["value"] is None else shown(value, row["value"])
    told = {"x": axes[0], "y": axes[1], "panel": over, "value": value}
    heads = {**told, "value": f"median of {value}"}
    shown_columns = [
        Column("shown" if key == "value" else key, str(heading))
        for key, heading in heads.items()
        if heading
    ]
    more = ("networks", "failed", "status", "cause")
    summary = {**told, "only": list(only or ()), **_summary(rows)}
    summary["binned"] = [n for n, s in zip(axes, steps, strict=True) if s != flat.name(str(n))]
    keys = [Column(key, key) for key in (rows[0] if rows else ("x", "y"))]
    shown_columns += [Column(key, key, is_spare=True) for key in more]
    source = data.source_of(*ORIGINS, on=places)
    return Table(shown_columns, rows, max_rows=40, csv_columns=keys, summary=summary, source=source)


def _asked(data: Data, value: str, only: Sequence[str]) -> _Asked:
    """Return the table that has the column `value`, and its rows as `name=value` texts ask.

    Without a text on `origin`, predictions are left out where there is anything else.
    """
    table, columns = "records", data.columns("records")
    if value not in columns:
        table, columns = "results", data.columns("results")
    if value not in {*columns, *MADE}:
        raise unknown("column", value, [*data.columns("records"), *columns, *MADE])
    if value in columns and columns[value] not in NUMBERS:
        raise InputError(f"--value: the column '{value}' has no numbers")
    said, values = ["coalesce(scope, '') = ''" if table == "records" else "true"], []
    for text in only:
        name, equals, wanted = text.partition("=")
        if not equals:
            raise InputError(f"--only '{text}': is NAME=VALUE")
        one_of("column", name, columns, "--only")
        said.append(f"CAST({flat.name(name)} AS VARCHAR) = ?")
        values.append(wanted)
    found = _Asked(data, table, columns, " AND ".join(said), values)
    if not any(text.startswith("origin=") for text in only) and {
        row["origin"] for row in found.rows("SELECT DISTINCT origin FROM asked")
    } - {"predicted"}:
        found = found._replace(where=f"{found.where} AND origin <> 'predicted'")
    return found


def _axes(asked: _Asked, *given: str | None) -> list[str | None]:
    """Return the columns across and up: of those not given the hyperparameters that vary most."""
    axes = list(given[:2])
    every = (*asked.data.hyperparameters, "batch")
    while None in axes:
        names = [name for name in every if name in asked.columns and name not in (*axes, *given)]
        beside = " AND ".join(f"{flat.name(name)} IS NOT NULL" for name in axes if name) or "true"
        counts = [f"count(DISTINCT {n}) FILTER ({beside}) AS {n}" for n in map(flat.name, names)]
        found = asked.rows(COUNTS.format(", ".join(counts)))[0] if names else {}
        most = max(names, key=lambda name: int(found[name]), default="")
        if found.get(most, 0) < 2:
            break
        axes[axes.index(None)] = most
    return axes


def _steps(asked: _Asked, name: str) -> str:
    """Return the SQL of a column, numbers at equal ratios where there are too many to draw."""
    column = flat.name(name)
    if asked.columns[name] not in NUMBERS:
        return column
    counts = f"count(DISTINCT {column}) AS n, min({column}) AS low, max({column}) AS high"
    found = asked.rows(COUNTS.format(counts))[0]
    if found["n"] <= MOST_STEPS or found["low"] <= 0:
        return column
    ratio = math.log(found["high"] / found["low"]) / (MOST_STEPS - 1)
    return f"round(exp(round(ln({column} / {found['low']}) / {ratio}) * {ratio}) * {found['low']})"


def _summary(rows: Sequence[Row]) -> Row:
    """Return what is true of all cells."""
    full = [row for row in rows if row["value"] is not None]
    causes = Counter(f"{r['status']}" for r in rows if r["value"] is None)
    spreads = [row["high"] / row["low"] for row in full if row["low"] and row["low"] > 0]
    values = [row["value"] for row in full]
    return {
        "cells": len(full),
        "failed_cells": sum(causes.values()),
        "failed": dict(causes),
        "lowest": min(values, default=None),
        "highest": max(values, default=None),
        "most_networks": max((row["networks"] for row in full), default=0),
        "widest_ratio": max(spreads, default=None),
    }


def _says(table: Table) -> list[str]:
    said = table.summary
    if not table.rows:
        axes = " and ".join(said[side] for side in "xy" if said[side])
        over = axes if said["y"] and said["x"] else "two hyperparameters that vary"
        hint = "; steptime predict --in DIR may tell it" if said["value"] in MADE else ""
        return [f"no {said['value']} is known here over {over}{hint}"]
    ends = " to ".join(shown(said["value"], said[end]) for end in ("lowest", "highest"))
    lines = []
    if said["cells"]:
        cells = counted(said["cells"], "cell")
        what = f"{said['x']} by {said['y']}: median of {said['value']}"
        lines.append(f"{cells} of {what} is {ends}.")
    if said["failed_cells"]:
        which = ", ".join(f"{number:,} {status}" for status, number in said["failed"].items())
        lines.append(f"{counted(said['failed_cells'], 'cell')} without a value failed: {which}.")
    if said["most_networks"] > 1:
        wide = said["widest_ratio"]
        spread = f", up to {wide:.3g} times apart" if wide else ""
        lines.append(
            f"A cell holds up to {said['most_networks']} networks{spread}: "
            "--over or --only separates them."
        )
    if said["binned"]:
        lines.append(f"{', '.join(said['binned'])}: {MOST_STEPS} steps of equal ratio.")
    return lines


ANALYSIS = Analysis(
    """Print a quantity over two hyperparameters, cell by cell.

    Words for --value: speed, utilisation, memory, error; else any column.
    """,
    heatmap,
    _says,
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

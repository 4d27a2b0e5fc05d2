"""The table of results as HTML; a network that failed is a row like any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from steptime.core.units import seconds, si, size
from steptime.plots.style import percent_text

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One column: its heading, the field it is sorted by, and how a cell reads."""

    heading: str
    field: str
    text: Callable[[Row], str]
    numeric: bool = True


def _maybe(field: str, text: Callable[[Any], str]) -> Callable[[Row], str]:
    return lambda row: "" if row[field] is None else escape(text(row[field]))


def _interval(row: Row) -> str:
    if row["measured_low_s"] is None:
        return ""
    low, high = seconds(row["measured_low_s"]), seconds(row["measured_high_s"])
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    return f"{low} to {high}"


def _share(field: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        if row[field] is None:
            return ""
        filled = min(100.0, 100 * row[field])
        return f'<span class="bar" style="--filled:{filled:.1f}%">{percent_text(row[field])}</span>'

    return text


def _name(row: Row) -> str:
    return f'<span title="{escape(row["model"])}">{escape(row["name"])}</span>'


def _status(row: Row) -> str:
    if row["status"] is None:
        return '<span class="quiet">not measured</span>'
    if row["status"] == "ok":
        return "ok, no steady state" if row["steady"] is False else "ok"
    return f'<strong class="failed">{escape(row["status"])}</strong>'


COLUMNS = (
    Column("network", "name", _name, numeric=False),
    Column("status", "status", _status, numeric=False),
    Column("platform", "platform", _maybe("platform", str), numeric=False),
    Column("measured by", "method", _maybe("method", str), numeric=False),
    Column("input", "input", _maybe("input", str), numeric=False),
    Column("loaders", "loaders", _maybe("loaders", str)),
    Column("predicted by", "predicted_by", _maybe("predicted_by", str), numeric=False),
    Column("measured step, median", "measured_s", _maybe("measured_s", seconds)),
    Column("95 % interval", "measured_low_s", _interval),
    Column("predicted step", "predicted_s", _maybe("predicted_s", seconds)),
    Column("measured / predicted", "ratio", _maybe("ratio", "{:.3g}".format)),
    Column("speed", "flop_per_s", _maybe("flop_per_s", lambda v: si(v, "FLOP/s", 3))),
    Column("of peak", "peak_fraction", _share("peak_fraction")),
    Column("of roof", "roof_fraction", _share("roof_fraction")),
    Column("peak memory", "measured_memory_bytes", _maybe("measured_memory_bytes", size)),
    Column("predicted memory", "predicted_memory_bytes", _maybe("predicted_memory_bytes", size)),
)
ONLY_IF_SEVERAL = ("platform", "method", "input", "loaders", "predicted_by")


def results_table(rows: Sequence[Row]) -> str:
    """Give the table of rows of `results`; a column that says the same everywhere is left out."""
    columns = [
        column
        for column in COLUMNS
        if column.field not in ONLY_IF_SEVERAL
        or len({row[column.field] for row in rows} - {None}) > 1
    ]
    head = "".join(
        f'<th scope="col"{_class(column)}><button type="button">{escape(column.heading)}</button>'
        "</th>"
        for column in columns
    )
    body = "".join(f"<tr>{_cells(row, columns)}</tr>\n" for row in rows)
    return (
        '<div class="wide" role="region" aria-label="Results" tabindex="0"><table id="results">'
        "<caption>Every network of the folder. A heading sorts.</caption>"
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def failures(rows: Sequence[Row]) -> str:
    """Give the networks that did not succeed as a list, each with its cause and note."""
    items = []
    for row in rows:
        if row["status"] in (None, "ok"):
            continue
        cause = f" ({row['cause']})" if row["cause"] else ""
        note = f": {row['note']}" if row["note"] else ""
        status = f'<strong class="failed">{escape(row["status"] + cause)}</strong>'
        items.append(f"<li>{_name(row)}: {status}{escape(note)}</li>")
    if not items:
        return ""
    return f"<section><h2>Did not succeed</h2><ul>{''.join(items)}</ul></section>"


def _cells(row: Row, columns: Sequence[Column]) -> str:
    cells = []
    for column in columns:
        value = row[column.field]
        sort = "" if value is None else f' data-sort="{escape(str(value))}"'
        cells.append(f"<td{_class(column)}{sort}>{column.text(row)}</td>")
    first, *others = cells
    return (
        first.replace("<td", '<th scope="row"', 1).removesuffix("</td>") + "</th>" + "".join(others)
    )


def _class(column: Column) -> str:
    return ' class="number"' if column.numeric else ""

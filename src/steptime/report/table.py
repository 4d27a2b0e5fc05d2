"""The table of results: which columns there are, and what their cells say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from steptime.core.units import seconds, si, size
from steptime.plots.style import percent_text

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A column: its heading, the field of a row it is sorted by, and how a value reads."""

    heading: str
    field: str
    text: Callable[[Any], str] = str
    numeric: bool = True


MEASURES = (
    Column("measured step, median", "measured_s", seconds),
    Column("95 % interval", "measured_low_s", seconds),
    Column("predicted step", "predicted_s", seconds),
    Column("measured / predicted", "ratio", "{:.3g}".format),
    Column("speed", "flop_per_s", partial(si, unit="FLOP/s", digits=3)),
    Column("of peak", "peak_fraction", percent_text),
    Column("of roof", "roof_fraction", percent_text),
    Column("peak memory", "measured_memory_bytes", size),
    Column("predicted memory", "predicted_memory_bytes", size),
)
SETTINGS = (
    Column("platform", "platform", numeric=False),
    Column("GPU", "gpu", numeric=False),
    Column("host", "host", numeric=False),
    Column("batch", "batch"),
    Column("replicas", "replicas"),
    Column("strategy", "strategy", numeric=False),
    Column("type", "dtype", numeric=False),
    Column("phase", "phase", numeric=False),
    Column("optimizer", "optimizer", numeric=False),
    Column("measured by", "method", numeric=False),
    Column("input", "input", numeric=False),
    Column("staging", "staging", numeric=False),
    Column("loaders", "loaders"),
    Column("prefetch", "prefetch"),
    Column("threads", "threads"),
    Column("predicted by", "predicted_by", numeric=False),
)
FIRST = Column("network", "name", numeric=False), Column("status", "status", numeric=False)


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """Return the columns: of settings all in which rows differ, of measures all that are known."""
    told = [
        column
        for column in SETTINGS
        for values in [{row[column.field] for row in rows} - {None}]
        if len(values) > 1
    ]
    known = [column for column in MEASURES if any(row[column.field] is not None for row in rows)]
    return [*FIRST, *told, *known]


def table_rows(rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
    """Return each row as its name, its model and the cells of the columns behind the first."""
    return [
        {
            "name": row["name"],
            "model": row["model"],
            "cells": [_cell(row, column) for column in columns[1:]],
        }
        for row in rows
    ]


def _cell(row: Row, column: Column) -> Row:
    """Return what a cell says, what it is sorted by, and how it looks."""
    value = row[column.field]
    cell = {"text": "", "sort": value, "numeric": column.numeric, "filled": None, "mood": ""}
    if column.field == "status":
        return {**cell, **_status(row)}
    if value is None:
        return cell
    if column.field == "measured_low_s":
        return {**cell, "text": _interval(row)}
    if column.field.endswith("_fraction"):
        cell["filled"] = f"{min(100.0, 100 * value):.1f}"
    return {**cell, "text": column.text(value)}


def _interval(row: Row) -> str:
    low, high = seconds(row["measured_low_s"]), seconds(row["measured_high_s"])
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    return f"{low} to {high}"


def _status(row: Row) -> Row:
    if row["status"] is None:
        return {"text": "not measured", "mood": "quiet"}
    if row["status"] == "ok":
        return {"text": "ok, no steady state" if row["steady"] is False else "ok"}
    return {"text": row["status"], "mood": "failed"}


def failures(rows: Sequence[Row]) -> list[Row]:
    """Return the networks that did not succeed, each with its cause and note."""
    return [
        {
            "label": row["label"],
            "status": row["status"] + (f" ({row['cause']})" if row["cause"] else ""),
            "note": f": {row['note']}" if row["note"] else "",
        }
        for row in rows
        if row["status"] not in (None, "ok")
    ]

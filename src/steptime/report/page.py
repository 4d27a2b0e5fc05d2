"""The report: what was found, every result, every chart, and how it was obtained."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from steptime.analysis.analyses import analysis, names
from steptime.analysis.data import Data
from steptime.analysis.devices_table import device_rows
from steptime.analysis.headline import numbers, only_published, sentences
from steptime.core.printers import html
from steptime.core.progress import tell
from steptime.core.record import Record
from steptime.core.table import Column, Table, columns
from steptime.core.units import counted, shown
from steptime.plots import EmptyPlotError, draw, kinds
from steptime.report.templating import rendered

Row = dict[str, Any]

RESULTS = columns(  # settings are spare: they stand where rows differ, measures where known
    *("name=network", "status", "?platform", "?gpu=GPU", "?host", "?batch", "?replicas"),
    *("?strategy", "?dtype=type", "?phase", "?optimizer", "?method=measured by", "?input"),
    *("?staging", "?loaders", "?prefetch", "?threads", "?predicted_by=predicted by"),
    *("measured_s=measured step, median", "interval_95=95 % interval"),
    *("predicted_s=predicted step", "ratio=measured / predicted", "flop_per_s=speed"),
    *("peak_fraction=of peak", "roof_fraction=of roof", "measured_memory_bytes=peak memory"),
    "predicted_memory_bytes=predicted memory",
)
SORTED_BY = {"interval_95": "measured_low_s"}
ALWAYS = ("gpu_type", "batch", "mean_speed_corrected")
PUBLISHED = (  # what is known of a step; what is the same for all is left out, but for ALWAYS
    *("model=network", "gpu_type=device", "num_gpu=devices", "replicas=that worked", "batch"),
    *("strategy", "staged_from=input read from", "dtype", "phase", "optimizer"),
    *("Mean_Time_Per_Step=step (s)", "mean_speed_corrected=speed (examples/s)"),
    *("method=published by", "status", "cause"),
)


def page(records: Sequence[Record], name: str) -> tuple[str, Row]:
    """Return the HTML of a report on `records` of the folder `name`, and its headline numbers."""
    data = Data.of(records)
    rows = [row for row in data.results if not only_published(row)]
    found = numbers(rows, sum(r.origin == "published" and not r.scope for r in records))
    told = [one for one in RESULTS if len({row[one.key] for row in rows} - {None}) > one.spare]
    figures, missing = _figures(data)
    text = rendered(
        "report.html",
        name=name,
        where=_where(records),
        sentences=sentences(found),
        columns=[(one.heading, _is_numeric(rows, one.key)) for one in told],
        rows=[(row, [_cell(row, one) for one in told[1:]]) for row in rows],
        failures=[row for row in rows if row["status"] not in (None, "ok")],
        sections=[*_published(records), *_sections(data)],
        figures=figures,
        missing=missing,
        sources=_sources(records),
    )
    return text, found


def _is_numeric(rows: Sequence[Row], key: str) -> bool:
    values = (row[SORTED_BY.get(key, key)] for row in rows)
    return all(value is None or isinstance(value, int | float) for value in values)


def _cell(row: Row, column: Column) -> Row:
    """Return what a cell says, what it is sorted by, and how it looks."""
    key = column.key
    value = row[key]
    said = "" if value is None else shown(key, value)
    mood = filled = None
    if key == "status":
        mood = {None: "quiet", "ok": None}.get(value, "failed")
        said = said or "not measured"
        said += ", no steady state" if value == "ok" and row["steady"] is False else ""
    elif key.endswith("_fraction") and value is not None:
        filled = f"{min(100.0, 100 * value):.1f}"
    sort = row[SORTED_BY.get(key, key)]
    return {"text": said, "sort": sort, "mood": mood, "filled": filled}


def _sections(data: Data) -> list[Row]:
    """Return what each analysis that has a heading says of the records, with its table."""
    found = []
    for one in map(analysis, names()):
        table = one.answer(data) if one.section else None
        if table and table.rows:
            found.append(_section(one.section, one.says(table), table))
    return found


def _section(title: str, says: Sequence[str], table: Table) -> Row:
    shown = Markup(html(table))  # noqa: S704  # the printer escapes every cell
    return {"title": title, "says": says, "table": shown}


def _published(records: Sequence[Record]) -> list[Row]:
    """Return the section of what others published, by device; of a copied file one copy."""
    rows = [row for row in device_rows(records) if row["origin"] == "published"]
    shown = [row for row in rows if not row["duplicate_of"]]
    if not shown:
        return []
    left = counted(len(rows) - len(shown), "record")
    says = [f"{left} with the content of another left out."] if len(rows) > len(shown) else []
    names = columns(*PUBLISHED)
    differ = [one for one in names if one.key in ALWAYS or len({row[one.key] for row in shown}) > 1]
    return [_section("Published speeds", says, Table(differ, shown))]


def _figures(data: Data) -> tuple[list[Row], list[str]]:
    """Return the charts that can be drawn, and why others cannot."""
    drawn, missing = [], []
    every = kinds()
    for done, kind in enumerate(every):
        tell("charts", done, len(every))
        try:
            spec = draw(kind, data)
        except EmptyPlotError as error:
            missing.append(str(error))
            continue
        title = spec.pop("title")
        spec.pop("config")
        drawn.append(
            {"kind": kind, "title": title["text"], "caption": title["subtitle"], "spec": spec}
        )
    return drawn, missing


def _where(records: Sequence[Record]) -> str:
    times = sorted(record.taken_at[:16].replace("T", " ") for record in records if record.taken_at)
    workloads = [record.workload for record in records]
    said = [
        _distinct(record.platform for record in records),
        _distinct(workload.phase for workload in workloads),
        _distinct(workload.dtype for workload in workloads),
        _distinct(workload.optimizer for workload in workloads),
        [" to ".join(_distinct([times[0], times[-1]])) + " UTC"] if times else [],
    ]
    return " · ".join(", ".join(part) for part in said if part)


def _distinct(values: Any) -> list[str]:
    return [str(value) for value in dict.fromkeys(values) if value]


def _sources(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return methods with all values of their options, and what the records say of the host."""
    methods: dict[str, dict[str, dict[str, None]]] = {}
    for record in records:
        method = f"{record.origin} with {record.method.name} {record.method.version}"
        options = methods.setdefault(method, {})
        for name, value in record.method.options.items():
            if value not in (None, ""):
                options.setdefault(name, {})[_text(value)] = None
    lines = [(method, _options(options)) for method, options in methods.items()]
    for field in ("host", "steptime", "framework", "memory_meter"):
        values = _distinct(_text(record.env.get(field, "")) for record in records)
        if values:
            lines.append((field.replace("_", " "), ", ".join(values)))
    return lines


def _options(options: Mapping[str, Iterable[str]]) -> str:
    return ", ".join(f"{name} = {' or '.join(values)}" for name, values in options.items())


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)

"""The networks of a report, packed for the page: the table's cells, and what a click shows.

A page takes the networks that matter most where they are more than `MOST`, and of a network's
samples as many as a strip of a few hundred pixels can show.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.analysis.analyses import analysis
from steptime.core.table import Column
from steptime.core.units import counted, format_value
from steptime.questions.why.diagnose import diagnose_records
from steptime.records.data import WHOLE, Data
from steptime.records.record import Record
from steptime.records.row import Row, by_run, grouped, settings_of
from steptime.records.warmup import Floats, find_warm_up
from steptime.reports.charts import Spec, style
from steptime.reports.charts.samples import marks

MOST = 2500  # networks of a page
MOST_SAMPLES, LEAST_SAMPLES = 120_000, 40  # of all networks of a page, of each network
FULL = 65_535  # a sample is 16 bits of the slowest of its network
MOST_EXPLAINED = 1000  # networks: a hundredth of a second each
KINDS_OF = ("name", "measured_share", "measured_s", "predicted_share", "predicted_s")
KINDS = {"quiet": "circle", "disturbed": "cross", "warm-up": "triangle-up"}
EMPTY: Spec = {"$schema": style.SCHEMA, "data": {"values": []}}  # the page has the rows
ENVIRONMENT = (
    *("host", "product", "driver", "framework", "python", "os", "kernel", "threads", "load"),
    *("memory_meter", "steptime", "source", "source_file"),
)

# Settings are spare: they stand where rows differ, measures where known.
COLUMNS = (
    Column("name", "network"),
    Column("status"),
    Column("origin", is_spare=True),
    Column("platform", is_spare=True),
    Column("gpu", "GPU", is_spare=True),
    Column("host", is_spare=True),
    Column("batch", is_spare=True),
    Column("replicas", is_spare=True),
    Column("strategy", is_spare=True),
    Column("dtype", "type", is_spare=True),
    Column("phase", is_spare=True),
    Column("optimizer", is_spare=True),
    Column("method", "measured by", is_spare=True),
    Column("input", is_spare=True),
    Column("staging", is_spare=True),
    Column("loaders", is_spare=True),
    Column("prefetch", is_spare=True),
    Column("threads", is_spare=True),
    Column("predicted_by", "predicted by", is_spare=True),
    Column("measured_s", "measured step, median"),
    Column("interval_95", "95 % interval"),
    Column("predicted_s", "predicted step"),
    Column("ratio", "measured / predicted"),
    Column("flop_per_s", "speed"),
    Column("peak_fraction", "of peak"),
    Column("roof_fraction", "of roof"),
    Column("examples_per_s", "throughput"),
    Column("measured_memory_bytes", "peak memory"),
    Column("predicted_memory_bytes", "predicted memory"),
)
PUBLISHED = Column("measured_s", "published step")
SORTED_BY = {"interval_95": "measured_low_s"}
URGENCY = """
    ORDER BY
        status IS NULL OR status = 'ok', abs(ln(ratio::DOUBLE)) DESC NULLS LAST,
        measured_s::DOUBLE DESC NULLS LAST, predicted_s::DOUBLE DESC NULLS LAST,
        folder, coalesce(tried[1], predicted_at)
    LIMIT ?
"""


def most_telling(data: Data, most: int) -> Sequence[Row]:
    """Return the rows of results.

    Of more than `most` those that failed, then those whose prediction is farthest off, then the
    slowest.
    """
    (number,) = data.one("SELECT count(*) FROM results")
    return data.results if number <= most else data.of_results(WHOLE, URGENCY, most)


def told(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of the table of networks: those in which rows differ, or that are known.

    Examples/s stand only where a row is of others, whose FLOP are often not known.
    """
    found = [one for one in COLUMNS if len({row[one.key] for row in rows} - {None}) > one.is_spare]
    published = {row["origin"] for row in rows} & {"published"}
    if not published:
        found = [one for one in found if one.key != "examples_per_s"]
    if published and not any(row["origin"] == "measured" for row in rows):
        found = [PUBLISHED if one.key == PUBLISHED.key else one for one in found]
    return found


def table(rows: Sequence[Row], shown_columns: Sequence[Column]) -> list[Row]:
    """Return the columns for the page: what stands in each cell, and what it is sorted by."""
    made = []
    for one in shown_columns:
        keys = [row[SORTED_BY.get(one.key, one.key)] for row in rows]
        numeric = all(key is None or isinstance(key, int | float) for key in keys)
        cells = [_cell(row, one.key) for row in rows]
        sort = [style.short(key) for key in keys] if numeric else None
        made.append({"key": one.key, "heading": one.label, "cells": cells, "sort": sort})
    return made


def _cell(row: Row, key: str) -> str:
    value = row[key]
    if key == "status":
        unsteady = ", no steady state" if value == "ok" and row["steady"] is False else ""
        return (value or "not measured") + unsteady
    return "" if value is None else format_value(key, value)


def details(data: Data, rows: Sequence[Row]) -> list[Row]:
    """Return what a click on each network shows beside its row.

    That is what a diagnosis `says`, its `facts`, `samples`, and where its time goes by kind of op,
    measured and predicted, in `kinds`.
    """
    made = _records(data, rows)
    most = max(LEAST_SAMPLES, MOST_SAMPLES // max(1, len(rows)))
    took = [_good(attempts)[-1:] for attempts, _ in made]
    explained = diagnose_records([one for held in took[:MOST_EXPLAINED] for one in held])
    said = [next(explained, "") if held else "" for held in took]
    kinds = _kinds(data, rows)
    return [
        {
            "name": row["label"],
            "says": () if isinstance(why, str) else why.headline,
            "kinds": kinds.get((row["workload_key"], row["platform"]), ()),
            "facts": _facts(row, *pair),
            "samples": _samples(pair[0], most),
        }
        for row, pair, why in zip(rows, made, said, strict=True)
    ]


def _records(data: Data, rows: Sequence[Row]) -> list[tuple[list[Record], Record | None]]:
    """Return what was measured, or published, of each row of results, and what was predicted."""
    by_folder = grouped(range(len(rows)), lambda at: rows[at]["folder"])
    made: list[tuple[list[Record], Record | None]] = [([], None)] * len(rows)
    for folder, places in by_folder.items():
        asked = [
            one for at in places for one in (*(rows[at]["tried"] or ()), rows[at]["predicted_at"])
        ]
        held = data.whole(data.names.index(folder), {*asked} - {None})
        for at in places:
            tried = [held[one] for one in rows[at]["tried"] or ()]
            made[at] = tried, held.get(rows[at]["predicted_at"])
    return made


def _good(records: Sequence[Record]) -> list[Record]:
    """Return the records that hold a step, those that failed left out."""
    return [one for one in records if one.status == "ok" and "step_s" in one.quantities]


def _kinds(data: Data, rows: Sequence[Row]) -> dict[tuple[str, str], list[tuple[Any, ...]]]:
    """Return the kinds of ops of each network and platform, each with its share and time."""
    keys = {row["name"]: row["workload_key"] for row in rows}
    found = analysis("breakdown").answer(data, by="kind", by_network=True).rows
    told = grouped(found, lambda row: (keys.get(row["network"], ""), row["platform"]))
    return {
        at: [tuple(style.short(row[key]) for key in KINDS_OF) for row in held]
        for at, held in told.items()
    }


def _facts(row: Row, attempts: Sequence[Record], predicted: Record | None) -> list[tuple[str, str]]:
    """Return how a row came to be: its network, the options of both methods, the environment."""
    record = [*([predicted] if predicted else []), *attempts][-1]
    lines = [
        ("network", row["model"]),
        ("settings", said(settings_of(record.workload))),
        ("status", ": ".join(filter(None, (row["cause"], row["note"])))),
    ]
    for one in (*attempts[-1:], *([predicted] if predicted else [])):
        words = (f"{one.method.name} {one.method.version}", said(one.method.options))
        lines.append((f"{one.origin} with", ", ".join(filter(None, words))))
    if attempts:
        steps = counted(row["samples_n"], "sample") + " in " + counted(row["runs"], "run")
        lines += [("samples", steps if row["runs"] else ""), ("taken at", attempts[-1].taken_at)]
        env = attempts[-1].env
        lines.append(("environment", said({name: env.get(name) for name in ENVIRONMENT})))
    return [line for line in lines if line[1]]


def said(values: Mapping[str, Any]) -> str:
    """Return options in words, those that are unknown left out."""
    known = {name: value for name, value in values.items() if value not in (None, "", [], {})}
    return ", ".join(f"{name} {text_of(value)}" for name, value in known.items())


def text_of(value: object) -> str:
    """Return an option's value in words."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _samples(attempts: Sequence[Record], most: int) -> Row | None:
    """Return the samples of a network in the order taken, at most `most`; None if there are none.

    `values` are 16 bits of `slowest_s`, `kinds` a letter each: warm-up, quiet or disturbed, `at`
    their numbers where some are left out: of each stretch the fastest and the slowest are kept.
    """
    taken = [one for record in _good(attempts) for one in _taken(record)]
    if not taken:
        return None
    seconds = np.array([value for value, _ in taken])
    kept = _extremes(seconds, most)
    slowest = float(seconds.max())
    return {
        "at": kept.tolist() if len(kept) < len(taken) else None,
        "values": np.rint(seconds[kept] * (FULL / slowest)).astype(int).tolist(),
        "kinds": "".join(taken[at][1] for at in kept),
        "slowest_s": slowest,
        "number": len(taken),
    }


def _taken(record: Record) -> Iterator[tuple[float, str]]:
    """Return the steps of a record [s] with their kinds: before the samples it warmed up."""
    step = record.quantities["step_s"]
    marked = zip(step.samples, step.marks, strict=True)
    runs = by_run(marked, step.runs) if step.samples else []
    warm = find_warm_up([np.log([value for value, _ in run]) for run in runs], [len(runs)]).samples
    before = record.env.get("warmup_s") or ()  # of several runs a list each
    firsts = before if any(isinstance(one, list) for one in before) else [before]
    for run, end, first in zip(runs, warm, [*firsts, *[()] * len(runs)], strict=False):
        yield from ((value, "w") for value in first or ())
        for place, (value, disturbed) in enumerate(run):
            yield value, "w" if place < end else "d" if disturbed else "q"


def _extremes(samples: Floats, most: int) -> NDArray[np.int64]:
    """Return the places of at most `most` samples: in each of equal stretches the two extremes."""
    if len(samples) <= most:
        return np.arange(len(samples))
    edges = np.linspace(0, len(samples), most // 2 + 1).astype(int)
    stretches = [np.argsort(samples[a:b])[[0, -1]] + a for a, b in pairwise(edges)]
    return np.unique(np.concatenate(stretches))


def samples_chart() -> Spec:
    """Return the Vega-Lite of a network's samples, over rows that the page makes from them."""
    x = style.number("sample", "sample", format="d", grid=False)
    x["scale"] = {"nice": False, "zero": False}
    points = style.layer("point", {"x": x, **marks(KINDS, ("sample", "time", "kind"))}, size=22)
    return EMPTY | {"height": 120, "layer": [points]}


def kinds_chart() -> Spec:
    """Return the Vega-Lite of a network's kinds of ops: shares of the step, each side a bar."""
    axis = {"title": "share of the step", "format": "~%", "tickCount": 6}
    encoding = {
        "y": style.name("kind", title=None, sort=None, axis={"labelLimit": 220}),
        "yOffset": {"field": "side", "sort": None},
        "x": style.number("share") | {"axis": axis},
        "color": style.name("side", legend={"title": None, "orient": "top"}, sort=None),
        "tooltip": style.tooltip(("kind", "side", "of_the_step", "time")),
    }
    return EMPTY | {"mark": "bar", "height": {"step": 30}, "encoding": encoding}

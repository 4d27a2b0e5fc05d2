"""The networks of a report, packed for the page: the table's cells, and the details of a click.

Of more networks than `MAX_NETWORKS` a page has the most important ones, and of a network's samples
as many as a strip of a few hundred pixels can show.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from steptime.analysis.analyses import analysis
from steptime.core.tables.table import Column
from steptime.core.units import format_count, format_value
from steptime.questions.why.diagnose import diagnose_records
from steptime.records.data import Data, result_rows
from steptime.records.record import Record
from steptime.records.results import ALL_COLUMNS
from steptime.records.row import Row, by_run, group_by, settings_of
from steptime.records.warmup import Floats, find_warm_up
from steptime.reports.charts import Spec, style
from steptime.reports.charts.samples import encode_marks

MAX_NETWORKS = 2500  # of a page
MAX_PAGE_SAMPLES = 120_000  # of all networks of a page
MIN_NETWORK_SAMPLES = 40  # of each network that has as many
FULL_SCALE = 65_535  # a sample is 16 bits of the slowest of its network
MAX_DIAGNOSED = 1000  # networks: a hundredth of a second each
KIND_COLUMNS = ("name", "measured_share", "measured_s", "predicted_share", "predicted_s")
WARM_UP, QUIET, DISTURBED = "w", "q", "d"  # letters of the kinds of samples
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


def select_networks(data: Data, limit: int) -> Sequence[Row]:
    """Return the rows of results.

    Of more than `limit` those that failed, then those whose prediction is farthest off, then the
    slowest.
    """
    if data.count_results() <= limit:
        return data.results
    # The place of a row's first record in its folder, which breaks ties.
    first_place = pl.coalesce(pl.col("tried").list.first(), "predicted_at")
    urgency = [  # in ascending order: what failed (false), what is farthest off, what is slowest
        pl.col("status").fill_null("ok") == "ok",
        -pl.col("ratio").log().abs(),
        -pl.col("measured_s"),
        -pl.col("predicted_s"),
        pl.col("folder"),
        first_place,
    ]
    frame = data.scan_results().sort(urgency, nulls_last=True, maintain_order=True)
    return result_rows(frame.head(limit).select(ALL_COLUMNS).collect())


def table_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of the table of networks that are known, or in which rows differ.

    Examples/s are there only if a row is published, whose FLOP are often not known.
    """
    columns = []
    for column in COLUMNS:
        # A spare column is there only where rows differ in it, any other where a value is known.
        min_values = 2 if column.is_spare else 1
        if _count_values(rows, column.key) >= min_values:
            columns.append(column)
    origins = {row["origin"] for row in rows}
    if "published" not in origins:
        return [column for column in columns if column.key != "examples_per_s"]
    if "measured" not in origins:
        # Then the column of measured steps has only published ones, and says so.
        return [PUBLISHED if column.key == PUBLISHED.key else column for column in columns]
    return columns


def _count_values(rows: Sequence[Row], key: str) -> int:
    return len({row[key] for row in rows} - {None})


def pack_table(rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
    """Return the columns for the page: the text of each cell, and the key it is sorted by."""
    packed = []
    for column in columns:
        sort_column = SORTED_BY.get(column.key, column.key)
        sort_keys = [row[sort_column] for row in rows]
        is_numeric = all(key is None or isinstance(key, int | float) for key in sort_keys)
        packed.append(
            {
                "key": column.key,
                "heading": column.label,
                "cells": [_format_cell(row, column.key) for row in rows],
                # None: the page sorts by the texts of the cells.
                "sort": [style.round_value(key) for key in sort_keys] if is_numeric else None,
            }
        )
    return packed


def _format_cell(row: Row, key: str) -> str:
    value = row[key]
    if key == "status":
        is_unsteady = value == "ok" and row["steady"] is False
        return (value or "not measured") + (", no steady state" if is_unsteady else "")
    return "" if value is None else format_value(key, value)


def make_details(data: Data, rows: Sequence[Row]) -> list[Row]:
    """Return the details that a click on each network shows beside its row.

    `paragraphs` are lines of a diagnosis, `kinds` the time by kind of op, measured and predicted;
    then there are `facts` and `samples`.
    """
    records_of_rows = _read_records(data, rows)
    sample_limit = max(MIN_NETWORK_SAMPLES, MAX_PAGE_SAMPLES // max(1, len(rows)))
    headlines = _diagnose([attempts for attempts, _ in records_of_rows])
    kinds_by_network = _list_kinds(data, rows)
    details = []
    for row, (attempts, prediction), headline in zip(rows, records_of_rows, headlines, strict=True):
        network = (row["workload_key"], row["platform"])
        details.append(
            {
                "name": row["label"],
                "paragraphs": headline,
                "kinds": kinds_by_network.get(network, ()),
                "facts": _list_facts(row, attempts, prediction),
                "samples": _pack_samples(attempts, sample_limit),
            }
        )
    return details


def _diagnose(attempts_of_rows: Sequence[Sequence[Record]]) -> list[Sequence[str]]:
    """Return the lines of the diagnosis of each row's last good record; () without any.

    Rows beyond `MAX_DIAGNOSED` have no diagnosis.
    """
    last_record_by_row: dict[int, Record] = {}
    for row_index, attempts in enumerate(attempts_of_rows[:MAX_DIAGNOSED]):
        good_records = _select_good_records(attempts)
        if good_records:
            last_record_by_row[row_index] = good_records[-1]
    diagnoses = diagnose_records(last_record_by_row.values())
    headlines: list[Sequence[str]] = [()] * len(attempts_of_rows)
    for row_index, diagnosis in zip(last_record_by_row, diagnoses, strict=True):
        if not isinstance(diagnosis, str):  # a text says why there is no diagnosis
            headlines[row_index] = diagnosis.headline
    return headlines


def _read_records(data: Data, rows: Sequence[Row]) -> list[tuple[list[Record], Record | None]]:
    """Return for each row of results the records that were tried, and the prediction."""
    # Folder by folder, so that each is read once.
    records_by_folder = {
        folder: _read_folder_records(data, folder, folder_rows)
        for folder, folder_rows in group_by(rows, itemgetter("folder")).items()
    }
    pairs = []
    for row in rows:
        records_by_place = records_by_folder[row["folder"]]
        attempts = [records_by_place[place] for place in row["tried"] or ()]
        pairs.append((attempts, records_by_place.get(row["predicted_at"])))
    return pairs


def _read_folder_records(data: Data, folder: str, rows: Sequence[Row]) -> dict[int, Record]:
    """Return the records of some rows of a folder, by their places in it."""
    places: set[int] = set()
    for row in rows:
        places.update(_list_record_places(row))
    return data.read_records(data.names.index(folder), sorted(places))


def _list_record_places(row: Row) -> list[int]:
    """Return the places of a row's records in their folder."""
    prediction = row["predicted_at"]
    return [*(row["tried"] or ()), *([] if prediction is None else [prediction])]


def _select_good_records(records: Sequence[Record]) -> list[Record]:
    """Return the records that hold a step, without those that failed."""
    return [record for record in records if record.status == "ok" and "step_s" in record.quantities]


def _list_kinds(data: Data, rows: Sequence[Row]) -> dict[tuple[str, str], list[tuple[Any, ...]]]:
    """Return the kinds of ops of each network and platform, each with its share and time."""
    key_by_name = {row["name"]: row["workload_key"] for row in rows}
    kind_rows = analysis("breakdown").answer(data, by="kind", by_network=True).rows
    kinds_by_network: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for kind_row in kind_rows:
        network = (key_by_name.get(kind_row["network"], ""), kind_row["platform"])
        values = tuple(style.round_value(kind_row[name]) for name in KIND_COLUMNS)
        kinds_by_network.setdefault(network, []).append(values)
    return kinds_by_network


def _list_facts(
    row: Row, attempts: Sequence[Record], prediction: Record | None
) -> list[tuple[str, str]]:
    """Return the origin of a row: its network, the options of both methods, the environment."""
    predictions = [prediction] if prediction else []
    last_records = [*attempts[-1:], *predictions]
    status_parts = [part for part in (row["cause"], row["note"]) if part]
    facts = [
        ("network", row["model"]),
        ("settings", describe_options(settings_of(last_records[0].workload))),
        ("status", ": ".join(status_parts)),
        *((f"{record.origin} with", _describe_method(record)) for record in last_records),
    ]
    if attempts:
        facts += _list_measurement_facts(row, attempts[-1])
    return [(name, text) for name, text in facts if text]


def _describe_method(record: Record) -> str:
    """Return the method of a record with its options: `roofline 1, compile false`."""
    method = record.method
    options = describe_options(method.options)
    name = f"{method.name} {method.version}"
    return f"{name}, {options}" if options else name


def _list_measurement_facts(row: Row, record: Record) -> list[tuple[str, str]]:
    """Return the number of samples, the date and the environment of a measurement."""
    samples_text = ""
    if row["runs"]:
        run_text = format_count(row["runs"], "run")
        samples_text = f"{format_count(row['samples_n'], 'sample')} in {run_text}"
    environment = {name: record.env.get(name) for name in ENVIRONMENT}
    return [
        ("samples", samples_text),
        ("taken at", record.taken_at),
        ("environment", describe_options(environment)),
    ]


def describe_options(values: Mapping[str, Any]) -> str:
    """Return options in words, without those that are unknown: "threads 2, compile false"."""
    return ", ".join(
        f"{name} {text_of(value)}"
        for name, value in values.items()
        if value not in (None, "", [], {})
    )


def text_of(value: object) -> str:
    """Return an option's value in words."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _pack_samples(attempts: Sequence[Record], limit: int) -> Row | None:
    """Return at most `limit` samples of a network in the order taken; None if there are none.

    `values` are 16 bits of `slowest_s`, `kinds` a letter each: warm-up, quiet or disturbed, `at`
    their numbers if some are left out: of each stretch the fastest and the slowest stay.
    """
    steps = [step for record in _select_good_records(attempts) for step in read_steps(record)]
    if not steps:
        return None
    samples_s = np.array([step_s for step_s, _ in steps])
    kinds = [kind for _, kind in steps]
    indices = _choose_extremes(samples_s, limit)  # outliers stay visible
    slowest_s = float(samples_s.max())
    # Whole numbers, of which the slowest sample has FULL_SCALE, make a smaller page than floats.
    scaled_samples = np.rint(samples_s[indices] * (FULL_SCALE / slowest_s)).astype(int)
    return {
        "at": indices.tolist() if len(indices) < len(steps) else None,
        "values": scaled_samples.tolist(),
        "kinds": "".join(kinds[index] for index in indices),  # a letter for each sample
        "slowest_s": slowest_s,
        "number": len(steps),
    }


def read_steps(record: Record) -> Iterator[tuple[float, str]]:
    """Yield the steps of a record [s] with the letters of their kinds; warm-up comes first."""
    step = record.quantities["step_s"]
    marked_samples = zip(step.samples, step.disturbed_samples, strict=True)
    runs = by_run(marked_samples, step.runs) if step.samples else []
    logs = [np.log([step_s for step_s, _is_disturbed in run]) for run in runs]
    warm_up_counts = find_warm_up(logs, [len(runs)]).sample_counts  # one cell of all these runs
    omitted_of_runs = _list_omitted_steps(record)
    for index, run in enumerate(runs):
        if index < len(omitted_of_runs):
            yield from ((step_s, WARM_UP) for step_s in omitted_of_runs[index])
        for sample_index, (step_s, is_disturbed) in enumerate(run):
            is_warm_up = sample_index < warm_up_counts[index]
            yield step_s, _choose_kind(is_warm_up=is_warm_up, is_disturbed=is_disturbed)


def _choose_kind(*, is_warm_up: bool, is_disturbed: bool) -> str:
    """Return the letter of the kind of a sample; a disturbed sample of the warm-up is warm-up."""
    if is_warm_up:
        return WARM_UP
    return DISTURBED if is_disturbed else QUIET


def _list_omitted_steps(record: Record) -> list[Sequence[float]]:
    """Return, by run, the warm-up steps that the measurement left out of the samples [s]."""
    warm_up_s = record.env.get("warmup_s") or ()
    has_list_of_runs = any(isinstance(steps, list) for steps in warm_up_s)
    # A record of one run has its steps alone.
    return [steps or () for steps in warm_up_s] if has_list_of_runs else [warm_up_s]


def _choose_extremes(samples: Floats, limit: int) -> NDArray[np.int64]:
    """Return indices of at most `limit` samples: the two extremes of each of equal stretches."""
    if len(samples) <= limit:
        return np.arange(len(samples))
    edges = np.linspace(0, len(samples), limit // 2 + 1).astype(int)  # two samples a stretch
    indices = []
    for start, stop in pairwise(edges):
        indices_by_size = np.argsort(samples[start:stop]) + start
        indices += [indices_by_size[0], indices_by_size[-1]]
    return np.unique(indices)


def samples_chart() -> Spec:
    """Return the Vega-Lite of a network's samples, over rows that the page makes from them."""
    x = style.encode_number("sample", "sample", format="d", grid=False)
    x["scale"] = {"nice": False, "zero": False}
    points = style.layer(
        "point", {"x": x, **encode_marks(KINDS, ("sample", "time", "kind"))}, size=22
    )
    return EMPTY | {"height": 120, "layer": [points]}


def kinds_chart() -> Spec:
    """Return the Vega-Lite of a network's kinds of ops: shares of the step, each side a bar."""
    axis = {"title": "share of the step", "format": "~%", "tickCount": 6}
    encoding = {
        "y": style.encode_name("kind", title=None, sort=None, axis={"labelLimit": 220}),
        "yOffset": {"field": "side", "sort": None},
        "x": style.encode_number("share") | {"axis": axis},
        "color": style.encode_name("side", legend={"title": None, "orient": "top"}, sort=None),
        "tooltip": style.tooltip(("kind", "side", "of_the_step", "time")),
    }
    return EMPTY | {"mark": "bar", "height": {"step": 30}, "encoding": encoding}

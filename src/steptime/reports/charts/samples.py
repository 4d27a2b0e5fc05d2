"""The samples of each network in the order in which they were taken, disturbed ones marked."""

from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from steptime.core.units import format_seconds
from steptime.records.data import Data
from steptime.records.pair_keys import METHOD
from steptime.records.record import Record
from steptime.records.row import ROW_LABEL_COLUMNS
from steptime.records.short_names import NAME_COLUMNS, name_rows
from steptime.reports.charts import EmptyPlotError, style

WIDTH, GAP = 215, 84
ROW_GAP = 50  # between rows of panels whose names have one line
LINE_HEIGHT = 15  # of a further line of a name
KINDS = {"quiet": "circle", "disturbed": "cross"}
EXPLANATION = (
    "Up: mean time of a step in one sample, from 0. Across: number of the sample. Line: median."
)
SERIES = ("folder_rank", "workload_key", "platform", *METHOD)  # a panel has one value of these
X = style.encode_number("sample", "", format="d", grid=False, tickCount=4)
X["scale"] = {"nice": False, "padding": 8}
Y = style.encode_number("seconds", "step (s)", "s", tickCount=3)


def chart(data: Data) -> style.Spec:
    """Return a panel a network: time of a sample [s] over its number.

    Raises:
        EmptyPlotError: where no record holds samples of a step.
    """
    series, series_count = _find_series(data)
    if not len(series):
        raise EmptyPlotError("samples: no record here holds samples of a step")
    rows = _make_sample_points(data, series)
    points = {"x": X, **encode_marks(KINDS, ("sample", "time", "run", "kind"))}
    middle = style.layer("rule", {"y": {**Y, "aggregate": "median"}}, style="quiet")
    layers = {"layer": [middle, style.layer("point", points, size=22)]}
    panel_rows, view = style.facet_panels(
        rows, "panel", layers, columns=3, gap=GAP, width=WIDTH, height=70
    )
    has_panels = "facet" in view
    if has_panels:
        view |= _arrange_panels([row["panel"] for row in panel_rows])
    explanation = EXPLANATION
    if len(series) < series_count:
        explanation += f" The {len(series)} of {series_count} networks that scatter most."
    disturbed = "Disturbed: other work took the processor during the sample."
    caption = [explanation, disturbed, data.source_of("measured")]
    return style.finish("Samples in the order taken", caption, panel_rows, **view)


def _arrange_panels(names: Sequence[str]) -> style.Spec:
    """Return settings of panels with axes of their own, and room for the longest of their names."""
    resolve = {"scale": {"x": "independent", "y": "independent"}}
    further_lines = max(name.count("|") for name in names)  # a name has a line more for each `|`
    spacing = {"row": ROW_GAP + LINE_HEIGHT * further_lines, "column": GAP}
    return {"resolve": resolve, "bounds": "flush", "spacing": spacing}


def _find_series(data: Data) -> tuple[pl.DataFrame, int]:
    """Return the series that scatter most, by their first records, and the number of all.

    Columns are `folder_rank`, `platform`, `seq` of the last record, and the `places` of all.
    """
    is_sampled = (
        (pl.col("origin") == "measured")
        & (pl.col("status") == "ok")
        & (pl.col("scope") == "")
        & (pl.col("samples_n") > 0)
    )
    columns = ("seq", "place", "step_s_min", "step_s_max", *SERIES)
    records = data.scan().filter(is_sampled).select(columns).collect()
    series = records.group_by(SERIES, maintain_order=True).agg(
        pl.col("seq").max(),
        pl.col("place").min().alias("first"),
        pl.col("place").alias("places"),
        (pl.col("step_s_max").max() / pl.col("step_s_min").min()).alias("scatter"),
    )
    widest = series.sort("scatter", "first", "seq", descending=[True, False, False])
    return widest.head(style.MAX_PANELS).sort("first", "seq"), len(series)


def _make_sample_points(data: Data, series: pl.DataFrame) -> list[style.Row]:
    """Return the samples of series as marks of their panels, panel by panel."""
    panel_by_seq = _name_series(data, series)
    places_of_folders = series.group_by("folder_rank", maintain_order=True).agg(
        pl.col("places").explode()
    )
    records_by_folder = {
        rank: data.read_records(rank, places) for rank, places in places_of_folders.iter_rows()
    }
    marks_by_panel: dict[str, list[style.Row]] = {}
    for row in series.iter_rows(named=True):
        panel = panel_by_seq[row["seq"]]
        panel_marks = marks_by_panel.setdefault(panel, [])
        for place in sorted(row["places"]):
            record = records_by_folder[row["folder_rank"]][place]
            panel_marks += _make_marks(record, panel, len(panel_marks))  # numbers go on
    return [mark for panel_marks in marks_by_panel.values() for mark in panel_marks]


def _name_series(data: Data, series: pl.DataFrame) -> dict[int, str]:
    """Return the name of the panel of each series, by the `seq` of its last record."""
    label_columns = dict.fromkeys((*NAME_COLUMNS, *ROW_LABEL_COLUMNS))  # each once
    read_columns = [column for column in label_columns if column != "within"]
    records = data.take_records(series["seq"].to_numpy(), read_columns)
    # Names tell rows of equal `within` apart: here the series of all folders together.
    names = name_rows(records.with_columns(pl.lit(0).alias("within")), ROW_LABEL_COLUMNS)
    has_platforms = series["platform"].n_unique() > 1
    name_by_seq = {}
    for seq, name, platform in zip(records["seq"], names, records["platform"], strict=True):
        label = f"{name} on {platform}" if has_platforms else name
        name_by_seq[seq] = style.wrap_panel_name(label, WIDTH + GAP)
    return name_by_seq


def encode_marks(kinds: Mapping[str, str], fields: Sequence[str]) -> style.Spec:
    """Return the encodings of seconds, and of `kinds` of samples by a colour and a sign each."""
    legend = {"title": None, "orient": "top"}
    names = {"domain": list(kinds)}
    shapes = {"domain": list(kinds), "range": list(kinds.values())}
    return {
        "y": Y,
        "color": style.encode_name("kind", scale=names, legend=legend),
        "shape": style.encode_name("kind", scale=shapes, legend=legend),
        "tooltip": style.tooltip(fields),
    }


def _make_marks(record: Record, panel: str, start: int) -> Iterator[style.Row]:
    quantity = record.quantities["step_s"]
    columns = zip(quantity.samples, quantity.runs, quantity.disturbed_samples, strict=True)
    for index, (sample, run, disturbed) in enumerate(columns, start=start + 1):
        yield {
            "panel": panel,
            "sample": index,
            "seconds": sample,
            "run": run,
            "kind": "disturbed" if disturbed else "quiet",
            "time": format_seconds(sample),
        }

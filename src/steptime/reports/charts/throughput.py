"""Examples a second by batch: a panel for each family, a line for each network and machine."""

from collections.abc import Sequence
from operator import itemgetter

import polars as pl

from steptime.core.tables.table import Column
from steptime.records.data import Data
from steptime.records.row import group_by
from steptime.reports.charts import EmptyPlotError, style

MAX_LINES = 240  # lines
MAX_LEGEND_LINES = 24  # with names of their own
BATCH_WORDS = pl.concat_str(pl.lit(" batch "), pl.col("batch").cast(pl.String))
LINE = pl.col("label").str.split(BATCH_WORDS).list.join("")
TOOLTIP = (
    Column("label", "network"),
    Column("batch"),
    Column("examples_per_s", "examples/s"),
    Column("measured_s", "measured step"),
    Column("interval_95"),
    Column("platform"),
)


def chart(data: Data) -> style.Spec:
    """Return measured examples a second over batch, both logarithmic.

    Raises:
        EmptyPlotError: where no record holds a measured step and its batch.
    """
    is_point = (pl.col("examples_per_s") > 0) & pl.col("batch").is_not_null()
    columns = style.point_columns(["family"], TOOLTIP)
    rows, line_count = data.draw_results(columns, is_point, MAX_LINES, LINE)
    if not rows:
        raise EmptyPlotError(
            "throughput: no record here holds both a measured time of a step and its batch"
        )
    lines = group_by(map(_make_line_point, rows), itemgetter("family", "line"))
    points = [point for line in lines.values() for point in line]
    families = list(dict.fromkeys(point["family"] for point in points))
    panels = [_draw_family(family, points) for family in families[: style.MAX_PANELS]]
    explanation = "Speed: batch over mean time of a step. Logarithmic axes, a speed axis a family."
    # A single panel is the picture itself, which has a title of its own.
    view: style.Spec = {name: value for name, value in panels[0].items() if name != "title"}
    if len(panels) > 1:
        panels = [{**panel, "width": 290, "height": 190} for panel in panels]
        scales = {"scale": {"color": "independent", "shape": "independent"}}
        view = {"concat": panels, "columns": 2, "resolve": scales, "spacing": 30}
    caption = [
        explanation,
        *style.describe_sample(line_count, "line", MAX_LINES),
        data.source,
    ]
    return style.finish("Throughput by batch", caption, points, **view)


def _draw_family(family: str, points: Sequence[style.Row]) -> style.Spec:
    family_points = [point for point in points if point["family"] == family]
    batches = sorted({point["batch"] for point in family_points})
    line_count = len({point["line"] for point in family_points})
    place = {
        "x": style.encode_log_number("batch", batches, "batch (examples)", grid=False),
        "y": style.encode_log_number(
            "speed", [p["speed"] for p in family_points], "speed (examples/s)"
        ),
    }
    place["x"]["axis"] |= {"values": batches, "labelExpr": "format(datum.value, 'd')"}
    opacity = 0.9 if line_count <= MAX_LEGEND_LINES else 0.25
    encoding = style.encode_categories(
        "line", family_points, style.NO_TITLE, orient="bottom", columns=1
    )
    if line_count > MAX_LEGEND_LINES:  # too many for names of their own
        colour = style.encode_categories(
            "platform", points, "platform", orient="bottom", columns=1
        )["color"]
        encoding = {"color": colour, "detail": {"field": "line"}}
    line_encoding = {channel: value for channel, value in encoding.items() if channel != "shape"}
    tooltip = style.tooltip(TOOLTIP)
    marks = [
        style.layer("line", {**place, **line_encoding}, opacity=opacity),
        style.layer(
            "point", {**place, **encoding, "tooltip": tooltip}, filled=True, opacity=opacity
        ),
    ]
    title = family if line_count <= MAX_LEGEND_LINES else f"{family}, {line_count} lines"
    return {
        "title": {"text": title, "fontSize": 13, "offset": 8},
        "transform": [{"filter": {"field": "family", "equal": family}}],
        "layer": marks,
    }


def _make_line_point(row: style.Row) -> style.Row:
    # The label without its batch leaves ", ," behind; the panel says the family.
    line = row["line"].replace(",,", ",").removeprefix(row["family"]).strip(", ")
    fields = {"line": line or row["family"], "speed": row["examples_per_s"], "batch": row["batch"]}
    return style.point(row, ["family"], TOOLTIP) | fields
